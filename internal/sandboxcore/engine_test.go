package sandboxcore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
)

type bench struct {
	fake   *backendtest.Fake
	engine *sandboxcore.Engine
	spec   string
	audit  string
}

func newBench(t *testing.T, change func(*sandboxcore.ProfileInput)) *bench {
	t.Helper()
	b := &bench{fake: &backendtest.Fake{}, audit: filepath.Join(t.TempDir(), "audit.jsonl")}
	reg := newRegistry(t, b.fake)
	log, err := sandboxcore.OpenAuditLog(b.audit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	var n atomic.Int64
	b.engine, err = sandboxcore.NewEngine(sandboxcore.EngineConfig{
		Registry: reg, Audit: log, Secrets: map[string]string{"token": "canary-0123456789"}, NewID: func() string { return fmt.Sprintf("id-%d", n.Add(1)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	b.spec = mustSpec(t, mustResolve(t, reg, dockerInput(change)))
	return b
}

func (b *bench) sandbox() sandboxcore.SandboxRequest {
	return sandboxcore.SandboxRequest{Spec: b.spec, Name: "sb", Principal: sandboxcore.DefaultPrincipal()}
}

func (b *bench) create(t *testing.T) sandboxcore.SandboxInfo {
	t.Helper()
	info, err := b.engine.CreateSandbox(t.Context(), b.sandbox(), func(sandboxcore.SandboxInfo) {})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func (b *bench) binding(info sandboxcore.SandboxInfo) *sandboxcore.Binding {
	return &sandboxcore.Binding{
		Backend: "docker", Endpoint: info.Endpoint, Environment: "managed", ID: sandboxcore.SandboxID("docker", info.NativeID), Spec: b.spec,
	}
}

func (b *bench) run() sandboxcore.ExecRequest {
	return sandboxcore.ExecRequest{Kind: sandboxcore.RunCode, Language: "python", Text: []byte("print(1)"), Principal: sandboxcore.DefaultPrincipal()}
}

func (b *bench) auditText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(b.audit)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var errInjected = errors.New("injected failure")

// Whichever call of a create fails, nothing exists that the caller was not told of before.
func TestCreateFaultTable(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"connect", "identity", "admit", "create", "created", "run", "pause"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, nil)
			b.fake.SetFail(func(_ context.Context, c string) error {
				if c == call {
					return errInjected
				}
				return nil
			})
			req := b.sandbox()
			req.Packages, req.Paused = []string{"requests"}, true
			var told []string
			info, err := b.engine.CreateSandbox(t.Context(), req, func(i sandboxcore.SandboxInfo) { told = append(told, i.NativeID) })
			if err == nil {
				t.Fatal("no error")
			}
			if left := b.fake.Objects(); !slices.Equal(left, told) && len(left) > 0 {
				t.Errorf("exists %v, told %v", left, told)
			}
			if len(told) > 0 && info.NativeID != told[0] {
				t.Errorf("the result names %q, told %v", info.NativeID, told)
			}
			if !strings.Contains(b.auditText(t), `"verdict":"`) {
				t.Error("no audit record")
			}
		})
	}
}

// Whichever call of a one-shot run fails, and also when the caller is interrupted, the sandbox made for it is gone.
func TestOneShotLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"connect", "identity", "admit", "create", "created", "run", "read", "none", "cancel"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			b.fake.SetFail(func(_ context.Context, c string) error {
				if c == call {
					return errInjected
				}
				if call == "cancel" && c == "run" {
					cancel()
				}
				return nil
			})
			req := b.run()
			req.Spec, req.OutputFiles = b.spec, []string{"out.txt"}
			_, err := b.engine.Exec(ctx, req)
			if err == nil { // even without a fault the file is missing
				t.Fatal("no error")
			}
			if left := b.fake.Objects(); len(left) > 0 {
				t.Errorf("left: %v after %v", left, err)
			}
		})
	}
}

