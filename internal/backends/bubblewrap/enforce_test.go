//go:build linux && (amd64 || arm64)

package bubblewrap

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/workspace/workspacetest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// both runs a test as who runs the tests, and as an ordinary user too when that is root.
func both(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	testenv.Require(t, testenv.Bubblewrap)
	if strings.HasSuffix(t.Name(), "Unprivileged") && testenv.RerunUnprivileged(t) {
		return
	}
	test(t)
}

func TestNetwork(t *testing.T)             { both(t, network) }
func TestNetworkUnprivileged(t *testing.T) { both(t, network) }

// network: the same socket connects under allow and not under deny.
func network(t *testing.T) {
	k := workspacetest.New(t, Factory())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	code := fmt.Sprintf(`
import socket
try:
    socket.create_connection(("127.0.0.1", %s), 5).close(); print("connected")
except OSError as e: print(type(e).__name__)
try:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("192.0.2.1", 53)); print("routed")
except OSError as e: print("unreachable")
print(sorted(n for _, n in socket.if_nameindex()) == ["lo"])
a, b = socket.socketpair(); a.send(b"x"); print(b.recv(1))
`, port)
	allow := k.Sandbox(t, sandboxcore.Policy{NetworkEgress: sandboxcore.NetworkAllow})
	if o := workspacetest.Python(allow, code); o.Err != nil || !strings.HasPrefix(o.Stdout, "connected\n") {
		t.Errorf("under allow: %+v", o)
	}
	deny := k.Sandbox(t, sandboxcore.Policy{NetworkEgress: sandboxcore.NetworkDeny})
	workspacetest.Python(deny, code).Want(t, "ConnectionRefusedError\nunreachable\nTrue\nb'x'")
	// What is local to the sandbox works under deny.
	workspacetest.Python(deny, `
import multiprocessing, socket
l = socket.create_server(("127.0.0.1", 0)); socket.create_connection(l.getsockname()).close()
u = socket.socket(socket.AF_UNIX); u.bind("/workspace/u"); u.listen()
v = socket.socket(socket.AF_UNIX); v.connect("/workspace/u")
with multiprocessing.Pool(2) as p: print(p.map(abs, [-1, -2]))
`).Want(t, "[1, 2]")
	workspacetest.Shell(deny, "ls /etc/resolv.conf 2>/dev/null; id -un; getent hosts localhost | head -1 | cut -c1-3").Want(t, "sandbox\n::1")
	if _, err := os.Stat("/etc/resolv.conf"); err == nil {
		workspacetest.Shell(allow, "test -s /etc/resolv.conf && echo yes").Want(t, "yes")
	}
	registry := sandboxcore.NewRegistry(k.Factory)
	_, err = registry.Decide(k.Profile(sandboxcore.Policy{NetworkEgress: sandboxcore.NetworkAllowlist, NetworkAllow: []string{"192.0.2.0/24"}}), nil, nil)
	workspacetest.WantCode(t, err, sandboxcore.CodeNetwork)
}

func TestFilesystem(t *testing.T)             { both(t, filesystem) }
func TestFilesystemUnprivileged(t *testing.T) { both(t, filesystem) }

