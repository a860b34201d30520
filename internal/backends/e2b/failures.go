package e2b

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// quiet keeps an error for errors.Is without repeating its text, which Said has already.
type quiet struct{ error }

func (q quiet) Error() string { return "as above." }
func (q quiet) Unwrap() error { return q.error }

func sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" || strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}

// failure makes the error of a call. code is that of an answer which says neither "no such thing" nor "not now" nor "who
// are you"; those have codes of their own.
func (e *endpoint) failure(ctx context.Context, err error, code sandboxcore.Code, attempted, object string) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*sandboxcore.Error](err); ok {
		return err
	}
	out := &sandboxcore.Error{Code: code, Attempted: attempted, Object: object, Err: quiet{err}}
	if object == "" {
		out.Object = "the server at " + e.place.identity()
	}
	if answer, ok := statusOf(err); ok {
		e.answered(out, answer)
		return out
	}
	e.unanswered(ctx, out, err)
	return out
}

// answered fills in what an answer means.
func (e *endpoint) answered(out *sandboxcore.Error, a *statusError) {
	at := func(key string) []string { return []string{string(e.place.Kind), key} }
	said := fmt.Sprintf("The server answered with status %d.", a.status)
	if a.message != "" {
		said = fmt.Sprintf("The server said (status %d): %s", a.status, sentence(a.message))
	}
	out.Said = said
	switch {
	case a.location != "":
		out.Code = sandboxcore.CodeUnreachable
		out.Said = fmt.Sprintf("The server answered with a redirect (status %d), which is not followed: it would carry the key to another host.", a.status)
		out.Next = "Use the address that the API really has; it comes from " + e.place.Origin + "."
	case a.status == http.StatusUnauthorized:
		out.Code = sandboxcore.CodeUnreachable
		out.Attribute = at(keyAPIKey)
		out.Next = "Check the API key and how it is sent (auth), and that it belongs to this server. The address comes from " + e.place.Origin + "."
	case a.status == http.StatusForbidden:
		out.Code = sandboxcore.CodeUnreachable
		out.Next = "The key is known but may not do this: check the rights and the plan of its team."
	case a.status == http.StatusTooManyRequests && a.retryAfter > e.times.rateLimit:
		out.Said += fmt.Sprintf(" It asks to wait %s, longer than a call waits here (%s).", a.retryAfter, e.times.rateLimit)
		out.Next = "Run the command again when that time is over."
	case a.status == http.StatusTooManyRequests && a.retryAfter >= 0:
		out.Said += " It goes on limiting the rate of calls after several waits."
		out.Next = "Run the command again later, or with less at once (terraform apply -parallelism=2)."
	case a.status == http.StatusTooManyRequests:
		out.Said += " Without a time to wait, this means that the team has as many sandboxes or connections at once as it may."
		out.Next = "End sandboxes that are not needed, or raise the limit of the team; waiting does not help."
	case !a.shaped:
		out.Code = sandboxcore.CodeUnreachable
		out.Said = fmt.Sprintf("What answered (status %d) does not write like a server of this API; something in between may have.", a.status)
		out.Next = "Check the address and the way to it (proxy, load balancer), then run the command again. The address comes from " + e.place.Origin + "."
	case a.status == http.StatusNotFound:
		out.Next = "Check that it exists for the team of this key."
	case a.status == http.StatusConflict:
		out.Next = "It is on its way from one state to another: run the command again."
	case a.status == http.StatusBadGateway || a.status == http.StatusServiceUnavailable || a.status == http.StatusGatewayTimeout:
		if out.Code != sandboxcore.CodeDeleteFailed && out.Code != sandboxcore.CodeUnknownOutcome {
			out.Code = sandboxcore.CodeUnreachable
		}
		out.Next = "The server has no room or is not well: run the command again later."
	case a.status >= http.StatusInternalServerError:
		out.Next = "This is a fault of the server: run the command again; if it stays, ask its operator."
	default:
		out.Next = "Correct what it complains about in the " + string(e.place.Kind) + " attribute of the profile."
	}
}

