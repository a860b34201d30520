//go:build linux

package ec2ssm

import (
	"context"
	"encoding/base64"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/ssmpeer"
)

// TestOutputThatBreaksOff: once the end of a run is known, output that cannot be fetched is left out and counted, the exit
// status stands, and what was to run on does.
func TestOutputThatBreaksOff(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context())
	mark := "ANCHOR_OF_TEST=" + newRunID()
	for name, fault := range map[string]ssmpeer.Fault{
		"denied":  {Code: "AccessDeniedException", Message: "no"},
		"dropped": {DropAfter: true},
	} {
		t.Run(name, func(t *testing.T) {
			p.peer.ForgetJournal()
			p.peer.Lock()
			p.peer.Fault = func(action string, n int) *ssmpeer.Fault {
				if action == "ssm:SendCommand" && n == 3 {
					return &fault
				}
				return nil
			}
			p.peer.Unlock()
			req := script(`export ` + mark + `; sleep 300 >/dev/null 2>&1 & head -c 100000 /dev/zero | tr '\0' a; echo oops >&2; exit 4`)
			req.KeepBackground = true
			o := m.try(t.Context(), req)
			alive := ssmpeer.Marked(mark)
			for _, pid := range alive {
				_ = exec.CommandContext(t.Context(), "kill", "-9", strconv.Itoa(pid)).Run()
			}
			if o.err != nil || o.ExitCode != 4 || o.stderr != "oops\n" {
				t.Errorf("%v, exit %d, %q", o.err, o.ExitCode, o.stderr)
			}
			if n := int64(len(o.stdout)); n < pageBytes || n+o.StdoutLost != 100_000 || o.StdoutLost == 0 || o.StderrLost != 0 {
				t.Errorf("%d bytes here, %d and %d lost", n, o.StdoutLost, o.StderrLost)
			}
			if !strings.Contains(o.Notice, "Output could not be brought back whole: ") || strings.Contains(o.Notice, "output_s3") {
				t.Errorf("the notice is %q", o.Notice)
			}
			if len(alive) != 1 {
				t.Errorf("of what was to run on is alive: %v", alive)
			}
			nothingLeft(t)
		})
	}
}

// TestOutputBeyondTheBucket: the files on the machine go, what was to run on stays, and the advice is none that was taken.
func TestOutputBeyondTheBucket(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context(), with(keyOutputS3, map[string]any{keyBucket: "the-bucket"}))
	mark := "ANCHOR_OF_TEST=" + newRunID()
	total := int64(wholeBytes + 1000)
	req := script(`export ` + mark + `; sleep 300 >/dev/null 2>&1 & head -c ` + strconv.FormatInt(total, 10) + ` /dev/zero`)
	req.KeepBackground = true
	o := m.try(t.Context(), req)
	alive := ssmpeer.Marked(mark)
	for _, pid := range alive {
		_ = exec.CommandContext(t.Context(), "kill", "-9", strconv.Itoa(pid)).Run()
	}
	if o.err != nil || int64(len(o.stdout)) != wholeBytes || o.StdoutLost != 1000 {
		t.Errorf("%v, %d bytes here, %d lost", o.err, len(o.stdout), o.StdoutLost)
	}
	if !strings.Contains(o.Notice, "1000 of") || strings.Contains(o.Notice, "Set output_s3") {
		t.Errorf("the notice is %q", o.Notice)
	}
	if len(alive) != 1 {
		t.Errorf("of what was to run on is alive: %v", alive)
	}
	nothingLeft(t)
}

