//go:build linux

package ec2ssm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/ssmpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// nothingLeft fails when a directory of a run of this process is left on the machine.
func nothingLeft(t *testing.T) {
	t.Helper()
	found, err := filepath.Glob(placePrefix + testID()[:8] + "*")
	if err != nil || len(found) > 0 {
		t.Errorf("left behind: %v %v", found, err)
	}
}

func TestRunThroughTheEngine(t *testing.T) {
	p := newPlace(t)
	res, err := p.run(t.Context(), sandboxcore.ExecRequest{
		Kind: sandboxcore.RunScript, Text: []byte("echo $A; cat; echo oops >&2; exit 0"), Env: map[string]string{"A": "it's $HOME `x` \"y\""}, Stdin: []byte("in\x00put"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if string(res.Stdout.Raw) != "it's $HOME `x` \"y\"\nin\x00put" || string(res.Stderr.Raw) != "oops\n" {
		t.Errorf("%q %q", res.Stdout.Raw, res.Stderr.Raw)
	}
	nothingLeft(t)
	if got := strings.Join(p.peer.Actions(), " "); got != "ssm:DescribeInstanceInformation ssm:GetCommandInvocation ssm:SendCommand sts:GetCallerIdentity" {
		t.Errorf("calls %s", got)
	}
}

// TestEveryExitStatus: 0 to 255 are results of the program, and the machine's own response code says the same.
func TestEveryExitStatus(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context())
	for _, code := range []int{0, 1, 2, 3, 63, 64, 125, 126, 127, 128, 130, 137, 143, 200, 254, 255} {
		o := m.try(t.Context(), script(fmt.Sprintf("exit %d", code)))
		if o.err != nil || o.ExitCode != code || o.stdout != "" || o.stderr != "" {
			t.Errorf("exit %d: %+v", code, o)
		}
	}
	if o := m.try(t.Context(), script("kill -TERM $$")); o.err != nil || o.ExitCode != 143 {
		t.Errorf("a signal: %+v", o)
	}
}

// TestCodeOfAnyContent: nothing in code can end it early or be read by the shell that carries it.
func TestCodeOfAnyContent(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context())
	for name, text := range map[string]string{
		"quotes":        `'"` + "`'\"'\\''",
		"substitutions": "$(touch /tmp/pwned) ${IFS} $$ `id`",
		"delimiters":    "EOF\nAK_SANDBOX_EOF\nAKSSM1 x done\n'\nexit 9\n",
		"line ends":     "a\r\nb\rc\n",
		"non-ASCII":     "ü € 🚀 \u202e",
		"interpolation": "{{ssm:secret}} {{ global:DATE }} {{commands}}",
		"percent":       "%s %n \\n \\0",
	} {
		t.Run(name, func(t *testing.T) {
			code := "import sys\nsys.stdout.buffer.write(" + pythonBytes(text) + ")\n# " + strings.ReplaceAll(text, "\n", "\n# ")
			code = strings.ReplaceAll(code, "\r", "")
			o := m.try(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: "python", Text: []byte(code), Timeout: 30 * time.Second})
			if o.err != nil || o.ExitCode != 0 || o.stdout != text {
				t.Errorf("%+v", o)
			}
			// The same as an argument, as a variable and over standard input.
			o = m.try(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"printf", "%s", text}, Timeout: 30 * time.Second})
			if o.err != nil || o.stdout != text {
				t.Errorf("argument: %+v", o)
			}
			req := script(`printf %s "$V"; cat`)
			req.Env, req.Stdin = map[string]string{"V": text}, []byte(text+"\x00")
			if o = m.try(t.Context(), req); o.err != nil || o.stdout != text+text+"\x00" {
				t.Errorf("variable and input: %+v", o)
			}
		})
	}
	// A script with a NUL in it: what sh makes of it is its own affair, but it arrives.
	o := m.try(t.Context(), sandboxcore.RunRequest{
		Kind: sandboxcore.RunCode, Language: "python", Text: []byte("print(1)\r\nprint('ü')\r\n"), Timeout: 30 * time.Second,
	})
	if o.err != nil || o.stdout != "1\nü\n" {
		t.Errorf("%+v", o)
	}
	o = m.try(t.Context(), script("cat \"$0\" | wc -c\n#\x00\x00"))
	if o.err != nil || strings.TrimSpace(o.stdout) != "20" {
		t.Errorf("NUL: %+v", o)
	}
	if _, err := os.Stat("/tmp/pwned"); err == nil {
		t.Error("a part of the code was run by the shell that carries it")
	}
}

