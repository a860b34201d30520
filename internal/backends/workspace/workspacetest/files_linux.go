package workspacetest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

func files(t *testing.T, k *Kit) {
	ctx := t.Context()
	sb := k.Sandbox(t, sandboxcore.Policy{})
	content := bytes.Repeat([]byte{0, 0xff, '\n'}, 100000)
	if err := sb.WriteFile(ctx, "a/b/c.bin", content, 0o640); err != nil {
		t.Fatal(err)
	}
	got, mode, err := sb.ReadFile(ctx, "a/b/c.bin", 1<<20)
	if err != nil || !bytes.Equal(got, content) || mode.Perm() != 0o640 {
		t.Errorf("read %d bytes, mode %v: %v", len(got), mode, err)
	}
	Shell(sb, "stat -c %a%s a/b/c.bin && echo more > made && ls a/b").Want(t, "640300000\nc.bin")
	if got, _, err := sb.ReadFile(ctx, "made", 5); err != nil || string(got) != "more\n" {
		t.Errorf("%q %v", got, err)
	}
	if _, _, err := sb.ReadFile(ctx, "made", 4); err == nil {
		t.Error("a file beyond the limit was read")
	}
	_, _, err = sb.ReadFile(ctx, "absent", 5)
	if !errors.Is(err, fs.ErrNotExist) || sandboxcore.CodeOf(err) == "" {
		t.Errorf("absent: %v", err)
	}
	Shell(sb, "mkfifo pipe; mkdir dir").Want(t, "")
	for _, name := range []string{"pipe", "dir", "a", "."} {
		if _, _, err := sb.ReadFile(ctx, name, 5); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
		if name != "pipe" {
			if err := sb.WriteFile(ctx, name, nil, 0o600); err == nil {
				t.Errorf("%s was written", name)
			}
		}
	}
	for range 2 {
		if err := sb.RemoveFile(ctx, "made"); err != nil {
			t.Error(err)
		}
	}
	if err := sb.RemoveFile(ctx, "dir"); err == nil {
		t.Error("a directory was removed as a file")
	}
}

func fileEscapes(t *testing.T, k *Kit) {
	ctx := t.Context()
	outside := filepath.Join(filepath.Dir(k.DataDir), "outside")
	if err := os.MkdirAll(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(outside, "file")
	if err := os.WriteFile(target, []byte("outside"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(outside, 0o777), os.Chmod(target, 0o666)); err != nil {
		t.Fatal(err)
	}
	sb := k.Sandbox(t, sandboxcore.Policy{})
	Shell(sb, "ln -s "+outside+" dirlink; ln -s "+target+" filelink; ln -s ../../../../../../../../../.."+target+" rel; mkdir sub").Want(t, "")
	for _, path := range []string{
		target, "../../../outside/file", "dirlink/file", "filelink", "rel", "sub/../../../../outside/file", "/proc/self/environ", "/etc/shadow",
		k.Dir(sb) + "/env.json", "../env.json", "../marker.json", "a\x00b", "",
	} {
		if got, _, err := sb.ReadFile(ctx, path, 1<<20); err == nil {
			t.Errorf("read %q: %q", path, got)
		}
	}
	for _, path := range []string{target, "../../../outside/file", "dirlink/file", "dirlink/new", "sub/../../x", outside + "/new", "", "a\x00b"} {
		if err := sb.WriteFile(ctx, path, []byte("written"), 0o644); err == nil {
			t.Errorf("wrote %q", path)
		}
		_ = sb.RemoveFile(ctx, path)
	}
	// Written through or over a link, but never to where it leads.
	for _, path := range []string{"filelink", "rel"} {
		_ = sb.WriteFile(ctx, path, []byte("written"), 0o644)
		_ = sb.RemoveFile(ctx, path)
	}
	text, err := os.ReadFile(target)
	if err != nil || string(text) != "outside" {
		t.Errorf("outside the workspace: %q %v", text, err)
	}
	entries, err := os.ReadDir(outside)
	if err != nil || len(entries) != 1 {
		t.Errorf("outside the workspace: %v %v", entries, err)
	}
	symlinkRace(t, sb, outside)
}

// symlinkRace has code swap a directory for a link to the outside while files are read and written through it.
func symlinkRace(t *testing.T, sb sandboxcore.ManagedSandbox, outside string) {
	ctx := t.Context()
	Shell(sb, "mkdir -p swap other && echo inside > swap/file").Want(t, "")
	done := make(chan Outcome, 1)
	go func() {
		done <- Python(sb, `
import os, time
os.symlink("`+outside+`", "evil")
open("racing", "w").close()
end = time.time() + 15
while not os.path.exists("stop") and time.time() < end:
    os.rename("swap", "tmp"); os.rename("evil", "swap"); os.rename("swap", "evil"); os.rename("tmp", "swap")
`)
	}()
	Eventually(t, "the race began", func() bool { _, _, err := sb.ReadFile(ctx, "racing", 1); return err == nil })
	for range 40 {
		if got, _, err := sb.ReadFile(ctx, "swap/file", 100); err == nil && string(got) != "inside\n" && string(got) != "written" {
			t.Fatalf("the race was lost: read %q", got)
		}
		_ = sb.WriteFile(ctx, "swap/file", []byte("written"), 0o644)
	}
	if err := sb.WriteFile(ctx, "stop", nil, 0o644); err != nil {
		t.Error(err)
	}
	<-done
	text, err := os.ReadFile(filepath.Join(outside, "file"))
	if err != nil || string(text) != "outside" {
		t.Errorf("the race was lost: %q %v", text, err)
	}
}

func workingDirectory(t *testing.T, k *Kit) {
	sb := k.Sandbox(t, sandboxcore.Policy{})
	Shell(sb, "mkdir -p a/b; ln -s / root; ln -s a/b inside").Want(t, "")
	in := func(dir string) Outcome {
		return Run(t.Context(), sb, sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"pwd", "-P"}, WorkingDirectory: dir})
	}
	home := strings.TrimSpace(in("").Stdout)
	in("a/b").Want(t, home+"/a/b")
	in("inside").Want(t, home+"/a/b")
	in(home+"/a").Want(t, home+"/a")
	WantCode(t, in("absent").Err, sandboxcore.CodeValue)
}
