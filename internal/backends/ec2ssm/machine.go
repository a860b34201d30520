package ec2ssm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// overhead is what the script may take beside the run itself: taking apart what it carries, the kill at its end.
const overhead = 30 * time.Second

// machine is the handle of a machine that somebody else owns.
type machine struct {
	e       *endpoint
	client  *client
	options options
	object  string
	info    types.InstanceInformation
}

var (
	_ sandboxcore.AttachedEnvironment = (*machine)(nil)
	_ sandboxcore.LongFinisher        = (*machine)(nil)
)

// slowCommand is what one command may take where Systems Manager is slow, on the average of many. It takes about a second
// where it is not.
const slowCommand = 20 * time.Second

// FinishTime is the time of all commands beside the run: those that carry it and those that bring its output back.
func (m *machine) FinishTime(req sandboxcore.RunRequest) time.Duration {
	// As newPayload writes it: values in quotation marks, and lines around them.
	const line, lines = len("=; export \n"), 2 << 10
	carried := len(req.Text) + len(req.Stdin) + len(quote(req.WorkingDirectory)) + lines
	for k, v := range req.Env {
		carried += 2*len(k) + len(quote(v)) + line
	}
	for _, a := range req.Argv {
		carried += len(quote(a)) + 1
	}
	commands := carried*4/3/chunkBytes + 1
	back := time.Duration(2*(mostPaged/pageBytes+1)) * slowCommand
	if m.options.s3 != nil {
		back = bucketTime
	}
	return time.Duration(commands)*slowCommand + max(delivery(req), m.e.timings.delivery) + overhead + back
}

// delivery is how long a run may take to reach the machine. Its own time begins there.
func delivery(req sandboxcore.RunRequest) time.Duration { return min(req.Timeout, time.Minute) }

// NativeID is the id of the instance or managed node.
func (m *machine) NativeID() string { return m.options.target }

// Status is running when the agent of the machine answers.
func (m *machine) Status() sandboxcore.Status {
	if m.info.PingStatus == types.PingStatusOnline {
		return sandboxcore.StatusRunning
	}
	return sandboxcore.StatusAway
}

// Platform is what the agent says of its system.
func (m *machine) Platform() string {
	out := strings.ToLower(string(m.info.PlatformType))
	if name := strings.TrimSpace(aws.ToString(m.info.PlatformName) + " " + aws.ToString(m.info.PlatformVersion)); name != "" {
		out += " (" + name + ")"
	}
	return out
}

// Details are what does not change from look to look.
func (m *machine) Details() map[string]string {
	out := map[string]string{"ping_status": string(m.info.PingStatus), "region": m.client.region, "resource_type": string(m.info.ResourceType)}
	for k, v := range map[string]*string{
		"agent_version": m.info.AgentVersion, "computer_name": m.info.ComputerName, "ip_address": m.info.IPAddress, "name": m.info.Name, "iam_role": m.info.IamRole,
	} {
		if s := aws.ToString(v); s != "" {
			out[k] = s
		}
	}
	return out
}

const attemptedRun = "the run on the machine did not succeed"

// ready refuses a machine that cannot run anything now.
func (m *machine) ready() error {
	refuse := func(code sandboxcore.Code, said, next string) error {
		return &sandboxcore.Error{Code: code, Attempted: "the run was refused before anything was sent", Object: m.object, Said: said, Next: next, Attribute: []string{"binding"}}
	}
	if m.info.PlatformType != types.PlatformTypeLinux {
		return refuse(sandboxcore.CodeOperation, fmt.Sprintf("its platform is %s, and runs need a Linux machine.", sandboxcore.Quoted(string(m.info.PlatformType))), "Attach to a Linux machine.")
	}
	switch m.info.PingStatus {
	case types.PingStatusOnline:
		return nil
	case types.PingStatusConnectionLost:
		return refuse(sandboxcore.CodeStopped, "its SSM agent has lost the connection to Systems Manager (ConnectionLost).",
			"Start the machine, or check its agent (systemctl status amazon-ssm-agent) and its way to the service.")
	case types.PingStatusInactive:
		return refuse(sandboxcore.CodeStopped, "its registration is inactive (Inactive): the agent has not been heard of for long.",
			"Start the agent, or register the machine again.")
	}
	return refuse(sandboxcore.CodeStopped, fmt.Sprintf("Systems Manager says %s of it.", sandboxcore.Quoted(string(m.info.PingStatus))), "Check the machine's SSM agent.")
}

// Run runs one request on the machine.
func (m *machine) Run(ctx context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	k, err := m.errand(ctx)
	if err != nil {
		return sandboxcore.RunResult{}, err
	}
	load, err := newPayload(k, req)
	if err != nil {
		return sandboxcore.RunResult{}, m.named(err)
	}
	ahead, rest := uploads(k, load.encoded)
	if err := m.carryAhead(ctx, k, ahead, "the run could not be brought to the machine"); err != nil {
		return sandboxcore.RunResult{}, err
	}
	s := sending{
		attempted: attemptedRun, lines: load.runLines(k, rest, len(ahead) > 0, m.options.s3 != nil, req),
		delivery: delivery(req), execution: req.Timeout + req.Grace + overhead, s3: m.options.s3,
	}
	return m.run(ctx, k, len(ahead) > 0, s, req, stdout, stderr)
}

