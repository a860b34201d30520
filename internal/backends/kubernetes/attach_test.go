package kubernetes

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/runhelper"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

func attachedTo(pod string) func(*sandboxcore.Profile) {
	return func(p *sandboxcore.Profile) {
		p.Environment = sandboxcore.EnvironmentAttached
		p.Settings = sandboxcore.Settings{keyAttachTo: pod, keyNamespace: p.Settings.String(keyNamespace, "default")}
	}
}

// somebodysPod makes a pod without our marks, as any other user of the cluster would, and gives a check that it is the same.
func (c *cluster) somebodysPod(t *testing.T) func(*testing.T) {
	t.Helper()
	no, yes, user := false, true, int64(1000)
	pods := c.e.own.kube.CoreV1().Pods(c.ns)
	pod, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "foreign", Labels: map[string]string{"somebody": "else"}},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{RunAsUser: &user, RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: "main", Image: c.Image, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "600"},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		now := int64(0)
		_ = pods.Delete(context.WithoutCancel(t.Context()), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	})
	return func(t *testing.T) {
		t.Helper()
		got, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil || got.DeletionTimestamp != nil || len(got.Labels) != 1 || len(got.Annotations) != len(pod.Annotations) || got.UID != pod.UID || got.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("the pod was touched: %+v %v", got, err)
		}
	}
}

