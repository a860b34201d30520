//go:build linux

package e2b

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// cubeProfile is the part of the preset for CubeSandbox that a profile has, as the guide gives it.
func cubeProfile(p *sandboxcore.Profile) {
	p.Settings[keySecure], p.Settings[keyAllowPublicTraffic] = false, true
}

func echo(t *testing.T, m sandboxcore.ManagedSandbox, want string) string {
	t.Helper()
	var out bytes.Buffer
	res, err := m.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("cat >> f; cat f"), Stdin: []byte(want), Timeout: 20 * time.Second}, &out, io.Discard)
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("exit %d, %v", res.ExitCode, err)
	}
	if res.Notice != "" && res.Notice != noticeWoken {
		t.Errorf("notice %q", res.Notice)
	}
	return out.String()
}

// TestCubeSandbox: with the preset everything that the server has works; what it has not is refused, and nothing is left
// of a sandbox that is not as it was asked for.
func TestCubeSandbox(t *testing.T) {
	k := newClock()
	peer := newPeer(t, e2bpeer.Options{Cube: true, Now: k.Now})
	s := provider(peer)
	s[keyAuth], s[keyAPIVersion] = authBearer, version1
	e := dial(t, s, func(b *backend) { b.now = k.Now })
	for name, c := range map[string]struct {
		change []func(*sandboxcore.Profile)
		code   sandboxcore.Code
		at     string
	}{
		"secure, without a token":      {nil, sandboxcore.CodeProvision, keySecure},
		"egress that it does not tell": {[]func(*sandboxcore.Profile){cubeProfile, func(p *sandboxcore.Profile) { p.Policy.NetworkEgress = sandboxcore.NetworkDeny }}, sandboxcore.CodeNetwork, "network_egress"},
		"an allow-list that it keeps mute": {[]func(*sandboxcore.Profile){cubeProfile, func(p *sandboxcore.Profile) {
			p.Policy.NetworkEgress, p.Policy.NetworkAllow = sandboxcore.NetworkAllowlist, []string{"192.0.2.0/24"}
		}}, sandboxcore.CodeNetwork, "network_egress"},
	} {
		_, err := e.Create(t.Context(), request(t, profile(c.change...)), nil)
		wantError(t, err, c.code)
		if at := sandboxcore.AllErrors(err, "")[0].Attribute; len(at) == 0 || at[len(at)-1] != c.at {
			t.Errorf("%s: blames %v", name, at)
		}
		if n := len(peer.States()); n != 0 {
			t.Errorf("%s: %d left", name, n)
		}
	}
	box := create(t, e, profile(cubeProfile))
	id := box.info.NativeID
	if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
		t.Errorf("the id %q is of E2B", id)
	}
	if got := echo(t, box, "one\n"); got != "one\n" {
		t.Errorf("%q", got)
	}
	for _, r := range peer.Requests() {
		if r.Plane == "api" && r.Header.Get("Authorization") != "Bearer "+peer.Key() || r.Header.Get("X-API-Key") != "" {
			t.Errorf("%s %s: %v", r.Method, r.Path, r.Header)
		}
	}
	// connect says 200 to what it woke: the run says all the same that it was woken.
	k.advance(time.Hour)
	m, err := e.Find(t.Context(), id, true)
	if err != nil || !m.Info().Dormant {
		t.Fatalf("%+v, %v", m.Info(), err)
	}
	res, err := m.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"true"}, Timeout: 20 * time.Second}, io.Discard, io.Discard)
	if err != nil || res.Notice != noticeWoken {
		t.Errorf("%q, %v", res.Notice, err)
	}
	if list, err := e.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	// A change of the network is no call of it: refused, and the sandbox stays as it was.
	err = box.Update(t.Context(), profile(cubeProfile, func(p *sandboxcore.Profile) { p.Policy.NetworkEgress = sandboxcore.NetworkDeny }), box.info.Marks)
	wantError(t, err, sandboxcore.CodeNetwork) // and not "gone"
	if err := box.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, err = e.Find(t.Context(), id, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := echo(t, m, "two\n"); got != "one\ntwo\n" {
		t.Errorf("%q", got)
	}
	if err := m.Destroy(t.Context()); err != nil || len(peer.States()) != 0 {
		t.Errorf("%v, %v", err, peer.States())
	}
	// host-mount needs its switch (TestValidate), and then it is passed on.
	mount := `[{"hostPath":"/data","mountPath":"/data","readOnly":true}]`
	sent := ""
	peer.Tamper(func(d map[string]any) {
		if m, ok := d["metadata"].(map[string]string); ok {
			sent = m[hostMountKey]
		}
	})
	create(t, e, profile(cubeProfile, set(keyMetadata, map[string]any{hostMountKey: mount}), set(keyAllowHostMount, true)))
	if sent != mount {
		t.Errorf("mounted %q", sent)
	}
}

