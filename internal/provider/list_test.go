package provider_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
)

const tSandboxes = "agentkernel_sandboxes"

func TestSandboxesAreListed(t *testing.T) {
	const many = 250
	fake := newFake()
	s := newServer(t, fake, config{})
	spec, other := profile(t, s, nil), profile(t, s, config{"policy": config{"cpu": 2}})
	for i := range many {
		cfg := config{"profile": spec, "name": fmt.Sprintf("box-%d", i%10), "labels": map[string]string{"team": "a", "half": fmt.Sprint(i % 2)}}
		if i == 7 {
			cfg["profile"] = other
		}
		s.MustApply(tSandbox, protocoltest.State{}, cfg)
	}
	fake.AddAlien()

	all := s.List(tSandbox, config{}, 0, false, 0)
	seen := map[any]bool{}
	for _, l := range all {
		noErrors(t, l.Diags)
		if l.Resource.Exists() {
			t.Fatalf("a resource that nobody asked for: %s", l.Resource.JSON())
		}
		if id, _ := l.Identity["native_id"].(string); !strings.HasSuffix(l.DisplayName, "(docker/"+id+")") || l.Identity["endpoint"] != "fake-endpoint" {
			t.Fatalf("%q has the identity %v", l.DisplayName, l.Identity)
		}
		seen[l.Identity["native_id"]] = true
	}
	if len(all) != many || len(seen) != many {
		t.Errorf("%d results, %d sandboxes", len(all), len(seen))
	}
	for limit, want := range map[int64]int{1: 1, 100: 100, many: many, many + 1: many} {
		if got := s.List(tSandbox, config{}, limit, false, 0); len(got) != want {
			t.Errorf("limit %d gives %d", limit, len(got))
		}
	}
	if got := s.List(tSandbox, config{}, 0, false, 3); len(got) != 3 {
		t.Errorf("whoever stops after 3 gets %d", len(got))
	}

	made := s.MustApply(tProfile, protocoltest.State{}, config{"name": "p", "type": "docker", "docker": config{}, "policy": config{"cpu": 2}})
	for name, c := range map[string]struct {
		filter config
		want   int
	}{
		"name":            {config{"name": "box-3"}, many / 10},
		"labels":          {config{"labels": map[string]string{"team": "a", "half": "1"}}, many / 2},
		"labels, no such": {config{"labels": map[string]string{"team": "a", "half": ""}}, 0},
		"fingerprint":     {config{"fingerprint": made.Get("fingerprint")}, 1},
		"all of them":     {config{"name": "box-7", "labels": map[string]string{"half": "1"}, "fingerprint": made.Get("fingerprint"), "backend": "docker"}, 1},
		"backend":         {config{"backend": "docker"}, many},
		"other backend":   {config{"backend": "local_subprocess"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := s.List(tSandbox, c.filter, 0, false, 0); len(got) != c.want {
				t.Errorf("the list resource gives %d, want %d", len(got), c.want)
			}
			data, d := s.ReadData(tSandboxes, c.filter)
			noErrors(t, d)
			if got, _ := data.Get("sandboxes").([]any); len(got) != c.want {
				t.Errorf("the data source gives %d, want %d", len(got), c.want)
			}
		})
	}
	if got := s.List(tSandbox, config{"backend": "no-such"}, 0, false, 0); len(got) != 1 || !got[0].Diags.HasError() {
		t.Errorf("an unknown backend gives %v", got)
	}
}

// TestListedSandboxIsImported: what the list gives for an object is what an import of it gives, so that the configuration
// that Terraform generates from it plans nothing. The object here is an orphan: no state ever knew it.
func TestListedSandboxIsImported(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{"secrets": config{"token": "hunter2hunter2"}})
	cfg := config{
		"profile": profile(t, s, nil), "name": "orphan", "env": map[string]string{"A": "1"}, "secret_env": map[string]string{"T": "token"},
		"labels": map[string]string{"team": "x"}, "packages": []string{"rich"}, "timeouts": config{"create": "5m"}, "desired_state": "paused",
	}
	s.MustApply(tSandbox, protocoltest.State{}, cfg)

	found := s.List(tSandbox, config{}, 0, true, 0)
	if len(found) != 1 {
		t.Fatalf("found %v", found)
	}
	noErrors(t, found[0].Diags)
	imported, d := s.ImportIdentity(tSandbox, found[0].Identity)
	noErrors(t, d)
	if !imported.Value.Equal(found[0].Resource.Value) {
		t.Errorf("listed   %s\nimported %s", found[0].Resource.JSON(), imported.JSON())
	}
	s.MustBeSettled(imported, cfg)
	if strings.Contains(found[0].Resource.JSON(), "hunter2") {
		t.Errorf("a secret is listed: %s", found[0].Resource.JSON())
	}

	data, d := s.ReadData(tSandboxes, config{})
	noErrors(t, d)
	list, _ := data.Get("sandboxes").([]any)
	one, _ := list[0].(map[string]any)
	for name, want := range map[string]any{"id": "docker/fake-1", "name": "orphan", "status": "paused", "spec": cfg["profile"], "endpoint": "fake-endpoint"} {
		if one[name] != want {
			t.Errorf("%s is %v, want %v", name, one[name], want)
		}
	}
}