// TestAttachedPod: runs and files work in a pod of somebody else, nothing of it changes, nothing of ours stays, and the API
// server saw looks and execs only. A look alone, which is all that a destroy does, changes nothing.
func TestAttachedPod(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	untouched := c.somebodysPod(t)
	eng, spec, who := c.engine(t), c.spec(t, attachedTo("foreign")), sandboxcore.DefaultPrincipal()
	var at sandboxcore.Attachment
	c.eventually(t, "the pod runs", func() bool {
		var err error
		if at, err = eng.Attach(t.Context(), spec, who); err != nil {
			t.Fatal(err)
		}
		return at.Status == sandboxcore.StatusRunning
	})
	if !strings.HasPrefix(at.Binding.ID, "kubernetes/"+c.ns+"/foreign/main/") || at.Details["container"] != "main" || at.Details["read_only_root"] != "false" {
		t.Errorf("%+v", at)
	}
	run := func(req sandboxcore.ExecRequest) (sandboxcore.ExecResult, error) {
		req.Binding, req.Principal = &at.Binding, who
		return eng.Exec(t.Context(), req)
	}
	res, err := run(sandboxcore.ExecRequest{
		Kind: sandboxcore.RunScript, Text: []byte("id -u; cat; echo content >/tmp/f; ls -a /tmp"), Stdin: []byte("in\n"), OutputFiles: []string{"/tmp/f"},
	})
	if err != nil || !strings.HasPrefix(res.Stdout.Text, "1000\nin\n") || string(res.Files["/tmp/f"].Content) != "content\n" || res.Notice != "" {
		t.Fatalf("%+v %v", res, err)
	}
	// While the code runs the helper's file is gone already.
	if strings.Contains(res.Stdout.Text, "agentkernel") {
		t.Errorf("left in the container: %s", res.Stdout.Text)
	}
	if res, err = run(sandboxcore.ExecRequest{Kind: sandboxcore.RunCode, Language: "python", Text: []byte("print(1+1); raise SystemExit(3)"), SuccessExitCodes: []int{3}}); err != nil || res.Stdout.Text != "2\n" {
		t.Errorf("%+v %v", res, err)
	}
	_, err = run(sandboxcore.ExecRequest{Kind: sandboxcore.RunScript, Text: []byte("sleep 71 & setsid sleep 72 & sleep 73"), Timeout: time.Second})
	refused(t, err, sandboxcore.CodeTimeout)
	res, err = run(sandboxcore.ExecRequest{Kind: sandboxcore.RunScript, Text: []byte(`cat /proc/[0-9]*/cmdline | tr '\0' ' '; echo; echo files; ls -a /tmp`)})
	processes, files, _ := strings.Cut(res.Stdout.Text, "files\n")
	if err != nil || strings.Contains(processes, "sleep 7") || strings.Contains(files, "agentkernel") {
		t.Errorf("left in the container: %s %v", res.Stdout.Text, err)
	}
	untouched(t)
	c.onlyLooksAndExecs(t)

	// Made anew under the same name it is another pod.
	now := int64(0)
	if err := c.e.own.kube.CoreV1().Pods(c.ns).Delete(t.Context(), "foreign", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	c.eventually(t, "the pod is gone", func() bool {
		_, err = eng.Attach(t.Context(), spec, who)
		return err != nil
	})
	refused(t, err, sandboxcore.CodeGone, "foreign")
	c.somebodysPod(t)
	c.eventually(t, "the new pod runs", func() bool {
		again, err := eng.Attach(t.Context(), spec, who)
		return err == nil && again.Status == sandboxcore.StatusRunning
	})
	_, err = run(sandboxcore.ExecRequest{Kind: sandboxcore.RunScript, Text: []byte("true")})
	refused(t, err, sandboxcore.CodeSpec, "foreign")
}

// onlyLooksAndExecs holds the audit log against what the documentation lists.
func (c *cluster) onlyLooksAndExecs(t *testing.T) {
	t.Helper()
	execs := 0
	for _, e := range c.audit(t) {
		if !strings.Contains(e.line, `"userAgent":"terraform-provider-agentkernel"`) || e.ObjectRef.Resource != "pods" || strings.Contains(e.line, `"verb":"create"`) && e.ObjectRef.Subresource == "" {
			continue
		}
		switch {
		case e.ObjectRef.Subresource == "exec":
			execs++
		case e.Verb == "get" || e.Verb == "list" || e.Verb == "watch":
		default:
			t.Errorf("the API server saw %s %s", e.Verb, e.RequestURI)
		}
	}
	if execs == 0 {
		t.Error("the audit log has no exec")
	}
}

// TestAttachedPodKeepsNothingOfABrokenUpload: the connection breaks while the helper is brought in, at its first byte, in the
// middle, after all of it, and while its answer comes back.
func TestAttachedPodKeepsNothingOfABrokenUpload(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.somebodysPod(t)
	c.kubectl(t, "wait", "--for=condition=Ready", "pod", "foreign", "--timeout=60s")
	left := func() string {
		return c.kubectl(t, "exec", "foreign", "--", "sh", "-c", "ls -a /tmp /var/tmp /run /dev/shm | grep agentkernel || true")
	}
	run := func(f *front) error {
		a, err := dial(t, f.settings()).Attach(t.Context(), c.profile(attachedTo("foreign")))
		if err != nil {
			t.Fatal(err)
		}
		_, err = a.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("true"), Timeout: time.Minute}, io.Discard, io.Discard)
		return err
	}
	binary, err := runhelper.Binary("amd64")
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{1, 100, 9000, int64(len(binary)) - 1, int64(len(binary)) + 12} {
		f := c.front(t)
		f.cutUp.Store(at)
		refused(t, run(f), sandboxcore.CodeProvision)
		if !f.upCut.Load() {
			t.Error("nothing was cut")
		}
		// The other side of a broken connection may take a moment to notice.
		c.eventually(t, "nothing is left in the container", func() bool { return left() == "" })
	}
	f := c.front(t)
	f.cut.Store(10) // in the answer that says where
	if err := run(f); err == nil {
		t.Error("no error")
	}
	c.eventually(t, "nothing is left in the container", func() bool { return left() == "" })
	// It could not even be swept: then it is told what may be left, and where.
	f = c.front(t)
	f.cutUp.Store(9000)
	f.noMore.Store(true)
	refused(t, run(f), sandboxcore.CodeProvision, bringPrefix, "/tmp", "may still be in", "by hand")
	c.eventually(t, "nothing is left in the container", func() bool { return left() == "" })
}

// A container without a shell is told as that, not as one in which something may be left.
func TestAttachedPodWithoutShell(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	if c.BareImage == "" {
		testenv.Skip(t, testenv.Kubernetes, "the cluster has no bare image", "make cluster-up")
	}
	s := c.create(t, c.profile(set(keyImage, c.BareImage)))
	a, err := c.e.Attach(t.Context(), c.profile(attachedTo(s.pod)))
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("true"), Timeout: time.Minute}, io.Discard, io.Discard)
	refused(t, err, sandboxcore.CodeProvision, "sh", "Nothing ran")
	if strings.Contains(err.Error(), "may still be") {
		t.Error(err)
	}
}

