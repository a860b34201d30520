//go:build linux

package ec2ssm

import (
	"context"
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/ssmpeer"
)

// onClock gives a machine whose commands are played, under a clock that moves only when somebody sleeps.
func onClock(t *testing.T, play func(lines []string) []ssmpeer.State) (*place, *machine, *fakeClock) {
	t.Helper()
	p := newPlace(t)
	p.machine.Script = play
	b, err := newBackend(settings(p.peer, p.key), nil)
	if err != nil {
		t.Fatal(err)
	}
	bb, _ := b.(*backend)
	clock := newFakeClock()
	bb.clock, bb.timings = clock, defaultTimings()
	t.Cleanup(bb.close)
	return p, attachWith(t.Context(), t, bb), clock
}

var idLine = regexp.MustCompile(`(?m)^id=([0-9a-f]{32});`)

// played is a report as the script of a run prints it.
func played(lines []string, exit int, out string) string {
	id := idLine.FindStringSubmatch(strings.Join(lines, "\n"))[1]
	enc := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	say := func(format string, args ...any) string {
		return reportMark + " " + id + " " + fmt.Sprintf(format, args...) + "\n"
	}
	if strings.Contains(lines[len(lines)-1], "say ended") {
		return say("ended left 0 alive 0") + say("done")
	}
	return say("exit %d late 0 left 0 alive 0 from 1.00 to 3.50 out %d err 0 here %d 0", exit, len(out), len(out)) + enc(out) + "\n" + say("out") + say("err") + say("done")
}

func isRun(lines []string) bool { return strings.Contains(strings.Join(lines, "\n"), "say exit") }

// ending plays the run's command to one last state; the commands that clean up after it succeed.
func ending(last ssmpeer.State) func([]string) []ssmpeer.State {
	return func(lines []string) []ssmpeer.State {
		if isRun(lines) {
			return []ssmpeer.State{{Status: "Pending", Details: "Pending", Code: -1}, {Status: "InProgress", Details: "InProgress", Code: -1}, {Status: "Delayed", Details: "Delayed", Code: -1}, last}
		}
		return []ssmpeer.State{{Status: "Success", Details: "Success", Stdout: played(lines, 0, "")}}
	}
}