func TestOneShotThatCannotBeRemovedIsTold(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	b.fake.SetFail(func(_ context.Context, c string) error {
		if c == "destroy" {
			return errInjected
		}
		return nil
	})
	req := b.run()
	req.Spec = b.spec
	_, err := b.engine.Exec(t.Context(), req)
	if !sandboxcore.IsCode(err, sandboxcore.CodeDeleteFailed) || !strings.Contains(err.Error(), "docker/fake-1") {
		t.Errorf("got %v", err)
	}
}

// Nothing reaches a backend without the gate's verdict.
func TestRefusalsReachNoBackend(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	weird := b.run()
	weird.Spec, weird.Language = b.spec, "cobol"
	noSecret := b.run()
	noSecret.Spec, noSecret.SecretEnv = b.spec, map[string]string{"T": "nope"}
	twice := b.run()
	twice.Spec, twice.Env, twice.SecretEnv = b.spec, map[string]string{"T": "x"}, map[string]string{"T": "token"}
	empty := b.run()
	empty.Spec, empty.Text = b.spec, nil
	dots := b.run()
	dots.Spec, dots.OutputFiles = b.spec, []string{"../x"}
	directory := b.run()
	directory.Spec, directory.OutputFiles = b.spec, []string{"new/."}
	for i, req := range []sandboxcore.ExecRequest{weird, noSecret, twice, empty, dots, directory} {
		if _, err := b.engine.Exec(t.Context(), req); err == nil {
			t.Errorf("request %d was not refused", i)
		}
	}
	sb := b.sandbox()
	sb.Name = "a b"
	if _, err := b.engine.CreateSandbox(t.Context(), sb, func(sandboxcore.SandboxInfo) {}); !sandboxcore.IsCode(err, sandboxcore.CodeValue) {
		t.Error(err)
	}
	sb = b.sandbox()
	sb.Labels = map[string]string{"agentkernel.io/managed": "no"}
	if _, err := b.engine.CreateSandbox(t.Context(), sb, func(sandboxcore.SandboxInfo) {}); !sandboxcore.IsCode(err, sandboxcore.CodeValue) {
		t.Error(err)
	}
	if calls := b.fake.Calls(); len(calls) > 0 {
		t.Errorf("the backend was called: %v", calls)
	}
	if n := strings.Count(b.auditText(t), `"verdict":"refused"`); n != 8 {
		t.Errorf("%d refusals in the audit log", n)
	}
}

func TestBindingIsChecked(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	info := b.create(t)
	other := newBench(t, func(in *sandboxcore.ProfileInput) { in.Policy.NetworkEgress = new("deny") })
	live := newBench(t, func(in *sandboxcore.ProfileInput) { in.Policy.CPU, in.Policy.Timeout = new(2.0), new(9.0) })
	alien := b.fake.AddAlien()
	cases := map[string]struct {
		change func(*sandboxcore.Binding)
		code   sandboxcore.Code
	}{
		"as it is":              {func(*sandboxcore.Binding) {}, ""},
		"spec recorded or live": {func(x *sandboxcore.Binding) { x.Spec = live.spec }, ""},
		"another spec":          {func(x *sandboxcore.Binding) { x.Spec = other.spec }, sandboxcore.CodeSpec},
		"another backend":       {func(x *sandboxcore.Binding) { x.Backend = "local_subprocess" }, sandboxcore.CodeSpec},
		"attached":              {func(x *sandboxcore.Binding) { x.Environment = "attached" }, sandboxcore.CodeSpec},
		"another endpoint":      {func(x *sandboxcore.Binding) { x.Endpoint = "elsewhere" }, sandboxcore.CodeOtherEndpoint},
		"gone":                  {func(x *sandboxcore.Binding) { x.ID = "docker/fake-99" }, sandboxcore.CodeGone},
		"a foreign object":      {func(x *sandboxcore.Binding) { x.ID = "docker/" + alien }, sandboxcore.CodeNotOurs},
		"no id":                 {func(x *sandboxcore.Binding) { x.ID = "" }, sandboxcore.CodeSpec},
		"id of another backend": {func(x *sandboxcore.Binding) { x.ID = "local_subprocess/fake-1" }, sandboxcore.CodeSpec},
		"id with control":       {func(x *sandboxcore.Binding) { x.ID = "docker/\x1b" }, sandboxcore.CodeSpec},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := b.run()
			req.Binding = b.binding(info)
			c.change(req.Binding)
			if _, err := b.engine.Exec(t.Context(), req); sandboxcore.CodeOf(err) != c.code {
				t.Errorf("got %v, want %q", err, c.code)
			}
		})
	}
}

func TestPausedIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	info := b.create(t)
	b.fake.SetStatus(info.NativeID, sandboxcore.StatusPaused)
	req := b.run()
	req.Binding = b.binding(info)
	if _, err := b.engine.Exec(t.Context(), req); !sandboxcore.IsCode(err, sandboxcore.CodeStopped) || !strings.Contains(err.Error(), "desired_state") {
		t.Errorf("got %v", err)
	}
	if b.fake.Count("run") != 0 {
		t.Error("it ran")
	}
}

func TestExecJudgesTheEnd(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		result sandboxcore.RunResult
		accept []int
		code   sandboxcore.Code
	}{
		"0":             {sandboxcore.RunResult{}, nil, ""},
		"3":             {sandboxcore.RunResult{ExitCode: 3}, nil, sandboxcore.CodeExitStatus},
		"3 accepted":    {sandboxcore.RunResult{ExitCode: 3}, []int{0, 3}, ""},
		"0 not in list": {sandboxcore.RunResult{}, []int{3}, sandboxcore.CodeExitStatus},
		"oom":           {sandboxcore.RunResult{ExitCode: 137, Signal: 9, OOMKilled: true}, []int{137}, sandboxcore.CodeOutOfMemory},
		"killed":        {sandboxcore.RunResult{ExitCode: 137, Signal: 9}, nil, sandboxcore.CodeExitStatus},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, nil)
			b.fake.OnRun = func(_ context.Context, _ sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
				_, _ = io.WriteString(stdout, "out \x1b[1m canary-0123456789\n")
				_, _ = io.WriteString(stderr, "err\n")
				return c.result, nil
			}
			req := b.run()
			req.Spec, req.SuccessExitCodes, req.SecretEnv = b.spec, c.accept, map[string]string{"T": "token"}
			res, err := b.engine.Exec(t.Context(), req)
			if sandboxcore.CodeOf(err) != c.code {
				t.Fatalf("got %v, want %q", err, c.code)
			}
			if res.Stdout.Text != `out \x1b[1m ***`+"\n" || res.Stderr.Text != "err\n" {
				t.Errorf("stdout %q stderr %q", res.Stdout.Text, res.Stderr.Text)
			}
			var run *sandboxcore.RunError
			if c.code != "" && (!errors.As(err, &run) || run.ExitCode == nil || *run.ExitCode != c.result.ExitCode || !strings.Contains(run.StdoutTail, "***")) {
				t.Errorf("the error lacks exit status or tails: %+v", run)
			}
			log := b.auditText(t)
			if strings.Contains(log, "canary") || strings.Contains(log, "print(1)") || !strings.Contains(log, `"code_sha256"`) {
				t.Errorf("audit: %s", log)
			}
		})
	}
}

