package provider_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const secretValue = "hunter2hunter2"

var withSecret = config{"secrets": config{"token": secretValue}}

// The tests below run under a clock that stands still while anything runs, and fail when a goroutine is left.

func TestActionShowsOutputInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		const perSecond, seconds = 10_000, 3
		fake.OnRun = func(_ context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
			if req.Env["T"] != secretValue {
				return sandboxcore.RunResult{}, errors.New("no secret arrived")
			}
			for i := range perSecond * seconds {
				to := stdout
				if i%2 == 1 {
					to = stderr
				}
				_, _ = fmt.Fprintf(to, "\x1b[31mline %d\x1b[0m \x9b2J %s\r\n", i, secretValue)
				time.Sleep(time.Second / perSecond)
			}
			_, _ = io.WriteString(stdout, "the end without a newline")
			return sandboxcore.RunResult{Duration: seconds * time.Second}, nil
		}
		s := newServer(t, fake, withSecret)
		inv := s.Invoke(tExec, config{"profile": profile(t, s, nil), "script": "x", "secret_env": config{"T": "token"}})
		noErrors(t, inv.Wait())
		sent := inv.Progress()
		if len(sent) < seconds*2 {
			t.Errorf("only %d messages", len(sent))
		}
		all := ""
		for i, p := range sent {
			if i >= 4 && p.At.Sub(sent[i-4].At) < time.Second {
				t.Errorf("more than four messages within a second: %v", p.At.Sub(sent[i-4].At))
			}
			if i > 0 && i < len(sent)-1 && p.At.Sub(sent[i-1].At) < 250*time.Millisecond {
				t.Errorf("a message after only %v", p.At.Sub(sent[i-1].At))
			}
			if len(p.Message) > 20<<10 {
				t.Errorf("a message of %d bytes", len(p.Message))
			}
			if strings.ContainsAny(p.Message, "\x1b\r\u009b") || strings.Contains(p.Message, secretValue) || !strings.Contains(p.Message+`\x1b`, `\x1b`) {
				t.Fatalf("a raw message: %q", p.Message[:min(len(p.Message), 300)])
			}
			all += p.Message + "\n"
		}
		for _, want := range []string{`\x1b[31mline 0\x1b[0m`, "***", "lines left out", "the end without a newline", "ended with exit status 0 after 3s"} {
			if !strings.Contains(all, want) {
				t.Errorf("no message says %q", want)
			}
		}
	})
}

func TestActionThatIsCancelledIsSilentAndDead(t *testing.T) {
	for name, cfg := range map[string]func(t *testing.T, s *protocoltest.Server) config{
		"one-shot": func(t *testing.T, s *protocoltest.Server) config { return config{"profile": profile(t, s, nil)} },
		"binding": func(t *testing.T, s *protocoltest.Server) config {
			return config{"binding": binding(s.MustApply(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil)}))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake := newFake()
				killed := false
				fake.OnRun = func(ctx context.Context, _ sandboxcore.RunRequest, stdout, _ io.Writer) (sandboxcore.RunResult, error) {
					for ctx.Err() == nil {
						_, _ = io.WriteString(stdout, "working\n")
						time.Sleep(10 * time.Millisecond)
					}
					for range 500 { // dying takes its time and goes on printing
						_, _ = io.WriteString(stdout, "dying\n")
						time.Sleep(10 * time.Millisecond)
					}
					killed = true
					return sandboxcore.RunResult{}, ctx.Err()
				}
				s := newServer(t, fake, config{})
				inv := s.Invoke(tExec, cfg(t, s).With(config{"script": "x"}))
				time.Sleep(time.Second)
				s.Stop()
				started := time.Now()
				inv.Wait()
				if took := time.Since(started); !killed || took < 4*time.Second || took > 10*time.Second {
					t.Errorf("killed %v, after %v", killed, took)
				}
				if got := fake.Objects(); name == "one-shot" && len(got) != 0 {
					t.Errorf("left behind: %v", got)
				}
				before := 0
				for _, p := range inv.Progress() {
					if p.AfterStop {
						t.Errorf("said after the cancellation: %q", p.Message)
					}
					before++
				}
				if before == 0 {
					t.Error("nothing was said before the cancellation either")
				}
			})
		})
	}
}

func TestActionEndsAtItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		fake.OnRun = func(ctx context.Context, _ sandboxcore.RunRequest, stdout, _ io.Writer) (sandboxcore.RunResult, error) {
			_, _ = io.WriteString(stdout, "waiting\n")
			<-ctx.Done()
			return sandboxcore.RunResult{}, ctx.Err()
		}
		s := newServer(t, fake, config{})
		started := time.Now()
		d := s.Invoke(tExec, config{"profile": profile(t, s, nil), "script": "x", "timeouts": config{"invoke": "3s"}}).Wait()
		wantError(t, d, "AK5001", "timeouts.invoke", "waiting")
		if took := time.Since(started); took != 3*time.Second {
			t.Errorf("ended after %v", took)
		}
	})
}

func TestActionReportsFailure(t *testing.T) {
	fake := newFake()
	fake.OnRun = func(_ context.Context, _ sandboxcore.RunRequest, _, stderr io.Writer) (sandboxcore.RunResult, error) {
		_, _ = io.WriteString(stderr, "no such table "+secretValue)
		return sandboxcore.RunResult{ExitCode: 3}, nil
	}
	s := newServer(t, fake, withSecret)
	cfg := config{"profile": profile(t, s, nil), "script": "x", "secret_env": config{"T": "token"}}
	inv := s.Invoke(tExec, cfg)
	wantError(t, inv.Wait(), "AK5006", "Exit status: 3", "no such table ***")
	if shown := inv.Progress(); len(shown) != 1 || shown[0].Message != "no such table ***" {
		t.Errorf("shown: %v", shown)
	}
	noErrors(t, s.Invoke(tExec, cfg.With(config{"success_exit_codes": []any{0, 3}})).Wait())
}

func TestActionIsCheckedAtPlan(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, withSecret)
	spec := profile(t, s, nil)
	box := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": spec})
	good := config{"binding": binding(box), "code": "print(1)"}
	for name, c := range map[string]struct {
		change config
		want   []string
	}{
		"as it is":                {nil, nil},
		"binding not known":       {config{"binding": protocoltest.Unknown}, nil},
		"code not known":          {config{"code": protocoltest.Unknown}, nil},
		"two texts":               {config{"script": "x"}, []string{"script"}},
		"nowhere":                 {config{"binding": nil}, []string{"binding", "profile"}},
		"language":                {config{"language": "cobol"}, []string{"AK4001", "cobol"}},
		"beyond the policy":       {config{"timeout": "1h"}, []string{"AK1003"}},
		"no such secret":          {config{"secret_env": config{"T": "nothing"}}, []string{"AK1003", "nothing"}},
		"principal":               {config{"principal": config{"mode": "user", "subject": "ann"}}, []string{"AK300"}},
		"malformed invoke limit":  {config{"timeouts": config{"invoke": "soon"}}, []string{"soon"}},
		"unknown limit is no bar": {config{"timeout": protocoltest.Unknown}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			runs := fake.Count("run")
			d := s.PlanAction(tExec, good.With(c.change))
			if c.want == nil {
				noErrors(t, d)
			} else {
				wantError(t, d, c.want...)
			}
			if fake.Count("run") != runs {
				t.Error("the plan ran the code")
			}
		})
	}
	t.Run("the apply checks again", func(t *testing.T) {
		wantError(t, s.Invoke(tExec, good.With(config{"language": "cobol"})).Wait(), "AK4001")
	})
}

// TestActionTimeLimitIsOne: as on a sandbox, zero is the default, and less is refused.
func TestActionTimeLimitIsOne(t *testing.T) {
	s := newServer(t, newFake(), config{})
	cfg := config{"profile": profile(t, s, nil), "script": "x"}
	noErrors(t, s.Invoke(tExec, cfg.With(config{"timeouts": config{"invoke": "0s"}})).Wait())
	wantError(t, s.PlanAction(tExec, cfg.With(config{"timeouts": config{"invoke": "-5m"}})), "negative")
	wantError(t, s.PlanAction(tExec, cfg.With(config{"timeouts": config{"invoke": "soon"}})), "Duration")
}
