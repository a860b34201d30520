package workspacetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Kit is one backend with a data directory of its own.
type Kit struct {
	Factory  sandboxcore.Factory
	Backend  sandboxcore.Backend
	Endpoint sandboxcore.Endpoint
	DataDir  string
}

// New makes a kit. The data directory can be entered by every user, as that of root has to be. Whatever a test leaves
// in it fails the test.
func New(t testing.TB, factory sandboxcore.Factory) *Kit {
	t.Helper()
	dir, err := os.MkdirTemp("", "agentkernel-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	k := Open(t, factory, filepath.Join(dir, "data"))
	t.Cleanup(func() {
		left, err := k.Endpoint.List(context.Background()) //nolint:usetesting // the test's own context has ended
		if err != nil || len(left) > 0 {
			t.Errorf("sandboxes left behind: %v %v", left, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return k
}

// Open makes a kit for a data directory that may exist.
func Open(t testing.TB, factory sandboxcore.Factory, dataDir string) *Kit {
	t.Helper()
	backend, err := factory.New(sandboxcore.Settings{"data_dir": dataDir}, os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	endpoint, err := backend.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &Kit{Factory: factory, Backend: backend, Endpoint: endpoint, DataDir: dataDir}
}

// Profile gives a profile with this policy.
func (k *Kit) Profile(policy sandboxcore.Policy) *sandboxcore.Profile {
	if policy.NetworkEgress == "" {
		policy.NetworkEgress = sandboxcore.NetworkAllow
	}
	if policy.Timeout == 0 {
		policy.Timeout = 120
	}
	policy.Strict = true
	return &sandboxcore.Profile{
		Name: "test", Type: k.Factory.Type, Environment: sandboxcore.EnvironmentManaged, Scope: sandboxcore.ScopePerSession,
		IdleTimeout: 1800, Identity: sandboxcore.IdentityAgent, Policy: policy, Settings: sandboxcore.Settings{},
	}
}

// Sandbox makes a sandbox with this policy, which is destroyed when the test ends.
func (k *Kit) Sandbox(t testing.TB, policy sandboxcore.Policy) sandboxcore.ManagedSandbox {
	t.Helper()
	return k.Create(t, k.Profile(policy), nil)
}

// Create makes a sandbox, which is destroyed when the test ends.
func (k *Kit) Create(t testing.TB, p *sandboxcore.Profile, env map[string]string) sandboxcore.ManagedSandbox {
	t.Helper()
	req := Request(t, p)
	req.Env = env
	created := 0
	sb, err := k.Endpoint.Create(t.Context(), req, func(info sandboxcore.SandboxInfo) {
		created++
		Remember(info.NativeID)
	})
	if err != nil {
		t.Fatal(err)
	}
	if created != 1 {
		t.Errorf("onCreated was called %d times", created)
	}
	t.Cleanup(func() {
		if err := sb.Destroy(context.Background()); err != nil { //nolint:usetesting // the test's own context has ended
			t.Errorf("destroy: %v", err)
		}
	})
	return sb
}

// Request makes a create request.
func Request(t testing.TB, p *sandboxcore.Profile) sandboxcore.CreateRequest {
	t.Helper()
	spec, err := sandboxcore.EncodeSpec(p)
	if err != nil {
		t.Fatal(err)
	}
	return sandboxcore.CreateRequest{
		Profile: p, Principal: sandboxcore.DefaultPrincipal(),
		Marks: sandboxcore.Marks{Name: "test", Spec: spec, Created: time.Now().UTC().Truncate(time.Millisecond), Request: Token()},
	}
}

// Token is a text that no other process on the machine has.
func Token() string {
	raw := make([]byte, 8)
	_, _ = rand.Read(raw)
	return hex.EncodeToString(raw)
}

// Number is a duration in seconds for sleep that no other process on the machine has.
func Number() string {
	raw := make([]byte, 6)
	_, _ = rand.Read(raw)
	n := uint64(0)
	for _, b := range raw {
		n = n<<8 | uint64(b)
	}
	return "7" + strconv.FormatUint(n, 10)
}

// Outcome is everything that a run gave.
type Outcome struct {
	sandboxcore.RunResult
	Stdout, Stderr string
	Err            error
}

// Run runs a request with a timeout of a minute where it has none.
func Run(ctx context.Context, env sandboxcore.Environment, req sandboxcore.RunRequest) Outcome {
	if req.Timeout == 0 {
		req.Timeout = time.Minute
	}
	var out, errOut bytes.Buffer
	res, err := env.Run(ctx, req, &out, &errOut)
	return Outcome{res, out.String(), errOut.String(), err}
}

// Python runs Python code.
func Python(env sandboxcore.Environment, code string) Outcome {
	return Run(context.Background(), env, sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: "python", Text: []byte(code)})
}

// Shell runs shell text.
func Shell(env sandboxcore.Environment, text string) Outcome {
	return Run(context.Background(), env, sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte(text)})
}

// Want fails the test unless the run ended with 0 and this output.
func (o Outcome) Want(t testing.TB, stdout string) {
	t.Helper()
	if o.Err != nil || o.ExitCode != 0 || strings.TrimSpace(o.Stdout) != stdout {
		t.Errorf("got exit %d, stdout %q, stderr %q, error %v; want stdout %q", o.ExitCode, o.Stdout, o.Stderr, o.Err, stdout)
	}
}

// WantCode fails the test unless err has this code, and the texts that every error must have.
func WantCode(t testing.TB, err error, code sandboxcore.Code) {
	t.Helper()
	if !sandboxcore.IsCode(err, code) {
		t.Errorf("got error %v, want one with %s", err, code)
		return
	}
	for _, e := range sandboxcore.AllErrors(err, code) {
		if e.Attempted == "" || e.Next == "" || e.Object == "" {
			t.Errorf("the error does not say what was attempted, on what, or what to do next: %+v", e)
		}
	}
}

// Processes lists the living processes whose command line has the text.
func Processes(text string) []int {
	var found []int
	each(func(pid int) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && bytes.Contains(line, []byte(text)) && pid != os.Getpid() {
			found = append(found, pid)
		}
	})
	return found
}

func each(f func(pid int)) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			f(pid)
		}
	}
}

// Eventually waits until ok, and fails the test after 20 s.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("did not happen: %s", what)
}

var (
	rememberMu sync.Mutex
	remembered []string
)

// Remember notes the id of a sandbox for the check at the end of all tests.
func Remember(id string) {
	rememberMu.Lock()
	defer rememberMu.Unlock()
	remembered = append(remembered, id)
}

// leftovers describes what the tests of this process left on the machine.
func leftovers() []string {
	var left []string
	for _, pid := range children() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		left = append(left, fmt.Sprintf("process %d: %s", pid, bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
	}
	rememberMu.Lock()
	defer rememberMu.Unlock()
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // a group that goes away while it is looked at
		}
		if id, ok := strings.CutPrefix(d.Name(), "agentkernel-"); ok && slices.Contains(remembered, id) {
			left = append(left, "control group "+path)
		}
		return nil
	})
	return left
}

// Dir is the directory of a sandbox.
func (k *Kit) Dir(sb sandboxcore.ManagedSandbox) string {
	return filepath.Join(k.DataDir, string(k.Factory.Type), sb.Info().NativeID)
}

// MustExist fails the test when a path is not there.
func MustExist(t testing.TB, path string, want bool) {
	t.Helper()
	_, err := os.Lstat(path)
	if want && err != nil || !want && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: exists should be %v: %v", path, want, err)
	}
}
