package docker

import (
	"fmt"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

func allow(p *sandboxcore.Profile) { p.Policy.NetworkEgress = sandboxcore.NetworkAllow }

func settings(kv ...any) func(*sandboxcore.Profile) {
	return func(p *sandboxcore.Profile) {
		for i := 0; i < len(kv); i += 2 {
			k, ok := kv[i].(string)
			if !ok {
				panic("settings come in pairs")
			}
			p.Settings[k] = kv[i+1]
		}
	}
}

// bridgeListener listens on this host's address of the engine's bridge, and gives the address.
func bridgeListener(t *testing.T, e *endpoint) string {
	t.Helper()
	n, err := e.cli.NetworkInspect(t.Context(), "bridge", client.NetworkInspectOptions{})
	if err != nil || len(n.Network.IPAM.Config) == 0 {
		t.Fatalf("no bridge: %v", err)
	}
	gateway := n.Network.IPAM.Config[0].Gateway
	if !gateway.IsValid() { // an engine that chose the network itself need not say so: it takes the first address
		gateway = n.Network.IPAM.Config[0].Subnet.Masked().Addr().Next()
	}
	l, err := net.Listen("tcp", net.JoinHostPort(gateway.String(), "0"))
	if err != nil {
		testenv.Skip(t, testenv.Docker, "not on the engine's host: "+err.Error(), "run the tests where the engine runs")
	}
	t.Cleanup(func() { l.Close() }) //nolint:errcheck // a test
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("hello")) //nolint:errcheck // a test
			c.Close()                //nolint:errcheck // a test
		}
	}()
	return l.Addr().String()
}

// The same socket connects under allow and cannot under deny.
func TestEnforceNetwork(t *testing.T) {
	e := engine(t)
	host, port, _ := strings.Cut(bridgeListener(t, e), ":")
	code := fmt.Sprintf("import socket\ns=socket.create_connection((%q,%s),5)\nprint(s.recv(5).decode())", host, port)
	t.Run("allow connects", func(t *testing.T) {
		if got := python(t, create(t, e, profile("python", allow)), code).ok(t); got != "hello\n" {
			t.Fatalf("got %q", got)
		}
	})
	t.Run("deny cannot connect", func(t *testing.T) {
		o := python(t, create(t, e, profile("python")), code)
		if o.err != nil || o.ExitCode == 0 || !strings.Contains(o.stderr, "unreachable") {
			t.Fatalf("exit %d, %v, %s", o.ExitCode, o.err, o.stderr)
		}
	})
	t.Run("deny has only loopback", func(t *testing.T) {
		if got := python(t, create(t, e, profile("python")), "import os;print(*sorted(os.listdir('/sys/class/net')))").ok(t); strings.TrimSpace(got) != "lo" {
			t.Fatalf("interfaces: %s", got)
		}
	})
}

