//go:build unix

package ssmpeer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Own makes a machine one of its own: it has its own processes, users and /tmp, which no other machine sees. That needs
// root, and unshare, nsenter and setpriv of util-linux. Everything else is that of the computer that the tests run on.
type Own struct {
	// Users are made with ids from FirstUser on, in this order, each with a group of the same id and no password.
	Users []string
	// Agent is the user that the agent runs as, one of Users; empty: root.
	Agent string
	// Sudoers is the content of /etc/sudoers.
	Sudoers string
	// Missing are programs that it does not have.
	Missing []string
}

// FirstUser is the id of the first user of a machine of its own.
const FirstUser = 4001

// ErrNoTools says that this computer cannot make a machine of its own.
var ErrNoTools = errors.New("unshare, nsenter and setpriv are needed, and root")

// house is a machine of its own that runs: an init process in namespaces, and the directory that the agent works in.
type house struct {
	own  Own
	init *exec.Cmd
	pid  int
	dir  string
	hold io.Closer
}

// inside is where the machine sees the agent's directory.
const inside = "/mnt"

// setUp becomes the init process: a shell that waits for a child also waits for those that nobody else waits for.
const setUp = `set -e; dir=$1
mount --bind "$dir/run" ` + inside + `
for f in passwd group shadow sudoers; do mount --bind "$dir/$f" "/etc/$f" 2>/dev/null || [ $f = sudoers ]; done
shift; for f; do if f=$(command -v "$f"); then mount --bind /dev/null "$f"; fi; done
mount -t tmpfs -o mode=1777 tmpfs /tmp
echo ready
cat
exit 0`

func (p *Peer) build(own Own) (*house, error) {
	for _, tool := range []string{"unshare", "nsenter", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil || os.Getuid() != 0 {
			return nil, ErrNoTools
		}
	}
	dir, err := os.MkdirTemp("", "ssmpeer-own-")
	if err != nil {
		return nil, err
	}
	h := &house{own: own, dir: dir}
	accounts, group, shadow := "root:x:0:0::/root:/bin/sh\n", "root:x:0:\n", "root:*:19000:0:99999:7:::\n"
	for i, u := range own.Users {
		accounts += fmt.Sprintf("%s:x:%d:%d::/tmp/home-%s:/bin/sh\n", u, FirstUser+i, FirstUser+i, u)
		group += fmt.Sprintf("%s:x:%d:\n", u, FirstUser+i)
		shadow += u + ":*:19000:0:99999:7:::\n"
	}
	for name, content := range map[string]string{"passwd": accounts, "group": group, "shadow": shadow, "sudoers": own.Sudoers} {
		mode := os.FileMode(0o644)
		if name == "shadow" || name == "sudoers" {
			mode = 0o400
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), mode); err != nil { // #nosec G306 -- what these files have everywhere
			return nil, err
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "run"), 0o755), os.Chmod(dir, 0o755)); err != nil { // #nosec G301 G302 -- other users go through
		return nil, err
	}
	// It lives as long as its standard input is open, and --kill-child ends it with unshare.
	argv := append([]string{"--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", setUp, "sh", dir}, own.Missing...)
	h.init = exec.Command("unshare", argv...) //nolint:noctx // #nosec G204 -- Close ends it
	h.init.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", p.mark}
	var said strings.Builder
	h.init.Stderr = &said
	stdin, err := h.init.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := h.init.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := h.init.Start(); err != nil {
		return nil, err
	}
	h.hold = stdin
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != "ready\n" {
		h.close()
		return nil, fmt.Errorf("the machine did not start: %w, %q, %s", err, line, said.String())
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", h.init.Process.Pid, h.init.Process.Pid))
	if err == nil {
		h.pid, err = strconv.Atoi(strings.TrimSpace(string(children)))
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func (h *house) close() {
	_ = h.hold.Close()
	_ = h.init.Process.Kill()
	_ = h.init.Wait()
	_ = os.RemoveAll(h.dir)
}

func (h *house) idOf(user string) int {
	for i, u := range h.own.Users {
		if u == user {
			return FirstUser + i
		}
	}
	return 0
}

// command is a program in the machine, as one of its users (empty: root).
func (h *house) command(ctx context.Context, user string, argv ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", h.enter(user, argv...)...) // #nosec G204 -- a test's own
}

func (h *house) enter(user string, argv ...string) []string {
	id := strconv.Itoa(h.idOf(user))
	enter := []string{"--target", strconv.Itoa(h.pid), "--mount", "--pid", "--", "setpriv", "--reuid", id, "--regid", id, "--clear-groups"}
	return append(enter, argv...)
}

// Sees runs a shell text as root in a machine of its own, for tests that look around there.
func (m *Machine) Sees(ctx context.Context, text string) (string, error) {
	cmd := m.house.command(ctx, "", "sh", "-c", text)
	cmd.Env = []string{"PATH=" + m.Path}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
