package ec2ssm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	smithy "github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Error codes of the AWS APIs, by what they mean here. Several services spell the same error in several ways.
var (
	codesThrottled = []string{"Throttling", "ThrottlingException", "ThrottledException", "RequestLimitExceeded", "TooManyRequestsException", "RequestThrottled", "SlowDown", "PriorRequestNotComplete"}
	codesExpired   = []string{"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
	codesRefused   = []string{
		"AccessDenied", "AccessDeniedException", "UnrecognizedClientException", "InvalidClientTokenId", "SignatureDoesNotMatch", "InvalidSignatureException",
		"IncompleteSignature", "MissingAuthenticationToken", "MissingAuthenticationTokenException", "InvalidAccessKeyId", "InvalidSignature",
	}
)

// carried is what a run carries and its digest, where AWS repeats a parameter in its message: it would not be known for a
// secret in there.
var carried = regexp.MustCompile(`[A-Za-z0-9+/=]{60,}`)

func apiCode(err error) string {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return api.ErrorCode()
	}
	return ""
}

func isThrottled(err error) bool { return slices.Contains(codesThrottled, apiCode(err)) }

func isExpired(err error) bool { return slices.Contains(codesExpired, apiCode(err)) }

// isPassing reports whether a call that changes nothing may be made again: the service was busy, or did not answer.
func isPassing(ctx context.Context, err error) bool {
	if ctx.Err() != nil || sandboxcore.CodeOf(err) != "" {
		return false
	}
	if isThrottled(err) {
		return true
	}
	if isServerFault(err) {
		return true
	}
	if _, sent := errors.AsType[*smithyhttp.RequestSendError](err); sent {
		return true
	}
	// What is called without the SDK: an answer of a bucket that is no refusal, and a connection that broke.
	_, broken := errors.AsType[*url.Error](err)
	return isBucket(err) || broken || errors.Is(err, io.ErrUnexpectedEOF)
}

// isServerFault reports an answer that leaves open what the service has done.
func isServerFault(err error) bool {
	r, ok := errors.AsType[*smithyhttp.ResponseError](err)
	return ok && r.HTTPStatusCode() >= http.StatusInternalServerError
}

// retry makes a call that changes nothing, a few times if it has to, each time under the deadline of a call.
func (e *endpoint) retry(ctx context.Context, call func(context.Context) error) error {
	return e.again(ctx, func(ctx context.Context) error { return e.once(ctx, call) })
}

// again is retry under no deadline but that of ctx.
func (e *endpoint) again(ctx context.Context, call func(context.Context) error) error {
	for attempt, wait := 1, e.timings.pollFirst; ; attempt, wait = attempt+1, 2*wait {
		err := call(ctx)
		if err == nil || attempt == 4 || !isPassing(ctx, err) {
			return err
		}
		if serr := e.clock.Sleep(ctx, jitter(wait)); serr != nil {
			return err
		}
	}
}

// once makes one call under a deadline.
func (e *endpoint) once(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, e.timings.call)
	defer cancel()
	return call(ctx)
}

// failure turns an error of an AWS call into one that says what was attempted and what to do.
func (e *endpoint) failure(ctx context.Context, err error, attempted, object string) error {
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*sandboxcore.Error](err); ok {
		return own
	}
	out := &sandboxcore.Error{Code: sandboxcore.CodeUnreachable, Attempted: attempted, Object: object}
	code, said := apiCode(err), ""
	operation, service := "", ""
	if op, ok := errors.AsType[*smithy.OperationError](err); ok {
		operation, service = op.Operation(), strings.ToLower(op.Service())
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		said = fmt.Sprintf("%s (%s).", strings.TrimSuffix(sandboxcore.Printable(carried.ReplaceAllString(api.ErrorMessage(), "…")), "."), sandboxcore.Printable(code))
	}
	switch {
	case ctx.Err() != nil && code == "":
		out.Said, out.Next, out.Err = "the time was over, or the operation was cancelled, before AWS answered.", "Run the command again.", ctx.Err()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			out.Code = sandboxcore.CodeTimeout
		}
	case slices.Contains(codesExpired, code):
		out.Code, out.Said, out.Next = sandboxcore.CodeIdentity, "the credential has expired: "+said, "Get a new one (for example aws sso login) and run the command again."
	case slices.Contains(codesRefused, code):
		out.Code, out.Said = sandboxcore.CodeIdentity, "AWS refused the caller: "+said
		out.Next = "Check the credential and the policies of the caller."
		if operation != "" {
			out.Next = fmt.Sprintf("Check the credential, and that its policies allow %s:%s.", service, operation)
		}
		if operation == "AssumeRole" {
			out.Next = "Check that the role exists, that its trust policy lets the provider's own identity assume it (external id, tags, source identity), and that the provider's identity may call sts:AssumeRole."
		}
	case code == "InvalidInstanceId":
		out.Code, out.Said = sandboxcore.CodeGone, "Systems Manager cannot run commands there: "+said
		out.Next = "The machine does not exist in this region, is stopped, or its agent is not registered. aws ssm describe-instance-information shows those that are."
	case code == "InvalidDocument" || code == "InvalidDocumentVersion" || code == "InvalidParameters":
		out.Code, out.Said, out.Next = sandboxcore.CodeValue, said, "Name a command document that exists in this region and takes the parameters commands and executionTimeout."
		out.Attribute = []string{string(sandboxcore.BackendEC2SSM), keyDocument}
	case code == "MaxDocumentSizeExceeded":
		out.Code, out.Said, out.Next = sandboxcore.CodeValue, said, "Let the run carry less: code, environment, standard input."
	case isThrottled(err):
		out.Said, out.Next = "AWS throttles the calls: "+said, "Run fewer at a time (terraform apply -parallelism=…), or later."
	case code != "":
		out.Said, out.Next = said, "Mend what the answer of AWS names, then run the command again."
	case isCredential(err):
		out.Code, out.Said, out.Next, out.Err = sandboxcore.CodeIdentity, "no AWS credential could be had.", "Set access_key and secret_key, or profile, in the provider's aws attribute, or the variables of the AWS tools; a profile of single sign-on needs aws sso login.", err
	case isBucket(err):
		out.Said, out.Next, out.Err = "the service is not well.", "Run the command again later.", err
	default:
		out.Said, out.Next, out.Err = "the service did not answer.", "Check the region, the network and the endpoints in the provider's aws attribute.", err
		if sent, ok := errors.AsType[*smithyhttp.RequestSendError](err); ok {
			out.Err = sent.Err
		}
	}
	return out
}

func isBucket(err error) bool {
	_, ok := errors.AsType[*bucketError](err)
	return ok
}

// isCredential recognises a request that could not be signed.
func isCredential(err error) bool {
	s := err.Error()
	return strings.Contains(s, "get identity:") || strings.Contains(s, "failed to refresh cached credentials") || strings.Contains(s, "get credentials")
}
