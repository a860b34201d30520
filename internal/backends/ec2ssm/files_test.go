//go:build linux

package ec2ssm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/ssmpeer"
)

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.N(256)) // #nosec G115 G404 -- any byte
	}
	return b
}

// TestFiles: what is written is there, byte for byte, and what is read is what is there, whatever it holds and wherever it is.
func TestFiles(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context())
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		"empty": {}, "text": []byte("a\nb\n"), "no end": []byte("x"), "bytes": noise(1000), "one page": noise(pageBytes), "more than a page": noise(pageBytes + 1),
		"in pieces": noise(100_000), "most": noise(maxInput), "it's $(id) `id` {{ssm:x}} \"q\"": []byte("'"), "ü/deep/er": []byte("ü"), "-rf": []byte("-"), " blank ": []byte(" "),
		"percent %s \\n": []byte("%"),
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, name)
			if err := m.WriteFile(t.Context(), file, content, 0o640); err != nil {
				t.Fatal(err)
			}
			there, err := os.ReadFile(file) // #nosec G304 -- of this test
			if err != nil || !bytes.Equal(there, content) {
				t.Fatalf("%v, %d bytes there", err, len(there))
			}
			info, err := m.StatFile(t.Context(), file)
			if want := (sandboxcore.FileInfo{SHA256: sandboxcore.FileDigest(content), Size: int64(len(content)), Mode: 0o640}); err != nil || info != want {
				t.Errorf("%+v, want %+v, %v", info, want, err)
			}
			back, mode, err := m.ReadFile(t.Context(), file, 1<<20)
			if err != nil || !bytes.Equal(back, content) || mode != 0o640 {
				t.Errorf("%v, mode %o, %d bytes back", err, mode, len(back))
			}
			// Again over it, and away.
			if err := m.WriteFile(t.Context(), file, []byte("other"), 0o600); err != nil {
				t.Error(err)
			}
			if back, mode, err = m.ReadFile(t.Context(), file, 5); err != nil || string(back) != "other" || mode != 0o600 {
				t.Errorf("%q %o %v", back, mode, err)
			}
			for range 2 {
				if err := m.RemoveFile(t.Context(), file); err != nil {
					t.Error(err)
				}
			}
			if _, _, err = m.ReadFile(t.Context(), file, 5); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%v", err)
			}
			if _, err = m.StatFile(t.Context(), file); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%v", err)
			}
		})
	}
	nothingLeft(t)
	var left []string
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			left = append(left, path)
		}
		return err
	}); err != nil || len(left) != 0 {
		t.Errorf("%v %v", left, err)
	}
}

// TestFileRefusals: each with its own error, and nothing is changed.
func TestFileRefusals(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context())
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "f"), noise(mostPaged+1), 0o600), os.Symlink("nowhere", filepath.Join(dir, "dangling")), os.Symlink("f", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	read := func(path string, limit int64) error {
		_, _, err := m.ReadFile(t.Context(), path, limit)
		return err
	}
	refused(t, read(dir, 10), sandboxcore.CodeValue, "no regular file")
	refused(t, read(filepath.Join(dir, "dangling"), 10), sandboxcore.CodeValue, "no regular file")
	refused(t, read("/dev/null", 10), sandboxcore.CodeValue, "no regular file")
	refused(t, read(filepath.Join(dir, "f", "below"), 10), sandboxcore.CodeValue, "no regular file")
	refused(t, read(filepath.Join(dir, "link"), 10), sandboxcore.CodeValue, fmt.Sprint(mostPaged+1))
	refused(t, read(filepath.Join(dir, "f"), 1<<20), sandboxcore.CodeValue, fmt.Sprint(mostPaged+1), fmt.Sprint(mostPaged))
	refused(t, m.WriteFile(t.Context(), dir, nil, 0o600), sandboxcore.CodeValue, "no regular file")
	refused(t, m.WriteFile(t.Context(), filepath.Join(dir, "f", "below"), []byte("x"), 0o600), sandboxcore.CodeValue, "may not")
	refused(t, m.WriteFile(t.Context(), filepath.Join(dir, "g"), make([]byte, maxInput+1), 0o600), sandboxcore.CodeValue, fmt.Sprint(maxInput+1))
	refused(t, m.RemoveFile(t.Context(), dir), sandboxcore.CodeValue, "no regular file")
	if err := m.RemoveFile(t.Context(), filepath.Join(dir, "dangling")); err != nil {
		t.Error(err)
	}
	// A large file is hashed where it is.
	if info, err := m.StatFile(t.Context(), filepath.Join(dir, "link")); err != nil || info.Size != mostPaged+1 {
		t.Errorf("%+v %v", info, err)
	}
	p.machine.Ping = "ConnectionLost"
	refused(t, p.on(t.Context()).WriteFile(t.Context(), "f", nil, 0o600), sandboxcore.CodeStopped, "lost the connection")
	nothingLeft(t)
}

