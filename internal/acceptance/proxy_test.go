//go:build linux

package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// engineProxy stands between a provider and the real engine, so that something can happen at the n-th request.
type engineProxy struct {
	host string // for the provider's docker attribute

	mu       sync.Mutex
	made     map[string]string // "request <id>" and "volume <name>" of everything that was asked for through here
	requests []string
	at       int
	when     func(r *http.Request) bool
	act      func(w http.ResponseWriter, forward func())
}

func newEngineProxy(t *testing.T) *engineProxy {
	t.Helper()
	dir, err := os.MkdirTemp("", "ak-proxy-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	p := &engineProxy{made: map[string]string{}, host: "unix://" + filepath.Join(dir, "d.sock")}
	listener, err := net.Listen("unix", filepath.Join(dir, "d.sock"))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(engineSocket(), "unix://"))
	}}
	engine := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine" },
		Transport:     transport,
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.requests = append(p.requests, r.Method+" "+r.URL.Path)
		act := p.act
		p.noteCreate(r)
		switch {
		case p.when != nil && p.when(r):
			p.when = nil
		case len(p.requests) != p.at:
			act = nil
		}
		p.mu.Unlock()
		forward := func() {
			// The engine finishes a create whose caller is gone, and whatever else it was asked for when something happened.
			// Without a context that can be cancelled the proxy would look after the caller itself.
			if strings.HasSuffix(r.URL.Path, "/create") || (act != nil && r.Header.Get("Upgrade") == "") {
				ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
				defer cancel()
				r = r.WithContext(ctx)
			}
			engine.ServeHTTP(w, r)
		}
		if act == nil {
			forward()
			return
		}
		act(w, forward)
	})}
	done := make(chan struct{})
	go func() { _ = server.Serve(listener); close(done) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
		transport.CloseIdleConnections()
		_ = os.RemoveAll(dir)
	})
	return p
}

// noteCreate notes what a create asks for: a container with a request's label, and volumes, which the engine makes with
// it. p.mu is held.
func (p *engineProxy) noteCreate(r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/containers/create") {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var asked struct {
		Labels     map[string]string
		HostConfig struct {
			Mounts []struct{ Type, Source string }
		}
	}
	_ = json.Unmarshal(body, &asked)
	request := asked.Labels[sandboxcore.MarkRequest]
	p.made["request "+request] = request
	for _, m := range asked.HostConfig.Mounts {
		if m.Type == "volume" && m.Source != "" {
			p.made["volume "+m.Source] = m.Source
		}
	}
}

// exists gives, of everything that was asked for through the proxy, what is there now. The volume of the run helper is
// left out: it is shared by everybody on the engine and goes with the last sandbox of all.
func (p *engineProxy) exists(t *testing.T) []engineObject {
	t.Helper()
	p.mu.Lock()
	asked := maps.Clone(p.made)
	p.mu.Unlock()
	var out []engineObject
	for key, id := range asked {
		kind, _, _ := strings.Cut(key, " ")
		if kind == "request" {
			for id := range strings.FieldsSeq(docker(t, "ps", "-aq", "--no-trunc", "--filter", "label="+sandboxcore.MarkRequest+"="+id)) {
				out = append(out, engineObject{"container", id, map[string]string{sandboxcore.MarkManaged: "true", sandboxcore.MarkRequest: asked[key]}})
			}
			continue
		}
		text, err := exec.CommandContext(t.Context(), "docker", "inspect", "--type", kind, "--format", "{{json .Labels}}", id).Output() // #nosec G204 -- a test
		o := engineObject{kind: kind, id: id}
		if err != nil || json.Unmarshal(text, &o.labels) != nil || o.labels[sandboxcore.MarkKind] == "helper" {
			continue
		}
		out = append(out, o)
	}
	return out
}

func engineSocket() string {
	if h := os.Getenv("DOCKER_HOST"); strings.HasPrefix(h, "unix://") {
		return h
	}
	return "unix:///var/run/docker.sock"
}

// reset forgets the requests so far and arms act for the n-th from now (0: never).
func (p *engineProxy) reset(n int, act func(w http.ResponseWriter, forward func())) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests, p.at, p.when, p.act = nil, n, nil, act
}

// await arms act for the first request from now that when holds for.
func (p *engineProxy) await(when func(r *http.Request) bool, act func(w http.ResponseWriter, forward func())) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests, p.at, p.when, p.act = nil, 0, when, act
}

// seen gives the requests since reset.
func (p *engineProxy) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.requests...)
}

// turning gives the numbers of the requests since reset that change something, and, if asked, of those that follow them.
func (p *engineProxy) turning(following bool) []int {
	var out []int
	changed := false
	for i, r := range p.seen() {
		changes := !strings.HasPrefix(r, http.MethodGet) && !strings.HasPrefix(r, http.MethodHead)
		if changes || (following && changed) {
			out = append(out, i+1)
		}
		changed = changes
	}
	return out
}

func (p *engineProxy) step(n int) string {
	if s := p.seen(); n <= len(s) {
		return fmt.Sprintf("request %d (%s)", n, s[n-1])
	}
	return fmt.Sprintf("request %d (never made)", n)
}
