package e2b

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// maxMeasured bounds how many sandboxes are asked one by one, at a server that has no call for all of them.
const maxMeasured = 20

// metric is one measurement of a sandbox (schema SandboxMetric); sizes are bytes, CPU is per cent of one.
type metric struct {
	TimestampUnix json.Number `json:"timestampUnix"`
	CPUCount      json.Number `json:"cpuCount"`
	CPUUsedPct    json.Number `json:"cpuUsedPct"`
	MemUsed       json.Number `json:"memUsed"`
	MemTotal      json.Number `json:"memTotal"`
	DiskUsed      json.Number `json:"diskUsed"`
	DiskTotal     json.Number `json:"diskTotal"`
}

func (m metric) facts() map[string]string {
	out := map[string]string{}
	for name, n := range map[string]json.Number{
		"measured_at_unix": m.TimestampUnix, "cpu_count": m.CPUCount, "cpu_used_pct": m.CPUUsedPct, "memory_used_bytes": m.MemUsed,
		"memory_total_bytes": m.MemTotal, "disk_used_bytes": m.DiskUsed, "disk_total_bytes": m.DiskTotal,
	} {
		if n != "" {
			out[name] = n.String()
		}
	}
	return out
}

// Measure gives what sandboxes use, by id. A server that does not measure is no fault: there is then nothing to give.
func (e *endpoint) Measure(ctx context.Context, ids []string) map[string]map[string]string {
	out := map[string]map[string]string{}
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !idPattern.MatchString(id) })
	quiet := func(err error) bool {
		if err != nil {
			e.log.DebugContext(ctx, "no measurements", "server", e.place.identity(), "reason", clip(sandboxcore.Printable(err.Error()), 200))
		}
		return err != nil
	}
	for chunk := range slices.Chunk(ids, pageSize) {
		var all struct {
			Sandboxes map[string]metric `json:"sandboxes"`
		}
		_, _, err := e.api.do(ctx, call{method: http.MethodGet, path: "/sandboxes/metrics", query: url.Values{"sandbox_ids": {strings.Join(chunk, ",")}}, out: &all})
		if quiet(err) {
			return e.measureEach(ctx, ids, quiet)
		}
		for id, m := range all.Sandboxes {
			if slices.Contains(chunk, id) {
				out[id] = m.facts()
			}
		}
	}
	return out
}

func (e *endpoint) measureEach(ctx context.Context, ids []string, quiet func(error) bool) map[string]map[string]string {
	out := map[string]map[string]string{}
	for _, id := range ids[:min(len(ids), maxMeasured)] {
		var series []metric
		if _, _, err := e.api.do(ctx, call{method: http.MethodGet, path: sandboxPath(id, "/metrics"), out: &series}); quiet(err) {
			if isMissing(err) {
				continue // that one has gone meanwhile
			}
			return out
		}
		if len(series) > 0 {
			out[id] = series[len(series)-1].facts()
		}
	}
	return out
}

// ReadLive sets the network policy of p to what holds for a sandbox now: its marks cannot change and say what it was made
// with.
func (e *endpoint) ReadLive(ctx context.Context, nativeID string, p *sandboxcore.Profile) error {
	const attempted = "the network policy could not be read"
	if !idPattern.MatchString(nativeID) {
		return e.gone(attempted, sandboxcore.Printable(nativeID))
	}
	d, err := e.api.get(ctx, nativeID)
	if err != nil {
		return e.sandboxFailure(ctx, err, sandboxcore.CodeUnreachable, attempted, nativeID)
	}
	if readBack(networkOf(p.Policy), d) != "" && (d.Network != nil || d.AllowInternetAccess != nil) {
		p.Policy.NetworkEgress, p.Policy.NetworkAllow = policyOf(d)
		for _, entry := range p.Policy.NetworkAllow {
			if _, err := sandboxcore.CanonicalAllowEntry(entry); err != nil {
				return &sandboxcore.Error{
					Code: sandboxcore.CodeAllowEntry, Attempted: attempted, Object: objectID(e.place.Kind, nativeID),
					Said: fmt.Sprintf("It was changed outside Terraform, and now allows %s, which no profile can say.", sandboxcore.Quoted(entry)),
					Next: "Change it at the server, or end the sandbox.", Attribute: []string{"policy", "network_allow"},
				}
			}
		}
	}
	return nil
}

// policyOf is networkOf the other way round.
func policyOf(d *sandboxDetail) (sandboxcore.NetworkMode, []string) {
	var have network
	if d.Network != nil {
		have = *d.Network
	}
	shut := d.AllowInternetAccess != nil && !*d.AllowInternetAccess || slices.Contains(canonical(have.DenyOut), everything)
	if !shut {
		return sandboxcore.NetworkAllow, nil
	}
	allow := canonical(have.AllowOut)
	if slices.ContainsFunc(allow, isDomain) { // the server's own
		allow = slices.DeleteFunc(allow, func(s string) bool { return s == resolver })
	}
	if len(allow) == 0 {
		return sandboxcore.NetworkDeny, nil
	}
	slices.Sort(allow)
	return sandboxcore.NetworkAllowlist, slices.Compact(allow)
}

var (
	_ sandboxcore.LiveReader = (*endpoint)(nil)
	_ sandboxcore.Measurer   = (*endpoint)(nil)
)
