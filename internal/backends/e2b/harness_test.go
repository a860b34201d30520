//go:build linux

package e2b

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// newPeer starts a peer that ends with the test.
func newPeer(t testing.TB, opt e2bpeer.Options) *e2bpeer.Peer {
	t.Helper()
	if !opt.Plain {
		testenv.Require(t, testenv.Local)
	}
	p, err := e2bpeer.Start(context.WithoutCancel(t.Context()), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// provider are the provider settings that lead to a peer.
func provider(p *e2bpeer.Peer) sandboxcore.Settings {
	return sandboxcore.Settings{keyAPIKey: p.Key(), keyAPIURL: p.APIURL(), keySandboxURL: p.SandboxURL()}
}

func noEnvironment(string) string { return "" }

// dial gives the endpoint of a backend with short waits.
func dial(t testing.TB, settings sandboxcore.Settings, change ...func(*backend)) *endpoint {
	t.Helper()
	place, err := readPlace(settings, noEnvironment)
	if err != nil {
		t.Fatal(err)
	}
	b := newBackend(place)
	b.log = slog.New(slog.DiscardHandler)
	b.times.backoff, b.times.poll, b.times.lost, b.times.gone = 5*time.Millisecond, 10*time.Millisecond, 50*time.Millisecond, 2*time.Second
	for _, c := range change {
		c(b)
	}
	return b.connect()
}

func profile(change ...func(*sandboxcore.Profile)) *sandboxcore.Profile {
	p := &sandboxcore.Profile{
		Name: "test", Type: sandboxcore.BackendE2B, Environment: sandboxcore.EnvironmentManaged, Scope: sandboxcore.DefaultScope,
		Identity: sandboxcore.IdentityAgent, IdleTimeout: sandboxcore.DefaultIdleTimeout,
		Policy:   sandboxcore.Policy{NetworkEgress: sandboxcore.NetworkAllow, Timeout: 120, Strict: true},
		Settings: sandboxcore.Settings{},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func request(t testing.TB, p *sandboxcore.Profile) sandboxcore.CreateRequest {
	t.Helper()
	spec, err := sandboxcore.EncodeSpec(p)
	if err != nil {
		t.Fatal(err)
	}
	return sandboxcore.CreateRequest{
		Profile: p, Principal: sandboxcore.DefaultPrincipal(),
		Marks: sandboxcore.Marks{Name: "test", Spec: spec, Created: time.Now().UTC(), Request: newRunID()},
	}
}

func create(t testing.TB, e *endpoint, p *sandboxcore.Profile) *sandbox {
	t.Helper()
	m, err := e.Create(t.Context(), request(t, p), nil)
	if err != nil {
		t.Fatal(err)
	}
	return handle(t, m)
}

func handle(t testing.TB, m sandboxcore.ManagedSandbox) *sandbox {
	t.Helper()
	s, ok := m.(*sandbox)
	if !ok {
		t.Fatalf("a %T", m)
	}
	return s
}

// wantError fails unless err has the code and says what it must.
func wantError(t testing.TB, err error, code sandboxcore.Code) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %s", code)
	}
	if got := sandboxcore.CodeOf(err); got != code {
		t.Fatalf("code %q, want %s: %v", got, code, err)
	}
	for _, e := range sandboxcore.AllErrors(err, "") {
		if e.Next == "" || e.Attempted == "" || e.Said == "" && e.Err == nil {
			t.Errorf("an error without what was attempted, what was said or what to do: %#v", e)
		}
	}
}

func TestMain(m *testing.M) {
	code := m.Run()
	if left := leftovers(); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "left behind:", left)
		code = max(code, 1)
	}
	os.Exit(code)
}

// leftovers are processes of this test that outlived it.
func leftovers() []string {
	var out []string
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		text, err := os.ReadFile("/proc/" + e.Name() + "/status")
		if err == nil && len(text) > 0 {
			if parent := fmt.Sprintf("\nPPid:\t%d\n", os.Getpid()); strings.Contains(string(text), parent) && !strings.Contains(string(text), "\nState:\tZ") {
				out = append(out, e.Name())
			}
		}
	}
	return out
}

func jsonText(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
