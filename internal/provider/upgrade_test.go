package provider_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	akprovider "github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// written is one object as a release wrote it, with the configuration it was made from.
type written struct {
	Config config          `json:"config"`
	State  json.RawMessage `json:"state"`
	// Version is the version of the resource's schema that wrote it.
	Version int64 `json:"schema_version"`
	// Real: a real backend was at work, and what is particular to its machine was replaced. There is nothing to refresh.
	Real bool `json:"real"`
}

// realStates are the backends with which the states of every resource are written.
var realStates = map[sandboxcore.BackendType]struct {
	part     testenv.Part
	settings config
}{
	sandboxcore.BackendLocalSubprocess: {"local", config{}},
	sandboxcore.BackendBubblewrap:      {"bubblewrap", config{}},
	sandboxcore.BackendDocker:          {"docker", config{"image": testenv.Image("python"), "pull_policy": "never"}},
	sandboxcore.BackendKubernetes:      {"kubernetes", config{"image": testenv.Image("python")}},
}

// TestStatesOfOlderReleases: the objects under testdata/states/<release> are read, refreshed and planned, and the plan is
// empty. A release adds its files and removes none. AGENTKERNEL_TEST_WRITE_STATES=<release> writes those of this tree.
func TestStatesOfOlderReleases(t *testing.T) {
	if release := os.Getenv("AGENTKERNEL_TEST_WRITE_STATES"); release != "" {
		dir := filepath.Join("testdata", "states", release)
		writeStates(t, dir)
		writeRealStates(t, dir)
	}
	files, err := filepath.Glob("testdata/states/*/*.json")
	if err != nil || len(files) < 3 {
		t.Fatalf("found %v (%v)", files, err)
	}
	home := stateHome(t)
	machine := newRealServer(t, func(name string) string {
		if name == "XDG_STATE_HOME" {
			return home
		}
		return ""
	})
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
			typeName, rest, _ := strings.Cut(filepath.Base(file), ".")
			switch backend, _, _ := strings.Cut(rest, "."); sandboxcore.BackendType(backend) {
			case sandboxcore.BackendLocalSubprocess, sandboxcore.BackendBubblewrap: // a plan asks this machine what it has
				testenv.Require(t, realStates[sandboxcore.BackendType(backend)].part)
			}
			s := machine
			if !w.Real {
				s = newServer(t, newFake(), config{"secrets": config{"token": "hunter2hunter2"}})
				if typeName == tSandbox { // the sandbox that the state speaks of
					s.MustApply(tSandbox, protocoltest.State{}, w.Config)
				}
			}
			state, d := s.Upgrade(typeName, w.Version, w.State)
			noErrors(t, d)
			if !w.Real {
				state, d = s.Read(state)
				noErrors(t, d)
			}
			p := s.Plan(typeName, state, w.Config)
			noErrors(t, p.Diags)
			if p.Action != protocoltest.NoOp {
				t.Errorf("%s\nstate %s\nplan  %s", p.Action, state.JSON(), p.JSON())
			}
		})
	}
	t.Run("nothing is forgotten", func(t *testing.T) {
		dirs, err := filepath.Glob("testdata/states/*")
		if err != nil {
			t.Fatal(err)
		}
		newest := slices.MaxFunc(dirs, func(a, b string) int { return slices.Compare(release(t, a), release(t, b)) })
		has := func(typeName, backend string) {
			if _, err := os.Stat(filepath.Join(newest, typeName+"."+backend+".json")); err != nil {
				t.Errorf("%s has no state of %s with %s", newest, typeName, backend)
			}
		}
		for typeName := range machine.Schema().ResourceSchemas {
			for backend := range realStates {
				has(typeName, string(backend))
			}
		}
	})
}

// release gives the numbers of a directory that is named after a release.
func release(t *testing.T, dir string) []int {
	t.Helper()
	out := make([]int, 3)
	if n, err := fmt.Sscanf(filepath.Base(dir), "%d.%d.%d", &out[0], &out[1], &out[2]); n != 3 {
		t.Fatalf("%s: %v", dir, err)
	}
	return out
}

// newRealServer is a provider with the real backends.
func newRealServer(t *testing.T, getenv func(string) string) *protocoltest.Server {
	t.Helper()
	s := protocoltest.New(t, akprovider.New("test", backends.Registry(), akprovider.WithGetenv(getenv)))
	if d := s.Configure(config{"secrets": config{"token": "hunter2hunter2"}}); d.HasError() {
		t.Fatal(d)
	}
	return s
}

// writeRealStates makes each resource with each backend of realStates, writes its state without what is particular to this
// machine, and takes everything down again.
func writeRealStates(t *testing.T, dir string) {
	t.Helper()
	home := stateHome(t)
	s := newRealServer(t, func(name string) string {
		if name == "XDG_STATE_HOME" {
			return home
		}
		return os.Getenv(name)
	})
	for backend, c := range realStates {
		testenv.Require(t, c.part)
		profile := config{"name": "p", "type": string(backend), string(backend): c.settings, "policy": config{"timeout": 60}}
		p := s.MustApply(tProfile, protocoltest.State{}, profile)
		box := config{
			"profile": p.Get("spec"), "name": "upgrade-test", "env": config{"A": "1"}, "secret_env": config{"T": "token"}, "labels": config{"team": "x"},
			"timeouts": config{"create": "5m"},
		}
		made := s.MustApply(tSandbox, protocoltest.State{}, box)
		run := config{"binding": binding(made), "script": "echo out; echo err >&2; exit 3", "success_exit_codes": []any{3}, "env": config{"B": "2"}, "triggers": config{"a": "b"}}
		ran := s.MustApply(tExec, protocoltest.State{}, run)
		file := config{"binding": binding(made), "path": "data/f.txt", "content": "text"}
		put := s.MustApply(tFile, protocoltest.State{}, file)
		native, _ := made.Get("native_id").(string)
		endpoint, _ := made.Get("endpoint").(string)
		runID, _ := ran.Get("run_id").(string)
		times := regexp.MustCompile(`"20\d\d-\d\d-\d\dT[0-9:.]+Z"`)
		for typeName, w := range map[string]struct {
			cfg   config
			state protocoltest.State
		}{tProfile: {profile, p}, tSandbox: {box, made}, tExec: {run, ran}, tFile: {file, put}} {
			text, err := json.MarshalIndent(written{w.cfg, json.RawMessage(w.state.JSON()), s.Schema().ResourceSchemas[typeName].Version, true}, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			out := strings.NewReplacer(native, "native-id", endpoint, "endpoint", runID, "run-id", home, "/home").Replace(string(text))
			out = times.ReplaceAllString(out, `"2026-01-01T00:00:00Z"`)
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%s.json", typeName, backend)), []byte(out+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, state := range []protocoltest.State{put, ran, made} {
			if _, d := s.Apply(s.PlanDestroy(state)); d.HasError() {
				t.Errorf("destroy: %s", d)
			}
		}
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
		text, err := json.MarshalIndent(written{Config: cfg, State: json.RawMessage(state.JSON()), Version: s.Schema().ResourceSchemas[typeName].Version}, "", "  ")
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
