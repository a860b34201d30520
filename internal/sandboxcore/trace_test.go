package sandboxcore_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
)

// recorder is a tracer that keeps spans as lines: "run > docker create [id docker/fake-1]".
type recorder struct {
	mu    sync.Mutex
	ended []string
	open  int
}

type recorderKey struct{}

func (r *recorder) StartSpan(ctx context.Context, kind sandboxcore.SpanKind, name string) (context.Context, func(sandboxcore.SpanFacts)) {
	path := name
	if parent, ok := ctx.Value(recorderKey{}).(string); ok {
		path = parent + " > " + name
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open++
	return context.WithValue(ctx, recorderKey{}, path), func(f sandboxcore.SpanFacts) {
		line := path
		if f.ID != "" {
			line += " id=" + f.ID
		}
		if f.ExitCode != nil {
			line += fmt.Sprintf(" exit=%d", *f.ExitCode)
		}
		if f.Failed {
			line += fmt.Sprint(" failed", f.Codes)
		}
		if (kind == sandboxcore.SpanCall) != (f.Backend != "" && strings.HasPrefix(name, string(f.Backend)+" ")) {
			line += " of the wrong kind"
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.open--
		r.ended = append(r.ended, line)
	}
}

func (r *recorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := strings.Join(r.ended, "\n")
	r.ended = nil
	return out
}

func TestSpansOfStepsAndCalls(t *testing.T) {
	fake := &backendtest.Fake{}
	rec := &recorder{}
	reg := newRegistry(t, fake)
	e, err := sandboxcore.NewEngine(sandboxcore.EngineConfig{Registry: reg, Tracer: rec, NewID: func() string { return "id" }})
	if err != nil {
		t.Fatal(err)
	}
	spec := mustSpec(t, mustResolve(t, reg, dockerInput(nil)))
	principal := sandboxcore.DefaultPrincipal()
	info, err := e.CreateSandbox(t.Context(), sandboxcore.SandboxRequest{Spec: spec, Name: "n", Packages: []string{"rich"}, Principal: principal}, func(sandboxcore.SandboxInfo) {})
	if err != nil {
		t.Fatal(err)
	}
	want(t, rec, `
create sandbox > docker connect
create sandbox > docker identity
create sandbox > docker admit
create sandbox > docker create id=docker/fake-1
create sandbox > install packages > docker run id=docker/fake-1 exit=0
create sandbox > install packages > docker write file id=docker/fake-1
create sandbox > install packages
create sandbox id=docker/fake-1`)

	fake.OnRun = func(context.Context, sandboxcore.RunRequest, io.Writer, io.Writer) (sandboxcore.RunResult, error) {
		return sandboxcore.RunResult{ExitCode: 3}, nil
	}
	binding := sandboxcore.Binding{Backend: "docker", Endpoint: info.Endpoint, Environment: sandboxcore.EnvironmentManaged, ID: "docker/fake-1", Spec: spec}
	if _, err := e.Exec(t.Context(), sandboxcore.ExecRequest{Binding: &binding, Kind: sandboxcore.RunScript, Text: []byte("x"), Principal: principal}); !sandboxcore.IsCode(firstOf(err), sandboxcore.CodeExitStatus) {
		t.Fatal(err)
	}
	want(t, rec, `
run > docker connect
run > docker identity
run > docker admit
run > docker connect
run > docker identity
run > docker find id=docker/fake-1
run > docker run id=docker/fake-1 exit=3
run id=docker/fake-1 exit=3 failed[AK5006]`)

	fake.OnRun = nil
	if _, err := e.Exec(t.Context(), sandboxcore.ExecRequest{Spec: spec, Kind: sandboxcore.RunScript, Text: []byte("x"), Principal: principal}); err != nil {
		t.Fatal(err)
	}
	want(t, rec, `
run > docker connect
run > docker identity
run > docker admit
run > docker create id=docker/fake-2
run > docker run id=docker/fake-2 exit=0
run > clean up > docker destroy id=docker/fake-2
run > clean up id=docker/fake-2
run id=docker/fake-2 exit=0`)

	fake.SetFail(func(_ context.Context, call string) error {
		if call == "destroy" {
			return &sandboxcore.Error{Code: sandboxcore.CodeDeleteFailed, Attempted: "x"}
		}
		return nil
	})
	ref := sandboxcore.SandboxRef{Backend: "docker", Endpoint: info.Endpoint, NativeID: "fake-1"}
	if err := e.DestroySandbox(t.Context(), ref); err == nil {
		t.Fatal("no error")
	}
	want(t, rec, `
destroy sandbox > docker connect
destroy sandbox > docker identity
destroy sandbox > docker find id=docker/fake-1
destroy sandbox > docker destroy id=docker/fake-1 failed[AK5011]
destroy sandbox id=docker/fake-1 failed[AK5011]`)
	if rec.open != 0 {
		t.Errorf("%d spans have not ended", rec.open)
	}
}

func firstOf(err error) error {
	for _, e := range sandboxcore.AllErrors(err, "") {
		return e
	}
	return nil
}

func want(t *testing.T, r *recorder, lines string) {
	t.Helper()
	if got := r.take(); got != strings.TrimPrefix(lines, "\n") {
		t.Errorf("spans:\n%s", got)
	}
}

// TestOptionalInterfacesAreAskedForWithOptional: a handle with spans around it has the methods of every optional interface,
// so a type assertion in the engine would be true of all of them.
func TestOptionalInterfacesAreAskedForWithOptional(t *testing.T) {
	optional, asked := map[string]bool{}, 0
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	parsed := map[string]*ast.File{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		parsed[name] = f
		ast.Inspect(f, func(n ast.Node) bool {
			if index, ok := n.(*ast.IndexExpr); ok {
				if fn, ok := index.X.(*ast.Ident); ok && fn.Name == "optional" {
					asked++
				}
			}
			if spec, ok := n.(*ast.TypeSpec); ok && name == "backend.go" {
				if _, ok := spec.Type.(*ast.InterfaceType); ok {
					optional[spec.Name.Name] = true
				}
			}
			return true
		})
	}
	// What is asked of a Backend has no spans around it, and the two kinds of handle exclude each other.
	for _, name := range []string{"Backend", "OperationRefuser", "RequestValidator", "ManagedSandbox", "AttachedEnvironment"} {
		delete(optional, name)
	}
	if len(optional) < 4 || asked < 3 {
		t.Fatalf("found %v, asked for %d times", optional, asked)
	}
	for name, f := range parsed {
		if name == "trace.go" {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if a, ok := n.(*ast.TypeAssertExpr); ok {
				if id, ok := a.Type.(*ast.Ident); ok && optional[id.Name] {
					t.Errorf("%s: .(%s); ask with optional[%s]", name, id.Name, id.Name)
				}
			}
			return true
		})
	}
}
