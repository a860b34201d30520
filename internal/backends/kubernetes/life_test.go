package kubernetes

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// find looks a sandbox up as another process of the provider would.
func (c *cluster) find(ctx context.Context, t testing.TB, s *sandbox) (sandboxcore.ManagedSandbox, error) {
	t.Helper()
	return dial(t, sandboxcore.Settings{keyConfigPath: c.Kubeconfig}).Find(ctx, s.info.NativeID, false)
}

// untilGone looks until the sandbox is told as gone, and gives that error.
func (c *cluster) untilGone(t testing.TB, s *sandbox) error {
	t.Helper()
	var err error
	c.eventually(t, "the sandbox is told as gone", func() bool {
		_, err = c.find(t.Context(), t, s)
		return sandboxcore.IsCode(err, sandboxcore.CodeGone)
	})
	return err
}

func TestDeletedByKubectlIsGone(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.create(t, c.profile(deny))
	c.kubectl(t, "delete", "pod", s.pod, "--wait=false")
	refused(t, c.untilGone(t, s), sandboxcore.CodeGone)
	// Policy and helper go with it, although the provider removed nothing: the end of the test looks.
}

func TestEvictionIsGoneAndSaysWhy(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	t.Run("by the API", func(t *testing.T) {
		s := c.create(t, c.profile())
		body := filepath.Join(t.TempDir(), "eviction.json")
		writeFile(t, body, `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"`+s.pod+`","namespace":"`+c.ns+`"}}`)
		c.kubectl(t, "create", "--raw", "/api/v1/namespaces/"+c.ns+"/pods/"+s.pod+"/eviction", "-f", body)
		refused(t, c.untilGone(t, s), sandboxcore.CodeGone)
	})
	t.Run("by the node", func(t *testing.T) {
		s := c.create(t, c.profile(set(keyWorkspaceMB, 1.0)))
		go python(t.Context(), s, "open('big','wb').write(b'x'*(8<<20))\nimport time;time.sleep(100)")
		refused(t, c.untilGone(t, s), sandboxcore.CodeGone, "evicted", "exceed")
		// The cluster keeps the object of an evicted pod for ever; being told as gone, it was removed.
		if _, err := c.e.own.kube.CoreV1().Pods(c.ns).Get(t.Context(), s.pod, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the object is still there: %v", err)
		}
	})
}

func TestExpiredIsToldAndItsObjectRemoved(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	made := func(t *testing.T, lifetime string) *sandbox {
		s := c.create(t, c.profile(), func(r *sandboxcore.CreateRequest) { r.Marks.Args.MaxLifetime = lifetime })
		c.eventually(t, "the pod has ended", func() bool { return c.pod(t, s.pod).Status.Phase == corev1.PodFailed })
		return s
	}
	t.Run("at the next look", func(t *testing.T) {
		t.Parallel()
		refused(t, c.untilGone(t, made(t, "6s")), sandboxcore.CodeGone, "expired", "max_lifetime")
	})
	t.Run("at destroy", func(t *testing.T) {
		t.Parallel()
		s := made(t, "6s")
		if _, err := c.e.Find(t.Context(), s.info.NativeID, true); !sandboxcore.IsCode(err, sandboxcore.CodeGone) {
			t.Errorf("got %v", err)
		}
		if _, err := c.e.own.kube.CoreV1().Pods(c.ns).Get(t.Context(), s.pod, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the object is still there: %v", err)
		}
	})
	_, err := c.e.Create(t.Context(), request(c.profile(), func(r *sandboxcore.CreateRequest) { r.Marks.Args.MaxLifetime = "10ms" }), func(sandboxcore.SandboxInfo) { t.Error("it was created") })
	refused(t, err, sandboxcore.CodeValue, "max_lifetime")
}

