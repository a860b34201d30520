//go:build linux

package ec2ssm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/ssmpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

const testMachine = "i-0123456789abcdef0"

// place is a peer, a machine in it and a way there.
type place struct {
	t       *testing.T
	peer    *ssmpeer.Peer
	key     ssmpeer.Key
	machine *ssmpeer.Machine
	backend *backend
	engine  *sandboxcore.Engine
}

// hermetic keeps the machine's own AWS configuration out of a test, and every request on loopback.
func hermetic(t *testing.T) {
	t.Helper()
	for _, name := range []string{"AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL_SSM", "AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL_S3", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"} {
		t.Setenv(name, "")
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
}

func settings(peer *ssmpeer.Peer, key ssmpeer.Key) sandboxcore.Settings {
	return sandboxcore.Settings{
		keyRegion: peer.Region, keyAccessKey: key.AccessKey, keySecretKey: key.SecretKey,
		keyEndpoints: map[string]any{keySSM: peer.URL, keySTS: peer.URL, keyS3: peer.URL},
	}
}

// testID names runs so that those of this process can be told from others on the same machine.
func testID() string { return fmt.Sprintf("%08x", os.Getpid()) + newRunID()[8:] }

func quickTimings() timings {
	t := defaultTimings()
	t.pollFirst, t.pollMost = 5*time.Millisecond, 50*time.Millisecond
	return t
}

func newPlace(t *testing.T, change ...func(*backend)) *place {
	t.Helper()
	hermetic(t)
	peer := ssmpeer.New()
	t.Cleanup(peer.Close)
	p := &place{t: t, peer: peer, key: peer.AddUser("terraform"), machine: peer.AddMachine(ssmpeer.Machine{ID: testMachine})}
	f := Factory()
	made := f.New
	f.New = func(s sandboxcore.Settings, getenv func(string) string) (sandboxcore.Backend, error) {
		b, err := made(s, getenv)
		if bb, ok := b.(*backend); ok && len(s) > 0 {
			bb.timings, bb.newID = quickTimings(), testID
			for _, c := range change {
				c(bb)
			}
			p.backend = bb
			t.Cleanup(func() { bb.close() })
		}
		return b, err
	}
	engine, err := sandboxcore.NewEngine(sandboxcore.EngineConfig{
		Registry: sandboxcore.NewRegistry(f), Provider: map[sandboxcore.BackendType]sandboxcore.Settings{sandboxcore.BackendEC2SSM: settings(peer, p.key)},
		Secrets: map[string]string{"token": "canary-token"},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.engine = engine
	return p
}

// close ends idle connections, so that no goroutine outlives a test.
func (b *backend) close() {
	if b.endpoint == nil || b.endpoint.base == nil {
		return
	}
	if c, ok := b.endpoint.base.HTTPClient.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// spec makes an attached profile.
func (p *place) spec(change ...func(*sandboxcore.Profile)) string {
	p.t.Helper()
	text, err := sandboxcore.EncodeSpec(profile(change...))
	if err != nil {
		p.t.Fatal(err)
	}
	return text
}

func profile(change ...func(*sandboxcore.Profile)) *sandboxcore.Profile {
	p := &sandboxcore.Profile{
		Name: "machine", Type: sandboxcore.BackendEC2SSM, Environment: sandboxcore.EnvironmentAttached, Scope: sandboxcore.DefaultScope,
		IdleTimeout: sandboxcore.DefaultIdleTimeout, Identity: sandboxcore.IdentityAgent,
		Policy:   sandboxcore.Policy{NetworkEgress: sandboxcore.NetworkAllow, Timeout: 120, Strict: true},
		Settings: sandboxcore.Settings{keyAttachTo: testMachine},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func with(key string, value any) func(*sandboxcore.Profile) {
	return func(p *sandboxcore.Profile) { p.Settings[key] = value }
}

func userMode(p *sandboxcore.Profile) { p.Identity = sandboxcore.IdentityUser }

func (p *place) bind(spec string, who sandboxcore.Principal) sandboxcore.Binding {
	p.t.Helper()
	at, err := p.engine.Attach(p.t.Context(), spec, who)
	if err != nil {
		p.t.Fatal(err)
	}
	return at.Binding
}

// run runs through the engine, as an agent unless the request names somebody.
func (p *place) run(ctx context.Context, req sandboxcore.ExecRequest) (sandboxcore.ExecResult, error) {
	p.t.Helper()
	if req.Principal.Mode == "" {
		req.Principal = sandboxcore.DefaultPrincipal()
	}
	if req.Binding == nil {
		b := p.bind(p.spec(), req.Principal)
		req.Binding = &b
	}
	return p.engine.Exec(ctx, req)
}

// on gives the handle itself, for what the engine keeps away from it.
func (p *place) on(ctx context.Context, change ...func(*sandboxcore.Profile)) *machine {
	p.t.Helper()
	b, err := newBackend(settings(p.peer, p.key), nil)
	if err != nil {
		p.t.Fatal(err)
	}
	bb, _ := b.(*backend)
	bb.timings, bb.newID = quickTimings(), testID
	p.t.Cleanup(bb.close)
	return attachWith(ctx, p.t, bb, change...)
}

func attachWith(ctx context.Context, t *testing.T, b *backend, change ...func(*sandboxcore.Profile)) *machine {
	t.Helper()
	e, err := b.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	at, _ := e.(sandboxcore.AttachingEndpoint)
	env, err := at.Attach(ctx, profile(change...))
	if err != nil {
		t.Fatal(err)
	}
	m, _ := env.(*machine)
	return m
}

func script(text string) sandboxcore.RunRequest {
	return sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte(text), Timeout: 30 * time.Second, Grace: 200 * time.Millisecond}
}

type outcome struct {
	sandboxcore.RunResult
	stdout, stderr string
	err            error
}

func (m *machine) try(ctx context.Context, req sandboxcore.RunRequest) outcome {
	var stdout, stderr bytes.Buffer
	res, err := m.Run(ctx, req, &stdout, &stderr)
	return outcome{res, stdout.String(), stderr.String(), err}
}

func refused(t *testing.T, err error, code sandboxcore.Code, parts ...string) {
	t.Helper()
	if sandboxcore.CodeOf(err) != code {
		t.Fatalf("want %s: %v", code, err)
	}
	for _, e := range sandboxcore.AllErrors(err, "") {
		if e.Next == "" || e.Attempted == "" || strings.Contains(e.Next, "%!") || strings.Contains(e.Said, "%!") {
			t.Errorf("an error without what was attempted or what to do: %#v", e)
		}
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
}

// fakeClock moves only when somebody sleeps.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func newFakeClock() *fakeClock { return &fakeClock{now: time.Now().Truncate(time.Second)} }

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	c.now = c.now.Add(d)
	c.mu.Unlock()
	return ctx.Err()
}

// otherUser is a user of this machine that is not root, when the test can become one.
func otherUser(t *testing.T) *user.User {
	t.Helper()
	testenv.Require(t, testenv.Root)
	u, err := user.Lookup("nobody")
	if err != nil {
		testenv.Skip(t, testenv.Root, "there is no user nobody", "add one")
	}
	return u
}
