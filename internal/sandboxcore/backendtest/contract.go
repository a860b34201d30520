package backendtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Target is a backend to put through the contract.
type Target struct {
	// Factory of the backend, with the real thing behind it.
	Factory sandboxcore.Factory
	// Provider are the provider settings, Settings those of the profiles (nil: none).
	Provider, Settings sandboxcore.Settings
	// Getenv reads the environment of the provider process; nil: none.
	Getenv func(string) string
	// Alive reports whether a process whose command line holds marker exists in any sandbox; nil: looked up in /proc of
	// this machine, which sees into the containers and namespaces of this machine.
	Alive func(t *testing.T, marker string) bool
	// Foreign makes an object that the backend did not create and gives its native id and a check that it is untouched;
	// nil: the backend has no such objects.
	Foreign func(t *testing.T) (nativeID string, untouched func(t *testing.T))
	// NoSecretEnv: a sandbox with secrets in its environment is refused with CodeOperation before anything is created.
	NoSecretEnv bool
}

// Run puts a backend through the contract that every backend keeps, at the level of the engine: what a user's request
// meets. Each test makes its own sandboxes and removes them.
func Run(t *testing.T, target Target) {
	t.Helper()
	s := &suite{target: target, reg: sandboxcore.NewRegistry(target.Factory), name: "contract-" + token()}
	s.caps = s.capabilities(t)
	if target.Alive == nil {
		s.target.Alive = aliveHere
	}
	for _, part := range []struct {
		name string
		test func(*suite, *testing.T)
	}{
		{"languages", (*suite).languages},
		{"capability honesty", (*suite).honesty},
		{"a failing program is a result", (*suite).programFailure},
		{"output is split, large, binary", (*suite).output},
		{"stdin and code of a mebibyte", (*suite).large},
		{"environment and secrets", (*suite).environment},
		{"working directory", (*suite).workingDirectory},
		{"output files", (*suite).files},
		{"timeout kills the process tree", (*suite).timeout},
		{"cancellation kills the process tree", (*suite).cancellation},
		{"background children end with the run", (*suite).background},
		{"concurrency", (*suite).concurrency},
		{"found again by another process", (*suite).reattach},
		{"destroy", (*suite).destroy},
		{"one-shot", (*suite).oneShot},
		{"policy", (*suite).policy},
		{"principal", (*suite).principal},
		{"refusal before creation", (*suite).refusal},
		{"not ours", (*suite).notOurs},
		{"pause", (*suite).pause},
		{"marks", (*suite).marks},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(s, t) })
	}
}

type suite struct {
	target Target
	reg    *sandboxcore.Registry
	caps   sandboxcore.Capabilities
	// name is that of this suite's profiles, so that others at the same endpoint do not count.
	name string
}

// canary is the secret that is handed to runs; it must show nowhere.
const canary = "canary-7f3a91c2d4e5"