// TestListGoesOnAfterAFault: what cannot be shown of one sandbox, or asked of one backend, is an error in the stream, and the
// rest is listed. Whoever may write the marks of an object cannot write to the terminal.
func TestListGoesOnAfterAFault(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	cfg := config{"profile": profile(t, s, nil)}
	for range 3 {
		s.MustApply(tSandbox, protocoltest.State{}, cfg)
	}
	fake.SetMarks("fake-2", func(m *sandboxcore.Marks) { m.Name, m.Spec = "a\x1b[31mb\nc", `{"v":99}` })
	for _, whole := range []bool{false, true} {
		listed := s.List(tSandbox, config{}, 0, whole, 0)
		if len(listed) != 3 {
			t.Fatalf("%d are listed", len(listed))
		}
		faults := 0
		for _, l := range listed {
			if bad := l.Diags.Errors().Has("AK1005", "docker/fake-2"); l.Diags.HasError() != bad || l.Resource.Exists() != (whole && !bad) {
				t.Errorf("whole objects %v: %s gives %s, %s", whole, l.DisplayName, l.Resource.JSON(), l.Diags)
			} else if bad {
				faults++
			}
			if l.Identity["native_id"] == "fake-2" && l.DisplayName != `a\x1b[31mb\nc (docker/fake-2)` {
				t.Errorf("shown as %q", l.DisplayName)
			}
		}
		if want := map[bool]int{true: 1}[whole]; faults != want {
			t.Errorf("whole objects %v: %d faults", whole, faults)
		}
	}

	t.Run("a backend of the provider block, after others", func(t *testing.T) {
		other := &backendtest.Fake{Type: sandboxcore.BackendE2B, ProviderSettings: newFake().ProviderSettings, Settings: []sandboxcore.Setting{}}
		s := protocoltest.New(t, provider.New("test", sandboxcore.NewRegistry(fake.Factory(), other.Factory()), provider.WithGetenv(func(string) string { return "" })))
		noErrors(t, s.Configure(config{"e2b": config{}}))
		other.SetFail(func(_ context.Context, call string) error {
			if call == "list" {
				return &sandboxcore.Error{Code: sandboxcore.CodeUnreachable, Attempted: "the server was not called", Said: "connection refused", Attribute: []string{"e2b", "api_key"}}
			}
			return nil
		})
		listed := s.List(tSandbox, config{}, 0, false, 0)
		if len(listed) != 4 || !listed[3].Diags.Errors().Has("AK5010", "connection refused") {
			t.Errorf("%d are listed, the last of them %v", len(listed), listed[len(listed)-1].Diags)
		}
		if named := s.List(tSandbox, config{"backend": "e2b"}, 0, false, 0); len(named) != 1 || !named[0].Diags.Errors().Has("at backend", "AK5010") {
			t.Errorf("%v", named)
		}
		other.SetFail(nil)
		// A limit that is reached asks nobody else.
		lists := other.Count("list")
		if listed := s.List(tSandbox, config{}, 2, false, 0); len(listed) != 2 || other.Count("list") != lists {
			t.Errorf("%d are listed, the other backend was asked %d times", len(listed), other.Count("list")-lists)
		}
	})
}

