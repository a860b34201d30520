//go:build linux

package e2bpeer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	stateRunning = "running"
	statePaused  = "paused"
)

// userID is the uid and gid of "user" in sandboxes of a peer that runs as root.
const userID = 1000

// box is one sandbox: a directory for its files, and where the peer is root a process that holds its namespaces.
type box struct {
	p        *Peer
	id       string
	template string
	metadata map[string]string
	envs     map[string]string
	token    string
	traffic  string
	started  time.Time
	net      *boxNet

	autoPause, autoResume bool

	// Under the peer's lock.
	state    string
	end      time.Time
	internet *bool
	network  *networkBody

	holder *exec.Cmd
	leash  io.WriteCloser

	// life ends with the sandbox, run with the next pause or the end: streams do not survive a pause.
	life       context.Context //nolint:containedctx // the life of an object, not of a call
	endLife    context.CancelFunc
	runMu      sync.Mutex
	run        context.Context //nolint:containedctx // as above
	cutStreams context.CancelFunc

	procs   processes
	kernels kernels
}

// setup makes the inside of the namespaces: files of its own under /home and /tmp, a /proc of its own.
const setup = `set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /home
mkdir /home/user
mount --bind "$1/home" /home/user
[ ! -e "$1/resolv.conf" ] || mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/tmp" /tmp
ip link set lo up
echo ready
while read -r line; do :; done
`

func (p *Peer) newBox(in createBody, secure bool) (*box, int, error) {
	b := &box{
		p: p, id: newID(), template: in.TemplateID, metadata: in.Metadata, envs: in.EnvVars, started: p.opt.Now(), state: stateRunning,
		autoPause: in.AutoPause, autoResume: in.AutoResume != nil && in.AutoResume.Enabled, internet: in.AllowInternetAccess, network: in.Network,
	}
	if p.opt.Cube {
		b.id = newToken()[:32]
	}
	b.end = b.started.Add(time.Duration(*in.Timeout) * time.Second)
	if secure {
		b.token = newToken()
	}
	if in.Network != nil && in.Network.AllowPublicTraffic != nil && !*in.Network.AllowPublicTraffic {
		b.traffic = newToken()
	}
	b.life, b.endLife = context.WithCancel(context.Background())
	b.run, b.cutStreams = context.WithCancel(b.life)
	b.procs.byPID = map[int]*process{}
	if !p.opt.Plain {
		if err := b.open(); err != nil {
			b.destroy()
			return nil, http.StatusInternalServerError, err
		}
	}
	p.mu.Lock()
	p.boxes[b.id] = b
	p.order = append(p.order, b.id)
	p.mu.Unlock()
	return b, 0, nil
}