func pythonBytes(s string) string {
	var b strings.Builder
	b.WriteString("b'")
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, "\\x%02x", c)
	}
	return b.String() + "'"
}

// TestPythonIsMain: code runs as python -c would run it.
func TestPythonIsMain(t *testing.T) {
	m := newPlace(t).on(t.Context())
	o := m.try(t.Context(), sandboxcore.RunRequest{
		Kind: sandboxcore.RunCode, Language: "python", Timeout: 30 * time.Second,
		Text: []byte("import sys, os\nprint(__name__, sys.argv, sys.path[0] == '', 'AGENTKERNEL_CODE' in os.environ)\nclass A: pass\nimport pickle; pickle.dumps(A())\nsys.exit(7)"),
	})
	if o.err != nil || o.ExitCode != 7 || o.stdout != "__main__ ['-c'] True False\n" {
		t.Errorf("%+v", o)
	}
}

func TestWorkingDirectoryAndProgram(t *testing.T) {
	m := newPlace(t).on(t.Context())
	dir := filepath.Join(t.TempDir(), "it's -here")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	req := script("pwd")
	req.WorkingDirectory = dir
	if o := m.try(t.Context(), req); o.err != nil || o.stdout != dir+"\n" {
		t.Errorf("%+v", o)
	}
	for _, dir := range []string{"/no/such/place", "-", "$HOME", "~"} {
		req.WorkingDirectory = dir
		refused(t, m.try(t.Context(), req).err, sandboxcore.CodeValue, "working_directory", "Nothing ran")
	}
	o := m.try(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"no-such-program"}, Timeout: time.Minute})
	refused(t, o.err, sandboxcore.CodeOperation, "Nothing ran")
	req = script("true")
	req.Env = map[string]string{"a-b": "x"}
	refused(t, m.try(t.Context(), req).err, sandboxcore.CodeValue, "a-b")
}

// TestLargeInput: more than one command holds goes ahead in pieces; more than the limit is refused with the number.
func TestLargeInput(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context())
	req := script("sha256sum | cut -c1-8; wc -c <\"$0\"")
	req.Stdin = bytes.Repeat([]byte{0, 1, 2, 255}, 30_000)
	o := m.try(t.Context(), req)
	if o.err != nil || !strings.HasSuffix(strings.TrimSpace(o.stdout), "34") {
		t.Fatalf("%+v", o)
	}
	if n := p.peer.Count("ssm:SendCommand"); n < 5 || n > 7 {
		t.Errorf("%d commands", n)
	}
	_, err := p.run(t.Context(), sandboxcore.ExecRequest{Kind: sandboxcore.RunScript, Text: bytes.Repeat([]byte("#"), maxInput+1)})
	refused(t, err, sandboxcore.CodeValue, fmt.Sprint(maxInput+1), fmt.Sprint(maxInput))
}

