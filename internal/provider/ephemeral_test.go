package provider_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
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