// TestStatusTable: status and StatusDetails, as the console and as the API spell them, decide together.
func TestStatusTable(t *testing.T) {
	for _, test := range []struct {
		status, details string
		code            int
		want            sandboxcore.Code
		says            string
		ran             bool // the machine is asked to end whatever is left
	}{
		{"TimedOut", "DeliveryTimedOut", -1, sandboxcore.CodeUnreachable, "Nothing ran", false},
		{"TimedOut", "Delivery Timed Out", -1, sandboxcore.CodeUnreachable, "did not reach the machine", false},
		{"TimedOut", "ExecutionTimedOut", -1, sandboxcore.CodeTimeout, "longer than", true},
		{"TimedOut", "Execution Timed Out", -1, sandboxcore.CodeTimeout, "longer than", true},
		{"TimedOut", "TimedOut", -1, sandboxcore.CodeUnknownOutcome, "only that the time was over", true},
		{"Failed", "Undeliverable", -1, sandboxcore.CodeUnreachable, "could not be delivered", false},
		{"Failed", "Terminated", -1, sandboxcore.CodeUnreachable, "too many failures", false},
		{"Failed", "InvalidPlatform", -1, sandboxcore.CodeOperation, "platform", false},
		{"Failed", "Invalid Platform", -1, sandboxcore.CodeOperation, "platform", false},
		{"Failed", "AccessDenied", -1, sandboxcore.CodeIdentity, "ssm:SendCommand", false},
		{"Failed", "Access Denied", -1, sandboxcore.CodeIdentity, "ssm:SendCommand", false},
		{"Failed", "NoInstancesInTag", -1, sandboxcore.CodeGone, "no machine", false},
		{"Failed", "RateExceeded", -1, sandboxcore.CodeUnreachable, "too many commands", false},
		{"Failed", "Failed", -1, sandboxcore.CodeUnknownOutcome, "without a response", true},
		{"Failed", "Failed", 1, sandboxcore.CodeUnknownOutcome, "response code 1", true},
		{"Failed", "", 2, sandboxcore.CodeUnknownOutcome, "response code 2", true},
		{"Success", "Success", 0, sandboxcore.CodeUnknownOutcome, "without the report", true},
		{"Cancelled", "Cancelled", -1, sandboxcore.CodeUnknownOutcome, "somebody cancelled", true},
		{"Failed", "SomethingNew\x1b[31m", 0, sandboxcore.CodeUnknownOutcome, "does not know", true},
	} {
		t.Run(test.status+"/"+test.details+fmt.Sprint(test.code), func(t *testing.T) {
			p, m, _ := onClock(t, ending(ssmpeer.State{Status: test.status, Details: test.details, Code: test.code}))
			o := m.try(t.Context(), script("true"))
			refused(t, o.err, test.want, test.says)
			if strings.Contains(o.err.Error(), "\x1b") {
				t.Error("a control character of the service in the error")
			}
			if ended := p.peer.Count("ssm:CancelCommand") > 0; ended != test.ran {
				t.Errorf("the run was ended: %v, want %v", ended, test.ran)
			}
			if o.ExitCode != 0 || p.peer.Count("ssm:SendCommand") > 2 {
				t.Errorf("%+v", o)
			}
		})
	}
	// The program's own failure is a result whatever SSM calls it.
	code := 0
	_, m, _ := onClock(t, func(lines []string) []ssmpeer.State {
		return []ssmpeer.State{{Status: "Failed", Details: "Failed", Code: code, Stdout: played(lines, code, "x")}}
	})
	for code = range 256 {
		if o := m.try(t.Context(), script("true")); o.err != nil || o.ExitCode != code || o.stdout != "x" || o.Duration != 2500*time.Millisecond {
			t.Errorf("%d: %+v", code, o)
		}
	}
}

// TestNotThereYet: a command that was just sent may be unknown for a while, and only for a while.
func TestNotThereYet(t *testing.T) {
	for _, polls := range []int{0, 1, 20} {
		_, m, _ := onClock(t, func(lines []string) []ssmpeer.State {
			states := make([]ssmpeer.State, polls, polls+1)
			for i := range states {
				states[i] = ssmpeer.State{Unknown: true}
			}
			return append(states, ssmpeer.State{Status: "Success", Stdout: played(lines, 0, "x")})
		})
		m.e.timings.pollMost = time.Second
		if o := m.try(t.Context(), script("true")); o.err != nil || o.stdout != "x" {
			t.Errorf("%d polls: %+v", polls, o)
		}
	}
	p, m, clock := onClock(t, func([]string) []ssmpeer.State { return []ssmpeer.State{{Unknown: true}} })
	start := clock.Now()
	refused(t, m.try(t.Context(), script("true")).err, sandboxcore.CodeUnknownOutcome, "did not know it", "could not be confirmed")
	if took := clock.Now().Sub(start); took > 3*time.Minute {
		t.Errorf("it took %s", took)
	}
	// Once for the run and once for its end: never a second time by itself.
	if n := p.peer.Count("ssm:SendCommand"); n != 2 {
		t.Errorf("%d commands were sent", n)
	}
}

// TestStaleAnswers: an answer about another command is none.
func TestStaleAnswers(t *testing.T) {
	_, m, _ := onClock(t, func(lines []string) []ssmpeer.State {
		return []ssmpeer.State{
			{Status: "Success", Details: "Success", CommandID: "00000000-0000-0000-0000-000000000000", Stdout: played(lines, 9, "stale")},
			{Status: "Success", Stdout: played(lines, 3, "mine")},
		}
	})
	if o := m.try(t.Context(), script("true")); o.err != nil || o.ExitCode != 3 || o.stdout != "mine" {
		t.Errorf("%+v", o)
	}
	// For ever: the wait ends.
	for name, state := range map[string]ssmpeer.State{
		"other commands": {Status: "Success", CommandID: "00000000-0000-0000-0000-000000000000"}, "Pending/Pending": {Status: "Pending", Details: "Pending"},
		"New/": {Status: "New"},
	} {
		_, m, clock := onClock(t, func(lines []string) []ssmpeer.State {
			if isRun(lines) {
				return []ssmpeer.State{state}
			}
			return []ssmpeer.State{{Status: "Success", Stdout: played(lines, 0, "")}}
		})
		from := clock.Now()
		refused(t, m.try(t.Context(), script("true")).err, sandboxcore.CodeUnknownOutcome, "last seen: ", name)
		if took := clock.Now().Sub(from); took > 5*time.Minute {
			t.Errorf("%s: it took %s", name, took)
		}
	}
}