// An audit log that cannot be written stops the work before anything is created.
func TestAuditFailureStops(t *testing.T) {
	t.Parallel()
	log, err := sandboxcore.OpenAuditLog(filepath.Join(t.TempDir(), "a"))
	if err != nil {
		t.Fatal(err)
	}
	_ = log.Close()
	fake := &backendtest.Fake{}
	reg := newRegistry(t, fake)
	e, err := sandboxcore.NewEngine(sandboxcore.EngineConfig{Registry: reg, Audit: log})
	if err != nil {
		t.Fatal(err)
	}
	spec := mustSpec(t, mustResolve(t, reg, dockerInput(nil)))
	_, err = e.CreateSandbox(t.Context(), sandboxcore.SandboxRequest{Spec: spec, Name: "x", Principal: sandboxcore.DefaultPrincipal()}, func(sandboxcore.SandboxInfo) {})
	if err == nil || fake.Count("create") != 0 {
		t.Errorf("err %v, calls %v", err, fake.Calls())
	}
}

func TestReadAndDestroy(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	info := b.create(t)
	ref := sandboxcore.SandboxRef{Backend: "docker", Endpoint: info.Endpoint, NativeID: info.NativeID}
	got, err := b.engine.ReadSandbox(t.Context(), ref)
	if err != nil || got.Marks.Spec != b.spec || got.Marks.Name != "sb" {
		t.Fatalf("%+v %v", got, err)
	}
	b.fake.SetID("elsewhere")
	if _, err := b.engine.ReadSandbox(t.Context(), ref); !sandboxcore.IsCode(err, sandboxcore.CodeOtherEndpoint) {
		t.Errorf("another endpoint: %v", err)
	}
	if err := b.engine.DestroySandbox(t.Context(), ref); !sandboxcore.IsCode(err, sandboxcore.CodeOtherEndpoint) || len(b.fake.Objects()) != 1 {
		t.Errorf("destroy at another endpoint: %v", err)
	}
	b.fake.SetID("")
	if err := b.engine.DestroySandbox(t.Context(), ref); err != nil || len(b.fake.Objects()) != 0 {
		t.Errorf("destroy: %v", err)
	}
	if err := b.engine.DestroySandbox(t.Context(), ref); err != nil {
		t.Errorf("destroy twice: %v", err)
	}
	if _, err := b.engine.ReadSandbox(t.Context(), ref); !sandboxcore.IsCode(err, sandboxcore.CodeGone) {
		t.Errorf("read after destroy: %v", err)
	}
	alien := sandboxcore.SandboxRef{Backend: "docker", Endpoint: info.Endpoint, NativeID: b.fake.AddAlien()}
	if err := b.engine.DestroySandbox(t.Context(), alien); !sandboxcore.IsCode(err, sandboxcore.CodeNotOurs) || len(b.fake.Objects()) != 1 {
		t.Errorf("destroy of a foreign object: %v", err)
	}
}

// Unknown provider settings never turn into a default endpoint.
func TestUnknownProviderSettings(t *testing.T) {
	t.Parallel()
	fake := &backendtest.Fake{}
	reg := newRegistry(t, fake)
	e, err := sandboxcore.NewEngine(sandboxcore.EngineConfig{Registry: reg, Unknown: map[sandboxcore.BackendType]bool{"docker": true}})
	if err != nil {
		t.Fatal(err)
	}
	p := mustResolve(t, reg, dockerInput(nil))
	if err := e.Admit(t.Context(), p, sandboxcore.Operation{Name: sandboxcore.OpCreate}, true); err != nil {
		t.Errorf("plan: %v", err)
	}
	_, err = e.CreateSandbox(t.Context(), sandboxcore.SandboxRequest{Spec: mustSpec(t, p), Name: "x", Principal: sandboxcore.DefaultPrincipal()}, func(sandboxcore.SandboxInfo) {})
	if !sandboxcore.IsCode(err, sandboxcore.CodeUnreachable) || len(fake.Calls()) != 0 {
		t.Errorf("err %v, calls %v", err, fake.Calls())
	}
}