// A pod under the same name that is not the one: a copy with all our marks, and one of somebody else.
func TestReplacedUnderTheSameName(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.create(t, c.profile())
	var copied map[string]any
	if err := json.Unmarshal([]byte(c.kubectl(t, "get", "pod", s.pod, "-o", "json")), &copied); err != nil {
		t.Fatal(err)
	}
	var helper map[string]any
	if err := json.Unmarshal([]byte(c.kubectl(t, "get", "configmap", s.name, "-o", "json")), &helper); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "delete", "pod", s.pod)
	c.eventually(t, "the helper went with the pod", func() bool { return c.kubectl(t, "get", "configmap", s.name, "--ignore-not-found") == "" })
	helper["metadata"] = map[string]any{"name": s.name, "namespace": c.ns}
	text, err := json.Marshal(helper)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "helper.json")
	writeFile(t, file, string(text))
	c.kubectl(t, "create", "-f", file)
	meta := copied["metadata"].(map[string]any) //nolint:forcetypeassert // a test
	for _, k := range []string{"uid", "resourceVersion", "creationTimestamp"} {
		delete(meta, k)
	}
	delete(copied, "status")
	delete(copied["spec"].(map[string]any), "nodeName") //nolint:forcetypeassert // a test
	if text, err = json.Marshal(copied); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "pod.json")
	writeFile(t, file, string(text))
	c.kubectl(t, "create", "-f", file)
	c.kubectl(t, "wait", "--for=condition=Ready", "pod", s.pod, "--timeout=60s")
	// A handle of the first one: an exec goes by name, and reaches the copy, whose helper works.
	refused(t, python(t.Context(), s, "open('ran','w')").err, sandboxcore.CodeGone, "Another pod has taken its name", "Nothing ran")
	refused(t, s.WriteFile(t.Context(), "written", []byte("x"), 0o600), sandboxcore.CodeGone)
	if got := c.kubectl(t, "exec", s.pod, "--", "ls", "/workspace"); got != "" {
		t.Errorf("in the copy: %s", got)
	}
	refused(t, c.untilGone(t, s), sandboxcore.CodeGone, "another uid")
	if err := s.Destroy(t.Context()); err != nil {
		t.Errorf("destroy: %v", err)
	}
	c.pod(t, s.pod) // the copy was not touched, nor what it runs with
	c.kubectl(t, "delete", "configmap", s.name)
	c.kubectl(t, "delete", "pod", s.pod, "--grace-period=0", "--force")

	c.kubectl(t, "run", s.pod, "--image="+c.Image, "--image-pull-policy=Never", "--restart=Never", `--overrides={"spec":{"securityContext":{"runAsUser":1000,"runAsNonRoot":true,"seccompProfile":{"type":"RuntimeDefault"}},"containers":[{"name":"x","image":"`+c.Image+`","imagePullPolicy":"Never","command":["sleep","100"],"securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}}]}}`)
	_, err = c.find(t.Context(), t, s)
	refused(t, err, sandboxcore.CodeNotOurs)
	c.kubectl(t, "delete", "pod", s.pod, "--grace-period=0", "--force")
}

