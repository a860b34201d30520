package plugin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/e2b"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const kind = sandboxcore.BackendPlugin

// Keys of the provider attribute and of the profile attribute.
const (
	keyManifest  = "manifest"
	keyAPIKey    = "api_key"
	keySHA256    = "sha256"
	keyFeatures  = "features"
	keyAutoPause = "auto_pause"
	// Of the settings that such a server has in common with E2B.
	keyCodeRunner     = "code_runner"
	runnerInterpreter = "code_interpreter"
)

// Factory describes the backend to the registry.
func Factory() sandboxcore.Factory {
	return sandboxcore.Factory{
		Type: kind,
		ProviderSettings: []sandboxcore.Setting{
			{
				Name: keyManifest, Kind: sandboxcore.KindString,
				Description: "Path of the manifest (`abx-provider.toml`, kind `rest`) of the server that this provider speaks to. Another server needs another " +
					"provider block with an alias.",
			},
			{
				Name: keyAPIKey, Kind: sandboxcore.KindString, Sensitive: true,
				Description: "Key for that server. Defaults to the variable `ABX_<ID>_API_KEY`, where `<ID>` is the manifest's provider id in upper case with `_` for `-`. " +
					"Keys of other backends are never used, whatever `[core] inherit` of a manifest says.",
			},
		},
		Settings: settings(),
		Describe: "A server of E2B's API that an Agent Sandbox manifest of the kind `rest` describes. It does what the features of the manifest list, and nothing " +
			"says how strongly it isolates or whether it limits egress, so that neither is promised.",
		New: func(provider sandboxcore.Settings, getenv func(string) string) (sandboxcore.Backend, error) {
			return &backend{provider: provider, getenv: getenv}, nil
		},
		Complete: complete,
	}
}

func settings() []sandboxcore.Setting {
	return append([]sandboxcore.Setting{
		{
			Name: keyManifest, Kind: sandboxcore.KindString,
			Description: "Path of the manifest. Required; it is read when the profile is evaluated.",
		},
		{
			Name: keySHA256, Kind: sandboxcore.KindString, Pattern: `^[0-9a-f]{64}$`, PatternHint: "64 lower-case hexadecimal digits",
			Description: "SHA-256 of the manifest. Taken from the file, so that it stands in the spec and an edit between plan and apply is noticed. If it is set, " +
				"the file has to have it.",
		},
		{
			Name: keyFeatures, Kind: sandboxcore.KindStringList,
			Description: "Feature ids that may be used. Taken from the manifest; if it is set, some of those.",
		},
	}, e2b.ProfileSettings()...)
}

// complete takes sha256 and features out of the manifest that a user named.
func complete(s sandboxcore.Settings) error {
	path := s.String(keyManifest, "")
	if path == "" {
		return nil // Validate refuses it; capabilities can be asked without
	}
	at := func(key string) []string { return []string{string(kind), key} }
	m, err := load(path, at(keyManifest))
	if err != nil {
		return err
	}
	if want := s.String(keySHA256, ""); want != "" && want != m.sha256 {
		return changed(path, want, m.sha256, at(keySHA256))
	}
	s[keySHA256] = m.sha256
	if _, set := s[keyFeatures]; !set {
		if list := m.supported(); len(list) > 0 { // a spec has no empty lists
			s[keyFeatures] = list
		}
		return nil
	}
	for _, f := range s.Strings(keyFeatures) {
		if !slices.Contains(m.Features.Supported, f) {
			return notDeclared(f, "profile", at(keyFeatures))
		}
	}
	return nil
}

func changed(path, want, have string, attribute []string) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeSpec, Attempted: "the manifest was refused", Object: sandboxcore.Printable(path), Attribute: attribute,
		Said: fmt.Sprintf("Its SHA-256 is %s, but the profile was made with %s.", have, want),
		Next: "Look at what changed in it, then plan again.",
	}
}

func notDeclared(feature, object string, attribute []string) *sandboxcore.Error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodePluginFeature, Attempted: "the operation was refused before any request", Object: object, Attribute: attribute,
		Said: fmt.Sprintf("It needs the feature %q, which the plugin's manifest does not list.", feature), Next: "Use a plugin that has it, or do without.",
	}
}

// backend is the backend of one provider configuration.
type backend struct {
	provider sandboxcore.Settings
	getenv   func(string) string

	mu       sync.Mutex
	endpoint *endpoint
}

// LiveFields: nothing changes in place, as no feature is about egress.
func (b *backend) LiveFields() []string { return nil }

