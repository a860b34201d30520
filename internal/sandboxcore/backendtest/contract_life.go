package backendtest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

func (s *suite) reattach(t *testing.T) {
	b := s.box(t, nil)
	b.must(t, "open('kept','w').write('content')", nil)
	again := &box{suite: s, engine: s.engine(t), info: b.info, spec: b.spec} // as another process of the provider would
	if got := again.must(t, "print(open('kept').read())", nil); got != "content\n" {
		t.Errorf("read %q", got)
	}
	info, err := again.engine.ReadSandbox(t.Context(), again.ref())
	if err != nil || info.NativeID != b.info.NativeID || info.Endpoint != b.info.Endpoint || info.Marks.Spec != b.spec {
		t.Errorf("%+v, %v", info, err)
	}
	list, err := again.engine.ListSandboxes(t.Context(), s.target.Factory.Type)
	if err != nil || !slices.ContainsFunc(list, func(i sandboxcore.SandboxInfo) bool {
		return i.NativeID == b.info.NativeID && i.Marks.Name == b.info.Marks.Name
	}) {
		t.Errorf("it is not in the list: %v", err)
	}
}

func (s *suite) destroy(t *testing.T) {
	b := s.box(t, nil)
	marker := "life-" + token()
	done := make(chan error, 1)
	go func() { // a run that is going on does not keep the sandbox alive
		_, err := b.pythonCtx(t.Context(), tree(marker)+"time.sleep(300)", nil)
		done <- err
	}()
	s.waitAlive(t, marker)
	for i := range 2 {
		if err := b.engine.DestroySandbox(t.Context(), b.ref()); err != nil {
			t.Fatalf("destroy %d: %v", i+1, err)
		}
	}
	select {
	case err := <-done:
		if err == nil {
			t.Error("the run ended well though its sandbox was destroyed")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the run does not end")
	}
	s.waitGone(t, marker, 5*time.Second)
	_, err := b.engine.ReadSandbox(t.Context(), b.ref())
	s.wantCode(t, err, sandboxcore.CodeGone)
	_, err = b.python(t, "print(1)", nil)
	s.wantCode(t, err, sandboxcore.CodeGone)
	fresh := s.engine(t)
	_, err = fresh.ReadSandbox(t.Context(), b.ref())
	s.wantCode(t, err, sandboxcore.CodeGone)
	unknown := b.ref()
	unknown.NativeID = strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return '0' + (r-'0'+1)%10
		}
		return r
	}, unknown.NativeID)
	if err := fresh.DestroySandbox(t.Context(), unknown); err != nil {
		t.Errorf("destroy of what never was: %v", err)
	}
	for _, bad := range []string{"..", "../../etc", "a/../b", "-x", "*", strings.Repeat("x", 300)} {
		ref := b.ref()
		ref.NativeID = bad
		if _, err := fresh.ReadSandbox(t.Context(), ref); err == nil {
			t.Errorf("id %q was found", bad)
		}
	}
}

func (s *suite) oneShot(t *testing.T) {
	e := s.engine(t)
	before := s.count(t, e)
	exec := func(ctx context.Context, code string, change func(*sandboxcore.ExecRequest)) (sandboxcore.ExecResult, error) {
		req := sandboxcore.ExecRequest{
			Spec: s.spec(t), Kind: sandboxcore.RunCode, Language: "python", Text: []byte(code), Principal: sandboxcore.DefaultPrincipal(), Timeout: time.Minute,
		}
		if change != nil {
			change(&req)
		}
		return e.Exec(ctx, req)
	}
	if res, err := exec(t.Context(), "print('one')", nil); err != nil || res.Stdout.Text != "one\n" {
		t.Errorf("%q, %v", res.Stdout.Text, err)
	}
	_, err := exec(t.Context(), "raise SystemExit(4)", nil)
	s.wantCode(t, err, sandboxcore.CodeExitStatus)
	marker := "shot-" + token()
	_, err = exec(t.Context(), tree(marker)+"time.sleep(300)", func(r *sandboxcore.ExecRequest) { r.Timeout = 3 * time.Second })
	s.wantCode(t, err, sandboxcore.CodeTimeout)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	marker2 := "shot-" + token()
	done := make(chan error, 1)
	go func() {
		_, err := exec(ctx, tree(marker2)+"time.sleep(300)", nil)
		done <- err
	}()
	s.waitAlive(t, marker2)
	cancel()
	if err := <-done; err == nil {
		t.Error("a cancelled run ended well")
	}
	s.waitGone(t, marker, 2*time.Second)
	s.waitGone(t, marker2, 2*time.Second)
	if after := s.count(t, s.engine(t)); after != before {
		t.Errorf("%d sandboxes before, %d after", before, after)
	}
}

