package provider_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// The tests of this file run a built provider as Terraform does: a process of its own, which can be interrupted and killed.

// buildProvider compiles the module in dir.
func buildProvider(dir, to string) error {
	cmd := exec.CommandContext(context.Background(), "go", "build", "-o", filepath.Join(to, "terraform-provider-agentkernel"), ".")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "agentkernel-bin-")
	if err != nil {
		return "", err
	}
	return dir, buildProvider(filepath.Join("..", ".."), dir)
})

func TestMain(m *testing.M) {
	code := m.Run()
	if left := leftGoroutines(); left != "" && code == 0 {
		_, _ = fmt.Fprintf(os.Stderr, "goroutines of the provider are left after its tests:\n%s\n", left)
		code = 1
	}
	if builtUsed {
		if dir, err := built(); err == nil {
			_ = os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

// leftGoroutines gives the stacks of goroutines that still run code of the module.
func leftGoroutines() string {
	var left []string
	for range 40 {
		left = nil
		buf := make([]byte, 4<<20)
		for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(stack, "terraform-provider-agentkernel/internal/") && !strings.Contains(stack, "TestMain(") {
				left = append(left, stack)
			}
		}
		if len(left) == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return strings.Join(left, "\n\n")
}

var builtUsed bool

// cli is a working directory of Terraform with this build of the provider.
type cli struct {
	t                *testing.T
	program          string
	dir, state, bins string
	env              []string
}

func newCLI(t *testing.T, parts ...testenv.Part) *cli {
	t.Helper()
	testenv.Require(t, parts...)
	program := testenv.TerraformCLI(t)
	builtUsed = true
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	c := &cli{t: t, program: program, dir: t.TempDir(), state: stateHome(t), bins: bin}
	c.use(bin)
	return c
}

// use makes Terraform take the provider in bin.
func (c *cli) use(bin string) {
	c.t.Helper()
	rc := filepath.Join(c.dir, "cli.tfrc")
	c.write("cli.tfrc", "provider_installation {\n  dev_overrides {\n    \"agentkernel/agentkernel\" = \""+bin+"\"\n  }\n  direct {}\n}\n")
	c.env = []string{
		"TF_CLI_CONFIG_FILE=" + rc, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "TF_INPUT=0", "XDG_STATE_HOME=" + c.state, "AGENTKERNEL_AUDIT_LOG=",
		"TF_LOG=", "TF_LOG_PATH=",
	}
}

func (c *cli) write(name, text string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cli) read(name string) string {
	c.t.Helper()
	b, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(b)
}

// config writes the configuration.
func (c *cli) config(text string) {
	c.t.Helper()
	c.write("main.tf", "terraform {\n  required_providers {\n    agentkernel = { source = \"agentkernel/agentkernel\" }\n  }\n}\n"+text)
}

func (c *cli) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), c.program, args...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), c.env...)
	return cmd
}

func (c *cli) run(args ...string) (string, error) {
	out, err := c.command(args...).CombinedOutput()
	return string(out), err
}

