//go:build linux

package ec2ssm

import (
	"bytes"
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

// shells gives, for each sh that machines have, a PATH that begins with it; busybox brings its other tools along.
func shells(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name, commands := range map[string]string{"dash": "sh", "bash": "sh", "busybox": "sh base64 cat cut grep head id mkdir mv rm sed setsid sha256sum sleep sort stat tail wc"} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Run(name, func(t *testing.T) { testenv.Skip(t, testenv.Local, "there is no "+name, "apt-get install "+name) })
			continue
		}
		dir := t.TempDir()
		for command := range strings.FieldsSeq(commands) {
			if err := os.Symlink(program, filepath.Join(dir, command)); err != nil {
				t.Fatal(err)
			}
		}
		out[name] = dir + ":/usr/local/bin:/usr/bin:/bin"
	}
	return out
}

// TestEveryShell: what runs on the machine is the same for each sh. Amazon Linux and Red Hat have bash for it, Debian and
// Ubuntu dash, Alpine busybox.
func TestEveryShell(t *testing.T) {
	for name, path := range shells(t) {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.machine.Path = path
			m := p.on(t.Context())
			req := script("cat; printf '%s\\n' \"$V\" >&2; setsid sleep 307 & exit 3")
			req.Stdin, req.Env = noise(60_000), map[string]string{"V": "a 'b' \\n $(id) ü", "PATH": path}
			if o := m.try(t.Context(), req); o.err != nil || o.ExitCode != 3 || o.stdout != string(req.Stdin) || o.stderr != req.Env["V"]+"\n" || o.LeftoversKilled != 1 {
				t.Errorf("%v, exit %d, left %d, %d bytes, %q", o.err, o.ExitCode, o.LeftoversKilled, len(o.stdout), o.stderr)
			}
			req = script("setsid sleep 308 & sleep 309")
			req.Timeout = 300 * time.Millisecond
			refused(t, m.try(t.Context(), req).err, sandboxcore.CodeTimeout, "Every process of it was ended")
			file, content := filepath.Join(t.TempDir(), "sub", "it's"), noise(40_000)
			if err := m.WriteFile(t.Context(), file, content, 0o640); err != nil {
				t.Fatal(err)
			}
			back, mode, err := m.ReadFile(t.Context(), file, 1<<20)
			if err != nil || !bytes.Equal(back, content) || mode != 0o640 {
				t.Errorf("%v %o %d bytes", err, mode, len(back))
			}
			if info, err := m.StatFile(t.Context(), file); err != nil || info.SHA256 != sandboxcore.FileDigest(content) {
				t.Errorf("%+v %v", info, err)
			}
			if err := m.RemoveFile(t.Context(), file); err != nil {
				t.Error(err)
			}
			nothingLeft(t)
		})
	}
}

// TestVariablesOfTheShell: a variable that a shell keeps for itself never reaches the program with another value: it is
// refused, by name, before anything is sent.
func TestVariablesOfTheShell(t *testing.T) {
	for name, path := range shells(t) {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.machine.Path = path
			m := p.on(t.Context())
			for _, variable := range []string{
				"UID", "EUID", "PPID", "RANDOM", "SRANDOM", "SECONDS", "LINENO", "OPTIND", "GROUPS", "DIRSTACK", "FUNCNAME", "HISTCMD", "SHELLOPTS", "BASHOPTS", "BASHPID", "BASH_VERSINFO", "BASH_COMMAND", "BASH_SUBSHELL", "BASH_ARGV",
				"EPOCHSECONDS", "EPOCHREALTIME", "SHLVL", "_",
			} {
				sent := p.peer.Count("ssm:SendCommand")
				o := m.try(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"env"}, Env: map[string]string{variable: "a b"}, Timeout: 30 * time.Second})
				refused(t, o.err, sandboxcore.CodeValue, variable)
				if n := p.peer.Count("ssm:SendCommand"); n != sent {
					t.Errorf("%s: %d commands", variable, n-sent)
				}
			}
			// What a shell only reads arrives as it is.
			env := map[string]string{"IFS": "x1", "PS1": "a b", "PWD": "/no", "OLDPWD": "/no", "HOME": "/no", "CDPATH": "/", "ENV": "/no", "BASH_ENV": "/no", "BASH_VERSION": "1", "BASH_X": "a b", "PS4": "$(id)", "OPTARG": "a b", "HOSTNAME": "a b", "COLUMNS": "a"}
			o := m.try(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"/usr/bin/env"}, Env: env, Timeout: 30 * time.Second})
			for k, v := range env {
				if o.err != nil || !strings.Contains(o.stdout, k+"="+v+"\n") {
					t.Errorf("%s is not %q: %v\n%s", k, v, o.err, o.stdout)
				}
			}
		})
	}
}

// TestEnvironmentOfTheAgent: a program finds what the agent has; sudo takes out what its rules do not keep.
func TestEnvironmentOfTheAgent(t *testing.T) {
	for name, test := range map[string]struct {
		own  ssmpeer.Own
		sees bool
	}{
		"runuser": {ssmpeer.Own{Users: []string{"agent", "alice"}}, true},
		"sudo":    {ssmpeer.Own{Users: []string{"agent", "alice"}, Agent: "agent", Sudoers: "agent ALL=(alice) NOPASSWD: ALL\n"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			needSudo(t, test.own)
			p := newPlace(t)
			ownMachine(t, p, test.own)
			who := sandboxcore.DefaultPrincipal()
			who.EC2SSM = &sandboxcore.EC2SSMPrincipal{RunAs: "alice"}
			res, err := p.run(t.Context(), sandboxcore.ExecRequest{Kind: sandboxcore.RunScript, Text: []byte("env"), Principal: who})
			if err != nil || strings.Contains(res.Stdout.Text, p.peer.Mark()) != test.sees {
				t.Errorf("%v\n%s", err, res.Stdout.Text)
			}
		})
	}
}
