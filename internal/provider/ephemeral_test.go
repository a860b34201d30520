package provider_test

import (
	"archive/zip"
	"context"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

func TestEphemeralExec(t *testing.T) {
	fake := newFake()
	exit := 0
	fake.OnRun = func(_ context.Context, req sandboxcore.RunRequest, stdout, _ io.Writer) (sandboxcore.RunResult, error) {
		if req.KeepBackground {
			t.Error("an ephemeral run may leave something behind")
		}
		_, _ = io.WriteString(stdout, "minted\x1b "+req.Env["T"])
		return sandboxcore.RunResult{ExitCode: exit}, nil
	}
	fake.OnReadFile = func(string, int64) ([]byte, error) { return []byte("abc"), nil }
	s := newServer(t, fake, withSecret)
	spec := profile(t, s, nil)
	box := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": spec})
	for name, where := range map[string]config{"one-shot": {"profile": spec}, "binding": {"binding": binding(box)}} {
		t.Run(name, func(t *testing.T) {
			got, d := s.Open(tExec, where.With(config{
				"script": "mint", "secret_env": config{"T": "token"}, "output_files": []string{"f"}, "base64_output": true, "principal": config{"subject": "ann"},
			}))
			noErrors(t, d)
			if got.Get("stdout") != `minted\x1b ***` || got.Get("exit_code") != float64(0) || got.Get("files", "f", "size") != float64(3) || got.Get("stdout_base64") == nil {
				t.Errorf("%s", got.JSON())
			}
			if objects := fake.Objects(); len(objects) != 1 {
				t.Errorf("left behind: %v", objects)
			}
		})
	}
	t.Run("failure", func(t *testing.T) {
		exit = 3
		_, d := s.Open(tExec, config{"profile": spec, "script": "mint", "secret_env": config{"T": "token"}})
		wantError(t, d, "AK5006", "Exit status: 3", "***")
		if strings.Contains(d.String(), secretValue) {
			t.Errorf("the secret is shown: %s", d)
		}
		if objects := fake.Objects(); len(objects) != 1 {
			t.Errorf("left behind: %v", objects)
		}
	})
	t.Run("refused before anything runs", func(t *testing.T) {
		runs := fake.Count("run")
		for _, c := range []struct {
			cfg  config
			want string
		}{
			{config{"profile": spec, "code": "1", "language": "cobol"}, "AK4001"},
			{config{"profile": spec, "code": "1", "secret_env": config{"T": "nothing"}}, "AK1003"},
			{config{"profile": spec, "code": "1", "script": "1"}, "script"},
			{config{"script": "1"}, "binding"},
		} {
			_, d := s.Open(tExec, c.cfg)
			wantError(t, d, c.want)
		}
		if fake.Count("run") != runs {
			t.Error("something ran")
		}
	})
	t.Run("a secret that is not known yet", func(t *testing.T) {
		waiting := newServer(t, newFake(), config{"secrets": protocoltest.Unknown})
		_, d := waiting.Open(tExec, config{"profile": spec, "script": "x", "secret_env": config{"T": "token"}})
		wantError(t, d, "AK3003", "not known yet")
	})
}

// TestEphemeralExecThatIsCancelled: whatever the call that Terraform's stop meets, the run ends and what was made for it goes.
func TestEphemeralExecThatIsCancelled(t *testing.T) {
	for _, call := range []string{"identity", "admit", "create", "created", "find", "run"} {
		for _, where := range []string{"profile", "binding"} {
			if made := call == "create" || call == "created"; made && where == "binding" || call == "find" && where == "profile" {
				continue // is not called there
			}
			t.Run(call+", "+where, func(t *testing.T) {
				fake := newFake()
				s := newServer(t, fake, config{})
				spec := profile(t, s, nil)
				cfg := config{"profile": spec, "script": "x"}
				if where == "binding" {
					cfg = config{"binding": binding(s.MustApply(tSandbox, protocoltest.State{}, config{"profile": spec})), "script": "x"}
				}
				before := fake.Objects()
				in := make(chan struct{}, 1)
				fake.SetFail(func(ctx context.Context, name string) error {
					if name != call {
						return nil
					}
					select {
					case in <- struct{}{}:
					default:
					}
					<-ctx.Done()
					return ctx.Err()
				})
				done := make(chan protocoltest.Diags, 1)
				go func() {
					_, d := s.Open(tExec, cfg)
					done <- d
				}()
				<-in
				s.Stop()
				select {
				case d := <-done:
					if !d.HasError() {
						t.Error("an interrupted run reports success")
					}
				case <-time.After(10 * time.Second):
					t.Fatal("it goes on after Stop")
				}
				if left := fake.Objects(); !slices.Equal(left, before) {
					t.Errorf("left behind: %v, before it %v", left, before)
				}
			})
		}
	}
}

// TestEphemeralExecFaults: a fault of any call is an error that says so and gives no result, and leaves nothing that could be
// removed.
func TestEphemeralExecFaults(t *testing.T) {
	for call, want := range map[string][]string{
		"connect": {"AK5010", "injected"}, "identity": {"AK5010", "injected"}, "admit": {"injected"}, "create": {"injected"}, "created": {"injected"},
		"run": {"AK5004", "injected"}, "read": {"injected"}, "destroy": {"injected", "docker/fake-1"},
	} {
		t.Run(call, func(t *testing.T) {
			fake := newFake()
			s := newServer(t, fake, withSecret)
			cfg := config{"profile": profile(t, s, nil), "script": "x", "output_files": []string{"f"}, "secret_env": config{"T": "token"}}
			fake.OnReadFile = func(string, int64) ([]byte, error) { return []byte("abc"), nil }
			fake.SetFail(func(_ context.Context, name string) error {
				if name == call {
					return errors.New("injected failure, " + secretValue)
				}
				return nil
			})
			got, d := s.Open(tExec, cfg)
			wantError(t, d, want...)
			if got.Exists() || d.Has(secretValue) {
				t.Errorf("it gives %s\n%s", got.JSON(), d)
			}
			if left := fake.Objects(); (call == "destroy") != (len(left) == 1) {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// TestCLIEphemeralResultIsNowhere: the result of an ephemeral run goes into a sandbox and a file of it, and is neither in the
// saved plan nor in the state.
func TestCLIEphemeralResultIsNowhere(t *testing.T) {
	c := newCLI(t, testenv.Local, testenv.Ephemeral, testenv.WriteOnly)
	const minted = "minted-by-an-ephemeral-run" // in two halves in the configuration
	c.config(`
data "agentkernel_profile" "p" {
  name = "p"
  type = "local_subprocess"
  local_subprocess = {}
}
ephemeral "agentkernel_exec" "mint" {
  profile = data.agentkernel_profile.p.spec
  script  = "echo run >> '` + c.dir + `/runs'; printf %s%s minted-by- an-ephemeral-run"
}
resource "agentkernel_sandbox" "s" {
  profile        = data.agentkernel_profile.p.spec
  env_wo         = { MINTED = ephemeral.agentkernel_exec.mint.stdout }
  env_wo_version = 1
}
resource "agentkernel_file" "f" {
  binding            = agentkernel_sandbox.s.binding
  path               = "minted"
  content_wo         = ephemeral.agentkernel_exec.mint.stdout
  content_wo_version = 1
}
resource "agentkernel_exec" "e" {
  binding    = agentkernel_sandbox.s.binding
  depends_on = [agentkernel_file.f]
  script     = "test \"$MINTED\" = \"$(cat minted)\" && printf %s \"$MINTED\" | sha256sum"
}
output "sum" { value = agentkernel_exec.e.stdout }
output "file" { value = agentkernel_file.f.sha256 }
`)
	c.must("plan", "-out=saved", "-no-color")
	shown := c.must("show", "-json", "saved")
	c.must("apply", "-no-color", "saved")
	c.must("plan", "-detailed-exitcode", "-no-color")
	if got := strings.Fields(c.must("output", "-raw", "sum"))[0]; got != sandboxcore.FileDigest([]byte(minted)) || c.must("output", "-raw", "file") != got {
		t.Errorf("the sandbox has %s, the file %s", got, c.must("output", "-raw", "file"))
	}
	if runs := strings.Count(c.read("runs"), "run"); runs != 3 {
		t.Errorf("%d runs in two plans and an apply", runs)
	}
	plan, err := zip.OpenReader(filepath.Join(c.dir, "saved"))
	if err != nil {
		t.Fatal(err)
	}
	defer plan.Close()
	texts := map[string]string{"show -json": shown, "state": c.read("terraform.tfstate")}
	for _, f := range plan.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		texts["saved plan, "+f.Name] = string(text)
	}
	for name, text := range texts {
		if strings.Contains(text, minted) || text == "" {
			t.Errorf("%s: it has the result, or is empty", name)
		}
	}
	c.destroy()
}

// TestEphemeralArgumentsAreNoNews: arguments of an ephemeral resource may themselves be ephemeral values. What a run prints of
// them stands in its result, which is kept nowhere, and not in an error, which stands in the log of a pipeline.
func TestEphemeralArgumentsAreNoNews(t *testing.T) {
	fake := newFake()
	exit := 0
	fake.OnRun = func(_ context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
		_, _ = io.WriteString(stdout, req.Env["TOKEN"])
		_, _ = stderr.Write(req.Stdin)
		return sandboxcore.RunResult{ExitCode: exit}, nil
	}
	s := newServer(t, fake, config{})
	cfg := config{"profile": profile(t, s, nil), "script": "x", "env": config{"TOKEN": "ephemeral-token"}, "stdin": "ephemeral-input"}
	opened, d := s.Open(tExec, cfg)
	noErrors(t, d)
	if opened.Get("stdout") != "ephemeral-token" || opened.Get("stderr") != "ephemeral-input" {
		t.Errorf("the result is %s", opened.JSON())
	}
	exit = 3
	_, d = s.Open(tExec, cfg)
	wantError(t, d, "AK5006", "***")
	if strings.Contains(d.String(), "ephemeral-token") || strings.Contains(d.String(), "ephemeral-input") {
		t.Errorf("told: %s", d)
	}
}