func TestEnforceUserDefinedNetwork(t *testing.T) {
	e := engine(t)
	name := "agentkernel-test-" + randomHex()
	n, err := e.cli.NetworkCreate(t.Context(), name, client.NetworkCreateOptions{Driver: "bridge"})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("joined", func(t *testing.T) {
		s := create(t, e, profile("python", allow, settings(keyNetwork, name)))
		r, err := e.cli.ContainerInspect(t.Context(), s.info.NativeID, client.ContainerInspectOptions{})
		if err != nil || r.Container.NetworkSettings.Networks[name] == nil {
			t.Fatalf("not in the network: %v", err)
		}
	})
	if _, err := e.cli.NetworkRemove(t.Context(), n.ID, client.NetworkRemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	// The container exists by then: the caller destroys it.
	var made *sandboxcore.SandboxInfo
	_, err = e.Create(t.Context(), request(profile("python", allow, settings(keyNetwork, name))), func(i sandboxcore.SandboxInfo) { made = &i })
	refused(t, err, sandboxcore.CodeProvision, "network")
	if made != nil {
		s, err := e.Find(t.Context(), made.NativeID, true)
		if err != nil {
			t.Fatal(err)
		}
		if s.Info().Status != sandboxcore.StatusStopped {
			t.Errorf("status %s", s.Info().Status)
		}
		if err := s.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func fsWrite(paths ...string) func(*sandboxcore.Profile) {
	return func(p *sandboxcore.Profile) { p.Policy.FSAllowWrite = paths }
}

// Writing works in exactly the listed paths, for root and for an image's own user, on volumes and in memory, through
// programs and through the file operations.
func TestEnforceWritablePaths(t *testing.T) {
	e := engine(t)
	for _, image := range []string{"python", "user"} {
		for _, workspace := range []string{workspaceVolume, workspaceMemory} {
			t.Run(image+" "+workspace, func(t *testing.T) {
				t.Parallel()
				s := create(t, e, profile(image, fsWrite("/workspace", "/tmp", "/tmp/below", "/srv/new"), settings(keyWorkspace, workspace)))
				got := python(t, s, `
import os
def can(p):
    try:
        with open(p+"/x","w") as f: f.write("x")
        return True
    except OSError as e: return e.strerror
for p in ["/workspace","/tmp","/srv/new","/","/etc","/srv","/var/tmp","/root","/home/agent","/.agentkernel","/usr/bin"]:
    print(p, can(p))
open("/workspace/prog","w").write("#!/bin/sh\necho runs\n"); os.chmod("/workspace/prog",0o755)
os.system("/workspace/prog")
`).ok(t)
				for line := range strings.SplitSeq(strings.TrimSpace(got), "\n") {
					path, result, _ := strings.Cut(line, " ")
					switch {
					case line == "runs":
					case path == "/workspace" || path == "/tmp" || path == "/srv/new":
						if result != "True" {
							t.Errorf("%s should be writable: %s", path, result)
						}
					case result == "True" || (image == "python" && result != "Read-only file system" && result != "No such file or directory"):
						t.Errorf("%s: %s", path, result)
					}
				}
				if !strings.Contains(got, "runs") {
					t.Error("a program in the workspace cannot be executed")
				}
				if err := s.WriteFile(t.Context(), "/workspace/a/b", []byte("in"), 0o640); err != nil {
					t.Error(err)
				}
				content, mode, err := s.ReadFile(t.Context(), "/workspace/a/b", 10)
				if err != nil || string(content) != "in" || mode.Perm() != 0o640 {
					t.Errorf("%q %v %v", content, mode, err)
				}
				refused(t, s.WriteFile(t.Context(), "/etc/new", []byte("out"), 0o600), sandboxcore.CodeOperation)
			})
		}
	}
}

// A path that is not listed is not writable even if it is the workspace.
func TestEnforceWorkspaceOnlyWhenListed(t *testing.T) {
	e := engine(t)
	for _, image := range []string{"python", "user"} {
		s := create(t, e, profile(image, fsWrite("/data")))
		got := python(t, s, `
import os
print(os.getcwd())
for p in ["/workspace/x","/data/x"]:
    try: open(p,"w"); print(p,"yes")
    except OSError: print(p,"no")
`).ok(t)
		if got != "/workspace\n/workspace/x no\n/data/x yes\n" {
			t.Errorf("%s: %q", image, got)
		}
	}
}

func TestEnforceMemoryWorkspaceIsSized(t *testing.T) {
	e := engine(t)
	s := create(t, e, profile("python", settings(keyWorkspace, workspaceMemory, keyWorkspaceSizeMB, 8.0)))
	o := python(t, s, "open('big','wb').write(b'x'*(9<<20))")
	if o.ExitCode == 0 || !strings.Contains(o.stderr, "No space left") {
		t.Fatalf("exit %d %s", o.ExitCode, o.stderr)
	}
	python(t, s, "open('big','wb').write(b'x'*(4<<20))").ok(t)
}

func memory(mb int64) func(*sandboxcore.Profile) {
	return func(p *sandboxcore.Profile) { p.Policy.MemoryMB = &mb }
}

func cpu(cores float64) func(*sandboxcore.Profile) {
	return func(p *sandboxcore.Profile) { p.Policy.CPU = &cores }
}

const eat = "b=bytearray()\nfor _ in range(%d): b+=b'x'*(1<<20)\nprint(len(b)>>20)"

func TestEnforceMemory(t *testing.T) {
	e := engine(t)
	small, large := create(t, e, profile("python", memory(64))), create(t, e, profile("python", memory(400)))
	o := python(t, small, fmt.Sprintf(eat, 150))
	if o.err != nil || o.ExitCode != 137 || !o.OOMKilled {
		t.Fatalf("exit %d, oom %t, %v", o.ExitCode, o.OOMKilled, o.err)
	}
	if got := python(t, large, fmt.Sprintf(eat, 150)).ok(t); got != "150\n" {
		t.Fatalf("the same allocation under a larger limit: %q", got)
	}
	// A program's own 137 is not taken for it.
	if o := python(t, small, "raise SystemExit(137)"); o.err != nil || o.OOMKilled || o.ExitCode != 137 {
		t.Fatalf("own 137: oom %t, %v", o.OOMKilled, o.err)
	}
	if got := python(t, small, "print('alive')").ok(t); got != "alive\n" {
		t.Fatal(got)
	}
	r, err := e.cli.ContainerInspect(t.Context(), small.info.NativeID, client.ContainerInspectOptions{})
	if err != nil || r.Container.HostConfig.MemorySwap != r.Container.HostConfig.Memory {
		t.Fatalf("memory+swap differs from memory: %v", err)
	}
}

// burn measures the processor time that a busy loop gets in a second of wall clock.
const burn = `
import time,threading,os
end=time.monotonic()+1.5
def work():
    while time.monotonic()<end: pass
c0=time.process_time()
work()
print((time.process_time()-c0)/1.5)
`

const throttled = `
import glob
for p in ["/sys/fs/cgroup/cpu/cpu.stat","/sys/fs/cgroup/cpu,cpuacct/cpu.stat","/sys/fs/cgroup/cpu.stat"]:
    try:
        for l in open(p):
            if l.startswith("nr_throttled"): print(l.split()[1])
        break
    except OSError: pass
`

func TestEnforceCPU(t *testing.T) {
	e := engine(t)
	slow := create(t, e, profile("python", cpu(0.25)))
	share, err := strconv.ParseFloat(strings.TrimSpace(python(t, slow, burn).ok(t)), 64)
	if err != nil || share > 0.4 {
		t.Errorf("a quarter of a processor gave %.2f (%v)", share, err)
	}
	if n, err := strconv.Atoi(strings.TrimSpace(python(t, slow, throttled).ok(t))); err != nil || n == 0 {
		t.Errorf("nothing was throttled: %d %v", n, err)
	}
	free := create(t, e, profile("python"))
	python(t, free, burn).ok(t)
	if got := strings.TrimSpace(python(t, free, throttled).ok(t)); got != "0" {
		t.Errorf("throttled without a limit: %s", got)
	}
}

func TestEnforceLiveUpdate(t *testing.T) {
	e := engine(t)
	s := create(t, e, profile("python", memory(64), cpu(0.25)))
	limits := "import glob\nprint(open((glob.glob('/sys/fs/cgroup/memory/memory.limit_in_bytes')+['/sys/fs/cgroup/memory.max'])[0]).read().strip())"
	if got := python(t, s, limits).ok(t); got != "67108864\n" {
		t.Fatal(got)
	}
	if err := s.Update(t.Context(), profile("python", memory(256), cpu(1)), s.info.Marks); err != nil {
		t.Fatal(err)
	}
	if got := python(t, s, limits).ok(t); got != "268435456\n" {
		t.Fatalf("raised: %s", got)
	}
	python(t, s, fmt.Sprintf(eat, 100)).ok(t)
	if err := s.Update(t.Context(), profile("python", memory(64)), s.info.Marks); err != nil {
		t.Fatal(err)
	}
	if o := python(t, s, fmt.Sprintf(eat, 100)); !o.OOMKilled {
		t.Fatalf("lowered: exit %d %v", o.ExitCode, o.err)
	}
	// The labels still say what the container was made with; the engine knows better.
	live := func(wantMemory *int64, wantCPU *float64) {
		t.Helper()
		p := profile("python", memory(64), cpu(0.25))
		if err := e.ReadLive(t.Context(), s.info.NativeID, p); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(p.Policy.MemoryMB, wantMemory) || !reflect.DeepEqual(p.Policy.CPU, wantCPU) {
			t.Errorf("the limits are read as memory %v, cpu %v", p.Policy.MemoryMB, p.Policy.CPU)
		}
	}
	live(new(int64(64)), nil)
	if err := s.Update(t.Context(), profile("python", memory(96), cpu(0.5)), s.info.Marks); err != nil {
		t.Fatal(err)
	}
	live(new(int64(96)), new(0.5))
	// Lifting a limit.
	if err := s.Update(t.Context(), profile("python"), s.info.Marks); err != nil {
		t.Fatal(err)
	}
	python(t, s, fmt.Sprintf(eat, 100)).ok(t)
	live(nil, nil)
}

// An engine that cannot limit drops what it is asked for, with a warning only: that is no change made since.
func TestLimitThatTheEngineDropped(t *testing.T) {
	f := newFake(t)
	id := strings.Repeat("a", 64)
	f.on("GET", "/containers/"+id+"/json", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, map[string]any{"Id": id, "HostConfig": map[string]any{"Memory": 0, "NanoCpus": 0}})
	})
	p := profile("python", memory(64), cpu(0.25))
	if err := f.endpoint(nil).ReadLive(t.Context(), id, p); err != nil {
		t.Fatal(err)
	}
	if *p.Policy.MemoryMB != 64 || *p.Policy.CPU != 0.25 {
		t.Errorf("memory %d, cpu %v", *p.Policy.MemoryMB, *p.Policy.CPU)
	}
	refused(t, f.endpoint(nil).ReadLive(t.Context(), strings.Repeat("b", 64), p), sandboxcore.CodeGone)
}

func TestEnforcePids(t *testing.T) {
	e := engine(t)
	s := create(t, e, profile("python", settings(keyPidsLimit, 24.0)))
	got := python(t, s, `
import os,time
n=0
try:
    while n<100:
        if os.fork()==0: time.sleep(30); os._exit(0)
        n+=1
except BlockingIOError: pass
print(n<24)`).ok(t)
	if got != "True\n" {
		t.Fatal(got)
	}
	if got := shell(t, s, "echo alive").ok(t); got != "alive\n" {
		t.Fatal("the forks of a finished run are still there")
	}
}

// What hardens every sandbox, seen from the inside.
func TestEnforceHardening(t *testing.T) {
	e := engine(t)
	status := "import re\ns=open('/proc/self/status').read()\nfor k in ['CapEff','CapPrm','CapBnd','NoNewPrivs','Seccomp']: print(k, re.search(k+r':\\s*(\\S+)',s)[1])"
	if got := python(t, create(t, e, profile("python")), status).ok(t); got != "CapEff 0000000000000000\nCapPrm 0000000000000000\nCapBnd 0000000000000000\nNoNewPrivs 1\nSeccomp 2\n" {
		t.Errorf("default: %s", got)
	}
	got := python(t, create(t, e, profile("python", settings(keyCapAdd, []any{"CHOWN", "NET_BIND_SERVICE"}, keyNoNewPrivileges, false, keySeccompProfile, seccompUnconfined))), status).ok(t)
	if got != "CapEff 0000000000000401\nCapPrm 0000000000000401\nCapBnd 0000000000000401\nNoNewPrivs 0\nSeccomp 0\n" {
		t.Errorf("as the settings say: %s", got)
	}
	s := create(t, e, profile("python"))
	o := shell(t, s, `
mount -t tmpfs none /mnt 2>/dev/null && echo mounted
mknod /workspace/sda b 8 0 2>/dev/null && echo mknod
chown 1:1 /workspace 2>/dev/null && echo chown
test -S /var/run/docker.sock && echo socket
kill -9 1; echo pid 1 survives
`)
	if o.stdout != "pid 1 survives\n" {
		t.Errorf("%q %q %v", o.stdout, o.stderr, o.err)
	}
}

func TestEnforceUser(t *testing.T) {
	e := engine(t)
	for user, want := range map[string]string{"": "0:0", "1000": "1000:0", "1234:4321": "1234:4321", "nobody": "65534:65534", "daemon:mail": "1:8"} {
		t.Run(user, func(t *testing.T) {
			p := profile("python")
			if user != "" {
				p.Settings[keyUser] = user
			}
			s := create(t, e, p)
			got := python(t, s, "import os\nst=os.stat('/workspace')\nopen('/workspace/mine','w')\nprint(f'{os.getuid()}:{os.getgid()} {st.st_uid}:{st.st_gid}')").ok(t)
			if strings.TrimSpace(got) != want+" "+want {
				t.Errorf("runs as and owns %s, want %s", got, want)
			}
		})
	}
	p := profile("python", settings(keyUser, "nosuchuser"))
	var made *sandboxcore.SandboxInfo
	_, err := e.Create(t.Context(), request(p), func(i sandboxcore.SandboxInfo) { made = &i })
	refused(t, err, sandboxcore.CodeProvision, "nosuchuser")
	if made != nil {
		s, err := e.Find(t.Context(), made.NativeID, true)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Each operation that a capability promises, in its plainest form.
func TestOperations(t *testing.T) {
	e := engine(t)
	s := create(t, e, profile("python"), func(r *sandboxcore.CreateRequest) { r.Env = map[string]string{"FROM_SANDBOX": "a", "BOTH": "sandbox"} })
	ctx := t.Context()
	t.Run("shell", func(t *testing.T) {
		if got := shell(t, s, "cd /; echo $(pwd) $FROM_SANDBOX").ok(t); got != "/ a\n" {
			t.Fatalf("%q", got)
		}
	})
	t.Run("stdin", func(t *testing.T) {
		o := execute(ctx, s, sandboxcore.RunRequest{Argv: []string{"cat"}, Stdin: []byte("in\x00put")})
		if o.ok(t) != "in\x00put" {
			t.Fatalf("%q", o.stdout)
		}
	})
	t.Run("no stdin", func(t *testing.T) {
		if o := execute(ctx, s, sandboxcore.RunRequest{Argv: []string{"cat"}}); o.ok(t) != "" {
			t.Fatalf("%q", o.stdout)
		}
	})
	t.Run("split output", func(t *testing.T) {
		o := shell(t, s, "echo out; echo err >&2; exit 3")
		if o.err != nil || o.stdout != "out\n" || o.stderr != "err\n" || o.ExitCode != 3 {
			t.Fatalf("%+v", o)
		}
	})
	t.Run("environment", func(t *testing.T) {
		o := execute(ctx, s, sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("echo $FROM_SANDBOX $BOTH $RUN"), Env: map[string]string{"BOTH": "run", "RUN": "b"}})
		if o.ok(t) != "a run b\n" {
			t.Fatalf("%q", o.stdout)
		}
	})
	t.Run("working directory", func(t *testing.T) {
		shell(t, s, "mkdir -p sub").ok(t)
		o := execute(ctx, s, sandboxcore.RunRequest{Argv: []string{"pwd"}, WorkingDirectory: "sub"})
		if o.ok(t) != "/workspace/sub\n" {
			t.Fatalf("%q", o.stdout)
		}
		o = execute(ctx, s, sandboxcore.RunRequest{Argv: []string{"pwd"}, WorkingDirectory: "/no/such"})
		refused(t, o.err, sandboxcore.CodeValue, "/no/such", "Nothing ran")
	})
	t.Run("streaming", func(t *testing.T) {
		// The program waits for what the test does only after the first output has arrived.
		w := &signalWriter{first: make(chan struct{})}
		done := make(chan error, 1)
		go func() {
			_, err := s.Run(ctx, sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("echo one; while ! test -e go; do sleep 0.05; done"), Timeout: time.Minute}, w, nil)
			done <- err
		}()
		<-w.first
		if err := s.WriteFile(ctx, "go", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
	t.Run("attach", func(t *testing.T) {
		shell(t, s, "echo kept > file").ok(t)
		other := dial(t, nil, testGetenv)
		again, err := other.Find(ctx, s.info.NativeID, true)
		if err != nil {
			t.Fatal(err)
		}
		if got := shell(t, again, "cat file").ok(t); got != "kept\n" {
			t.Fatal(got)
		}
		if i := again.Info(); i.Marks.Request != s.info.Marks.Request || i.Endpoint != s.info.Endpoint || !i.CreatedAt.Equal(s.info.CreatedAt) || i.Details["image_id"] != s.info.Details["image_id"] {
			t.Errorf("another look: %+v, at create %+v", i, s.info)
		}
	})
	t.Run("1 MiB of code", func(t *testing.T) {
		code := "x='" + strings.Repeat("y", 1<<20) + "'\nprint(len(x))"
		if got := python(t, s, code).ok(t); got != "1048576\n" {
			t.Fatal(got)
		}
	})
	t.Run("output that is no UTF-8", func(t *testing.T) {
		if got := python(t, s, "import sys; sys.stdout.buffer.write(bytes(range(256)))").ok(t); len(got) != 256 || got[255] != 0xff {
			t.Fatalf("%q", got)
		}
	})
	t.Run("background child that holds the output", func(t *testing.T) {
		begin := time.Now()
		if got := shell(t, s, "sleep 5 & echo ok").ok(t); got != "ok\n" || time.Since(begin) > time.Second {
			t.Fatalf("%q after %s", got, time.Since(begin))
		}
		if got := shell(t, s, countProcesses("sleep")).ok(t); got != "0\n" {
			t.Fatalf("%s survive", got)
		}
	})
	t.Run("background kept", func(t *testing.T) {
		o := execute(ctx, s, sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("sleep 313 & echo ok"), KeepBackground: true})
		if o.ok(t) != "ok\n" {
			t.Fatal(o.stdout)
		}
		if got := shell(t, s, countProcesses("sleep")).ok(t); got != "1\n" {
			t.Fatalf("%s run", got)
		}
	})
	t.Run("files", func(t *testing.T) {
		_, _, err := s.ReadFile(ctx, "absent", 10)
		if !isMissing(err) {
			t.Fatalf("absent: %v", err)
		}
		refused(t, err, sandboxcore.CodeOperation, "no such file")
		if err := s.RemoveFile(ctx, "absent"); err != nil {
			t.Fatal(err)
		}
		if err := s.WriteFile(ctx, "large", make([]byte, 3<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err = s.ReadFile(ctx, "large", 1<<20)
		refused(t, err, sandboxcore.CodeOperation, "larger")
		if err := s.RemoveFile(ctx, "large"); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("packages can be installed", func(t *testing.T) {
		// No index is reachable: a wheel is what pip would have fetched.
		got := python(t, s, makeWheel+`
import subprocess,sys
subprocess.run([sys.executable,"-m","pip","install","--no-index","--quiet","--target","/workspace/pk","/workspace/ak_demo-1.0-py3-none-any.whl"],check=True,env={"HOME":"/workspace","PATH":"/usr/bin:/bin"})
sys.path.insert(0,"/workspace/pk")
import ak_demo
print(ak_demo.answer)`).ok(t)
		if got != "42\n" {
			t.Fatal(got)
		}
	})
	_ = testenv.Docker
}

const makeWheel = `
import zipfile
with zipfile.ZipFile("/workspace/ak_demo-1.0-py3-none-any.whl","w") as z:
    z.writestr("ak_demo.py","answer=42")
    z.writestr("ak_demo-1.0.dist-info/METADATA","Metadata-Version: 2.1\nName: ak-demo\nVersion: 1.0\n")
    z.writestr("ak_demo-1.0.dist-info/WHEEL","Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr("ak_demo-1.0.dist-info/RECORD","ak_demo.py,,\nak_demo-1.0.dist-info/METADATA,,\nak_demo-1.0.dist-info/WHEEL,,\nak_demo-1.0.dist-info/RECORD,,\n")
`