// policy: every dimension that is not declared is refused under strict, and let pass, named, without.
func (s *suite) policy(t *testing.T) {
	one, mem := 1.0, int64(256)
	for name, c := range map[string]struct {
		declared bool
		code     sandboxcore.Code
		set      func(*sandboxcore.PolicyInput)
	}{
		"network_egress": {s.caps.PolicyNetwork && slices.Contains(s.caps.NetworkModes, sandboxcore.NetworkDeny), sandboxcore.CodeNetwork, func(p *sandboxcore.PolicyInput) { p.NetworkEgress = new("deny") }},
		"allow-list": {
			s.caps.PolicyNetwork && slices.Contains(s.caps.NetworkModes, sandboxcore.NetworkAllowlist), sandboxcore.CodeNetwork,
			func(p *sandboxcore.PolicyInput) {
				p.NetworkEgress, p.NetworkAllow = new("allowlist"), []string{"192.0.2.0/24"}
			},
		},
		"fs_allow_read":  {s.caps.PolicyFilesystem && s.caps.FSRead, sandboxcore.CodeFilesystem, func(p *sandboxcore.PolicyInput) { p.FSAllowRead = []string{"/usr/share"} }},
		"fs_allow_write": {s.caps.PolicyFilesystem && s.caps.FSWrite, sandboxcore.CodeFilesystem, func(p *sandboxcore.PolicyInput) { p.FSAllowWrite = []string{"/srv/data"} }},
		"cpu":            {s.caps.PolicyResources, sandboxcore.CodeResources, func(p *sandboxcore.PolicyInput) { p.CPU = &one }},
		"memory_mb":      {s.caps.PolicyResources, sandboxcore.CodeResources, func(p *sandboxcore.PolicyInput) { p.MemoryMB = &mem }},
		"min_isolation":  {s.caps.Isolation.AtLeast(sandboxcore.IsolationMicroVM), sandboxcore.CodeIsolation, func(p *sandboxcore.PolicyInput) { p.MinIsolation = new("micro_vm") }},
	} {
		agent := sandboxcore.DefaultPrincipal()
		op := sandboxcore.Operation{Name: sandboxcore.OpCreate}
		_, err := s.reg.Decide(s.profile(t, func(in *sandboxcore.ProfileInput) { c.set(&in.Policy) }), &agent, &op)
		if c.declared {
			if err != nil {
				t.Errorf("%s is declared but refused: %v", name, err)
			}
			continue
		}
		s.wantCode(t, err, c.code)
		no := false
		v, err := s.reg.Decide(s.profile(t, func(in *sandboxcore.ProfileInput) { c.set(&in.Policy); in.Policy.Strict = &no }), &agent, &op)
		if err != nil || len(v.Unenforced) == 0 {
			t.Errorf("%s without strict: %v, unenforced %v", name, err, v.Unenforced)
		}
	}
}

func (s *suite) principal(t *testing.T) {
	user := sandboxcore.Principal{Mode: sandboxcore.IdentityUser, Subject: "ada"}
	_, err := s.reg.Decide(s.profile(t, nil), &user, nil)
	s.wantCode(t, err, sandboxcore.CodePrincipalMismatch)
	asUser := s.profile(t, func(in *sandboxcore.ProfileInput) { in.Identity = new("user") })
	agent := sandboxcore.DefaultPrincipal()
	_, err = s.reg.Decide(asUser, &agent, nil)
	if s.caps.PrincipalUser {
		s.wantCode(t, err, sandboxcore.CodePrincipalMismatch)
	} else {
		s.wantCode(t, err, sandboxcore.CodeNoUserIdentity)
	}
}

