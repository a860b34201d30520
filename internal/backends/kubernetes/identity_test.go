package kubernetes

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// auditEvent is what the tests read of the API server's audit log.
type auditEvent struct {
	Verb             string
	RequestURI       string
	User             struct{ Username string }
	ImpersonatedUser *struct {
		Username string
		Groups   []string
		Extra    map[string][]string
	}
	ObjectRef struct{ Resource, Subresource, Namespace string }
	line      string
}

// audit gives what the API server has recorded about the namespace.
func (c *cluster) audit(t *testing.T) []auditEvent {
	t.Helper()
	if c.AuditLog == "" {
		testenv.Skip(t, testenv.Kubernetes, "the audit log of a cluster that was not started here cannot be read", "make cluster-up")
	}
	f, err := os.Open(c.AuditLog)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []auditEvent
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return out
		}
		if !strings.Contains(line, c.ns) {
			continue
		}
		var e auditEvent
		if json.Unmarshal([]byte(line), &e) == nil && e.ObjectRef.Namespace == c.ns {
			e.line = line
			out = append(out, e)
		}
	}
}

func (c *cluster) engine(t testing.TB) *sandboxcore.Engine {
	t.Helper()
	e, err := sandboxcore.NewEngine(sandboxcore.EngineConfig{
		Registry: sandboxcore.NewRegistry(Factory()), Secrets: map[string]string{"s": secretCanary},
		Provider: map[sandboxcore.BackendType]sandboxcore.Settings{sandboxcore.BackendKubernetes: {keyConfigPath: c.Kubeconfig}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

const secretCanary = "canary-5e0c71b2a9"

func (c *cluster) spec(t testing.TB, change ...func(*sandboxcore.Profile)) string {
	t.Helper()
	spec, err := sandboxcore.EncodeSpec(c.profile(change...))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func user(name string, groups ...string) sandboxcore.Principal {
	return sandboxcore.Principal{
		Mode: sandboxcore.IdentityUser, Subject: name,
		Kubernetes: &sandboxcore.KubernetesPrincipal{User: name, Groups: groups, Extra: map[string][]string{"example.org/ticket": {"T-1", "T-2"}}},
	}
}

// Alice may make sandboxes and run code in them, through one of her groups; she may not delete. Bob may only look like
// it: he has create on pods/exec and not get. The cluster decides, its audit log names Alice, and holds neither code nor
// secret; the sandbox is removed all the same.
func TestUserIdentity(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	rbac := filepath.Join(t.TempDir(), "rbac.yaml")
	writeFile(t, rbac, `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: runner}
rules:
- {apiGroups: [""], resources: [pods], verbs: [create]}
- {apiGroups: [""], resources: [pods/exec], verbs: [create, get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: runner}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: runner}
subjects: [{kind: Group, name: "data:runners", apiGroup: rbac.authorization.k8s.io}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: half}
rules:
- {apiGroups: [""], resources: [pods/exec], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: half}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: half}
subjects: [{kind: User, name: bob, apiGroup: rbac.authorization.k8s.io}]
`)
	c.kubectl(t, "apply", "-f", rbac)
	alice, bob := user("alice", "data:staff", "data:runners"), user("bob")
	engine := c.engine(t)
	spec := c.spec(t, func(p *sandboxcore.Profile) { p.Identity = sandboxcore.IdentityUser })
	_, err := engine.CreateSandbox(t.Context(), sandboxcore.SandboxRequest{Spec: spec, Name: "bobs", Principal: bob}, func(sandboxcore.SandboxInfo) { t.Error("it was created") })
	refused(t, err, sandboxcore.CodeIdentity, "bob", "pods")
	info, err := engine.CreateSandbox(t.Context(), sandboxcore.SandboxRequest{
		Spec: spec, Name: "alices", Principal: alice, SecretEnv: map[string]string{"KEPT": "s"},
	}, func(sandboxcore.SandboxInfo) {})
	if err != nil {
		t.Fatal(err)
	}
	ref := sandboxcore.SandboxRef{Backend: sandboxcore.BackendKubernetes, Endpoint: info.Endpoint, NativeID: info.NativeID}
	destroyed := false
	t.Cleanup(func() {
		if !destroyed {
			_ = engine.DestroySandbox(context.WithoutCancel(t.Context()), ref)
		}
	})
	exec := func(p sandboxcore.Principal) (sandboxcore.ExecResult, error) {
		return c.engine(t).Exec(t.Context(), sandboxcore.ExecRequest{
			Binding: &sandboxcore.Binding{Backend: sandboxcore.BackendKubernetes, Endpoint: info.Endpoint, Environment: sandboxcore.EnvironmentManaged, ID: "kubernetes/" + info.NativeID, Spec: spec},
			Kind:    sandboxcore.RunCode, Language: "python", Text: []byte("import os,sys\nmarker='code-that-nobody-logs'\nprint(os.environ['RUN']==os.environ['KEPT'],sys.stdin.read())\nopen('out','w').write('file')"),
			Stdin: []byte("input-that-nobody-logs"), SecretEnv: map[string]string{"RUN": "s"}, OutputFiles: []string{"out"}, Principal: p, Timeout: time.Minute,
		})
	}
	res, err := exec(alice)
	if err != nil || res.Stdout.Text != "True input-that-nobody-logs\n" || string(res.Files["out"].Content) != "file" {
		t.Fatalf("%q, %v", res.Stdout.Text, err)
	}
	_, err = exec(bob)
	refused(t, err, sandboxcore.CodeIdentity, "bob", "both create and get on pods/exec")
	_, err = exec(user("carol"))
	refused(t, err, sandboxcore.CodeIdentity, "carol")
	if err := engine.DestroySandbox(t.Context(), ref); err != nil {
		t.Fatalf("destroy, although alice may not delete: %v", err)
	}
	destroyed = true
	c.checkAudit(t)
}

func (c *cluster) checkAudit(t *testing.T) {
	t.Helper()
	by := map[string]int{}
	for _, e := range c.audit(t) {
		who := e.User.Username
		if i := e.ImpersonatedUser; i != nil {
			who = i.Username
			if strings.Join(i.Extra["example.org/ticket"], ",") != "T-1,T-2" {
				t.Errorf("extra %v", i.Extra)
			}
			if who == "alice" && (!strings.Contains(strings.Join(i.Groups, ","), "data:staff") || !strings.Contains(strings.Join(i.Groups, ","), "data:runners")) {
				t.Errorf("groups %v", i.Groups)
			}
		}
		by[who+" "+e.Verb+" "+strings.TrimSuffix(e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")]++
		for _, secret := range []string{secretCanary, base64.StdEncoding.EncodeToString([]byte(secretCanary)), "nobody-logs"} {
			if strings.Contains(e.line, secret) {
				t.Errorf("the audit log holds %q: %.200s", secret, e.line)
			}
		}
	}
	for _, want := range []string{"alice create pods", "alice get pods/exec", "bob get pods/exec", "carol get pods/exec", "test-admin delete pods", "test-admin create configmaps"} {
		if by[want] == 0 {
			t.Errorf("not in the audit log: %s; there are %v", want, by)
		}
	}
	for _, not := range []string{"test-admin create pods", "test-admin get pods/exec", "test-admin create pods/exec", "alice delete pods"} {
		if by[not] > 0 {
			t.Errorf("%s stands in the audit log", not)
		}
	}
}

// Clients are kept by user, groups and extra: another ticket is another identity.
func TestClientsAreKeptByIdentity(t *testing.T) {
	t.Parallel()
	e := dial(t, sandboxcore.Settings{keyHost: "https://192.0.2.1", keyToken: "token-0123456789"})
	a, err := e.as(user("alice", "a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		p    sandboxcore.Principal
		same bool
	}{
		"the same":     {user("alice", "a", "b"), true},
		"other groups": {user("alice", "a"), false},
		"another user": {user("bob", "a", "b"), false},
		"no extra":     {sandboxcore.Principal{Mode: sandboxcore.IdentityUser, Subject: "alice", Groups: []string{"a", "b"}}, false},
		"an agent":     {sandboxcore.Principal{Mode: sandboxcore.IdentityAgent, Subject: "alice"}, false},
	} {
		got, err := e.as(c.p)
		if err != nil || (got == a) != c.same {
			t.Errorf("%s: same client %v, %v", name, got == a, err)
		}
	}
	_, err = e.as(sandboxcore.Principal{Mode: sandboxcore.IdentityUser})
	refused(t, err, sandboxcore.CodeIdentity)
}
