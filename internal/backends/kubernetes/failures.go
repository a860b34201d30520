package kubernetes

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// errNoAnswer is the cause of a context that ended because the API server did not answer in time, and not because the
// caller gave up.
var errNoAnswer = errors.New("the API server did not answer in time")

// quiet keeps an error for errors.Is without repeating its text, which Said has already.
type quiet struct{ error }

func (q quiet) Error() string { return "as above." }
func (q quiet) Unwrap() error { return q.error }

func objectID(nativeID string) string {
	return sandboxcore.SandboxID(sandboxcore.BackendKubernetes, nativeID)
}

// failure makes the error of a call that ctx belonged to: unreachable if the API server could not be spoken to, a
// refusal of rights with what to grant, and otherwise an error with the given code that repeats what the server said.
func (e *endpoint) failure(ctx context.Context, err error, code sandboxcore.Code, attempted, object, next string) error {
	if err == nil {
		return nil
	}
	if _, known := errors.AsType[*sandboxcore.Error](err); known {
		return err
	}
	out := &sandboxcore.Error{Code: code, Attempted: attempted, Object: object, Said: sentence(err.Error()), Next: next, Err: quiet{err}}
	if e.fillAway(ctx, out, err) || e.fillRefused(out, err) {
		return out
	}
	return out
}

// fillAway recognises a server that did not answer.
func (e *endpoint) fillAway(ctx context.Context, out *sandboxcore.Error, err error) bool {
	var status apierrors.APIStatus
	answered := errors.As(err, &status)
	away := func(said, next string) bool {
		out.Code, out.Object = sandboxcore.CodeUnreachable, "Kubernetes at "+e.target.config.Host
		out.Said, out.Next = said, next
		return true
	}
	from := "; its address comes from " + e.target.origin + "."
	switch {
	case errors.Is(err, errPluginSilent):
		return away("The credential plugin of the kubeconfig did not answer in time.", "Run the plugin by hand to see what it waits for.")
	case errors.Is(context.Cause(ctx), errNoAnswer):
		return away("It did not answer in time.", "Check that the API server is healthy (kubectl get --raw /readyz)"+from)
	case errors.Is(err, context.Canceled) || (ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled)):
		return away("The operation was cancelled before it answered.", "Run the command again.")
	case errors.Is(err, context.DeadlineExceeded):
		return away("The time for the operation was over before it answered.", "Raise the timeout of the operation.")
	case answered:
		return fillAnswer(err, away, from)
	}
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &unknown), errors.As(err, &host), errors.As(err, &invalid):
		return away("Its certificate is not trusted: "+sentence(err.Error()), "Check cluster_ca_certificate or the kubeconfig"+from)
	case errors.As(err, &record):
		return away("What answers there does not speak TLS.", "Check the address"+from)
	case errors.As(err, &dns):
		return away(sentence(dns.Error()), "Check the name of the server"+from)
	case errors.As(err, &op):
		return away(sentence(op.Error()), "Check that the API server runs and can be reached from here"+from)
	case strings.Contains(err.Error(), "getting credentials"):
		return away(sentence(err.Error()), "The credential plugin of the kubeconfig failed: run it by hand to see why.")
	}
	return false
}

// fillAnswer recognises answers that say that the server cannot serve us now.
func fillAnswer(err error, away func(said, next string) bool, from string) bool {
	switch {
	case apierrors.IsUnauthorized(err):
		return away("It does not know the credential: "+sentence(err.Error()), "Renew the credential"+from)
	case apierrors.IsTooManyRequests(err):
		return away("It asked to come back later more often than is reasonable.", "Run the command again when the cluster is less busy, or lower -parallelism.")
	case apierrors.IsServiceUnavailable(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err):
		return away("It cannot serve requests now: "+sentence(err.Error()), "Check that the API server is healthy"+from)
	}
	return false
}

// fillRefused recognises missing rights and refusals of admission, and says what to grant or to change.
func (e *endpoint) fillRefused(out *sandboxcore.Error, err error) bool {
	if !apierrors.IsForbidden(err) {
		return false
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "exceeded quota"), strings.Contains(text, "failed quota"):
		out.Next = "Raise the quota of the namespace, set cpu and memory_mb as the quota asks for, or remove what is not needed any more."
	case strings.Contains(text, "violates PodSecurity"):
		out.Next = "Remove what the namespace's Pod Security Standard does not allow from security_context and container_security_context."
		out.Attribute = []string{"kubernetes", keyPodSecurity}
	case strings.Contains(text, "cannot impersonate"):
		out.Code = sandboxcore.CodeIdentity
		out.Next = "Grant the provider's own user the verb impersonate on users, groups and userextras, as far as principals need it."
		out.Attribute = []string{"principal"}
	case strings.Contains(text, "pods/exec") || strings.Contains(text, `resource "pods/exec"`):
		out.Code = sandboxcore.CodeIdentity
		out.Next = "Grant both create and get on pods/exec: a run is a GET over WebSocket, and a POST where that is not possible."
	case strings.Contains(text, "cannot "):
		out.Code = sandboxcore.CodeIdentity
		out.Next = "Grant this right (RBAC); examples/kubernetes has a Role with everything that is needed."
	}
	return true
}

// split takes a native id apart.
func split(nativeID string) (namespace, kind, name string, err error) {
	parts := strings.Split(nativeID, "/")
	switch {
	case len(parts) == 2 && plain(parts[0]) && plain(parts[1]):
		return parts[0], workloadPod, parts[1], nil
	case len(parts) == 3 && parts[1] == workloadSandbox && plain(parts[0]) && plain(parts[2]):
		return parts[0], workloadSandbox, parts[2], nil
	}
	return "", "", "", &sandboxcore.Error{
		Code: sandboxcore.CodeValue, Attempted: "the sandbox could not be looked up", Object: objectID(sandboxcore.Printable(nativeID)),
		Said: "That is no id of this backend.", Next: "Use kubernetes/<namespace>/<pod>, or kubernetes/<namespace>/sandbox/<name>.",
	}
}

// plain reports whether a part of an id can be the name of an object, and is no path.
func plain(s string) bool {
	if s == "" || len(s) > 253 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" {
		return false
	}
	return !strings.HasPrefix(s, "-") && !strings.HasPrefix(s, ".") && !strings.HasSuffix(s, ".") && !strings.Contains(s, "..")
}

func gone(attempted, nativeID, said string) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeGone, Attempted: attempted, Object: objectID(nativeID), Said: said,
		Next: "Apply again to make a new one; files in it are lost.",
	}
}

func goneMissing(attempted, nativeID string) error {
	return gone(attempted, nativeID, fmt.Sprintf("The cluster has no such object any more (%s).", nativeID))
}

// asStatus reports whether the API server has answered.
func asStatus(err error, status *apierrors.APIStatus) bool { return errors.As(err, status) }