// TestForgedReports: what does not fit together is no report, and never an exit status.
func TestForgedReports(t *testing.T) {
	for name, change := range map[string]func(string) string{
		"cut":             func(s string) string { return s[:len(s)-10] },
		"empty":           func(string) string { return "" },
		"another run":     func(s string) string { return strings.ReplaceAll(s, reportMark+" ", reportMark+" 0") },
		"status 256":      func(s string) string { return strings.Replace(s, "exit 0", "exit 256", 1) },
		"negative":        func(s string) string { return strings.Replace(s, "exit 0", "exit -1", 1) },
		"no number":       func(s string) string { return strings.Replace(s, "exit 0", "exit x", 1) },
		"sizes":           func(s string) string { return strings.Replace(s, "here 1", "here 2", 1) },
		"no base64":       func(s string) string { return strings.Replace(s, "eA==", "e*==", 1) },
		"twice":           func(s string) string { return s[:strings.Index(s, "\n")+1] + s },
		"something else":  func(s string) string { return strings.Replace(s, "exit 0", "page 0", 1) },
		"only its ending": func(s string) string { return s[strings.LastIndex(strings.TrimSpace(s), "\n")+1:] },
	} {
		t.Run(name, func(t *testing.T) {
			_, m, _ := onClock(t, func(lines []string) []ssmpeer.State {
				text := played(lines, 0, "x")
				if isRun(lines) {
					text = change(text)
				}
				return []ssmpeer.State{{Status: "Success", Stdout: text}}
			})
			refused(t, m.try(t.Context(), script("true")).err, sandboxcore.CodeUnknownOutcome)
		})
	}
}

// TestServiceFaults: throttling is waited out, silence about a start is an unknown outcome and never a second start.
func TestServiceFaults(t *testing.T) {
	ok := func(lines []string) []ssmpeer.State {
		return []ssmpeer.State{{Status: "Success", Stdout: played(lines, 0, "x")}}
	}
	on := func(action string, times int, f ssmpeer.Fault) func(string, int) *ssmpeer.Fault {
		return func(a string, n int) *ssmpeer.Fault {
			if a == action && n <= times {
				return &f
			}
			return nil
		}
	}
	throttled := ssmpeer.Fault{Code: "ThrottlingException", Message: "Rate exceeded"}
	for name, test := range map[string]struct {
		fault func(string, int) *ssmpeer.Fault
		sends int // of runs that were accepted or may have been
		code  sandboxcore.Code
		says  string
	}{
		"send throttled":        {on("ssm:SendCommand", 5, throttled), 6, "", ""},
		"send throttled on":     {on("ssm:SendCommand", 100, throttled), 8, sandboxcore.CodeUnreachable, "throttles"},
		"poll throttled":        {on("ssm:GetCommandInvocation", 12, throttled), 1, "", ""},
		"poll 500":              {on("ssm:GetCommandInvocation", 5, ssmpeer.Fault{Code: "InternalServerError", Status: 500}), 1, "", ""},
		"poll dropped":          {on("ssm:GetCommandInvocation", 5, ssmpeer.Fault{Drop: true}), 1, "", ""},
		"poll denied":           {on("ssm:GetCommandInvocation", 100, ssmpeer.Fault{Code: "AccessDeniedException", Message: "not authorized"}), 2, sandboxcore.CodeUnknownOutcome, "ssm:GetCommandInvocation"},
		"poll expired":          {on("ssm:GetCommandInvocation", 100, ssmpeer.Fault{Code: "ExpiredTokenException"}), 2, sandboxcore.CodeUnknownOutcome, "expired"},
		"send denied":           {on("ssm:SendCommand", 100, ssmpeer.Fault{Code: "AccessDeniedException", Message: "no"}), 1, sandboxcore.CodeIdentity, "ssm:SendCommand"},
		"send dropped":          {on("ssm:SendCommand", 1, ssmpeer.Fault{DropAfter: true}), 2, sandboxcore.CodeUnknownOutcome, "not known whether"},
		"send 500":              {on("ssm:SendCommand", 1, ssmpeer.Fault{Code: "InternalServerError", Status: 500}), 2, sandboxcore.CodeUnknownOutcome, "not known whether"},
		"gone between":          {on("ssm:SendCommand", 1, ssmpeer.Fault{Code: "InvalidInstanceId", Message: "not in a valid state"}), 1, sandboxcore.CodeGone, "not registered"},
		"cancel denied in kill": {on("ssm:CancelCommand", 100, ssmpeer.Fault{Code: "AccessDeniedException"}), 1, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, m, _ := onClock(t, ok)
			p.peer.ForgetJournal()
			p.peer.Lock()
			p.peer.Fault = test.fault
			p.peer.Unlock()
			o := m.try(t.Context(), script("true"))
			if test.code == "" {
				if o.err != nil || o.stdout != "x" {
					t.Errorf("%+v", o)
				}
			} else {
				refused(t, o.err, test.code, test.says)
			}
			if n := p.peer.Count("ssm:SendCommand"); n != test.sends {
				t.Errorf("%d times SendCommand, want %d", n, test.sends)
			}
		})
	}
}

