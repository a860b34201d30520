package docker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os/exec"
	"strings"
	"syscall"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// errNoAnswer is the cause of a context that ended because the engine did not answer in time, and not because the
// caller gave up.
var errNoAnswer = errors.New("the engine did not answer in time")

// failure makes the error of a call that ctx belonged to: unreachable if the engine could not be spoken to, and
// otherwise an error with the given code that repeats what the engine said.
func (e *endpoint) failure(ctx context.Context, err error, code sandboxcore.Code, attempted, object, next string) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*sandboxcore.Error](err); ok {
		return err
	}
	if away := e.target.unreachable(ctx, err, attempted); away != nil {
		return away
	}
	return &sandboxcore.Error{
		Code: code, Attempted: attempted, Object: object, Said: "The Docker engine refused it.", Next: next, Err: engineError{err},
	}
}

// engineError shows the engine's own sentence without the client's decoration.
type engineError struct{ err error }

func (e engineError) Error() string {
	return strings.TrimSpace(strings.TrimPrefix(e.err.Error(), "Error response from daemon: "))
}

func (e engineError) Unwrap() error { return e.err }

func sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" || strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}

// unreachable classifies an error of the way to the engine. It gives nil for an answer of the engine.
func (t target) unreachable(ctx context.Context, err error, attempted string) *sandboxcore.Error {
	out := &sandboxcore.Error{Code: sandboxcore.CodeUnreachable, Attempted: attempted, Object: "Docker engine at " + t.host, Err: engineError{err}}
	if err == nil {
		return nil
	}
	if t.fillVersion(out, err) {
		return out
	}
	if answered(err) && !strings.Contains(err.Error(), httpToTLS) {
		return nil
	}
	if t.fillContext(ctx, out, err) || t.fillSSH(out, err) || t.fillTLS(out, err) || t.fillNetwork(out, err) || t.fillNonsense(out, err) {
		return out
	}
	if client.IsErrConnectionFailed(err) {
		out.Said = "The connection could not be made."
		out.Next = "Check that the engine runs and that its address is right; it comes from " + t.origin + "."
		return out
	}
	return nil
}

// httpToTLS is what a TLS server in Go, an engine included, answers to a request without TLS.
const httpToTLS = "HTTP request to an HTTPS server"

// answered reports whether err is what the engine itself answered, with an HTTP status or in the stream of a pull. What
// such an answer says about connections is about others: a registry, a plugin.
func answered(err error) bool {
	var inStream *jsonstream.Error
	return errors.As(err, &inStream) || cerrdefs.IsInvalidArgument(err) || cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) ||
		cerrdefs.IsPermissionDenied(err) || cerrdefs.IsUnauthorized(err) || cerrdefs.IsInternal(err) || cerrdefs.IsNotImplemented(err) ||
		cerrdefs.IsUnavailable(err) || cerrdefs.IsNotModified(err)
}

func (t target) fillContext(ctx context.Context, out *sandboxcore.Error, err error) bool {
	switch {
	case errors.Is(context.Cause(ctx), errNoAnswer), errors.Is(err, errNoAnswer):
		out.Said = "It took the connection but did not answer in time."
		out.Next = "Check that the engine is healthy (docker info) and not overloaded; its address comes from " + t.origin + "."
	case errors.Is(err, context.Canceled):
		out.Said = "The operation was cancelled before the engine answered."
		out.Next = "Run the command again."
	case errors.Is(err, context.DeadlineExceeded):
		out.Said = "The time for the operation was over before the engine answered."
		out.Next = "Raise the timeout of the operation, or check that the engine is not overloaded."
	default:
		return false
	}
	return true
}

// fillVersion recognises an engine that speaks none of our API versions, or not the one that was fixed.
func (t target) fillVersion(out *sandboxcore.Error, err error) bool {
	said := err.Error()
	if !strings.Contains(said, "minimum supported API version") && !strings.Contains(said, "Minimum supported API version") &&
		!strings.Contains(said, "Maximum supported API version") {
		return false
	}
	out.Said = fmt.Sprintf("The engine and this provider have no API version in common, or not the one that was asked for. This provider speaks %s to %s; what the engine speaks stands below.",
		client.MinAPIVersion, client.MaxAPIVersion)
	if t.apiVersion != "" {
		out.Next = fmt.Sprintf("Version %s was fixed by %s: remove it, or name one that both sides know.", t.apiVersion, t.apiOrigin)
	} else {
		out.Next = "Upgrade the engine (Docker 19.03 is the oldest that can be used) or this provider. DOCKER_API_VERSION or api_version in the " +
			"provider's docker attribute can name a version within both ranges where the negotiation fails."
	}
	return true
}