// carryAhead brings what goes ahead of the last command. After an error nothing of it stays.
func (m *machine) carryAhead(ctx context.Context, k errand, ahead [][]string, attempted string) error {
	for _, lines := range ahead {
		r, err := m.exchange(ctx, k.id, sending{attempted: attempted, lines: lines, execution: overhead})
		if err == nil {
			err = m.refused(r, k.runAs)
		}
		if err == nil && r.word != "stored" {
			err = m.unknown(attempted, "the machine gave an answer that does not fit.", nil)
		}
		if err != nil {
			// What it goes ahead of was never sent.
			_ = m.end(ctx, k, "")
			return m.interrupted(ctx, err, true, false)
		}
	}
	return nil
}

// run sends the run itself. ahead: parts of what it carries are on the machine already.
func (m *machine) run(ctx context.Context, k errand, ahead bool, s sending, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	command, sent, err := m.send(ctx, s)
	if err != nil {
		if sent || ahead {
			_ = m.end(ctx, k, "")
		}
		// Without the id of the command it cannot be cancelled: it may still start later.
		return sandboxcore.RunResult{}, m.interrupted(ctx, err, !sent, !sent)
	}
	e, err := m.wait(ctx, command, s)
	if err != nil {
		confirmed := m.end(ctx, k, command) == nil
		return sandboxcore.RunResult{}, m.interrupted(ctx, err, false, confirmed)
	}
	r, err := m.report(ctx, k.id, e, s)
	if err != nil {
		judged := m.judge(attemptedRun, e, s)
		if e.nothingRan() {
			if ahead {
				_ = m.end(ctx, k, "")
			}
		} else {
			judged.Err = err
			if errors.Is(err, errNoReport) {
				judged.Err = nil
			}
			judged.Said += confirmation(m.end(ctx, k, command) == nil)
		}
		return sandboxcore.RunResult{}, judged
	}
	if err := m.refused(r, k.runAs); err != nil {
		return sandboxcore.RunResult{}, err
	}
	if r.word != "exit" {
		_ = m.end(ctx, k, command)
		return sandboxcore.RunResult{}, m.unknown(attemptedRun, "the machine gave an answer that does not fit.", nil)
	}
	res := sandboxcore.RunResult{ExitCode: int(r.number["exit"]), Duration: r.took, LeftoversKilled: int(r.number["left"])}
	if err := m.output(ctx, k, r, &res, stdout, stderr); err != nil {
		if req.KeepBackground {
			m.cleanPage(ctx, k)
		} else {
			_ = m.end(ctx, k, "")
		}
		return res, err
	}
	if r.number["late"] == 1 {
		said := fmt.Sprintf("it took longer than %s and was ended.", req.Timeout)
		return res, &sandboxcore.Error{
			Code: sandboxcore.CodeTimeout, Attempted: attemptedRun, Object: m.object, Said: said + confirmation(r.number["alive"] == 0),
			Next: "Raise timeout, up to policy.timeout of the profile, or let the code do less.",
		}
	}
	if n := r.number["alive"]; n > 0 {
		res.Notice = joinNotices(res.Notice, fmt.Sprintf("%d processes that the run left behind could not be ended.", n))
	}
	return res, nil
}

func confirmation(dead bool) string {
	if dead {
		return " Every process of it was ended."
	}
	return " It could not be confirmed that every process of it has ended."
}

func joinNotices(a, b string) string { return strings.TrimSpace(a + " " + b) }

// runAs is the user of the machine that the principal names; empty: that of the agent. A name that does not fit is an error,
// because the agent's user is root.
func (m *machine) runAs(ctx context.Context) (string, error) {
	who, _ := sandboxcore.PrincipalOf(ctx)
	return m.userOf(who)
}

func (m *machine) userOf(who sandboxcore.Principal) (string, error) {
	if who.EC2SSM == nil || who.EC2SSM.RunAs == "" {
		return "", nil
	}
	if name := who.EC2SSM.RunAs; !runAsPattern.MatchString(name) {
		return "", &sandboxcore.Error{
			Code: sandboxcore.CodeIdentity, Attempted: "the run was refused before anything was sent", Object: m.object,
			Said: fmt.Sprintf("%s is no name of a user.", sandboxcore.Quoted(name)),
			Next: "Use letters, digits, _, . and -, starting with a letter or _, at most 32.", Attribute: []string{"principal", "ec2_ssm", "run_as"},
		}
	}
	return who.EC2SSM.RunAs, nil
}

func (m *machine) named(err error) error {
	if e, ok := errors.AsType[*sandboxcore.Error](err); ok && e.Object == "" {
		e.Object = m.object
	}
	return err
}