func TestListSaysWhatItCouldNotAsk(t *testing.T) {
	fake := newFake()
	fail := func(_ context.Context, call string) error {
		if call == "list" {
			return errors.New("connection refused, hunter2hunter2")
		}
		return nil
	}
	secrets := config{"secrets": config{"token": "hunter2hunter2"}}

	t.Run("a backend that nobody named is left out", func(t *testing.T) {
		s := newServer(t, fake, secrets)
		fake.SetFail(fail)
		got := s.List(tSandbox, config{}, 0, false, 0)
		if len(got) != 1 || got[0].Diags.HasError() || !got[0].Diags.Warnings().Has("docker", "connection refused") || got[0].Diags.Has("hunter2") {
			t.Errorf("%v", got)
		}
		data, d := s.ReadData(tSandboxes, config{})
		noErrors(t, d)
		if reason, _ := data.Get("unreachable", "docker").(string); !strings.Contains(reason, "connection refused") || strings.Contains(reason, "hunter2") {
			t.Errorf("%s", data.JSON())
		}
	})
	t.Run("a backend of the provider block is an error", func(t *testing.T) {
		s := newServer(t, fake, secrets.With(config{"docker": config{"host": "x"}}))
		fake.SetFail(fail)
		for name, filter := range map[string]config{"all": {}, "this one": {"backend": "docker"}} {
			got := s.List(tSandbox, filter, 0, false, 0)
			if len(got) != 1 || !got[0].Diags.HasError() || got[0].Diags.Has("hunter2") {
				t.Errorf("%s: %v", name, got)
			}
			_, d := s.ReadData(tSandboxes, filter)
			wantError(t, d, "connection refused")
		}
	})
	t.Run("so is one that the list names", func(t *testing.T) {
		s := newServer(t, fake, secrets)
		fake.SetFail(fail)
		if got := s.List(tSandbox, config{"backend": "docker"}, 0, false, 0); len(got) != 1 || !got[0].Diags.HasError() {
			t.Errorf("%v", got)
		}
	})
}

// TestListStopsWhenItHasEnough: a limit that is reached with the last sandbox of a backend asks no further one, which might
// not even answer.
func TestListStopsWhenItHasEnough(t *testing.T) {
	fake := newFake()
	other := &backendtest.Fake{Type: sandboxcore.BackendE2B, ProviderSettings: newFake().ProviderSettings, Settings: []sandboxcore.Setting{}}
	s := protocoltest.New(t, provider.New("test", sandboxcore.NewRegistry(fake.Factory(), other.Factory()), provider.WithGetenv(func(string) string { return "" })))
	noErrors(t, s.Configure(config{"e2b": config{}}))
	other.SetFail(func(context.Context, string) error { return errors.New("connection refused") })
	s.MustApply(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil)})
	if got := s.List(tSandbox, config{}, 1, false, 0); len(got) != 1 || got[0].Diags.HasError() || len(other.Calls()) != 0 {
		t.Errorf("%v, and of the other backend %v", got, other.Calls())
	}
}

// TestForeignMarksAreShownClean: whoever may write to the backend could have put anything into the marks. Terraform prints
// what stands in a state.
func TestForeignMarksAreShownClean(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	s.MustApply(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil)})
	long := strings.Repeat("k", sandboxcore.MaxLabelBytes)
	labels := config{long: "whole"}
	s.MustApply(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil), "labels": labels})
	const hostile = "a\x1b]0;owned\a\u202eb"
	marks := map[string]func(*sandboxcore.Marks){
		"name":         func(m *sandboxcore.Marks) { m.Name = hostile },
		"label":        func(m *sandboxcore.Marks) { m.Args.Labels = map[string]string{"l": hostile} },
		"key":          func(m *sandboxcore.Marks) { m.Args.Labels = map[string]string{hostile: "v"} },
		"variable":     func(m *sandboxcore.Marks) { m.Args.Env = map[string]string{hostile: "v"} },
		"secret":       func(m *sandboxcore.Marks) { m.Args.SecretEnv = map[string]string{"V": hostile} },
		"package":      func(m *sandboxcore.Marks) { m.Args.Packages = []string{hostile} },
		"principal":    func(m *sandboxcore.Marks) { m.Args.Principal = &sandboxcore.Principal{Mode: hostile, Subject: hostile} },
		"max_lifetime": func(m *sandboxcore.Marks) { m.Args.MaxLifetime = hostile },
		"timeouts":     func(m *sandboxcore.Marks) { m.Args.Timeouts = map[string]string{"create": hostile} },
	}
	for name, change := range marks {
		t.Run(name, func(t *testing.T) {
			var before sandboxcore.Marks
			fake.SetMarks("fake-1", func(m *sandboxcore.Marks) { before = *m; change(m) })
			defer fake.SetMarks("fake-1", func(m *sandboxcore.Marks) { *m = before })
			clean := func(what, text string) {
				t.Helper()
				// JSON has its own escapes of control characters, and none of these stand in clean text.
				for _, bad := range []string{"\x1b", "\a", "\u202e", `\u001b`, `\u0007`} {
					if strings.Contains(text, bad) {
						t.Errorf("%s has %q: %q", what, bad, text)
					}
				}
			}
			for _, l := range s.List(tSandbox, config{}, 0, true, 0) {
				clean("the list", l.DisplayName+l.Resource.JSON()+l.Diags.String())
			}
			imported, d := s.Import(tSandbox, "docker/fake-1")
			clean("the import", imported.JSON()+d.String())
			data, d := s.ReadData(tSandboxes, config{})
			noErrors(t, d)
			clean("the data source", data.JSON())
		})
	}
	data, d := s.ReadData(tSandboxes, config{"labels": labels})
	noErrors(t, d)
	if got := data.Get("sandboxes"); !strings.Contains(fmt.Sprint(got), long+":whole") {
		t.Errorf("a label that is as long as may be is shown as %v", got)
	}
}

