//go:build linux

package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

func marks() sandboxcore.Marks {
	return sandboxcore.Marks{Name: "n", Spec: `{"v":1}`, Created: time.Now().UTC(), Request: "r"}
}

func create(t *testing.T, s *Store) *Sandbox {
	t.Helper()
	box, err := s.Create(t.Context(), Options{Marks: marks()})
	if err != nil {
		t.Fatal(err)
	}
	return box
}

func nothing(context.Context, []Run) (int, error) { return 0, nil }

func TestDataDir(t *testing.T) {
	root := os.Geteuid() == 0
	for _, c := range []struct {
		name, setting string
		env           map[string]string
		want, forRoot string
	}{
		{"setting wins", "/a/../b", map[string]string{"HOME": "/h", "XDG_STATE_HOME": "/x"}, "/b", "/b"},
		{"XDG", "", map[string]string{"HOME": "/h", "XDG_STATE_HOME": "/x"}, "/x/agentkernel", "/x/agentkernel"},
		{"relative XDG is ignored", "", map[string]string{"HOME": "/h", "XDG_STATE_HOME": "x"}, "/h/.local/state/agentkernel", systemDataDir},
		{"home", "", map[string]string{"HOME": "/h"}, "/h/.local/state/agentkernel", systemDataDir},
		{"no home", "", nil, "", systemDataDir},
		{"relative home", "", map[string]string{"HOME": "h"}, "", systemDataDir},
		{"relative setting", "a", map[string]string{"HOME": "/h"}, "", ""},
		{"NUL", "/a\x00", nil, "", ""},
	} {
		want := c.want
		if root {
			want = c.forRoot
		}
		got, err := DataDir(sandboxcore.BackendBubblewrap, c.setting, func(k string) string { return c.env[k] })
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v; want %q", c.name, got, err, want)
		}
		if err != nil && !sandboxcore.IsCode(err, sandboxcore.CodeValue) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil && !strings.Contains(err.Error(), "(bubblewrap)") {
			t.Errorf("%s: %v does not say of which backend", c.name, err)
		}
	}
}

// Several kinds share one data directory. What root makes above the sandboxes of one kind is passable for the users of the
// sandboxes of another, whichever comes first; an ordinary user's stays closed.
func TestDirectoriesAboveAStore(t *testing.T) {
	for _, ownUIDs := range []bool{false, true} {
		dataDir := filepath.Join(t.TempDir(), "state", "agentkernel")
		s := New("docker", dataDir, ownUIDs)
		create(t, s)
		above, own := fs.FileMode(0o700), fs.FileMode(0o700)
		if ownUIDs {
			own = 0o711
		}
		if ownUIDs || os.Geteuid() == 0 {
			above = 0o711
		}
		for dir, want := range map[string]fs.FileMode{filepath.Dir(dataDir): above, dataDir: above, s.Dir(): own} {
			info, err := os.Stat(dir)
			if err != nil || info.Mode().Perm() != want {
				t.Errorf("ownUIDs %v: %s has mode %v, want %v (%v)", ownUIDs, dir, info.Mode().Perm(), want, err)
			}
		}
	}
}

func TestIdentity(t *testing.T) {
	files := machineIDFiles
	defer func() { machineIDFiles = files }()
	dir := t.TempDir()
	file := filepath.Join(dir, "machine-id")
	machineIDFiles = []string{filepath.Join(dir, "absent"), file}
	identity := func(s *Store) string {
		t.Helper()
		id, err := s.Identity()
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	s := New("k", filepath.Join(dir, "data"), false)
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	id := strings.Repeat("ab", 16)
	write(id + "\n")
	first := identity(s)
	if strings.Contains(first, id) {
		t.Errorf("the machine id itself is in %q", first)
	}
	if identity(s) != first {
		t.Error("it is not stable")
	}
	if other := identity(New("k", filepath.Join(dir, "other"), false)); other == first || other[:24] != first[:24] {
		t.Errorf("another data directory: %q and %q", other, first)
	}
	write(strings.Repeat("cd", 16))
	if identity(s) == first {
		t.Error("another machine has the same identity")
	}
	// Without a machine id one is made once, by whoever is first.
	for _, text := range []string{"", "uninitialized\n"} {
		write(text)
		s := New("k", filepath.Join(dir, "made"+text), false)
		ids := make([]string, 8)
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() {
				ids[i], _ = New("k", s.dataDir, false).Identity()
			})
		}
		wg.Wait()
		for _, got := range ids {
			if got == "" || got != identity(s) {
				t.Errorf("made ids differ: %q", ids)
			}
		}
	}
}

