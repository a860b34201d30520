//go:build linux

package e2bpeer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options of a peer. The zero value is usable.
type Options struct {
	// Key is the API key; empty: "e2b_0123456789abcdef".
	Key string
	// Bearer: the key is also taken as a bearer token.
	Bearer bool
	// Domain is what Host names of sandboxes end with; empty: "sandbox.test".
	Domain string
	// Now is the clock of lifetimes; nil: the machine's.
	Now func() time.Time
	// MaxLifetime is what the team's plan allows; 0: 24 hours.
	MaxLifetime time.Duration
	// MaxSandboxes is how many may run at once; 0: no limit.
	MaxSandboxes int
	// NoV2 and NoV1: a server that lacks the one create call or the other.
	NoV2, NoV1 bool
	// EnvdVersion that is told; empty: 0.6.13.
	EnvdVersion string
	// World, when not nil, is what sandboxes can reach; without it they have a loopback interface only. Needs root.
	World *World
	// DeafInterpreter: a code interpreter that goes on when its client goes away, as older ones do.
	DeafInterpreter bool
	// EnvdURL: answers name the address of a sandbox's daemon, as servers of the protocol e2b-rest/1 may.
	EnvdURL bool
	// NoBatchMetrics: a server that tells what sandboxes use only one by one.
	NoBatchMetrics bool
	// Cube: a server that answers as CubeSandbox does. Ids are 32 hexadecimal digits, any key will do, no token is given
	// out, connect always says 200, egress is not told, an end may be far away, and calls are missing: create of v2,
	// metrics, and the change of the network.
	Cube bool
	// Plain: no process and no namespace is made, for tests of the control plane alone.
	Plain bool
}

// Peer is a running server.
type Peer struct {
	opt  Options
	dir  string
	root bool
	// api and proxy are the listeners of the two planes.
	api, proxy *http.Server
	apiURL     string
	proxyURL   string
	serving    sync.WaitGroup

	mu        sync.Mutex
	boxes     map[string]*box
	order     []string
	log       []Request
	intercept func(plane string, w http.ResponseWriter, r *http.Request, next http.Handler)
	tamper    func(detail map[string]any)
	noToken   bool
}

// Request is what the peer remembers of a request.
type Request struct {
	Plane  string // "api" or "sandbox"
	Method string
	Host   string
	Path   string
	Query  string
	Header http.Header
}

// Start starts a peer on loopback. ctx bounds it as Close does.
func Start(ctx context.Context, opt Options) (*Peer, error) {
	if opt.Key == "" {
		opt.Key = "e2b_0123456789abcdef"
	}
	if opt.Domain == "" {
		opt.Domain = "sandbox.test"
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.MaxLifetime == 0 {
		opt.MaxLifetime = 24 * time.Hour
	}
	if opt.Cube {
		opt.NoV2, opt.EnvdVersion = true, "0.5.11"
	}
	if opt.EnvdVersion == "" {
		opt.EnvdVersion = "0.6.13"
	}
	dir, err := os.MkdirTemp("", "e2bpeer-")
	if err != nil {
		return nil, err
	}
	// Users other than root walk through it.
	if err := os.Chmod(dir, 0o755); err != nil { // #nosec G302 -- a directory
		return nil, err
	}
	p := &Peer{noToken: opt.Cube, opt: opt, dir: dir, root: os.Geteuid() == 0, boxes: map[string]*box{}}
	if p.api, p.apiURL, err = p.serve(ctx, "api", p.apiHandler()); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if p.proxy, p.proxyURL, err = p.serve(ctx, "sandbox", http.HandlerFunc(p.proxyRequest)); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Peer) serve(ctx context.Context, plane string, h http.Handler) (*http.Server, string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{
		ReadHeaderTimeout: 10 * time.Second, Protocols: protocols,
		BaseContext: func(net.Listener) context.Context { return ctx },
		Handler:     p.watch(plane, h),
	}
	p.serving.Go(func() { _ = s.Serve(l) })
	return s, "http://" + l.Addr().String(), nil
}

// Close ends every sandbox and the server. It waits until nothing is left.
func (p *Peer) Close() error {
	p.mu.Lock()
	boxes := make([]*box, 0, len(p.boxes))
	for _, b := range p.boxes {
		boxes = append(boxes, b)
	}
	p.boxes = map[string]*box{}
	p.mu.Unlock()
	for _, b := range boxes {
		b.destroy()
	}
	var err error
	for _, s := range []*http.Server{p.api, p.proxy} {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	p.serving.Wait()
	return errors.Join(err, os.RemoveAll(p.dir))
}

// APIURL is the address of the control plane, SandboxURL that of the proxy in front of all sandboxes.
func (p *Peer) APIURL() string { return p.apiURL }

// SandboxURL is the address of the proxy in front of all sandboxes, which routes by header or Host.
func (p *Peer) SandboxURL() string { return p.proxyURL }

// Key is the API key.
func (p *Peer) Key() string { return p.opt.Key }

// Requests gives what came in so far.
func (p *Peer) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.log)
}