func (t target) fillSSH(out *sandboxcore.Error, err error) bool {
	if !strings.HasPrefix(t.host, "ssh://") {
		return false
	}
	said := err.Error()
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(said, p) {
				return true
			}
		}
		return false
	}
	switch {
	case errors.Is(err, exec.ErrNotFound):
		out.Said, out.Next = "There is no ssh program on this machine.", "Install OpenSSH's client: an ssh:// address is reached through it."
	case has("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED"):
		out.Said = "ssh refused the host key of the remote machine: it is not in known_hosts, or another one is."
		out.Next = "Connect once with ssh by hand and check the key's fingerprint, or add the key to known_hosts."
	case has("Permission denied (", "Too many authentication failures"):
		out.Said = "The remote machine did not accept the ssh login."
		out.Next = "Check the user of the address and that its key is in the agent or in the ssh configuration; passwords are never asked for."
	case has("Could not resolve hostname"):
		out.Said, out.Next = "ssh cannot resolve the host name.", "Check the address; it comes from "+t.origin+"."
	case has("Connection refused"):
		out.Said, out.Next = "The remote machine refused the ssh connection.", "Check the port of the address and that an ssh server runs there."
	case has("Connection timed out", "Operation timed out"):
		out.Said, out.Next = "The remote machine did not answer ssh in time.", "Check the address and the way to it (firewall, VPN)."
	case has("command not found", "docker: not found", "executable file not found"):
		out.Said, out.Next = "ssh works, but there is no docker program on the remote machine.", "Install Docker 18.09 or later there, and have it on the PATH of a non-interactive login."
	case has("permission denied while trying to connect"):
		out.Said, out.Next = "ssh works, but its user may not use the remote engine.", "Add the user to the docker group of the remote machine."
	case has("Cannot connect to the Docker daemon"):
		out.Said, out.Next = "ssh works, but no engine runs on the remote machine.", "Start Docker there."
	case has("exited with exit status", "has exited with"):
		out.Said, out.Next = "ssh ended before the engine answered.", "Check that ssh to the address works by hand, and that docker runs there."
	default:
		return false
	}
	return true
}

func (t target) fillTLS(out *sandboxcore.Error, err error) bool {
	var unknown x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var verification *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	said := err.Error()
	switch {
	case errors.As(err, &record), strings.Contains(said, "server gave HTTP response to HTTPS client"):
		out.Said, out.Next = "The other side does not speak TLS.", "Remove the TLS material for this address, or use the engine's TLS port."
	case errors.As(err, &unknown), errors.As(err, &hostname), errors.As(err, &invalid), errors.As(err, &verification):
		out.Said = "The engine's certificate was refused."
		out.Next = "Check that ca.pem is the authority of this engine and that its certificate names the host of the address."
	case strings.Contains(said, "client authentication"), strings.Contains(said, "tls: certificate required"), strings.Contains(said, "remote error: tls"):
		out.Said = "The engine refused the client certificate, or there was none."
		out.Next = "Give cert.pem and key.pem that the engine's authority signed (cert_path, or DOCKER_CERT_PATH with DOCKER_HOST)."
	case strings.Contains(said, "TLS-enabled daemon without TLS"), strings.Contains(said, httpToTLS):
		out.Said = "The engine speaks TLS, and no TLS was configured."
		out.Next = "Set cert_path beside host, or DOCKER_TLS_VERIFY and DOCKER_CERT_PATH beside DOCKER_HOST."
	default:
		return false
	}
	return true
}

func (t target) fillNetwork(out *sandboxcore.Error, err error) bool {
	var dns *net.DNSError
	said := err.Error()
	switch {
	case errors.As(err, &dns):
		out.Said = fmt.Sprintf("The host name %q cannot be resolved.", dns.Name)
		out.Next = "Check the address; it comes from " + t.origin + "."
	case errors.Is(err, fs.ErrNotExist), strings.Contains(said, "no such file or directory") && client.IsErrConnectionFailed(err):
		out.Said = "There is no such socket."
		out.Next = "Start Docker, or name another engine with host in the provider's docker attribute or DOCKER_HOST. The address comes from " + t.origin + "."
	case errors.Is(err, fs.ErrPermission), strings.Contains(said, "permission denied while trying to connect") && client.IsErrConnectionFailed(err):
		out.Said = "This user may not use the socket."
		out.Next = "Add the user to the group of the socket (usually docker), or use an engine of its own (rootless)."
	case errors.Is(err, syscall.ECONNREFUSED),
		client.IsErrConnectionFailed(err) && strings.Contains(said, "Is the docker daemon running"):
		out.Said = "The connection was refused: nothing listens there."
		out.Next = "Start the engine, or check the address; it comes from " + t.origin + "."
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		out.Said = "The connection broke before the answer was complete."
		out.Next = "Check that the engine still runs (docker info), then run the command again."
	default:
		return false
	}
	return true
}

// fillNonsense recognises an answer that no engine gives.
func (t target) fillNonsense(out *sandboxcore.Error, err error) bool {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	said := err.Error()
	if !errors.As(err, &syntax) && !errors.As(err, &kind) && !strings.Contains(said, "malformed HTTP") && !strings.Contains(said, "Error reading remote info") &&
		!errors.Is(err, client.ErrRedirect) && !strings.Contains(said, "invalid character") {
		return false
	}
	out.Said = "What answers there does not speak the engine's protocol."
	out.Next = "Check that the address is that of a Docker engine and not of something else; it comes from " + t.origin + "."
	return true
}

// gone is the error for a sandbox that does not exist.
func (e *endpoint) gone(attempted, id string) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeGone, Attempted: attempted, Object: objectID(id),
		Said: "The engine has no such container.", Next: "It was removed outside Terraform; the next apply makes a new one.",
	}
}

// objectID is the id of a sandbox as users see it.
func objectID(native string) string { return string(sandboxcore.BackendDocker) + "/" + native }

func isNotFound(err error) bool { return cerrdefs.IsNotFound(err) }
func isConflict(err error) bool { return cerrdefs.IsConflict(err) }