// interrupted is the error of a run that was given up before it told its end.
func (m *machine) interrupted(ctx context.Context, err error, nothing, dead bool) error {
	cause := ctx.Err()
	own, ok := errors.AsType[*sandboxcore.Error](err)
	switch {
	case cause == nil && ok && (nothing || own.Code != sandboxcore.CodeUnknownOutcome):
		return own
	case cause == nil && ok:
		out := *own
		out.Said += confirmation(dead)
		return &out
	}
	out := &sandboxcore.Error{
		Code: sandboxcore.CodeUnknownOutcome, Attempted: "the run was cancelled", Object: m.object, Err: err,
		Next: "Find out what it had done by then before it runs again.",
	}
	if errors.Is(cause, context.DeadlineExceeded) {
		out.Code, out.Attempted = sandboxcore.CodeTimeout, "the run was ended because the time of the operation was over"
	}
	switch {
	case nothing:
		out.Said, out.Next = "It had not started. Nothing ran.", "Run the command again."
	default:
		out.Said = strings.TrimSpace(confirmation(dead))
		if !dead {
			out.Code = sandboxcore.CodeUnknownOutcome
		}
	}
	return out
}

// end cancels a command and kills, on the machine, whatever is left of its run, also when ctx has ended. It gives nil only
// when the machine confirmed that nothing is alive and the command, if one is named, was cancelled: else it could start after
// the machine answered. CancelCommand alone is a request: it ends the script, not its children.
func (m *machine) end(ctx context.Context, k errand, command string) error {
	return sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		var cancelled error
		if command != "" {
			cancelled = m.cancel(ctx, command)
		}
		r, err := m.exchange(ctx, k.id, sending{attempted: "the run could not be ended", lines: endLines(k), execution: overhead})
		if err != nil {
			return err
		}
		if r.word != "ended" || r.number["alive"] != 0 {
			return errors.New("the machine did not confirm it")
		}
		return cancelled
	})
}

func (m *machine) cancel(ctx context.Context, command string) error {
	return m.client.retry(ctx, m.e, func(ctx context.Context) error {
		_, err := m.client.ssm.CancelCommand(ctx, &ssm.CancelCommandInput{CommandId: &command, InstanceIds: []string{m.options.target}})
		return err
	})
}

// refused turns what the script refused into an error. Nothing ran.
func (m *machine) refused(r *report, runAs string) error {
	if len(r.fail) == 0 {
		return nil
	}
	e := &sandboxcore.Error{Code: sandboxcore.CodeOperation, Attempted: "the run was refused by the machine", Object: m.object}
	switch r.fail[0] {
	case "user":
		e.Code, e.Said, e.Next = sandboxcore.CodeIdentity, fmt.Sprintf("it has no user %q. Nothing ran.", runAs), "Make the user on the machine, or name another one in run_as."
		e.Attribute = []string{"principal", "ec2_ssm", "run_as"}
	case "become":
		e.Code, e.Said = sandboxcore.CodeIdentity, fmt.Sprintf("its SSM agent cannot become the user %q. Nothing ran.", runAs)
		e.Next = "The agent has to run as root and to find runuser, or to find sudo with a rule that lets it become this user and asks for no password."
		e.Attribute = []string{"principal", "ec2_ssm", "run_as"}
	case "directory-of-run":
		e.Code, e.Said, e.Next = sandboxcore.CodeValue, "working_directory does not exist there, or may not be entered. Nothing ran.", "Name a directory that exists for the user of the run."
		e.Attribute = []string{"working_directory"}
	case "program":
		e.Said, e.Next = "the program (or the interpreter of the language) was not found there. Nothing ran.", "Install it, or name its full path."
	case "payload":
		e.Code, e.Said, e.Next = sandboxcore.CodeProvision, "what was sent did not arrive whole. Nothing ran.", "Run it again; base64, head, tail and sha256sum have to be there, and space in /tmp."
	case "directory":
		e.Code, e.Said, e.Next = sandboxcore.CodeProvision, "no directory could be made in /tmp. Nothing ran.", "Check that /tmp is writable for the SSM agent and has space."
	case "kind":
		e.Code, e.Said, e.Next = sandboxcore.CodeValue, "there is something there that is no regular file.", "Name a regular file."
		e.Attribute = []string{"path"}
	case "large":
		size, most, _ := strings.Cut(sandboxcore.Printable(strings.Join(r.fail[1:], " ")), " ")
		e.Code, e.Said = sandboxcore.CodeValue, fmt.Sprintf("the file has %s bytes, and at most %s are read here.", size, most)
		e.Next, e.Attribute = "Make it smaller; bring large files through S3, and let the code read and write them there.", []string{"path"}
	case "space":
		e.Code, e.Said, e.Next = sandboxcore.CodeProvision, "there is no space for it, or a quota is used up.", "Make space on the machine, where the file belongs and in /tmp."
	case "access":
		e.Code, e.Said, e.Next = sandboxcore.CodeValue, "the user of the run may not read, write or remove the file.", "Name another file, or another user in run_as."
		e.Attribute = []string{"path"}
	case "setsid":
		e.Said, e.Next = "it has no setsid, without which a run could not be ended. Nothing ran.", "Install util-linux."
	default:
		e.Said, e.Next = fmt.Sprintf("its script said %s. Nothing ran.", sandboxcore.Quoted(strings.Join(r.fail, " "))), "Check the machine."
	}
	return e
}
