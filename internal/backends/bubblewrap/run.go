//go:build linux && (amd64 || arm64)

package bubblewrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/workspace"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/runhelper"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const (
	// setupWait bounds how long bwrap may take to make the namespaces.
	setupWait = 30 * time.Second
	// goneWait bounds how long the processes of a namespace may take to go after its first one was killed.
	goneWait = 10 * time.Second
)

// run is one bwrap with the run helper as PID 1 inside.
type run struct {
	conn    *runhelper.Conn
	group   group
	inGroup *users
	record  *workspace.Registration
	// inner is PID 1 of the sandbox as seen from outside; its end is the end of everything inside.
	inner *workspace.Run
	// before is the group's count of out-of-memory kills at the start; outOfMemory, set at the end, that it grew.
	before      int64
	outOfMemory bool
}

// start starts a helper inside the sandbox. It is held back before its first instruction until it is in the sandbox's
// control group and on record: so it is never without its limits, and never unknown to who destroys the sandbox.
func (s *sandbox) start(ctx context.Context, box *workspace.Sandbox) (_ *run, err error) {
	sealDescriptors()
	p, err := s.endpoint.program(ctx)
	if err != nil {
		return nil, err
	}
	var a arguments
	defer a.close()
	if err := s.arguments(&a, p, box); err != nil {
		return nil, err
	}
	blockR, blockW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer blockW.Close()
	infoR, infoW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, blockR.Close())
	}
	defer infoR.Close()
	a.add("--block-fd", a.fd(blockR), "--info-fd", a.fd(infoW), "--", helperPath, "run")

	var cmd *exec.Cmd
	conn, err := runhelper.StartProcess(ctx, p.path, a.args, func(c *exec.Cmd) {
		c.Env, c.Dir, c.ExtraFiles = cleanEnv(), "/", a.files
		if box.UID != workspace.NoUID {
			c.SysProcAttr.Credential = credential(box.UID)
		}
		cmd = c
	})
	if err != nil {
		return nil, err
	}
	_ = infoW.Close() // bwrap has it; the end of file is its end
	r := &run{conn: conn, group: s.endpoint.groups.group(box.ID, s.config.limits()), inGroup: &s.endpoint.inGroup}
	r.inGroup.enter(r.group.name)
	closeConn := conn.Close
	conn.Close = sync.OnceValue(func() error { return r.end(ctx, closeConn) })

	inner, ok, err := readInner(infoR)
	if err != nil {
		return nil, errors.Join(s.held(box, err), r.abort(cmd))
	}
	if !ok {
		// It ended before it had made a process: what it wrote is reported by the caller, who finds no helper.
		return r, nil
	}
	if one, err := workspace.RunOf(inner); err == nil {
		r.inner = &one
	}
	if r.record, err = box.Register(cmd.Process.Pid); err != nil {
		return nil, errors.Join(err, r.abort(cmd))
	}
	if err := s.confine(r, cmd.Process.Pid, inner); err != nil {
		return nil, errors.Join(s.held(box, err), r.abort(cmd))
	}
	if _, err := blockW.Write([]byte{0}); err != nil {
		return nil, errors.Join(s.held(box, err), r.abort(cmd))
	}
	return r, nil
}

// arguments builds the command line of a run.
func (s *sandbox) arguments(a *arguments, p program, box *workspace.Sandbox) error {
	fd, err := unix.Open(box.Workspace(), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return s.held(box, fmt.Errorf("the workspace: %w", err))
	}
	own := bind{source: os.NewFile(uintptr(fd), box.Workspace()), dest: sandboxcore.Workspace, write: true}
	a.keep(own.source)
	binds, err := s.endpoint.guard(box.UID).openAll(s.config.FSRead, s.config.FSWrite)
	if err != nil {
		return err
	}
	for _, b := range binds {
		a.keep(b.source)
	}
	return view{workspace: &own, network: s.config.Network, extra: binds}.build(a, p)
}

func (s *sandbox) held(box *workspace.Sandbox, err error) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeProvision, Attempted: "the run could not be started", Object: box.Object(), Err: err, Said: "Nothing ran.",
		Next: "Check the data directory and the control groups of this machine (data source agentkernel_capabilities with probe = true).",
	}
}

