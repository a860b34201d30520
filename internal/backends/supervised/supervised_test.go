//go:build linux

package supervised

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/runhelper"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// here is this machine as a target: the real helper in a directory of the test.
func here(t *testing.T) (Target, string) {
	t.Helper()
	dir := t.TempDir()
	helper, err := runhelper.Extract(filepath.Join(t.TempDir(), "bin"))
	if err != nil {
		testenv.Skip(t, testenv.Local, err.Error(), "run it on Linux, on amd64 or arm64")
	}
	return Target{
		Object: "test/1", Place: "this test",
		Open: func(ctx context.Context) (*runhelper.Conn, error) {
			return runhelper.StartProcess(ctx, helper, []string{"run"}, func(c *exec.Cmd) { c.Dir = dir })
		},
	}, dir
}

func coded(t *testing.T, err error, code sandboxcore.Code, parts ...string) {
	t.Helper()
	if sandboxcore.CodeOf(err) != code {
		t.Fatalf("want %s: %v", code, err)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("no %q: %v", p, err)
		}
	}
}

func script(text string) sandboxcore.RunRequest {
	return sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte(text), Timeout: time.Minute, Grace: 100 * time.Millisecond}
}

func TestRunResults(t *testing.T) {
	target, dir := here(t)
	var out, errs bytes.Buffer
	req := script("echo $A; echo err >&2; pwd; cat; exit 5")
	req.Env, req.Stdin = map[string]string{"A": "a"}, []byte("in")
	res, err := Run(t.Context(), target, req, &out, &errs)
	if err != nil || res.ExitCode != 5 || out.String() != "a\n"+dir+"\nin" || errs.String() != "err\n" {
		t.Fatalf("%+v %v %q %q", res, err, out.String(), errs.String())
	}
	// The program's own 127 and 126 are results.
	for _, code := range []string{"126", "127", "137"} {
		if res, err := Run(t.Context(), target, script("exit "+code), nil, nil); err != nil || res.OOMKilled {
			t.Errorf("exit %s: %+v %v", code, res, err)
		}
	}
	res, err = Run(t.Context(), target, script("kill -TERM $$"), nil, nil)
	if err != nil || res.ExitCode != 143 || res.Signal != 15 {
		t.Errorf("%+v %v", res, err)
	}
}

func TestRunErrors(t *testing.T) {
	target, dir := here(t)
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "lost"), []byte("#!/no/such/interpreter\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	argv := func(a ...string) sandboxcore.RunRequest { return sandboxcore.RunRequest{Argv: a, Timeout: time.Minute} }
	empty := map[string]string{"PATH": "/nowhere"}
	with := func(r sandboxcore.RunRequest, change func(*sandboxcore.RunRequest)) sandboxcore.RunRequest {
		change(&r)
		return r
	}
	tests := map[string]struct {
		req   sandboxcore.RunRequest
		code  sandboxcore.Code
		parts []string
	}{
		"no program named":   {argv(), sandboxcore.CodeValue, nil},
		"no such program":    {argv("no-such-program"), sandboxcore.CodeOperation, []string{"no-such-program", "this test", "Nothing ran"}},
		"not executable":     {argv(filepath.Join(dir, "text")), sandboxcore.CodeOperation, []string{"Nothing ran"}},
		"no interpreter":     {argv(filepath.Join(dir, "lost")), sandboxcore.CodeOperation, []string{"interpreter"}},
		"no shell":           {with(script("true"), func(r *sandboxcore.RunRequest) { r.Env = empty }), sandboxcore.CodeOperation, []string{"no sh"}},
		"no python":          {sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: "python", Env: empty, Timeout: time.Minute}, sandboxcore.CodeLanguage, []string{"python"}},
		"no bash":            {sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: "bash", Env: empty, Timeout: time.Minute}, sandboxcore.CodeLanguage, []string{"bash"}},
		"unknown language":   {sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: "cobol", Timeout: time.Minute}, sandboxcore.CodeLanguage, []string{"cobol"}},
		"unknown kind":       {sandboxcore.RunRequest{Kind: 99}, sandboxcore.CodeOperation, nil},
		"no directory":       {with(script("true"), func(r *sandboxcore.RunRequest) { r.WorkingDirectory = "absent" }), sandboxcore.CodeValue, []string{"absent"}},
		"a NUL in a secret":  {with(script("true"), func(r *sandboxcore.RunRequest) { r.Env = map[string]string{"S": "cana\x00ry"} }), sandboxcore.CodeValue, []string{"env"}},
		"an endless element": {argv("echo", strings.Repeat("x", 200_000)), sandboxcore.CodeValue, []string{"command"}},
		"too slow":           {with(script("sleep 60"), func(r *sandboxcore.RunRequest) { r.Timeout = 200 * time.Millisecond }), sandboxcore.CodeTimeout, []string{"200ms"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Run(t.Context(), target, test.req, nil, nil)
			coded(t, err, test.code, test.parts...)
			if strings.Contains(err.Error(), "cana") {
				t.Error("the value is repeated")
			}
		})
	}
}

