package docker

import (
	"context"
	"io"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// The figures that matter are ratios to the bare engine API, measured in one run and in turns: what a machine gives
// changes from minute to minute.

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func median(d []time.Duration) float64 {
	s := slices.Sorted(slices.Values(d))
	return float64(s[len(s)/2])
}

// bareExec runs a command with nothing but the engine's API, and waits for its exit status.
func bareExec(ctx context.Context, e *endpoint, id string, argv ...string) error {
	x, err := e.cli.ExecCreate(ctx, id, client.ExecCreateOptions{AttachStdout: true, AttachStderr: true, Cmd: argv})
	if err != nil {
		return err
	}
	a, err := e.cli.ExecAttach(ctx, x.ID, client.ExecAttachOptions{})
	if err != nil {
		return err
	}
	defer a.Close()
	if _, err := stdcopy.StdCopy(io.Discard, io.Discard, a.Reader); err != nil {
		return err
	}
	_, err = e.cli.ExecInspect(ctx, x.ID, client.ExecInspectOptions{})
	return err
}

// BenchmarkExec compares a run with a bare exec of the same command.
func BenchmarkExec(b *testing.B) {
	e := engine(b)
	s := create(b, e, profile("python"))
	argv := []string{"python3", "-c", "print('hello')"}
	ctx := b.Context()
	ours := func() error {
		_, err := s.Run(ctx, sandboxcore.RunRequest{Argv: argv, Timeout: time.Minute, Grace: time.Second}, io.Discard, io.Discard)
		return err
	}
	bare := func() error { return bareExec(ctx, e, s.info.NativeID, argv...) }
	must(b, ours())
	must(b, bare())
	var o, r []time.Duration
	for b.Loop() {
		for range 25 {
			begin := time.Now()
			must(b, bare())
			r = append(r, time.Since(begin))
			begin = time.Now()
			must(b, ours())
			o = append(o, time.Since(begin))
		}
	}
	b.ReportMetric(median(o)/median(r), "exec-ratio")
	b.ReportMetric(1.10, "goal:exec-ratio")
	b.ReportMetric(median(r)/1e6, "bare-exec-ms")
	b.ReportMetric(0, "ns/op")
}

const (
	benchSandboxes   = 50
	benchParallelism = 10
)

// parallel does a thing for 0..n-1 with Terraform's parallelism.
func parallel(b *testing.B, n int, do func(int) error) time.Duration {
	b.Helper()
	begin := time.Now()
	var wg sync.WaitGroup
	next := make(chan int)
	errs := make(chan error, n)
	for range benchParallelism {
		wg.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					errs <- err
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	select {
	case err := <-errs:
		b.Fatal(err)
	default:
	}
	return time.Since(begin)
}

// BenchmarkCreateDestroy compares 50 sandboxes with 50 containers of the same image made by hand, and the same with
// writable paths on a read-only root.
func BenchmarkCreateDestroy(b *testing.B) {
	e := engine(b)
	ctx := b.Context()
	bare := func() (time.Duration, time.Duration) {
		ids := make([]string, benchSandboxes)
		made := parallel(b, benchSandboxes, func(i int) error {
			c, err := e.cli.ContainerCreate(ctx, client.ContainerCreateOptions{
				Config:     &container.Config{Image: testenv.Image("python"), Cmd: []string{"sleep", "infinity"}, WorkingDir: "/workspace", Labels: map[string]string{testLabel: runMark}},
				HostConfig: &container.HostConfig{NetworkMode: "none"},
			})
			if err != nil {
				return err
			}
			ids[i] = c.ID
			_, err = e.cli.ContainerStart(ctx, c.ID, client.ContainerStartOptions{})
			return err
		})
		removed := parallel(b, benchSandboxes, func(i int) error {
			_, err := e.cli.ContainerRemove(ctx, ids[i], client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			return err
		})
		return made, removed
	}
	ours := func(change ...func(*sandboxcore.Profile)) (time.Duration, time.Duration) {
		sandboxes := make([]sandboxcore.ManagedSandbox, benchSandboxes)
		made := parallel(b, benchSandboxes, func(i int) error {
			s, err := e.Create(ctx, request(profile("python", change...)), nil)
			sandboxes[i] = s
			return err
		})
		removed := parallel(b, benchSandboxes, func(i int) error { return sandboxes[i].Destroy(ctx) })
		return made, removed
	}
	rounds := func(a, b time.Duration, to [2]*[]time.Duration) {
		*to[0] = append(*to[0], a)
		*to[1] = append(*to[1], b)
	}
	var bm, br, om, or, fm, fr []time.Duration
	for b.Loop() {
		for range 3 {
			m, r := bare()
			rounds(m, r, [2]*[]time.Duration{&bm, &br})
			m, r = ours()
			rounds(m, r, [2]*[]time.Duration{&om, &or})
			m, r = ours(fsWrite("/workspace", "/tmp"))
			rounds(m, r, [2]*[]time.Duration{&fm, &fr})
		}
	}
	b.ReportMetric(median(om)/median(bm), "create-ratio")
	b.ReportMetric(1.05, "goal:create-ratio")
	b.ReportMetric(median(or)/median(br), "destroy-ratio")
	b.ReportMetric(1.10, "goal:destroy-ratio")
	b.ReportMetric(median(fm)/median(bm), "create-fs-ratio")
	b.ReportMetric(median(fr)/median(br), "destroy-fs-ratio")
	b.ReportMetric(median(bm)/1e6/benchSandboxes, "bare-create-ms")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkRefresh counts the engine calls of a refresh of few and of many sandboxes.
func BenchmarkRefresh(b *testing.B) {
	e, calls := counted(b)
	ids := make([]string, benchSandboxes)
	sandboxes := make([]sandboxcore.ManagedSandbox, benchSandboxes)
	parallel(b, benchSandboxes, func(i int) error {
		s, err := e.Create(b.Context(), request(profile("bare")), nil)
		if err == nil {
			ids[i], sandboxes[i] = s.Info().NativeID, s
		}
		return err
	})
	refresh := func(n int) float64 {
		// A refresh is a process of its own.
		fresh, calls := counted(b)
		parallel(b, n, func(i int) error { _, err := fresh.Find(b.Context(), ids[i], false); return err })
		return float64(calls.Load())
	}
	few, many := math.NaN(), math.NaN()
	for b.Loop() {
		few, many = refresh(5), refresh(benchSandboxes)
	}
	parallel(b, benchSandboxes, func(i int) error { return sandboxes[i].Destroy(b.Context()) })
	_ = calls
	b.ReportMetric(few, "calls-for-5")
	b.ReportMetric(many, "calls-for-50")
	b.ReportMetric(0, "ns/op")
	if many > few {
		b.Errorf("a refresh of %d sandboxes needs %v calls, one of 5 needs %v", benchSandboxes, many, few)
	}
}

// BenchmarkOutput measures what 256 MB of output cost beside a bare exec.
func BenchmarkOutput(b *testing.B) {
	e := engine(b)
	s := create(b, e, profile("python"))
	argv := []string{"head", "-c", "268435456", "/dev/zero"}
	var o, r []time.Duration
	for b.Loop() {
		for range 3 {
			begin := time.Now()
			must(b, bareExec(b.Context(), e, s.info.NativeID, argv...))
			r = append(r, time.Since(begin))
			begin = time.Now()
			_, err := s.Run(b.Context(), sandboxcore.RunRequest{Argv: argv, Timeout: time.Minute}, io.Discard, io.Discard)
			must(b, err)
			o = append(o, time.Since(begin))
		}
	}
	b.ReportMetric(median(o)/median(r), "output-ratio")
	b.ReportMetric(256/(median(o)/1e9), "MB/s")
	b.ReportMetric(0, "ns/op")
}
