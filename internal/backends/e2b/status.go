package e2b

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// maxErrorBytes bounds what is read of an answer that is an error.
const maxErrorBytes = 64 << 10

// statusError is an answer that is no success.
type statusError struct {
	status int
	// shaped: the body was JSON as the API, the sandboxes' proxy or envd write errors. Anything else was written by
	// somebody in between (a load balancer, a login page) and proves nothing about a sandbox.
	shaped  bool
	message string
	code    string // Connect's code or the API's error_code
	// proxied: written by the proxy in front of the sandboxes, so that it never reached one. closedPort: the sandbox is
	// there and only the port is not.
	proxied, closedPort bool
	// retryAfter is what the answer asks to wait; negative: it says nothing.
	retryAfter time.Duration
	location   string
	// excerpt is the start of a body that is no JSON: the code interpreter writes its errors so.
	excerpt string
}

func (e *statusError) Error() string {
	switch {
	case e.location != "":
		return fmt.Sprintf("status %d, a redirect, which is never followed with a credential", e.status)
	case !e.shaped:
		return fmt.Sprintf("status %d with a body that no server of this API writes", e.status)
	case e.message == "":
		return fmt.Sprintf("status %d", e.status)
	}
	return fmt.Sprintf("status %d: %s", e.status, e.message)
}

// maxRetryAfter is the longest wait that an answer is taken to ask for; how much longer does not matter to anybody.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads the header of that name, which is seconds or a time of the server's clock; negative: it says nothing.
func retryAfter(h http.Header) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.Atoi(value); err == nil {
		if seconds < 0 {
			return -1
		}
		return time.Duration(min(seconds, int(maxRetryAfter/time.Second))) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return -1
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return min(max(at.Sub(now), 0), maxRetryAfter)
}

// discreetError is another error whose text repeats a credential, without that.
type discreetError struct {
	text string
	err  error
}

func (e discreetError) Error() string { return e.text }
func (e discreetError) Unwrap() error { return e.err }

// discreet takes credentials out of the text of an error: servers repeat what they were given.
func discreet(err error, secrets ...string) error {
	if err == nil {
		return nil
	}
	if text := err.Error(); discreetText(text, secrets...) != text {
		return discreetError{discreetText(text, secrets...), err}
	}
	return err
}

func discreetText(text string, secrets ...string) string {
	return sandboxcore.NewRedactor(secrets...).String(text)
}

// readStatusError reads the body of an answer that is no success, and closes it. Nothing that it keeps repeats one of the
// secrets.
func readStatusError(r *http.Response, secrets ...string) *statusError {
	e := &statusError{status: r.StatusCode, retryAfter: -1}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxErrorBytes))
	_ = r.Body.Close()
	if r.StatusCode >= 300 && r.StatusCode < 400 {
		e.location = "elsewhere"
		return e
	}
	e.retryAfter = retryAfter(r.Header)
	// Before anything is cut: half a credential would not be found.
	printable := func(s string) string { return sandboxcore.Printable(discreetText(s, secrets...)) }
	var wire apiError
	if err != nil || json.Unmarshal(body, &wire) != nil {
		// Servers of this shape that write no JSON still may leave the body empty.
		e.shaped = err == nil && len(strings.TrimSpace(string(body))) == 0
		e.excerpt = clip(printable(string(body)), 300)
		return e
	}
	e.shaped = wire.Code != nil || wire.Message != ""
	e.message = clip(printable(wire.Message), 500)
	e.code = clip(printable(wire.ErrorCode), 80)
	if s, ok := wire.Code.(string); ok {
		e.code = clip(printable(s), 80)
	}
	e.proxied = wire.SandboxID != ""
	e.closedPort = wire.Port != nil
	return e
}

func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// statusOf gives the answer that err stands for, if it is one.
func statusOf(err error) (*statusError, bool) {
	var e *statusError
	ok := errors.As(err, &e)
	return e, ok
}

// isMissing reports a 404 that the API itself wrote. A 404 of something in between is none: it would make Terraform forget
// a sandbox that is there.
func isMissing(err error) bool {
	e, ok := statusOf(err)
	return ok && e.status == http.StatusNotFound && e.shaped && e.message+e.code != ""
}

func hasStatus(err error, status int) bool {
	e, ok := statusOf(err)
	return ok && e.status == status
}