// TestNothingOfAnUploadStays: what went ahead is removed when the run itself is refused, or a piece of it was not answered.
func TestNothingOfAnUploadStays(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context())
	req := script("true")
	req.Stdin = make([]byte, 60_000) // three pieces go ahead or two, and the run follows
	if o := m.try(t.Context(), req); o.err != nil {
		t.Fatal(o.err)
	}
	last := p.peer.Count("ssm:SendCommand")
	for name, test := range map[string]struct {
		at    int
		fault ssmpeer.Fault
		code  sandboxcore.Code
	}{
		"run refused":  {last, ssmpeer.Fault{Code: "AccessDeniedException", Message: "no"}, sandboxcore.CodeIdentity},
		"run dropped":  {last, ssmpeer.Fault{Drop: true}, sandboxcore.CodeUnknownOutcome},
		"second piece": {2, ssmpeer.Fault{Code: "AccessDeniedException", Message: "no"}, sandboxcore.CodeIdentity},
	} {
		t.Run(name, func(t *testing.T) {
			p.peer.ForgetJournal()
			p.peer.Lock()
			p.peer.Fault = func(action string, n int) *ssmpeer.Fault {
				if action == "ssm:SendCommand" && n == test.at {
					return &test.fault
				}
				return nil
			}
			p.peer.Unlock()
			o := m.try(t.Context(), req)
			refused(t, o.err, test.code)
			if test.code == sandboxcore.CodeUnknownOutcome && !strings.Contains(o.err.Error(), "could not be confirmed") {
				t.Errorf("a command that may still start counts as ended: %v", o.err)
			}
			nothingLeft(t)
		})
	}
}

// TestUndeliveredRun: the run proved never to have started, and what went ahead of it is removed.
func TestUndeliveredRun(t *testing.T) {
	cleaned := 0
	_, m, _ := onClock(t, func(lines []string) []ssmpeer.State {
		text := strings.Join(lines, "\n")
		switch {
		case isRun(lines):
			return []ssmpeer.State{{Status: "TimedOut", Details: "DeliveryTimedOut", Code: -1}}
		case strings.Contains(text, "say stored"):
			id := idLine.FindStringSubmatch(text)[1]
			return []ssmpeer.State{{Status: "Success", Stdout: reportMark + " " + id + " stored\n"}}
		}
		cleaned++
		return []ssmpeer.State{{Status: "Success", Stdout: played(lines, 0, "")}}
	})
	req := script("true")
	req.Stdin = make([]byte, 60_000)
	refused(t, m.try(t.Context(), req).err, sandboxcore.CodeUnreachable, "Nothing ran")
	if cleaned != 1 {
		t.Errorf("removed %d times", cleaned)
	}
}

// TestCancelRefused: a command that could not be cancelled may still start, whatever the machine says now.
func TestCancelRefused(t *testing.T) {
	p, m, _ := onClock(t, func(lines []string) []ssmpeer.State {
		if isRun(lines) {
			return []ssmpeer.State{{Unknown: true}}
		}
		return []ssmpeer.State{{Status: "Success", Stdout: played(lines, 0, "")}}
	})
	refused(t, m.try(t.Context(), script("true")).err, sandboxcore.CodeUnknownOutcome, "Every process of it was ended")
	p.peer.Lock()
	p.peer.Fault = func(action string, _ int) *ssmpeer.Fault {
		if action == "ssm:CancelCommand" {
			return &ssmpeer.Fault{Code: "AccessDeniedException"}
		}
		return nil
	}
	p.peer.Unlock()
	refused(t, m.try(t.Context(), script("true")).err, sandboxcore.CodeUnknownOutcome, "could not be confirmed")
}

// TestRunAsIsNeverDropped: a name that does not fit is an error and never stands for the user of the agent, which is root.
func TestRunAsIsNeverDropped(t *testing.T) {
	m := newPlace(t).on(t.Context())
	who := sandboxcore.DefaultPrincipal()
	for _, name := range []string{"a b", "-u", "a;id", "a\nb"} {
		who.EC2SSM = &sandboxcore.EC2SSMPrincipal{RunAs: name}
		user, err := m.userOf(who)
		refused(t, err, sandboxcore.CodeIdentity, "no name of a user")
		if user != "" {
			t.Errorf("%q became %q", name, user)
		}
	}
}

// lateClock is a fake clock whose sleepers notice that a deadline has passed on it.
type lateClock struct{ *fakeClock }