func (c *cli) must(args ...string) string {
	c.t.Helper()
	out, err := c.run(args...)
	if err != nil {
		c.t.Fatalf("terraform %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// fails wants the command to fail with all of the texts in its output, however it is wrapped.
func (c *cli) fails(texts []string, args ...string) {
	c.t.Helper()
	out, err := c.run(args...)
	if err == nil {
		c.t.Fatalf("terraform %s succeeded:\n%s", strings.Join(args, " "), out)
	}
	plain := strings.Join(strings.Fields(strings.ReplaceAll(out, "│", " ")), " ")
	for _, text := range texts {
		if !strings.Contains(plain, text) {
			c.t.Errorf("terraform %s does not say %q:\n%s", strings.Join(args, " "), text, out)
		}
	}
}

// addresses lists what is in the state.
func (c *cli) addresses() string { return strings.Join(strings.Fields(c.must("state", "list")), " ") }

func (c *cli) destroy() { c.must("destroy", "-auto-approve", "-no-color") }

func TestCLISavedPlanOnAnotherMachine(t *testing.T) {
	c := newCLI(t, testenv.Local)
	bare := t.TempDir() // a machine with a shell and without Python
	for _, name := range []string{"bash", "sh", "env", "cat"} {
		at, err := exec.LookPath(name)
		if err != nil {
			testenv.Skip(t, testenv.Local, err.Error(), "put "+name+" on the PATH")
		}
		if err := os.Symlink(at, filepath.Join(bare, name)); err != nil {
			t.Fatal(err)
		}
	}
	p := place{typeName: "local_subprocess", block: "{}"}
	c.config(p.job("", `script = "echo from the saved plan"`))
	c.must("plan", "-out=saved", "-no-color")
	here := c.env
	c.env = append(c.env, "PATH="+bare)
	c.must("apply", "-no-color", "saved")
	c.must("plan", "-detailed-exitcode", "-no-color")
	c.config(p.job("", `code = "print(1)"`))
	c.fails([]string{"AK4001", "python"}, "plan", "-no-color")
	c.env = here
	c.must("plan", "-no-color")
	c.destroy()
}

// processes finds processes of whose command line match holds. Own ones and their parents do not count.
func processes(match func(pid int, args []string, exe string) bool) []int {
	var out []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(d, "cmdline"))
		if err != nil {
			continue
		}
		exe, _ := os.Readlink(filepath.Join(d, "exe"))
		if match(pid, strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00"), exe) {
			out = append(out, pid)
		}
	}
	return out
}

// sleepers finds "sleep SECONDS", where the number of seconds is the mark of one test.
func sleepers(seconds string) []int {
	return processes(func(_ int, args []string, _ string) bool {
		return len(args) == 2 && args[0] == "sleep" && args[1] == seconds
	})
}

func eventually(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if done() {
			return
		}
	}
	t.Fatalf("not within %s: %s", limit, what)
}

// TestCLIInterruptedRun: SIGINT to Terraform, and SIGKILL to the provider, end the run, keep the sandbox in the state and
// leave nothing that is not in it.
func TestCLIInterruptedRun(t *testing.T) {
	if runtime.GOOS != "linux" {
		testenv.Skip(t, testenv.Local, "it looks into /proc, which only Linux has", "run it on Linux")
	}
	for i, p := range places()[:3] {
		for j, signal := range []string{"SIGINT", "SIGKILL"} {
			t.Run(p.name+" "+signal, func(t *testing.T) {
				c := newCLI(t, p.parts...)
				seconds := fmt.Sprintf("3%d%d%05d", i, j, os.Getpid()%100000)
				c.config(p.job("", `script = "sleep `+seconds+` & sleep `+seconds+`"`))
				cmd := c.command("apply", "-auto-approve", "-no-color")
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- cmd.Wait() }()
				eventually(t, 60*time.Second, "the run starts", func() bool { return len(sleepers(seconds)) == 2 })
				if signal == "SIGINT" {
					if err := cmd.Process.Signal(os.Interrupt); err != nil {
						t.Fatal(err)
					}
				} else {
					program := filepath.Join(c.bins, "terraform-provider-agentkernel")
					for _, pid := range processes(func(_ int, _ []string, exe string) bool { return exe == program }) {
						if killed, err := os.FindProcess(pid); err == nil {
							_ = killed.Kill()
						}
					}
				}
				select {
				case err := <-done:
					if err == nil {
						t.Errorf("an interrupted apply reports success:\n%s", out.String())
					}
				case <-time.After(60 * time.Second):
					_ = cmd.Process.Kill()
					t.Fatalf("the apply goes on:\n%s", out.String())
				}
				eventually(t, 20*time.Second, "the run has ended", func() bool { return len(sleepers(seconds)) == 0 })
				if got := c.addresses(); !strings.Contains(got, "agentkernel_sandbox.s") || strings.Contains(got, "agentkernel_exec.e") {
					t.Errorf("state: %s", got)
				}
				c.destroy()
			})
		}
	}
}

// TestCLIAnotherEngine: an engine that is away is an error that names it, and the state is kept.
func TestCLIAnotherEngine(t *testing.T) {
	c := newCLI(t, testenv.Docker)
	c.config(place{typeName: "docker", block: dockerBlock("python")}.job("", `script = "true"`))
	c.must("apply", "-auto-approve", "-no-color")
	before := c.read("terraform.tfstate")
	here := c.env
	c.env = append(c.env, "DOCKER_HOST=tcp://127.0.0.1:1")
	c.fails([]string{"AK5010", "127.0.0.1:1"}, "apply", "-auto-approve", "-no-color")
	c.env = here
	if c.read("terraform.tfstate") != before {
		t.Error("the state changed")
	}
	c.must("plan", "-detailed-exitcode", "-no-color")
	c.destroy()
}

