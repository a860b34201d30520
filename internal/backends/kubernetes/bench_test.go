package kubernetes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// parallelism is Terraform's own.
const parallelism = 10

// BenchmarkHundredSandboxes makes, refreshes and destroys sandboxes, and does the same with kubectl and the same pods in
// the same run. It reports the ratios. AGENTKERNEL_BENCH_SANDBOXES changes their number.
func BenchmarkHundredSandboxes(b *testing.B) {
	n := 100
	if text := os.Getenv("AGENTKERNEL_BENCH_SANDBOXES"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	c := newCluster(b)
	c.create(b, c.profile()) // the first one pays for what is done once
	for b.Loop() {
		theirs := c.kubectlRound(b, n)
		ours := c.ourRound(b, n)
		for i, name := range []string{"create", "refresh", "destroy"} {
			b.ReportMetric(ours[i].Seconds(), name+"-s")
			b.ReportMetric(theirs[i].Seconds(), "kubectl-"+name+"-s")
			b.ReportMetric(ours[i].Seconds()/theirs[i].Seconds(), name+"/kubectl-ratio")
			b.ReportMetric(1.10, "goal:"+name+"/kubectl-ratio")
		}
	}
}

// all does something for each of n things, as many at once as Terraform would.
func all(n int, do func(int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallelism)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	wg.Wait()
}

func (c *cluster) ourRound(b *testing.B, n int) (took [3]time.Duration) {
	boxes := make([]sandboxcore.ManagedSandbox, n)
	begun := time.Now()
	all(n, func(i int) {
		m, err := c.e.Create(b.Context(), request(c.profile(set(keyCreateTimeout, 900.0))), nil)
		if err != nil {
			b.Errorf("%d: %v", i, err)
			return
		}
		boxes[i] = m
	})
	took[0] = time.Since(begun)
	if b.Failed() {
		b.FailNow()
	}
	again := dial(b, sandboxcore.Settings{keyConfigPath: c.Kubeconfig})
	begun = time.Now()
	all(n, func(i int) {
		if _, err := again.Find(b.Context(), boxes[i].Info().NativeID, false); err != nil {
			b.Error(err)
		}
	})
	took[1] = time.Since(begun)
	begun = time.Now()
	all(n, func(i int) {
		if err := boxes[i].Destroy(b.Context()); err != nil {
			b.Error(err)
		}
	})
	took[2] = time.Since(begun)
	return took
}

func (c *cluster) kubectlRound(b *testing.B, n int) (took [3]time.Duration) {
	var manifest bytes.Buffer
	encoder := json.NewEncoder(&manifest)
	for i := range n {
		req := request(c.profile())
		req.Marks.Request = fmt.Sprintf("%s-%d", req.Marks.Request, i)
		pod, err := newPod(req)
		if err != nil {
			b.Fatal(err)
		}
		pod.APIVersion, pod.Kind = "v1", "Pod"
		pod.Spec.SchedulingGates = nil
		pod.Labels = map[string]string{"bench": "kubectl"}
		helper, err := helperMap(req.Marks, optionsOf(req.Profile), metav1.OwnerReference{})
		if err != nil {
			b.Fatal(err)
		}
		helper.APIVersion, helper.Kind, helper.OwnerReferences, helper.Labels = "v1", "ConfigMap", nil, map[string]string{"bench": "kubectl"}
		if err := encoder.Encode(helper); err != nil {
			b.Fatal(err)
		}
		if err := encoder.Encode(pod); err != nil {
			b.Fatal(err)
		}
	}
	file := filepath.Join(b.TempDir(), "pods.json")
	writeFile(b, file, manifest.String())
	begun := time.Now()
	c.kubectl(b, "create", "-f", file)
	c.kubectl(b, "wait", "--for=condition=Ready", "pod", "-l", "bench=kubectl", "--timeout=900s")
	took[0] = time.Since(begun)
	begun = time.Now()
	if got := strings.Count(c.kubectl(b, "get", "pods", "-l", "bench=kubectl"), string(corev1.PodRunning)); got != n {
		b.Fatalf("%d pods run", got)
	}
	took[1] = time.Since(begun)
	begun = time.Now()
	c.kubectl(b, "delete", "pods,configmaps", "-l", "bench=kubectl")
	took[2] = time.Since(begun)
	return took
}