// What belongs to a sandbox is asked for again: an object that somebody holds up is an error, and gone the next time.
func TestBelongingsAreSeenToGo(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.create(t, c.profile(deny))
	for _, what := range []string{"configmap", "networkpolicy"} {
		c.kubectl(t, "patch", what, s.name, "--type=merge", "-p", `{"metadata":{"finalizers":["agentkernel-test/hold"]}}`)
	}
	s.e.timings.gone = 10 * time.Second
	err := s.Destroy(t.Context())
	refused(t, err, sandboxcore.CodeDeleteFailed, "NetworkPolicy", s.name, "finalizers")
	for _, what := range []string{"configmap", "networkpolicy"} {
		c.kubectl(t, "patch", what, s.name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if left := c.kubectl(t, "get", "configmaps,networkpolicies", "-l", sandboxcore.MarkManaged+"=true", "-o", "name"); left != "" {
		t.Errorf("told as gone: %s", left)
	}
}

// The environment of a sandbox is out of its code's reach: it decides about later runs, and about what counts as secret in
// their output.
func TestEnvironmentCannotBeChangedFromInside(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.create(t, c.profile(), func(r *sandboxcore.CreateRequest) { r.Env = map[string]string{"TOKEN": "value-of-the-token"} })
	got := python(t.Context(), s, `import os
d='/.agentkernel-env'
def tried(name, f, *args):
 try:
  f(*args);print(name)
 except OSError as e:
  print(name, 'refused')
tried('write', lambda: open(d+'/env','w'))
tried('append', lambda: open(d+'/env','a'))
tried('remove', os.remove, d+'/env')
tried('rename', os.rename, d, d+'x')
tried('link', os.symlink, '/workspace', d+'/other')
tried('mode', os.chmod, d+'/env', 0o666)
tried('directory', os.rmdir, d)
tried('mount', lambda: open('/proc/self/mem','r+b') and os.unlink(d+'/env'))
print(os.environ['TOKEN'])`).ok(t)
	want := "write refused\nappend refused\nremove refused\nrename refused\nlink refused\nmode refused\ndirectory refused\nmount refused\nvalue-of-the-token\n"
	if got != want {
		t.Errorf("got %s", got)
	}
	_, err := c.e.Create(t.Context(), request(c.profile(), func(r *sandboxcore.CreateRequest) {
		r.Env = map[string]string{"A": strings.Repeat("x", maxEnvBytes)}
	}), func(sandboxcore.SandboxInfo) { t.Error("it was created") })
	refused(t, err, sandboxcore.CodeValue, "bytes")
	again := mustFind(t, c, s).(*sandbox) //nolint:forcetypeassert // a test
	env, err := again.ReadEnv(t.Context())
	if err != nil || env["TOKEN"] != "value-of-the-token" || len(env) != 1 {
		t.Errorf("%v, %v", env, err)
	}
	pod := c.pod(t, s.pod)
	if limits := pod.Spec.InitContainers[0]; len(pod.Status.InitContainerStatuses) != 1 || limits.Name != envContainer {
		t.Errorf("%+v", limits)
	}
}

func mustFind(t *testing.T, c *cluster, s *sandbox) sandboxcore.ManagedSandbox {
	t.Helper()
	m, err := c.find(t.Context(), t, s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// lifeOf on statuses that a test cluster does not show.
func TestLifeTable(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	running := corev1.ContainerStatus{Name: containerName, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		status sandboxcore.Status
		gone   string // part of the reason
		dead   bool
	}{
		"running":   {func(*corev1.Pod) {}, sandboxcore.StatusRunning, "", false},
		"succeeded": {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, "", "ended", true},
		"evicted": {func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "The node was low on resource: memory."
		}, "", "evicted it: The node was low", true},
		"preempted": {func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Preempting" }, "", "preempted", true},
		"expired":   {func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "DeadlineExceeded" }, "", "expired", true},
		"out of memory": {func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}
		}, "", "memory limit", true},
		"helper killed": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Message: "bye\x1b[31m"}}
		}, "", "status 3", true},
		"node lost":        {func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodUnknown, "NodeLost" }, "", "NodeLost", false},
		"not ready":        {func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }, sandboxcore.StatusStopped, "", false},
		"not ready itself": {func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Ready = false }, sandboxcore.StatusStopped, "", false},
		"a container beside it has ended": {func(p *corev1.Pod) {
			p.Status.Conditions[0].Status, p.Status.Conditions[0].Reason = corev1.ConditionFalse, "ContainersNotReady"
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: "beside", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled"}}})
		}, sandboxcore.StatusRunning, "", false},
		"a gate of somebody else": {func(p *corev1.Pod) {
			p.Status.Conditions[0].Status, p.Status.Conditions[0].Reason = corev1.ConditionFalse, "ReadinessGatesNotReady"
		}, sandboxcore.StatusRunning, "", false},
		"terminating": {func(p *corev1.Pod) {
			p.DeletionTimestamp = &now
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler"})
		}, "", "preempted", false},
		"terminating with a finalizer": {func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &now, []string{"x/y"} }, "", "being deleted", false},
		"replaced":                     {func(p *corev1.Pod) { p.UID = "other" }, "", "another uid", false},
		"pending":                      {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending; p.Status.ContainerStatuses = nil }, sandboxcore.StatusStopped, "", false},
		"empty":                        {func(p *corev1.Pod) { p.Status = corev1.PodStatus{} }, sandboxcore.StatusStopped, "", false},
		"no container status":          {func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }, sandboxcore.StatusRunning, "", false},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Annotations: map[string]string{markUID: "u"}}}
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: append([]corev1.PodCondition(nil), ready...), ContainerStatuses: []corev1.ContainerStatus{running}}
		c.change(pod)
		l := lifeOf(pod)
		if (c.gone == "") != (l.gone == "") || !strings.Contains(l.gone, c.gone) || l.dead != c.dead || (c.gone == "" && l.status != c.status) {
			t.Errorf("%s: %+v", name, l)
		}
		// What a container that has run wrote to its termination log is its code's own words, perhaps a secret.
		if strings.ContainsRune(l.gone, 0x1b) || strings.Contains(l.gone, "bye") {
			t.Errorf("%s: words of the code in %q", name, l.gone)
		}
	}
}

