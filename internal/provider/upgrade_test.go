package provider_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
)

// written is one object as a release wrote it, with the configuration it was made from.
type written struct {
	Config config          `json:"config"`
	State  json.RawMessage `json:"state"`
}

// TestStatesOfOlderReleases: the objects under testdata/states/<release> are read, refreshed and planned, and the plan is
// empty. A release adds its files and removes none. AGENTKERNEL_TEST_WRITE_STATES=<release> writes those of this tree.
func TestStatesOfOlderReleases(t *testing.T) {
	if release := os.Getenv("AGENTKERNEL_TEST_WRITE_STATES"); release != "" {
		writeStates(t, filepath.Join("testdata", "states", release))
	}
	files, err := filepath.Glob("testdata/states/*/*.json")
	if err != nil || len(files) < 3 {
		t.Fatalf("found %v (%v)", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimPrefix(file, "testdata/states/"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var w written
			if err := json.Unmarshal(text, &w); err != nil {
				t.Fatal(err)
			}
			typeName, _, _ := strings.Cut(filepath.Base(file), ".")
			s := newServer(t, newFake(), config{"secrets": config{"token": "hunter2hunter2"}})
			if typeName == tSandbox { // the sandbox that the state speaks of
				s.MustApply(tSandbox, protocoltest.State{}, w.Config)
			}
			state, d := s.Upgrade(typeName, 0, w.State)
			noErrors(t, d)
			state, d = s.Read(state)
			noErrors(t, d)
			p := s.Plan(typeName, state, w.Config)
			noErrors(t, p.Diags)
			if p.Action != protocoltest.NoOp {
				t.Errorf("%s\nstate %s\nplan  %s", p.Action, state.JSON(), p.JSON())
			}
		})
	}
}

// TestGoneSandboxOfAnOlderRelease: a state without an identity is refreshed to nothing when the sandbox is gone, and so is
// an import of something that does not exist.
func TestGoneSandboxOfAnOlderRelease(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	state := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil)})
	fake.Remove("fake-1")
	state.Identity = nil
	gone, d := s.Read(state)
	noErrors(t, d)
	if gone.Exists() || !d.Warnings().Has("Sandbox Gone") {
		t.Errorf("gone: %s", d)
	}
	left, d := s.Import(tSandbox, "docker/fake-1")
	if d.HasError() || left.Exists() {
		t.Errorf("import: %s %s", d, left.JSON())
	}
}

func writeStates(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := newServer(t, newFake(), config{"secrets": config{"token": "hunter2hunter2"}})
	write := func(typeName string, cfg config) protocoltest.State {
		state := s.MustApply(typeName, protocoltest.State{}, cfg)
		text, err := json.MarshalIndent(written{cfg, json.RawMessage(state.JSON())}, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, typeName+".json"), append(text, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		return state
	}
	p := write(tProfile, config{
		"name": "p", "type": "docker", "docker": config{"image": "x", "caps": []string{"B", "A"}, "nested": config{"deep": "y"}},
		"policy": config{"cpu": 1.5, "memory_mb": 64, "network_egress": "deny", "fs_allow_write": []string{"/b", "/a"}},
	})
	box := write(tSandbox, config{
		"profile": p.Get("spec"), "env": config{"A": "1"}, "secret_env": config{"T": "token"}, "labels": config{}, "timeouts": config{"create": "5m"},
		"principal": config{"subject": "bot", "groups": []string{"g"}},
	})
	write(tExec, config{
		"binding": binding(box), "code": "print(1)", "env": config{"A": "1"}, "output_files": []string{}, "base64_output": true,
		"success_exit_codes": []any{0, 1}, "triggers": config{"a": "b"}, "timeout": "5s", "destroy_script": "true",
	})
}