func TestMarksRoundTrip(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	info := b.create(t)
	kv, err := info.Marks.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := sandboxcore.DecodeMarks("x", kv)
	if err != nil || back.Spec != b.spec || !back.Created.Equal(info.Marks.Created) {
		t.Fatalf("%+v %v", back, err)
	}
	for _, change := range []func(map[string]string){
		func(m map[string]string) { delete(m, sandboxcore.MarkManaged) },
		func(m map[string]string) { m[sandboxcore.MarkKind] = "helper" },
		func(m map[string]string) { m[sandboxcore.MarkSpec] = "{}" },
		func(m map[string]string) { m[sandboxcore.MarkArgs] = "x" },
		func(m map[string]string) { m[sandboxcore.MarkCreated] = "x" },
	} {
		kv, _ := info.Marks.Encode()
		change(kv)
		if _, err := sandboxcore.DecodeMarks("x", kv); !sandboxcore.IsCode(err, sandboxcore.CodeNotOurs) {
			t.Errorf("accepted: %v", err)
		}
	}
}

// A write-only value of the sandbox does not show in the output of runs, in the same process or a later one.
func TestWriteOnlyValueOfTheSandboxIsRedacted(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	req := b.sandbox()
	req.EnvWO = map[string]string{"W": "write-only-value"}
	info, err := b.engine.CreateSandbox(t.Context(), req, func(sandboxcore.SandboxInfo) {})
	if err != nil {
		t.Fatal(err)
	}
	b.fake.OnRun = func(_ context.Context, _ sandboxcore.RunRequest, stdout, _ io.Writer) (sandboxcore.RunResult, error) {
		_, _ = io.WriteString(stdout, "W=write-only-value")
		return sandboxcore.RunResult{}, nil
	}
	run := b.run()
	run.Binding = b.binding(info)
	again, err := sandboxcore.NewEngine(sandboxcore.EngineConfig{Registry: b.engine.Registry()}) // another process, later
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []*sandboxcore.Engine{b.engine, again} {
		res, err := e.Exec(t.Context(), run)
		if err != nil || res.Stdout.Text != "W=***" {
			t.Errorf("%q %v", res.Stdout.Text, err)
		}
	}
}

// A run that failed and whose sandbox cannot be removed shows both, with exit status and output.
func TestFailedOneShotThatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	b.fake.OnRun = func(_ context.Context, _ sandboxcore.RunRequest, stdout, _ io.Writer) (sandboxcore.RunResult, error) {
		_, _ = io.WriteString(stdout, "the tail")
		return sandboxcore.RunResult{ExitCode: 3}, nil
	}
	b.fake.SetFail(func(_ context.Context, c string) error {
		if c == "destroy" {
			return errInjected
		}
		return nil
	})
	req := b.run()
	req.Spec, req.SecretEnv = b.spec, map[string]string{"T": "token"}
	_, err := b.engine.Exec(t.Context(), req)
	run, ok := errors.AsType[*sandboxcore.RunError](err)
	if !ok || run.ExitCode == nil || *run.ExitCode != 3 || run.StdoutTail != "the tail" {
		t.Fatalf("got %#v", err)
	}
	var codes []sandboxcore.Code
	for _, e := range sandboxcore.AllErrors(err, "") {
		codes = append(codes, e.Code)
	}
	if !slices.Equal(codes, []sandboxcore.Code{sandboxcore.CodeExitStatus, sandboxcore.CodeDeleteFailed}) {
		t.Errorf("codes %v", codes)
	}
}

