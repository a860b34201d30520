package e2b

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Limits of answers.
const (
	maxAnswerBytes = 2 << 20
	maxListBytes   = 64 << 20  // 100 sandboxes whose metadata hold specs
	maxListedBytes = 256 << 20 // of all pages
	maxPages       = 1000
	pageSize       = 100
)

var (
	errNoAnswer = errors.New("the server did not answer in time")
	errTooLarge = errors.New("the answer is larger than any that this API gives")
	errNoJSON   = errors.New("the answer is not the JSON that this API gives")
)

// sentError is an error after which it is not known whether the server has acted: the request may have reached it.
type sentError struct{ error }

func (e sentError) Unwrap() error { return e.error }

// api is the client of the control plane. It sends the key to one host and follows no redirect.
type api struct {
	place *Place
	http  *http.Client
	log   *slog.Logger
	times *timings
	now   func() time.Time
	// listed bounds all pages of a list together, in bytes.
	listed int64

	mu sync.Mutex
	// notBefore is when the server takes calls again, as it told one of them with 429: all others wait for that, too.
	notBefore time.Time
}

// newTransport makes the one transport of a place, for both planes: they differ in who puts credentials on a request.
func newTransport(p *Place) *http.Transport {
	dialer := &net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: p.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: 15 * time.Second,
		// Terraform works on ten objects at once.
		MaxIdleConns: 64, MaxIdleConnsPerHost: 32, IdleConnTimeout: 30 * time.Second,
		ForceAttemptHTTP2: true,
	}
}

