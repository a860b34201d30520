//go:build linux

package e2bpeer

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

type createBody struct {
	TemplateID          string                  `json:"templateID"`
	Timeout             *int                    `json:"timeout"`
	AutoPause           bool                    `json:"autoPause"`
	AutoPauseMemory     *bool                   `json:"autoPauseMemory"`
	AutoResume          *struct{ Enabled bool } `json:"autoResume"`
	Secure              *bool                   `json:"secure"`
	AllowInternetAccess *bool                   `json:"allow_internet_access"`
	Network             *networkBody            `json:"network"`
	Metadata            map[string]string       `json:"metadata"`
	EnvVars             map[string]string       `json:"envVars"`
}

type networkBody struct {
	AllowPublicTraffic  *bool    `json:"allowPublicTraffic,omitempty"`
	AllowOut            []string `json:"allowOut,omitempty"`
	DenyOut             []string `json:"denyOut,omitempty"`
	AllowInternetAccess *bool    `json:"allow_internet_access,omitempty"` // of the update call
}

var idForm = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)?$`)

func (p *Peer) apiHandler() http.Handler {
	m := http.NewServeMux()
	create := func(v2 bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { p.create(w, r, v2) }
	}
	if !p.opt.NoV1 {
		m.HandleFunc("POST /sandboxes", create(false))
	}
	if !p.opt.NoV2 {
		m.HandleFunc("POST /v2/sandboxes", create(true))
		m.HandleFunc("POST /v2/sandboxes/{id}/connect", p.withBox(p.connect))
	}
	m.HandleFunc("GET /v2/sandboxes", p.list)
	m.HandleFunc("GET /sandboxes/{id}", p.withBox(p.detail))
	m.HandleFunc("DELETE /sandboxes/{id}", p.withBox(func(w http.ResponseWriter, _ *http.Request, b *box) {
		if p.take(b.id) == nil {
			fail(w, http.StatusNotFound, "Sandbox %q not found", b.id)
			return
		}
		b.destroy()
		w.WriteHeader(http.StatusNoContent)
	}))
	m.HandleFunc("POST /sandboxes/{id}/pause", p.withBox(func(w http.ResponseWriter, _ *http.Request, b *box) {
		if !b.pause() {
			fail(w, http.StatusConflict, "Sandbox %q is already paused", b.id)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	m.HandleFunc("POST /sandboxes/{id}/connect", p.withBox(p.connect))
	m.HandleFunc("POST /sandboxes/{id}/resume", p.withBox(func(w http.ResponseWriter, r *http.Request, b *box) {
		if b.status() == stateRunning {
			fail(w, http.StatusConflict, "Sandbox %q is already running", b.id)
			return
		}
		p.connect(w, r, b)
	}))
	m.HandleFunc("POST /sandboxes/{id}/timeout", p.withBox(p.timeout))
	m.HandleFunc("POST /sandboxes/{id}/refreshes", p.withBox(p.refresh))
	if !p.opt.Cube {
		p.later(m)
	}
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if p.opt.Cube {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fail(w, http.StatusNotFound, "no matching operation was found for %s %s", r.Method, r.URL.Path)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.authorized(r) {
			fail(w, http.StatusUnauthorized, "Invalid API key")
			return
		}
		m.ServeHTTP(w, r)
	})
}

// later are calls that not every server of this shape has.
func (p *Peer) later(m *http.ServeMux) {
	m.HandleFunc("PUT /sandboxes/{id}/network", p.withBox(p.network))
	m.HandleFunc("GET /sandboxes/{id}/metrics", p.withBox(func(w http.ResponseWriter, _ *http.Request, b *box) {
		writeJSON(w, http.StatusOK, []map[string]any{b.metrics()})
	}))
	if !p.opt.NoBatchMetrics {
		m.HandleFunc("GET /sandboxes/metrics", func(w http.ResponseWriter, r *http.Request) {
			ids := strings.Split(r.URL.Query().Get("sandbox_ids"), ",")
			if len(ids) > 100 {
				fail(w, http.StatusBadRequest, "too many sandboxes requested, maximum is 100")
				return
			}
			out := map[string]any{}
			for _, id := range ids {
				if b := p.find(id); b != nil {
					out[id] = b.metrics()
				}
			}
			writeJSON(w, http.StatusOK, map[string]any{"sandboxes": out})
		})
	}
}

func (p *Peer) withBox(f func(http.ResponseWriter, *http.Request, *box)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		if !idForm.MatchString(id) {
			fail(w, http.StatusBadRequest, "Invalid sandbox ID")
			return
		}
		id, _, _ = strings.Cut(id, "-")
		b := p.find(id)
		if b == nil {
			fail(w, http.StatusNotFound, "Sandbox %q doesn't exist or you don't have access to it", id)
			return
		}
		f(w, r, b)
	}
}

func decode(w http.ResponseWriter, r *http.Request, v any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 8<<20)).Decode(v); err != nil {
		fail(w, http.StatusBadRequest, "Error when parsing request: %v", err)
		return false
	}
	return true
}

// lifetime checks a number of seconds: the plan's maximum is 400, as is nothing or less.
func (p *Peer) lifetime(w http.ResponseWriter, seconds int) (time.Duration, bool) {
	d := time.Duration(seconds) * time.Second
	if seconds < 0 {
		fail(w, http.StatusBadRequest, "Timeout cannot be negative")
		return 0, false
	}
	if d > p.opt.MaxLifetime {
		fail(w, http.StatusBadRequest, "Timeout cannot be greater than %d hours", int(p.opt.MaxLifetime.Hours()))
		return 0, false
	}
	return d, true
}

func (p *Peer) create(w http.ResponseWriter, r *http.Request, v2 bool) {
	var in createBody
	if !decode(w, r, &in) {
		return
	}
	secure := v2 || (in.Secure != nil && *in.Secure)
	if in.Timeout == nil {
		in.Timeout = new(15)
		if v2 {
			in.Timeout = new(300)
		}
	}
	if _, ok := p.lifetime(w, *in.Timeout); !ok {
		return
	}
	switch in.TemplateID {
	case "":
		fail(w, http.StatusBadRequest, "templateID is required")
		return
	case "base", "code-interpreter-v1", "python":
	default:
		fail(w, http.StatusNotFound, "template %q not found", in.TemplateID)
		return
	}
	if said := checkNetwork(in.Network, in.AllowInternetAccess); said != "" {
		fail(w, http.StatusBadRequest, "%s", said)
		return
	}
	if in.Network != nil && in.Network.AllowPublicTraffic != nil && !*in.Network.AllowPublicTraffic && !secure {
		fail(w, http.StatusBadRequest, "allowPublicTraffic=false requires a secure sandbox")
		return
	}
	if in.AutoPauseMemory != nil && !*in.AutoPauseMemory && (!in.AutoPause || (in.AutoResume != nil && in.AutoResume.Enabled)) {
		fail(w, http.StatusBadRequest, "autoPauseMemory=false requires autoPause, without autoResume")
		return
	}
	if p.opt.MaxSandboxes > 0 && p.running() >= p.opt.MaxSandboxes {
		fail(w, http.StatusTooManyRequests, "you have reached the maximum number of concurrent sandboxes (%d)", p.opt.MaxSandboxes)
		return
	}
	b, status, err := p.newBox(in, secure)
	if err != nil {
		fail(w, status, "%v", err)
		return
	}
	writeJSON(w, http.StatusCreated, p.answer(b))
}

func (p *Peer) running() int {
	n := 0
	for _, s := range p.States() {
		if s == stateRunning {
			n++
		}
	}
	return n
}

// checkNetwork has E2B's own rules of lists.
func checkNetwork(n *networkBody, internet *bool) string {
	if n == nil {
		return ""
	}
	for _, d := range n.DenyOut {
		if !isAddress(d) {
			return "invalid denied address " + d + ": only IPs and CIDRs"
		}
	}
	shut := slices.Contains(n.DenyOut, "0.0.0.0/0") || (internet != nil && !*internet)
	for _, a := range n.AllowOut {
		if !isAddress(a) && !shut {
			return "when specifying allowed domains, you must include 0.0.0.0/0 in denyOut"
		}
	}
	return ""
}

func isAddress(s string) bool {
	if _, err := netip.ParsePrefix(s); err == nil {
		return true
	}
	return net.ParseIP(s) != nil
}

// answer is the description of create and connect.
func (p *Peer) answer(b *box) map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]any{
		"sandboxID": b.id, "templateID": b.template, "clientID": "6532622b", "envdVersion": p.opt.EnvdVersion, "domain": nil, "trafficAccessToken": nil,
	}
	if p.opt.EnvdURL {
		out["envdUrl"] = p.pathURL(b.id)
	}
	if b.token != "" && !p.noToken {
		out["envdAccessToken"] = b.token
	}
	if b.traffic != "" && !p.noToken {
		out["trafficAccessToken"] = b.traffic
	}
	if p.tamper != nil {
		p.tamper(out)
	}
	return out
}

func (p *Peer) describe(b *box, single bool) map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]any{
		"sandboxID": b.id, "templateID": b.template, "clientID": "6532622b", "envdVersion": p.opt.EnvdVersion, "state": b.state, "metadata": b.metadata,
		"startedAt": b.started.UTC().Format(time.RFC3339Nano), "endAt": b.end.UTC().Format(time.RFC3339Nano), "cpuCount": 2, "memoryMB": 512, "diskSizeMB": 1024,
	}
	if single {
		onTimeout := "kill"
		if b.autoPause {
			onTimeout = "pause"
		}
		out["lifecycle"] = map[string]any{"onTimeout": onTimeout, "autoResume": b.autoResume}
		out["domain"] = nil
		if !p.opt.Cube {
			out["allowInternetAccess"] = b.internet
			out["network"] = b.network
		}
		if p.opt.EnvdURL {
			out["envdUrl"] = p.pathURL(b.id)
		}
		if b.token != "" && !p.noToken {
			out["envdAccessToken"] = b.token
		}
	}
	if p.tamper != nil {
		p.tamper(out)
	}
	return out
}

func (p *Peer) detail(w http.ResponseWriter, _ *http.Request, b *box) {
	writeJSON(w, http.StatusOK, p.describe(b, true))
}

func (p *Peer) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit := 100
	if s := q.Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 100 {
			fail(w, http.StatusBadRequest, "limit must be 1 to 100")
			return
		}
		limit = n
	}
	filter, err := metadataFilter(q.Get("metadata"))
	if err != nil {
		fail(w, http.StatusBadRequest, "metadata: %v", err)
		return
	}
	states := []string{stateRunning, statePaused}
	if s := q.Get("state"); s != "" {
		states = strings.Split(s, ",")
	}
	from, _ := strconv.Atoi(q.Get("nextToken"))
	p.mu.Lock()
	var found []*box
	running := 0
	for _, id := range p.order {
		b := p.boxes[id]
		if b.state == stateRunning {
			running++
		}
		keep := slices.Contains(states, b.state)
		for k, v := range filter {
			keep = keep && b.metadata[k] == v
		}
		if keep {
			found = append(found, b)
		}
	}
	p.mu.Unlock()
	w.Header().Set("X-Total-Running", strconv.Itoa(running))
	from = min(max(from, 0), len(found))
	page := found[from:]
	if len(page) > limit {
		page = page[:limit]
		w.Header().Set("X-Next-Token", strconv.Itoa(from+limit))
	}
	out := make([]map[string]any, 0, len(page))
	for _, b := range page {
		out = append(out, p.describe(b, false))
	}
	writeJSON(w, http.StatusOK, out)
}

// metadataFilter takes the filter apart: the parameter is encoded as a whole, and each key and value by itself, so that
// one more decoding than a query has is right for both ways in which clients write it.
func metadataFilter(parameter string) (map[string]string, error) {
	text, err := url.QueryUnescape(parameter)
	if err != nil || text == "" {
		return nil, err
	}
	out := map[string]string{}
	for pair := range strings.SplitSeq(text, "&") {
		k, v, _ := strings.Cut(pair, "=")
		if k, err = url.QueryUnescape(k); err != nil {
			return nil, err
		}
		if v, err = url.QueryUnescape(v); err != nil {
			return nil, err
		}
		out[k] = v
	}
	return out, nil
}

// connect extends the time of a running sandbox and never shortens it; a paused one is woken, with the time from now.
func (p *Peer) connect(w http.ResponseWriter, r *http.Request, b *box) {
	var in struct {
		Timeout *int `json:"timeout"`
	}
	if r.ContentLength != 0 && !decode(w, r, &in) {
		return
	}
	seconds := 300
	if in.Timeout != nil {
		seconds = *in.Timeout
	}
	d, ok := p.lifetime(w, seconds)
	if !ok {
		return
	}
	status := http.StatusOK
	resumed := http.StatusCreated
	if p.opt.Cube {
		resumed = http.StatusOK
	}
	until := p.opt.Now().Add(d)
	if b.resume() {
		status = resumed
		p.mu.Lock()
		b.end = until
		p.mu.Unlock()
	} else {
		p.mu.Lock()
		if until.After(b.end) {
			b.end = until
		}
		p.mu.Unlock()
	}
	writeJSON(w, status, p.answer(b))
}

func (p *Peer) timeout(w http.ResponseWriter, r *http.Request, b *box) {
	var in struct {
		Timeout int `json:"timeout"`
	}
	if !decode(w, r, &in) {
		return
	}
	d, ok := p.lifetime(w, in.Timeout)
	if !ok {
		return
	}
	if b.status() != stateRunning {
		fail(w, http.StatusConflict, "Sandbox %q is not running", b.id)
		return
	}
	p.mu.Lock()
	b.end = p.opt.Now().Add(d)
	p.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

func (p *Peer) refresh(w http.ResponseWriter, r *http.Request, b *box) {
	var in struct {
		Duration int `json:"duration"`
	}
	if r.ContentLength != 0 && !decode(w, r, &in) {
		return
	}
	until := p.opt.Now().Add(time.Duration(min(max(in.Duration, 15), 3600)) * time.Second)
	p.mu.Lock()
	if until.After(b.end) {
		b.end = until
	}
	p.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

func (p *Peer) network(w http.ResponseWriter, r *http.Request, b *box) {
	var in networkBody
	if !decode(w, r, &in) {
		return
	}
	if said := checkNetwork(&in, in.AllowInternetAccess); said != "" {
		fail(w, http.StatusBadRequest, "%s", said)
		return
	}
	if b.status() != stateRunning {
		fail(w, http.StatusConflict, "Sandbox %q is not running", b.id)
		return
	}
	p.mu.Lock()
	b.internet = in.AllowInternetAccess
	in.AllowInternetAccess = nil
	if b.network != nil {
		in.AllowPublicTraffic = b.network.AllowPublicTraffic
	}
	b.network = &in
	p.mu.Unlock()
	if err := b.applyEgress(r.Context()); err != nil {
		fail(w, http.StatusInternalServerError, "%v", err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