// Capabilities are what the features list, without what no feature says: isolation and network policy.
func (b *backend) Capabilities(p *sandboxcore.Profile) sandboxcore.Capabilities {
	var has features
	if p != nil {
		has = p.Settings.Strings(keyFeatures)
	}
	c := e2b.Capabilities(p)
	c.Isolation = sandboxcore.IsolationNone
	c.PolicyNetwork, c.AllowlistEntries, c.LiveUpdate = false, nil, nil
	c.NetworkModes = []sandboxcore.NetworkMode{sandboxcore.NetworkAllow}
	c.Provisions, c.Attach = true, true
	c.Shell = has.all(featureExec)
	c.Files = has.all(featureFiles, featureExec)
	c.PackageInstall = has.all(featureExec)
	c.Stdin = has.all(featureExec, featureProcess)
	c.Streaming = has.all(featureStream)
	c.SplitOutput = has.all(featureExec)
	c.Pause = has.all(featurePause)
	if !has.all(featureExec, featureFiles) {
		c.Languages = nil
	}
	return c
}

type features []string

func (f features) all(ids ...string) bool {
	for _, id := range ids {
		if !slices.Contains(f, id) {
			return false
		}
	}
	return true
}

// Validate gives the refusals that only this backend knows.
func (b *backend) Validate(p *sandboxcore.Profile) []*sandboxcore.Error {
	if p.Settings.String(keyManifest, "") == "" || p.Settings.String(keySHA256, "") == "" {
		return []*sandboxcore.Error{{
			Code: sandboxcore.CodeValue, Attempted: "the plugin profile was refused", Object: p.Name, Said: "It names no manifest.",
			Next: "Set plugin = { manifest = \"…/abx-provider.toml\" }.", Attribute: []string{string(kind), keyManifest},
		}}
	}
	out := e2b.Validate(kind, p)
	has := features(p.Settings.Strings(keyFeatures))
	if !has.all(featureLifecycle) {
		out = append(out, notDeclared(featureLifecycle, p.Name, []string{string(kind), keyManifest}))
	}
	if p.Settings.String(keyCodeRunner, "") == runnerInterpreter && !has.all(featureCode) {
		out = append(out, notDeclared(featureCode, p.Name, []string{string(kind), keyCodeRunner}))
	}
	if p.Settings.Bool(keyAutoPause, true) && !has.all(featurePause) {
		e := notDeclared(featurePause, p.Name, []string{string(kind), keyAutoPause})
		e.Next = "Set auto_pause = false: the sandbox then ends for good when its time is over."
		out = append(out, e)
	}
	return out
}

// RefuseOperation names the feature that an operation lacks, before the gate says it in general words.
func (b *backend) RefuseOperation(p *sandboxcore.Profile, op sandboxcore.Operation) []*sandboxcore.Error {
	var out []*sandboxcore.Error
	has := features(p.Settings.Strings(keyFeatures))
	need := func(attribute string, ids ...string) {
		for _, id := range ids {
			if !has.all(id) {
				out = append(out, notDeclared(id, fmt.Sprintf("profile %q", p.Name), []string{attribute}))
				return
			}
		}
	}
	if op.Name == sandboxcore.OpRun {
		out = append(out, e2b.RefuseOperation(kind, p, op)...)
		switch op.Kind {
		case sandboxcore.RunCode:
			need("code", featureExec, featureFiles)
		case sandboxcore.RunScript:
			need("script", featureExec, featureFiles)
		case sandboxcore.RunCommand:
			need("command", featureExec)
		}
	}
	if op.Stdin {
		need("stdin", featureProcess)
	}
	if op.Files {
		need("output_files", featureFiles)
	}
	if op.Packages {
		need("packages", featureExec)
	}
	if op.Pause {
		need("desired_state", featurePause)
	}
	return out
}

// Connect reads the manifest and gives the endpoint. It speaks to nobody.
func (b *backend) Connect(context.Context) (sandboxcore.Endpoint, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.endpoint != nil {
		return b.endpoint, nil
	}
	at := []string{string(kind), keyManifest}
	path := b.provider.String(keyManifest, "")
	if path == "" {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeUnreachable, Attempted: "the server was not called", Object: string(kind), Attribute: at,
			Said: "The provider's plugin attribute names no manifest, so that no server is known.", Next: "Set plugin = { manifest = \"…\" } in the provider block.",
		}
	}
	m, err := load(path, at)
	if err != nil {
		return nil, err
	}
	place, err := b.place(m)
	if err != nil {
		return nil, err
	}
	b.endpoint = &endpoint{Endpoint: e2b.Connect(place, m.guard), manifest: m}
	return b.endpoint, nil
}

