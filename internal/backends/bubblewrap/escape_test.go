//go:build linux && (amd64 || arm64)

package bubblewrap

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/workspace/workspacetest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// prelude is what every attack can use. An attack ends with escaped() when it worked; that it cannot even be tried, or
// fails with an error, is the refusal that is wanted.
const prelude = `
import ctypes, errno, fcntl, os, signal, socket, stat, sys, termios, time
libc = ctypes.CDLL(None, use_errno=True)
def call(nr, *args):
    args = [a if isinstance(a, (bytes, ctypes.Array)) or a is None else ctypes.c_long(a) for a in args]
    r = libc.syscall(ctypes.c_long(nr), *args)
    if r < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return r
X86 = os.uname().machine == "x86_64"
def escaped(what=""):
    print("ESCAPED", what); sys.exit(0)
def mount(source, target, kind, flags):
    if libc.mount(source, target, kind, flags, None) != 0: raise OSError(ctypes.get_errno(), "mount")
`

// attack is one row of the table.
type attack struct {
	name string
	// code tries to get out; {victim}, {other}, {abstract}, {socket} and {data} are put in.
	code string
	// control says that the same code does work outside of the sandbox: for root, for everybody, or in a mount namespace
	// of root's so that it does no harm.
	control control
	// allow runs it under egress allow, shared with a directory of the host.
	allow, shared bool
	// rootOnly needs a preparation that only root can make.
	rootOnly bool
}

type control int

const (
	noControl control = iota
	byRoot
	byRootInNamespace
	byAnyone
)

