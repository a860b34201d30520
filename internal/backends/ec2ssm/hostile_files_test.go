//go:build linux

package ec2ssm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/ssmpeer"
)

// TestFileBesideItsPlace: who may write the directory, and saw in the name of the run's own directory what the file will
// be called until it is whole, cannot have another file written or its mode changed.
func TestFileBesideItsPlace(t *testing.T) {
	for name, path := range shells(t) {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.machine.Path = path
			m := p.on(t.Context())
			dir := t.TempDir()
			for kind, victim := range map[string]string{"file": filepath.Join(dir, "victim"), "nothing": filepath.Join(dir, "not yet"), "device": "/dev/null"} {
				id := testID()
				m.e.newID = func() string { return id }
				file := filepath.Join(dir, "f-"+kind)
				if err := errors.Join(os.WriteFile(filepath.Join(dir, "victim"), []byte("old"), 0o600), os.Symlink(victim, filepath.Join(dir, ".agentkernel-"+id))); err != nil {
					t.Fatal(err)
				}
				refused(t, m.WriteFile(t.Context(), file, []byte("new"), 0o666), sandboxcore.CodeValue)
				if _, err := os.Lstat(file); err == nil {
					t.Errorf("%s: it was written", kind)
				}
				if info, err := os.Stat(victim); kind == "file" && (err != nil || info.Size() != 3 || info.Mode().Perm() != 0o600) || kind == "nothing" && err == nil || kind == "device" && info.Mode().Perm() != 0o666 {
					t.Errorf("%s: %v %v", kind, info, err)
				}
			}
			left, err := filepath.Glob(filepath.Join(dir, ".agentkernel-*"))
			if err != nil || len(left) > 0 {
				t.Errorf("%v %v", left, err)
			}
		})
	}
	nothingLeft(t)
}

