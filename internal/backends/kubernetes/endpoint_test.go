package kubernetes

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// The probe sees that the cluster enforces policies, and that it does not where another policy undoes them.
func TestProbeSeesWhetherPoliciesHold(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]bool{"enforced": false, "undone": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			if open {
				manifest := t.TempDir() + "/open.yaml"
				writeFile(t, manifest, "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: open}\nspec: {podSelector: {}, policyTypes: [Egress], egress: [{}]}\n")
				c.kubectl(t, "apply", "-f", manifest)
			}
			e := dial(t, sandboxcore.Settings{keyConfigPath: c.Kubeconfig, keyProbeNamespace: c.ns, keyProbeImage: c.Image})
			o, err := e.Offers(t.Context())
			if err != nil || !o.Reachable || o.Network == open || !strings.HasPrefix(o.Facts["server version"], "v1.") || o.Facts["missing rights"] != "" {
				t.Errorf("%+v, %v", o, err)
			}
		})
	}
}

// The cluster is its namespace kube-system; behind the same path there may be another one tomorrow.
func TestAnotherClusterBehindTheSamePath(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.create(t, c.profile())
	config, err := os.ReadFile(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	writeFile(t, path, string(config))
	read := func() (sandboxcore.SandboxInfo, error) {
		e, err := sandboxcore.NewEngine(sandboxcore.EngineConfig{
			Registry: sandboxcore.NewRegistry(Factory()),
			Provider: map[sandboxcore.BackendType]sandboxcore.Settings{sandboxcore.BackendKubernetes: {keyConfigPath: path}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return e.ReadSandbox(t.Context(), sandboxcore.SandboxRef{Backend: sandboxcore.BackendKubernetes, Endpoint: s.info.Endpoint, NativeID: s.info.NativeID})
	}
	if _, err := read(); err != nil {
		t.Fatal(err)
	}
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/api/v1/namespaces/kube-system" {
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Namespace", "apiVersion": "v1", "metadata": map[string]any{"name": "kube-system", "uid": "another"}})
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404})
	}))
	t.Cleanup(other.Close)
	writeFile(t, path, `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"`+other.URL+`","insecure-skip-tls-verify":true}}],"users":[{"name":"u","user":{"token":"t-0123456789"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`)
	_, err = read()
	refused(t, err, sandboxcore.CodeOtherEndpoint, "another", s.info.Endpoint)
}

// Where the credential comes from, and what is refused before anything is read or sent.
func TestConnection(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, server string) string {
		path := filepath.Join(dir, name)
		writeFile(t, path, `{"apiVersion":"v1","kind":"Config","current-context":"a","clusters":[{"name":"c","cluster":{"server":"`+server+`"}}],"users":[{"name":"u","user":{"token":"of-`+name+`"}}],"contexts":[{"name":"a","context":{"cluster":"c","user":"u","namespace":"ns-`+name+`"}},{"name":"b","context":{"cluster":"c","user":"u"}}]}`)
		return path
	}
	one, two := file("one", "https://one.invalid"), file("two", "https://two.invalid")
	for name, c := range map[string]struct {
		settings    sandboxcore.Settings
		env         map[string]string
		host, token string
		code        sandboxcore.Code
		says        string
	}{
		"config_path":             {sandboxcore.Settings{keyConfigPath: one}, map[string]string{"KUBECONFIG": two}, "https://one.invalid", "of-one", "", ""},
		"KUBECONFIG":              {nil, map[string]string{"KUBECONFIG": two + string(os.PathListSeparator) + one}, "https://two.invalid", "of-two", "", ""},
		"context":                 {sandboxcore.Settings{keyConfigPath: one, keyContext: "b"}, nil, "https://one.invalid", "of-one", "", ""},
		"no such context":         {sandboxcore.Settings{keyConfigPath: one, keyContext: "z"}, nil, "", "", sandboxcore.CodeUnreachable, `"z"`},
		"no such file":            {sandboxcore.Settings{keyConfigPath: dir + "/none"}, nil, "", "", sandboxcore.CodeUnreachable, "none"},
		"nothing":                 {nil, map[string]string{"HOME": dir}, "", "", sandboxcore.CodeUnreachable, "KUBECONFIG"},
		"host":                    {sandboxcore.Settings{keyHost: "https://h.invalid", keyToken: "t"}, map[string]string{"KUBECONFIG": two}, "https://h.invalid", "t", "", ""},
		"host without credential": {sandboxcore.Settings{keyHost: "https://h.invalid"}, map[string]string{"KUBECONFIG": two}, "", "", sandboxcore.CodeValue, "no credential"},
		"plugin":                  {sandboxcore.Settings{keyHost: "https://h.invalid", keyExec: map[string]any{keyExecCommand: "p"}}, map[string]string{"KUBECONFIG": two}, "https://h.invalid", "", "", ""},
		"plugin without host":     {sandboxcore.Settings{keyExec: map[string]any{keyExecCommand: "p"}}, map[string]string{"KUBECONFIG": two}, "", "", sandboxcore.CodeValue, "only for the host"},
		"plugin and token":        {sandboxcore.Settings{keyHost: "https://h.invalid", keyToken: "t", keyExec: map[string]any{keyExecCommand: "p"}}, nil, "", "", sandboxcore.CodeValue, "both"},
		"plugin without command":  {sandboxcore.Settings{keyHost: "https://h.invalid", keyExec: map[string]any{}}, nil, "", "", sandboxcore.CodeValue, "command"},
		"token without host":      {sandboxcore.Settings{keyToken: "t"}, map[string]string{"KUBECONFIG": two}, "", "", sandboxcore.CodeValue, "host"},
		"ca without host":         {sandboxcore.Settings{keyCA: "x"}, nil, "", "", sandboxcore.CodeValue, "host"},
		"host and config":         {sandboxcore.Settings{keyHost: "https://h.invalid", keyToken: "t", keyConfigPath: one}, nil, "", "", sandboxcore.CodeValue, "another setting"},
		"in_cluster and config":   {sandboxcore.Settings{keyInCluster: true, keyConfigPath: one}, nil, "", "", sandboxcore.CodeValue, "in_cluster"},
		"in_cluster outside":      {sandboxcore.Settings{keyInCluster: true}, nil, "", "", sandboxcore.CodeUnreachable, "service account"},
	} {
		t.Run(name, func(t *testing.T) {
			connection, err := readConnection(c.settings, func(k string) string { return c.env[k] })
			var to target
			if err == nil {
				to, err = connection.resolve()
			}
			if c.code != "" {
				refused(t, err, c.code, c.says)
				return
			}
			if err != nil || to.config.Host != c.host || to.config.BearerToken != c.token {
				t.Errorf("%v, %v", to.config, err)
			}
		})
	}
}