// A run that cannot be recorded afterwards did run: the error says so, with its exit status.
func TestAuditFailureAfterTheRun(t *testing.T) {
	t.Parallel()
	log, err := sandboxcore.OpenAuditLog(filepath.Join(t.TempDir(), "a"))
	if err != nil {
		t.Fatal(err)
	}
	fake := &backendtest.Fake{OnRun: func(context.Context, sandboxcore.RunRequest, io.Writer, io.Writer) (sandboxcore.RunResult, error) {
		return sandboxcore.RunResult{}, log.Close()
	}}
	reg := newRegistry(t, fake)
	e, err := sandboxcore.NewEngine(sandboxcore.EngineConfig{Registry: reg, Audit: log})
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Exec(t.Context(), sandboxcore.ExecRequest{
		Spec: mustSpec(t, mustResolve(t, reg, dockerInput(nil))), Kind: sandboxcore.RunScript, Text: []byte("true"), Principal: sandboxcore.DefaultPrincipal(),
	})
	run, ok := errors.AsType[*sandboxcore.RunError](err)
	if !ok || run.ExitCode == nil || *run.ExitCode != 0 || !strings.Contains(err.Error(), "audit log") {
		t.Errorf("got %#v", err)
	}
}

// Paths, label keys and working directories are judged by what is in them, and not by how much of them a message shows.
func TestLongTextsAreNoControlCharacters(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	long := strings.Repeat("directory/", 30) + "\u00e4\ufffd"
	run := b.run()
	run.Spec, run.WorkingDirectory, run.OutputFiles = b.spec, "/"+long, []string{long}
	if _, _, err := b.engine.CheckExec(run); err != nil {
		t.Errorf("run: %v", err)
	}
	box := b.sandbox()
	box.Labels = map[string]string{strings.Repeat("k", sandboxcore.MaxLabelBytes): "v"}
	if _, _, err := b.engine.CheckSandbox(box); err != nil {
		t.Errorf("sandbox: %v", err)
	}
	for _, bad := range []string{"a\nb", "a\tb", "a\x1bb", "a\u202eb", strings.Repeat("d/", sandboxcore.MaxPathBytes/2) + "f"} {
		for name, change := range map[string]func(*sandboxcore.ExecRequest){
			"output_files": func(r *sandboxcore.ExecRequest) { r.OutputFiles = []string{bad} }, "working_directory": func(r *sandboxcore.ExecRequest) { r.WorkingDirectory = bad },
		} {
			run := b.run()
			run.Spec = b.spec
			change(&run)
			if _, _, err := b.engine.CheckExec(run); !sandboxcore.IsCode(err, sandboxcore.CodeValue) || !strings.Contains(fmt.Sprint(err), "bytes") && name != "output_files" {
				t.Errorf("%s %.10q: %v", name, bad, err)
			}
		}
	}
	cut := sandboxcore.Printable(strings.Repeat("a", 199) + "\u00e4b")
	if want := strings.Repeat("a", 199) + "…"; cut != want {
		t.Errorf("cut inside a character: %q", cut[190:])
	}
}

