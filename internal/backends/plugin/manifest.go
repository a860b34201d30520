package plugin

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// maxManifestBytes bounds a manifest.
const maxManifestBytes = 64 << 10

// Feature ids of the manifest. There are these 18; none says anything about egress.
const (
	featureLifecycle = "sandbox.lifecycle"
	featureTimeout   = "sandbox.timeout"
	featurePause     = "sandbox.pause"
	featureExec      = "exec.run"
	featureStream    = "exec.stream"
	featureProcess   = "process.manage"
	featureFiles     = "files.rw"
	featureCode      = "code.interpret"
)

var featureIDs = []string{
	featureCode, featureExec, featureStream, featureFiles, "files.transfer", "files.watch", "network.vpc", "ports.domain", "ports.url",
	featureProcess, "pty", featureLifecycle, featurePause, featureTimeout, "sessions", "storage.mount", "templates.build", "templates.read",
}

// reservedIDs are those of the catalogue; a manifest of somebody else cannot take them.
var reservedIDs = []string{"alicloud-container", "alicloud-express", "cubesandbox", "e2b", "opensandbox"}

var idPattern = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)

// manifest is a manifest of version 1. Keys that are read and not interpreted are compat.requires, the texts in Chinese and
// features.extensions.
type manifest struct {
	ManifestVersion int `toml:"manifest_version"`
	Provider        struct {
		ID            string `toml:"id"`
		Name          string `toml:"name"`
		NameZH        string `toml:"name_zh"`
		Version       string `toml:"version"`
		Description   string `toml:"description"`
		DescriptionZH string `toml:"description_zh"`
		License       string `toml:"license"`
	} `toml:"provider"`
	Compat struct {
		Protocol string `toml:"protocol"`
		Requires any    `toml:"requires"`
	} `toml:"compat"`
	Runtime struct {
		Kind string `toml:"kind"`
	} `toml:"runtime"`
	Endpoint struct {
		BaseURL string `toml:"base_url"`
		Domain  string `toml:"domain"`
		Auth    struct {
			Scheme string `toml:"scheme"`
			Header string `toml:"header"`
		} `toml:"auth"`
	} `toml:"endpoint"`
	Features struct {
		Supported  []string       `toml:"supported"`
		Extensions map[string]any `toml:"extensions"`
	} `toml:"features"`
	Security struct {
		Network []string `toml:"network"`
	} `toml:"security"`
	Auth struct {
		AnyOf any `toml:"any_of"`
	} `toml:"auth"`
	Core struct {
		Inherit any `toml:"inherit"`
	} `toml:"core"`
	Config struct {
		Fields map[string]struct {
			Type          string `toml:"type"`
			Secret        bool   `toml:"secret"`
			Credential    bool   `toml:"credential"`
			Description   string `toml:"description"`
			DescriptionZH string `toml:"description_zh"`
		} `toml:"fields"`
	} `toml:"config"`

	sha256 string
	path   string
}

// load reads and checks a manifest. attribute is the one to blame.
func load(path string, attribute []string) (*manifest, error) {
	refuse := func(said, next string, err error) (*manifest, error) {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the manifest was refused", Object: sandboxcore.Printable(path), Said: said, Next: next, Attribute: attribute, Err: err,
		}
	}
	const next = "Name the abx-provider.toml of the plugin."
	// Opening anything but a file may wait for ever.
	if info, err := os.Stat(path); err != nil {
		return refuse("It cannot be read.", next, err)
	} else if !info.Mode().IsRegular() {
		return refuse("It is no file.", next, nil)
	}
	file, err := os.Open(path) // #nosec G304 -- the path is what the configuration says
	if err != nil {
		return refuse("It cannot be read.", next, err)
	}
	defer file.Close()
	// Not by the size that it tells: some files tell none, and it may grow.
	text, err := io.ReadAll(io.LimitReader(file, maxManifestBytes+1))
	switch {
	case err != nil:
		return refuse("It cannot be read.", next, err)
	case len(text) > maxManifestBytes:
		return refuse(fmt.Sprintf("It is larger than %d bytes.", maxManifestBytes), next, nil)
	}
	m, said := parse(text)
	if said != "" {
		return refuse(said, "Correct the manifest, or ask whoever made it.", nil)
	}
	m.path = path
	return m, nil
}

// parse gives the manifest, or why it is none.
func parse(text []byte) (*manifest, string) {
	var m manifest
	meta, err := toml.Decode(string(text), &m)
	if err != nil {
		return nil, "It is no TOML of a manifest: " + sandboxcore.Printable(err.Error()) + "."
	}
	for _, key := range meta.Undecoded() {
		if name := key.String(); !strings.HasPrefix(name, "features.extensions.") && !strings.HasPrefix(name, "compat.requires.") {
			return nil, fmt.Sprintf("It has the key %s, which this provider does not know.", sandboxcore.Quoted(name))
		}
	}
	sum := sha256.Sum256(text)
	m.sha256 = hex.EncodeToString(sum[:])
	return &m, m.check()
}