func (s *suite) refusal(t *testing.T) {
	e := s.engine(t)
	before := s.count(t, e)
	for name, change := range map[string]func(*sandboxcore.ExecRequest){
		"language":          func(r *sandboxcore.ExecRequest) { r.Language = "klingon" },
		"timeout":           func(r *sandboxcore.ExecRequest) { r.Timeout = 1000 * time.Hour },
		"secret":            func(r *sandboxcore.ExecRequest) { r.SecretEnv = map[string]string{"A": "no-such"} },
		"environment":       func(r *sandboxcore.ExecRequest) { r.Env = map[string]string{"A=B": "x"} },
		"NUL":               func(r *sandboxcore.ExecRequest) { r.Env = map[string]string{"A": "\x00"} },
		"working directory": func(r *sandboxcore.ExecRequest) { r.WorkingDirectory = "a\x00b" },
		"principal":         func(r *sandboxcore.ExecRequest) { r.Principal.Mode = sandboxcore.IdentityUser },
		"edited spec":       func(r *sandboxcore.ExecRequest) { r.Spec = strings.Replace(r.Spec, "{", "{ ", 1) },
	} {
		req := sandboxcore.ExecRequest{Spec: s.spec(t), Kind: sandboxcore.RunCode, Language: "python", Text: []byte("print(1)"), Principal: sandboxcore.DefaultPrincipal()}
		change(&req)
		if _, err := e.Exec(t.Context(), req); sandboxcore.CodeOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := s.count(t, e); after != before {
		t.Errorf("%d sandboxes before, %d after", before, after)
	}
}

func (s *suite) notOurs(t *testing.T) {
	if s.target.Foreign == nil {
		return
	}
	id, untouched := s.target.Foreign(t)
	b := s.box(t, nil)
	ref := b.ref()
	ref.NativeID = id
	_, err := b.engine.ReadSandbox(t.Context(), ref)
	s.wantCode(t, err, sandboxcore.CodeNotOurs)
	s.wantCode(t, b.engine.DestroySandbox(t.Context(), ref), sandboxcore.CodeNotOurs)
	_, err = b.engine.UpdateSandbox(t.Context(), ref, sandboxcore.SandboxUpdate{Spec: b.spec, Name: "x", Principal: sandboxcore.DefaultPrincipal()})
	s.wantCode(t, err, sandboxcore.CodeNotOurs)
	hand := b.binding() // a hand-written binding to a foreign object
	hand.ID = sandboxcore.SandboxID(s.target.Factory.Type, id)
	_, err = b.python(t, "print(1)", func(r *sandboxcore.ExecRequest) { r.Binding = hand })
	s.wantCode(t, err, sandboxcore.CodeNotOurs)
	list, err := b.engine.ListSandboxes(t.Context(), s.target.Factory.Type)
	if err != nil || slices.ContainsFunc(list, func(i sandboxcore.SandboxInfo) bool { return i.NativeID == id }) {
		t.Errorf("the foreign object is in the list: %v", err)
	}
	untouched(t)
}

func (s *suite) pause(t *testing.T) {
	if !s.caps.Pause {
		return // the refusal is shown under honesty
	}
	b := s.box(t, nil)
	b.must(t, "open('kept','w').write('x')", nil)
	set := func(paused bool) sandboxcore.SandboxInfo {
		t.Helper()
		info, err := b.engine.UpdateSandbox(t.Context(), b.ref(), sandboxcore.SandboxUpdate{Spec: b.spec, Name: b.info.Marks.Name, Paused: &paused, Principal: sandboxcore.DefaultPrincipal()})
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	for range 2 {
		if info := set(true); info.Status != sandboxcore.StatusPaused {
			t.Errorf("status %s", info.Status)
		}
	}
	_, err := b.python(t, "print(1)", nil)
	s.wantCode(t, err, sandboxcore.CodeStopped)
	if info := set(false); info.Status != sandboxcore.StatusRunning {
		t.Errorf("status %s", info.Status)
	}
	if got := b.must(t, "print(open('kept').read())", nil); got != "x\n" {
		t.Errorf("read %q", got)
	}
	set(true) // a paused one can be destroyed
}

// noSecretEnv: what could not be kept from others is refused, and the rest comes back.
func (s *suite) noSecretEnv(t *testing.T) {
	version := int64(7)
	for name, secret := range map[string]func(*sandboxcore.SandboxRequest){
		"secret_env": func(r *sandboxcore.SandboxRequest) { r.SecretEnv = map[string]string{"B": "canary"} },
		"env_wo": func(r *sandboxcore.SandboxRequest) {
			r.EnvWO, r.EnvWOVersion = map[string]string{"C": "write-only-" + canary}, &version
		},
	} {
		req := sandboxcore.SandboxRequest{Spec: s.spec(t), Name: "refused", Principal: sandboxcore.DefaultPrincipal()}
		secret(&req)
		_, err := s.engine(t).CreateSandbox(t.Context(), req, func(sandboxcore.SandboxInfo) { t.Errorf("%s: it was created", name) })
		s.wantCode(t, err, sandboxcore.CodeOperation)
	}
	b := s.box(t, func(r *sandboxcore.SandboxRequest) {
		r.Env, r.Labels = map[string]string{"A": "ünïcode \"quoted\" \n line"}, map[string]string{"team": "data, \"platform\""}
	})
	info, err := s.engine(t).ReadSandbox(t.Context(), b.ref())
	if err != nil {
		t.Fatal(err)
	}
	if a := info.Marks.Args; a.Env["A"] != "ünïcode \"quoted\" \n line" || a.Labels["team"] != "data, \"platform\"" || len(a.Env) != 1 || len(a.SecretEnv) != 0 {
		t.Errorf("%+v", a)
	}
	if got := b.must(t, "import os;print(os.environ['A'][:7])", nil); got != "ünïcode\n" {
		t.Errorf("printed %q", got)
	}
}

// marks: what a create was told comes back from the object, except secrets.
func (s *suite) marks(t *testing.T) {
	version := int64(7)
	if s.target.NoSecretEnv {
		s.noSecretEnv(t)
		return
	}
	b := s.box(t, func(r *sandboxcore.SandboxRequest) {
		r.Env = map[string]string{"A": "ünïcode \"quoted\" \n line"}
		r.SecretEnv = map[string]string{"B": "canary"}
		r.EnvWO, r.EnvWOVersion = map[string]string{"C": "write-only-" + canary}, &version
		r.Labels = map[string]string{"team": "data, \"platform\""}
	})
	info, err := s.engine(t).ReadSandbox(t.Context(), b.ref())
	if err != nil {
		t.Fatal(err)
	}
	a := info.Marks.Args
	if a.Env["A"] != "ünïcode \"quoted\" \n line" || a.SecretEnv["B"] != "canary" || a.EnvWOVersion == nil || *a.EnvWOVersion != 7 || a.Labels["team"] != "data, \"platform\"" || len(a.Env) != 1 {
		t.Errorf("%+v", a)
	}
	kv, err := info.Marks.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range kv {
		if strings.Contains(v, canary) {
			t.Errorf("the mark %s holds a secret", k)
		}
	}
	if age := time.Since(info.CreatedAt); age < -time.Minute || age > time.Hour {
		t.Errorf("created at %s", info.CreatedAt)
	}
	if got := b.must(t, "import os;print(len(os.environ['B']),len(os.environ['C']),os.environ['A'][:7])", nil); !strings.HasPrefix(got, "19 30 ünïcode") {
		t.Errorf("printed %q", got)
	}
}