// TestOrphanWithoutItsPackages: the provider was killed while pip ran. Whoever imports the orphan, by whichever way, is told
// of no packages, so that the next apply installs them; one that pip was done with has them.
func TestOrphanWithoutItsPackages(t *testing.T) {
	fake := newFake()
	fake.Live = append(fake.Live, "packages")
	s := newServer(t, fake, config{})
	cfg := config{"profile": profile(t, s, nil), "packages": []string{"rich", "attrs>=24"}}
	looked := false
	fake.OnRun = func(context.Context, sandboxcore.RunRequest, io.Writer, io.Writer) (sandboxcore.RunResult, error) {
		if looked {
			return sandboxcore.RunResult{}, nil
		}
		looked = true
		other := newServer(t, fake, config{}) // of the time after the kill
		imported, d := other.Import(tSandbox, "docker/fake-1")
		noErrors(t, d)
		listed := other.List(tSandbox, config{}, 0, true, 0)
		if len(listed) != 1 || !listed[0].Resource.Value.Equal(imported.Value) {
			t.Errorf("listed %v, imported %s", listed, imported.JSON())
		}
		if got := imported.Get("packages"); got != nil {
			t.Errorf("imported with the packages %v", got)
		}
		p := other.Plan(tSandbox, imported, cfg)
		noErrors(t, p.Diags)
		if p.Action != protocoltest.Update {
			t.Errorf("planned %s", p.Action)
		}
		return sandboxcore.RunResult{}, nil
	}
	s.MustApply(tSandbox, protocoltest.State{}, cfg)
	if !looked {
		t.Fatal("pip did not run")
	}
	imported, d := s.Import(tSandbox, "docker/fake-1")
	noErrors(t, d)
	s.MustBeSettled(imported, cfg)

	t.Run("a record that the code in the sandbox wrote", func(t *testing.T) {
		for name, record := range map[string]string{"nonsense": "\x00[", "more than was asked for": `["rich","evil","attrs>=24"]`, "less": `["rich"]`} {
			fake.OnReadFile = func(string, int64) ([]byte, error) { return []byte(record), nil }
			imported, d := s.Import(tSandbox, "docker/fake-1")
			noErrors(t, d)
			want := map[string]string{"nonsense": "<nil>", "more than was asked for": "[rich attrs>=24]", "less": "[rich]"}[name]
			if got := fmt.Sprint(imported.Get("packages")); got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
		for name, err := range map[string]error{
			"none":      &sandboxcore.Error{Code: sandboxcore.CodeOperation, Attempted: "x", Attribute: []string{"path"}, Err: fs.ErrNotExist},
			"no file":   &sandboxcore.Error{Code: sandboxcore.CodeOperation, Attempted: "x", Attribute: []string{"path"}},
			"too large": errors.New("too large"),
		} {
			fake.OnReadFile = func(string, int64) ([]byte, error) { return nil, err }
			imported, d := s.Import(tSandbox, "docker/fake-1")
			noErrors(t, d)
			if got := imported.Get("packages"); got != nil {
				t.Errorf("%s: %v", name, got)
			}
		}
		for _, code := range []sandboxcore.Code{sandboxcore.CodeUnreachable, sandboxcore.CodeUnknownOutcome} {
			fake.OnReadFile = func(string, int64) ([]byte, error) {
				return nil, &sandboxcore.Error{Code: code, Attempted: "x", Said: "no answer", Attribute: []string{"path"}}
			}
			_, d := s.Import(tSandbox, "docker/fake-1")
			wantError(t, d, string(code), "no answer")
		}
		fake.SetStatus("fake-1", sandboxcore.StatusStopped) // it is not woken, and what it was made with stands
		imported, d := s.Import(tSandbox, "docker/fake-1")
		noErrors(t, d)
		if got := fmt.Sprint(imported.Get("packages")); got != "[rich attrs>=24]" {
			t.Errorf("of a stopped one: %s", got)
		}
	})
}