func TestOutputBeyondTheLimits(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context())
	o := m.try(t.Context(), script(`head -c 100000 /dev/zero | tr '\0' a; head -c 20000 /dev/zero | tr '\0' b >&2; exit 4`))
	if o.err != nil || o.ExitCode != 4 || o.stdout != strings.Repeat("a", 100_000) || o.stderr != strings.Repeat("b", 20_000) || o.StdoutLost+o.StderrLost != 0 {
		t.Errorf("%d %d %v %+v", len(o.stdout), len(o.stderr), o.err, o.RunResult)
	}
	// 10 MB: what is left out is counted and told.
	res, err := p.run(t.Context(), sandboxcore.ExecRequest{Kind: sandboxcore.RunScript, Text: []byte(`head -c 10000000 /dev/zero | tr '\0' a`)})
	if err != nil || !res.Stdout.Truncated || !strings.Contains(res.Stdout.Text, "more bytes were not brought back") || !strings.Contains(res.Notice, "10000000") {
		t.Errorf("%v %v %s", err, res.Stdout.Truncated, res.Notice)
	}
	nothingLeft(t)
}

func TestOutputThroughS3(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context(), with(keyOutputS3, map[string]any{keyBucket: "the-bucket", keyPrefix: "runs!/it's_(1)*-.x"}))
	o := m.try(t.Context(), script(`head -c 10000000 /dev/zero | tr '\0' a; head -c 50000 /dev/zero | tr '\0' b >&2`))
	if o.err != nil || len(o.stdout) != 10_000_000 || len(o.stderr) != 50_000 || o.StdoutLost != 0 {
		t.Errorf("%d %d %v", len(o.stdout), len(o.stderr), o.err)
	}
	if p.peer.Count("s3:GetObject") != 1 || p.peer.Count("ssm:SendCommand") != 1 {
		t.Errorf("calls %v", p.peer.Actions())
	}
	codes := map[int]string{403: "AccessDenied", 404: "NoSuchKey", 301: "PermanentRedirect", 400: "AuthorizationHeaderMalformed", 503: "SlowDown", 500: "InternalError"}
	for status, test := range map[int]struct {
		times int
		says  string
	}{
		400: {9, "region in output_s3"}, 403: {9, "put nothing there"}, 404: {9, "s3:PutObject"}, 301: {9, "region in output_s3"}, 503: {9, "later"}, 500: {2, ""},
	} {
		p.peer.ForgetJournal()
		p.peer.Lock()
		p.peer.Fault = func(action string, n int) *ssmpeer.Fault {
			if action == "s3:GetObject" && n <= test.times {
				return &ssmpeer.Fault{Code: codes[status], Status: status}
			}
			return nil
		}
		p.peer.Unlock()
		o = m.try(t.Context(), script(`head -c 100000 /dev/zero | tr '\0' a; echo hi >&2; exit 5`))
		if test.says != "" {
			// How it ended is known, and what SSM keeps itself is here; the rest is counted, and it is told what to mend.
			n := int64(len(o.stdout))
			if o.err != nil || o.ExitCode != 5 || n < 10_000 || n+o.StdoutLost != 100_000 || o.StderrLost != 3 || strings.Trim(o.stdout, "a") != "" || !strings.Contains(o.Notice, test.says) {
				t.Errorf("%d: %v, exit %d, %d bytes here, %d and %d lost, %q", status, o.err, o.ExitCode, n, o.StdoutLost, o.StderrLost, o.Notice)
			}
		} else if o.err != nil || len(o.stdout) != 100_000 {
			t.Errorf("%d: %v, %d bytes", status, o.err, len(o.stdout))
		}
	}
}

// TestTimeoutKillsTheTree: after a timeout nothing of the run is alive, not even what left its session and its parents.
func TestTimeoutKillsTheTree(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context())
	mark := "ANCHOR_OF_TEST=" + newRunID()
	req := script(`export ` + mark + `; trap '' TERM HUP; sleep 300 & setsid sleep 301 & (setsid sh -c 'sleep 302 & sleep 303' &) ; echo up; sleep 304`)
	req.Timeout = time.Second
	o := m.try(t.Context(), req)
	refused(t, o.err, sandboxcore.CodeTimeout, "1s", "Every process of it was ended")
	if o.stdout != "up\n" {
		t.Errorf("the output until then is %q", o.stdout)
	}
	if alive := ssmpeer.Marked(mark); len(alive) != 0 {
		t.Errorf("alive after the timeout: %v", alive)
	}
	nothingLeft(t)
}

