package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

var requestNumber atomic.Int64

// cluster is one test's view of the test cluster: a namespace of its own, and the backend with an administrator's rights.
type cluster struct {
	testenv.Cluster
	e  *endpoint
	ns string
}

// dial gives a backend's endpoint.
func dial(t testing.TB, provider sandboxcore.Settings) *endpoint {
	t.Helper()
	b, err := newBackend(provider, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	b.(*backend).log = slog.New(slog.DiscardHandler) //nolint:forcetypeassert // a test
	e, err := b.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return e.(*endpoint) //nolint:forcetypeassert // a test
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	return clusterOf(t, testenv.KubernetesCluster(t))
}

// clusterOf gives a namespace on a cluster that the test has a hold of already.
func clusterOf(t testing.TB, on testenv.Cluster) *cluster {
	t.Helper()
	c := &cluster{Cluster: on}
	c.e = dial(t, sandboxcore.Settings{keyConfigPath: c.Kubeconfig})
	c.ns = fmt.Sprintf("t%d-%d", os.Getpid(), time.Now().UnixNano())
	kube := c.e.own.kube
	if _, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: c.ns, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		c.nothingLeft(ctx, t)
		if err := kube.CoreV1().Namespaces().Delete(ctx, c.ns, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	c.eventually(t, "the namespace has its service account", func() bool {
		_, err := kube.CoreV1().ServiceAccounts(c.ns).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	return c
}

// nothingLeft fails when anything with our mark is left in the namespace: pods, policies, helpers.
func (c *cluster) nothingLeft(ctx context.Context, t testing.TB) {
	t.Helper()
	const selector = sandboxcore.MarkManaged + "=true"
	var left []string
	for until := time.Now().Add(20 * time.Second); ; {
		left = nil
		pods, err := c.e.own.kube.CoreV1().Pods(c.ns).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods.Items {
			left = append(left, "pod "+p.Name+" ("+p.Labels[sandboxcore.MarkKind]+")")
		}
		policies, err := c.e.own.kube.NetworkingV1().NetworkPolicies(c.ns).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range policies.Items {
			left = append(left, "policy "+p.Name)
		}
		maps, err := c.e.own.kube.CoreV1().ConfigMaps(c.ns).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range maps.Items {
			left = append(left, "config map "+m.Name)
		}
		// The cluster collects what belonged to a removed pod in its own time.
		if len(left) == 0 || time.Now().After(until) || !pause(ctx, 200*time.Millisecond) {
			break
		}
	}
	if len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, ", "))
	}
}

// eventually polls a condition of the cluster.
func (c *cluster) eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(2 * time.Minute); !ok(); {
		if time.Now().After(until) || !pause(t.Context(), 50*time.Millisecond) {
			t.Fatalf("it never came to be that %s", what)
		}
	}
}

// kubectl runs the cluster's own kubectl and gives what it printed.
func (c *cluster) kubectl(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), c.Kubectl, append([]string{"--kubeconfig", c.Kubeconfig, "--namespace", c.ns}, args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, errs.String())
	}
	return string(out)
}

func (c *cluster) profile(change ...func(*sandboxcore.Profile)) *sandboxcore.Profile {
	p := &sandboxcore.Profile{
		Name: "test", Type: sandboxcore.BackendKubernetes, Environment: sandboxcore.EnvironmentManaged, Identity: sandboxcore.IdentityAgent,
		Scope: sandboxcore.DefaultScope, IdleTimeout: sandboxcore.DefaultIdleTimeout,
		Policy:   sandboxcore.Policy{NetworkEgress: sandboxcore.NetworkAllow, Timeout: 120, Strict: true},
		Settings: sandboxcore.Settings{keyImage: c.Image, keyPullPolicy: "never", keyNamespace: c.ns, keyNetworkPolicy: true},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func deny(p *sandboxcore.Profile) { p.Policy.NetworkEgress = sandboxcore.NetworkDeny }

func allowlist(entries ...string) func(*sandboxcore.Profile) {
	return func(p *sandboxcore.Profile) {
		p.Policy.NetworkEgress, p.Policy.NetworkAllow = sandboxcore.NetworkAllowlist, entries
	}
}

func set(key string, value any) func(*sandboxcore.Profile) {
	return func(p *sandboxcore.Profile) { p.Settings[key] = value }
}

func request(p *sandboxcore.Profile, change ...func(*sandboxcore.CreateRequest)) sandboxcore.CreateRequest {
	spec, err := sandboxcore.EncodeSpec(p)
	if err != nil {
		spec = `{"v":1}`
	}
	r := sandboxcore.CreateRequest{
		Profile: p, Principal: sandboxcore.DefaultPrincipal(),
		Marks: sandboxcore.Marks{Name: "test", Spec: spec, Created: time.Now().UTC(), Request: fmt.Sprintf("t%d-%d-%d", os.Getpid(), time.Now().UnixNano(), requestNumber.Add(1))},
	}
	for _, f := range change {
		f(&r)
	}
	return r
}

// create makes a sandbox that is destroyed at the end of the test.
func (c *cluster) create(t testing.TB, p *sandboxcore.Profile, change ...func(*sandboxcore.CreateRequest)) *sandbox {
	t.Helper()
	m, err := c.e.Create(t.Context(), request(p, change...), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := m.(*sandbox) //nolint:forcetypeassert // a test
	t.Cleanup(func() {
		if err := sandboxcore.WithCleanup(t.Context(), s.Destroy); err != nil {
			t.Error(err)
		}
	})
	return s
}

type outcome struct {
	sandboxcore.RunResult
	stdout, stderr string
	err            error
}

func execute(ctx context.Context, s sandboxcore.Environment, r sandboxcore.RunRequest) outcome {
	if r.Timeout == 0 {
		r.Timeout = time.Minute
	}
	r.Grace = time.Second
	var stdout, stderr bytes.Buffer
	res, err := s.Run(ctx, r, &stdout, &stderr)
	return outcome{res, stdout.String(), stderr.String(), err}
}

func python(ctx context.Context, s sandboxcore.Environment, code string) outcome {
	return execute(ctx, s, sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: "python", Text: []byte(code)})
}

// ok fails unless a run ended with 0, and gives its standard output.
func (o outcome) ok(t testing.TB) string {
	t.Helper()
	if o.err != nil || o.ExitCode != 0 {
		t.Fatalf("exit %d, error %v\nstdout: %s\nstderr: %s", o.ExitCode, o.err, o.stdout, o.stderr)
	}
	return o.stdout
}

// refused fails unless err has the code and says what it must.
func refused(t testing.TB, err error, code sandboxcore.Code, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %s", code)
	}
	if got := sandboxcore.CodeOf(err); got != code {
		t.Fatalf("code %q, want %s: %v", got, code, err)
	}
	for _, e := range sandboxcore.AllErrors(err, "") {
		if e.Next == "" || e.Attempted == "" {
			t.Errorf("an error without what was attempted or what to do: %#v", e)
		}
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("the error does not say %q: %v", p, err)
		}
	}
}

func (c *cluster) pod(t testing.TB, name string) *corev1.Pod {
	t.Helper()
	var pod corev1.Pod
	if err := json.Unmarshal([]byte(c.kubectl(t, "get", "pod", name, "-o", "json")), &pod); err != nil {
		t.Fatal(err)
	}
	return &pod
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
