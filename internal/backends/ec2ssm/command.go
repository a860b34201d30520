package ec2ssm

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ssm"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// sending is one SendCommand.
type sending struct {
	attempted string
	lines     []string
	// delivery is how long it may take to reach the machine, execution how long it may run there.
	delivery, execution time.Duration
	s3                  *s3Output
}

// ended is a command in a terminal state.
type ended struct {
	command string
	status  string
	// detail is StatusDetails without blanks: the console writes "Delivery Timed Out", the API "DeliveryTimedOut".
	detail string
	code   int32
	out    *ssm.GetCommandInvocationOutput
}

// send starts a command. Only what was refused for being too fast, or for a session that has ended, is sent again: a call that was not answered may have
// started it. sent is false when it is certain that nothing was started.
func (m *machine) send(ctx context.Context, s sending) (command string, sent bool, err error) {
	in := &ssm.SendCommandInput{
		DocumentName: &m.options.document, InstanceIds: []string{m.options.target},
		Comment: aws.String("agentkernel"),
		// TimeoutSeconds is the delivery timeout, 30 to 2,592,000; executionTimeout, 1 to 172,800, is a text.
		TimeoutSeconds: aws.Int32(int32(min(math.Ceil(max(s.delivery, m.e.timings.delivery).Seconds()), 2_592_000))),
		Parameters: map[string][]string{
			"commands":         s.lines,
			"executionTimeout": {strconv.Itoa(int(min(math.Ceil(s.execution.Seconds()), maxExecution)))},
		},
	}
	if s.s3 != nil {
		in.OutputS3BucketName = &s.s3.bucket
		if s.s3.prefix != "" {
			in.OutputS3KeyPrefix = &s.s3.prefix
		}
		if s.s3.region != "" {
			in.OutputS3Region = &s.s3.region
		}
	}
	refreshed, key := false, new(string)
	for attempt, wait := 1, m.e.timings.pollFirst; ; attempt, wait = attempt+1, 2*wait {
		var out *ssm.SendCommandOutput
		err = m.e.once(context.WithValue(ctx, signedWith{}, key), func(ctx context.Context) (err error) {
			out, err = m.client.ssm.SendCommand(ctx, in)
			return err
		})
		switch {
		case err == nil && out.Command != nil && aws.ToString(out.Command.CommandId) != "":
			return *out.Command.CommandId, true, nil
		case err == nil:
			return "", true, m.unknown(s.attempted, "SSM's answer names no command.", nil)
		case isExpired(err) && !refreshed:
			// It was refused, so that nothing was started.
			if refreshed = m.client.forget(ctx, *key); refreshed {
				continue
			}
		case isThrottled(err) && attempt < 8:
			if m.e.clock.Sleep(ctx, jitter(min(wait, m.e.timings.pollMost))) == nil {
				continue
			}
		}
		// An answer with a code is a refusal; a server error or silence leaves open what was done.
		certain := apiCode(err) != "" && !isServerFault(err) || isCredential(err) || sandboxcore.CodeOf(err) != ""
		out2 := m.e.failure(ctx, err, s.attempted, m.object)
		if !certain {
			return "", true, m.unknown(s.attempted, "SSM did not answer, so that it is not known whether the command was started.", out2)
		}
		return "", false, out2
	}
}

// wait polls until the command has ended (GetCommandInvocation). A command that was just sent may not be found yet, and an
// answer about another one is none.
func (m *machine) wait(ctx context.Context, command string, s sending) (*ended, error) {
	sent := m.e.clock.Now()
	// SSM itself ends a command after both times; beyond that it is no use to wait.
	last := sent.Add(max(s.delivery, m.e.timings.delivery) + s.execution + time.Minute)
	in := &ssm.GetCommandInvocationInput{CommandId: &command, InstanceId: &m.options.target}
	refreshed, silent, key := false, 0, new(string)
	late := func(seen string) error {
		return m.unknown(s.attempted, fmt.Sprintf("the command %s did not end in its time; last seen: %s.", command, seen), nil)
	}
	for wait := m.e.timings.pollFirst; ; wait = min(wait*3/2, m.e.timings.pollMost) {
		if err := m.e.clock.Sleep(ctx, jitter(wait)); err != nil {
			return nil, err
		}
		var out *ssm.GetCommandInvocationOutput
		err := m.e.once(context.WithValue(ctx, signedWith{}, key), func(ctx context.Context) (err error) {
			out, err = m.client.ssm.GetCommandInvocation(ctx, in)
			return err
		})
		now := m.e.clock.Now()
		switch {
		case err == nil:
			silent = 0
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case apiCode(err) == "InvocationDoesNotExist":
			if now.Sub(sent) > m.e.timings.unseen {
				return nil, m.unknown(s.attempted, fmt.Sprintf("SSM accepted the command %s and then did not know it for %s.", command, m.e.timings.unseen), nil)
			}
			continue
		case isThrottled(err):
			wait = m.e.timings.pollMost
			if now.After(last) {
				return nil, late("throttled questions about it")
			}
			continue
		case isExpired(err) && !refreshed:
			// The credential ended in mid-wait. An assumed role is assumed anew, once.
			refreshed = m.client.forget(ctx, *key)
			if refreshed {
				continue
			}
			return nil, m.unknown(s.attempted, "the credential expired while the command was waited for.", m.e.failure(ctx, err, s.attempted, m.object))
		case isPassing(ctx, err) && silent < 10:
			silent++
			continue
		default:
			return nil, m.unknown(s.attempted, "SSM could not be asked how the command ended.", m.e.failure(ctx, err, s.attempted, m.object))
		}
		if aws.ToString(out.CommandId) != command || aws.ToString(out.InstanceId) != m.options.target {
			if now.After(last) {
				return nil, late("answers about other commands")
			}
			continue
		}
		status := strings.ReplaceAll(string(out.Status), " ", "")
		detail := strings.ReplaceAll(aws.ToString(out.StatusDetails), " ", "")
		switch status {
		case "Success", "Cancelled", "TimedOut", "Failed":
			return &ended{command: command, status: status, detail: detail, code: out.ResponseCode, out: out}, nil
		}
		// Pending, InProgress, Delayed, Cancelling, and whatever AWS may add.
		if now.After(last) {
			return nil, late(sandboxcore.Printable(status + "/" + detail))
		}
	}
}