func (b *box) open() error {
	dir := b.p.boxDir(b.id)
	for _, d := range []string{"home", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil { // #nosec G301 -- other users walk through it
			return err
		}
	}
	if err := os.Chmod(filepath.Join(dir, "tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	if !b.p.root {
		return nil
	}
	if err := os.Chown(filepath.Join(dir, "home"), userID, userID); err != nil {
		return err
	}
	if err := b.resolvConf(); err != nil {
		return err
	}
	b.holder = exec.CommandContext(b.life, "/bin/sh", "-c", setup, "sh", dir)
	b.holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC}
	b.holder.Env = []string{"PATH=" + defaultPath}
	out, err := b.holder.StdoutPipe()
	if err != nil {
		return err
	}
	if b.leash, err = b.holder.StdinPipe(); err != nil {
		return err
	}
	b.holder.Stderr = os.Stderr
	if err := b.holder.Start(); err != nil {
		return fmt.Errorf("start the namespaces: %w", err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		return fmt.Errorf("the namespaces did not come up: %q, %w", line, err)
	}
	return b.joinWorld()
}

// destroy ends every process of the sandbox and waits for them.
func (b *box) destroy() {
	b.procs.mu.Lock()
	b.procs.over = true
	b.procs.mu.Unlock()
	if b.holder == nil {
		b.signal(syscall.SIGKILL) // while parents are there by which children are found
	}
	b.endLife()
	if b.holder != nil && b.holder.Process != nil {
		b.signal(syscall.SIGKILL)
		_ = b.holder.Process.Kill()
		_ = b.leash.Close()
		_ = b.holder.Wait()
	} else {
		b.signal(syscall.SIGKILL)
	}
	b.procs.wait()
	b.leaveWorld()
	_ = os.RemoveAll(b.p.boxDir(b.id))
}

func (b *box) status() string {
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	return b.state
}

// pause stops every process where it is and cuts every stream. It reports whether it was running.
func (b *box) pause() bool {
	b.p.mu.Lock()
	was := b.state == stateRunning
	b.state = statePaused
	b.p.mu.Unlock()
	if !was {
		return false
	}
	b.runMu.Lock()
	b.cutStreams()
	b.runMu.Unlock()
	b.signal(syscall.SIGSTOP)
	return true
}

func (b *box) resume() bool {
	b.p.mu.Lock()
	was := b.state == statePaused
	b.state = stateRunning
	b.p.mu.Unlock()
	if !was {
		return false
	}
	b.runMu.Lock()
	b.run, b.cutStreams = context.WithCancel(b.life)
	b.runMu.Unlock()
	b.signal(syscall.SIGCONT)
	return true
}

func (b *box) runContext() context.Context {
	b.runMu.Lock()
	defer b.runMu.Unlock()
	return b.run
}

// signal reaches every process of the sandbox but its holder: those in its process namespace, or without root those that
// carry its id in their environment.
func (b *box) signal(sig syscall.Signal) {
	for range 50 {
		hit := false
		for _, pid := range b.members() {
			hit = syscall.Kill(pid, sig) == nil || hit
		}
		if !hit || sig != syscall.SIGKILL {
			return
		}
	}
}

func (b *box) members() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil || (b.holder == nil && b.p.root) {
		return nil
	}
	space := ""
	if b.holder != nil && b.holder.Process != nil {
		space, _ = os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", b.holder.Process.Pid))
		if space == "" {
			return nil
		}
	}
	var out []int
	children := map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if space != "" {
			if s, _ := os.Readlink("/proc/" + e.Name() + "/ns/pid"); s == space && pid != b.holder.Process.Pid && !zombie(e.Name()) {
				out = append(out, pid)
			}
			continue
		}
		children[parentOf(e.Name())] = append(children[parentOf(e.Name())], pid)
		env, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		if strings.Contains("\x00"+string(env), "\x00E2B_SANDBOX_ID="+b.id+"\x00") {
			out = append(out, pid)
		}
	}
	for i := 0; i < len(out); i++ { // those that cleared their environment are found by their ancestors
		for _, c := range children[out[i]] {
			if !slices.Contains(out, c) && !zombie(strconv.Itoa(c)) {
				out = append(out, c)
			}
		}
	}
	return out
}

func parentOf(pid string) int {
	status, _ := os.ReadFile("/proc/" + pid + "/status")
	_, rest, _ := strings.Cut(string(status), "\nPPid:\t")
	line, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.Atoi(line)
	return n
}

func zombie(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	return strings.HasPrefix(rest, "Z")
}

// inside calls f in the namespaces of the sandbox.
func (b *box) inside(f func() error) error {
	if b.holder == nil {
		return f()
	}
	return enter(b.holder.Process.Pid, []space{{"ipc", unix.CLONE_NEWIPC}, {"net", unix.CLONE_NEWNET}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}}, f)
}

// metrics is what the sandbox uses: its memory is really summed up.
func (b *box) metrics() map[string]any {
	used := 0
	for _, pid := range b.members() {
		statm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if fields := strings.Fields(string(statm)); len(fields) > 1 {
			pages, _ := strconv.Atoi(fields[1])
			used += pages * os.Getpagesize()
		}
	}
	return map[string]any{
		"timestampUnix": b.p.opt.Now().Unix(), "timestamp": b.p.opt.Now().UTC().Format(time.RFC3339), "cpuCount": 2, "cpuUsedPct": 1.5, "memUsed": used, "memTotal": 1 << 29,
		"memCache": 0, "diskUsed": 1 << 30, "diskTotal": 1 << 33,
	}
}

// user is an account inside.
type user struct {
	name, home string
	uid        int
}

var errNoUser = errors.New("no such user")

func (b *box) user(name string) (user, error) {
	if name == "" {
		name = "user"
	}
	switch {
	case name != "user" && name != "root":
		return user{}, errNoUser
	case !b.p.root:
		return user{name, filepath.Join(b.p.boxDir(b.id), "home"), os.Geteuid()}, nil
	case name == "root":
		return user{name, "/root", 0}, nil
	}
	return user{name, "/home/user", userID}, nil
}
