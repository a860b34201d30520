package docker

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// somebodys makes a container as somebody else would, without our marks.
func somebodys(t *testing.T, e *endpoint, change ...func(*container.Config, *container.HostConfig)) string {
	t.Helper()
	cfg := &container.Config{
		Image: testenv.Image("python"), Entrypoint: []string{"sh", "-c", "trap exit TERM; while :; do sleep 1; done"}, WorkingDir: "/var/tmp", User: "65534",
		Labels: map[string]string{testLabel: runMark, "owner": "somebody"},
	}
	host := &container.HostConfig{NetworkMode: "none"}
	for _, c := range change {
		c(cfg, host)
	}
	if err := e.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := e.cli.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: "foreign-" + randomHex(), Config: cfg, HostConfig: host})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sandboxcore.WithCleanup(t.Context(), func(ctx context.Context) error {
			_, err := e.cli.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			return err
		})
	})
	if _, err := e.cli.ContainerStart(t.Context(), c.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	return c.ID
}

func attachedProfile(target string, change ...func(*sandboxcore.Profile)) *sandboxcore.Profile {
	p := &sandboxcore.Profile{
		Name: "test", Type: sandboxcore.BackendDocker, Environment: sandboxcore.EnvironmentAttached, Scope: sandboxcore.DefaultScope, IdleTimeout: sandboxcore.DefaultIdleTimeout,
		Identity: sandboxcore.IdentityAgent, Policy: sandboxcore.Policy{NetworkEgress: sandboxcore.NetworkAllow, Timeout: 120, Strict: true},
		Settings: sandboxcore.Settings{keyAttachTo: target},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func attachIt(t *testing.T, e *endpoint, p *sandboxcore.Profile) sandboxcore.AttachedEnvironment {
	t.Helper()
	a, err := e.Attach(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// mine are the files that differ from the image and carry our name.
func mine(t *testing.T, e *endpoint, id string) []string {
	t.Helper()
	r, err := e.cli.ContainerDiff(t.Context(), id, client.ContainerDiffOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range r.Changes {
		if strings.Contains(c.Path, "agentkernel") {
			out = append(out, c.Path)
		}
	}
	return out
}

func (e *endpoint) shape(t *testing.T, id string) []string {
	t.Helper()
	r, err := e.cli.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := r.Container
	out := []string{c.State.StartedAt, string(c.State.Status), c.Config.WorkingDir, c.Config.User}
	for k, v := range c.Config.Labels {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}

// TestAttachedContainer: runs and files work as the container's own user in its own directory, and the container is left
// as it was.
func TestAttachedContainer(t *testing.T) {
	e := engine(t)
	id := somebodys(t, e)
	before := e.shape(t, id)
	a := attachIt(t, e, attachedProfile(id[:12]))
	if a.NativeID() != id || a.Status() != sandboxcore.StatusRunning || !strings.HasPrefix(a.Platform(), "linux/") || a.Details()["user"] != "65534" {
		t.Errorf("%s %s %s %v", a.NativeID(), a.Status(), a.Platform(), a.Details())
	}
	if out := shell(t, a, "id -u; pwd").ok(t); out != "65534\n/var/tmp\n" {
		t.Errorf("%q", out)
	}
	if out := python(t, a, "import sys; print(sys.stdin.read(), 1+1)").ok(t); out != " 2\n" {
		t.Errorf("%q", out)
	}
	if err := a.WriteFile(t.Context(), "f", []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if content, _, err := a.ReadFile(t.Context(), "/var/tmp/f", 100); err != nil || string(content) != "content" {
		t.Errorf("%q %v", content, err)
	}
	if err := a.RemoveFile(t.Context(), "f"); err != nil {
		t.Error(err)
	}
	if o := execute(t.Context(), a, sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("exit 3")}); o.err != nil || o.ExitCode != 3 || o.Notice != "" {
		t.Errorf("%+v", o)
	}
	o := execute(t.Context(), a, sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("sleep 61 & setsid sleep 62 & sleep 63"), Timeout: time.Second, Grace: 100 * time.Millisecond})
	refused(t, o.err, sandboxcore.CodeTimeout)
	if out := shell(t, a, strings.ReplaceAll(countProcesses("sleep"), "n=0;", "n=-1;")).ok(t); strings.TrimSpace(out) != "0" {
		t.Errorf("%s processes are left", out)
	}
	if left := mine(t, e, id); len(left) != 0 {
		t.Errorf("left in the container: %v", left)
	}
	if after := e.shape(t, id); !slices.Equal(before, after) {
		t.Errorf("the container changed:\n%v\n%v", before, after)
	}
}

// TestAttachedContainerCancelled: a cancelled run leaves neither processes nor the helper.
func TestAttachedContainerCancelled(t *testing.T) {
	e := engine(t)
	id := somebodys(t, e)
	a := attachIt(t, e, attachedProfile(id))
	ctx, cancel := context.WithCancel(t.Context())
	w := &signalWriter{first: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		_, err := a.Run(ctx, sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("echo up; sleep 64"), Timeout: time.Minute}, w, nil)
		done <- err
	}()
	<-w.first
	// While the code runs the helper's file is gone already.
	if left := mine(t, e, id); len(left) != 0 {
		t.Errorf("left in the container while a run goes on: %v", left)
	}
	cancel()
	refused(t, <-done, sandboxcore.CodeUnknownOutcome, "Every process")
}

// TestAttachedContainerStopped: what is stopped or paused is not started, and what is gone is named.
func TestAttachedContainerStopped(t *testing.T) {
	e := engine(t)
	id := somebodys(t, e)
	p := attachedProfile(id)
	if _, err := e.cli.ContainerPause(t.Context(), id, client.ContainerPauseOptions{}); err != nil {
		t.Fatal(err)
	}
	a := attachIt(t, e, p)
	if a.Status() != sandboxcore.StatusPaused {
		t.Error(a.Status())
	}
	refused(t, shell(t, a, "true").err, sandboxcore.CodeStopped, "paused")
	if _, err := e.cli.ContainerUnpause(t.Context(), id, client.ContainerUnpauseOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.cli.ContainerKill(t.Context(), id, client.ContainerKillOptions{}); err != nil {
		t.Fatal(err)
	}
	for a.Status() != sandboxcore.StatusStopped {
		a = attachIt(t, e, p)
	}
	refused(t, shell(t, a, "true").err, sandboxcore.CodeStopped, "does not start")
	refused(t, a.WriteFile(t.Context(), "f", nil, 0o600), sandboxcore.CodeStopped)
	if r, err := e.cli.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{}); err != nil || r.Container.State.Running {
		t.Errorf("the container was started: %v", err)
	}
	if _, err := e.cli.ContainerRemove(t.Context(), id, client.ContainerRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	_, err := e.Attach(t.Context(), p)
	refused(t, err, sandboxcore.CodeGone, id)
}

// TestAttachedReadOnlyRoot: without a place for the helper, the container's own shell does what it can.
func TestAttachedReadOnlyRoot(t *testing.T) {
	e := engine(t)
	id := somebodys(t, e, func(_ *container.Config, h *container.HostConfig) { h.ReadonlyRootfs = true })
	a := attachIt(t, e, attachedProfile(id))
	run := func(r sandboxcore.RunRequest) outcome {
		if r.Timeout == 0 {
			r.Timeout = time.Minute
		}
		return execute(t.Context(), a, r)
	}
	o := run(sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("echo $V; cat; id -u >&2; exit 4"), Env: map[string]string{"V": "it's"}, Stdin: []byte("in")})
	if o.err != nil || o.ExitCode != 4 || o.stdout != "it's\nin" || o.stderr != "65534\n" {
		t.Errorf("%+v", o)
	}
	// No name of the environment is one that the machinery uses itself.
	o = run(sandboxcore.RunRequest{
		Kind: sandboxcore.RunScript, Text: []byte("# Comment.\necho \"$t|$i|$pid|$#|${AGENTKERNEL_TEXT-none}\"; sh -c 'echo $t'"), Env: map[string]string{"t": "mine", "i": "1", "pid": "2"},
	})
	if o.err != nil || o.stdout != "mine|1|2|0|none\nmine\n" {
		t.Errorf("%+v", o)
	}
	if o := run(sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: "python", Text: []byte("import os; print(__name__, os.getcwd(), 'AGENTKERNEL_TEXT' in os.environ)")}); o.err != nil || o.stdout != "__main__ /var/tmp False\n" {
		t.Errorf("%+v", o)
	}
	if o := run(sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"printf", "%s", "a b"}, WorkingDirectory: "/"}); o.err != nil || o.stdout != "a b" {
		t.Errorf("%+v", o)
	}
	refused(t, run(sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"no-such-program"}}).err, sandboxcore.CodeOperation, "Nothing ran")
	refused(t, run(sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("true"), WorkingDirectory: "/absent"}).err, sandboxcore.CodeValue, "working_directory")
	for _, dir := range []string{"-", "tmp"} {
		refused(t, run(sandboxcore.RunRequest{
			Kind: sandboxcore.RunScript, Text: []byte("pwd"), WorkingDirectory: dir, Env: map[string]string{"OLDPWD": "/", "CDPATH": "/"},
		}).err, sandboxcore.CodeValue, "working_directory")
	}
	refused(t, run(sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: make([]byte, maxShellCode+1)}).err, sandboxcore.CodeValue, "98305")
	refused(t, a.WriteFile(t.Context(), "f", nil, 0o600), sandboxcore.CodeOperation, "read-only")
	o = run(sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("echo up; sleep 65 & sleep 66"), Timeout: time.Second, Grace: 100 * time.Millisecond})
	refused(t, o.err, sandboxcore.CodeTimeout, "one that left the group may have survived")
	if o.stdout != "up\n" {
		t.Errorf("%q", o.stdout)
	}
	// A process that holds the output does not hold up the result, and ends with the run.
	if o = run(sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("sleep 67 & echo done")}); o.err != nil || o.stdout != "done\n" || o.Duration > 20*time.Second || o.Notice != "" || o.StdoutLost != 0 {
		t.Errorf("%+v", o)
	}
	// Zombies do not count: reaping is the business of the container's own first process.
	const sleepers = `for p in /proc/[0-9]*; do read -r pid name state rest <"$p/stat" 2>/dev/null && [ "$name" = "(sleep)" ] && [ "$state" != Z ] && tr '\0' ' ' <"$p/cmdline"; done; true`
	if out := run(sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte(sleepers)}).stdout; strings.Contains(out, "sleep 6") {
		t.Errorf("processes are left: %s", out)
	}
}