// TestTimeouts: both times of SSM come from the policy, in the form and the range that it takes.
func TestTimeouts(t *testing.T) {
	p, m, _ := onClock(t, func(lines []string) []ssmpeer.State {
		return []ssmpeer.State{{Status: "Success", Stdout: played(lines, 0, "")}}
	})
	for timeout, want := range map[time.Duration]string{time.Second: "30/31.2", 45 * time.Second: "45/75.2", time.Hour: "60/3630.2", 47 * time.Hour: "60/169230.2"} {
		p.peer.ForgetJournal()
		req := script("true")
		req.Timeout = timeout
		if o := m.try(t.Context(), req); o.err != nil {
			t.Fatal(o.err)
		}
		var delivery, execution float64
		for _, c := range p.peer.Journal() {
			if c.Action == "ssm:SendCommand" {
				delivery, _ = c.Params["TimeoutSeconds"].(float64)
				parameters, _ := c.Params["Parameters"].(map[string]any)
				list, _ := parameters["executionTimeout"].([]any)
				if _, err := fmt.Sscan(fmt.Sprint(list[0]), &execution); err != nil {
					t.Fatal(err)
				}
			}
		}
		var wantDelivery, wantExecution float64
		if _, err := fmt.Sscanf(want, "%f/%f", &wantDelivery, &wantExecution); err != nil {
			t.Fatal(err)
		}
		if delivery != wantDelivery || execution < wantExecution || execution > wantExecution+1 {
			t.Errorf("%s: delivery %v, execution %v", timeout, delivery, execution)
		}
	}
	errs := (&backend{}).Validate(profile(func(p *sandboxcore.Profile) { p.Policy.Timeout = 172_800 }))
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "172740") {
		t.Errorf("%v", errs)
	}
}

