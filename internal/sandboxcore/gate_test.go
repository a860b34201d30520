package sandboxcore_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
)

func TestIsolationOrder(t *testing.T) {
	t.Parallel()
	order := []sandboxcore.Isolation{"none", "os_policy", "container", "syscall_filter", "micro_vm"}
	for i, a := range order {
		for j, b := range order {
			if got := a.AtLeast(b); got != (i >= j) {
				t.Errorf("%s at least %s = %v", a, b, got)
			}
		}
	}
	for _, c := range []struct {
		a, b sandboxcore.Isolation
		want bool
	}{
		{"wasm", "wasm", true},
		{"wasm", "none", true},
		{"none", "wasm", false},
		{"wasm", "os_policy", false},
		{"micro_vm", "wasm", false},
		{"container", "", false},
		{"kvm", "none", false},
	} {
		if got := c.a.AtLeast(c.b); got != c.want {
			t.Errorf("%s at least %s = %v", c.a, c.b, got)
		}
	}
}

func TestResolveRefuses(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, nil)
	policy := func(set func(*sandboxcore.PolicyInput)) func(*sandboxcore.ProfileInput) {
		return func(in *sandboxcore.ProfileInput) { set(&in.Policy) }
	}
	setting := func(k string, v any) func(*sandboxcore.ProfileInput) {
		return func(in *sandboxcore.ProfileInput) { in.Blocks["docker"][k] = v }
	}
	cases := map[string]struct {
		change func(*sandboxcore.ProfileInput)
		code   sandboxcore.Code
		attr   string
	}{
		"name empty":           {func(in *sandboxcore.ProfileInput) { in.Name = "" }, sandboxcore.CodeValue, "name"},
		"name with NUL":        {func(in *sandboxcore.ProfileInput) { in.Name = "a\x00" }, sandboxcore.CodeValue, "name"},
		"name too long":        {func(in *sandboxcore.ProfileInput) { in.Name = strings.Repeat("a", 64) }, sandboxcore.CodeValue, "name"},
		"type":                 {func(in *sandboxcore.ProfileInput) { in.Type = "xen" }, sandboxcore.CodeUnknownType, "type"},
		"block missing":        {func(in *sandboxcore.ProfileInput) { delete(in.Blocks, "docker") }, sandboxcore.CodeSettingsBlock, "docker"},
		"block foreign":        {func(in *sandboxcore.ProfileInput) { in.Blocks["ec2_ssm"] = nil }, sandboxcore.CodeSettingsBlock, "ec2_ssm"},
		"environment":          {func(in *sandboxcore.ProfileInput) { in.Environment = new("both") }, sandboxcore.CodeValue, "environment"},
		"scope":                {func(in *sandboxcore.ProfileInput) { in.Scope = new("forever") }, sandboxcore.CodeValue, "scope"},
		"idle_timeout":         {func(in *sandboxcore.ProfileInput) { in.IdleTimeout = new(0.0) }, sandboxcore.CodeValue, "idle_timeout"},
		"identity":             {func(in *sandboxcore.ProfileInput) { in.Identity = new("root") }, sandboxcore.CodeValue, "identity.mode"},
		"egress":               {policy(func(p *sandboxcore.PolicyInput) { p.NetworkEgress = new("some") }), sandboxcore.CodeValue, "policy.network_egress"},
		"allow-list empty":     {policy(func(p *sandboxcore.PolicyInput) { p.NetworkEgress = new("allowlist") }), sandboxcore.CodeValue, "policy.network_allow"},
		"entries without list": {policy(func(p *sandboxcore.PolicyInput) { p.NetworkAllow = []string{"192.0.2.0/24"} }), sandboxcore.CodeValue, "policy.network_allow"},
		"entry with host bits": {policy(func(p *sandboxcore.PolicyInput) {
			p.NetworkEgress = new("allowlist")
			p.NetworkAllow = []string{"192.0.2.1/24"}
		}), sandboxcore.CodeValue, "policy.network_allow"},
		"entry with port": {policy(func(p *sandboxcore.PolicyInput) {
			p.NetworkEgress = new("allowlist")
			p.NetworkAllow = []string{"example.org:443"}
		}), sandboxcore.CodeValue, "policy.network_allow"},
		"entry is a URL": {policy(func(p *sandboxcore.PolicyInput) {
			p.NetworkEgress = new("allowlist")
			p.NetworkAllow = []string{"https://example.org"}
		}), sandboxcore.CodeValue, "policy.network_allow"},
		"path relative":         {policy(func(p *sandboxcore.PolicyInput) { p.FSAllowWrite = []string{"data"} }), sandboxcore.CodeValue, "policy.fs_allow_write"},
		"path with dots":        {policy(func(p *sandboxcore.PolicyInput) { p.FSAllowRead = []string{"/a/../b"} }), sandboxcore.CodeValue, "policy.fs_allow_read"},
		"path with NUL":         {policy(func(p *sandboxcore.PolicyInput) { p.FSAllowRead = []string{"/a\x00"} }), sandboxcore.CodeValue, "policy.fs_allow_read"},
		"cpu zero":              {policy(func(p *sandboxcore.PolicyInput) { p.CPU = new(0.0) }), sandboxcore.CodeValue, "policy.cpu"},
		"memory too small":      {policy(func(p *sandboxcore.PolicyInput) { p.MemoryMB = new(int64(1)) }), sandboxcore.CodeValue, "policy.memory_mb"},
		"timeout negative":      {policy(func(p *sandboxcore.PolicyInput) { p.Timeout = new(-1.0) }), sandboxcore.CodeValue, "policy.timeout"},
		"min_isolation":         {policy(func(p *sandboxcore.PolicyInput) { p.MinIsolation = new("vm") }), sandboxcore.CodeValue, "policy.min_isolation"},
		"setting unknown":       {setting("gpu", true), sandboxcore.CodeValue, "docker.gpu"},
		"setting kind":          {setting("image", 5.0), sandboxcore.CodeValue, "docker.image"},
		"setting NUL":           {setting("image", "a\x00"), sandboxcore.CodeValue, "docker.image"},
		"setting choice":        {setting("pull_policy", "sometimes"), sandboxcore.CodeValue, "docker.pull_policy"},
		"setting range":         {setting("pids_limit", 5000.0), sandboxcore.CodeValue, "docker.pids_limit"},
		"setting fraction":      {setting("pids_limit", 1.5), sandboxcore.CodeValue, "docker.pids_limit"},
		"setting list kind":     {setting("caps", []any{1.0}), sandboxcore.CodeValue, "docker.caps"},
		"setting map kind":      {setting("hints", map[string]any{"a": 1.0}), sandboxcore.CodeValue, "docker.hints"},
		"setting nested":        {setting("nested", map[string]any{"user": "Bob1"}), sandboxcore.CodeValue, "docker.nested.user"},
		"setting nested absent": {setting("nested", map[string]any{"uid": "1"}), sandboxcore.CodeValue, "docker.nested.uid"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := reg.Resolve(dockerInput(c.change))
			for _, v := range sandboxcore.AllErrors(err, "") {
				if v.Code == c.code && strings.Join(v.Attribute, ".") == c.attr && v.Next != "" {
					return
				}
			}
			t.Errorf("got %v, want %s at %s with a next step", err, c.code, c.attr)
		})
	}
}