// agentsOfAlice are the agents that become the user alice: as root, and by sudo.
var agentsOfAlice = map[string]ssmpeer.Own{
	"root": {Users: []string{"agent", "alice"}},
	"sudo": {Users: []string{"agent", "alice"}, Agent: "agent", Sudoers: "agent ALL=(alice) NOPASSWD: ALL\n"},
}

// asAlice gives a place whose machine has own's agent, and the principal that works there as alice.
func asAlice(t *testing.T, own ssmpeer.Own) (*place, *ssmpeer.Machine, sandboxcore.Principal) {
	t.Helper()
	needSudo(t, own)
	p := newPlace(t)
	machine := ownMachine(t, p, own)
	who := sandboxcore.DefaultPrincipal()
	who.EC2SSM = &sandboxcore.EC2SSMPrincipal{RunAs: "alice"}
	return p, machine, who
}

// TestFilesAsAnotherUser: reading, writing and removing are that user's, on every kind of agent.
func TestFilesAsAnotherUser(t *testing.T) {
	for name, own := range agentsOfAlice {
		t.Run(name, func(t *testing.T) {
			p, machine, who := asAlice(t, own)
			b := p.bind(p.spec(), who)
			sees := func(text string) string {
				t.Helper()
				out, err := machine.Sees(t.Context(), text)
				if err != nil {
					t.Fatalf("%v %s", err, out)
				}
				return out
			}
			sees("mkdir /tmp/home-alice; chown alice: /tmp/home-alice; echo x >/tmp/roots; chmod 600 /tmp/roots; mkdir -m 700 /tmp/closed")
			file := func(path string, content []byte) sandboxcore.FileRequest {
				return sandboxcore.FileRequest{Binding: b, Path: path, Content: content, Principal: who, Mode: 0o600}
			}
			content := noise(50_000)
			if err := p.engine.WriteFile(t.Context(), file("sub/f", content)); err != nil {
				t.Fatal(err)
			}
			if got := sees("stat -c '%U %a' /tmp/home-alice/sub/f /tmp/home-alice/sub; sha256sum </tmp/home-alice/sub/f | cut -c1-64"); got != "alice 600\nalice 755\n"+sandboxcore.FileDigest(content)+"\n" {
				t.Errorf("%s", got)
			}
			if info, err := p.engine.StatFile(t.Context(), file("sub/f", nil)); err != nil || info.SHA256 != sandboxcore.FileDigest(content) {
				t.Errorf("%+v %v", info, err)
			}
			res, err := p.engine.Exec(t.Context(), sandboxcore.ExecRequest{Binding: &b, Kind: sandboxcore.RunScript, Text: []byte("printf made >made"), Principal: who, OutputFiles: []string{"made", "/tmp/home-alice/sub/f"}})
			if err != nil || string(res.Files["made"].Content) != "made" || !bytes.Equal(res.Files["/tmp/home-alice/sub/f"].Content, content) {
				t.Errorf("%v", err)
			}
			for _, path := range []string{"/tmp/roots", "/tmp/closed/f"} {
				_, err := p.engine.StatFile(t.Context(), file(path, nil))
				refused(t, err, sandboxcore.CodeValue, "may not")
			}
			refused(t, p.engine.WriteFile(t.Context(), file("/tmp/closed/f", []byte("x"))), sandboxcore.CodeValue, "may not")
			refused(t, p.engine.RemoveFile(t.Context(), file("/tmp/roots", nil)), sandboxcore.CodeValue, "may not")
			// What cannot be seen is not known to be gone.
			for _, path := range []string{"/tmp/closed/f", "/tmp/closed/deep/f"} {
				refused(t, p.engine.RemoveFile(t.Context(), file(path, nil)), sandboxcore.CodeValue, "may not")
			}
			for _, path := range []string{"/tmp/absent/f", "sub/absent", "sub/f/below"} {
				if err := p.engine.RemoveFile(t.Context(), file(path, nil)); err != nil {
					t.Error(err)
				}
			}
			if err := p.engine.RemoveFile(t.Context(), file("sub/f", nil)); err != nil {
				t.Error(err)
			}
			if got := sees("cat /tmp/roots; cd /tmp; find . -name '.agentkernel*' -o -name f"); got != "x\n" {
				t.Errorf("%s", got)
			}
		})
	}
}

// TestFilesAndSecrets: SSM keeps what it is given, and the limit is told before anything is sent.
func TestFilesAndSecrets(t *testing.T) {
	p := newPlace(t)
	b := p.bind(p.spec(), sandboxcore.DefaultPrincipal())
	req := sandboxcore.FileRequest{Binding: b, Path: "/tmp/x", Content: []byte("canary-content"), Secret: true, Principal: sandboxcore.DefaultPrincipal()}
	refused(t, p.engine.WriteFile(t.Context(), req), sandboxcore.CodeOperation, "command history")
	req.Secret, req.Content = false, make([]byte, maxInput+1)
	refused(t, p.engine.WriteFile(t.Context(), req), sandboxcore.CodeValue, fmt.Sprint(maxInput+1))
	if n := p.peer.Count("ssm:SendCommand"); n != 0 {
		t.Errorf("%d commands", n)
	}
}