// TestCLIUpgrade: a state that the previous commit's provider wrote plans empty.
func TestCLIUpgrade(t *testing.T) {
	c := newCLI(t, testenv.Local)
	old, source := t.TempDir(), t.TempDir()
	script := exec.CommandContext(t.Context(), "sh", "-c", "git -C ../.. archive HEAD~1 | tar -x -C "+source)
	if out, err := script.CombinedOutput(); err != nil || len(out) > 0 {
		testenv.Skip(t, "history", fmt.Sprintf("the commit before this one is not here: %v %s", err, out), "clone with git clone --depth 2 or more")
	}
	if err := buildProvider(source, old); err != nil {
		t.Fatalf("the previous commit does not build: %v", err)
	}
	c.config(`resource "agentkernel_profile" "r" {
  name = "r"
  type = "docker"
  docker = {}
  policy = { cpu = 1.5, memory_mb = 64 }
}
` + place{typeName: "local_subprocess", block: "{}"}.job(`env = { A = "1" }`, `script = "echo made before"`))
	c.use(old)
	c.must("apply", "-auto-approve", "-no-color")
	c.use(c.bins)
	c.must("plan", "-detailed-exitcode", "-no-color")
	c.destroy()
}

// TestCLIImportWithGeneratedConfiguration: what Terraform writes for an imported sandbox plans empty.
func TestCLIImportWithGeneratedConfiguration(t *testing.T) {
	c := newCLI(t, testenv.Local)
	c.config(place{typeName: "local_subprocess", block: "{}"}.job(`
  env       = { A = "1" }
  labels    = {}
  principal = { subject = "bot", groups = ["a"] }
  timeouts  = { create = "5m" }`, `script = "true"`) + "output \"id\" { value = agentkernel_sandbox.s.id }\n")
	c.must("apply", "-auto-approve", "-no-color")
	other := newCLI(t, testenv.Local)
	other.env = append(other.env, "XDG_STATE_HOME="+c.state)
	other.config(fmt.Sprintf("import {\n  to = agentkernel_sandbox.s\n  id = %q\n}\n", c.must("output", "-raw", "id")))
	other.must("plan", "-generate-config-out=generated.tf", "-no-color")
	if out := other.must("apply", "-auto-approve", "-no-color"); !strings.Contains(out, "1 imported, 0 added, 0 changed, 0 destroyed") {
		t.Errorf("the import changes something:\n%s\n%s", other.read("generated.tf"), out)
	}
	other.must("plan", "-detailed-exitcode", "-no-color")
	c.destroy()
}

// TestCLIStateMovesBetweenPrograms: what one of Terraform and OpenTofu has made, the other finds as it was, and destroys.
func TestCLIStateMovesBetweenPrograms(t *testing.T) {
	programs := testenv.BothCLIs(t)
	for i, first := range programs {
		second := programs[1-i]
		t.Run(fmt.Sprintf("from %s to %s", first, second), func(t *testing.T) {
			c := newCLI(t, testenv.Local)
			c.config(place{typeName: "local_subprocess", block: "{}"}.job(`env = { A = "1" }`, `script = "echo made by the first"`))
			c.program = first.Path
			c.must("apply", "-auto-approve", "-no-color")
			before := c.addresses()
			c.program = second.Path
			if !second.OpenTofu {
				// OpenTofu takes a provider of Terraform's registry for the same of its own; Terraform wants to be told.
				c.must("state", "replace-provider", "-auto-approve", first.RegistryHost()+"/agentkernel/agentkernel", second.RegistryHost()+"/agentkernel/agentkernel")
			}
			c.must("plan", "-detailed-exitcode", "-no-color")
			if got := c.addresses(); got != before || got == "" {
				t.Errorf("%s finds %q, and %s made %q", second, got, first, before)
			}
			c.destroy()
		})
	}
}
