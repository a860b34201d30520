package sandboxcore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Every operation on a file passes the gate and stands in the audit log, with a digest of what is written but none of a
// secret, which a digest could be guessed from.
func TestFilesPassGateAndAudit(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	req := sandboxcore.FileRequest{Binding: *b.binding(b.create(t)), Path: "a/b", Content: []byte("plain"), Principal: sandboxcore.DefaultPrincipal()}
	if _, err := b.engine.StatFile(t.Context(), req); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := b.engine.WriteFile(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	info, err := b.engine.StatFile(t.Context(), req)
	if err != nil || info.SHA256 != sandboxcore.FileDigest(req.Content) || info.Size != 5 {
		t.Errorf("%+v, %v", info, err)
	}
	secret := req
	secret.Content, secret.Secret = []byte("low entropy 1234"), true
	if err := b.engine.WriteFile(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	b.fake.SetFail(func(_ context.Context, call string) error {
		if call == "remove" {
			return fmt.Errorf("the engine echoes %s", secret.Content)
		}
		return nil
	})
	if err := b.engine.RemoveFile(t.Context(), req); err == nil || strings.Contains(err.Error(), "low entropy") {
		t.Errorf("a failed removal: %v", err)
	}
	b.fake.SetFail(nil)
	if err := b.engine.RemoveFile(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	refused := req
	refused.Path = "../b"
	if err := b.engine.WriteFile(t.Context(), refused); !sandboxcore.IsCode(err, sandboxcore.CodeValue) {
		t.Errorf("a path out of the workspace: %v", err)
	}
	for _, path := range []string{"new/.", ".", "new/", "/.", "./"} {
		refused.Path = path
		if _, _, err := b.engine.CheckFile(refused); !sandboxcore.IsCode(err, sandboxcore.CodeValue) {
			t.Errorf("%q, which can only be a directory: %v", path, err)
		}
	}
	foreign := req
	foreign.Binding.Endpoint = "elsewhere"
	if err := b.engine.WriteFile(t.Context(), foreign); !sandboxcore.IsCode(err, sandboxcore.CodeOtherEndpoint) {
		t.Errorf("another endpoint: %v", err)
	}

	text := b.auditText(t)
	for _, want := range []string{`"operation":"file read"`, `"operation":"file write"`, `"operation":"file remove"`, sandboxcore.FileDigest(req.Content), `"verdict":"refused"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the audit log has no %s", want)
		}
	}
	if strings.Contains(text, sandboxcore.FileDigest(secret.Content)) || strings.Contains(text, "low entropy") {
		t.Error("the audit log tells of the secret")
	}
	if b.fake.Count("write") != 2 {
		t.Errorf("written %d times", b.fake.Count("write"))
	}
}

// Output sees what a run prints while it runs, and no secret, not even one that comes in two pieces.
func TestExecStreamsRedactedOutput(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	b.fake.OnRun = func(_ context.Context, _ sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
		for _, piece := range []string{"before canary-0123", "456789 after"} {
			_, _ = io.WriteString(stdout, piece)
		}
		_, _ = io.WriteString(stderr, "error")
		return sandboxcore.RunResult{}, nil
	}
	var mu sync.Mutex
	seen := map[bool]string{}
	req := b.run()
	req.Spec = b.spec
	req.Output = func(stderr bool, p []byte) {
		mu.Lock()
		defer mu.Unlock()
		seen[stderr] += string(p)
	}
	result, err := b.engine.Exec(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if seen[false] != "before *** after" || seen[true] != "error" || result.Stdout.Text != seen[false] {
		t.Errorf("streamed %v, kept %q", seen, result.Stdout.Text)
	}
}
