package e2b

import (
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Ports inside a sandbox.
const portEnvd = 49983

// ownDomains are E2B's. There, all sandboxes are behind one host that routes by header.
var ownDomains = []string{"e2b.app", "e2b.dev"}

// Place is one server that speaks E2B's API, and how to speak to it.
type Place struct {
	// Kind is the backend's type; the provider attribute and the profile attribute have the same name.
	Kind   sandboxcore.BackendType
	API    *url.URL
	Domain string
	// Sandboxes is the address of all sandboxes, possibly with {sandbox_id} and {port}; empty: by domain.
	Sandboxes string
	// Key and how it is sent: as the value of Header, after Scheme and a space if there is one.
	Key, Header, Scheme string
	// KeyVariable is the environment variable that the key may come from, for diagnostics.
	KeyVariable string
	// Version is "auto", "v1" or "v2".
	Version string
	Roots   *x509.CertPool
	// Allowed are further domains that an answer may name.
	Allowed []string
	// Origin says where the address comes from, for diagnostics.
	Origin string
	// PlainHTTP: addresses of other machines may be http.
	PlainHTTP bool
}

func refuseSetting(kind sandboxcore.BackendType, key, said, next string) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeValue, Attempted: "the provider configuration was refused", Object: string(kind), Said: said, Next: next,
		Attribute: []string{string(kind), key},
	}
}

// readPlace reads the provider settings, with the variables of E2B's own tools as defaults. An endpoint in the
// configuration uses nothing of the environment, so that no key meets a server that it was not meant for.
func readPlace(provider sandboxcore.Settings, getenv func(string) string) (*Place, error) {
	const kind = sandboxcore.BackendE2B
	p := &Place{
		Kind: kind, Header: "X-API-Key", Version: provider.String(keyAPIVersion, versionAuto), Allowed: provider.Strings(keyAllowedDomains),
		PlainHTTP: provider.Bool(keyAllowHTTP, false), Key: provider.String(keyAPIKey, ""),
	}
	if provider.String(keyAuth, authHeader) == authBearer {
		p.Header, p.Scheme = "Authorization", "Bearer"
	}
	domain, api, sandboxes := provider.String(keyDomain, ""), provider.String(keyAPIURL, ""), provider.String(keySandboxURL, "")
	p.Origin = "the provider's e2b attribute"
	if domain == "" && api == "" && sandboxes == "" {
		domain, api, sandboxes = getenv("E2B_DOMAIN"), getenv("E2B_API_URL"), getenv("E2B_SANDBOX_URL")
		p.Origin = "the environment (E2B_DOMAIN, E2B_API_URL)"
		if domain == "" && api == "" && sandboxes == "" {
			p.Origin = "the default"
		}
		if p.Key == "" {
			p.Key = getenv("E2B_API_KEY")
		}
	}
	switch {
	case domain != "":
	case api == "":
		domain = defaultDomain
	default:
		// A server of one's own does not put its sandboxes below E2B's domain.
		if u, err := url.Parse(api); err == nil {
			domain = strings.TrimPrefix(u.Hostname(), "api.")
		}
	}
	if api == "" {
		api = "https://api." + domain
	}
	p.Domain, p.Sandboxes = strings.ToLower(domain), sandboxes
	if pem := provider.String(keyCACertificate, ""); pem != "" {
		p.Roots = x509.NewCertPool()
		if !p.Roots.AppendCertsFromPEM([]byte(pem)) {
			return nil, refuseSetting(kind, keyCACertificate, "it holds no certificate in PEM form.", "Give the text of the file, with its BEGIN CERTIFICATE line.")
		}
	}
	var err error
	if p.API, err = p.checkURL(keyAPIURL, api); err != nil {
		return nil, err
	}
	if sandboxes != "" {
		if _, err := p.checkURL(keySandboxURL, strings.NewReplacer("{sandbox_id}", "x", "{port}", "1").Replace(sandboxes)); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// checkURL refuses addresses that would carry keys in the clear, or that hide more than an address.
func (p *Place) checkURL(key, text string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(text, "/"))
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, refuseSetting(p.Kind, key, "it is no plain http or https address.", "Write it as https://host, with port and path if needed. It comes from "+p.Origin+".")
	}
	if u.Scheme == "http" && !p.PlainHTTP && !loopback(u.Hostname()) {
		return nil, refuseSetting(p.Kind, key, fmt.Sprintf("%s is not encrypted, so that keys could be read on the way.", u.Redacted()),
			"Use https, or set allow_http = true if the network in between is yours.")
	}
	return u, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// identity names the server: the API's host, and its path where several servers share a host.
func (p *Place) identity() string { return strings.ToLower(p.API.Host) + p.API.Path }

// needKey refuses to call anybody without a key.
func (p *Place) needKey() error {
	if strings.ContainsFunc(p.Key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the server was not called", Object: p.identity(),
			Said: "The API key has a space, a line break or another character that no key has.", Next: "Give the key alone: trimspace(file(\"…\")) takes off what a file has at its end.",
			Attribute: []string{string(p.Kind), keyAPIKey},
		}
	}
	if p.Key != "" {
		return nil
	}
	next := "Set E2B_API_KEY, or api_key in the provider's e2b attribute."
	if p.Origin == "the provider's e2b attribute" {
		next = "Set api_key in the provider's e2b attribute: a key from the environment is not sent to a server that the configuration names."
	}
	if p.Kind != sandboxcore.BackendE2B {
		next = fmt.Sprintf("Set %s, or %s in the provider's %s attribute.", p.KeyVariable, keyAPIKey, p.Kind)
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeUnreachable, Attempted: "the server was not called", Object: p.identity(), Said: "There is no API key for it.", Next: next,
		Attribute: []string{string(p.Kind), keyAPIKey},
	}
}

