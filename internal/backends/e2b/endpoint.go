package e2b

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// endpoint is one connected server.
type endpoint struct {
	b       *backend
	place   *Place
	api     *api
	data    *http.Client // the data plane: it never sees the API key
	log     *slog.Logger
	times   *timings
	listing listing
	cells   cells
	created atomic.Int64 // sandboxes, for the log
}

func newEndpoint(b *backend, transport http.RoundTripper) *endpoint {
	e := &endpoint{b: b, place: b.place, log: b.log, times: &b.times}
	e.api = newAPI(b, transport)
	e.data = &http.Client{
		Transport:     statusTransport{transport},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return e
}

// Identity is the API's host: with a key the server tells neither its own id nor the team's.
func (e *endpoint) Identity(context.Context) (string, error) { return e.place.identity(), nil }

// Admit has nothing to refuse that Validate does not know: what a server lacks shows in its answers.
func (e *endpoint) Admit(context.Context, *sandboxcore.Profile, sandboxcore.Operation) error {
	return e.place.needKey()
}

// Offers asks for one page of the list: the smallest call that proves key and address.
func (e *endpoint) Offers(ctx context.Context) (sandboxcore.Offer, error) {
	var page []sandboxDetail
	_, header, err := e.api.do(ctx, call{method: http.MethodGet, path: "/v2/sandboxes", query: url.Values{"limit": {"1"}}, out: &page, safe: true})
	if err != nil {
		return sandboxcore.Offer{}, e.failure(ctx, err, sandboxcore.CodeUnreachable, "the server could not be asked", "")
	}
	o := sandboxcore.Offer{
		Endpoint: e.place.identity(), Reachable: true, Languages: []string{"python", "bash"}, Network: true, Pause: true,
		Facts: map[string]string{"domain": e.place.Domain},
	}
	if n := header.Get("X-Total-Running"); n != "" {
		o.Facts["running sandboxes of the team"] = sandboxcore.Printable(n)
	}
	return o, nil
}

// idPattern is wide on purpose: E2B's ids are "i" and 20 characters, with "-<client>" behind it on old servers, and other
// servers have others. What it keeps out could leave the path of a request or the label of a host name.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`)

// Find reads one sandbox.
func (e *endpoint) Find(ctx context.Context, nativeID string, fresh bool) (sandboxcore.ManagedSandbox, error) {
	const attempted = "the sandbox could not be looked up"
	if !idPattern.MatchString(nativeID) {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: attempted, Object: sandboxcore.Printable(objectID(e.place.Kind, nativeID)),
			Said: "That is no id of a sandbox.", Next: "Use " + string(e.place.Kind) + "/<id>, as the server shows it.",
		}
	}
	var d *sandboxDetail
	listed, none := false, false
	if !fresh {
		all, err := e.list(ctx)
		if err != nil {
			return nil, err
		}
		none = len(all) == 0
		if f, ok := all[nativeID]; ok {
			d, listed = &f, true
		}
	}
	if d == nil {
		var err error
		d, err = e.api.get(ctx, nativeID)
		if isMissing(err) && none {
			return nil, e.goneWithAll(attempted, nativeID)
		}
		if err != nil {
			return nil, e.sandboxFailure(ctx, err, sandboxcore.CodeUnreachable, attempted, nativeID)
		}
		if d.SandboxID != nativeID { // it is there, under another name: nothing is gone
			return nil, &sandboxcore.Error{
				Code: sandboxcore.CodeValue, Attempted: attempted, Object: objectID(e.place.Kind, nativeID),
				Said: fmt.Sprintf("The server calls it %q.", clip(sandboxcore.Printable(d.SandboxID), 130)), Next: "Use that id.",
			}
		}
	}
	s, err := e.managed(d)
	if err != nil {
		return nil, err
	}
	s.listed = listed
	if !fresh && s.o.renewOnRefresh && s.info.Status == sandboxcore.StatusRunning {
		s.renew(ctx, d)
	}
	return s, nil
}

// sandboxFailure is failure for a call about one sandbox: a 404 of the API is "gone".
func (e *endpoint) sandboxFailure(ctx context.Context, err error, code sandboxcore.Code, attempted, id string) error {
	if isMissing(err) {
		return e.gone(attempted, id)
	}
	return e.failure(ctx, err, code, attempted, objectID(e.place.Kind, id))
}

// managed makes the handle of a sandbox that carries our marks, and refuses any other.
func (e *endpoint) managed(d *sandboxDetail) (*sandbox, error) {
	marks, err := sandboxcore.DecodeMarks(objectID(e.place.Kind, d.SandboxID), d.Metadata)
	if err != nil {
		return nil, err
	}
	var spec struct {
		Idle *float64 `json:"idle_timeout"`
	}
	var blocks map[string]json.RawMessage
	var settings sandboxcore.Settings
	_ = json.Unmarshal([]byte(marks.Spec), &spec)
	_ = json.Unmarshal([]byte(marks.Spec), &blocks)
	_ = json.Unmarshal(blocks[string(e.place.Kind)], &settings)
	idle := sandboxcore.DefaultIdleTimeout
	if spec.Idle != nil {
		idle = *spec.Idle
	}
	s := &sandbox{e: e, o: e.b.options(settings, idle), info: sandboxcore.SandboxInfo{
		NativeID: d.SandboxID, Endpoint: e.place.identity(), Marks: marks, CreatedAt: marks.Created,
		Status: sandboxcore.StatusRunning, ExpiresAt: expiry(d), Details: details(d),
	}}
	if marks.Created.IsZero() {
		s.info.CreatedAt = d.StartedAt.Time
	}
	if d.State == statePaused {
		s.info.Status = sandboxcore.StatusPaused
		// The server does not say who paused it. While its time is not over, somebody did; afterwards its time may have.
		// The server's clock is told in whole seconds.
		s.info.Dormant = s.o.autoPause && !s.info.ExpiresAt.IsZero() && s.info.ExpiresAt.Before(d.seen.Add(time.Second))
	}
	s.session = sessionOf(&d.sandboxAnswer)
	return s, nil
}