func TestAllowEntries(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"192.0.2.7": "192.0.2.7/32", "2001:DB8::1": "2001:db8::1/128", "192.0.2.0/24": "192.0.2.0/24", "::ffff:192.0.2.7": "192.0.2.7/32",
		"Example.ORG.": "example.org", "*.example.org": "*.example.org", "xn--bcher-kva.example": "xn--bcher-kva.example",
	} {
		if got, err := sandboxcore.CanonicalAllowEntry(in); err != nil || got != want {
			t.Errorf("%q gave %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "localhost", "a..b", "-a.example", "*", "*.*.example", "fe80::1%eth0", "10.0.0.0/33", "1.2.3", "exa mple.org", "a\x00.example", "http://a.example"} {
		if got, err := sandboxcore.CanonicalAllowEntry(in); err == nil {
			t.Errorf("%q was accepted as %q", in, got)
		}
	}
}

// The gate's steps come in order, and the policy step names every violation at once.
func TestDecideOrder(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, nil)
	agent := sandboxcore.DefaultPrincipal()
	user := sandboxcore.Principal{Mode: sandboxcore.IdentityUser, Subject: "ada"}
	run := &sandboxcore.Operation{Name: sandboxcore.OpRun, Kind: sandboxcore.RunCode, Language: "cobol"}
	weak := func(change func(*sandboxcore.ProfileInput)) sandboxcore.ProfileInput {
		in := sandboxcore.ProfileInput{Name: "p", Type: "local_subprocess", Blocks: map[string]sandboxcore.Settings{"local_subprocess": {}}}
		change(&in)
		return in
	}
	everything := func(in *sandboxcore.ProfileInput) {
		in.Policy = sandboxcore.PolicyInput{
			NetworkEgress: new("deny"), FSAllowRead: []string{"/a"}, FSAllowWrite: []string{"/b"}, CPU: new(1.0), MemoryMB: new(int64(64)), MinIsolation: new("container"),
		}
	}
	cases := map[string]struct {
		in        sandboxcore.ProfileInput
		principal *sandboxcore.Principal
		op        *sandboxcore.Operation
		codes     []sandboxcore.Code
	}{
		"attached on a backend that cannot": {weak(func(in *sandboxcore.ProfileInput) { in.Environment = new("attached"); everything(in) }), &user, run, []sandboxcore.Code{"AK1004"}},
		"attached without a target": {
			sandboxcore.ProfileInput{Name: "p", Type: "ec2_ssm", Environment: new("attached"), Blocks: map[string]sandboxcore.Settings{"ec2_ssm": {}}}, &agent, nil, []sandboxcore.Code{"AK1004"},
		},
		"managed on a backend that only attaches": {
			sandboxcore.ProfileInput{Name: "p", Type: "ec2_ssm", Blocks: map[string]sandboxcore.Settings{"ec2_ssm": {}}}, &agent, nil, []sandboxcore.Code{"AK1004"},
		},
		"managed with a target":             {dockerInput(func(in *sandboxcore.ProfileInput) { in.Blocks["docker"]["attach_to"] = "x" }), &agent, nil, []sandboxcore.Code{"AK1004"}},
		"user profile on a backend without": {weak(func(in *sandboxcore.ProfileInput) { in.Identity = new("user"); everything(in) }), &user, run, []sandboxcore.Code{"AK3001"}},
		"agent profile with a user":         {weak(everything), &user, run, []sandboxcore.Code{"AK3002"}},
		"principal without subject":         {dockerInput(nil), &sandboxcore.Principal{Mode: sandboxcore.IdentityAgent}, nil, []sandboxcore.Code{"AK3003"}},
		"principal of unknown mode":         {dockerInput(nil), &sandboxcore.Principal{Mode: "root", Subject: "x"}, nil, []sandboxcore.Code{"AK3003"}},
		"policy: all in one":                {weak(everything), &agent, run, []sandboxcore.Code{"AK2001", "AK2003", "AK2003", "AK2004", "AK2004", "AK2005"}},
		"operation after policy":            {weak(func(*sandboxcore.ProfileInput) {}), &agent, run, []sandboxcore.Code{"AK4001"}},
		"allow-list where only deny is enforced": {dockerInput(func(in *sandboxcore.ProfileInput) {
			in.Policy.NetworkEgress = new("allowlist")
			in.Policy.NetworkAllow = []string{"example.org"}
		}), &agent, nil, []sandboxcore.Code{"AK2001"}},
		"fs read where only write is": {dockerInput(func(in *sandboxcore.ProfileInput) { in.Policy.FSAllowRead = []string{"/a"} }), &agent, nil, []sandboxcore.Code{"AK2003"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := reg.Decide(mustResolve(t, reg, c.in), c.principal, c.op)
			var got []string
			for _, v := range sandboxcore.AllErrors(err, "") {
				got = append(got, string(v.Code))
				if v.Next == "" || v.Said == "" || len(v.Attribute) == 0 {
					t.Errorf("%s lacks a reason, a next step or an attribute", v.Code)
				}
			}
			var want []string
			for _, w := range c.codes {
				want = append(want, string(w))
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("got %v, want %v (%v)", got, want, err)
			}
		})
	}
}