func newAPI(b *backend, transport http.RoundTripper) *api {
	return &api{place: b.place, log: b.log, times: &b.times, now: b.now, listed: maxListedBytes, http: &http.Client{
		Transport: transport,
		// Go keeps X-API-Key and X-Access-Token on a redirect to another host (it strips only Authorization).
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// call is one request of the control plane.
type call struct {
	method, path string
	query        url.Values
	in           any
	out          any // nil: the body of a success does not matter
	limit        int64
	read         *int64 // what the answer has is added, unless nil
	// safe: the request may be sent again after an answer that does not say whether it was carried out.
	safe bool
}

// do carries out one call, again where that is right: after 429 with Retry-After always (it was turned away), after 502,
// 503, 504 and broken connections only if the call is safe.
func (a *api) do(ctx context.Context, c call) (status int, header http.Header, err error) {
	if err := a.place.needKey(); err != nil {
		return 0, nil, err
	}
	waited := time.Duration(0)
	if hold := a.held(); hold > 0 && hold <= a.times.rateLimit {
		waited = hold
		a.log.InfoContext(ctx, "the server has asked to wait", "backend", string(a.place.Kind), "method", c.method, "wait", hold.String())
		if err := a.times.wait(ctx, hold); err != nil {
			return 0, nil, err
		}
	}
	for attempt := 1; ; attempt++ {
		status, header, err = a.once(ctx, c)
		if err == nil {
			return status, header, nil
		}
		wait := a.retryIn(err, c.safe, attempt, waited)
		if wait < 0 || ctx.Err() != nil {
			return status, header, err
		}
		if hasStatus(err, http.StatusTooManyRequests) {
			wait = a.hold(wait)
		}
		waited += wait
		a.log.InfoContext(ctx, "the server asked to wait, or was busy", "backend", string(a.place.Kind), "method", c.method, "wait", wait.String(), "reason", err.Error())
		if werr := a.times.wait(ctx, wait); werr != nil {
			return status, header, err
		}
	}
}

// held is how long the server has asked not to be called.
func (a *api) held() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.notBefore.Sub(a.now())
}

// hold keeps everybody from calling for a time, and says how long that is now.
func (a *api) hold(d time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if until := now.Add(d); until.After(a.notBefore) {
		a.notBefore = until
	}
	return a.notBefore.Sub(now)
}

// retryIn gives the wait before the next attempt; negative: there is none.
func (a *api) retryIn(err error, safe bool, attempt int, waited time.Duration) time.Duration {
	backoff := min(a.times.backoff<<(attempt-1), 8*time.Second)
	e, answered := statusOf(err)
	switch {
	case answered && e.status == http.StatusTooManyRequests && e.retryAfter >= 0:
		// No Retry-After means that the team has as many sandboxes as it may: waiting does not help.
		if wait := max(e.retryAfter, time.Second); waited+wait <= a.times.rateLimit {
			return wait
		}
	case answered && (e.status == http.StatusBadGateway || e.status == http.StatusServiceUnavailable || e.status == http.StatusGatewayTimeout):
		if safe && attempt < 4 {
			return max(backoff, min(e.retryAfter, 30*time.Second))
		}
	case !answered && safe && attempt < 3 && transient(err):
		return backoff
	}
	return -1
}

// transient reports a connection that broke, which another one may not.
func transient(err error) bool {
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &dns) || errors.As(err, &certificate) || errors.Is(err, errNoJSON) || errors.Is(err, errTooLarge) || errors.Is(err, errNoAnswer) {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || isReset(err)
}

func (a *api) once(ctx context.Context, c call) (int, http.Header, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, a.times.call, errNoAnswer)
	defer cancel()
	var body io.Reader = http.NoBody
	if c.in != nil {
		text, err := json.Marshal(c.in)
		if err != nil {
			return 0, nil, err
		}
		body = bytes.NewReader(text)
	}
	u := *a.place.API
	// The path is escaped already; String takes it as it is only if both forms are set.
	u.RawPath = strings.TrimRight(u.EscapedPath(), "/") + c.path
	path, err := url.PathUnescape(u.RawPath)
	if err != nil {
		return 0, nil, err
	}
	u.Path = path
	u.RawQuery = c.query.Encode()
	req, err := http.NewRequestWithContext(ctx, c.method, u.String(), body)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", userAgent)
	if c.in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	key := a.place.Key
	if a.place.Scheme != "" {
		key = a.place.Scheme + " " + key
	}
	req.Header.Set(a.place.Header, key)
	res, err := a.http.Do(req)
	if err != nil {
		return 0, nil, sent(ctx, discreet(stripURL(err), a.place.Key))
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		e := readStatusError(res, a.place.Key)
		return res.StatusCode, res.Header, e
	}
	defer res.Body.Close()
	limit := c.limit
	if limit == 0 {
		limit = maxAnswerBytes
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	switch {
	case err != nil:
		return res.StatusCode, res.Header, sent(ctx, err)
	case int64(len(text)) > limit:
		return res.StatusCode, res.Header, sentError{errTooLarge}
	case c.out == nil:
		return res.StatusCode, res.Header, nil
	}
	if c.read != nil {
		*c.read += int64(len(text))
	}
	if err := json.Unmarshal(text, c.out); err != nil {
		return res.StatusCode, res.Header, sentError{errNoJSON}
	}
	return res.StatusCode, res.Header, nil
}

// stripURL takes the address out of an error of net/http: diagnostics name the server once, and a query is nobody's
// business.
func stripURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// sent marks an error after which the server may have acted. One of dialling or of the handshake is none.
func sent(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errNoAnswer) {
		err = errNoAnswer
	}
	if neverSent(err) {
		return err
	}
	return sentError{err}
}

func neverSent(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	return errors.As(err, &dns) || errors.As(err, &certificate) || errors.As(err, &record) || (errors.As(err, &op) && op.Op == "dial")
}

func sandboxPath(id, rest string) string { return "/sandboxes/" + url.PathEscape(id) + rest }

func (a *api) get(ctx context.Context, id string) (*sandboxDetail, error) {
	var d sandboxDetail
	_, header, err := a.do(ctx, call{method: http.MethodGet, path: sandboxPath(id, ""), out: &d, safe: true})
	if err != nil {
		return nil, err
	}
	d.seen = a.serverTime(header)
	if d.SandboxID == "" {
		return nil, errNoJSON
	}
	return &d, nil
}

// create asks for a sandbox. secure travels in v1 only: v2 always makes secure ones.
func (a *api) create(ctx context.Context, in newSandbox, secure bool) (*sandboxAnswer, error) {
	versions := []string{version1, version2}
	if a.place.own() {
		versions = []string{version2, version1}
	}
	if a.place.Version != versionAuto {
		versions = []string{a.place.Version}
	}
	if !secure {
		versions = []string{version1}
	}
	var err error
	for _, v := range versions {
		body, path := in, "/sandboxes"
		if v == version2 {
			path = "/v2/sandboxes"
		} else {
			body.Secure = &secure
		}
		var out sandboxAnswer
		_, _, err = a.do(ctx, call{method: http.MethodPost, path: path, in: body, out: &out})
		if err == nil {
			return &out, nil
		}
		// The call does not exist there; a template that does not exist says 404 to the other version as well.
		if !hasStatus(err, http.StatusNotFound) && !hasStatus(err, http.StatusMethodNotAllowed) {
			break
		}
	}
	return nil, err
}

// connect renews the time of a sandbox, never shortening it, and wakes a paused one.
func (a *api) connect(ctx context.Context, id string, timeout time.Duration) (answer *sandboxAnswer, resumed bool, err error) {
	var out sandboxAnswer
	status, _, err := a.do(ctx, call{method: http.MethodPost, path: sandboxPath(id, "/connect"), in: connectBody{wholeSeconds(timeout)}, out: &out, safe: true})
	if err != nil {
		return nil, false, err
	}
	return &out, status == http.StatusCreated, nil
}

// setTimeout gives a sandbox its time from now on, and gives the end of it.
func (a *api) setTimeout(ctx context.Context, id string, timeout time.Duration) (time.Time, error) {
	seconds := wholeSeconds(timeout)
	_, header, err := a.do(ctx, call{method: http.MethodPost, path: sandboxPath(id, "/timeout"), in: timeoutBody{seconds}, safe: true})
	return a.serverTime(header).Add(time.Duration(seconds) * time.Second), err
}

// serverTime is the clock of the server, as an answer tells it. Ends of lifetimes are times of that clock, and this
// machine's may go wrong.
func (a *api) serverTime(h http.Header) time.Time {
	if t, err := http.ParseTime(h.Get("Date")); err == nil {
		return t
	}
	return a.now()
}

func (a *api) pause(ctx context.Context, id string) error {
	_, _, err := a.do(ctx, call{method: http.MethodPost, path: sandboxPath(id, "/pause"), safe: true})
	return err
}

func (a *api) remove(ctx context.Context, id string) error {
	_, _, err := a.do(ctx, call{method: http.MethodDelete, path: sandboxPath(id, ""), safe: true})
	return err
}

func (a *api) setNetwork(ctx context.Context, id string, n networkUpdate) error {
	_, _, err := a.do(ctx, call{method: http.MethodPut, path: sandboxPath(id, "/network"), in: n, safe: true})
	return err
}

// list gives every sandbox that has the metadata, paused ones included. A page that does not lead on ends it with an error
// and never with half a list.
func (a *api) list(ctx context.Context, metadata map[string]string) ([]sandboxDetail, error) {
	// Each key and value is encoded by itself, joined, and the whole is one parameter, which is encoded again.
	filter := url.Values{}
	for k, v := range metadata {
		filter.Set(k, v)
	}
	query := url.Values{"metadata": {filter.Encode()}, "state": {stateRunning + "," + statePaused}, "limit": {strconv.Itoa(pageSize)}}
	var out []sandboxDetail
	seen := map[string]bool{}
	read := int64(0)
	for range maxPages {
		var page []sandboxDetail
		if read > a.listed {
			return nil, errTooLarge
		}
		_, header, err := a.do(ctx, call{method: http.MethodGet, path: "/v2/sandboxes", query: query, out: &page, limit: maxListBytes, read: &read, safe: true})
		if err != nil {
			return nil, err
		}
		for _, d := range page {
			// A server that does not know the filter gives everything.
			if matches(d.Metadata, metadata) {
				d.seen = a.serverTime(header)
				out = append(out, d)
			}
		}
		next := header.Get("X-Next-Token")
		if next == "" {
			return out, nil
		}
		if seen[next] {
			return nil, fmt.Errorf("%w: the list leads to the same page again", errNoJSON)
		}
		seen[next] = true
		query.Set("nextToken", next)
	}
	return nil, fmt.Errorf("%w: the list has more than %d pages", errNoJSON, maxPages)
}

func matches(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}