// TestRouting: a sandbox is reached by a header, by a path and by a host name, whatever a server has.
func TestRouting(t *testing.T) {
	for name, change := range map[string]func(*e2bpeer.Peer, sandboxcore.Settings){
		"header": func(*e2bpeer.Peer, sandboxcore.Settings) {},
		"path": func(p *e2bpeer.Peer, s sandboxcore.Settings) {
			s[keySandboxURL] = p.SandboxURL() + "/sandbox/{sandbox_id}/{port}"
		},
		"host": func(_ *e2bpeer.Peer, s sandboxcore.Settings) {
			delete(s, keySandboxURL)
			s[keyDomain], s[keyAllowHTTP] = "sandbox.test", true
		},
	} {
		t.Run(name, func(t *testing.T) {
			peer := newPeer(t, e2bpeer.Options{})
			s := provider(peer)
			change(peer, s)
			e := dial(t, s, func(b *backend) {
				transport := newTransport(b.place)
				dial := transport.DialContext
				transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
					if strings.HasSuffix(address, ".sandbox.test:80") { // the name server that such a domain would have
						address = strings.TrimPrefix(peer.SandboxURL(), "http://")
					}
					return dial(ctx, network, address)
				}
				b.transport = transport
			})
			box := create(t, e, profile(interpreted))
			if got := echo(t, box, "in\n"); got != "in\n" {
				t.Errorf("%q", got)
			}
			if got := runCode(t, t.Context(), box, "python", "print(6 * 7)"); got.failure != nil || got.out != "42\n" {
				t.Errorf("the interpreter: %q %v", got.out, got.failure)
			}
		})
	}
}

// TestOddIDs: ids of other servers are taken as they are; one that the server calls by another name is not gone.
func TestOddIDs(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{Plain: true})
	e := dial(t, provider(peer))
	for _, id := range []string{"0123456789abcdef0123456789abcdef", "Sandbox_1", "sbx-2f8a-77", "7", strings.Repeat("a", 128)} {
		peer.Intercept(func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
			if strings.HasSuffix(r.URL.Path, "/"+id) {
				marks, err := request(t, profile()).Marks.Encode()
				if err != nil {
					t.Error(err)
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, jsonText(t, map[string]any{"sandboxID": id, "state": "running", "metadata": marks}))
				return
			}
			next.ServeHTTP(w, r)
		})
		m, err := e.Find(t.Context(), id, true)
		if err != nil || m.Info().NativeID != id || !m.Info().ExpiresAt.IsZero() {
			t.Errorf("%s: %v", id, err)
		}
	}
	peer.Intercept(nil)
	for _, id := range []string{"", "../x", "a/b", "a b", "ä", "-a", "a?b", strings.Repeat("a", 129)} {
		peer.Forget()
		_, err := e.Find(t.Context(), id, true)
		wantError(t, err, sandboxcore.CodeValue)
		if len(peer.Requests()) > 0 {
			t.Errorf("%q was asked for", id)
		}
	}
	box := create(t, e, profile())
	_, err := e.Find(t.Context(), box.info.NativeID+"-6532622b", true)
	wantError(t, err, sandboxcore.CodeValue)
	if !strings.Contains(err.Error(), box.info.NativeID) {
		t.Error(err)
	}
	// An end that is none.
	peer.Tamper(func(d map[string]any) { d["endAt"] = "9999-12-31T23:59:59Z" })
	m, err := e.Find(t.Context(), box.info.NativeID, true)
	if err != nil || !m.Info().ExpiresAt.IsZero() {
		t.Errorf("%v, %v", m.Info().ExpiresAt, err)
	}
}