// TestAttachedPodAway: a pod that waits is known, and an error only for what must run.
func TestAttachedPodAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.kubectl(t, "-n", c.ns, "run", "waiting", "--image=registry.invalid/none:1", "--overrides",
		`{"spec":{"securityContext":{"runAsNonRoot":true,"runAsUser":1000,"seccompProfile":{"type":"RuntimeDefault"}},"nodeSelector":{"no":"such-node"},"containers":[{"name":"main","image":"registry.invalid/none:1","securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}}]}}`)
	defer c.kubectl(t, "-n", c.ns, "delete", "pod", "waiting", "--grace-period=0", "--force")
	p := c.profile(attachedTo("waiting"))
	a, err := c.e.Attach(t.Context(), p)
	if err != nil || a.Status() != sandboxcore.StatusAway {
		t.Fatalf("%v %v", a, err)
	}
	_, err = a.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("true"), Timeout: time.Minute}, io.Discard, io.Discard)
	refused(t, err, sandboxcore.CodeStopped, "Pending")
	for _, name := range []string{"absent", "waiting/absent"} {
		_, err := c.e.Attach(t.Context(), c.profile(attachedTo(name)))
		refused(t, err, sandboxcore.CodeGone, strings.Split(name, "/")[0])
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.e.Attach(ctx, p); sandboxcore.CodeOf(err) == "" {
		t.Error(err)
	}
}

// TestAttachedPodRefusals: by the gate, without a cluster.
func TestAttachedPodRefusals(t *testing.T) {
	reg := sandboxcore.NewRegistry(Factory())
	cpu, memory := 1.0, int64(64)
	base := func() *sandboxcore.Profile {
		return &sandboxcore.Profile{
			Name: "p", Type: sandboxcore.BackendKubernetes, Environment: sandboxcore.EnvironmentAttached, Identity: sandboxcore.IdentityAgent,
			Policy: sandboxcore.Policy{NetworkEgress: sandboxcore.NetworkAllow, Timeout: 120, Strict: true}, Settings: sandboxcore.Settings{keyAttachTo: "pod"},
		}
	}
	for name, test := range map[string]struct {
		change func(*sandboxcore.Profile)
		code   sandboxcore.Code
		says   string
	}{
		"no target": {func(p *sandboxcore.Profile) { delete(p.Settings, keyAttachTo) }, sandboxcore.CodeEnvironmentMode, "no target"},
		"managed":   {func(p *sandboxcore.Profile) { p.Environment = sandboxcore.EnvironmentManaged }, sandboxcore.CodeEnvironmentMode, "attach_to"},
		"an image":  {func(p *sandboxcore.Profile) { p.Settings[keyImage] = "x" }, sandboxcore.CodeValue, "image"},
		"deny asserted": {func(p *sandboxcore.Profile) {
			p.Policy.NetworkEgress, p.Settings[keyNetworkPolicy] = sandboxcore.NetworkDeny, true
		}, sandboxcore.CodeNetwork, "deny"},
		"cpu":            {func(p *sandboxcore.Profile) { p.Policy.CPU = &cpu }, sandboxcore.CodeResources, "cpu"},
		"memory":         {func(p *sandboxcore.Profile) { p.Policy.MemoryMB = &memory }, sandboxcore.CodeResources, "memory"},
		"writable paths": {func(p *sandboxcore.Profile) { p.Policy.FSAllowWrite = []string{"/tmp"} }, sandboxcore.CodeFilesystem, "fs_allow_write"},
		"isolation":      {func(p *sandboxcore.Profile) { p.Policy.MinIsolation = sandboxcore.IsolationContainer }, sandboxcore.CodeIsolation, "container"},
	} {
		t.Run(name, func(t *testing.T) {
			p := base()
			test.change(p)
			_, err := reg.Decide(p, nil, nil)
			refused(t, err, test.code, test.says)
		})
	}
	p := base()
	p.Policy.Strict, p.Policy.MemoryMB = false, &memory
	if v, err := reg.Decide(p, nil, nil); err != nil || !slices.Equal(v.Unenforced, []string{sandboxcore.DimensionMemory}) {
		t.Errorf("%+v %v", v, err)
	}
}
