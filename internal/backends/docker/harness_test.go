package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// TestMain fails when the tests leave a container or a volume with our label behind that was not there before.
func TestMain(m *testing.M) {
	before := leftovers()
	code := m.Run()
	// The engine frees the last objects a moment after the answer.
	var left []string
	for range 50 {
		left = nil
		for _, o := range leftovers() {
			if !slices.Contains(before, o) {
				left = append(left, o)
			}
		}
		if len(left) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if len(left) > 0 {
		fmt.Fprintln(os.Stderr, "left behind:", strings.Join(left, ", "))
		if code == 0 {
			code = 1
		}
	}
	os.Exit(code)
}

// runMark is a label of everything that this test process makes, so that others on the same engine do not disturb it.
var runMark = fmt.Sprintf("docker-test-%d-%d", os.Getpid(), time.Now().UnixNano())

const testLabel = "agentkernel-test.run"

func leftovers() []string {
	cli, err := client.New(client.FromEnv)
	if err != nil {
		return nil
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var out []string
	cs, err := cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: labelFilter(testLabel + "=" + runMark)})
	if err != nil {
		return nil
	}
	for _, c := range cs.Items {
		out = append(out, "container "+c.ID)
	}
	vs, err := cli.VolumeList(ctx, client.VolumeListOptions{Filters: labelFilter(sandboxcore.MarkManaged+"=true", sandboxcore.MarkKind+"="+kindWorkspace)})
	if err != nil {
		return out
	}
	for _, v := range vs.Items {
		if strings.HasPrefix(v.Labels[sandboxcore.MarkRequest], requestPrefix) {
			out = append(out, "volume "+v.Name)
		}
	}
	return out
}

var requestPrefix = fmt.Sprintf("t%d-", os.Getpid())

var requestNumber atomic.Int64

func getenvNone(string) string { return "" }

// dial gives a backend and its endpoint on the test engine.
func dial(t testing.TB, provider sandboxcore.Settings, getenv func(string) string) *endpoint {
	t.Helper()
	b, err := newBackend(provider, getenv)
	if err != nil {
		t.Fatal(err)
	}
	bb := as[*backend](t, b)
	bb.log = slog.New(slog.DiscardHandler)
	e, err := bb.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return as[*endpoint](t, e)
}

func engine(t testing.TB) *endpoint {
	t.Helper()
	testenv.Require(t, "docker")
	return dial(t, nil, os.Getenv)
}

// profile makes a profile with an image of the tests.
func profile(image string, change ...func(*sandboxcore.Profile)) *sandboxcore.Profile {
	p := &sandboxcore.Profile{
		Name: "test", Type: sandboxcore.BackendDocker, Environment: sandboxcore.EnvironmentManaged,
		Identity: sandboxcore.IdentityAgent,
		Policy:   sandboxcore.Policy{NetworkEgress: sandboxcore.NetworkDeny, Timeout: 120, Strict: true},
		Settings: sandboxcore.Settings{keyImage: testenv.Image(image), keyPullPolicy: pullNever},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func request(p *sandboxcore.Profile, change ...func(*sandboxcore.CreateRequest)) sandboxcore.CreateRequest {
	r := sandboxcore.CreateRequest{
		Profile: p, Principal: sandboxcore.DefaultPrincipal(),
		Marks: sandboxcore.Marks{
			Name: "test", Spec: `{"v":1}`, Created: time.Now().UTC(),
			Request: fmt.Sprintf("%s%d-%s", requestPrefix, requestNumber.Add(1), randomHex()),
			Args:    sandboxcore.CreateArgs{Labels: map[string]string{testLabel: runMark}},
		},
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

// create makes a sandbox that is destroyed at the end of the test.
func create(t testing.TB, e *endpoint, p *sandboxcore.Profile, change ...func(*sandboxcore.CreateRequest)) *sandbox {
	t.Helper()
	m, err := e.Create(t.Context(), request(p, change...), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := as[*sandbox](t, m)
	t.Cleanup(func() {
		if err := sandboxcore.WithCleanup(t.Context(), s.Destroy); err != nil {
			t.Error(err)
		}
	})
	return s
}

type outcome struct {
	sandboxcore.RunResult
	stdout, stderr string
	err            error
}

func execute(ctx context.Context, s sandboxcore.Environment, r sandboxcore.RunRequest) outcome {
	if r.Timeout == 0 {
		r.Timeout = time.Minute
	}
	var stdout, stderr bytes.Buffer
	res, err := s.Run(ctx, r, &stdout, &stderr)
	return outcome{res, stdout.String(), stderr.String(), err}
}

func python(t testing.TB, s sandboxcore.Environment, code string) outcome {
	t.Helper()
	return execute(t.Context(), s, sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: "python", Text: []byte(code)})
}

func shell(t testing.TB, s sandboxcore.Environment, text string) outcome {
	t.Helper()
	return execute(t.Context(), s, sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte(text)})
}

// ok fails unless a run ended with 0, and gives its standard output.
func (o outcome) ok(t testing.TB) string {
	t.Helper()
	if o.err != nil || o.ExitCode != 0 {
		t.Fatalf("exit %d, error %v\nstdout: %s\nstderr: %s", o.ExitCode, o.err, o.stdout, o.stderr)
	}
	return o.stdout
}

// refused fails unless err has the code and says what it must.
func refused(t testing.TB, err error, code sandboxcore.Code, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %s", code)
	}
	if got := sandboxcore.CodeOf(err); got != code {
		t.Fatalf("code %q, want %s: %v", got, code, err)
	}
	for _, e := range sandboxcore.AllErrors(err, "") {
		if e.Next == "" || e.Attempted == "" {
			t.Errorf("an error without what was attempted or what to do: %#v", e)
		}
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("the error does not say %q: %v", p, err)
		}
	}
}

// counted gives an endpoint whose calls are counted, hijacked ones included.
func counted(t testing.TB) (*endpoint, *atomic.Int64) {
	t.Helper()
	testenv.Require(t, "docker")
	b, err := newBackend(nil, os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	bb := as[*backend](t, b)
	bb.log = slog.New(slog.DiscardHandler)
	to, err := bb.config.resolve()
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	cli, err := newClient(to, client.WithHTTPRequestHook(func(*http.Request) error { calls.Add(1); return nil }))
	if err != nil {
		t.Fatal(err)
	}
	return newEndpoint(to, cli, bb), &calls
}

func testGetenv(k string) string { return os.Getenv(k) }

func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// countProcesses is shell text that counts the processes whose name is name, without ps.
func countProcesses(name string) string {
	return `n=0; for p in /proc/[0-9]*; do read -r c <"$p/comm" 2>/dev/null && [ "$c" = "` + name + `" ] && n=$((n+1)); done; echo $n`
}

// signalWriter closes first at its first write.
type signalWriter struct {
	once  sync.Once
	first chan struct{}
}

func (w *signalWriter) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.first) })
	return len(p), nil
}

// as is a checked type assertion.
func as[T any](t testing.TB, v any) T {
	t.Helper()
	out, ok := v.(T)
	if !ok {
		t.Fatalf("%T is no %T", v, out)
	}
	return out
}