// slowWriter takes its time for its first bytes and for each.
type slowWriter struct {
	first, each time.Duration
	n           int
}

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(w.first + time.Duration(len(p))*w.each)
	w.first, w.n = 0, w.n+len(p)
	return len(p), nil
}

// TestAttachedReadOnlyRootOutput: output that is under way when the program ends arrives, and what may be missing is told.
func TestAttachedReadOnlyRootOutput(t *testing.T) {
	e := engine(t)
	id := somebodys(t, e, func(_ *container.Config, h *container.HostConfig) { h.ReadonlyRootfs = true })
	a := attachIt(t, e, attachedProfile(id))
	usual := e.timings
	for name, test := range map[string]struct {
		size       string
		w          slowWriter
		stall, all time.Duration // 0: as usual
		keep, cut  bool
	}{
		"slow":             {size: "400000", w: slowWriter{each: 20 * time.Microsecond}},
		"too slow":         {size: "400000", w: slowWriter{each: 20 * time.Microsecond}, all: 500 * time.Millisecond, cut: true},
		"stalled":          {size: "100000", w: slowWriter{first: 3 * time.Second}, stall: 300 * time.Millisecond, cut: true},
		"stalled, to stay": {size: "100000", w: slowWriter{first: 3 * time.Second}, stall: 300 * time.Millisecond, keep: true},
	} {
		t.Run(name, func(t *testing.T) {
			e.timings = usual
			if test.stall > 0 {
				e.timings.drainStall = test.stall
			}
			if test.all > 0 {
				e.timings.drainMost = test.all
			}
			w := test.w
			res, err := a.Run(t.Context(), sandboxcore.RunRequest{
				Kind: sandboxcore.RunScript, Text: []byte("head -c " + test.size + " /dev/zero"), Timeout: time.Minute, KeepBackground: test.keep,
			}, &w, nil)
			notice, lost := "", int64(0)
			if test.cut {
				notice, lost = noticeCut, 1
			}
			if err != nil || res.ExitCode != 0 || res.Notice != notice || res.StdoutLost != lost || res.StderrLost != lost {
				t.Errorf("%+v, %v", res, err)
			}
			if test.stall+test.all == 0 && strconv.Itoa(w.n) != test.size {
				t.Errorf("%d bytes", w.n)
			}
		})
	}
	e.timings = usual
	// Who left the process group holds the output; some engines end it, and then all of it is there.
	o := execute(t.Context(), a, sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("setsid sleep 68 & sleep 1; echo done")})
	if o.err != nil || o.stdout != "done\n" || o.Duration > 20*time.Second || (o.Notice == noticeCut) != (o.StdoutLost == 1) {
		t.Errorf("%+v", o)
	}
}