// TestFileThatBreaksOff: what was begun is given up, leaves nothing, and is no success.
func TestFileThatBreaksOff(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context())
	file := filepath.Join(t.TempDir(), "f")
	content := noise(100_000)
	if err := m.WriteFile(t.Context(), file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	writes := p.peer.Count("ssm:SendCommand")
	p.peer.ForgetJournal()
	if _, _, err := m.ReadFile(t.Context(), file, 1<<20); err != nil {
		t.Fatal(err)
	}
	reads := p.peer.Count("ssm:SendCommand")
	for name, fault := range map[string]ssmpeer.Fault{
		"denied": {Code: "AccessDeniedException", Message: "no"}, "dropped before": {Drop: true}, "dropped after": {DropAfter: true},
	} {
		for step := range max(writes, reads) {
			p.peer.ForgetJournal()
			p.peer.Lock()
			p.peer.Fault = func(action string, n int) *ssmpeer.Fault {
				if action == "ssm:SendCommand" && n == step+1 {
					return &fault
				}
				return nil
			}
			p.peer.Unlock()
			if step < writes {
				if err := m.WriteFile(t.Context(), file, content[1:], 0o600); sandboxcore.CodeOf(err) == "" {
					t.Errorf("write, %s at %d: %v", name, step, err)
				}
			}
			p.peer.ForgetJournal()
			// A read that may have begun may make its copy after it was given up: nobody knows its command.
			if step < reads && (step > 0 || !fault.DropAfter) {
				if _, _, err := m.ReadFile(t.Context(), file, 1<<20); sandboxcore.CodeOf(err) == "" {
					t.Errorf("read, %s at %d: %v", name, step, err)
				}
			}
		}
	}
	p.peer.Lock()
	p.peer.Fault = nil
	p.peer.Unlock()
	files, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(files) != 1 {
		t.Errorf("%v %v", files, err)
	}
	nothingLeft(t)
	// Cancelled in mid-write: nothing is there but the old file or the new one.
	for after := range 6 {
		ctx, cancel := context.WithCancel(t.Context())
		p.peer.ForgetJournal()
		p.peer.Lock()
		p.peer.Fault = func(action string, n int) *ssmpeer.Fault {
			if action == "ssm:GetCommandInvocation" && n == 2*after+1 {
				cancel()
			}
			return nil
		}
		p.peer.Unlock()
		err := m.WriteFile(ctx, file, content[2:], 0o600)
		cancel()
		there, rerr := os.ReadFile(file) // #nosec G304 -- of this test
		if rerr != nil || len(there) != 100_000 && len(there) != 99_999 && len(there) != 99_998 || err == nil && len(there) != 99_998 {
			t.Errorf("cancelled after %d: %v, %v, %d bytes", after, err, rerr, len(there))
		}
		if files, err := os.ReadDir(filepath.Dir(file)); err != nil || len(files) != 1 {
			t.Errorf("%v %v", files, err)
		}
	}
	nothingLeft(t)
}

// TestForgedFiles: what does not have the digest of the machine is no file.
func TestForgedFiles(t *testing.T) {
	answer := ""
	_, m, _ := onClock(t, func(lines []string) []ssmpeer.State {
		id := idLine.FindStringSubmatch(strings.Join(lines, "\n"))[1]
		if strings.Contains(strings.Join(lines, "\n"), "say removed") {
			return []ssmpeer.State{{Status: "Success", Stdout: reportMark + " " + id + " removed\n" + reportMark + " " + id + " done\n"}}
		}
		return []ssmpeer.State{{Status: "Success", Stdout: strings.ReplaceAll(answer, "@", reportMark+" "+id)}}
	})
	sum := sandboxcore.FileDigest([]byte("x"))
	good := "@ file size 1 mode 644 sum " + sum + " here 1 0\neA==\n@ out\n@ done\n"
	for name, text := range map[string]string{
		"good": good, "other content": strings.Replace(good, "eA==", "eQ==", 1), "no digest": strings.Replace(good, sum, "x", 1), "more than its size": strings.Replace(good, "size 1", "size 0", 1),
		"other size": strings.Replace(good, "here 1", "here 2", 1), "too large": strings.Replace(good, "size 1", fmt.Sprint("size ", mostPaged+1), 1), "mode": strings.Replace(good, "644", "9", 1),
		"of a run": strings.Replace(good, "file", "exit 0", 1), "nothing": "",
	} {
		answer = text
		content, _, err := m.ReadFile(t.Context(), "f", 10)
		if name == "good" {
			if err != nil || string(content) != "x" {
				t.Errorf("%q %v", content, err)
			}
		} else {
			refused(t, err, sandboxcore.CodeUnknownOutcome)
		}
		start := time.Now()
		if err := m.WriteFile(t.Context(), "f", []byte("y"), 0o600); sandboxcore.CodeOf(err) != sandboxcore.CodeUnknownOutcome || time.Since(start) > time.Minute {
			t.Errorf("%s: %v", name, err)
		}
	}
}