// Forget empties the record of requests.
func (p *Peer) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = nil
}

// Intercept puts f in front of both planes ("api", "sandbox"); nil takes it away.
func (p *Peer) Intercept(f func(plane string, w http.ResponseWriter, r *http.Request, next http.Handler)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.intercept = f
}

// Tamper changes every description of a sandbox before it is sent; nil ends that.
func (p *Peer) Tamper(f func(detail map[string]any)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tamper = f
}

// WithoutTokens makes a server that takes "secure" and hands out no token, as CubeSandbox does.
func (p *Peer) WithoutTokens(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noToken = yes
}

// States gives the state of every sandbox by id.
func (p *Peer) States() map[string]string {
	p.expire()
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]string{}
	for id, b := range p.boxes {
		out[id] = b.state
	}
	return out
}

// Kill ends a sandbox behind everybody's back.
func (p *Peer) Kill(id string) {
	if b := p.take(id); b != nil {
		b.destroy()
	}
}

// Pause pauses a sandbox behind everybody's back.
func (p *Peer) Pause(id string) {
	if b := p.find(id); b != nil {
		b.pause()
	}
}

// Resume wakes a sandbox behind everybody's back, with a time from now on.
func (p *Peer) Resume(id string, d time.Duration) {
	if b := p.find(id); b != nil && b.resume() {
		p.mu.Lock()
		defer p.mu.Unlock()
		b.end = p.opt.Now().Add(d)
	}
}

// Lifetime gives when a sandbox's time is over.
func (p *Peer) Lifetime(id string) time.Time {
	if b := p.find(id); b != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		return b.end
	}
	return time.Time{}
}

// AddForeign makes a sandbox without anybody's marks and gives its id.
func (p *Peer) AddForeign() (string, error) {
	b, _, err := p.newBox(createBody{TemplateID: "base", Timeout: new(3600), Metadata: map[string]string{"owner": "somebody else"}}, true)
	if err != nil {
		return "", err
	}
	return b.id, nil
}

func (p *Peer) watch(plane string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.log = append(p.log, Request{Plane: plane, Method: r.Method, Host: r.Host, Path: r.URL.Path, Query: r.URL.RawQuery, Header: r.Header.Clone()})
		f := p.intercept
		p.mu.Unlock()
		w.Header().Set("Date", p.opt.Now().UTC().Format(http.TimeFormat))
		p.expire()
		if f != nil {
			f(plane, w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// expire carries out what time has brought.
func (p *Peer) expire() {
	now := p.opt.Now()
	p.mu.Lock()
	var over []*box
	for _, b := range p.boxes {
		if b.state == stateRunning && !b.end.After(now) {
			over = append(over, b)
		}
	}
	p.mu.Unlock()
	for _, b := range over {
		if b.autoPause {
			b.pause()
		} else if p.take(b.id) != nil {
			b.destroy()
		}
	}
}

func (p *Peer) find(id string) *box {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.boxes[id]
}

func (p *Peer) take(id string) *box {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.boxes[id]
	delete(p.boxes, id)
	p.order = slices.DeleteFunc(p.order, func(s string) bool { return s == id })
	return b
}

// newID makes an id of E2B's form: "i" and 20 characters.
func newID() string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	var b [20]byte
	_, _ = rand.Read(b[:]) // never fails
	for i := range b {
		b[i] = letters[int(b[i])%len(letters)]
	}
	return "i" + string(b[:])
}

func newToken() string {
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func writeBody(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// fail writes an error as the API does.
func fail(w http.ResponseWriter, status int, format string, args ...any) {
	writeJSON(w, status, map[string]any{"code": status, "message": fmt.Sprintf(format, args...)})
}

func (p *Peer) boxDir(id string) string { return filepath.Join(p.dir, id) }

func (p *Peer) authorized(r *http.Request) bool {
	if p.opt.Cube {
		return r.Header.Get("Authorization") != "" || r.Header.Get("X-API-Key") != ""
	}
	if r.Header.Get("X-API-Key") == p.opt.Key {
		return true
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && p.opt.Bearer && token == p.opt.Key
}