// TestAMachineThatCannotRun: each way of being away has its own diagnostic, and is no error before something must run.
func TestAMachineThatCannotRun(t *testing.T) {
	p := newPlace(t)
	for ping, says := range map[string]string{"ConnectionLost": "lost the connection", "Inactive": "registration is inactive"} {
		p.peer.AddMachine(ssmpeer.Machine{ID: testMachine, Ping: ping})
		at, err := p.engine.Attach(t.Context(), p.spec(), sandboxcore.DefaultPrincipal())
		if err != nil || at.Status != sandboxcore.StatusAway || at.Details["ping_status"] != ping {
			t.Fatalf("%+v %v", at, err)
		}
		_, err = p.run(t.Context(), sandboxcore.ExecRequest{Kind: sandboxcore.RunScript, Text: []byte("true"), Binding: &at.Binding})
		refused(t, err, sandboxcore.CodeStopped, says, testMachine)
	}
	p.peer.AddMachine(ssmpeer.Machine{ID: testMachine, Platform: "Windows"})
	_, err := p.run(t.Context(), sandboxcore.ExecRequest{Kind: sandboxcore.RunScript, Text: []byte("true")})
	refused(t, err, sandboxcore.CodeOperation, "Windows")
	p.peer.RemoveMachine(testMachine)
	_, err = p.engine.Attach(t.Context(), p.spec(), sandboxcore.DefaultPrincipal())
	refused(t, err, sandboxcore.CodeGone, testMachine, "eu-west-1")
	if n := p.peer.Count("ssm:SendCommand"); n != 0 {
		t.Errorf("%d commands were sent", n)
	}
	// A hybrid machine is one like the others.
	const hybrid = "mi-0123456789abcdef0"
	p.peer.AddMachine(ssmpeer.Machine{ID: hybrid})
	b := p.bind(p.spec(with(keyAttachTo, hybrid)), sandboxcore.DefaultPrincipal())
	if b.ID != "ec2_ssm/"+hybrid || b.Endpoint != ssmpeer.Account+"/eu-west-1" {
		t.Errorf("%+v", b)
	}
	if res, err := p.run(t.Context(), sandboxcore.ExecRequest{Kind: sandboxcore.RunScript, Text: []byte("echo hi"), Binding: &b}); err != nil || res.Stdout.Text != "hi\n" {
		t.Errorf("%v %v", res, err)
	}
}

// TestSecrets: SSM keeps what it is given, so secrets are refused before anything is sent.
func TestSecrets(t *testing.T) {
	p := newPlace(t)
	req := sandboxcore.ExecRequest{Kind: sandboxcore.RunScript, Text: []byte("echo $T"), SecretEnv: map[string]string{"T": "token"}}
	_, err := p.run(t.Context(), req)
	refused(t, err, sandboxcore.CodeOperation, "command history")
	_, err = p.run(t.Context(), sandboxcore.ExecRequest{Kind: sandboxcore.RunScript, Text: []byte("true"), EnvWO: map[string]string{"T": "canary-wo"}})
	refused(t, err, sandboxcore.CodeOperation, "command history")
	if p.peer.Count("ssm:SendCommand") != 0 {
		t.Error("something was sent")
	}
	b := p.bind(p.spec(with(keyAllowSecrets, true)), sandboxcore.DefaultPrincipal())
	req.Binding = &b
	res, err := p.run(t.Context(), req)
	if err != nil || res.Stdout.Text != "***\n" {
		t.Errorf("%q %v", res.Stdout.Text, err)
	}
}

// TestUnreachable: nobody answers, or somebody else does.
func TestUnreachable(t *testing.T) {
	p := newPlace(t)
	p.peer.Close()
	p.peer = ssmpeer.New()
	t.Cleanup(p.peer.Close)
	_, err := p.engine.Attach(t.Context(), p.spec(), sandboxcore.DefaultPrincipal())
	refused(t, err, sandboxcore.CodeUnreachable, "did not answer")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = p.engine.Attach(ctx, p.spec(), sandboxcore.DefaultPrincipal())
	if sandboxcore.CodeOf(err) == "" {
		t.Errorf("%v", err)
	}
	// A wrong secret: the peer checks signatures.
	q := newPlace(t)
	q.key.SecretKey = "wrong"
	b, err := newBackend(settings(q.peer, q.key), nil)
	if err != nil {
		t.Fatal(err)
	}
	e, _ := b.Connect(t.Context())
	_, err = e.Identity(t.Context())
	refused(t, err, sandboxcore.CodeIdentity, "signature")
	if bb, ok := b.(*backend); ok {
		bb.close()
	}
}
