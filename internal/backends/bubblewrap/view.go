//go:build linux && (amd64 || arm64)

package bubblewrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/runhelper"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const (
	// insideID is the user and group that sandboxed code sees itself as, whoever it is outside.
	insideID = 1000
	// helperPath is where the view has the run helper.
	helperPath = helperDir + "/akrun"
	// insidePath is PATH in the sandbox.
	insidePath = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
)

// Parts of the host's /etc that programs need to start or to find certificates, and that hold no secret. Where one does
// not exist the view does not have it.
var etcParts = []string{
	"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime",
	"/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/tls/openssl.cnf", "/etc/pki/ca-trust/extracted",
	"/etc/crypto-policies", "/etc/mime.types", "/etc/protocols", "/etc/services",
}

// Directories of the host's root that are links into /usr on some systems and directories on others.
var rootParts = []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// Files of /proc that tell of the whole machine, or name the keys of the user that runs the provider.
var maskedProc = []string{"/proc/keys", "/proc/key-users", "/proc/kcore", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats"}

// bind is one path of the host in the view.
type bind struct {
	source *os.File // held open from the check on, so that nothing else can be put in its place
	dest   string
	write  bool
}

// view is what a run sees.
type view struct {
	workspace *bind // nil for the probe
	network   bool
	extra     []bind
}

// arguments builds the command line of bwrap and the files that it refers to by number; the first of them becomes
// descriptor 3. Nothing in it is secret: everybody on the machine can read command lines.
type arguments struct {
	args  []string
	files []*os.File // bwrap gets these
	kept  []*os.File // these only have to stay open
}

func (a *arguments) add(args ...string) { a.args = append(a.args, args...) }

// fd hands a file to bwrap and gives its number there. It is closed with the arguments.
func (a *arguments) fd(f *os.File) string {
	a.files = append(a.files, f)
	a.keep(f)
	return strconv.Itoa(2 + len(a.files))
}

// keep closes a file with the arguments.
func (a *arguments) keep(f *os.File) { a.kept = append(a.kept, f) }

// data gives the view a file with this content.
func (a *arguments) data(perms, dest string, content []byte) error {
	f, err := memoryFile(content)
	if err != nil {
		return err
	}
	a.add("--perms", perms, "--file", a.fd(f), dest)
	return nil
}

func (a *arguments) close() {
	for _, f := range a.kept {
		_ = f.Close() // closed before, perhaps: that is no error
	}
}

func memoryFile(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("agentkernel", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "memory")
	if _, err := f.Write(content); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.Seek(0, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// build gives bwrap's arguments up to the program. The files are closed by the caller, on an error too.
func (v view) build(a *arguments, p program) error {
	// The namespaces, each by name: --unshare-all would skip what the kernel does not have. No nested user namespace, no
	// capability, no terminal, and death with the provider.
	a.add("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
		"--disable-userns", "--assert-userns-disabled", "--cap-drop", "ALL", "--new-session", "--die-with-parent", "--as-pid-1",
		"--uid", strconv.Itoa(insideID), "--gid", strconv.Itoa(insideID), "--hostname", "sandbox", "--clearenv")
	if !v.network {
		a.add("--unshare-net")
	}
	shared := v.network || len(v.extra) > 0
	filter, err := filterFile(filterOptions{unixSockets: !shared})
	if err != nil {
		return err
	}
	a.add("--seccomp", a.fd(filter))

	a.add("--ro-bind", "/usr", "/usr")
	for _, part := range rootParts {
		if target, err := os.Readlink(part); err == nil {
			a.add("--symlink", target, part)
		} else if info, err := os.Stat(part); err == nil && info.IsDir() {
			a.add("--ro-bind", part, part)
		}
	}
	a.add("--proc", "/proc")
	for _, file := range maskedProc {
		if _, err := os.Lstat(file); err == nil {
			a.add("--ro-bind", "/dev/null", file)
		}
	}
	a.add("--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp", "--dir", "/var", "--symlink", "../tmp", "/var/tmp")
	if err := v.etc(a); err != nil {
		return err
	}
	helper, err := runhelper.Binary(helperArch)
	if err != nil {
		return err
	}
	if err := a.data("0555", helperPath, helper); err != nil {
		return err
	}
	if v.workspace != nil {
		v.workspace.add(a, p)
	} else {
		a.add("--dir", sandboxcore.Workspace)
	}
	for _, b := range v.extra {
		b.add(a, p)
	}
	a.add("--remount-ro", "/", "--chdir", sandboxcore.Workspace)
	return nil
}

func (b bind) add(a *arguments, p program) {
	option, source := "--ro-bind", b.source.Name()
	if b.write {
		option = "--bind"
	}
	// By descriptor bwrap compares what it mounted with what was checked. Releases before that was possible get the path.
	if p.bindFD {
		option, source = option+"-fd", a.fd(b.source)
	}
	a.add(option, source, b.dest)
}

func (v view) etc(a *arguments) error {
	for _, part := range etcParts {
		if _, err := os.Stat(part); err == nil {
			a.add("--ro-bind-try", part, part)
		}
	}
	stubs := []struct{ file, content string }{
		{"/etc/passwd", fmt.Sprintf("root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nsandbox:x:%d:%d:sandbox:%s:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
			insideID, insideID, sandboxcore.Workspace)},
		{"/etc/group", fmt.Sprintf("root:x:0:\nsandbox:x:%d:\nnogroup:x:65534:\n", insideID)},
		{"/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"},
		{"/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"},
	}
	for _, s := range stubs {
		content := []byte(s.content)
		if s.file == "/etc/hosts" && v.network {
			if own, err := os.ReadFile(s.file); err == nil {
				content = own
			}
		}
		if err := a.data("0444", s.file, content); err != nil {
			return err
		}
	}
	if v.network {
		// By content: it is often a link into /run, which the view does not have.
		if own, err := os.ReadFile("/etc/resolv.conf"); err == nil {
			return a.data("0444", "/etc/resolv.conf", own)
		}
	}
	return nil
}

// findInView gives the path of a program in the view, looking where its PATH looks.
func findInView(names ...string) (string, bool) {
	for _, name := range names {
		for dir := range strings.SplitSeq(insidePath, ":") {
			// A link such as /usr/bin/python3 may lead through /etc/alternatives, which the view has too.
			path, err := filepath.EvalSymlinks(filepath.Join(dir, name))
			if err != nil || !inUsr(path) {
				continue
			}
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
				return filepath.Join(dir, name), true
			}
		}
	}
	return "", false
}

func inUsr(path string) bool {
	for _, dir := range append([]string{"/usr"}, rootParts...) {
		if strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return false
}