func (m *manifest) check() string {
	id := m.Provider.ID
	switch {
	case m.ManifestVersion != 1:
		return fmt.Sprintf("Its manifest_version is %d; this provider reads 1.", m.ManifestVersion)
	case len(id) < 2 || len(id) > 40 || !idPattern.MatchString(id):
		return fmt.Sprintf("The provider id %s is not possible: 2 to 40 lower-case letters, digits and single hyphens, starting with a letter.", sandboxcore.Quoted(id))
	case strings.HasPrefix(id, "abx-") || strings.HasPrefix(id, "alicloud-") || strings.HasPrefix(id, "shortcuts") || slices.Contains(reservedIDs, id):
		return fmt.Sprintf("The provider id %q is reserved.", id)
	case m.Runtime.Kind == "python":
		return "Its kind is python: code of a plugin is never run inside this provider."
	case m.Runtime.Kind == "exec" || m.Runtime.Kind == "node":
		return fmt.Sprintf("Its kind is %s, which is not supported yet; only rest is.", m.Runtime.Kind)
	case m.Runtime.Kind != "rest":
		return fmt.Sprintf("Its kind %s is unknown.", sandboxcore.Quoted(m.Runtime.Kind))
	case m.Compat.Protocol != "e2b-rest/1":
		return fmt.Sprintf("Its protocol is %s; of the kind rest only e2b-rest/1 is known.", sandboxcore.Quoted(m.Compat.Protocol))
	}
	for _, f := range m.Features.Supported {
		if !slices.Contains(featureIDs, f) {
			return fmt.Sprintf("It lists the feature %s, which does not exist.", sandboxcore.Quoted(f))
		}
	}
	return m.checkEndpoint()
}

func (m *manifest) checkEndpoint() string {
	u, err := url.Parse(m.Endpoint.BaseURL)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || (u.Scheme != "https" && u.Scheme != "http") ||
		slices.Contains(strings.Split(u.Path, "/"), "..") {
		return "Its endpoint.base_url is no plain http or https address."
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "http" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return "Its endpoint.base_url is not encrypted, so that the key could be read on the way."
	}
	if d := m.Endpoint.Domain; d != "" && !hostPattern.MatchString(d) {
		return fmt.Sprintf("Its endpoint.domain %s is no domain.", sandboxcore.Quoted(d))
	}
	if len(m.Security.Network) == 0 {
		return "It lists no host in security.network, so that it may talk to nobody."
	}
	for _, entry := range m.Security.Network {
		if !hostPattern.MatchString(strings.TrimPrefix(entry, "*.")) && net.ParseIP(entry) == nil {
			return fmt.Sprintf("Its security.network has %s, which is no name of a host, nor one with \"*.\" for all that is below it.", sandboxcore.Quoted(entry))
		}
	}
	if !m.mayReach(u.Hostname()) {
		return fmt.Sprintf("Its endpoint %s is not among the hosts of its own security.network.", sandboxcore.Quoted(u.Hostname()))
	}
	switch m.Endpoint.Auth.Scheme {
	case "bearer", "header", "":
	default:
		return fmt.Sprintf("Its auth scheme %s is unknown; bearer and header are known.", sandboxcore.Quoted(m.Endpoint.Auth.Scheme))
	}
	if h := m.Endpoint.Auth.Header; h != "" && (!headerPattern.MatchString(h) || slices.Contains(otherHeaders, http.CanonicalHeaderKey(h))) {
		return fmt.Sprintf("Its auth header %s is no name of a header for a key.", sandboxcore.Quoted(h))
	}
	return ""
}

var (
	hostPattern   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)
	headerPattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]{0,63}$`)
	// otherHeaders have a meaning of their own; a key in one of them would not arrive, or break the request.
	otherHeaders = []string{
		"Accept", "Connection", "Content-Length", "Content-Type", "Host", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "User-Agent",
	}
)

// mayReach reports whether security.network names a host, itself or with "*." what is below it.
func (m *manifest) mayReach(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	return slices.ContainsFunc(m.Security.Network, func(entry string) bool {
		entry = strings.ToLower(entry)
		suffix, wild := strings.CutPrefix(entry, "*")
		return entry == host || (wild && len(host) > len(suffix) && strings.HasSuffix(host, suffix))
	})
}

// credentialVariable is the environment variable that holds the key of this plugin and of no other.
func (m *manifest) credentialVariable() string {
	return "ABX_" + strings.ToUpper(strings.ReplaceAll(m.Provider.ID, "-", "_")) + "_API_KEY"
}

func (m *manifest) supported() []any {
	list := slices.Compact(slices.Sorted(slices.Values(m.Features.Supported)))
	out := make([]any, len(list))
	for i, f := range list {
		out[i] = f
	}
	return out
}
