package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Run is a process that supervises a run in a sandbox, started by this or by another provider process.
type Run struct {
	PID int
	// Start is when the process started, in clock ticks since the machine did. It tells the process from a later one
	// with the same id.
	Start uint64
}

var runPattern = regexp.MustCompile(`^([0-9]+)-([0-9]+)$`)

// Registration is the record of one run.
type Registration struct{ file string }

// Register records a process that is about to run code in the sandbox and is still held back. CodeGone: the sandbox
// is being destroyed, and the process must be ended without having run anything.
//
// The record is written before the check, and Destroy closes the sandbox before it looks for records: whichever comes
// first, either the run sees that the sandbox is closing or Destroy sees the run.
func (b *Sandbox) Register(pid int) (*Registration, error) {
	run, err := RunOf(pid)
	if err != nil {
		return nil, b.notRegistered(err)
	}
	r := &Registration{file: filepath.Join(b.Dir(), runsDir, fmt.Sprintf("%d-%d", run.PID, run.Start))}
	// The boot is in the record because ticks begin again with each.
	if err := os.WriteFile(r.file, []byte(bootID()), 0o600); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, b.gone()
		}
		return nil, b.notRegistered(err)
	}
	if _, err := os.Lstat(filepath.Join(b.Dir(), closingFile)); !errors.Is(err, fs.ErrNotExist) {
		r.Done()
		return nil, b.Closing()
	}
	// That it is not closing is true only of a directory that is still there: Destroy may have removed it since.
	if _, err := os.Lstat(r.file); err != nil {
		return nil, b.gone()
	}
	return r, nil
}

func (b *Sandbox) notRegistered(err error) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeProvision, Attempted: "could not start a run", Object: b.Object(), Err: err,
		Next: "Nothing was run. Make the data directory writable and try again.",
	}
}

// Closing is the error of a run that meets a Destroy.
func (b *Sandbox) Closing() error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeGone, Attempted: "the sandbox takes no run any more", Object: b.Object(),
		Said: "it is being destroyed.", Next: "Apply again to create it.",
	}
}

// Done removes the record.
func (r *Registration) Done() { _ = os.Remove(r.file) }

func (b *Sandbox) close() error {
	f, err := os.OpenFile(filepath.Join(b.Dir(), closingFile), os.O_WRONLY|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// Runs lists the recorded runs whose process is alive.
func (b *Sandbox) Runs() ([]Run, error) {
	entries, err := os.ReadDir(filepath.Join(b.Dir(), runsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var runs []Run
	for _, e := range entries {
		parts := runPattern.FindStringSubmatch(e.Name())
		if parts == nil {
			continue
		}
		boot, err := os.ReadFile(filepath.Join(b.Dir(), runsDir, e.Name()))
		if err != nil || string(boot) != bootID() {
			continue
		}
		pid, err1 := strconv.Atoi(parts[1])
		start, err2 := strconv.ParseUint(parts[2], 10, 64)
		if run := (Run{PID: pid, Start: start}); err1 == nil && err2 == nil && run.Alive() {
			runs = append(runs, run)
		}
	}
	return runs, nil
}

// endRuns calls end until neither it nor the records know of anything that runs.
func (b *Sandbox) endRuns(ctx context.Context, end EndRuns) error {
	for {
		runs, err := b.Runs()
		if err != nil {
			return err
		}
		left, err := end(ctx, runs)
		if err != nil {
			return err
		}
		if left = max(left, len(runs)); left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes of runs are still there: %w", left, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// EndRuns ends the given runs and whatever else runs in the sandbox, without waiting, and tells how much it found.
type EndRuns func(ctx context.Context, runs []Run) (int, error)

// Active knows the runs of this process, by sandbox, so that they can be ended by the one who waits for them.
type Active struct {
	mu   sync.Mutex
	runs map[string]map[*context.CancelCauseFunc]struct{}
}

// ErrDestroyed is the cause of the cancellation of a run whose sandbox is being destroyed.
var ErrDestroyed = errors.New("the sandbox is being destroyed")

// Begin gives the context of a run; done must be called when the run has ended.
func (a *Active) Begin(ctx context.Context, id string) (run context.Context, done func()) {
	run, cancel := context.WithCancelCause(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.runs == nil {
		a.runs = map[string]map[*context.CancelCauseFunc]struct{}{}
	}
	if a.runs[id] == nil {
		a.runs[id] = map[*context.CancelCauseFunc]struct{}{}
	}
	key := &cancel
	a.runs[id][key] = struct{}{}
	return run, func() {
		cancel(nil)
		a.mu.Lock()
		defer a.mu.Unlock()
		if delete(a.runs[id], key); len(a.runs[id]) == 0 {
			delete(a.runs, id)
		}
	}
}

// Cancel ends the runs of a sandbox and tells how many there are.
func (a *Active) Cancel(id string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	for cancel := range a.runs[id] {
		(*cancel)(ErrDestroyed)
	}
	return len(a.runs[id])
}