// filesystem: paths of the policy can be used as it says, and nothing else of the host is there.
func filesystem(t *testing.T) {
	k := workspacetest.New(t, Factory())
	base := filepath.Dir(k.DataDir)
	directory := func(name string) string {
		dir := filepath.Join(base, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte(name), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, "f"), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	read, write, hidden := directory("read"), directory("write"), directory("hidden")
	locked, file := directory("write/locked"), filepath.Join(hidden, "f")
	link := filepath.Join(base, "link")
	if err := os.Symlink(read, link); err != nil {
		t.Fatal(err)
	}
	policy := sandboxcore.Policy{NetworkEgress: sandboxcore.NetworkDeny, FSAllowRead: []string{read, locked, link, file}, FSAllowWrite: []string{write}}
	p := k.Profile(policy)
	if err := k.Endpoint.Admit(t.Context(), p, sandboxcore.Operation{Name: sandboxcore.OpCreate}); err != nil {
		t.Fatal(err)
	}
	sb := k.Create(t, p, nil)
	try := fmt.Sprintf(`cat %[1]s/f %[2]s/f %[4]s/f %[5]s/f %[3]s/f; echo
for f in %[1]s/f %[1]s/new %[4]s/f %[4]s/new %[5]s/new %[3]s/f /etc/new /usr/new /new /var/new; do (echo x > $f) 2>/dev/null && echo wrote $f; done
(echo changed > %[2]s/f && echo x > %[2]s/new) && echo wrote; ls %[6]s | tr '\n' ' '; ls %[3]s; echo x > %[3]s/private`, read, write, hidden, locked, link, base)
	o := workspacetest.Shell(sb, try)
	o.Want(t, "readwritewrite/lockedreadhidden\nwrote\nhidden link read write f")
	if text, err := os.ReadFile(filepath.Join(write, "f")); err != nil || string(text) != "changed\n" {
		t.Errorf("on the host: %q %v", text, err)
	}
	// What is between, in the sandbox's own /tmp, is not the host's.
	workspacetest.MustExist(t, filepath.Join(hidden, "private"), false)
	// Files go the same way.
	ctx := t.Context()
	if err := sb.WriteFile(ctx, write+"/byfile", []byte("x"), 0o644); err != nil {
		t.Error(err)
	}
	for _, path := range []string{read + "/byfile", locked + "/byfile", hidden + "/byfile", "/tmp/byfile", "/dev/shm/byfile", "/usr/byfile", "/etc/passwd"} {
		if err := sb.WriteFile(ctx, path, []byte("x"), 0o644); err == nil {
			t.Errorf("%s was written", path)
		}
	}
	if got, _, err := sb.ReadFile(ctx, read+"/f", 100); err != nil || string(got) != "read" {
		t.Errorf("%q %v", got, err)
	}
	// /tmp is private to a run, and the workspace can always be written.
	workspacetest.Shell(sb, "touch /tmp/mine /workspace/mine && ls -d /tmp/m*").Want(t, "/tmp/mine")
	workspacetest.Shell(sb, "ls /tmp/mine 2>/dev/null; ls /workspace").Want(t, "mine")
	// Without the policy none of it is there.
	plain := k.Sandbox(t, sandboxcore.Policy{})
	workspacetest.Shell(plain, "ls -d "+read+" "+write+" "+base+" 2>/dev/null; echo none").Want(t, "none")
	// A path that goes away is refused at the run, not left out in silence.
	if err := os.RemoveAll(read); err != nil {
		t.Fatal(err)
	}
	workspacetest.WantCode(t, workspacetest.Shell(sb, "true").Err, sandboxcore.CodeFilesystem)
}

func TestForbiddenPaths(t *testing.T)             { both(t, forbiddenPaths) }
func TestForbiddenPathsUnprivileged(t *testing.T) { both(t, forbiddenPaths) }

func forbiddenPaths(t *testing.T) {
	k := workspacetest.New(t, Factory())
	k.Sandbox(t, sandboxcore.Policy{}) // so that the data directory exists
	base := filepath.Dir(k.DataDir)
	at := func(name string) string { return filepath.Join(base, name) }
	for name, target := range map[string]string{"to-root": "/", "to-run": "/run", "to-proc": "/proc/1", "to-data": k.DataDir, "to-itself": at("to-itself")} {
		if err := os.Symlink(target, at(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(at("fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Mkdir(at("closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(at("closed"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at("readonly"), 0o555); err != nil {
		t.Fatal(err)
	}
	paths := []string{
		"/", "/proc", "/proc/self", "/sys", "/sys/fs", "/dev", "/dev/shm", "/run", "/run/lock", "/var/run", "/var/run/docker.sock", "/boot", "/etc/..", "/usr/../proc",
		"/workspace", "/workspace/x", "/.agentkernel", k.DataDir, base, filepath.Dir(base), k.DataDir + "/bubblewrap", at("to-root"), at("to-run"), at("to-run") + "/lock", at("to-proc"),
		at("to-data"), at("to-itself"), at("fifo"), at("socket"), at("absent"), at("closed"),
	}
	for _, write := range []bool{false, true} {
		for _, path := range paths {
			policy := sandboxcore.Policy{FSAllowRead: []string{path}}
			if write {
				policy = sandboxcore.Policy{FSAllowWrite: []string{path}}
			}
			p := k.Profile(policy)
			err := k.Endpoint.Admit(t.Context(), p, sandboxcore.Operation{Name: sandboxcore.OpCreate})
			if !sandboxcore.IsCode(err, sandboxcore.CodeFilesystem) {
				t.Errorf("write %v of %s: admitted, %v", write, path, err)
			}
			_, err = k.Endpoint.Create(t.Context(), workspacetest.Request(t, p), func(sandboxcore.SandboxInfo) { t.Errorf("%s: something was created", path) })
			workspacetest.WantCode(t, err, sandboxcore.CodeFilesystem)
		}
	}
	p := k.Profile(sandboxcore.Policy{FSAllowWrite: []string{at("readonly")}, FSAllowRead: []string{at("readonly")}})
	workspacetest.WantCode(t, k.Endpoint.Admit(t.Context(), p, sandboxcore.Operation{}), sandboxcore.CodeFilesystem)
	// What only the text shows is refused at plan already, all of it at once.
	_, err = sandboxcore.NewRegistry(k.Factory).Decide(k.Profile(sandboxcore.Policy{FSAllowRead: []string{"/", "/usr", "/run/x"}, FSAllowWrite: []string{"/proc"}}), nil, nil)
	if all := sandboxcore.AllErrors(err, ""); len(all) != 3 {
		t.Errorf("%d refusals: %v", len(all), err)
	}
}

func TestMemoryLimit(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap, testenv.Cgroup)
	k := workspacetest.New(t, Factory())
	const eat = "x = bytearray(300 << 20); print(len(x) >> 20)"
	workspacetest.Python(k.Sandbox(t, sandboxcore.Policy{}), eat).Want(t, "300")
	limit := int64(64)
	sb := k.Sandbox(t, sandboxcore.Policy{MemoryMB: &limit})
	o := workspacetest.Python(sb, eat)
	if o.Err != nil || !o.OOMKilled || o.ExitCode != 137 {
		t.Errorf("an allocation beyond the limit: %+v", o)
	}
	// A file in /tmp is memory too.
	o = workspacetest.Python(sb, `
with open("/tmp/f", "wb") as f:
    for i in range(300): f.write(bytes(1 << 20))
print("written")`)
	if o.Err != nil || !o.OOMKilled || strings.Contains(o.Stdout, "written") {
		t.Errorf("a file in /tmp beyond the limit: %+v", o)
	}
	// The program ended well although a child of it did not: that is the program's own affair.
	o = workspacetest.Shell(sb, `python3 -c "`+eat+`"; echo survived $?`)
	if o.Want(t, "survived 137"); o.OOMKilled {
		t.Error("the run counts as killed")
	}
	workspacetest.Python(sb, "x = bytearray(20 << 20); print('fits')").Want(t, "fits")
	// All runs of a sandbox share the limit.
	holder := make(chan workspacetest.Outcome, 1)
	go func() {
		holder <- workspacetest.Python(sb, "import os, time\nx = bytearray(35 << 20); open('holds', 'w').close()\nwhile not os.path.exists('done'): time.sleep(0.05)")
	}()
	ctx := t.Context()
	workspacetest.Eventually(t, "the memory is held", func() bool { _, _, err := sb.ReadFile(ctx, "holds", 1); return err == nil })
	o = workspacetest.Python(sb, "x = bytearray(35 << 20); print('fits')")
	if err := sb.WriteFile(ctx, "done", nil, 0o644); err != nil {
		t.Error(err)
	}
	if h := <-holder; !o.OOMKilled && !h.OOMKilled {
		t.Errorf("two runs had more than the limit together: %+v %+v", o, h)
	}
}

// A run that was killed reads from the group that the memory limit did it; another run of the sandbox that ends in between
// leaves the group there.
func TestGroupStaysForTheLastRun(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap, testenv.Cgroup)
	k := workspacetest.New(t, Factory())
	limit := int64(64)
	s, ok := k.Sandbox(t, sandboxcore.Policy{MemoryMB: &limit}).(*sandbox)
	if !ok {
		t.Fatal("not a sandbox of this backend")
	}
	box, err := s.endpoint.store.Find(s.box.ID)
	if err != nil {
		t.Fatal(err)
	}
	start := func() *run {
		r, err := s.start(t.Context(), box)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.conn.Close() })
		return r
	}
	killed, other := start(), start()
	if err := killed.inner.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	workspacetest.Eventually(t, "it is dead", func() bool { return !killed.inner.Alive() })
	if err := other.conn.Close(); err != nil {
		t.Error(err)
	}
	there := func() bool {
		_, err := os.Stat(killed.group.dirs()[0])
		return err == nil
	}
	if !there() {
		t.Error("the group is gone, and with it its counts")
	}
	if err := killed.conn.Close(); err != nil {
		t.Error(err)
	}
	if there() {
		t.Error("the last run left the group")
	}
}

func TestCPULimit(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap, testenv.Cgroup)
	k := workspacetest.New(t, Factory())
	// The kernel's own count of how often it held the sandbox back: how much time a run gets depends on what else the
	// machine does.
	throttled := func(sb sandboxcore.ManagedSandbox) int64 {
		h := machineCgroups()[ctlCPU]
		fields := words(filepath.Join(h.dir, groupPrefix+sb.Info().NativeID, "cpu.stat"))
		for i := 0; i+1 < len(fields); i++ {
			if fields[i] == "nr_throttled" {
				n, _ := strconv.ParseInt(fields[i+1], 10, 64)
				return n
			}
		}
		return 0
	}
	// Spins in two processes until a file appears and tells how much time it had, of how much.
	const burn = `
import os, time
start = time.time(); child = os.fork()
while not os.path.exists("done") and time.time() < start + 60: pass
if child == 0: os._exit(0)
os.waitpid(child, 0)
t = os.times(); print(t.user + t.system + t.children_user + t.children_system, time.time() - start)`
	spin := func(sb sandboxcore.ManagedSandbox, until func() bool) (used, of float64) {
		done := make(chan workspacetest.Outcome, 1)
		go func() { done <- workspacetest.Python(sb, burn) }()
		workspacetest.Eventually(t, "it has spun enough", until)
		if err := sb.WriteFile(t.Context(), "done", nil, 0o644); err != nil {
			t.Error(err)
		}
		o := <-done
		if _, err := fmt.Sscan(o.Stdout, &used, &of); err != nil || o.Err != nil {
			t.Fatalf("%+v", o)
		}
		return used, of
	}
	limit := 0.1
	limited, free := k.Sandbox(t, sandboxcore.Policy{CPU: &limit}), k.Sandbox(t, sandboxcore.Policy{})
	// A short burst is allowed: the quota is of each tenth of a second.
	if used, of := spin(limited, func() bool { return throttled(limited) >= 10 }); used > limit*of+0.2 {
		t.Errorf("%v s of cpu in %v s with a limit of %v", used, of, limit)
	}
	started, held := time.Now(), int64(0)
	used, of := spin(free, func() bool {
		held = max(held, throttled(free))
		return time.Since(started) > time.Second
	})
	if held != 0 {
		t.Errorf("without a limit it was held back: %v s in %v s", used, of)
	}
}

func TestProcessLimit(t *testing.T)             { both(t, processLimit) }
func TestProcessLimitUnprivileged(t *testing.T) { both(t, processLimit) }

func processLimit(t *testing.T) {
	k := workspacetest.New(t, Factory())
	const count = `
import os, signal
pids = []
try:
    while len(pids) < 1000:
        pid = os.fork()
        if pid == 0: signal.pause()
        pids.append(pid)
except OSError: pass
print(len(pids))`
	for limit, want := range map[float64][2]int{256: {200, 256}, 20: {10, 20}} {
		p := k.Profile(sandboxcore.Policy{})
		if limit != defaultPIDsLimit {
			p.Settings[settingPIDsLimit] = limit
		}
		o := workspacetest.Python(k.Create(t, p, nil), count)
		if n, err := strconv.Atoi(strings.TrimSpace(o.Stdout)); err != nil || n < want[0] || n > want[1] {
			t.Errorf("limit %v: %d processes, %+v", limit, n, o)
		}
	}
}

// TestLimitsWithoutCgroups shows that cpu and memory are refused where nobody would enforce them.
func TestLimitsWithoutCgroups(t *testing.T)             { both(t, limitsWithoutCgroups) }
func TestLimitsWithoutCgroupsUnprivileged(t *testing.T) { both(t, limitsWithoutCgroups) }

func limitsWithoutCgroups(t *testing.T) {
	k := workspacetest.New(t, Factory())
	e, ok := k.Endpoint.(*endpoint)
	if !ok {
		t.Fatal("another endpoint")
	}
	if isRoot() { // for an ordinary user it is the truth on most machines
		none := hierarchy{reason: "switched off for a test"}
		e.groups = cgroups{ctlMemory: none, ctlCPU: none, ctlPIDs: none}
	} else if e.groups[ctlMemory].usable() || e.groups[ctlCPU].usable() {
		testenv.Skip(t, testenv.Unprivileged, "this user may make control groups", "run the tests as a user who may not, or as root")
	}
	cpu, memory := 1.0, int64(64)
	p := k.Profile(sandboxcore.Policy{CPU: &cpu, MemoryMB: &memory})
	err := k.Endpoint.Admit(t.Context(), p, sandboxcore.Operation{Name: sandboxcore.OpCreate})
	workspacetest.WantCode(t, err, sandboxcore.CodeResources)
	if all := sandboxcore.AllErrors(err, ""); len(all) != 2 {
		t.Errorf("%d refusals: %v", len(all), err)
	}
	_, err = k.Endpoint.Create(t.Context(), workspacetest.Request(t, p), func(sandboxcore.SandboxInfo) { t.Error("something was created") })
	workspacetest.WantCode(t, err, sandboxcore.CodeResources)
	p.Policy.Strict = false
	workspacetest.Shell(k.Create(t, p, nil), "echo runs").Want(t, "runs")
	offer, err := k.Endpoint.Offers(t.Context())
	if err != nil || offer.CPU || offer.Memory || !offer.Network || !offer.Reachable {
		t.Errorf("offer %+v: %v", offer, err)
	}
}

func TestOffers(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap, testenv.Cgroup)
	k := workspacetest.New(t, Factory())
	offer, err := k.Endpoint.Offers(t.Context())
	if err != nil || !offer.Reachable || !offer.Memory || !offer.CPU || offer.Pause || offer.Endpoint == "" || offer.Facts["bwrap version"] == "" {
		t.Errorf("offer %+v: %v", offer, err)
	}
	if file := offer.Facts["python"]; !strings.HasPrefix(file, "/usr/") {
		t.Errorf("python is %q, which the view does not have", file)
	}
	small := int64(minMemoryMB - 1)
	tiny := minCPU / 2
	_, err = sandboxcore.NewRegistry(k.Factory).Decide(k.Profile(sandboxcore.Policy{MemoryMB: &small, CPU: &tiny}), nil, nil)
	workspacetest.WantCode(t, err, sandboxcore.CodeValue)
	if all := sandboxcore.AllErrors(err, ""); len(all) != 2 {
		t.Errorf("%d refusals: %v", len(all), err)
	}
}

// TestNoGroupIsLeft shows that a control group lives as long as its runs.
func TestNoGroupIsLeft(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap, testenv.Cgroup)
	k := workspacetest.New(t, Factory())
	sb := k.Sandbox(t, sandboxcore.Policy{})
	g := machineCgroups().group(sb.Info().NativeID, limits{})
	n := workspacetest.Number()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan workspacetest.Outcome, 1)
	go func() {
		done <- workspacetest.Run(ctx, sb, sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("sleep " + n)})
	}()
	workspacetest.Eventually(t, "the run started", func() bool { return len(workspacetest.Processes(n)) > 0 })
	if all := g.processes(); len(all) < 3 {
		t.Errorf("bwrap, the helper, and the program should be in the group: %v", all)
	}
	for range 20 {
		workspacetest.Shell(sb, "true").Want(t, "") // leaves the group to the other run
	}
	if len(g.processes()) < 3 {
		t.Error("a short run took the group of a long one away")
	}
	cancel()
	<-done
	for _, dir := range g.dirs() {
		workspacetest.MustExist(t, dir, false)
	}
}

