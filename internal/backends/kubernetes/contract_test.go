package kubernetes_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	backend "github.com/agentkernel/terraform-provider-agentkernel/internal/backends/kubernetes"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// TestMain lets more tests run at once than there are processors: most of them wait for the cluster.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// admin speaks to the test cluster as its administrator.
func admin(t testing.TB) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", testenv.KubernetesCluster(t).Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// namespace makes a namespace that enforces the restricted Pod Security Standard and is removed with the test.
func namespace(t testing.TB) string {
	t.Helper()
	kube := admin(t)
	name := fmt.Sprintf("t%d-%d", os.Getpid(), time.Now().UnixNano())
	_, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if pods, err := kube.CoreV1().Pods(name).List(ctx, metav1.ListOptions{LabelSelector: "agentkernel.io/managed=true"}); err == nil {
			for _, p := range pods.Items {
				if p.DeletionTimestamp == nil {
					t.Errorf("left behind: pod %s (%s)", p.Name, p.Labels["agentkernel.io/kind"])
				}
			}
		}
		if err := kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	// The service account of a new namespace is there a moment later, and pods are refused until then.
	for {
		if _, err := kube.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{}); err == nil {
			return name
		}
		select {
		case <-t.Context().Done():
			t.Fatal("no service account in the new namespace")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func target(t *testing.T, image string) backendtest.Target {
	c := testenv.KubernetesCluster(t)
	ns := namespace(t)
	return backendtest.Target{
		Factory:  backend.Factory(),
		Provider: sandboxcore.Settings{"config_path": c.Kubeconfig, "namespaces": []any{ns}},
		Settings: sandboxcore.Settings{"image": image, "pull_policy": "never", "namespace": ns, "network_policy": true},
		Foreign:  func(t *testing.T) (string, func(*testing.T)) { return foreignPod(t, ns) },
	}
}

// The contract on a real cluster, in a namespace that enforces the restricted Pod Security Standard: on an image without
// a user, and on one with USER, WORKDIR, ENV and ENTRYPOINT.
func TestContract(t *testing.T) {
	t.Parallel()
	c := testenv.KubernetesCluster(t)
	images := map[string]string{"python": c.Image}
	if c.UserImage != "" {
		images["user"] = c.UserImage
	}
	for name, image := range images {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backendtest.Run(t, target(t, image))
		})
	}
}

// foreignPod makes a pod without our marks, as any other user of the cluster would.
func foreignPod(t *testing.T, ns string) (string, func(*testing.T)) {
	t.Helper()
	kube := admin(t)
	no, user := false, int64(1000)
	yes := true
	pod, err := kube.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "foreign", Labels: map[string]string{"somebody": "else"}},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{RunAsUser: &user, RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: "sandbox", Image: testenv.KubernetesCluster(t).Image, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "600"},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		now := int64(0)
		_ = kube.CoreV1().Pods(ns).Delete(context.WithoutCancel(t.Context()), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	})
	return ns + "/" + pod.Name, func(t *testing.T) {
		t.Helper()
		got, err := kube.CoreV1().Pods(ns).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil || got.DeletionTimestamp != nil || got.Labels["somebody"] != "else" || got.UID != pod.UID {
			t.Errorf("the foreign pod was touched: %v", err)
		}
	}
}
