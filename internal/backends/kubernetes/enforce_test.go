package kubernetes

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// knock is code that tries to reach an address and prints what came of it.
func knock(addr string, port int) string {
	return fmt.Sprintf("import socket\ns=socket.socket();s.settimeout(3)\ntry:\n s.connect((%q,%d));print('reached')\nexcept OSError:\n print('closed')", addr, port)
}

// servers makes two sandboxes with open network that take connections, and gives their addresses.
func (c *cluster) servers(t *testing.T) [2]string {
	t.Helper()
	var out [2]string
	var wg sync.WaitGroup
	boxes := [2]*sandbox{}
	for i := range boxes {
		boxes[i] = c.create(t, c.profile())
	}
	for i, s := range boxes {
		wg.Go(func() {
			o := execute(t.Context(), s, sandboxcore.RunRequest{
				Kind: sandboxcore.RunCode, Language: "python", KeepBackground: true,
				Text: []byte("import os,socket\ns=socket.socket();s.bind(('0.0.0.0',8080));s.listen(100)\nif os.fork()==0:\n os.dup2(os.open('/dev/null',2),1)\n os.dup2(1,2)\n while True: s.accept()[0].close()\nprint('up')"),
			})
			if o.err != nil || o.stdout != "up\n" {
				t.Errorf("%q, %v", o.stdout, o.err)
			}
		})
		out[i] = c.pod(t, s.pod).Status.PodIP
	}
	wg.Wait()
	return out
}

// Under deny nothing is reached, with an allow-list that address only, and both without a policy.
func TestEgressIsEnforced(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	at := c.servers(t)
	for name, want := range map[string]struct {
		change func(*sandboxcore.Profile)
		got    [2]string
	}{
		"allow":     {func(*sandboxcore.Profile) {}, [2]string{"reached", "reached"}},
		"deny":      {deny, [2]string{"closed", "closed"}},
		"allowlist": {allowlist(at[0] + "/32"), [2]string{"reached", "closed"}},
		// The list lets the address through that the policy is checked against, so that the check goes another way.
		"allowlist of the whole pod network": {allowlist("10.0.0.0/8"), [2]string{"reached", "reached"}},
		"allowlist of somewhere else":        {allowlist("192.0.2.0/24"), [2]string{"closed", "closed"}},
		"allowlist with cluster DNS":         {func(p *sandboxcore.Profile) { allowlist("192.0.2.0/24")(p); p.Settings[keyAllowDNS] = true }, [2]string{"closed", "closed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := c.create(t, c.profile(want.change))
			for i := range at {
				if got := strings.TrimSpace(python(t.Context(), s, knock(at[i], 8080)).ok(t)); got != want.got[i] {
					t.Errorf("server %d is %s, want %s", i, got, want.got[i])
				}
			}
		})
	}
}

