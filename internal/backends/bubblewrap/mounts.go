//go:build linux && (amd64 || arm64)

package bubblewrap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// guard knows what the sandbox may never see, and who its code runs as.
type guard struct {
	dataDir string
	// uid of the sandbox, unknownUID before it has one, ownUID when it is the provider's own.
	uid int
}

const (
	ownUID     = -1
	unknownUID = -2
)

// open checks a path of the host and opens it, so that what was checked is what will be mounted.
func (g guard) open(w wish) (*os.File, *sandboxcore.Error) {
	resolved, err := filepath.EvalSymlinks(w.path)
	if err != nil {
		said := "it cannot be looked at: " + err.Error() + "."
		if errors.Is(err, fs.ErrNotExist) {
			said = "it does not exist on this machine."
		}
		return nil, w.refuse(said, "Create it before, or remove it from the list.")
	}
	if refused := g.forbidden(w, resolved); refused != nil {
		return nil, refused
	}
	// O_PATH opens nothing: no device, no pipe. The path is free of links, so NOFOLLOW costs nothing and keeps one that
	// was made in this moment from being followed.
	fd, err := unix.Open(resolved, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, w.refuse("it cannot be opened: "+err.Error()+".", "Make it accessible, or remove it from the list.")
	}
	f := os.NewFile(uintptr(fd), resolved)
	refused := g.checkOpen(w, f, resolved)
	if refused != nil {
		_ = f.Close()
		return nil, refused
	}
	return f, nil
}

func (g guard) checkOpen(w wish, f *os.File, resolved string) *sandboxcore.Error {
	// Where the descriptor really leads: a directory above may have become a link since.
	if leads, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err != nil || leads != resolved {
		return w.refuse("it changed while it was looked at.", "Try again.")
	}
	info, err := f.Stat()
	if err != nil {
		return w.refuse("it cannot be looked at: "+err.Error()+".", "Remove it from the list.")
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return w.refuse("it is a "+kindOf(info.Mode())+".", "Only directories and regular files can be let in.")
	}
	if err := g.accessible(resolved, info, w.write); err != nil {
		what := "read"
		if w.write {
			what = "write"
		}
		who := "the user that runs the provider"
		if g.uid != ownUID {
			who = "the sandbox, which runs under a user of its own"
		}
		return w.refuse(fmt.Sprintf("%s may not %s it: %v.", who, what, err), "Give it the permission (chmod o+rx, for writing o+w), or remove it from the list.")
	}
	return nil
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeSocket != 0:
		return "socket"
	case mode&fs.ModeNamedPipe != 0:
		return "named pipe"
	case mode&fs.ModeDevice != 0:
		return "device"
	}
	return "special file"
}

// forbidden refuses what would give the sandbox more than a directory: the whole machine, the kernel's own trees, the
// sockets of services, the provider's data directory. It takes both the path as written and where it leads.
func (g guard) forbidden(w wish, resolved string) *sandboxcore.Error {
	dataDir := g.dataDir
	if leads, err := filepath.EvalSymlinks(dataDir); err == nil {
		dataDir = leads
	}
	for _, path := range []string{w.path, resolved} {
		if refused := forbiddenPath(w, path); refused != nil {
			return refused
		}
		switch {
		case within(dataDir, path) || within(g.dataDir, path):
			return w.refuse("the data directory of the provider, with all sandboxes in it, lies in it ("+dataDir+").", "Name the directories that the code needs, one by one.")
		case within(path, dataDir) || within(path, g.dataDir):
			return w.refuse("it lies in the data directory of the provider ("+dataDir+").", "A sandbox never sees another one's files. Remove it from the list.")
		}
	}
	return nil
}

// accessible reports why the sandbox's user could not use the path, as far as permission bits tell. The kernel decides
// in the end; this only says it before anything is created.
func (g guard) accessible(path string, info fs.FileInfo, write bool) error {
	need := uint32(unix.R_OK)
	if info.IsDir() {
		need |= unix.X_OK
	}
	if write {
		need |= unix.W_OK
	}
	if g.uid == ownUID {
		return unix.Access(path, need)
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		above, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if g.bits(above)&unix.X_OK == 0 {
			return fmt.Errorf("it may not enter %s", dir)
		}
		if dir == "/" {
			break
		}
	}
	if g.bits(info)&need != need {
		return fmt.Errorf("its mode is %04o", info.Mode().Perm())
	}
	return nil
}

// bits gives the permissions that the sandbox's user has, as R_OK, W_OK and X_OK.
func (g guard) bits(info fs.FileInfo) uint32 {
	mode := uint32(info.Mode().Perm())
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && g.uid >= 0 {
		switch {
		case int64(stat.Uid) == int64(g.uid):
			return mode >> 6 & 7
		case int64(stat.Gid) == int64(g.uid):
			return mode >> 3 & 7
		}
	}
	return mode & 7
}

// openAll opens every path, or refuses with everything that is wrong.
func (g guard) openAll(read, write []string) ([]bind, error) {
	var binds []bind
	var refused sandboxcore.Violations
	for _, w := range wishes(read, write) {
		f, err := g.open(w)
		if err != nil {
			refused = append(refused, err)
			continue
		}
		binds = append(binds, bind{source: f, dest: filepath.Clean(w.path), write: w.write})
	}
	if refused != nil {
		for _, b := range binds {
			_ = b.source.Close()
		}
		return nil, refused
	}
	return binds, nil
}