func (b *backend) place(m *manifest) (*e2b.Place, error) {
	api, err := url.Parse(strings.TrimRight(m.Endpoint.BaseURL, "/"))
	if err != nil {
		return nil, err
	}
	p := &e2b.Place{
		Kind: kind, API: api, Domain: strings.ToLower(m.Endpoint.Domain), Header: "X-API-Key", Version: "auto",
		Origin:      "the manifest " + sandboxcore.Printable(m.path),
		Key:         b.provider.String(keyAPIKey, ""),
		KeyVariable: m.credentialVariable(),
	}
	if p.Domain == "" {
		p.Domain = strings.TrimPrefix(api.Hostname(), "api.")
	}
	for _, h := range m.Security.Network {
		p.Allowed = append(p.Allowed, strings.TrimPrefix(h, "*."))
	}
	if m.Endpoint.Auth.Scheme == "bearer" {
		p.Header, p.Scheme = "Authorization", "Bearer"
	}
	if m.Endpoint.Auth.Header != "" {
		p.Header = m.Endpoint.Auth.Header
	}
	if p.Key == "" {
		p.Key = b.getenv(m.credentialVariable())
	}
	return p, nil
}

// guard is the last line: no request leaves for a host that security.network does not name, or for a feature that is not
// listed.
func (m *manifest) guard(r *http.Request) error {
	if !m.mayReach(r.URL.Hostname()) {
		return &sandboxcore.Error{
			Code: sandboxcore.CodeUnreachable, Attempted: "the request was not sent", Object: sandboxcore.Printable(r.URL.Hostname()),
			Said: "The plugin's manifest does not list this host in security.network.", Next: "Ask whoever made the manifest.",
		}
	}
	if f := featureOf(r.Method, r.URL.Path); !slices.Contains(m.Features.Supported, f) {
		return notDeclared(f, m.Provider.ID, nil)
	}
	return nil
}

// featureOf is the feature that a request belongs to. One that belongs to none is never sent.
func featureOf(method, path string) string {
	switch {
	case strings.HasSuffix(path, "/process.Process/SendInput"), strings.HasSuffix(path, "/process.Process/CloseStdin"):
		return featureProcess
	case strings.HasSuffix(path, "/execute"), strings.HasSuffix(path, "/contexts"), strings.Contains(path, "/contexts/"):
		return featureCode
	case strings.Contains(path, "/process.Process/"):
		return featureExec
	case strings.Contains(path, "/filesystem.Filesystem/"), strings.HasSuffix(path, "/files"):
		return featureFiles
	case strings.HasSuffix(path, "/pause"):
		return featurePause
	case strings.HasSuffix(path, "/timeout"), strings.HasSuffix(path, "/refreshes"):
		return featureTimeout
	case strings.HasSuffix(path, "/network"):
		return "network policy (there is no such feature)"
	case strings.Contains(path, "/sandboxes") && (method == http.MethodGet || method == http.MethodPost || method == http.MethodDelete):
		return featureLifecycle
	}
	return "of no known name"
}

// endpoint is the e2b endpoint of a manifest. It holds what it is asked to make against the manifest that the profile was
// made with.
type endpoint struct {
	sandboxcore.Endpoint
	manifest *manifest
}

// Identity names the plugin and its server.
func (e *endpoint) Identity(ctx context.Context) (string, error) {
	id, err := e.Endpoint.Identity(ctx)
	return e.manifest.Provider.ID + "@" + id, err
}

// Admit refuses a profile of another manifest, or of this one before it was edited.
func (e *endpoint) Admit(ctx context.Context, p *sandboxcore.Profile, op sandboxcore.Operation) error {
	if err := e.same(p); err != nil {
		return err
	}
	return e.Endpoint.Admit(ctx, p, op)
}

func (e *endpoint) same(p *sandboxcore.Profile) error {
	if want := p.Settings.String(keySHA256, ""); want != e.manifest.sha256 {
		return changed(e.manifest.path, want, e.manifest.sha256, []string{string(kind), keyManifest})
	}
	return nil
}

// Create makes a sandbox.
func (e *endpoint) Create(ctx context.Context, req sandboxcore.CreateRequest, onCreated func(sandboxcore.SandboxInfo)) (sandboxcore.ManagedSandbox, error) {
	if err := e.same(req.Profile); err != nil {
		return nil, err
	}
	return e.Endpoint.Create(ctx, req, onCreated)
}

var _ sandboxcore.Endpoint = (*endpoint)(nil)
