//go:build linux

package e2b

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

var names = map[string]string{
	"good.example.org": "198.51.100.20", "bad.example.org": "203.0.113.30", "deep.good.example.net": "198.51.100.21",
}

func newWorld(t *testing.T) *e2bpeer.World {
	t.Helper()
	testenv.Require(t, testenv.Root, testenv.Local)
	for _, program := range []string{"ip", "nft", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			testenv.Skip(t, testenv.Root, "no "+program+" on the PATH", "apt-get install iproute2 nftables util-linux")
		}
	}
	w, err := e2bpeer.NewWorld(context.WithoutCancel(t.Context()), names)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// reach asks from inside which of the targets answer. A target is host:port or host:port with another Host header.
const reach = `
import http.client, sys
for t in sys.argv[1:]:
    address, _, name = t.partition('=')
    host, _, port = address.partition(':')
    try:
        c = http.client.HTTPConnection(host, int(port), timeout=3)
        c.request('GET', '/', headers={'Host': name or host})
        print(t, c.getresponse().read().decode())
    except Exception as e:
        print(t, 'no', type(e).__name__, file=sys.stderr)
`

func reached(t *testing.T, s *sandbox, targets []string) []string {
	t.Helper()
	var out, errs bytes.Buffer
	_, err := s.Run(t.Context(), sandboxcore.RunRequest{
		Kind: sandboxcore.RunCommand, Argv: append([]string{"python3", "-c", reach}, targets...), Timeout: time.Minute,
	}, &out, &errs)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		target, _, _ := strings.Cut(line, " reached ")
		got = append(got, target)
	}
	return got
}

