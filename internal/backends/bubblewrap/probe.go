//go:build linux && (amd64 || arm64)

package bubblewrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// program is the bwrap program after a probe run.
type program struct {
	path    string
	version string
	bindFD  bool // it knows --bind-fd
	err     *sandboxcore.Error
}

const probeTimeout = 20 * time.Second

var (
	probesMu sync.Mutex
	probes   = map[string]program{}
)

// probe tries the program once per process: that it is installed does not mean that it works here.
func probe(ctx context.Context, path string) program {
	probesMu.Lock()
	defer probesMu.Unlock()
	if known, ok := probes[path]; ok {
		return known
	}
	p := tryProgram(ctx, path)
	if ctx.Err() == nil { // what a cancelled caller saw is no answer for the others
		probes[path] = p
	}
	return p
}

func unusable(object, said, next string) *sandboxcore.Error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeUnreachable, Attempted: "bubblewrap cannot be used on this machine", Object: object, Said: said, Next: next,
		Attribute: []string{string(sandboxcore.BackendBubblewrap)},
	}
}

const installAdvice = "Install it (Debian and Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap), or set path in the provider's bubblewrap settings."

// findProgram gives the absolute path of bwrap. Where none is configured only the system's own directories are
// searched: root would otherwise run what anybody put into a directory of its PATH.
func findProgram(configured string) (string, *sandboxcore.Error) {
	candidates := []string{configured}
	if configured == "" {
		candidates = []string{"/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap", "/run/current-system/sw/bin/bwrap"}
	}
	for _, path := range candidates {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return path, nil
		}
	}
	return "", unusable("bwrap", "there is no program "+strings.Join(candidates, ", ")+".", installAdvice)
}

func tryProgram(ctx context.Context, configured string) program {
	path, missing := findProgram(configured)
	if missing != nil {
		return program{err: missing}
	}
	p := program{path: path}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	help, err := plainCommand(ctx, path, "--help").CombinedOutput()
	if err != nil {
		p.err = unusable(path, fmt.Sprintf("it does not start: %v.", err), installAdvice)
		return p
	}
	if !bytes.Contains(help, []byte("--disable-userns")) {
		p.err = unusable(path, "it is too old: it cannot forbid nested user namespaces (--disable-userns).", "Install bubblewrap 0.8.0 or newer.")
		return p
	}
	p.bindFD = bytes.Contains(help, []byte("--bind-fd"))
	if version, err := plainCommand(ctx, path, "--version").Output(); err == nil {
		p.version = strings.TrimPrefix(strings.TrimSpace(string(version)), "bubblewrap ")
	}
	if said := p.try(ctx); said != "" {
		p.err = unusable(path, "a probe run failed: "+said+".", adviceFor(said))
	}
	return p
}

// plainCommand has none of the provider's environment.
func plainCommand(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = cleanEnv()
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	return cmd
}

func cleanEnv() []string { return []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"} }

// try runs a program in a view such as runs get. Empty: it worked.
func (p program) try(ctx context.Context) string {
	var a arguments
	defer a.close()
	if err := (view{}).build(&a, p); err != nil {
		return err.Error()
	}
	a.add("--", helperPath, "probe")
	cmd := plainCommand(ctx, p.path, a.args...)
	cmd.ExtraFiles = a.files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if isRoot() {
		cmd.SysProcAttr.Credential = credential(lastUID)
	}
	out, err := cmd.CombinedOutput()
	// The helper ends with 2 when it is called with anything else than one of its modes: it has been reached.
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 2 && len(out) == 0 {
		return ""
	}
	if text := strings.Join(strings.Fields(string(out)), " "); text != "" {
		return sandboxcore.Printable(text)
	}
	return fmt.Sprintf("it ended with %v", err)
}

// credential is the user that bwrap itself runs as when the provider is root: --uid alone would leave the code root
// outside of the sandbox.
func credential(uid int) *syscall.Credential {
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), Groups: []uint32{}}
}

// adviceFor finds out why no namespace can be made here, as far as the machine tells.
func adviceFor(said string) string {
	is := func(file, value string) bool {
		text, err := os.ReadFile(filepath.Join("/proc/sys", file))
		return err == nil && strings.TrimSpace(string(text)) == value
	}
	switch {
	case is("kernel/unprivileged_userns_clone", "0"):
		return "User namespaces are switched off: sysctl kernel.unprivileged_userns_clone=1."
	case is("user/max_user_namespaces", "0"):
		return "User namespaces are switched off: sysctl user.max_user_namespaces=15000."
	case is("kernel/apparmor_restrict_unprivileged_userns", "1") && strings.Contains(said, "ermi"):
		return "AppArmor restricts user namespaces: allow them to bwrap with a profile (Ubuntu: apt-get install apparmor-profiles, then load bwrap-userns-restrict), or sysctl kernel.apparmor_restrict_unprivileged_userns=0."
	case inContainer():
		return "The provider runs inside a container, which may make no namespaces or mount no /proc: run it on the machine itself, or use another backend (docker, kubernetes)."
	}
	return "Check that unprivileged user namespaces may be made here, or use another backend."
}

func inContainer() bool {
	for _, file := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(file); err == nil {
			return true
		}
	}
	return os.Getenv("container") != ""
}