// TestAttachedDrain: output is waited for as long as it comes, and no longer than is bounded.
func TestAttachedDrain(t *testing.T) {
	open, ended := make(chan struct{}), make(chan struct{})
	close(ended)
	var still, coming arriving
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				coming.n.Add(1)
			}
		}
	}()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	const stall, most = 300 * time.Millisecond, 900 * time.Millisecond
	for name, test := range map[string]struct {
		ctx      context.Context
		copied   chan struct{}
		from     *arriving
		want     drainEnd
		min, max time.Duration
	}{
		"ended":     {t.Context(), ended, &still, drainWhole, 0, stall},
		"stalled":   {t.Context(), open, &still, drainStalled, stall, most},
		"endless":   {t.Context(), open, &coming, drainEndless, most, time.Minute},
		"cancelled": {cancelled, open, &coming, drainEndless, stall, most},
	} {
		t.Run(name, func(t *testing.T) {
			from := time.Now()
			got := drain(test.ctx, test.copied, test.from, stall, most)
			if took := time.Since(from); got != test.want || took < test.min || took > test.max {
				t.Errorf("%d after %s", got, took)
			}
		})
	}
}

// TestAttachedThroughTheEngine: binding, run, and a look at the end cause no event of the container but those of runs.
func TestAttachedThroughTheEngine(t *testing.T) {
	e := engine(t)
	id := somebodys(t, e)
	eng, err := sandboxcore.NewEngine(sandboxcore.EngineConfig{Registry: sandboxcore.NewRegistry(Factory()), Getenv: os.Getenv})
	if err != nil {
		t.Fatal(err)
	}
	spec, err := sandboxcore.EncodeSpec(attachedProfile(id))
	if err != nil {
		t.Fatal(err)
	}
	seen := func(act func()) []string {
		from := time.Now()
		act()
		r := e.cli.Events(t.Context(), client.EventsListOptions{
			Since: from.Format(time.RFC3339Nano), Until: time.Now().Format(time.RFC3339Nano), Filters: make(client.Filters).Add("container", id),
		})
		var out []string
		for {
			select {
			case m := <-r.Messages:
				out = append(out, strings.SplitN(string(m.Action), ":", 2)[0])
			case err := <-r.Err:
				_ = err // the end of the answer
				slices.Sort(out)
				return slices.Compact(out)
			}
		}
	}
	var at sandboxcore.Attachment
	if got := seen(func() {
		if at, err = eng.Attach(t.Context(), spec, sandboxcore.DefaultPrincipal()); err != nil {
			t.Fatal(err)
		}
	}); len(got) != 0 {
		t.Errorf("a look caused %v", got)
	}
	got := seen(func() {
		res, err := eng.Exec(t.Context(), sandboxcore.ExecRequest{Binding: &at.Binding, Kind: sandboxcore.RunScript, Text: []byte("echo hi"), Principal: sandboxcore.DefaultPrincipal()})
		if err != nil || res.Stdout.Text != "hi\n" {
			t.Errorf("%v %v", res, err)
		}
	})
	for _, action := range got {
		if !slices.Contains([]string{"exec_create", "exec_start", "exec_die", "extract-to-dir"}, action) {
			t.Errorf("a run caused %q, which the documentation does not list", action)
		}
	}
	if !slices.Contains(got, "exec_start") {
		t.Errorf("a run caused only %v", got)
	}
}