var attacks = []attack{
	{name: "remount read-write", code: `mount(None, b"/usr", None, 32 | 4096); open("/usr/agentkernel-escape", "w"); escaped()`},
	{name: "remount the root read-write", code: `mount(None, b"/", None, 32 | 4096); escaped()`},
	{name: "mount a tmpfs", control: byRootInNamespace, code: `mount(b"none", b"/tmp", b"tmpfs", 0); escaped()`},
	{name: "mount proc", control: byRootInNamespace, code: `mount(b"proc", b"/tmp", b"proc", 0); escaped()`},
	{name: "mount sysfs", control: byRootInNamespace, code: `mount(b"sysfs", b"/tmp", b"sysfs", 0); escaped()`},
	{name: "new mount interface", control: byRoot, code: `call(430, b"tmpfs", 0); escaped()`},
	{name: "unmount", code: `
if libc.umount2(b"/usr", 2) != 0: raise OSError(ctypes.get_errno(), "umount")
escaped()`},
	{name: "mknod of a block device", control: byRoot, code: `
os.mknod("escape-node", stat.S_IFBLK | 0o600, os.makedev(7, 0)); os.unlink("escape-node"); escaped()`},
	{name: "ptrace of a host process", control: byRoot, code: `
if libc.ptrace(16, {victim}, None, None) != 0: raise OSError(ctypes.get_errno(), "ptrace")
os.waitpid({victim}, 0); libc.ptrace(17, {victim}, None, None); escaped()`},
	{name: "kill of a host process", control: byAnyone, code: `os.kill({victim}, signal.SIGURG); escaped()`},
	{name: "read the memory of a host process", control: byRoot, code: `open("/proc/{victim}/mem", "rb").close(); escaped()`},
	{name: "read /etc/shadow", control: byRoot, code: `
for p in ("/etc/shadow", "/proc/1/root/etc/shadow", "/proc/self/root/etc/shadow", "/usr/../etc/shadow", "/etc/alternatives/../shadow"):
    try: open(p).read(); escaped(p)
    except OSError: pass`},
	{name: "docker.sock", code: `
for p in ("/var/run/docker.sock", "/run/docker.sock", "/proc/1/root/run/docker.sock"):
    if os.path.exists(p): escaped(p)`},
	{name: "abstract unix socket", control: byAnyone, code: abstractCode},
	{name: "abstract unix socket under egress allow", allow: true, control: byAnyone, code: abstractCode},
	{name: "abstract unix datagram through a pair", allow: true, control: byAnyone, code: `
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
a.connect("\0{abstract}-datagram"); a.send(b"x"); escaped()`},
	{name: "unix socket in a shared directory", shared: true, control: byAnyone, code: `
s = socket.socket(socket.AF_UNIX); s.connect("{socket}"); escaped()`},
	{name: "vsock to the hypervisor", allow: true, code: `socket.socket(40, socket.SOCK_STREAM); escaped()`},
	{name: "raw and packet sockets", control: byRoot, code: `
for f, k, p in ((socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_PACKET, socket.SOCK_RAW, 3)):
    try: socket.socket(f, k, p); escaped(f)
    except OSError: pass`},
	{name: "TIOCSTI on a terminal of its own", control: byRoot, code: `
m, s = os.openpty()
if os.fork() == 0:
    try:
        os.setsid(); fcntl.ioctl(s, termios.TIOCSCTTY, 0); fcntl.ioctl(s, termios.TIOCSTI, b"x")
    except OSError: os._exit(1)
    os._exit(0)
if os.wait()[1] == 0: escaped()`},
	{name: "the provider's terminal", code: `
for p in ("/dev/tty", "/dev/console", "/proc/1/fd/0"):
    try: os.open(p, os.O_RDWR); escaped(p)
    except OSError: pass
for fd in (0, 1, 2):
    if os.isatty(fd): escaped(fd)`},
	{name: "nested user namespace by unshare", control: byAnyone, code: `
if libc.unshare(0x10000000) != 0: raise OSError(ctypes.get_errno(), "unshare")
escaped()`},
	{name: "nested user namespace by clone", control: byAnyone, code: `
r = call(56 if X86 else 220, 0x10000000 | 17, 0, 0, 0, 0)
if r == 0: os._exit(0)
escaped()`},
	{name: "nested user namespace by clone3", control: byAnyone, code: `
args = ctypes.create_string_buffer((0x10000000).to_bytes(8, "little") + bytes(24) + (17).to_bytes(8, "little") + bytes(24))
r = call(435, args, 64)
if r == 0: os._exit(0)
escaped()`},
	{name: "join the namespaces of others", code: `
for p in os.listdir("/proc"):
    if not p.isdigit(): continue
    for n in ("user", "mnt", "net", "pid"):
        try:
            f = os.open("/proc/%s/ns/%s" % (p, n), os.O_RDONLY)
            if libc.setns(f, 0) == 0: escaped(p + n)
        except OSError: pass`},
	{name: "write to /usr", control: byRoot, code: `open("/usr/agentkernel-escape", "w").close(); os.unlink("/usr/agentkernel-escape"); escaped()`},
	{name: "write anywhere but to its own", code: `
mine = ("/workspace", "/tmp", "/dev/shm", "/dev", "/proc", "/var/tmp")
for top, dirs, names in os.walk("/"):
    if top.startswith("/proc") or top.startswith("/dev"): dirs[:] = []; continue
    if top in mine: dirs[:] = []; continue
    try: open(top + "/agentkernel-escape", "w"); escaped(top)
    except OSError: pass`},
	{name: "read the provider's data directory", control: byAnyone, code: `
for root in ("", "/proc/1/root", "/proc/self/root", "/proc/1/cwd/../../../../../../../.."):
    try: os.listdir(root + "{data}/bubblewrap/{other}"); escaped(root)
    except OSError: pass`},
	{name: "read another sandbox's workspace", control: byRoot, code: `
for root in ("", "/proc/1/root", "/workspace/../../.."):
    try: open(root + "{data}/bubblewrap/{other}/workspace/secret").read(); escaped(root)
    except OSError: pass`},
	{name: "the root of PID 1", code: `
for p in os.listdir("/proc"):
    if p.isdigit() and int(p) != os.getpid():
        try:
            if set(os.listdir("/proc/%s/root" % p)) - set(os.listdir("/")): escaped(p)
        except OSError: pass
try: os.listdir("/proc/1/fd"); escaped("fd")
except OSError: pass`},
	{name: "processes of the host", code: `
if len([p for p in os.listdir("/proc") if p.isdigit()]) > 3: escaped()`},
	{name: "home directories, /run, /sys", code: `
want = {".agentkernel", "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr", "var", "workspace"}
extra = set(os.listdir("/")) - want
if extra: escaped(extra)`},
	{name: "devices", code: `
for top, dirs, names in os.walk("/dev"):
    for n in names:
        m = os.lstat(os.path.join(top, n)).st_mode
        if stat.S_ISBLK(m) or n in ("mem", "kmem", "kvm", "fuse", "kmsg", "vsock", "port"): escaped(n)`},
	{name: "capabilities and privileges", code: `
s = dict(l.split(":\t", 1) for l in open("/proc/self/status").read().splitlines() if ":\t" in l)
for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    if int(s[k], 16): escaped(k)
if s["NoNewPrivs"] != "1" or s["Seccomp"] != "2" or "0" in s["Uid"].split(): escaped(s)
for p in ("/", "/usr", "/workspace", "/tmp"):
    if not os.statvfs(p).f_flag & os.ST_NOSUID: escaped(p)`},
	{name: "become root", control: byRoot, code: `
for f in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setresuid(0, 0, 0)):
    try: f(); escaped()
    except OSError: pass`},
	{name: "setuid program", rootOnly: true, shared: true, control: noControl, code: `
import subprocess
if subprocess.run(["{suid}", "-u"], capture_output=True, text=True).stdout.strip() == "0": escaped()
if subprocess.run(["{suid}", "-u"], capture_output=True, text=True).stdout.strip() != "1000": raise Exception("it did not even run")`},
	{name: "keyrings", control: byAnyone, code: `call(248 if X86 else 217, b"user", b"agentkernel-escape", b"x", 1, -2); escaped()`},
	{name: "read the keyring of the session", control: byAnyone, code: `call(250 if X86 else 219, 0, -3, 1, 0, 0); escaped()`},
	{name: "io_uring", control: byAnyone, code: `call(425, 1, ctypes.create_string_buffer(120)); escaped()`},
	{name: "userfaultfd", control: byRoot, code: `call(323 if X86 else 282, 0); escaped()`},
	{name: "perf_event_open", code: `call(298 if X86 else 241, ctypes.create_string_buffer(128), 0, -1, -1, 0); escaped()`},
	{name: "bpf", code: `call(321 if X86 else 280, 0, ctypes.create_string_buffer(128), 128); escaped()`},
	{name: "chroot", control: byRoot, code: `os.chroot("/usr"); escaped()`},
	{name: "set the clock", code: `time.clock_settime(time.CLOCK_REALTIME, time.time()); escaped()`},
	{name: "set the host name", code: `socket.sethostname("escape"); escaped()`},
	{name: "kernel settings", code: `
for p in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/overcommit_memory", "/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/hostname"):
    try: open(p, "w"); escaped(p)
    except OSError: pass
if os.path.exists("/sys"): escaped("/sys")`},
	{name: "names of keys", control: byAnyone, code: `
call(248 if X86 else 217, b"user", b"agentkernel-escape", b"x", 1, -2) if os.getcwd() != "/workspace" else None
if open("/proc/keys").read() or open("/proc/key-users").read(): escaped()`},
	{name: "the kernel's log", code: `call(103 if X86 else 116, 3, ctypes.create_string_buffer(100), 100); escaped()`},
	{name: "32-bit system calls", code: `
import mmap
if X86:
    m = mmap.mmap(-1, 4096, prot=7)
    m.write(b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3")  # push rbx; mov eax, getpid; int 0x80; pop rbx; ret
    f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))
    if f() > 0: escaped()`, control: byAnyone},
}