// unanswered fills in why there was no answer.
func (e *endpoint) unanswered(ctx context.Context, out *sandboxcore.Error, err error) {
	if out.Code != sandboxcore.CodeUnknownOutcome && out.Code != sandboxcore.CodeDeleteFailed {
		out.Code = sandboxcore.CodeUnreachable
	}
	var dns *net.DNSError
	var unknown x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	address := "The address comes from " + e.place.Origin + "."
	switch {
	case errors.Is(err, errNoAnswer):
		out.Said, out.Next = "It took the connection but did not answer in time.", "Check that the server is well, then run the command again. "+address
	case errors.Is(err, errTooLarge), errors.Is(err, errNoJSON):
		out.Said, out.Next = sentence("What answers does not speak this API: "+err.Error()), "Check the address. "+address
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		out.Said, out.Next = "The operation was cancelled before the server answered.", "Run the command again."
	case errors.Is(err, context.DeadlineExceeded):
		out.Said, out.Next = "The time for the operation was over before the server answered.", "Raise the timeout of the operation, or check that the server is well."
	case errors.As(err, &dns):
		out.Said, out.Next = fmt.Sprintf("The host name %q cannot be resolved.", dns.Name), "Check the address. "+address
	case errors.As(err, &hostname):
		out.Said = "The certificate that was shown belongs to another name. " + sentence(hostname.Error())
		out.Next = "Check the address. " + address
	case errors.As(err, &unknown):
		out.Said = "The certificate that was shown is signed by nobody who is trusted here."
		out.Next = "Give the server's own authority in ca_certificate, if it has one. " + address
	case errors.As(err, &certificate):
		out.Said, out.Next = "The certificate that was shown was refused. "+sentence(certificate.Error()), "Check the server's certificate. "+address
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		out.Said, out.Next = "The other side does not speak TLS.", "Check the port and the https of the address. "+address
	case errors.Is(err, syscall.ECONNREFUSED):
		out.Said, out.Next = "The connection was refused: nothing listens there.", "Check the address and that the server runs. "+address
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), isReset(err):
		out.Said, out.Next = "The connection broke before the answer was complete.", "Run the command again."
	default:
		if rpc, ok := errors.AsType[*connect.Error](err); ok {
			out.Said = sentence(fmt.Sprintf("The daemon of the sandbox said (%s): %s", rpc.Code(), clip(sandboxcore.Printable(rpc.Message()), 500)))
			out.Next = "Run the command again."
			return
		}
		out.Said, out.Next = sentence(clip(sandboxcore.Printable(err.Error()), 500)), "Check the server and the way to it. "+address
	}
}

// gone is the error for a sandbox that does not exist.
func (e *endpoint) gone(attempted, id string) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeGone, Attempted: attempted, Object: objectID(e.place.Kind, id),
		Said: "The server has no such sandbox.", Next: "It was ended outside Terraform, or its time was over; the next apply makes a new one.",
	}
}

// goneWithAll is gone where the key sees no other sandbox of ours either.
func (e *endpoint) goneWithAll(attempted, id string) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeGone, Attempted: attempted, Object: objectID(e.place.Kind, id),
		Said: "The server has no such sandbox, and this key sees no other one that was made by this provider: all are gone, or the key belongs to another team than the one that made them.",
		Next: "Check the key before the next apply if there should be any: it makes new sandboxes, and those of another team go on without a state that knows them.",
	}
}

func (e *endpoint) notRunning(id string) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeStopped, Attempted: "the sandbox could not be used", Object: objectID(e.place.Kind, id), Said: "It is paused.",
		Next: fmt.Sprintf("Set desired_state = %q on the sandbox first.", sandboxcore.StatusRunning), Attribute: []string{"desired_state"},
	}
}