// TestAttachedRefusals: by the gate, without an engine.
func TestAttachedRefusals(t *testing.T) {
	reg := sandboxcore.NewRegistry(Factory())
	cpu, memory := 1.0, int64(64)
	for name, test := range map[string]struct {
		change func(*sandboxcore.Profile)
		code   sandboxcore.Code
		says   string
	}{
		"no target":      {func(p *sandboxcore.Profile) { delete(p.Settings, keyAttachTo) }, sandboxcore.CodeEnvironmentMode, "no target"},
		"managed":        {func(p *sandboxcore.Profile) { p.Environment = sandboxcore.EnvironmentManaged }, sandboxcore.CodeEnvironmentMode, "attach_to"},
		"an image":       {func(p *sandboxcore.Profile) { p.Settings[keyImage] = "x" }, sandboxcore.CodeValue, "image"},
		"a runtime":      {func(p *sandboxcore.Profile) { p.Settings[keyRuntime] = "runsc" }, sandboxcore.CodeValue, "runtime"},
		"deny":           {func(p *sandboxcore.Profile) { p.Policy.NetworkEgress = sandboxcore.NetworkDeny }, sandboxcore.CodeNetwork, "deny"},
		"cpu":            {func(p *sandboxcore.Profile) { p.Policy.CPU = &cpu }, sandboxcore.CodeResources, "cpu"},
		"memory":         {func(p *sandboxcore.Profile) { p.Policy.MemoryMB = &memory }, sandboxcore.CodeResources, "memory"},
		"writable paths": {func(p *sandboxcore.Profile) { p.Policy.FSAllowWrite = []string{"/tmp"} }, sandboxcore.CodeFilesystem, "fs_allow_write"},
		"isolation":      {func(p *sandboxcore.Profile) { p.Policy.MinIsolation = sandboxcore.IsolationContainer }, sandboxcore.CodeIsolation, "container"},
		"a user's":       {func(p *sandboxcore.Profile) { p.Identity = sandboxcore.IdentityUser }, sandboxcore.CodeNoUserIdentity, "identity"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := reg.Decide(attachedProfile("box", test.change), nil, nil)
			refused(t, err, test.code, test.says)
		})
	}
	asserted := attachedProfile("box", func(p *sandboxcore.Profile) {
		p.Policy.MinIsolation, p.Settings[keyIsolation] = sandboxcore.IsolationContainer, string(sandboxcore.IsolationContainer)
	})
	if v, err := reg.Decide(asserted, nil, nil); err != nil || !v.Capabilities.IsolationAsserted {
		t.Errorf("%+v %v", v, err)
	}
	lax := attachedProfile("box", func(p *sandboxcore.Profile) { p.Policy.Strict, p.Policy.MemoryMB = false, &memory })
	if v, err := reg.Decide(lax, nil, nil); err != nil || !slices.Equal(v.Unenforced, []string{sandboxcore.DimensionMemory}) {
		t.Errorf("%+v %v", v, err)
	}
}

