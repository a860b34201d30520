package e2b

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// everything is the deny entry without which an allow-list restricts nothing: the server lets pass what matches neither
// list.
const everything = "0.0.0.0/0"

// resolver is the address that the server adds by itself to an allow-list with domains, for name resolution.
const resolver = "8.8.8.8/32"

// networkOf says a policy in the server's words. allow_internet_access = false means the same as denying 0.0.0.0/0 and
// is sent besides, because CubeSandbox wants it together with an allow-list.
func networkOf(pol sandboxcore.Policy) networkUpdate {
	switch pol.NetworkEgress {
	case sandboxcore.NetworkDeny:
		return networkUpdate{AllowOut: []string{}, DenyOut: []string{everything}}
	case sandboxcore.NetworkAllowlist:
		return networkUpdate{AllowOut: slices.Clone(pol.NetworkAllow), DenyOut: []string{everything}}
	}
	return networkUpdate{AllowInternetAccess: true, AllowOut: []string{}, DenyOut: []string{}}
}

// readBack says how the egress that the server tells differs from what was asked; empty if it does not. A server that
// tells nothing has proved nothing.
func readBack(want networkUpdate, d *sandboxDetail) string {
	if d.AllowInternetAccess == nil && d.Network == nil {
		if want.AllowInternetAccess {
			return ""
		}
		return "the server does not tell the sandbox's egress, so that it cannot be seen to be limited"
	}
	var have network
	if d.Network != nil {
		have = *d.Network
	}
	shut := slices.Contains(canonical(have.DenyOut), everything) || (d.AllowInternetAccess != nil && !*d.AllowInternetAccess)
	if want.AllowInternetAccess {
		if shut || len(have.DenyOut) > 0 {
			return "egress was to be free, but the server denies " + listed(have.DenyOut)
		}
		return ""
	}
	if !shut {
		return "egress was to be denied by default, but the server lets everything pass"
	}
	wanted, got := canonical(want.AllowOut), canonical(have.AllowOut)
	for _, w := range wanted {
		if !slices.Contains(got, w) {
			return fmt.Sprintf("the server does not allow %s", sandboxcore.Quoted(w))
		}
	}
	for _, g := range got {
		if !slices.Contains(wanted, g) && (g != resolver || !slices.ContainsFunc(wanted, isDomain)) {
			return fmt.Sprintf("the server allows %s besides", sandboxcore.Quoted(g))
		}
	}
	return ""
}

func isDomain(entry string) bool {
	return sandboxcore.AllowEntryKindOf(entry) == sandboxcore.AllowEntryDomain
}

func canonical(entries []string) []string {
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		if c, err := sandboxcore.CanonicalAllowEntry(e); err == nil {
			e = c
		}
		out = append(out, e)
	}
	return out
}

func listed(entries []string) string {
	if len(entries) == 0 {
		return "all"
	}
	return sandboxcore.Printable(strings.Join(entries, ", "))
}

func (e *endpoint) networkMismatch(id, said, next string) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeNetwork, Attempted: "the network policy could not be confirmed", Object: objectID(e.place.Kind, id),
		Said: sentence("Read back after it was set: " + said), Next: next, Attribute: []string{"policy", "network_egress"},
	}
}

// networkRefusals are the entries that E2B could not enforce, known before anything is created.
func networkRefusals(refuse func(code sandboxcore.Code, said, next string, attribute ...string), pol sandboxcore.Policy) {
	at := []string{"policy", "network_allow"}
	for _, entry := range pol.NetworkAllow {
		prefix, err := netip.ParsePrefix(entry)
		if err != nil {
			continue // a domain
		}
		switch {
		case !prefix.Addr().Is4():
			refuse(sandboxcore.CodeAllowEntry, fmt.Sprintf("The entry %q is of IPv6, and the filter is one of IPv4.", entry), "Remove it.", at...)
		case prefix.Bits() == 0:
			refuse(sandboxcore.CodeAllowEntry, "The entry \"0.0.0.0/0\" allows everything.", "Use network_egress = \"allow\".", at...)
		case blockedByDefault(prefix):
			refuse(sandboxcore.CodeAllowEntry, fmt.Sprintf("The entry %q lies in a range that the server always blocks (private, shared, loopback, link-local).", entry),
				"Remove it: it would not open anything.", at...)
		}
	}
}

// blockedByDefault reports the ranges that a sandbox never reaches, whatever its lists say.
func blockedByDefault(p netip.Prefix) bool {
	for _, r := range []string{"10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"} {
		blocked := netip.MustParsePrefix(r)
		if blocked.Bits() <= p.Bits() && blocked.Contains(p.Addr()) {
			return true
		}
	}
	return false
}

// updateNetwork replaces the egress rules of a running sandbox and reads them back.
func (s *sandbox) updateNetwork(ctx context.Context, want networkUpdate) error {
	const attempted = "the network policy could not be changed"
	id := s.info.NativeID
	if err := s.e.api.setNetwork(ctx, id, want); err != nil {
		return s.e.sandboxFailure(ctx, err, sandboxcore.CodeNetwork, attempted, id)
	}
	d, err := s.e.api.get(ctx, id)
	if err != nil {
		return s.e.sandboxFailure(ctx, err, sandboxcore.CodeNetwork, attempted, id)
	}
	if said := readBack(want, d); said != "" {
		return s.e.networkMismatch(id, said, "Until it is right, take the sandbox as having another policy than its profile: apply again, or replace it.")
	}
	return nil
}