func (c lateClock) Sleep(ctx context.Context, d time.Duration) error {
	_ = c.fakeClock.Sleep(ctx, d)
	if end, ok := ctx.Deadline(); ok && c.Now().After(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

var pageLine = regexp.MustCompile(`(?m)^say page out (\d+) (\d+)$`)

// TestSlowService: all of the output that is promised comes back, also where every command takes its time.
func TestSlowService(t *testing.T) {
	clock := lateClock{newFakeClock()}
	p := newPlace(t, func(b *backend) { b.clock, b.timings = clock, defaultTimings() })
	p.machine.Script = func(lines []string) []ssmpeer.State {
		text := strings.Join(lines, "\n")
		id := idLine.FindStringSubmatch(text)[1]
		say := reportMark + " " + id + " "
		answer := func(head string, n int) string {
			return say + head + "\n" + base64.StdEncoding.EncodeToString(make([]byte, n)) + "\n" + say + "out\n"
		}
		states := slices.Repeat([]ssmpeer.State{{Status: "InProgress"}}, 8) // about 15 s
		if isRun(lines) {
			return append(states, ssmpeer.State{Status: "Success", Stdout: answer(fmt.Sprintf("exit 0 late 0 left 0 alive 0 from 1 to 2 out %d err 0 here %d 0", mostPaged, pageBytes), pageBytes) + say + "err\n" + say + "done\n"})
		}
		m := pageLine.FindStringSubmatch(text)
		if m == nil {
			t.Errorf("a command that is neither run nor page: %s", text)
			return []ssmpeer.State{{Status: "Failed"}}
		}
		n, err := strconv.Atoi(m[2])
		if err != nil {
			t.Error(err)
		}
		return append(states, ssmpeer.State{Status: "Success", Stdout: answer("page out "+m[1]+" "+m[2], n) + say + "done\n"})
	}
	from := clock.Now()
	res, err := p.run(t.Context(), sandboxcore.ExecRequest{Kind: sandboxcore.RunScript, Text: []byte("true"), Timeout: time.Minute})
	if err != nil || res.Stdout.Bytes != mostPaged || res.Notice != "" {
		t.Errorf("%v, %d bytes, %q", err, res.Stdout.Bytes, res.Notice)
	}
	if took := clock.Now().Sub(from); took < 3*time.Minute {
		t.Errorf("the service was not slow: %s", took)
	}
}

// TestFinishTimeCountsEveryCommand: no request takes more commands to get there than its time was reckoned with, whatever
// the way there adds to it.
func TestFinishTimeCountsEveryCommand(t *testing.T) {
	m := &machine{e: &endpoint{timings: defaultTimings()}}
	k := errand{id: testID(), runAs: "alice"}
	least := m.FinishTime(sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Timeout: time.Minute})
	check := func(what string, req sandboxcore.RunRequest) {
		t.Helper()
		req.Timeout = time.Minute
		load, err := newPayload(k, req)
		if err != nil {
			t.Fatal(err)
		}
		ahead, _ := uploads(k, load.encoded)
		if reckoned := int((m.FinishTime(req)-least)/slowCommand) + 1; len(ahead)+1 > reckoned {
			t.Errorf("%s: %d commands, reckoned with %d", what, len(ahead)+1, reckoned)
		}
	}
	for n := 20_000; n < 24_000; n += 50 {
		check(fmt.Sprint("text of ", n), sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: make([]byte, n), WorkingDirectory: "/somewhere"})
	}
	quotes := strings.Repeat("'", 15_000)
	check("variable of quotes", sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Env: map[string]string{"V": quotes}})
	check("argument of quotes", sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"true", quotes}})
	check("much of everything", sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"true", quotes}, Env: map[string]string{"V": quotes}, Stdin: make([]byte, 100_000)})
	many := map[string]string{}
	for i := range 3000 {
		many[fmt.Sprint("V", i)] = ""
	}
	check("many variables", sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Env: many})
}
