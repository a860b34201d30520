package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Destroy removes the sandbox with everything below it, and asks again. end is called until no run of the sandbox
// is left; no new one can start then. A sandbox that is gone already is success; what has no marker is not touched.
func (b *Sandbox) Destroy(ctx context.Context, end EndRuns) error {
	if _, err := b.store.Find(b.ID); err != nil {
		if sandboxcore.IsCode(err, sandboxcore.CodeGone) {
			return nil
		}
		return err
	}
	if err := b.close(); err != nil {
		return b.deleteFailed(err)
	}
	if err := b.endRuns(ctx, end); err != nil {
		return b.deleteFailed(err)
	}
	if err := b.removeFiles(ctx); err != nil {
		return b.deleteFailed(err)
	}
	if _, err := os.Lstat(b.Dir()); !errors.Is(err, fs.ErrNotExist) {
		return b.deleteFailed(errors.Join(errors.New("the directory is still there"), err))
	}
	return nil
}

// removeFiles removes the marker last: a sandbox that could be removed only in part is still ours, listed, and
// removed by the next try. What remains then is renamed first, so that an interruption leaves no directory that has
// an id and no marker.
func (b *Sandbox) removeFiles(ctx context.Context) error {
	var err error
	for attempt := range 20 {
		if err = removeTree(b.Dir(), workspaceDir); err == nil {
			break
		}
		// A process that is about to die may have added a file behind our back.
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Duration(attempt+1) * 5 * time.Millisecond):
		}
	}
	if err != nil {
		return err
	}
	for _, name := range []string{trashDir, runsDir, envFile} {
		if err := removeTree(b.Dir(), name); err != nil {
			return err
		}
	}
	gone := filepath.Join(b.store.dir, gonePrefix+b.ID)
	if err := os.Rename(b.Dir(), gone); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return removeTree(b.store.dir, gonePrefix+b.ID)
}

func (b *Sandbox) deleteFailed(err error) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeDeleteFailed, Attempted: "could not remove the sandbox", Object: b.Object(), Err: err,
		Said: "it is still at " + b.Dir() + ".",
		Next: "Remove what is in the way (a file of another user, an immutable file, a mount), then destroy again.",
	}
}

const trashDir = ".trash"

// removeTree removes name, an entry of dir, with everything below it. It never leaves dir, whatever links there are.
// Directories without permissions are opened up, and trees of any depth are removed: where the plain way fails, every
// directory below is first moved up to one level, so that no path and no number of open directories grows.
func removeTree(dir, name string) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	if root.RemoveAll(name) == nil {
		return nil
	}
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return located(root, name, root.Remove(name))
	}
	if err := root.Mkdir(trashDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f := flattener{root: root}
	// What an interrupted removal left in the trash is in the way of new names: it goes first.
	left, err := readNames(root, trashDir, -1)
	if err != nil {
		return err
	}
	for _, old := range left {
		f.queue = append(f.queue, trashDir+"/"+old)
		f.skip(old)
	}
	if name != trashDir {
		f.queue = append(f.queue, name)
	}
	for len(f.queue) > 0 {
		next := f.queue[len(f.queue)-1]
		f.queue = f.queue[:len(f.queue)-1]
		if err := f.empty(next); err != nil {
			return err
		}
	}
	return located(root, trashDir, root.Remove(trashDir))
}

// flattener empties directories and moves those that it finds in them to the trash, for later.
type flattener struct {
	root  *os.Root
	queue []string
	next  int
}

// skip keeps a name that is in use in the trash from being given again.
func (f *flattener) skip(name string) {
	var n int
	if _, err := fmt.Sscanf(name, "%d", &n); err == nil && n >= f.next {
		f.next = n + 1
	}
}

func (f *flattener) empty(dir string) error {
	info, err := f.root.Lstat(dir)
	if err != nil {
		return located(f.root, dir, err)
	}
	if !info.IsDir() {
		return located(f.root, dir, f.root.Remove(dir))
	}
	if err := f.open(dir); err != nil {
		return err
	}
	for {
		names, err := readNames(f.root, dir, 1000)
		if err != nil {
			return located(f.root, dir, err)
		}
		if len(names) == 0 {
			return located(f.root, dir, f.root.Remove(dir))
		}
		for _, name := range names {
			path := dir + "/" + name
			info, err := f.root.Lstat(path)
			if err == nil && !info.IsDir() {
				err = f.root.Remove(path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return located(f.root, path, err)
			}
			if !info.IsDir() {
				continue
			}
			// A directory can only be moved by who may write to it: its ".." changes.
			if err := f.open(path); err != nil {
				return err
			}
			to := fmt.Sprintf("%s/%d", trashDir, f.next)
			f.next++
			if err := f.root.Rename(path, to); err != nil {
				return located(f.root, path, err)
			}
			f.queue = append(f.queue, to)
		}
	}
}

// open gives us the permissions that removing from a directory takes.
func (f *flattener) open(dir string) error {
	info, err := f.root.Lstat(dir)
	if err == nil && info.Mode().Perm()&0o700 != 0o700 {
		err = f.root.Chmod(dir, 0o700)
	}
	return located(f.root, dir, err)
}

func readNames(root *os.Root, dir string, n int) ([]string, error) {
	f, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(n)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// located names the whole path of what could not be removed; os.Root names only the part below itself.
func located(root *os.Root, name string, err error) error {
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	return fmt.Errorf("%s: %w", filepath.Join(root.Name(), name), err)
}