// readInner reads which process is PID 1 of the new namespace. false: bwrap ended before.
func readInner(info *os.File) (int, bool, error) {
	if err := info.SetReadDeadline(time.Now().Add(setupWait)); err != nil {
		return 0, false, err
	}
	var answer struct {
		Child int `json:"child-pid"`
	}
	err := json.NewDecoder(io.LimitReader(info, 4096)).Decode(&answer)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("bwrap made no sandbox within %s: %w", setupWait, err)
	case answer.Child <= 1:
		return 0, false, errors.New("bwrap named no process")
	}
	return answer.Child, true, nil
}

// confine puts the processes of a run, both still held back, under the sandbox's limits.
func (s *sandbox) confine(r *run, pids ...int) error {
	if err := r.group.join(pids...); err != nil {
		return fmt.Errorf("its control group: %w", err)
	}
	r.before = r.group.oomKills()
	if !s.endpoint.groups[ctlPIDs].usable() && limitsPerNamespace() {
		// The next best: counted for each run by itself. Only what may be changed without privileges is asked for.
		limit := uint64(s.config.PIDs)
		err := unix.Prlimit(pids[len(pids)-1], unix.RLIMIT_NPROC, &unix.Rlimit{Cur: limit, Max: limit}, nil)
		if err != nil && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("its limit of processes: %w", err)
		}
	}
	return nil
}

// limitsPerNamespace reports whether the kernel counts the processes of a user for each user namespace (5.14). Before,
// all processes of the user on the machine count, and the limit could hold back the first one already.
var limitsPerNamespace = sync.OnceValue(func() bool {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return false
	}
	var major, minor int
	if n, _ := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); n != 2 {
		return false
	}
	return major > 5 || major == 5 && minor >= 14
})

// abort ends a run that has not begun.
func (r *run) abort(cmd *exec.Cmd) error {
	_ = cmd.Process.Kill()
	return r.conn.Close()
}

// end closes the streams, which ends whatever still runs, and returns when nothing of the run is there any more.
func (r *run) end(ctx context.Context, closeConn func() error) error {
	err := closeConn()
	r.outOfMemory = r.group.oomKills() > r.before
	return errors.Join(err, sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		err := r.awaitGone(ctx)
		if r.record != nil && err == nil {
			r.record.Done()
		}
		if !r.inGroup.leave(r.group.name) {
			return err
		}
		// A run of another process keeps the group busy, and removes it in its turn.
		if rest := r.group.remove(ctx); rest != nil && len(r.group.processes()) == 0 {
			err = errors.Join(err, rest)
		}
		return err
	}))
}

// awaitGone waits for PID 1 of the namespace to go. When bwrap outside was killed, the kernel kills it, but only after
// bwrap has been waited for.
func (r *run) awaitGone(ctx context.Context) error {
	if r.inner == nil {
		return nil
	}
	for end := time.Now().Add(goneWait); r.inner.Alive(); {
		if err := r.inner.Signal(syscall.SIGKILL); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("process %d of the run does not end", r.inner.PID)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// endRuns kills every process of a sandbox: those of this provider, those on record, those in its control groups and,
// if it has a user of its own, those of that user. The groups go last.
func (e *endpoint) endRuns(box *workspace.Sandbox) workspace.EndRuns {
	g := e.groups.group(box.ID, limits{})
	return func(ctx context.Context, runs []workspace.Run) (int, error) {
		left := e.active.Cancel(box.ID)
		for _, pid := range g.processes() {
			if one, err := workspace.RunOf(pid); err == nil {
				runs = append(runs, one)
			}
		}
		if e.ownUIDs && box.UID >= firstUID && box.UID <= lastUID {
			runs = append(runs, processesOf(box.UID)...)
		}
		for _, one := range runs {
			if !one.Alive() {
				continue
			}
			left++
			if err := one.Signal(syscall.SIGKILL); err != nil {
				return left, err
			}
		}
		if left == 0 {
			return 0, g.remove(ctx)
		}
		return left, nil
	}
}

// sealDescriptors keeps what the provider itself inherited (a descriptor of a directory leads out of any view) from
// being inherited by sandboxes. Go closes only its own.
var sealDescriptors = sync.OnceFunc(func() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(filepath.Base(e.Name())); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
})