func TestCreateIsWholeOrNothing(t *testing.T) {
	dir := t.TempDir()
	s := New("k", dir, false)
	_, err := s.Create(t.Context(), Options{Marks: marks(), UID: func([]int) (int, error) { return 0, errors.New("none") }})
	if !sandboxcore.IsCode(err, sandboxcore.CodeProvision) {
		t.Errorf("got %v", err)
	}
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("list %v: %v", list, err)
	}
	entries, err := os.ReadDir(s.Dir())
	if err != nil || len(entries) != 1 { // the lock
		t.Errorf("left: %v %v", entries, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New("k", file, false).Create(t.Context(), Options{Marks: marks()}); !sandboxcore.IsCode(err, sandboxcore.CodeProvision) {
		t.Errorf("got %v", err)
	}
	// A lock that somebody holds for ever ends with the context.
	unlock, err := s.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Create(ctx, Options{Marks: marks()}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestCreateConcurrently(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			// Stores of their own, as in several processes.
			s := New("k", dir, false)
			box, err := s.Create(t.Context(), Options{Marks: marks()})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := s.Find(box.ID); err != nil {
				t.Error(err)
			}
			if err := box.Destroy(t.Context(), nothing); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	entries, err := os.ReadDir(filepath.Join(dir, "k"))
	if err != nil || len(entries) != 1 {
		t.Errorf("left: %v %v", entries, err)
	}
}

// TestRunAgainstDestroy: whichever comes first, no run is alive when Destroy has returned.
func TestRunAgainstDestroy(t *testing.T) {
	s := New("k", t.TempDir(), false)
	for range 30 {
		box := create(t, s)
		var alive atomic.Int32
		var wg sync.WaitGroup
		start := make(chan struct{})
		for range 4 {
			wg.Go(func() {
				cmd := exec.Command("sleep", "600")
				if err := cmd.Start(); err != nil {
					t.Error(err)
					return
				}
				<-start
				record, err := box.Register(cmd.Process.Pid)
				if err != nil {
					if !sandboxcore.IsCode(err, sandboxcore.CodeGone) {
						t.Error(err)
					}
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
					return
				}
				alive.Add(1)
				_ = cmd.Wait()
				alive.Add(-1)
				record.Done()
			})
		}
		wg.Go(func() {
			<-start
			err := box.Destroy(t.Context(), func(_ context.Context, runs []Run) (int, error) {
				for _, run := range runs {
					if err := run.Signal(syscall.SIGKILL); err != nil {
						return 0, err
					}
				}
				return 0, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		close(start)
		wg.Wait()
		if alive.Load() != 0 {
			t.Fatal("a run survived")
		}
		if _, err := os.Lstat(box.Dir()); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

func TestRecordsOfOtherProcessesAreNotTouched(t *testing.T) {
	box := create(t, New("k", t.TempDir(), false))
	own, err := RunOf(os.Getpid())
	if err != nil || !own.Alive() {
		t.Fatalf("%v %v", own, err)
	}
	// The same process id, started at another time or before the machine was.
	for name, boot := range map[string]string{
		fmt.Sprintf("%d-%d", own.PID, own.Start+1): bootID(), fmt.Sprintf("%d-%d", own.PID, own.Start): "another boot", "x": "", "1": "", "-1-1": "",
	} {
		if err := os.WriteFile(filepath.Join(box.Dir(), runsDir, name), []byte(boot), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if runs, err := box.Runs(); err != nil || len(runs) != 0 {
		t.Errorf("%v %v", runs, err)
	}
	if err := (Run{PID: own.PID, Start: own.Start + 1}).Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if err := box.Destroy(t.Context(), nothing); err != nil {
		t.Error(err)
	}
}

// TestDestroyEnds: a run that does not go away does not hold Destroy for ever, and the sandbox stays ours.
func TestDestroyEnds(t *testing.T) {
	s := New("k", t.TempDir(), false)
	box := create(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := box.Destroy(ctx, func(context.Context, []Run) (int, error) { return 1, nil })
	if !sandboxcore.IsCode(err, sandboxcore.CodeDeleteFailed) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if _, err := box.Register(os.Getpid()); !sandboxcore.IsCode(err, sandboxcore.CodeGone) {
		t.Errorf("a run was let into a closing sandbox: %v", err)
	}
	if _, err := s.Find(box.ID); err != nil {
		t.Error(err)
	}
	if err := box.Destroy(t.Context(), nothing); err != nil {
		t.Error(err)
	}
}

func TestDestroyOfAnImmutableFile(t *testing.T) {
	s := New("k", t.TempDir(), false)
	box := create(t, s)
	dir := filepath.Join(box.Workspace(), "a", "b")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "stuck")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("chattr", "+i", file).CombinedOutput(); err != nil {
		testenv.Skip(t, testenv.Root, "no immutable files here: "+string(out), "run the tests as root on ext4")
	}
	err := box.Destroy(t.Context(), nothing)
	if !sandboxcore.IsCode(err, sandboxcore.CodeDeleteFailed) || !strings.Contains(err.Error(), "stuck") {
		t.Errorf("got %v", err)
	}
	if _, err := s.Find(box.ID); err != nil {
		t.Errorf("what is still there is not found any more: %v", err)
	}
	out, err := exec.Command("chattr", "-R", "-i", box.Dir()).CombinedOutput()
	if err != nil {
		t.Errorf("%s", out)
	}
	if err := box.Destroy(t.Context(), nothing); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(s.Dir()); err != nil || len(entries) != 1 {
		t.Errorf("left: %v %v", entries, err)
	}
}

// TestRemoveTreeWithFewDescriptors: a tree that is deeper than there are descriptors and longer than a path may be.
func TestRemoveTreeWithFewDescriptors(t *testing.T) {
	dir := t.TempDir()
	const depth = 400
	deepest, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := deepest.Mkdir("tree", 0o755); err != nil {
		t.Fatal(err)
	}
	name := "tree"
	for range depth {
		next, err := deepest.OpenRoot(name)
		if err != nil {
			t.Fatal(err)
		}
		_ = deepest.Close()
		deepest, name = next, strings.Repeat("x", 200)
		if err := deepest.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := deepest.Create("file")
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	_ = deepest.Close()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	few := before
	few.Cur = 64
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before) //nolint:errcheck // a test
	if err := removeTree(dir, "tree"); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left: %v %v", entries, err)
	}
}

// TestRemoveTreeGoesOn continues what another removal has left behind.
func TestRemoveTreeGoesOn(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{".trash/0/a", ".trash/7/b", ".trash/x", "tree/c"} {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, closed := range []string{".trash/7", "tree/c", "tree"} {
		if err := os.Chmod(filepath.Join(dir, closed), 0); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for _, name := range []string{"tree", trashDir} {
			if err := removeTree(dir, name); err != nil {
				t.Error(err)
			}
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left: %v %v", entries, err)
	}
}

// FuzzRelative: whatever a user writes, the path that comes out stays inside or is refused by os.Root.
func FuzzRelative(f *testing.F) {
	for _, s := range []string{"a", "../a", "/etc/passwd", "a/../../b", ".", "", "\x00", "//", "a//b/", "...", "..a"} {
		f.Add(s)
	}
	dir := f.TempDir()
	box, err := New("k", filepath.Join(dir, "in"), false).Create(f.Context(), Options{Marks: marks()})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if len(path) > 200 {
			return
		}
		before, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := (Files{box}).WriteFile(t.Context(), path, []byte("x"), 0o600); err == nil {
			if got, _, err := (Files{box}).ReadFile(t.Context(), path, 1); err != nil || string(got) != "x" {
				t.Errorf("written and not read: %q %v", got, err)
			}
		}
		entries, err := os.ReadDir(box.Dir())
		if err != nil || len(entries) != 4 {
			t.Errorf("%q was written beside the workspace: %v", path, entries)
		}
		after, err := os.ReadDir(dir)
		if err != nil || len(after) != len(before) {
			t.Errorf("%q was written outside: %v", path, after)
		}
	})
}