func (s *suite) engine(t *testing.T) *sandboxcore.Engine {
	t.Helper()
	e, err := sandboxcore.NewEngine(sandboxcore.EngineConfig{
		Registry: s.reg, Provider: map[sandboxcore.BackendType]sandboxcore.Settings{s.target.Factory.Type: s.target.Provider},
		Getenv: s.target.Getenv, Secrets: map[string]string{"canary": canary},
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (s *suite) input(change func(*sandboxcore.ProfileInput)) sandboxcore.ProfileInput {
	settings := sandboxcore.Settings{}
	maps.Copy(settings, s.target.Settings)
	in := sandboxcore.ProfileInput{
		Name: s.name, Type: string(s.target.Factory.Type), Blocks: map[string]sandboxcore.Settings{string(s.target.Factory.Type): settings},
	}
	if change != nil {
		change(&in)
	}
	return in
}

func (s *suite) profile(t *testing.T, change func(*sandboxcore.ProfileInput)) *sandboxcore.Profile {
	t.Helper()
	p, err := s.reg.Resolve(s.input(change))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (s *suite) spec(t *testing.T) string {
	t.Helper()
	spec, err := sandboxcore.EncodeSpec(s.profile(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func (s *suite) capabilities(t *testing.T) sandboxcore.Capabilities {
	t.Helper()
	caps, err := s.reg.Capabilities(s.profile(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	return caps
}

// box is a sandbox of a test.
type box struct {
	suite  *suite
	engine *sandboxcore.Engine
	info   sandboxcore.SandboxInfo
	spec   string
}

func (s *suite) box(t *testing.T, with func(*sandboxcore.SandboxRequest)) *box {
	t.Helper()
	b := &box{suite: s, engine: s.engine(t), spec: s.spec(t)}
	req := sandboxcore.SandboxRequest{Spec: b.spec, Name: "contract-" + token(), Principal: sandboxcore.DefaultPrincipal()}
	if with != nil {
		with(&req)
	}
	told := false
	info, err := b.engine.CreateSandbox(t.Context(), req, func(i sandboxcore.SandboxInfo) {
		told = true
		b.info = i
		t.Cleanup(func() {
			if err := b.engine.DestroySandbox(context.WithoutCancel(t.Context()), b.ref()); err != nil {
				t.Errorf("destroy: %v", err)
			}
		})
	})
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	if !told || info.NativeID != b.info.NativeID || info.Endpoint == "" || info.Status != sandboxcore.StatusRunning {
		t.Fatalf("told %v: %+v, returned %+v", told, b.info, info)
	}
	b.info = info
	return b
}

func (b *box) ref() sandboxcore.SandboxRef {
	return sandboxcore.SandboxRef{Backend: b.suite.target.Factory.Type, Endpoint: b.info.Endpoint, NativeID: b.info.NativeID}
}

func (b *box) binding() *sandboxcore.Binding {
	t := b.suite.target.Factory.Type
	return &sandboxcore.Binding{Backend: t, Endpoint: b.info.Endpoint, Environment: sandboxcore.EnvironmentManaged, ID: sandboxcore.SandboxID(t, b.info.NativeID), Spec: b.spec}
}

// python runs code in the box.
func (b *box) python(t *testing.T, code string, change func(*sandboxcore.ExecRequest)) (sandboxcore.ExecResult, error) {
	t.Helper()
	return b.pythonCtx(t.Context(), code, change)
}

func (b *box) pythonCtx(ctx context.Context, code string, change func(*sandboxcore.ExecRequest)) (sandboxcore.ExecResult, error) {
	req := sandboxcore.ExecRequest{
		Binding: b.binding(), Kind: sandboxcore.RunCode, Language: "python", Text: []byte(code), Principal: sandboxcore.DefaultPrincipal(), Timeout: time.Minute,
	}
	if change != nil {
		change(&req)
	}
	return b.engine.Exec(ctx, req)
}

// must runs code that has to succeed and gives its stdout.
func (b *box) must(t *testing.T, code string, change func(*sandboxcore.ExecRequest)) string {
	t.Helper()
	res, err := b.python(t, code, change)
	if err != nil {
		t.Fatalf("run: %v\nstdout %q\nstderr %q", err, res.Stdout.Text, res.Stderr.Text)
	}
	return res.Stdout.Text
}

func token() string {
	var b [6]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// aliveHere looks for marker in the command lines of this machine's processes.
func aliveHere(t *testing.T, marker string) bool {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(files) == 0 {
		t.Fatalf("no /proc to look at: %v", err)
	}
	return slices.ContainsFunc(files, func(f string) bool {
		text, err := os.ReadFile(f) // #nosec G304 -- a file of /proc
		return err == nil && strings.Contains(string(text), marker)
	})
}

// waitGone waits until no process with marker is left.
func (s *suite) waitGone(t *testing.T, marker string, within time.Duration) {
	t.Helper()
	deadline := time.Now().Add(within)
	for s.target.Alive(t, marker) {
		if time.Now().After(deadline) {
			t.Fatalf("a process of the run is still there %s after its end", within)
		}
		time.Sleep(20 * time.Millisecond) // a poll of a condition of other processes, not a wait for luck
	}
}

func (s *suite) wantCode(t *testing.T, err error, want sandboxcore.Code) {
	t.Helper()
	if !sandboxcore.IsCode(err, want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// count gives how many sandboxes of this suite exist at the endpoint.
func (s *suite) count(t *testing.T, e *sandboxcore.Engine) int {
	t.Helper()
	list, err := e.ListSandboxes(t.Context(), s.target.Factory.Type)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, i := range list {
		if p, err := s.reg.ParseSpec(i.Marks.Spec); err == nil && p.Name == s.name {
			n++
		}
	}
	return n
}