// TestCancelKillsOnTheMachine: CancelCommand ends the script only; the kill on the machine ends the rest, and is confirmed.
func TestCancelKillsOnTheMachine(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context())
	mark := "ANCHOR_OF_TEST=" + newRunID()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan outcome, 1)
	go func() {
		done <- m.try(ctx, script(`export `+mark+`; setsid sleep 300 & sleep 301`))
	}()
	for len(ssmpeer.Marked(mark)) < 2 {
		select {
		case o := <-done:
			t.Fatalf("%+v", o)
		case <-time.After(20 * time.Millisecond):
		}
	}
	cancel()
	o := <-done
	refused(t, o.err, sandboxcore.CodeUnknownOutcome, "Every process of it was ended")
	if alive := ssmpeer.Marked(mark); len(alive) != 0 {
		t.Errorf("alive after the cancellation: %v", alive)
	}
	if p.peer.Count("ssm:CancelCommand") == 0 {
		t.Error("the command was not cancelled")
	}
	nothingLeft(t)
}

func TestBackgroundProcesses(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context())
	mark := "ANCHOR_OF_TEST=" + newRunID()
	o := m.try(t.Context(), script(`export `+mark+`; sleep 300 & setsid sleep 301 & echo up`))
	if o.err != nil || o.stdout != "up\n" || o.LeftoversKilled != 2 || len(ssmpeer.Marked(mark)) != 0 {
		t.Errorf("%+v, alive %v", o, ssmpeer.Marked(mark))
	}
	req := script(`export ` + mark + `; sleep 300 & echo up`)
	req.KeepBackground = true
	o = m.try(t.Context(), req)
	alive := ssmpeer.Marked(mark)
	if o.err != nil || len(alive) != 1 {
		t.Errorf("%+v, alive %v", o, alive)
	}
	for _, pid := range alive {
		_ = exec.CommandContext(t.Context(), "kill", "-9", fmt.Sprint(pid)).Run()
	}
}

// TestRunAs: the code really runs as that user, whose name is checked, and who must exist.
func TestRunAs(t *testing.T) {
	u := otherUser(t)
	p := newPlace(t)
	who := sandboxcore.DefaultPrincipal()
	who.EC2SSM = &sandboxcore.EC2SSMPrincipal{RunAs: u.Username}
	res, err := p.run(t.Context(), sandboxcore.ExecRequest{
		Kind: sandboxcore.RunScript, Text: []byte("id -u; echo $USER; cat; echo x >/dev/stderr; cat /etc/shadow"), Stdin: []byte("in"), Principal: who, SuccessExitCodes: []int{1},
	})
	if err != nil || !strings.HasPrefix(res.Stdout.Text, u.Uid+"\n"+u.Username+"\nin") || !strings.Contains(res.Stderr.Text, "x\n") {
		t.Fatalf("%v %q %q", err, res.Stdout.Text, res.Stderr.Text)
	}
	res, err = p.run(t.Context(), sandboxcore.ExecRequest{Kind: sandboxcore.RunCode, Language: "python", Text: []byte("import os; print(os.getuid(), os.environ['LOGNAME'])"), Principal: who})
	if err != nil || res.Stdout.Text != u.Uid+" "+u.Username+"\n" {
		t.Errorf("%v %q", err, res.Stdout.Text)
	}
	// The tree of another user dies as well.
	mark := "ANCHOR_OF_TEST=" + newRunID()
	_, err = p.run(t.Context(), sandboxcore.ExecRequest{Kind: sandboxcore.RunScript, Text: []byte("export " + mark + "; setsid sleep 300 & sleep 301"), Principal: who, Timeout: time.Second})
	refused(t, err, sandboxcore.CodeTimeout, "Every process")
	if alive := ssmpeer.Marked(mark); len(alive) != 0 {
		t.Errorf("alive: %v", alive)
	}
	who.EC2SSM = &sandboxcore.EC2SSMPrincipal{RunAs: "no-such-user"}
	_, err = p.run(t.Context(), sandboxcore.ExecRequest{Kind: sandboxcore.RunScript, Text: []byte("true"), Principal: who})
	refused(t, err, sandboxcore.CodeIdentity, "no-such-user", "Nothing ran")
	for _, name := range []string{"-u", "a b", "$(id)", "a;id", "ü", "a'", strings.Repeat("a", 33)} {
		who.EC2SSM = &sandboxcore.EC2SSMPrincipal{RunAs: name}
		_, err = p.engine.Attach(t.Context(), p.spec(), who)
		refused(t, err, sandboxcore.CodeIdentity, "no name of a user")
	}
}