// Reasons that time cannot heal end the wait at once, with what the events say.
func TestHopelessEndsTheWait(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	cpu := 900.0
	for name, want := range map[string]struct {
		change func(*sandboxcore.Profile)
		says   []string
	}{
		"image never pulled": {set(keyImage, "example.invalid/none:1"), []string{"ErrImageNeverPull", "example.invalid/none:1"}},
		"unschedulable":      {func(p *sandboxcore.Profile) { p.Policy.CPU = &cpu }, []string{"Unschedulable", "Insufficient cpu", "wait_for_node"}},
		"node selector":      {set(keyNodeSelector, map[string]any{"no/such": "node"}), []string{"Unschedulable", "affinity/selector"}},
		"missing claim":      {set(keyWorkspaceClaim, "none"), []string{`"none" not found`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begun := time.Now()
			told := ""
			_, err := c.e.Create(t.Context(), request(c.profile(want.change)), func(i sandboxcore.SandboxInfo) { told = i.NativeID })
			refused(t, err, sandboxcore.CodeProvision, append(want.says, told)...)
			if took := time.Since(begun); took > 60*time.Second {
				t.Errorf("it took %s", took)
			}
			c.discard(t, told)
		})
	}
	t.Run("waits for a node", func(t *testing.T) {
		t.Parallel()
		told := ""
		_, err := c.e.Create(t.Context(), request(c.profile(set(keyNodeSelector, map[string]any{"no/such": "node"}), set(keyWaitForNode, true), set(keyCreateTimeout, 3.0))),
			func(i sandboxcore.SandboxInfo) { told = i.NativeID })
		refused(t, err, sandboxcore.CodeProvision, "does not run after 3s", "Unschedulable")
		c.discard(t, told)
	})
	t.Run("cancelled", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		told := ""
		_, err := c.e.Create(ctx, request(c.profile(set(keyNodeSelector, map[string]any{"no/such": "node"}), set(keyWaitForNode, true))),
			func(i sandboxcore.SandboxInfo) { told = i.NativeID; cancel() })
		if err == nil {
			t.Error("no error")
		}
		c.discard(t, told)
	})
	t.Run("quota", func(t *testing.T) {
		quota := newCluster(t)
		quota.kubectl(t, "create", "quota", "q", "--hard=pods=0")
		quota.eventually(t, "the quota is known", func() bool {
			return strings.Contains(quota.kubectl(t, "get", "quota", "q", "-o", "jsonpath={.status.hard.pods}"), "0")
		})
		_, err := quota.e.Create(t.Context(), request(quota.profile()), func(sandboxcore.SandboxInfo) { t.Error("it was created") })
		refused(t, err, sandboxcore.CodeProvision, "exceeded quota")
	})
	t.Run("namespace", func(t *testing.T) {
		t.Parallel()
		_, err := c.e.Create(t.Context(), request(c.profile(set(keyNamespace, "no-such-namespace"))), func(sandboxcore.SandboxInfo) { t.Error("it was created") })
		refused(t, err, sandboxcore.CodeProvision, "no-such-namespace")
	})
}

// discard destroys what an unsuccessful create has left, as its caller does.
func (c *cluster) discard(t testing.TB, nativeID string) {
	t.Helper()
	if nativeID == "" {
		t.Error("the caller was not told the id")
		return
	}
	m, err := c.e.Find(t.Context(), nativeID, true)
	if sandboxcore.IsCode(err, sandboxcore.CodeGone) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}