// TestEgress: what a policy says is what a sandbox can reach, by rules of the kernel, at create and after an update in
// place.
func TestEgress(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{World: newWorld(t)})
	e := dial(t, provider(peer))
	const (
		goodAddress, badAddress, otherAddress = "198.51.100.20:80", "203.0.113.30:80", "198.51.100.21:80"
		goodName, badName, deepName           = "good.example.org:80", "bad.example.org:80", "deep.good.example.net:80"
		badWithGoodName                       = "203.0.113.30:80=good.example.org"
		goodOtherPort                         = "198.51.100.20:443"
	)
	all := []string{goodAddress, badAddress, otherAddress, goodName, badName, deepName}
	policy := func(mode sandboxcore.NetworkMode, entries ...string) func(*sandboxcore.Profile) {
		return func(p *sandboxcore.Profile) { p.Policy.NetworkEgress, p.Policy.NetworkAllow = mode, entries }
	}
	cases := map[string]struct {
		change func(*sandboxcore.Profile)
		want   []string
	}{
		"allow":        {policy(sandboxcore.NetworkAllow), all},
		"deny":         {policy(sandboxcore.NetworkDeny), nil},
		"one address":  {policy(sandboxcore.NetworkAllowlist, "198.51.100.20/32"), []string{goodAddress}},
		"a range":      {policy(sandboxcore.NetworkAllowlist, "198.51.100.0/24"), []string{goodAddress, otherAddress}},
		"a domain":     {policy(sandboxcore.NetworkAllowlist, "good.example.org"), []string{goodName}},
		"a wild card":  {policy(sandboxcore.NetworkAllowlist, "*.example.net"), []string{deepName}},
		"both":         {policy(sandboxcore.NetworkAllowlist, "203.0.113.0/24", "good.example.org"), []string{badAddress, goodName, badName}},
		"another name": {policy(sandboxcore.NetworkAllowlist, "elsewhere.example.org"), nil},
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		c := cases[name]
		t.Run(name, func(t *testing.T) {
			s := create(t, e, profile(c.change))
			if got := reached(t, s, all); !slices.Equal(got, c.want) {
				t.Errorf("reached %v, want %v", got, c.want)
			}
			if err := s.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("update in place", func(t *testing.T) {
		s := create(t, e, profile())
		for _, name := range []string{"deny", "a range", "both", "a domain", "allow", "deny"} {
			p := profile(cases[name].change)
			if err := s.Update(t.Context(), p, s.info.Marks); err != nil {
				t.Fatal(err)
			}
			if got := reached(t, s, all); !slices.Equal(got, cases[name].want) {
				t.Errorf("%s: reached %v, want %v", name, got, cases[name].want)
			}
			n := len(peer.Requests())
			if err := s.Update(t.Context(), p, s.info.Marks); err != nil {
				t.Fatal(err)
			}
			for _, r := range peer.Requests()[n:] {
				if r.Method != "GET" {
					t.Errorf("%s: the same policy again was sent: %s %s", name, r.Method, r.Path)
				}
			}
		}
		// A pause does not open it.
		if err := s.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		m, err := e.Find(t.Context(), s.info.NativeID, true)
		if err != nil {
			t.Fatal(err)
		}
		wantError(t, m.Update(t.Context(), profile(), s.info.Marks), sandboxcore.CodeStopped)
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := reached(t, handle(t, m), all); len(got) != 0 {
			t.Errorf("after a pause: reached %v", got)
		}
	})
	t.Run("what a domain entry does and does not do", func(t *testing.T) {
		// By name on the ports of the web: another port stays shut, and so does an address with a false name in the address
		// line; the Host that is claimed is what counts, as on E2B, and the documentation says so.
		s := create(t, e, profile(policy(sandboxcore.NetworkAllowlist, "good.example.org")))
		if got := reached(t, s, []string{badAddress, goodAddress, goodOtherPort}); len(got) != 0 {
			t.Errorf("reached %v", got)
		}
		t.Logf("with a Host that is allowed, on an address that is not: %v", reached(t, s, []string{badWithGoodName}))
	})
}

// TestEgressReadBack: a server that says another policy than the one that was asked for gets the sandbox back.
func TestEgressReadBack(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{Plain: true})
	e := dial(t, provider(peer))
	deny := func(p *sandboxcore.Profile) { p.Policy.NetworkEgress = sandboxcore.NetworkDeny }
	list := func(p *sandboxcore.Profile) {
		p.Policy.NetworkEgress, p.Policy.NetworkAllow = sandboxcore.NetworkAllowlist, []string{"192.0.2.0/24", "example.org"}
	}
	net := func(internet any, allow, deny []string) func(map[string]any) {
		return func(d map[string]any) {
			if _, whole := d["network"]; !whole {
				return
			}
			d["allowInternetAccess"], d["network"] = internet, map[string]any{"allowOut": allow, "denyOut": deny}
		}
	}
	shut := []string{"0.0.0.0/0"}
	for name, c := range map[string]struct {
		change func(*sandboxcore.Profile)
		tamper func(map[string]any)
		ok     bool
	}{
		"deny, kept":                       {deny, nil, true},
		"deny, ignored":                    {deny, net(nil, nil, nil), false},
		"deny, internet on":                {deny, net(true, nil, nil), false},
		"deny, only as internet off":       {deny, net(false, nil, nil), true},
		"deny, with an opening":            {deny, net(false, []string{"203.0.113.1"}, shut), false},
		"deny, not told":                   {deny, func(d map[string]any) { delete(d, "network"); delete(d, "allowInternetAccess") }, false},
		"list, kept":                       {list, nil, true},
		"list, with the resolver":          {list, net(nil, []string{"192.0.2.0/24", "example.org", "8.8.8.8"}, shut), true},
		"list, without the deny":           {list, net(nil, []string{"192.0.2.0/24", "example.org"}, nil), false},
		"list, one lost":                   {list, net(nil, []string{"192.0.2.0/24"}, shut), false},
		"list, one more":                   {list, net(nil, []string{"192.0.2.0/24", "example.org", "203.0.113.0/24"}, shut), false},
		"free, but shut":                   {func(*sandboxcore.Profile) {}, net(false, nil, shut), true}, // what was not asked for is not looked at
		"list, denied by ranges that leak": {list, net(nil, []string{"192.0.2.0/24", "example.org"}, []string{"0.0.0.0/1"}), false},
	} {
		peer.Tamper(c.tamper)
		var told string
		m, err := e.Create(t.Context(), request(t, profile(c.change)), func(i sandboxcore.SandboxInfo) { told = i.NativeID })
		if c.ok {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if err := m.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: taken", name)
			continue
		}
		wantError(t, err, sandboxcore.CodeNetwork)
		if told == "" || len(peer.States()) != 0 {
			t.Errorf("%s: told %q, left %v", name, told, peer.States())
		}
	}
	peer.Tamper(nil)
	s := create(t, e, profile())
	peer.Tamper(net(nil, nil, nil))
	err := s.Update(t.Context(), profile(deny), s.info.Marks)
	wantError(t, err, sandboxcore.CodeNetwork)
	if fmt.Sprint(peer.States()) != fmt.Sprint(map[string]string{s.info.NativeID: "running"}) {
		t.Error("an update that cannot be confirmed ended the sandbox")
	}
}