// strict = false lets policy pass and names each dimension; it relaxes nothing else.
func TestDecideNotStrict(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, nil)
	in := sandboxcore.ProfileInput{
		Name: "p", Type: "local_subprocess", Blocks: map[string]sandboxcore.Settings{"local_subprocess": {}},
		Policy: sandboxcore.PolicyInput{NetworkEgress: new("deny"), FSAllowWrite: []string{"/b"}, CPU: new(1.0), MemoryMB: new(int64(64)), MinIsolation: new("container"), Strict: new(false)},
	}
	p := mustResolve(t, reg, in)
	agent := sandboxcore.DefaultPrincipal()
	v, err := reg.Decide(p, &agent, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(v.Unenforced, " "); got != "network_egress fs_allow_write cpu memory_mb min_isolation" {
		t.Errorf("unenforced: %s", got)
	}
	user := sandboxcore.Principal{Mode: sandboxcore.IdentityUser, Subject: "ada"}
	if _, err := reg.Decide(p, &user, nil); !sandboxcore.IsCode(err, sandboxcore.CodePrincipalMismatch) {
		t.Errorf("identity was relaxed: %v", err)
	}
}

func TestDecideOperations(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, nil)
	weak := mustResolve(t, reg, sandboxcore.ProfileInput{Name: "p", Type: "local_subprocess", Blocks: map[string]sandboxcore.Settings{"local_subprocess": {}}})
	strongDeny := mustResolve(t, reg, dockerInput(func(in *sandboxcore.ProfileInput) { in.Policy.NetworkEgress = new("deny") }))
	agent := sandboxcore.DefaultPrincipal()
	cases := map[string]struct {
		p    *sandboxcore.Profile
		op   sandboxcore.Operation
		code sandboxcore.Code
		attr string
	}{
		"stdin":               {weak, sandboxcore.Operation{Name: sandboxcore.OpRun, Kind: sandboxcore.RunScript, Stdin: true}, sandboxcore.CodeOperation, "stdin"},
		"files":               {weak, sandboxcore.Operation{Name: sandboxcore.OpRun, Kind: sandboxcore.RunScript, Files: true}, sandboxcore.CodeOperation, "output_files"},
		"packages":            {weak, sandboxcore.Operation{Name: sandboxcore.OpCreate, Packages: true}, sandboxcore.CodeOperation, "packages"},
		"packages under deny": {strongDeny, sandboxcore.Operation{Name: sandboxcore.OpCreate, Packages: true}, sandboxcore.CodeOperation, "packages"},
		"pause":               {weak, sandboxcore.Operation{Name: sandboxcore.OpCreate, Pause: true}, sandboxcore.CodeOperation, "desired_state"},
		"background":          {weak, sandboxcore.Operation{Name: sandboxcore.OpRun, Kind: sandboxcore.RunScript, KeepBackground: true}, sandboxcore.CodeOperation, "background"},
		"lifetime":            {weak, sandboxcore.Operation{Name: sandboxcore.OpCreate, MaxLifetime: true}, sandboxcore.CodeLifetime, "max_lifetime"},
		"timeout":             {weak, sandboxcore.Operation{Name: sandboxcore.OpRun, Kind: sandboxcore.RunScript, Timeout: 121 * time.Second}, sandboxcore.CodeValue, "timeout"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := reg.Decide(c.p, &agent, &c.op)
			var v sandboxcore.Violations
			if !errors.As(err, &v) || len(v) != 1 || v[0].Code != c.code || v[0].Attribute[0] != c.attr {
				t.Errorf("got %v, want %s at %s", err, c.code, c.attr)
			}
		})
	}
}

// The pure questions are asked of one backend of each type, however many there are.
func TestQuestionsMakeOneBackend(t *testing.T) {
	f := (&backendtest.Fake{}).Factory()
	made := 0
	inner := f.New
	f.New = func(s sandboxcore.Settings, getenv func(string) string) (sandboxcore.Backend, error) {
		made++
		return inner(s, getenv)
	}
	reg := sandboxcore.NewRegistry(f)
	p, err := reg.ParseSpec(`{"name":"p","type":"docker","v":1}`)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, err := reg.Capabilities(p); err != nil {
				t.Error(err)
			}
			if _, err := reg.Decide(p, nil, nil); err != nil {
				t.Error(err)
			}
			reg.LiveFields(p.Type)
		})
	}
	all.Wait()
	if made != 1 {
		t.Errorf("%d backends were made", made)
	}
}