// unknown is the error of a run whose end nobody knows.
func (m *machine) unknown(attempted, said string, err error) *sandboxcore.Error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeUnknownOutcome, Attempted: attempted, Object: m.object, Said: said, Err: err,
		Next: "Find out on the machine what was done before it runs again: nothing is repeated by itself.",
	}
}

// judge decides on a command that ended without a report: status and StatusDetails together say whether anything ran.
// The table is that of "Understanding command statuses" in the Systems Manager user guide.
func (m *machine) judge(attempted string, e *ended, s sending) *sandboxcore.Error {
	out := &sandboxcore.Error{Code: sandboxcore.CodeUnreachable, Attempted: attempted, Object: m.object}
	detail := e.detail
	if detail == "" {
		detail = e.status
	}
	switch detail {
	case "DeliveryTimedOut":
		out.Said = fmt.Sprintf("the command did not reach the machine within %s. Nothing ran.", max(s.delivery, m.e.timings.delivery))
		out.Next = "Check that the machine is running and that its SSM agent reaches the service."
	case "Undeliverable":
		out.Said, out.Next = "the command could not be delivered to the machine. Nothing ran.", "Check that the machine exists, is running, and that its SSM agent answers."
	case "Terminated":
		out.Said, out.Next = "SSM ended the command before it reached the machine, because the one that it belongs to had too many failures. Nothing ran.", "Run it again."
	case "InvalidPlatform":
		out.Code, out.Said, out.Next = sandboxcore.CodeOperation, "the command document does not fit the machine's platform. Nothing ran.", "Attach to a Linux machine, or name a document that fits."
		out.Attribute = []string{string(sandboxcore.BackendEC2SSM), keyDocument}
	case "AccessDenied":
		out.Code, out.Said, out.Next = sandboxcore.CodeIdentity, "the caller may not run commands on this machine. Nothing ran.", "Check the policies of the caller for ssm:SendCommand on this instance and this document."
	case "NoInstancesInTag":
		out.Code, out.Said, out.Next = sandboxcore.CodeGone, "the command found no machine. Nothing ran.", "Check the machine."
	case "RateExceeded":
		out.Said, out.Next = "too many commands wait for the machine. Nothing ran.", "Run fewer at a time, or later."
	case "ExecutionTimedOut":
		out.Code, out.Said = sandboxcore.CodeTimeout, fmt.Sprintf("SSM ended the command because it took longer than %s.", s.execution)
		out.Next = "Raise the timeout, up to policy.timeout of the profile."
	case "TimedOut":
		out.Code, out.Said = sandboxcore.CodeUnknownOutcome, "SSM says only that the time was over, not whether the command was delivered."
		out.Next = "Find out on the machine what was done before it runs again."
	case "Cancelled":
		out.Code, out.Said, out.Next = sandboxcore.CodeUnknownOutcome, "somebody cancelled the command.", "Find out what it had done by then before it runs again."
	case "Success", "Failed":
		out.Code = sandboxcore.CodeUnknownOutcome
		out.Said = fmt.Sprintf("the command ended (%s, response code %d) without the report of this provider's script.", detail, e.code)
		if e.code == -1 {
			out.Said = fmt.Sprintf("the command ended (%s) without a response of the machine.", detail)
		}
		out.Next = "Find out on the machine what was done before it runs again. A document of your own has to run the lines of commands as one shell script, and to pass on its output."
	default:
		out.Code, out.Said = sandboxcore.CodeUnknownOutcome, fmt.Sprintf("the command ended as %s (%s), which this provider does not know.", sandboxcore.Printable(e.status), sandboxcore.Printable(detail))
		out.Next = "Find out on the machine what was done before it runs again."
	}
	return out
}

// nothingRan reports whether the state of a command proves that it never started on the machine.
func (e *ended) nothingRan() bool {
	switch e.detail {
	case "DeliveryTimedOut", "Undeliverable", "Terminated", "InvalidPlatform", "AccessDenied", "NoInstancesInTag", "RateExceeded":
		return true
	}
	return false
}

// exchange sends a command, waits for it and reads its report.
func (m *machine) exchange(ctx context.Context, id string, s sending) (*report, error) {
	command, _, err := m.send(ctx, s)
	if err != nil {
		return nil, err
	}
	e, err := m.wait(ctx, command, s)
	if err != nil {
		return nil, err
	}
	r, err := parseReport(id, aws.ToString(e.out.StandardOutputContent))
	if err != nil {
		return nil, m.judge(s.attempted, e, s)
	}
	return r, nil
}