// TestPathOfADirectory: a path that can only be a directory's is no file, and nothing is made for it.
func TestPathOfADirectory(t *testing.T) {
	m := newPlace(t).on(t.Context())
	dir := t.TempDir()
	for _, path := range []string{"new/.", "new/", "new/./", "new//", "new/..", "."} {
		path = dir + "/" + path
		refused(t, m.WriteFile(t.Context(), path, []byte("x"), 0o600), sandboxcore.CodeValue, "no regular file")
		if _, _, err := m.ReadFile(t.Context(), path, 10); err == nil {
			t.Errorf("%s was read", path)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
	nothingLeft(t)
}

// TestFullDisk: no space is no question of rights, and says so; nothing half-written stays.
func TestFullDisk(t *testing.T) {
	p := newPlace(t)
	machine := ownMachine(t, p, ssmpeer.Own{Users: []string{"alice"}})
	sees := func(text string) string {
		t.Helper()
		out, err := machine.Sees(t.Context(), text)
		if err != nil {
			t.Fatalf("%v %s", err, out)
		}
		return out
	}
	sees("mkdir /tmp/home-alice; mount -t tmpfs -o size=64k,mode=777 tmpfs /tmp/home-alice; echo old >/tmp/home-alice/f")
	who := sandboxcore.DefaultPrincipal()
	who.EC2SSM = &sandboxcore.EC2SSMPrincipal{RunAs: "alice"}
	file := sandboxcore.FileRequest{Binding: p.bind(p.spec(), who), Path: "g", Content: noise(100_000), Principal: who, Mode: 0o600}
	refused(t, p.engine.WriteFile(t.Context(), file), sandboxcore.CodeProvision, "space")
	sees("mount -o remount,size=64k /tmp")
	for range 2 { // in pieces, and whole
		file.Path = "/tmp/home-alice/h"
		refused(t, p.engine.WriteFile(t.Context(), file), sandboxcore.CodeProvision, "space in /tmp")
		file.Content = file.Content[:22_000]
		sees("head -c 40000 /dev/zero >/tmp/fill")
	}
	if got := sees("rm /tmp/fill; cd /tmp; find . -type f; cat home-alice/f"); got != "./home-alice/f\nold\n" {
		t.Errorf("%s", got)
	}
}

// TestConcurrentWriters: each write puts the whole of its own content there, and readers see one of them, never a mixture.
func TestConcurrentWriters(t *testing.T) {
	p := newPlace(t)
	file := filepath.Join(t.TempDir(), "f")
	known := map[string]bool{}
	contents := [][]byte{}
	for range 4 {
		c := noise(35_000)
		contents, known[sandboxcore.FileDigest(c)] = append(contents, c), true
	}
	m := p.on(t.Context())
	if err := m.WriteFile(t.Context(), file, contents[0], 0o600); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for _, c := range contents {
		all.Go(func() {
			if err := m.WriteFile(t.Context(), file, c, 0o600); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if back, _, err := m.ReadFile(t.Context(), file, 1<<20); err != nil || !known[sandboxcore.FileDigest(back)] {
				t.Errorf("%d bytes %v", len(back), err)
			}
		})
	}
	all.Wait()
	nothingLeft(t)
}

// TestLimitOfAReader: the error names the limit that was not kept, not another one.
func TestLimitOfAReader(t *testing.T) {
	m := newPlace(t).on(t.Context())
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, noise(2000), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := m.ReadFile(t.Context(), file, 1234)
	refused(t, err, sandboxcore.CodeValue, "2000 bytes", "at most 1234")
}

// TestHashOfAHugeFile: hashing has the time of an operation on a file, and when that is over the advice is about the file.
func TestHashOfAHugeFile(t *testing.T) {
	allowed := ""
	p, m, _ := onClock(t, func(lines []string) []ssmpeer.State {
		if text := strings.Join(lines, "\n"); strings.Contains(text, "say removed") {
			id := idLine.FindStringSubmatch(text)[1]
			return []ssmpeer.State{{Status: "Success", Stdout: fmt.Sprintf("%[1]s %[2]s removed\n%[1]s %[2]s done\n", reportMark, id)}}
		}
		return []ssmpeer.State{{Status: "TimedOut", Details: "ExecutionTimedOut", Code: -1}}
	})
	_, err := m.StatFile(t.Context(), "f")
	refused(t, err, sandboxcore.CodeTimeout, "3m0s", "how large")
	if strings.Contains(err.Error(), "policy.timeout") {
		t.Errorf("a policy has nothing to do with it: %v", err)
	}
	for _, c := range p.peer.Journal() {
		if c.Action == "ssm:SendCommand" && allowed == "" {
			allowed = fmt.Sprint(c.Params["Parameters"])
		}
	}
	if !strings.Contains(allowed, "executionTimeout:[180]") {
		t.Errorf("the command is given %s", allowed)
	}
}

// TestLinkInThePlaceOfAFile: it is replaced, whatever it leads to, and what it leads to stays; reading follows it.
func TestLinkInThePlaceOfAFile(t *testing.T) {
	m := newPlace(t).on(t.Context())
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(target, []byte("old"), 0o600), os.Symlink("target", link)); err != nil {
		t.Fatal(err)
	}
	if back, _, err := m.ReadFile(t.Context(), link, 10); err != nil || string(back) != "old" {
		t.Errorf("%q %v", back, err)
	}
	for _, to := range []string{"target", "nowhere"} {
		if err := errors.Join(os.Remove(link), os.Symlink(to, link), m.WriteFile(t.Context(), link, []byte("new"), 0o640)); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(link)
		there, rerr := os.ReadFile(target) // #nosec G304 -- of this test
		if err != nil || rerr != nil || info.Mode() != 0o640 || info.Size() != 3 || string(there) != "old" {
			t.Errorf("%s: %v %v, %v, %q", to, err, rerr, info, there)
		}
	}
	if err := errors.Join(os.Remove(link), os.Symlink(dir, link)); err != nil {
		t.Fatal(err)
	}
	refused(t, m.WriteFile(t.Context(), link, []byte("new"), 0o640), sandboxcore.CodeValue, "no regular file")
	nothingLeft(t)
}

// TestHashIsGivenUp: what the machine does with a file ends with the operation, also where the agent may not signal the user.
func TestHashIsGivenUp(t *testing.T) {
	for name, own := range agentsOfAlice {
		t.Run(name, func(t *testing.T) {
			p, machine, who := asAlice(t, own)
			file := sandboxcore.FileRequest{Binding: p.bind(p.spec(), who), Path: "/tmp/huge", Principal: who}
			hashing := func() bool {
				t.Helper()
				out, err := machine.Sees(t.Context(), "truncate -s 200G /tmp/huge; grep -ls '^sha256sum' /proc/[0-9]*/comm | wc -l")
				if err != nil {
					t.Fatalf("%v %s", err, out)
				}
				return strings.TrimSpace(out) != "0"
			}
			if hashing() {
				t.Fatal("before it began")
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, err := p.engine.StatFile(ctx, file)
				done <- err
			}()
			for !hashing() {
				select {
				case err := <-done:
					t.Fatalf("it ended by itself: %v", err)
				case <-time.After(20 * time.Millisecond):
				}
			}
			cancel()
			refused(t, <-done, sandboxcore.CodeUnknownOutcome)
			left, err := machine.Sees(t.Context(), "ls -A /tmp; grep -ls '^sha256sum' /proc/[0-9]*/comm; grep -alsE 'AGENTKERNEL_RUN' /proc/[0-9]*/environ; true")
			if err != nil || left != "huge\n" {
				t.Errorf("%v %s", err, left)
			}
		})
	}
}