const abstractCode = `
for kind, name in ((socket.SOCK_STREAM, "\0{abstract}"), (socket.SOCK_DGRAM, "\0{abstract}-datagram")):
    try:
        s = socket.socket(socket.AF_UNIX, kind); s.connect(name); escaped(kind)
    except OSError: pass`

func TestEscapes(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap, testenv.Root)
	escapes(t)
}

func TestEscapesUnprivileged(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap)
	if testenv.RerunUnprivileged(t) {
		return
	}
	escapes(t)
}

// escapes tries every attack. Only as root also those that only root can prepare.
func escapes(t *testing.T) {
	k := workspacetest.New(t, Factory())
	base := filepath.Dir(k.DataDir)
	shared := filepath.Join(base, "shared")
	if err := os.Mkdir(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	abstract := "agentkernel-" + workspacetest.Token()
	socket := filepath.Join(shared, "service.sock")
	for _, address := range []string{"@" + abstract, socket} {
		l, err := net.Listen("unix", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	datagrams, err := net.ListenPacket("unixgram", "@"+abstract+"-datagram")
	if err != nil {
		t.Fatal(err)
	}
	defer datagrams.Close()
	suid := filepath.Join(shared, "id")
	if isRoot() {
		content, err := os.ReadFile("/usr/bin/id")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(suid, content, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(suid, 0o4755|os.ModeSetuid); err != nil {
			t.Fatal(err)
		}
	}
	// A process of the provider's own user: what the sandbox must not reach is what its user could.
	victim := exec.Command("sleep", workspacetest.Number())
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer victim.Wait()         //nolint:errcheck // killed
	defer victim.Process.Kill() //nolint:errcheck // the next line waits

	other := k.Sandbox(t, sandboxcore.Policy{})
	workspacetest.Shell(other, "echo secret > secret; chmod 644 secret; chmod 755 .").Want(t, "")

	boxes := map[string]sandboxcore.ManagedSandbox{
		"deny":   k.Sandbox(t, sandboxcore.Policy{NetworkEgress: sandboxcore.NetworkDeny}),
		"allow":  k.Sandbox(t, sandboxcore.Policy{}),
		"shared": k.Sandbox(t, sandboxcore.Policy{NetworkEgress: sandboxcore.NetworkDeny, FSAllowRead: []string{shared}}),
	}
	for _, row := range attacks {
		if row.rootOnly && !isRoot() {
			continue
		}
		t.Run(row.name, func(t *testing.T) {
			code := prelude + strings.NewReplacer("{victim}", strconv.Itoa(victim.Process.Pid), "{other}", other.Info().NativeID, "{abstract}", abstract,
				"{socket}", socket, "{data}", k.DataDir, "{suid}", suid).Replace(row.code)
			box := boxes["deny"]
			if row.allow {
				box = boxes["allow"]
			} else if row.shared {
				box = boxes["shared"]
			}
			o := workspacetest.Python(box, code)
			if o.Err != nil || strings.Contains(o.Stdout, "ESCAPED") {
				t.Errorf("stdout %q, stderr %q, error %v", o.Stdout, o.Stderr, o.Err)
			}
			// It must have failed by being refused, not by a slip in the attack.
			if bad := strings.TrimSpace(o.Stderr); bad != "" && !strings.Contains(bad, "PermissionError") && !strings.Contains(bad, "OSError") &&
				!strings.Contains(bad, "ProcessLookupError") && !strings.Contains(bad, "FileNotFoundError") {
				t.Errorf("the attack itself is broken: %s", bad)
			}
			checkControl(t, row, code)
			if victim.Process.Signal(syscall.Signal(0)) != nil {
				t.Fatal("the victim is dead")
			}
		})
	}
	if _, err := os.Stat("/usr/agentkernel-escape"); err == nil {
		t.Error("something was written to /usr")
	}
}

// checkControl shows that the attack works where nothing stands in its way.
func checkControl(t *testing.T, row attack, code string) {
	t.Helper()
	var cmd *exec.Cmd
	switch {
	case row.control == byAnyone, row.control == byRoot && isRoot():
		cmd = exec.Command("/usr/bin/python3", "-c", code)
	case row.control == byRootInNamespace && isRoot():
		cmd = exec.Command("unshare", "--mount", "/usr/bin/python3", "-c", code)
	default:
		return
	}
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ESCAPED") {
		t.Errorf("the same code does not work outside of the sandbox either, so it shows nothing: %s %v", out, err)
	}
}

// TestDescriptors shows that nothing that the provider has open gets into a sandbox.
func TestDescriptors(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap)
	// Opened as a careless program would: inherited by every child.
	fd, err := syscall.Open("/", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd) //nolint:errcheck // a test
	k := workspacetest.New(t, Factory())
	sb := k.Sandbox(t, sandboxcore.Policy{})
	o := workspacetest.Run(t.Context(), sb, sandboxcore.RunRequest{
		Kind: sandboxcore.RunCommand, Argv: []string{"/usr/bin/python3", "-c", "import os; d = os.listdir('/proc/self/fd'); print(sorted(x for x in d if os.path.exists('/proc/self/fd/' + x)))"},
	})
	o.Want(t, "['0', '1', '2']")
}

// TestUsersOfRoot shows that what root starts does not run as root, and that sandboxes are apart even without their
// namespaces.
func TestUsersOfRoot(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap, testenv.Root)
	k := workspacetest.New(t, Factory())
	a, b := k.Sandbox(t, sandboxcore.Policy{}), k.Sandbox(t, sandboxcore.Policy{})
	uid := func(sb sandboxcore.ManagedSandbox) int {
		n, err := strconv.Atoi(sb.Info().Details["uid"])
		if err != nil || n < firstUID || n > lastUID {
			t.Fatalf("details %v", sb.Info().Details)
		}
		return n
	}
	if uid(a) == uid(b) {
		t.Error("two sandboxes share a user")
	}
	workspacetest.Shell(b, "echo secret > secret && chmod 777 . secret").Want(t, "")
	as := func(uid int, command ...string) error {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(uid)}
		return cmd.Run()
	}
	if err := as(uid(b), "cat", k.Dir(b)+"/workspace/secret"); err != nil {
		t.Errorf("a sandbox's user cannot read its own files: %v", err)
	}
	for _, path := range []string{k.Dir(b) + "/workspace/secret", k.Dir(b) + "/marker.json", k.Dir(a) + "/marker.json", k.Dir(a) + "/env.json"} {
		if as(uid(a), "cat", path) == nil {
			t.Errorf("the user of one sandbox can read %s", path)
		}
	}
	if as(uid(a), "ls", filepath.Dir(k.Dir(a))) == nil || as(uid(a), "ls", k.Dir(a)) == nil {
		t.Error("the user of a sandbox can list the data directory")
	}
	n := workspacetest.Number()
	done := make(chan workspacetest.Outcome, 1)
	go func() { done <- workspacetest.Shell(a, "sleep "+n) }()
	workspacetest.Eventually(t, "the run started", func() bool { return len(workspacetest.Processes(n)) > 0 })
	for _, pid := range workspacetest.Processes(n) {
		if owner, _ := ownerOf(pid); int(owner) != uid(a) {
			t.Errorf("process %d belongs to %d", pid, owner)
		}
	}
	if all := processesOf(uid(a)); len(all) < 3 {
		t.Errorf("bwrap, the helper and the program should all belong to the sandbox's user: %v", all)
	}
	if err := a.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	<-done
	workspacetest.Eventually(t, "no process of the sandbox's user is left", func() bool { return len(processesOf(uid(a))) == 0 })
}

func TestUsersAreNotGivenTwice(t *testing.T) {
	var taken []int
	for range 50 {
		uid, err := allocateUID(taken)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(taken, uid) || uid < firstUID || uid > lastUID {
			t.Fatal(fmt.Sprint(uid, " was given before or is out of range"))
		}
		taken = append(taken, uid)
	}
}