// cutter passes connections on to the engine, and cuts the one of an exec after so many bytes of output.
func cutter(t *testing.T, after int64, reset bool) sandboxcore.Settings {
	t.Helper()
	if host := os.Getenv("DOCKER_HOST"); host != "" && host != "unix:///var/run/docker.sock" {
		testenv.Skip(t, testenv.Docker, "the engine is not at its default socket", "unset DOCKER_HOST")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	ended := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); close(ended); all.Wait() })
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { <-ended; _ = in.Close() }) // the client keeps it for its next call
			all.Go(func() {
				out, err := net.Dial("unix", "/var/run/docker.sock")
				if err != nil {
					_ = in.Close()
					return
				}
				all.Go(func() {
					_, _ = io.Copy(out, in)
					if half, ok := out.(*net.UnixConn); ok {
						_ = half.CloseWrite()
					}
				})
				n, _ := io.CopyN(in, out, 1<<10) // answers to calls are short
				if n == 1<<10 {
					n, _ = io.CopyN(in, out, after)
				}
				if tcp, ok := in.(*net.TCPConn); ok && n == after && reset {
					_ = tcp.SetLinger(0)
				}
				_ = in.Close()
				_ = out.Close()
			})
		}
	})
	return sandboxcore.Settings{keyHost: "tcp://" + l.Addr().String()}
}