// What was not known at plan is judged again when it is applied.
func TestUpdateIsJudged(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	info := b.create(t)
	ref := sandboxcore.SandboxRef{Backend: "docker", Endpoint: info.Endpoint, NativeID: info.NativeID}
	good := sandboxcore.SandboxUpdate{Spec: b.spec, Name: "sb", Principal: sandboxcore.DefaultPrincipal()}
	for name, change := range map[string]func(*sandboxcore.SandboxUpdate){
		"name":     func(u *sandboxcore.SandboxUpdate) { u.Name = "no name" },
		"labels":   func(u *sandboxcore.SandboxUpdate) { u.Labels = map[string]string{"agentkernel.io/managed": "false"} },
		"packages": func(u *sandboxcore.SandboxUpdate) { u.AddPackages = []string{"--index-url=x"} },
	} {
		up := good
		change(&up)
		if _, err := b.engine.UpdateSandbox(t.Context(), ref, up); !sandboxcore.IsCode(err, sandboxcore.CodeValue) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b.fake.Count("update") != 0 {
		t.Errorf("calls %v", b.fake.Calls())
	}
	if _, err := b.engine.UpdateSandbox(t.Context(), ref, good); err != nil {
		t.Error(err)
	}
}

// What is wrong with an output file is said of output_files, and the limits are those of the documentation: per file and
// in all.
func TestOutputFilesThatCannotBeTaken(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	content := map[string]int{}
	b.fake.OnRun = func(context.Context, sandboxcore.RunRequest, io.Writer, io.Writer) (sandboxcore.RunResult, error) {
		return sandboxcore.RunResult{}, nil
	}
	b.fake.OnReadFile = func(name string, limit int64) ([]byte, error) {
		if n := content[name]; int64(n) <= limit {
			return make([]byte, n), nil
		}
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeOperation, Attempted: "the file could not be read", Object: name, Said: fmt.Sprintf("It is larger than %d bytes.", limit),
			Attribute: []string{"path"},
		}
	}
	for i := range 5 {
		content[fmt.Sprint(i)] = sandboxcore.MaxOutputFileBytes
	}
	content["large"] = sandboxcore.MaxOutputFileBytes + 1
	for _, c := range []struct {
		files []string
		want  string
	}{
		{[]string{"0", "1", "2", "3", "empty"}, ""},
		{[]string{"large"}, "could not be read (large). It is larger than 1048576 bytes."},
		{[]string{"0", "1", "2", "3", "4"}, "could not be taken (4): with it the files have more than 4194304 bytes together."},
	} {
		req := b.run()
		req.Spec, req.OutputFiles = b.spec, c.files
		_, err := b.engine.Exec(t.Context(), req)
		if c.want == "" {
			if err != nil {
				t.Errorf("%v: %v", c.files, err)
			}
			continue
		}
		e := sandboxcore.AllErrors(err, "")[0]
		if e.Code != sandboxcore.CodeValue || !slices.Equal(e.Attribute, []string{"output_files"}) || !strings.Contains(e.Error(), c.want) {
			t.Errorf("%v: %v, attribute %v", c.files, e, e.Attribute)
		}
	}
}

// A variable that no program could be given is refused before anything is created, with its name.
func TestVariableThatIsTooLong(t *testing.T) {
	t.Parallel()
	fits := strings.Repeat("x", 128<<10-len("LONG=")-1)
	if err := sandboxcore.CheckEnv("env", map[string]string{"LONG": fits}); err != nil {
		t.Error(err)
	}
	err := sandboxcore.CheckEnv("env", map[string]string{"LONG": fits + "x"})
	if !sandboxcore.IsCode(err, sandboxcore.CodeValue) || !strings.Contains(err.Error(), "(LONG): name and value have 131072 bytes") {
		t.Error(err)
	}
}

func TestAuditTellsTheExitStatusWhereItIsKnown(t *testing.T) {
	b := newBench(t, nil)
	info := b.create(t)
	for _, c := range []struct {
		res  sandboxcore.RunResult
		err  error
		want string
	}{
		{sandboxcore.RunResult{}, nil, `"verdict":"done"`},
		{sandboxcore.RunResult{ExitCode: 3}, nil, `"exit_code":3`},
		{sandboxcore.RunResult{ExitCode: 137, OOMKilled: true}, nil, `"exit_code":137`},
		{sandboxcore.RunResult{}, errors.New("the connection broke"), `"verdict":"failed"`},
	} {
		b.fake.OnRun = func(context.Context, sandboxcore.RunRequest, io.Writer, io.Writer) (sandboxcore.RunResult, error) {
			return c.res, c.err
		}
		_, _ = b.engine.Exec(t.Context(), sandboxcore.ExecRequest{Binding: b.binding(info), Kind: sandboxcore.RunScript, Text: []byte("x"), Principal: sandboxcore.DefaultPrincipal()})
		lines := strings.Split(strings.TrimSpace(b.auditText(t)), "\n")
		last := lines[len(lines)-1]
		if !strings.Contains(last, c.want) || strings.Contains(last, `"exit_code"`) != (c.err == nil) {
			t.Errorf("%+v: %s", c.res, last)
		}
	}
}