func TestRunCancelled(t *testing.T) {
	target, _ := here(t)
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	go func() {
		r.Read(make([]byte, 1)) //nolint:errcheck // a test
		cancel()
		io.Copy(io.Discard, r) //nolint:errcheck // a test
	}()
	_, err := Run(ctx, target, script("echo up; sleep 60"), w, nil)
	coded(t, err, sandboxcore.CodeUnknownOutcome, "Every process of it was ended")
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	_, err = Run(ctx, target, script("true"), nil, nil)
	coded(t, err, sandboxcore.CodeUnknownOutcome, "Nothing ran")
	deadline, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = Run(deadline, target, script("sleep 60"), nil, nil)
	coded(t, err, sandboxcore.CodeTimeout)
}

// pipes is a helper that says what a test wants it to.
func pipes(says ...byte) Target {
	return Target{Object: "test/1", Open: func(context.Context) (*runhelper.Conn, error) {
		_, control := io.Pipe()
		return &runhelper.Conn{Control: discard{control}, Frames: bytes.NewReader(says), Close: control.Close}, nil
	}}
}

type discard struct{ *io.PipeWriter }

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func TestBrokenStreams(t *testing.T) {
	hello := []byte{'H', 8, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0}
	started := append(bytes.Clone(hello), 'S', 8, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0)
	for name, test := range map[string]struct {
		says  []byte
		code  sandboxcore.Code
		parts []string
	}{
		"nothing":       {nil, sandboxcore.CodeProvision, []string{"Nothing ran"}},
		"text":          {[]byte("OCI runtime exec failed\x1b[31m"), sandboxcore.CodeProvision, []string{"OCI runtime exec failed", `\x1b`}},
		"after hello":   {hello, sandboxcore.CodeUnknownOutcome, nil},
		"after start":   {started, sandboxcore.CodeUnknownOutcome, []string{"before the end"}},
		"half an end":   {append(bytes.Clone(started), 'X', 28, 0, 0, 0, 0), sandboxcore.CodeUnknownOutcome, nil},
		"broken output": {append(bytes.Clone(started), 'O', 9, 0, 0, 0, 'a'), sandboxcore.CodeUnknownOutcome, nil},
	} {
		t.Run(name, func(t *testing.T) {
			res, err := Run(t.Context(), pipes(test.says...), script("true"), nil, nil)
			coded(t, err, test.code, test.parts...)
			if strings.Contains(err.Error(), "\x1b") || res.ExitCode != 0 || !errors.Is(err, runhelper.ErrStreamBroken) {
				t.Errorf("%+v %v", res, err)
			}
		})
	}
}

func TestOpenErrors(t *testing.T) {
	own := &sandboxcore.Error{Code: sandboxcore.CodeStopped, Attempted: "x", Next: "y"}
	for _, test := range []struct {
		err  error
		code sandboxcore.Code
	}{{own, sandboxcore.CodeStopped}, {errors.New("no"), sandboxcore.CodeProvision}} {
		target := Target{Open: func(context.Context) (*runhelper.Conn, error) { return nil, test.err }}
		_, err := Run(t.Context(), target, script("true"), nil, nil)
		coded(t, err, test.code)
		_, _, err = ReadFile(t.Context(), target, "x", 1)
		coded(t, err, test.code)
		coded(t, WriteFile(t.Context(), target, "x", nil, 0o600), test.code)
		coded(t, RemoveFile(t.Context(), target, "x"), test.code)
	}
}

func TestFiles(t *testing.T) {
	target, dir := here(t)
	ctx := t.Context()
	if err := WriteFile(ctx, target, "a/b", []byte("content"), 0o640); err != nil {
		t.Fatal(err)
	}
	content, mode, err := ReadFile(ctx, target, filepath.Join(dir, "a/b"), 7)
	if err != nil || string(content) != "content" || mode != 0o640 {
		t.Fatalf("%q %v %v", content, mode, err)
	}
	_, _, err = ReadFile(ctx, target, "a/b", 6)
	coded(t, err, sandboxcore.CodeOperation, "larger than 6 bytes")
	_, _, err = ReadFile(ctx, target, "absent", 6)
	coded(t, err, sandboxcore.CodeOperation, "test/1: absent")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	_, _, err = ReadFile(ctx, target, "a", 6)
	coded(t, err, sandboxcore.CodeOperation)
	_, _, err = ReadFile(ctx, target, "", 6)
	coded(t, err, sandboxcore.CodeValue)
	coded(t, WriteFile(ctx, target, "a/b/c", nil, 0o600), sandboxcore.CodeOperation)
	for range 2 {
		if err := RemoveFile(ctx, target, "a/b"); err != nil {
			t.Fatal(err)
		}
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, _, err = ReadFile(cancelled, target, "x", 1)
	coded(t, err, sandboxcore.CodeUnknownOutcome)
	_, _, err = ReadFile(ctx, pipes(), "x", 1)
	coded(t, err, sandboxcore.CodeProvision, "Nothing ran")
}
