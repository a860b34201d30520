//go:build linux

package plugin

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

const allFeatures = `"sandbox.lifecycle", "sandbox.timeout", "sandbox.pause", "exec.run", "exec.stream", "process.manage", "files.rw"`

// text is a manifest for a server; each change replaces one part of it.
func text(baseURL, host string, changes ...string) string {
	t := fmt.Sprintf(`manifest_version = 1

[provider]
id = "acme-boxes"
name = "Acme Boxes"
name_zh = "x"
version = "1.2.3"
description = "Boxes."
description_zh = "x"
license = "Apache-2.0"

[compat]
protocol = "e2b-rest/1"
requires = ">=0.3"

[runtime]
kind = "rest"

[endpoint]
base_url = "%s"

[endpoint.auth]
scheme = "header"
header = "X-API-Key"

[features]
supported = [%s]

[features.extensions.acme]
anything = true

[security]
network = ["%s"]

[auth]
any_of = ["api_key"]

[core]
inherit = ["e2b"]

[config.fields.api_key]
type = "string"
secret = true
credential = true
description = "The key."
`, baseURL, allFeatures, host)
	for i := 0; i < len(changes); i += 2 {
		t = strings.Replace(t, changes[i], changes[i+1], 1)
	}
	return t
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "abx-provider.toml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newPeer(t *testing.T, opt e2bpeer.Options) *e2bpeer.Peer {
	t.Helper()
	opt.EnvdURL = true
	p, err := e2bpeer.Start(context.WithoutCancel(t.Context()), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestContract(t *testing.T) {
	testenv.Require(t, testenv.Local)
	peer := newPeer(t, e2bpeer.Options{})
	path := write(t, text(peer.APIURL(), "127.0.0.1"))
	backendtest.Run(t, backendtest.Target{
		Factory:  Factory(),
		Provider: sandboxcore.Settings{keyManifest: path},
		Settings: sandboxcore.Settings{keyManifest: path},
		Getenv: func(name string) string {
			switch name {
			case "ABX_ACME_BOXES_API_KEY":
				return peer.Key()
			case "E2B_API_KEY":
				t.Error("the key of another backend was asked for")
			}
			return ""
		},
		Foreign: func(t *testing.T) (string, func(*testing.T)) {
			id, err := peer.AddForeign()
			if err != nil {
				t.Fatal(err)
			}
			return id, func(t *testing.T) {
				if peer.States()[id] != "running" {
					t.Error("the foreign sandbox was touched")
				}
			}
		},
	})
	for _, r := range peer.Requests() {
		if strings.HasSuffix(r.Path, "/network") {
			t.Error("a network call")
		}
	}
}

// TestManifest: what is no manifest of this kind is refused when it is read.
func TestManifest(t *testing.T) {
	if _, said := parse([]byte(text("https://api.acme.example", "api.acme.example"))); said != "" {
		t.Fatal(said)
	}
	for name, c := range map[string]struct{ from, to, says string }{
		"version":             {"manifest_version = 1", "manifest_version = 2", "manifest_version is 2"},
		"no TOML":             {"[provider]", "[provider", "no TOML"},
		"unknown key":         {"[runtime]", "[runtime]\nspeed = 3", "runtime.speed"},
		"id: capital":         {"acme-boxes", "Acme", "not possible"},
		"id: two hyphens":     {"acme-boxes", "acme--boxes", "not possible"},
		"id: short":           {"acme-boxes", "a", "not possible"},
		"id: long":            {"acme-boxes", strings.Repeat("a", 41), "not possible"},
		"id: digit first":     {"acme-boxes", "1acme", "not possible"},
		"id: abx-":            {"acme-boxes", "abx-boxes", "reserved"},
		"id: alicloud-":       {"acme-boxes", "alicloud-x", "reserved"},
		"id: shortcuts":       {"acme-boxes", "shortcutsx", "reserved"},
		"id: catalogue":       {"acme-boxes", "cubesandbox", "reserved"},
		"id: e2b":             {"acme-boxes", "e2b", "reserved"},
		"kind exec":           {`kind = "rest"`, `kind = "exec"`, "not supported yet"},
		"kind node":           {`kind = "rest"`, `kind = "node"`, "not supported yet"},
		"kind python":         {`kind = "rest"`, `kind = "python"`, "never run"},
		"kind unknown":        {`kind = "rest"`, `kind = "soap"`, "unknown"},
		"protocol":            {"e2b-rest/1", "e2b-rest/2", "protocol"},
		"unknown feature":     {`"files.rw"`, `"files.fly"`, "files.fly"},
		"no network":          {`network = ["api.acme.example"]`, `network = []`, "security.network"},
		"endpoint elsewhere":  {`network = ["api.acme.example"]`, `network = ["other.example"]`, "not among the hosts"},
		"endpoint no address": {"https://api.acme.example", "ftp://api.acme.example", "no plain http"},
		"auth scheme":         {`scheme = "header"`, `scheme = "magic"`, "auth scheme"},
		"auth header":         {`header = "X-API-Key"`, `header = "X: y"`, "auth header"},
		"auth header of HTTP": {`header = "X-API-Key"`, `header = "Host"`, "auth header"},
		"any host":            {`network = ["api.acme.example"]`, `network = ["api.acme.example", "*"]`, "no name of a host"},
		"any host, dotted":    {`network = ["api.acme.example"]`, `network = ["api.acme.example", "*."]`, "no name of a host"},
		"host: empty":         {`network = ["api.acme.example"]`, `network = ["api.acme.example", ""]`, "no name of a host"},
		"host: an address":    {`network = ["api.acme.example"]`, `network = ["api.acme.example", "https://x.example/"]`, "no name of a host"},
		"host: star inside":   {`network = ["api.acme.example"]`, `network = ["api.acme.example", "a.*.example"]`, "no name of a host"},
		"domain":              {"[endpoint]\n", "[endpoint]\ndomain = \"acme.example/x\"\n", "endpoint.domain"},
		"domain: control":     {"[endpoint]\n", "[endpoint]\ndomain = \"acme\\u001b.example\"\n", "endpoint.domain"},
		"endpoint in clear":   {"https://api.acme.example", "http://api.acme.example", "not encrypted"},
		"endpoint: path":      {"https://api.acme.example", "https://api.acme.example/../x", "no plain http"},
		"two of a key":        {"[runtime]", "[runtime]\nkind = \"rest\"", "no TOML"},
		"not UTF-8":           {"Boxes.", "\xff", "no TOML"},
	} {
		_, said := parse([]byte(text("https://api.acme.example", "api.acme.example", c.from, c.to)))
		if !strings.Contains(said, c.says) {
			t.Errorf("%s: %q", name, said)
		}
	}
	if _, err := load(filepath.Join(t.TempDir(), "no"), nil); !sandboxcore.IsCode(err, sandboxcore.CodeValue) {
		t.Error(err)
	}
	// A name that begins as loopback does.
	if _, said := parse([]byte(text("http://127.acme.example", "127.acme.example"))); !strings.Contains(said, "not encrypted") {
		t.Errorf("a key in the clear: %q", said)
	}
	for _, address := range []string{"http://127.0.0.1:3000", "http://localhost:3000", "http://[::1]:3000"} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		if _, said := parse([]byte(text(address, u.Hostname()))); said != "" {
			t.Errorf("%s: %s", address, said)
		}
	}
	// A file that has more in it than it says.
	if _, err := load("/proc/kallsyms", nil); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Error(err)
	}
}

