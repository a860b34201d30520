//go:build linux

package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// build compiles the provider once for all tests of the package.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "agentkernel-acceptance-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o711); err != nil { // #nosec G302 -- users of bubblewrap sandboxes pass through it
		return dir, err
	}
	return dir, compile("../..", filepath.Join(dir, "bin"))
})

func compile(source, into string) error {
	cmd := exec.Command("go", "build", "-o", filepath.Join(into, "terraform-provider-agentkernel"), ".") // #nosec G204 -- a test
	cmd.Dir = source
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the provider: %w\n%s", err, out)
	}
	return nil
}

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := build(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// stack is one configuration in a directory of its own.
type stack struct {
	cli  string
	dir  string // configuration and state
	data string // data directory of the local backends
	bin  string // where the provider lies
	log  string // TF_LOG_PATH
	env  []string
}

// newStack makes a configuration. In hcl, DATA stands for the data directory.
func newStack(t testing.TB, hcl string) *stack {
	t.Helper()
	testenv.Require(t, "terraform")
	root, err := build()
	if err != nil {
		t.Fatal(err)
	}
	base, err := os.MkdirTemp(root, "stack-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(base, 0o711); err != nil { // #nosec G302 -- as above
		t.Fatal(err)
	}
	s := &stack{
		cli: testenv.TerraformCLI(t), dir: filepath.Join(base, "config"), data: filepath.Join(base, "data"), bin: filepath.Join(root, "bin"),
		log: filepath.Join(base, "trace.log"),
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s.write(t, hcl)
	s.use(t, s.bin)
	return s
}

func (s *stack) write(t testing.TB, hcl string) {
	t.Helper()
	text := "terraform {\n  required_providers {\n    agentkernel = { source = \"agentkernel/agentkernel\" }\n  }\n}\n" +
		strings.ReplaceAll(hcl, "DATA", s.data)
	if err := os.WriteFile(filepath.Join(s.dir, "main.tf"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// use makes the CLI take the provider that lies in bin.
func (s *stack) use(t testing.TB, bin string) {
	t.Helper()
	rc := filepath.Join(filepath.Dir(s.dir), "cli.tfrc")
	text := fmt.Sprintf("provider_installation {\n  dev_overrides {\n    \"agentkernel/agentkernel\" = %q\n  }\n  direct {}\n}\n", bin)
	if err := os.WriteFile(rc, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir(), "TF_CLI_CONFIG_FILE=" + rc, "TF_IN_AUTOMATION=1", "TF_INPUT=0",
		"CHECKPOINT_DISABLE=1", "TF_LOG=TRACE", "TF_LOG_PATH=" + s.log,
	}
	for _, k := range []string{"DOCKER_HOST", "DOCKER_CONTEXT"} {
		if v, ok := os.LookupEnv(k); ok {
			s.env = append(s.env, k+"="+v)
		}
	}
}

func (s *stack) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.cli, args...) // #nosec G204 -- the CLI of the tests
	cmd.Dir, cmd.Env = s.dir, s.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt of the test reaches it only through us
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// run runs the CLI and gives its exit status and all that it printed.
func (s *stack) run(t testing.TB, args ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute)
	defer cancel()
	out, err := s.command(ctx, append(args, "-no-color")...).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, string(out)
	case errors.As(err, &exit):
		return exit.ExitCode(), string(out)
	}
	t.Fatalf("%s: %v", args[0], err)
	return -1, ""
}

func (s *stack) must(t testing.TB, args ...string) string {
	t.Helper()
	code, out := s.run(t, args...)
	if code != 0 {
		t.Fatalf("%v ended with %d:\n%s", args, code, out)
	}
	return out
}

func (s *stack) apply(t *testing.T) string { t.Helper(); return s.must(t, "apply", "-auto-approve") }

// destroyAtEnd takes everything down when the test ends, and then looks for what is left.
func (s *stack) destroyAtEnd(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if code, out := s.run(t, "destroy", "-auto-approve"); code != 0 {
			t.Errorf("destroy ended with %d:\n%s", code, out)
		}
		for _, left := range s.workspaces(t) {
			t.Errorf("left behind: %s", left)
		}
	})
}

// wantEmptyPlan fails unless nothing is to be done.
func (s *stack) wantEmptyPlan(t *testing.T) {
	t.Helper()
	if code, out := s.run(t, "plan", "-detailed-exitcode"); code != 0 {
		t.Errorf("the plan is not empty (status %d):\n%s", code, out)
	}
}

// workspaces lists what exists in the data directory of the local backends.
func (s *stack) workspaces(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(s.data, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, d := range dirs {
		if st, err := os.Stat(d); err == nil && st.IsDir() && !strings.HasPrefix(filepath.Base(d), ".") {
			out = append(out, d)
		}
	}
	return out
}

// state gives the resources that the state knows, by address, with a mark for tainted ones.
func (s *stack) state(t *testing.T) map[string]stateObject {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "terraform.tfstate"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var st struct {
		Resources []struct {
			Mode, Type, Name string
			Instances        []struct {
				Status     string
				Attributes map[string]any
			}
		}
	}
	if err := json.Unmarshal(bytes.TrimSpace(text), &st); err != nil {
		t.Fatal(err)
	}
	out := map[string]stateObject{}
	for _, r := range st.Resources {
		for _, i := range r.Instances {
			if r.Mode == "managed" {
				out[r.Type+"."+r.Name] = stateObject{Tainted: i.Status == "tainted", Attributes: i.Attributes}
			}
		}
	}
	return out
}

type stateObject struct {
	Tainted    bool
	Attributes map[string]any
}

func (o stateObject) text(key string) string { v, _ := o.Attributes[key].(string); return v }

// providerPID finds the provider process that a CLI process started.
func (s *stack) providerPID(cli int) int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		exe, err := os.Readlink(filepath.Join(d, "exe"))
		if err != nil || !strings.HasPrefix(exe, s.bin+"/") {
			continue
		}
		var pid int
		_, _ = fmt.Sscanf(filepath.Base(d), "%d", &pid)
		if below(pid, cli) {
			return pid
		}
	}
	return 0
}

// killProvider kills the provider that a CLI process started, if there is one.
func (s *stack) killProvider(cli int) {
	if pid := s.providerPID(cli); pid > 1 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// below reports whether pid descends from ancestor.
func below(pid, ancestor int) bool {
	for range 20 {
		if pid == ancestor {
			return true
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return false
		}
		i := bytes.LastIndexByte(text, ')')
		var state string
		if _, err := fmt.Sscan(string(text[i+1:]), &state, &pid); err != nil {
			return false
		}
	}
	return false
}