// endless is a year that no lifetime reaches: servers that let a sandbox live for ever tell an end far away.
const endless = 2200

// expiry is when the time of a sandbox is over; zero: never, or the server does not tell.
func expiry(d *sandboxDetail) time.Time {
	if d.EndAt.Year() >= endless {
		return time.Time{}
	}
	return d.EndAt.UTC()
}

func details(d *sandboxDetail) map[string]string {
	out := map[string]string{}
	for k, v := range map[string]string{"template": d.TemplateID, "envd_version": d.EnvdVersion} {
		if v != "" {
			out[k] = sandboxcore.Printable(v)
		}
	}
	return out
}

// List gives every sandbox of ours at the server that the key can see.
func (e *endpoint) List(ctx context.Context) ([]sandboxcore.SandboxInfo, error) {
	e.listing.drop()
	all, err := e.list(ctx)
	if err != nil {
		return nil, err
	}
	var out []sandboxcore.SandboxInfo
	for id := range all {
		d := all[id]
		s, err := e.managed(&d)
		if err != nil {
			e.log.WarnContext(ctx, "a sandbox with our mark was left out of the list", "id", id, "error", err)
			continue
		}
		out = append(out, s.info)
	}
	return out, nil
}

// listing is what one refresh sees. Each change drops it.
type listing struct {
	mu    sync.Mutex
	byID  map[string]sandboxDetail
	until time.Time
	// changes counts the drops: an answer to a question asked before a change is not kept.
	changes uint64
	asking  *question
}

// question is one listing under way, shared by all who wait for it.
type question struct {
	changes uint64
	done    chan struct{}
	byID    map[string]sandboxDetail
	err     error
	gaveUp  bool // the one who asked
}

func (l *listing) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byID = nil
	l.changes++
}

func (e *endpoint) list(ctx context.Context) (map[string]sandboxDetail, error) {
	l := &e.listing
	for {
		l.mu.Lock()
		if l.byID != nil && e.b.now().Before(l.until) {
			byID := l.byID
			l.mu.Unlock()
			return byID, nil
		}
		q := l.asking
		mine := q == nil || q.changes != l.changes
		if mine {
			q = &question{changes: l.changes, done: make(chan struct{})}
			l.asking = q
		}
		l.mu.Unlock()
		if mine {
			e.ask(ctx, q)
			return q.byID, q.err
		}
		select {
		case <-q.done:
			// Whoever asked may have been cancelled; that is no answer for us. What the server did not do for them it does not
			// do for us either.
			if !q.gaveUp || ctx.Err() != nil {
				return q.byID, q.err
			}
		case <-ctx.Done():
			return nil, e.failure(ctx, ctx.Err(), sandboxcore.CodeUnreachable, "the sandboxes could not be listed", "")
		}
	}
}

func (e *endpoint) ask(ctx context.Context, q *question) {
	begun := e.b.now()
	found, err := e.api.list(ctx, map[string]string{sandboxcore.MarkManaged: "true"})
	if err != nil {
		q.err, q.gaveUp = e.failure(ctx, err, sandboxcore.CodeUnreachable, "the sandboxes could not be listed", ""), ctx.Err() != nil
	} else {
		q.byID = make(map[string]sandboxDetail, len(found))
		for _, d := range found {
			if idPattern.MatchString(d.SandboxID) {
				q.byID[d.SandboxID] = d
			}
		}
	}
	l := &e.listing
	l.mu.Lock()
	if l.asking == q {
		l.asking = nil
	}
	if q.err == nil && l.changes == q.changes {
		l.byID, l.until = q.byID, begun.Add(e.times.listCache)
	}
	l.mu.Unlock()
	close(q.done)
}

// removeLost ends what a create whose answer did not arrive may have made. The server goes on with such a call, so that
// it is looked for a while; and what was found is looked for until it is no longer listed, whatever the answer to its end was.
func (e *endpoint) removeLost(ctx context.Context, request string) error {
	return sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		began := e.b.now()
		ended := false
		for {
			found, err := e.api.list(ctx, map[string]string{sandboxcore.MarkManaged: "true", sandboxcore.MarkRequest: request})
			if err == nil && ended && len(found) == 0 {
				return nil
			}
			for _, d := range found {
				if strings.Trim(d.SandboxID, ".") == "" {
					return fmt.Errorf("the sandbox that it made has the id %s, which no request can name", sandboxcore.Quoted(d.SandboxID))
				}
				if err := e.api.remove(ctx, d.SandboxID); err != nil && !isMissing(err) {
					return fmt.Errorf("the sandbox %s that it made could not be ended: %w", sandboxcore.Printable(d.SandboxID), err)
				}
				ended = true
			}
			limit := e.times.lost
			if ended {
				limit = e.times.gone
			}
			if e.b.now().Sub(began) >= limit {
				if err == nil && len(found) > 0 {
					err = fmt.Errorf("the sandbox %s that it made is still listed", sandboxcore.Printable(found[0].SandboxID))
				}
				return err
			}
			if werr := e.times.wait(ctx, e.times.poll); werr != nil {
				return werr
			}
		}
	})
}