// TestHostWithADot: a host with a dot behind it is the same host, and no way around the list.
func TestHostWithADot(t *testing.T) {
	m, said := parse([]byte(text("https://api.acme.example", "*.acme.example")))
	if said != "" {
		t.Fatal(said)
	}
	for host, want := range map[string]bool{
		"api.acme.example": true, "API.acme.example": true, "api.acme.example.": true, "acme.example": false, "evil.example": false, "evil.example.": false,
		"xacme.example": false, "api.acme.example.evil.example": false, "": false, ".": false, ".acme.example": false,
	} {
		if got := m.mayReach(host); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
}

func resolve(t *testing.T, path string, change func(*sandboxcore.ProfileInput)) (*sandboxcore.Registry, *sandboxcore.Profile, error) {
	t.Helper()
	reg := sandboxcore.NewRegistry(Factory())
	in := sandboxcore.ProfileInput{Name: "p", Type: "plugin", Blocks: map[string]sandboxcore.Settings{"plugin": {keyManifest: path}}}
	if change != nil {
		change(&in)
	}
	p, err := reg.Resolve(in)
	return reg, p, err
}

// TestSpec: the content of the manifest is in the spec, a spec needs no file, and an edit is noticed at use.
func TestSpec(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{Plain: true})
	path := write(t, text(peer.APIURL(), "127.0.0.1"))
	reg, p, err := resolve(t, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := sandboxcore.EncodeSpec(p)
	if err != nil || !strings.Contains(spec, `"sha256":"`) || !strings.Contains(spec, `"exec.run"`) {
		t.Fatalf("%s, %v", spec, err)
	}
	if _, _, err := resolve(t, path, func(in *sandboxcore.ProfileInput) { in.Blocks["plugin"][keySHA256] = strings.Repeat("0", 64) }); !sandboxcore.IsCode(err, sandboxcore.CodeSpec) {
		t.Errorf("another sha256: %v", err)
	}
	if _, _, err := resolve(t, path, func(in *sandboxcore.ProfileInput) { in.Blocks["plugin"][keyFeatures] = []any{"pty"} }); !sandboxcore.IsCode(err, sandboxcore.CodePluginFeature) {
		t.Errorf("a feature that is not there: %v", err)
	}
	engine, err := sandboxcore.NewEngine(sandboxcore.EngineConfig{
		Registry: reg, Provider: map[sandboxcore.BackendType]sandboxcore.Settings{"plugin": {keyManifest: path, keyAPIKey: peer.Key()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text(peer.APIURL(), "127.0.0.1", "Boxes.", "Other boxes.")), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = engine.CreateSandbox(t.Context(), sandboxcore.SandboxRequest{Spec: spec, Name: "x", Principal: sandboxcore.DefaultPrincipal()}, func(sandboxcore.SandboxInfo) { t.Error("created") })
	if !sandboxcore.IsCode(err, sandboxcore.CodeSpec) || len(peer.Requests()) != 0 {
		t.Errorf("an edited manifest: %v, %d requests", err, len(peer.Requests()))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := reg.ParseSpec(spec); err != nil {
		t.Errorf("a spec without its file: %v", err)
	}
}

// TestFeatures: what is not listed is refused with E8004 before any request.
func TestFeatures(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{Plain: true})
	run := func(change func(*sandboxcore.ExecRequest)) func(*sandboxcore.Engine, string) error {
		return func(e *sandboxcore.Engine, spec string) error {
			req := sandboxcore.ExecRequest{Spec: spec, Kind: sandboxcore.RunCommand, Argv: []string{"true"}, Principal: sandboxcore.DefaultPrincipal()}
			change(&req)
			_, err := e.Exec(t.Context(), req)
			return err
		}
	}
	create := func(change func(*sandboxcore.SandboxRequest)) func(*sandboxcore.Engine, string) error {
		return func(e *sandboxcore.Engine, spec string) error {
			req := sandboxcore.SandboxRequest{Spec: spec, Name: "x", Principal: sandboxcore.DefaultPrincipal()}
			change(&req)
			_, err := e.CreateSandbox(t.Context(), req, func(sandboxcore.SandboxInfo) {})
			return err
		}
	}
	for _, c := range []struct {
		without string
		call    func(*sandboxcore.Engine, string) error
	}{
		{featureLifecycle, create(func(*sandboxcore.SandboxRequest) {})},
		{featureExec, run(func(*sandboxcore.ExecRequest) {})},
		{featureFiles, run(func(r *sandboxcore.ExecRequest) { r.Kind, r.Text, r.Argv = sandboxcore.RunScript, []byte("true"), nil })},
		{featureFiles, run(func(r *sandboxcore.ExecRequest) {
			r.Kind, r.Text, r.Argv, r.Language = sandboxcore.RunCode, []byte("1"), nil, "python"
		})},
		{featureFiles, run(func(r *sandboxcore.ExecRequest) { r.OutputFiles = []string{"x"} })},
		{featureProcess, run(func(r *sandboxcore.ExecRequest) { r.Stdin = []byte("x") })},
		{featureExec, create(func(r *sandboxcore.SandboxRequest) { r.Packages = []string{"requests"} })},
		{featurePause, create(func(r *sandboxcore.SandboxRequest) { r.Paused = true })},
	} {
		path := write(t, text(peer.APIURL(), "127.0.0.1", `"`+c.without+`"`, `"pty"`))
		reg, p, err := resolve(t, path, func(in *sandboxcore.ProfileInput) { in.Blocks["plugin"]["auto_pause"] = false })
		if err != nil {
			t.Fatal(err)
		}
		spec, err := sandboxcore.EncodeSpec(p)
		if err != nil {
			t.Fatal(err)
		}
		e, err := sandboxcore.NewEngine(sandboxcore.EngineConfig{
			Registry: reg, Provider: map[sandboxcore.BackendType]sandboxcore.Settings{"plugin": {keyManifest: path, keyAPIKey: peer.Key()}},
		})
		if err != nil {
			t.Fatal(err)
		}
		err = c.call(e, spec)
		if !sandboxcore.IsCode(err, sandboxcore.CodePluginFeature) || !strings.Contains(err.Error(), "E8004") || !strings.Contains(err.Error(), c.without) {
			t.Errorf("without %s: %v", c.without, err)
		}
	}
	if n := len(peer.Requests()); n != 0 {
		t.Errorf("%d requests", n)
	}
	// The last line: below the engine, too.
	m, said := parse([]byte(text(peer.APIURL(), "127.0.0.1", `"sandbox.pause"`, `"pty"`)))
	if said != "" {
		t.Fatal(said)
	}
	for path, ok := range map[string]bool{"/sandboxes": true, "/sandboxes/x/pause": false, "/sandboxes/x/network": false, "/templates": false} {
		err := m.guard(httptest.NewRequestWithContext(t.Context(), http.MethodPost, peer.APIURL()+path, http.NoBody))
		if (err == nil) != ok {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := m.guard(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://elsewhere.example/sandboxes", http.NoBody)); !sandboxcore.IsCode(err, sandboxcore.CodeUnreachable) {
		t.Errorf("another host: %v", err)
	}
}

// TestPolicy: no feature is about egress or isolation, so that neither counts as enforced.
func TestPolicy(t *testing.T) {
	path := write(t, text("https://api.acme.example", "api.acme.example"))
	deny, micro := "deny", "micro_vm"
	for code, change := range map[sandboxcore.Code]func(*sandboxcore.ProfileInput){
		sandboxcore.CodeNetwork:   func(in *sandboxcore.ProfileInput) { in.Policy.NetworkEgress = &deny },
		sandboxcore.CodeIsolation: func(in *sandboxcore.ProfileInput) { in.Policy.MinIsolation = &micro },
	} {
		reg, p, err := resolve(t, path, change)
		if err != nil {
			t.Fatal(err)
		}
		agent := sandboxcore.DefaultPrincipal()
		if _, err := reg.Decide(p, &agent, nil); !sandboxcore.IsCode(err, code) {
			t.Errorf("got %v, want %s", err, code)
		}
	}
	reg, p, err := resolve(t, path, func(in *sandboxcore.ProfileInput) { in.Blocks["plugin"] = sandboxcore.Settings{} })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reg.Decide(p, nil, nil); !sandboxcore.IsCode(err, sandboxcore.CodeValue) {
		t.Errorf("no manifest: %v", err)
	}
}

// TestEnvdURL: a daemon that an answer puts elsewhere gets no token.
func TestEnvdURL(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{Plain: true})
	peer.Tamper(func(d map[string]any) { d["envdUrl"] = "http://evil.example/box" })
	path := write(t, text(peer.APIURL(), "127.0.0.1"))
	b := &backend{provider: sandboxcore.Settings{keyManifest: path, keyAPIKey: peer.Key()}, getenv: func(string) string { return "" }}
	ep, err := b.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, p, err := resolve(t, path, func(in *sandboxcore.ProfileInput) { in.Blocks["plugin"]["allow_public_traffic"] = true })
	if err != nil {
		t.Fatal(err)
	}
	spec, err := sandboxcore.EncodeSpec(p)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := ep.Create(t.Context(), sandboxcore.CreateRequest{Profile: p, Marks: sandboxcore.Marks{Name: "x", Spec: spec, Request: "r1", Created: time.Now()}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = sb.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"true"}, Timeout: time.Second}, io.Discard, io.Discard)
	if !sandboxcore.IsCode(err, sandboxcore.CodeUnreachable) || !strings.Contains(err.Error(), "evil.example") {
		t.Error(err)
	}
}

// TestKeyIsMissing: the error says where the key of this plugin goes, and nobody is called.
func TestKeyIsMissing(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{Plain: true})
	b := &backend{provider: sandboxcore.Settings{keyManifest: write(t, text(peer.APIURL(), "127.0.0.1"))}, getenv: func(string) string { return "" }}
	ep, err := b.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = ep.List(t.Context())
	if !sandboxcore.IsCode(err, sandboxcore.CodeUnreachable) || !strings.Contains(err.Error(), "Set ABX_ACME_BOXES_API_KEY, or api_key in the provider's plugin attribute.") {
		t.Error(err)
	}
	if n := len(peer.Requests()); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// TestCodeInterpreter: code goes to the interpreter only where the manifest lists it, and only then does a request leave.
func TestCodeInterpreter(t *testing.T) {
	agent := sandboxcore.DefaultPrincipal()
	use := func(in *sandboxcore.ProfileInput) {
		in.Blocks["plugin"]["code_runner"], in.Blocks["plugin"]["template"] = "code_interpreter", "code-interpreter-v1"
	}
	for _, listed := range []bool{false, true} {
		manifest := text("https://api.acme.example", "api.acme.example")
		if listed {
			manifest = strings.Replace(manifest, `"files.rw"`, `"files.rw", "code.interpret"`, 1)
		}
		reg, p, err := resolve(t, write(t, manifest), use)
		if err != nil {
			t.Fatal(err)
		}
		_, err = reg.Decide(p, &agent, nil)
		if listed && err != nil || !listed && !(sandboxcore.IsCode(err, sandboxcore.CodePluginFeature) && strings.Contains(err.Error(), featureCode)) {
			t.Errorf("listed %v: %v", listed, err)
		}
		if caps, err := reg.Capabilities(p); err != nil || !caps.Stateful {
			t.Errorf("%+v, %v", caps, err)
		}
		_, err = reg.Decide(p, &agent, &sandboxcore.Operation{Name: sandboxcore.OpRun, Kind: sandboxcore.RunCode, Language: "python", Stdin: true})
		if listed && !sandboxcore.IsCode(err, sandboxcore.CodeOperation) {
			t.Errorf("stdin: %v", err)
		}
		m, said := parse([]byte(manifest))
		if said != "" {
			t.Fatal(said)
		}
		for _, path := range []string{"/execute", "/contexts", "/contexts/x/restart"} {
			if err := m.guard(httptest.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.acme.example"+path, http.NoBody)); (err == nil) != listed {
				t.Errorf("listed %v, %s: %v", listed, path, err)
			}
		}
	}
}
