//go:build linux

package e2b

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// TestFiles: single files in and out, by relative and absolute names, and what is refused.
func TestFiles(t *testing.T) {
	e := dial(t, provider(newPeer(t, e2bpeer.Options{})))
	id := create(t, e, profile()).info.NativeID
	m, err := e.Find(t.Context(), id, false) // out of a list, which tells no token
	if err != nil {
		t.Fatal(err)
	}
	content := []byte(strings.Repeat("ünïcode\x00", 1000))
	for name, mode := range map[string]fs.FileMode{"a.txt": 0o644, "deep/er/b": 0o600, "/tmp/c": 0o755, "-x": 0o640, "with space & 'quote'": 0o644, "$HOME": 0o644} {
		for range 2 { // a file that is there is replaced
			if err := m.WriteFile(t.Context(), name, content, mode); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		got, gotMode, err := m.ReadFile(t.Context(), name, 1<<20)
		if err != nil || string(got) != string(content) || gotMode != mode {
			t.Errorf("%s: %d bytes, mode %o, %v", name, len(got), gotMode, err)
		}
		if _, _, err := m.ReadFile(t.Context(), name, 10); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: beyond the limit: %v", name, err)
		}
		for range 2 { // absent is success
			if err := m.RemoveFile(t.Context(), name); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, _, err := m.ReadFile(t.Context(), name, 10); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := m.WriteFile(t.Context(), "empty", nil, 0o644); err != nil {
		t.Error(err)
	}
	if got, _, err := m.ReadFile(t.Context(), "empty", 10); err != nil || len(got) != 0 {
		t.Errorf("%q, %v", got, err)
	}
	for what, err := range map[string]error{
		"write over a directory":  m.WriteFile(t.Context(), "deep", content, 0o644),
		"write below a file":      m.WriteFile(t.Context(), "empty/x", content, 0o644),
		"write without a name":    m.WriteFile(t.Context(), "deep/", content, 0o644),
		"remove a directory":      m.RemoveFile(t.Context(), "deep"),
		"write where nobody may":  m.WriteFile(t.Context(), "/proc/x", content, 0o644),
		"read what is no regular": second(m.ReadFile(t.Context(), "/dev/zero", 10)),
	} {
		if err == nil {
			t.Errorf("%s: done", what)
		}
	}
	// Nothing of an upload stays behind.
	s := handle(t, m)
	d, err := s.files(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	no := false
	out, _, err := d.small(t.Context(), &startRequest{Stdin: &no, Process: processConfig{Cmd: "/bin/sh", Args: []string{"-c", "find ~ /tmp -name '.agentkernel-*'"}}})
	if err != nil || strings.TrimSpace(out) != "" {
		t.Errorf("left behind: %q, %v", out, err)
	}
	// A paused sandbox is not woken for a look.
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, err = e.Find(t.Context(), id, true)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = m.ReadFile(t.Context(), "empty", 10)
	wantError(t, err, sandboxcore.CodeStopped)
}

func second(_ []byte, _ fs.FileMode, err error) error { return err }