// The refusals that only this backend knows, each before any call.
func TestValidate(t *testing.T) {
	t.Parallel()
	b := &backend{}
	base := func() *sandboxcore.Profile {
		return &sandboxcore.Profile{Name: "p", Type: sandboxcore.BackendKubernetes, Policy: sandboxcore.Policy{NetworkEgress: sandboxcore.NetworkAllow}, Settings: sandboxcore.Settings{}}
	}
	if found := b.Validate(base()); len(found) > 0 {
		t.Errorf("the defaults are refused: %v", found)
	}
	for name, change := range map[string]func(*sandboxcore.Profile){
		"image":                     set(keyImage, "a b"),
		"label value":               set(keyLabels, map[string]any{"a": strings.Repeat("x", 64)}),
		"own label":                 set(keyLabels, map[string]any{"agentkernel.io/managed": "false"}),
		"node selector":             set(keyNodeSelector, map[string]any{"-": "x"}),
		"variable":                  set(keyEnv, map[string]any{"1 2": "x"}),
		"isolation without runtime": set(keyIsolation, "micro_vm"),
		"DNS without allow-list":    set(keyAllowDNS, true),
		"root of the file system":   func(p *sandboxcore.Profile) { p.Policy.FSAllowWrite = []string{"/"} },
		"the helper's place":        func(p *sandboxcore.Profile) { p.Policy.FSAllowWrite = []string{"/.agentkernel/x"} },
		"claim without workspace":   func(p *sandboxcore.Profile) { p.Policy.FSAllowWrite = []string{"/srv"}; set(keyWorkspaceClaim, "c")(p) },
		"capability":                set(keyContainerSecurity, map[string]any{keyCapabilities: []any{"SYS_ADMIN"}}),
		"root that may not be":      set(keyPodSecurity, map[string]any{keyRunAsUser: 0.0, keyRunAsNonRoot: true}),
		"claim of a Sandbox":        func(p *sandboxcore.Profile) { set(keyWorkload, workloadSandbox)(p); set(keyWorkspaceClaim, "c")(p) },
		"storage class of a pod":    set(keyStorageClass, "s"),
	} {
		p := base()
		change(p)
		if found := b.Validate(p); len(found) != 1 || found[0].Next == "" || len(found[0].Attribute) == 0 {
			t.Errorf("%s: %v", name, found)
		}
	}
	// A domain, and a list of what may be read, are refused by the gate; nothing but allow without the assertion.
	reg := sandboxcore.NewRegistry(Factory())
	for name, c := range map[string]struct {
		change func(*sandboxcore.Profile)
		code   sandboxcore.Code
	}{
		"domain":        {func(p *sandboxcore.Profile) { allowlist("example.org")(p); set(keyNetworkPolicy, true)(p) }, sandboxcore.CodeAllowEntry},
		"fs_allow_read": {func(p *sandboxcore.Profile) { p.Policy.FSAllowRead = []string{"/usr"} }, sandboxcore.CodeFilesystem},
		"no assertion":  {deny, sandboxcore.CodeNetwork},
	} {
		t.Run(name, func(t *testing.T) {
			p := base()
			p.Environment, p.Identity, p.Policy.Strict = sandboxcore.EnvironmentManaged, sandboxcore.IdentityAgent, true
			c.change(p)
			_, err := reg.Decide(p, nil, nil)
			refused(t, err, c.code)
		})
	}
}