// ownMachine makes the machine of p one of its own.
func ownMachine(t *testing.T, p *place, own ssmpeer.Own) *ssmpeer.Machine {
	t.Helper()
	testenv.Require(t, testenv.Root)
	made, err := p.peer.AddOwnMachine(ssmpeer.Machine{ID: testMachine}, own)
	if errors.Is(err, ssmpeer.ErrNoTools) {
		testenv.Skip(t, testenv.Root, err.Error(), "install util-linux")
	}
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func needSudo(t *testing.T, own ssmpeer.Own) {
	t.Helper()
	if _, err := exec.LookPath("sudo"); err != nil && own.Sudoers != "" {
		testenv.Skip(t, testenv.Root, "there is no sudo", "install sudo")
	}
}

// TestRunAsOnAnyAgent: by runuser, by sudo, or because the agent is that user already; and refused where there is no way. The
// machine has users of its own, and nothing is left there.
func TestRunAsOnAnyAgent(t *testing.T) {
	const anything = "agent ALL=(alice) NOPASSWD: ALL\n"
	users := []string{"agent", "alice"}
	for name, test := range map[string]struct {
		own   ssmpeer.Own
		runAs string
		uid   int
		says  string // of the refusal
	}{
		"root and runuser":   {own: ssmpeer.Own{Users: users}, runAs: "alice", uid: ssmpeer.FirstUser + 1},
		"root and sudo":      {own: ssmpeer.Own{Users: users, Sudoers: "root ALL=(ALL) NOPASSWD: ALL\n", Missing: []string{"runuser"}}, runAs: "alice", uid: ssmpeer.FirstUser + 1},
		"another and sudo":   {own: ssmpeer.Own{Users: users, Agent: "agent", Sudoers: anything}, runAs: "alice", uid: ssmpeer.FirstUser + 1},
		"the user itself":    {own: ssmpeer.Own{Users: users, Agent: "agent", Missing: []string{"sudo"}}, runAs: "agent", uid: ssmpeer.FirstUser},
		"sudo of a shell":    {own: ssmpeer.Own{Users: users, Agent: "agent", Sudoers: "agent ALL=(alice) NOPASSWD: /usr/bin/sh, /bin/sh\n"}, runAs: "alice", uid: ssmpeer.FirstUser + 1},
		"sudo of no shell":   {own: ssmpeer.Own{Users: users, Agent: "agent", Sudoers: "agent ALL=(alice) NOPASSWD: /usr/bin/true, /bin/true\n"}, runAs: "alice", says: "cannot become"},
		"sudo without rule":  {own: ssmpeer.Own{Users: users, Agent: "agent"}, runAs: "alice", says: "cannot become"},
		"sudo with password": {own: ssmpeer.Own{Users: users, Agent: "agent", Sudoers: "agent ALL=(alice) ALL\n"}, runAs: "alice", says: "cannot become"},
		"neither":            {own: ssmpeer.Own{Users: users, Agent: "agent", Sudoers: anything, Missing: []string{"sudo"}}, runAs: "alice", says: "cannot become"},
		"nobody of the name": {own: ssmpeer.Own{Users: users}, runAs: "bob", says: "no user"},
	} {
		t.Run(name, func(t *testing.T) {
			needSudo(t, test.own)
			p := newPlace(t)
			machine := ownMachine(t, p, test.own)
			who := sandboxcore.DefaultPrincipal()
			who.EC2SSM = &sandboxcore.EC2SSMPrincipal{RunAs: test.runAs}
			b := p.bind(p.spec(), who)
			run := func(req sandboxcore.ExecRequest) (sandboxcore.ExecResult, error) {
				req.Binding, req.Principal, req.Kind = &b, who, sandboxcore.RunScript
				return p.engine.Exec(t.Context(), req)
			}
			res, err := run(sandboxcore.ExecRequest{
				Text: []byte("id -u; id -g; echo $USER $LOGNAME $HOME \"$V\"; cat; echo err >&2; exit 3"), Stdin: []byte("it's 'AKSSM1-x' $(id)"), Env: map[string]string{"V": "a 'b' \"c\""}, SuccessExitCodes: []int{3},
			})
			if test.says != "" {
				refused(t, err, sandboxcore.CodeIdentity, test.says, "Nothing ran")
			} else {
				want := fmt.Sprintf("%[1]d\n%[1]d\n%[2]s %[2]s /tmp/home-%[2]s a 'b' \"c\"\nit's 'AKSSM1-x' $(id)", test.uid, test.runAs)
				if err != nil || res.Stdout.Text != want || res.Stderr.Text != "err\n" {
					t.Fatalf("%v\n%q\n%q", err, res.Stdout.Text, want)
				}
				// Much of everything, in pieces and pages.
				in := strings.Repeat("0123456789", 8000)
				if res, err = run(sandboxcore.ExecRequest{Text: []byte("cat; head -c 30000 /dev/zero >&2"), Stdin: []byte(in), MaxOutputBytes: 100_000}); err != nil || string(res.Stdout.Raw) != in || res.Stderr.Bytes != 30_000 {
					t.Fatalf("%v, %d and %d bytes, %s", err, res.Stdout.Bytes, res.Stderr.Bytes, res.Notice)
				}
				_, err = run(sandboxcore.ExecRequest{Text: []byte("setsid sleep 3001 & sleep 3002 & sleep 3003"), Timeout: time.Second})
				refused(t, err, sandboxcore.CodeTimeout, "Every process of it was ended")
				cancelledRun(t, p, b, who, machine)
			}
			// Neither a process nor a file of ours is there any more.
			left, err := machine.Sees(t.Context(), "ls -A /tmp; grep -asE '^sleep' /proc/[0-9]*/cmdline | tr '\\0' ' '; grep -alsE 'AGENTKERNEL_(RUN|TIMER)' /proc/[0-9]*/environ; true")
			if err != nil || left != "" {
				t.Errorf("left on the machine: %v\n%s", err, left)
			}
		})
	}
}

// cancelledRun cancels a run when the machine shows that it goes on.
func cancelledRun(t *testing.T, p *place, b sandboxcore.Binding, who sandboxcore.Principal, machine *ssmpeer.Machine) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := p.engine.Exec(ctx, sandboxcore.ExecRequest{Binding: &b, Kind: sandboxcore.RunScript, Text: []byte("setsid sleep 3004 & sleep 3005"), Principal: who})
		done <- err
	}()
	for {
		seen, err := machine.Sees(t.Context(), "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
		if strings.Contains(seen, "sleep 3004") && strings.Contains(seen, "sleep 3005") {
			break
		}
		select {
		case err := <-done:
			t.Fatalf("it ended by itself: %v", err)
		case <-time.After(20 * time.Millisecond):
			_ = err // cat of a process that has just ended
		}
	}
	cancel()
	refused(t, <-done, sandboxcore.CodeUnknownOutcome, "Every process of it was ended")
}