// Twenty sandboxes at once: the first run in each is already behind its policy.
func TestFirstRunIsBehindThePolicy(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	at := c.servers(t)
	const n = 20
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			m, err := c.e.Create(t.Context(), request(c.profile(deny, set(keyCreateTimeout, 300.0))), nil)
			if err != nil {
				t.Errorf("%d: %v", i, err)
				return
			}
			if o := python(t.Context(), m, knock(at[i%2], 8080)); o.err != nil || o.stdout != "closed\n" {
				t.Errorf("%d: the first run %s the server: %v", i, strings.TrimSpace(o.stdout), o.err)
			}
			if err := sandboxcore.WithCleanup(t.Context(), m.Destroy); err != nil {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if len(c.e.listeners) != 0 {
		t.Errorf("%d listeners are kept", len(c.e.listeners))
	}
}

// A listener serves those who come while it is young and well: one that failed is no reason for others to fail, and one that
// is old would end before they are done.
func TestListenerIsSharedWhileItLasts(t *testing.T) {
	t.Parallel()
	now := time.Now()
	starting := &listener{done: make(chan struct{}), born: now}
	ended := make(chan struct{})
	close(ended)
	for name, c := range map[string]struct {
		l    *listener
		want bool
	}{
		"starting": {starting, true},
		"young":    {&listener{done: ended, born: now.Add(-time.Minute)}, true},
		"old":      {&listener{done: ended, born: now.Add(-listenerLife / 2)}, false},
		"failed":   {&listener{done: ended, born: now, err: errNoAnswer}, false},
	} {
		if got := c.l.lasts(now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A cluster that does not enforce what was asserted: the sandbox is removed, and no code has run in it.
func TestPolicyThatNeverHoldsIsAnError(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	// Policies add up: this one undoes every other.
	manifest := t.TempDir() + "/open.yaml"
	writeFile(t, manifest, "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: open}\nspec: {podSelector: {}, policyTypes: [Egress], egress: [{}]}\n")
	c.kubectl(t, "apply", "-f", manifest)
	told := ""
	_, err := c.e.Create(t.Context(), request(c.profile(deny, set(keyCreateTimeout, 15.0))), func(i sandboxcore.SandboxInfo) { told = i.NativeID })
	refused(t, err, sandboxcore.CodeNetwork, "does not hold", "network_policy", told)
	_, err = c.e.Find(t.Context(), told, true)
	refused(t, err, sandboxcore.CodeGone)
}

// Policies add up: another one that lets out anything, though not the address that is dialled, is noticed, too.
func TestPolicyThatAnotherOpensIsAnError(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	manifest := t.TempDir() + "/some.yaml"
	writeFile(t, manifest, "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: some}\n"+
		"spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: target}}}]}]}\n")
	c.kubectl(t, "apply", "-f", manifest)
	told := ""
	_, err := c.e.Create(t.Context(), request(c.profile(deny)), func(i sandboxcore.SandboxInfo) { told = i.NativeID })
	refused(t, err, sandboxcore.CodeNetwork, "adds up", told)
	_, err = c.e.Find(t.Context(), told, true)
	refused(t, err, sandboxcore.CodeGone)
}

func TestMemoryLimitKills(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	memory, cpu := int64(64), 0.5
	s := c.create(t, c.profile(func(p *sandboxcore.Profile) { p.Policy.MemoryMB, p.Policy.CPU = &memory, &cpu }))
	limits := c.pod(t, s.pod).Spec.Containers[0].Resources
	if limits.Limits.Memory().String() != "64Mi" || limits.Limits.Cpu().String() != "500m" || !limits.Requests.Memory().Equal(*limits.Limits.Memory()) || !limits.Requests.Cpu().Equal(*limits.Limits.Cpu()) {
		t.Errorf("%+v", limits)
	}
	o := python(t.Context(), s, "b=bytearray(200<<20)\nfor i in range(0,len(b),4096): b[i]=1\nprint('had it')")
	if o.err != nil || !o.OOMKilled || o.ExitCode != 137 || o.stdout != "" {
		t.Errorf("exit %d, out of memory %v, %q, %v", o.ExitCode, o.OOMKilled, o.stdout, o.err)
	}
}

// With fs_allow_write the root is read-only and exactly the named paths can be written.
func TestWritesOutsideTheListFail(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const probe = "import os\nfor d in ['/workspace','/srv/data','/tmp','/srv','/','/usr','/home','/var/tmp','/.agentkernel','/etc']:\n" +
		" try:\n  open(os.path.join(d,'probe'),'w').close();print(d)\n except OSError: pass"
	s := c.create(t, c.profile(func(p *sandboxcore.Profile) {
		p.Policy.FSAllowWrite = []string{"/srv/data", "/srv/data/below", "/workspace"}
	}))
	if got := python(t.Context(), s, probe).ok(t); got != "/workspace\n/srv/data\n" {
		t.Errorf("can be written: %q", got)
	}
	only := c.create(t, c.profile(func(p *sandboxcore.Profile) { p.Policy.FSAllowWrite = []string{"/srv/data"} }))
	if got := python(t.Context(), only, probe).ok(t); got != "/srv/data\n" {
		t.Errorf("can be written: %q", got)
	}
}

// What the restricted standard asks for, seen from inside, and no token to the API.
func TestHardening(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.create(t, c.profile())
	got := python(t.Context(), s, `import os
status=dict(l.split(':\t',1) for l in open('/proc/self/status') if ':\t' in l)
print(os.getuid(), os.getgid(), status['CapEff'].strip(), status['CapBnd'].strip(), status['NoNewPrivs'].strip(), status['Seccomp'].strip())
print(os.path.exists('/var/run/secrets/kubernetes.io'), os.getcwd(), os.stat('/workspace').st_gid)
print(sorted(k for k in os.environ if 'SERVICE' in k and not k.startswith('KUBERNETES')))
print(open('/proc/1/cmdline').read().split('\0')[:2])`).ok(t)
	want := "1000 1000 0000000000000000 0000000000000000 1 2\nFalse /workspace 1000\n[]\n['/.agentkernel/akrun', 'pod']\n"
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	pod := c.pod(t, s.pod)
	if *pod.Spec.AutomountServiceAccountToken || pod.Spec.HostNetwork || pod.Spec.HostPID || pod.Annotations[markUID] != string(pod.UID) {
		t.Errorf("%+v", pod.Spec)
	}
	if s.info.Details["uid"] != string(pod.UID) || s.info.Details["user"] != "1000" {
		t.Errorf("details %v", s.info.Details)
	}
}

// A pod that escapes the standard is refused by the namespace, and the error says what to change.
func TestAdmissionRefusalIsTold(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	_, err := c.e.Create(t.Context(), request(c.profile(set(keyPodSecurity, map[string]any{keyRunAsUser: 0.0}))), func(sandboxcore.SandboxInfo) { t.Error("it was created") })
	refused(t, err, sandboxcore.CodeProvision, "violates PodSecurity", "security_context")
}

// An image without a shell, cat or Python is as good as any for programs that are in it.
func TestBareImage(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	if c.BareImage == "" {
		testenv.Skip(t, testenv.Kubernetes, "the cluster has no bare image", "make cluster-up")
	}
	s := c.create(t, c.profile(set(keyImage, c.BareImage)), func(r *sandboxcore.CreateRequest) { r.Env = map[string]string{"FROM": "sandbox"} })
	if o := execute(t.Context(), s, sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"/bin/hello"}}); o.err != nil || o.ExitCode != 0 {
		t.Errorf("exit %d, %v", o.ExitCode, o.err)
	}
	refused(t, python(t.Context(), s, "print(1)").err, sandboxcore.CodeLanguage, "python", c.BareImage)
}
