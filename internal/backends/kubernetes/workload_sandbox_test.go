package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// installSandboxAPI puts the project's own definition of Sandbox on the cluster, with one version of it: the other one
// needs the project's conversion webhook.
func (c *cluster) installSandboxAPI(t *testing.T, version string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "-C", "../../../tools/testcluster/agent-sandbox", "list", "-mod=mod", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/agent-sandbox").Output()
	if dir := strings.TrimSpace(string(out)); err == nil && dir == "" {
		out, err = exec.CommandContext(t.Context(), "go", "-C", "../../../tools/testcluster/agent-sandbox", "mod", "download", "-json", "sigs.k8s.io/agent-sandbox").Output()
		var module struct{ Dir string }
		if err == nil {
			err = yaml.Unmarshal(out, &module)
			out = []byte(module.Dir)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "k8s", "crds", "agents.x-k8s.io_sandboxes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var crd map[string]any
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	spec := crd["spec"].(map[string]any) //nolint:forcetypeassert // a test
	delete(spec, "conversion")
	var kept []any
	for _, v := range spec["versions"].([]any) { //nolint:forcetypeassert // a test
		if m := v.(map[string]any); m["name"] == version { //nolint:forcetypeassert // a test
			m["served"], m["storage"] = true, true
			kept = append(kept, m)
		}
	}
	spec["versions"] = kept
	text, err = yaml.Marshal(crd)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "crd.yaml")
	writeFile(t, file, string(text))
	c.kubectl(t, "create", "-f", file)
	t.Cleanup(func() {
		if out, err := exec.Command(c.Kubectl, "--kubeconfig", c.Kubeconfig, "delete", "-f", file).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	c.eventually(t, "the API is served", func() bool {
		_, err := c.e.own.kube.Discovery().RESTClient().Get().AbsPath("/apis/" + sandboxGroup + "/" + version + "/namespaces/" + c.ns + "/sandboxes").DoRaw(t.Context())
		return err == nil
	})
}

// controller plays the controller of agent-sandbox, as far as this backend sees it: it makes the claim and the pod of a
// Sandbox that is to run, makes the pod again when it is gone, removes it when the Sandbox is suspended, and removes the
// Sandbox at its time. It is no proof of how the real one behaves.
type controller struct {
	c   *cluster
	api *sandboxAPI
	// weaken makes pods whose containers see each other's processes, as a webhook of the cluster might.
	weaken atomic.Bool
}

func (c *cluster) startController(t *testing.T, api *sandboxAPI) *controller {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	k := &controller{c: c, api: api}
	wg.Go(func() {
		for pause(ctx, 100*time.Millisecond) {
			if err := k.round(ctx); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) {
				t.Logf("controller: %v", err)
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return k
}

func (k *controller) round(ctx context.Context) error {
	resource, err := k.c.e.sandboxClient(k.c.e.own, k.api, k.c.ns)
	if err != nil {
		return err
	}
	list, err := resource.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		o := &list.Items[i]
		if o.GetDeletionTimestamp() != nil {
			continue
		}
		if at, _, _ := unstructured.NestedString(o.Object, "spec", "shutdownTime"); at != "" {
			if when, err := time.Parse(time.RFC3339, at); err == nil && time.Now().After(when) {
				if err := resource.Delete(ctx, o.GetName(), metav1.DeleteOptions{}); err != nil {
					return err
				}
				continue
			}
		}
		if err := k.reconcile(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

func (k *controller) reconcile(ctx context.Context, o *unstructured.Unstructured) error {
	pods := k.c.e.own.kube.CoreV1().Pods(k.c.ns)
	pod, err := pods.Get(ctx, o.GetName(), metav1.GetOptions{})
	exists := err == nil
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	ended := exists && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded)
	switch {
	case exists && pod.DeletionTimestamp == nil && (ended || k.api.suspended(o)):
		return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{})
	case exists || k.api.suspended(o):
		return nil
	}
	yes := true
	owner := ownedBy(o.GetAPIVersion(), "Sandbox", o.GetName(), o.GetUID())
	owner.Controller = &yes
	template, _, _ := unstructured.NestedMap(o.Object, "spec", "podTemplate")
	made := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, made); err != nil {
		return err
	}
	if k.weaken.Load() {
		yes := true
		made.Spec.ShareProcessNamespace = &yes
	}
	made.Name, made.Namespace, made.OwnerReferences = o.GetName(), k.c.ns, []metav1.OwnerReference{owner}
	claims, _, _ := unstructured.NestedSlice(o.Object, "spec", "volumeClaimTemplates")
	for _, t := range claims {
		claim := &corev1.PersistentVolumeClaim{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(t.(map[string]any), claim); err != nil { //nolint:forcetypeassert // a test
			return err
		}
		volume := claim.Name
		claim.Name, claim.Namespace, claim.OwnerReferences = volume+"-"+o.GetName(), k.c.ns, []metav1.OwnerReference{owner}
		volumes := k.c.e.own.kube.CoreV1().PersistentVolumeClaims(k.c.ns)
		if _, err := volumes.Create(ctx, claim, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		// The scheduler looks at a pod whose claim was bound a moment too late only minutes later. Storage classes of real
		// clusters bind when there is a pod; the volumes here are there before.
		now, err := volumes.Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil || now.Status.Phase != corev1.ClaimBound {
			return err
		}
		made.Spec.Volumes = append(made.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
		}})
	}
	_, err = pods.Create(ctx, made, metav1.CreateOptions{})
	return err
}

// disks makes volumes for the claims of n Sandboxes, as a storage class would, and gives the name of the class.
func (c *cluster) disks(t *testing.T, n int) string {
	t.Helper()
	class := c.ns
	for i := range n {
		dir, err := os.MkdirTemp("", "agentkernel-disk-")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o777); err != nil { // any user of a pod may write to it
			t.Fatal(err)
		}
		name := fmt.Sprintf("%s-%d", class, i)
		_, err = c.e.own.kube.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				StorageClassName: class, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.e.own.kube.CoreV1().PersistentVolumes().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			_ = os.RemoveAll(dir)
		})
	}
	return class
}

// The Sandbox workload in both versions of its API: the pod is made again, the workspace is kept, the policy is seen to
// hold for each pod anew; pausing, resuming, and the end of max_lifetime.
func TestSandboxWorkload(t *testing.T) {
	on := testenv.KubernetesClusterAlone(t)
	c := clusterOf(t, on)
	if c.AuditLog == "" {
		testenv.Skip(t, testenv.Kubernetes, "definitions are not changed in a cluster that was not started here", "make cluster-up")
	}
	_, err := c.e.Create(t.Context(), request(c.profile(set(keyWorkload, workloadSandbox))), func(sandboxcore.SandboxInfo) { t.Error("it was created") })
	refused(t, err, sandboxcore.CodeProvision, "agents.x-k8s.io", "workload")
	for _, version := range sandboxVersions {
		t.Run(version, func(t *testing.T) {
			c := clusterOf(t, on)
			c.installSandboxAPI(t, version)
			k := c.startController(t, &sandboxAPI{version: version})
			class := c.disks(t, 4)
			c.sandboxLife(t, class)
			if version == sandboxVersions[0] { // the policies are the same in both
				c.checkedAgain(t, class, k)
			}
		})
	}
}

func (c *cluster) sandboxLife(t *testing.T, class string) {
	t.Helper()
	profile := c.profile(deny, set(keyWorkload, workloadSandbox), set(keyStorageClass, class))
	spec, err := sandboxcore.EncodeSpec(profile)
	if err != nil {
		t.Fatal(err)
	}
	withSpec := func(r *sandboxcore.CreateRequest) { r.Marks.Spec = spec }
	_, err = c.e.Create(t.Context(), request(profile, withSpec, func(r *sandboxcore.CreateRequest) { r.Env = map[string]string{"SECRET": "value"} }), func(sandboxcore.SandboxInfo) { t.Error("it was created") })
	refused(t, err, sandboxcore.CodeOperation, "secret")

	s := c.create(t, profile, withSpec, func(r *sandboxcore.CreateRequest) {
		r.Env, r.Marks.Args.Env = map[string]string{"PLAIN": "value"}, map[string]string{"PLAIN": "value"}
	})
	if !strings.HasPrefix(s.info.NativeID, c.ns+"/sandbox/") || s.info.Status != sandboxcore.StatusRunning {
		t.Errorf("%+v", s.info)
	}
	if got := python(t.Context(), s, "import os;open('kept','w').write(os.environ['PLAIN'])").ok(t); got != "" {
		t.Errorf("printed %q", got)
	}
	kept := func(s sandboxcore.ManagedSandbox) {
		t.Helper()
		if got := python(t.Context(), s, "print(open('kept').read())").ok(t); got != "value\n" {
			t.Errorf("read %q", got)
		}
	}
	list, err := c.e.List(t.Context())
	if err != nil || len(list) == 0 {
		t.Errorf("list %v, %v", list, err)
	}

	// The pod is lost: the next run is in the next pod, behind its policy.
	first := s.podUID
	c.kubectl(t, "delete", "pod", s.pod)
	again := mustFind(t, c, s).(*sandbox) //nolint:forcetypeassert // a test
	kept(again)
	if again.podUID == first || again.object.verified != string(again.podUID) {
		t.Errorf("pod %s after %s, verified %s", again.podUID, first, again.object.verified)
	}

	// Paused: no pod, no run; resumed: the workspace is there.
	if err := again.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	paused := mustFind(t, c, s)
	if paused.Info().Status != sandboxcore.StatusPaused {
		t.Errorf("status %s", paused.Info().Status)
	}
	refused(t, python(t.Context(), paused, "print(1)").err, sandboxcore.CodeStopped, "paused")
	if err := paused.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept(mustFind(t, c, s))

	// Labels change in place.
	marks := s.info.Marks
	marks.Args.Labels = map[string]string{"team": "data"}
	if err := s.Update(t.Context(), profile, marks); err != nil {
		t.Fatal(err)
	}
	if got := mustFind(t, c, s).Info().Marks.Args.Labels["team"]; got != "data" {
		t.Errorf("label %q", got)
	}

	short := c.create(t, profile, withSpec, func(r *sandboxcore.CreateRequest) { r.Marks.Args.MaxLifetime = "20s" })
	refused(t, c.untilGone(t, short), sandboxcore.CodeGone, "max_lifetime")
	// Somebody holds the claim up: the files are there still, and the destroy says so.
	hold := func(finalizers string) {
		c.kubectl(t, "patch", "pvc", claimName(s.name), "--type=merge", "-p", `{"metadata":{"finalizers":`+finalizers+`}}`)
	}
	hold(`["agentkernel-test/hold"]`)
	s.e.timings.gone = 8 * time.Second
	refused(t, s.Destroy(t.Context()), sandboxcore.CodeDeleteFailed, "PersistentVolumeClaim", claimName(s.name), "agentkernel-test/hold")
	hold("null")
	s.e.timings.gone = defaultTimings().gone
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := c.kubectl(t, "get", "pvc", claimName(s.name), "--ignore-not-found"); left != "" {
		t.Errorf("told as gone: %s", left)
	}
	_, err = c.find(t.Context(), t, s)
	refused(t, err, sandboxcore.CodeGone)
}

// checkedAgain: the policy is checked for each new pod, also where the allow-list lets the listener of the check through, so
// that the policy has to be closed for it.
func (c *cluster) checkedAgain(t *testing.T, class string, k *controller) {
	t.Helper()
	profile := c.profile(allowlist("10.0.0.0/8"), set(keyWorkload, workloadSandbox), set(keyStorageClass, class), set(keyCreateTimeout, 15.0))
	spec, err := sandboxcore.EncodeSpec(profile)
	if err != nil {
		t.Fatal(err)
	}
	s := c.create(t, profile, func(r *sandboxcore.CreateRequest) { r.Marks.Spec = spec })
	server := c.servers(t)[0]
	reaches := func(s sandboxcore.ManagedSandbox) {
		t.Helper()
		if got := python(t.Context(), s, knock(server, 8080)).ok(t); got != "reached\n" {
			t.Errorf("the allowed server is %s", got)
		}
	}
	reaches(s)
	next := func() *sandbox {
		t.Helper()
		before := s.podUID
		c.kubectl(t, "delete", "pod", s.pod)
		var again *sandbox
		c.eventually(t, "the pod is made again", func() bool {
			again = mustFind(t, c, s).(*sandbox) //nolint:forcetypeassert // a test
			return again.podUID != "" && again.podUID != before
		})
		return again
	}
	// Another policy opens everything: no code runs in the next pod.
	manifest := filepath.Join(t.TempDir(), "open.yaml")
	writeFile(t, manifest, "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: open}\nspec: {podSelector: {}, policyTypes: [Egress], egress: [{}]}\n")
	c.kubectl(t, "apply", "-f", manifest)
	again := next()
	refused(t, python(t.Context(), again, "open('ran','w')").err, sandboxcore.CodeNetwork, "nothing was run", "does not hold")
	c.kubectl(t, "delete", "-f", manifest)
	// Several who want to run something at once: one checks, and all run.
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if o := python(t.Context(), again.copy(), "import os;print(os.path.exists('ran'))"); o.err != nil || o.stdout != "False\n" {
				t.Errorf("%q, %v", o.stdout, o.err)
			}
		})
	}
	wg.Wait()
	final := mustFind(t, c, s).(*sandbox) //nolint:forcetypeassert // a test
	if final.object.verified != string(final.podUID) {
		t.Errorf("pod %s, verified %s", final.podUID, final.object.verified)
	}
	reaches(final)
	// The next pod is weaker than its template.
	k.weaken.Store(true)
	refused(t, python(t.Context(), next(), "open('ran','w')").err, sandboxcore.CodeProvision, "weaker", "shareProcessNamespace")
	k.weaken.Store(false)
	// Its policy is gone: the next pod runs nothing.
	c.kubectl(t, "delete", "networkpolicy", s.name)
	refused(t, python(t.Context(), next(), "open('ran','w')").err, sandboxcore.CodeNetwork, "is gone", s.name)
	if err := s.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// copy is another handle of the same sandbox.
func (s *sandbox) copy() *sandbox {
	out, object := *s, *s.object
	out.object, out.info.Details = &object, maps.Clone(s.info.Details)
	return &out
}