// TestAttachedReadOnlyRootConnectionBreaks: output that breaks off is never a success, whatever the program made of it.
func TestAttachedReadOnlyRootConnectionBreaks(t *testing.T) {
	e := engine(t)
	id := somebodys(t, e, func(_ *container.Config, h *container.HostConfig) { h.ReadonlyRootfs = true })
	whole := attachIt(t, e, attachedProfile(id))
	for name, test := range map[string]struct {
		reset bool
		after string // what the program does when its output is out
		keep  bool
		says  string
	}{
		"reset":          {true, "", false, "were ended"},
		"closed":         {false, "", false, "were ended"},
		"still running":  {true, "; sleep 69", false, "were ended"},
		"what stays":     {true, "; sleep 70 >/dev/null 2>&1 &", true, "was not ended"},
		"what would run": {true, "; sleep 71", true, "were ended"},
	} {
		t.Run(name, func(t *testing.T) {
			through := dial(t, cutter(t, 100_000, test.reset), getenvNone)
			a := attachIt(t, through, attachedProfile(id))
			// Nobody reads what comes after the cut: the program must not care.
			var out bytes.Buffer
			res, err := a.Run(t.Context(), sandboxcore.RunRequest{
				Kind: sandboxcore.RunScript, Text: []byte("trap '' PIPE; head -c 200000 /dev/zero 2>/dev/null" + test.after), Timeout: time.Minute, Grace: 100 * time.Millisecond, KeepBackground: test.keep,
			}, &out, nil)
			if sandboxcore.CodeOf(err) != sandboxcore.CodeUnknownOutcome || out.Len() == 0 || out.Len() >= 200_000 {
				t.Fatalf("%+v, %d bytes, %v", res, out.Len(), err)
			}
			refused(t, err, sandboxcore.CodeUnknownOutcome, test.says)
			count := execute(t.Context(), whole, sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Timeout: time.Minute, Text: []byte(
				`for p in /proc/[0-9]*; do read -r pid name state rest <"$p/stat" 2>/dev/null && [ "$name" = "(sleep)" ] && [ "$state" != Z ] && tr '\0' ' ' <"$p/cmdline"; done; true`)})
			if stays := strings.Contains(count.stdout, "sleep 70"); strings.Contains(count.stdout, "sleep 69") || strings.Contains(count.stdout, "sleep 71") || name == "what stays" && !stays {
				t.Errorf("alive: %q", count.stdout)
			}
		})
	}
}

// TestCopyStreams: streams are taken apart, and end only between frames.
func TestCopyStreams(t *testing.T) {
	frame := func(kind byte, text string) string {
		return string([]byte{kind, 0, 0, 0, 0, 0, 0, byte(len(text))}) + text
	}
	whole := frame(1, "out") + frame(2, "err") + frame(1, "") + frame(1, "more")
	for n := range len(whole) + 1 {
		var out, errOut bytes.Buffer
		err := copyStreams(&out, &errOut, strings.NewReader(whole[:n]))
		between := n == 0 || n == 11 || n == 22 || n == 30 || n == len(whole)
		if (err == nil) != between {
			t.Errorf("after %d bytes: %v", n, err)
		}
		if n == len(whole) && (out.String() != "outmore" || errOut.String() != "err") {
			t.Errorf("%q %q", out.String(), errOut.String())
		}
	}
	for _, bad := range []string{frame(3, "no\x1b such"), frame(7, "x"), "HTTP/1.1 500 Internal"} {
		if err := copyStreams(io.Discard, io.Discard, strings.NewReader(bad)); err == nil || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