// TestUnusable shows one diagnostic with the reason where bwrap does not work.
func TestUnusable(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	help := "case $1 in --help) echo '--disable-userns --bind-fd';; --version) echo bubblewrap 0.8.0;; *) "
	for _, d := range []string{dir, filepath.Dir(dir)} { // root's probe runs as another user
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, says := range map[string]string{
		filepath.Join(dir, "absent"):        "there is no program",
		script("old", "echo --unshare-all"): "too old",
		script("broken", "exit 9"):          "does not start",
		script("refused", help+"echo 'bwrap: No permissions to create new namespace' >&2; exit 1;; esac"): "No permissions to create new namespace",
		script("silent", help+"exit 0;; esac"): "a probe run failed",
	} {
		backend, err := Factory().New(sandboxcore.Settings{"data_dir": filepath.Join(dir, "data"), "path": path}, os.Getenv)
		if err != nil {
			t.Fatal(err)
		}
		e, err := backend.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		k := workspacetest.Kit{Factory: Factory(), Endpoint: e}
		p := k.Profile(sandboxcore.Policy{})
		err = e.Admit(t.Context(), p, sandboxcore.Operation{Name: sandboxcore.OpCreate})
		workspacetest.WantCode(t, err, sandboxcore.CodeUnreachable)
		if !strings.Contains(fmt.Sprint(err), says) {
			t.Errorf("%s: %v", path, err)
		}
		_, err = e.Create(t.Context(), workspacetest.Request(t, p), func(sandboxcore.SandboxInfo) { t.Error("something was created") })
		workspacetest.WantCode(t, err, sandboxcore.CodeUnreachable)
		if offer, err := e.Offers(t.Context()); err != nil || offer.Reachable || offer.Reason == "" {
			t.Errorf("offer %+v: %v", offer, err)
		}
		// What does not need bwrap works: looking, listing, destroying.
		if list, err := e.List(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("list %v: %v", list, err)
		}
	}
}

// TestClosedDataDirectory: root's sandboxes run under other users, who have to get to their workspaces.
func TestClosedDataDirectory(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap, testenv.Root)
	closed := t.TempDir()
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	k := workspacetest.Open(t, Factory(), filepath.Join(closed, "data"))
	p := k.Profile(sandboxcore.Policy{})
	workspacetest.WantCode(t, k.Endpoint.Admit(t.Context(), p, sandboxcore.Operation{Name: sandboxcore.OpCreate}), sandboxcore.CodeValue)
	_, err := k.Endpoint.Create(t.Context(), workspacetest.Request(t, p), func(sandboxcore.SandboxInfo) { t.Error("something was created") })
	workspacetest.WantCode(t, err, sandboxcore.CodeValue)
}

// TestMarkerOfAnotherKind: the marker decides who a sandbox runs as, so root takes none that names an account.
func TestMarkerOfAnotherKind(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap, testenv.Root)
	k := workspacetest.New(t, Factory())
	sb := k.Sandbox(t, sandboxcore.Policy{})
	marker := filepath.Join(k.Dir(sb), "marker.json")
	text, err := os.ReadFile(marker)
	if err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"0", "33", "-1"} {
		changed := strings.Replace(string(text), `"uid":`+sb.Info().Details["uid"], `"uid":`+uid, 1)
		if changed == string(text) {
			t.Fatal("the marker was not changed")
		}
		if err := os.WriteFile(marker, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := k.Endpoint.Find(t.Context(), sb.Info().NativeID, true)
		workspacetest.WantCode(t, err, sandboxcore.CodeNotOurs)
	}
	if err := os.WriteFile(marker, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkRun(b *testing.B) {
	testenv.Require(b, testenv.Bubblewrap)
	workspacetest.Benchmark(b, Factory())
}