// own reports whether the server is E2B's own.
func (p *Place) own() bool {
	return slices.ContainsFunc(ownDomains, func(d string) bool { return below(p.Domain, d) })
}

// below reports whether host is domain or below it.
func below(host, domain string) bool {
	host, domain = strings.ToLower(strings.TrimSuffix(host, ".")), strings.ToLower(domain)
	return host == domain || strings.HasSuffix(host, "."+domain)
}

// route is the way to one port of one sandbox.
type route struct {
	base *url.URL
	// sandbox and port are the headers of a shared host; empty where the host itself says it.
	sandbox, port string
}

// routeTo finds the way to a port of a sandbox. domain and envdURL are what an answer of the server named, or empty; they
// decide where the sandbox's tokens go, so that an answer may name only hosts that were configured.
func (p *Place) routeTo(id, domain, envdURL string, port int) (route, error) {
	foreign := func(host string) error {
		return &sandboxcore.Error{
			Code: sandboxcore.CodeUnreachable, Attempted: "the sandbox was not spoken to", Object: objectID(p.Kind, id),
			Said:      fmt.Sprintf("The server names %s as its place, which is neither %s nor below it. Its token was not sent there.", sandboxcore.Quoted(host), p.Domain),
			Next:      "If that host is right, list its domain in allowed_domains of the provider's " + string(p.Kind) + " attribute.",
			Attribute: []string{string(p.Kind), keyAllowedDomains},
		}
	}
	if envdURL != "" && port == portEnvd {
		u, err := url.Parse(strings.TrimRight(envdURL, "/"))
		if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || !p.allowed(u.Hostname()) || (u.Scheme != "https" && !(u.Scheme == "http" && p.API.Scheme == "http")) {
			host := "something that is no address"
			if err == nil {
				host = u.Host
			}
			return route{}, foreign(host)
		}
		return route{base: u}, p.inTheClear(id, u)
	}
	where := p.Domain
	if domain != "" {
		if !p.allowed(domain) {
			return route{}, foreign(domain)
		}
		where = strings.ToLower(domain)
	}
	number := strconv.Itoa(port)
	var text string
	r := route{}
	switch {
	case strings.Contains(p.Sandboxes, "{sandbox_id}"):
		text = strings.NewReplacer("{sandbox_id}", id, "{port}", number).Replace(p.Sandboxes)
	case p.Sandboxes != "":
		text = p.Sandboxes
		r.sandbox, r.port = id, number
	case slices.ContainsFunc(ownDomains, func(d string) bool { return below(where, d) }):
		text = "https://sandbox." + where
		r.sandbox, r.port = id, number
	default:
		text = p.API.Scheme + "://" + number + "-" + id + "." + where
	}
	u, err := url.Parse(strings.TrimRight(text, "/"))
	if err != nil || u.Host == "" {
		return route{}, foreign(where)
	}
	r.base = u
	return r, p.inTheClear(id, u)
}

// inTheClear refuses a way to a sandbox on which its tokens could be read: an API on loopback, behind a forwarded port, says
// nothing about that way.
func (p *Place) inTheClear(id string, u *url.URL) error {
	if u.Scheme != "http" || p.PlainHTTP || loopback(u.Hostname()) {
		return nil
	}
	e := &sandboxcore.Error{
		Code: sandboxcore.CodeUnreachable, Attempted: "the sandbox was not spoken to", Object: objectID(p.Kind, id),
		Said: fmt.Sprintf("The way to it, %s, is not encrypted, so that its token could be read.", sandboxcore.Printable(u.Scheme+"://"+u.Host)),
		Next: "Use a server whose sandboxes are at https addresses.",
	}
	if p.Kind == sandboxcore.BackendE2B {
		e.Next = "Set sandbox_url to an https address, or allow_http = true if the network in between is yours."
		e.Attribute = []string{string(p.Kind), keySandboxURL}
	}
	return e
}

// allowed reports whether tokens may be sent to a host that an answer names.
func (p *Place) allowed(host string) bool {
	if host == "" || strings.ContainsAny(host, "/\\@?#: \t\r\n%") {
		return false
	}
	return below(host, p.Domain) || slices.ContainsFunc(p.Allowed, func(d string) bool { return below(host, d) })
}

func objectID(kind sandboxcore.BackendType, native string) string {
	return sandboxcore.SandboxID(kind, native)
}
