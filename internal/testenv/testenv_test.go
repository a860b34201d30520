package testenv

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// fakeTB records how a test ended; Require ends the goroutine that it runs in, as the real one does.
type fakeTB struct {
	testing.TB
	outcome, message string
}

type ended struct{}

func (f *fakeTB) Helper() {}

func (f *fakeTB) Fatal(args ...any) {
	f.outcome = "fatal"
	if err, ok := args[0].(error); ok {
		f.message = err.Error()
	} else {
		f.message, _ = args[0].(string)
	}
	panic(ended{})
}

func (f *fakeTB) Fatalf(format string, args ...any) {
	f.outcome, f.message = "fatal", fmt.Sprintf(format, args...)
	panic(ended{})
}

func (f *fakeTB) Skipf(format string, args ...any) {
	f.outcome, f.message = "skip", fmt.Sprintf(format, args...)
	panic(ended{})
}

func require(parts ...Part) (tb *fakeTB) {
	tb = &fakeTB{outcome: "run"}
	defer func() {
		if thrown := recover(); thrown != nil && thrown != any(ended{}) {
			panic(thrown)
		}
	}()
	Require(tb, parts...)
	return tb
}

func forget(t *testing.T) {
	t.Helper()
	clean := func() {
		probedMu.Lock()
		defer probedMu.Unlock()
		clear(probed)
	}
	clean()
	t.Cleanup(clean)
}

func TestRequireOfMissingPart(t *testing.T) {
	for _, test := range []struct {
		name, required, outcome string
		message                 []string
	}{
		{"skips", "", "skip", []string{"SKIP docker: switched off by " + EnvWithout, "enable with: "}},
		{"skips when others are required", "local,root", "skip", nil},
		{"fails when required", "local, docker", "fatal", []string{"REQUIRED docker: ", "enable with: "}},
		{"fails when all are required", "all", "fatal", nil},
		{"fails on an unknown name", "dokcer", "fatal", []string{`"dokcer"`, "bubblewrap"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			forget(t)
			t.Setenv(EnvWithout, "docker")
			t.Setenv(EnvRequire, test.required)
			got := require(Docker)
			if got.outcome != test.outcome {
				t.Errorf("ended with %s (%s), want %s", got.outcome, got.message, test.outcome)
			}
			for _, want := range test.message {
				if !strings.Contains(got.message, want) {
					t.Errorf("message %q lacks %q", got.message, want)
				}
			}
		})
	}
}

func TestRequireOfUnknownPart(t *testing.T) {
	forget(t)
	t.Setenv(EnvWithout, "")
	t.Setenv(EnvRequire, "")
	if got := require("mainframe"); got.outcome != "fatal" {
		t.Errorf("ended with %s, want fatal: a part that does not exist would be skipped for ever", got.outcome)
	}
}

func TestWithoutUnknownPart(t *testing.T) {
	forget(t)
	t.Setenv(EnvRequire, "")
	t.Setenv(EnvWithout, "dokcer")
	if status := Probe(Docker); status.Available || !strings.Contains(status.Reason, `"dokcer"`) {
		t.Errorf("probe says %+v, want the unknown name as the reason", status)
	}
}

func TestEveryPartHasOneLineOfHelp(t *testing.T) {
	forget(t)
	if len(slices.Compact(slices.Sorted(slices.Values(Parts())))) != len(table) {
		t.Error("a part is in the table twice")
	}
	for _, part := range Parts() {
		status := Probe(part)
		t.Logf("%-12s available=%-5v %s", part, status.Available, status.Reason)
		if status.Available != (status.Reason == "") {
			t.Errorf("%s: available %v with reason %q", part, status.Available, status.Reason)
		}
		if status.Enable == "" || strings.Contains(status.Enable+status.Reason, "\n") {
			t.Errorf("%s: help is %q, reason %q; both are one line each", part, status.Enable, status.Reason)
		}
	}
}

func TestRerunUnprivileged(t *testing.T) {
	if RerunUnprivileged(t) {
		return
	}
	if os.Geteuid() == 0 {
		t.Error("still root")
	}
	for _, dir := range []string{os.TempDir(), os.Getenv("HOME")} {
		file, err := os.CreateTemp(dir, "probe-")
		if err != nil {
			t.Error(err)
			continue
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestReadRerun(t *testing.T) {
	for _, test := range []struct {
		name, text    string
		err           error
		outcome, said string
	}{
		{"passed", "=== RUN   TestX\n--- PASS: TestX (0.00s)\nPASS\n", nil, "pass", "PASS"},
		{"failed", "--- FAIL: TestX (0.00s)\n    x_test.go:1: why\nFAIL\n", errors.New("exit status 1"), "fail", "why"},
		{"part missing", "    x_test.go:9: SKIP docker: away; enable with: up\n--- SKIP: TestX (0.00s)\nPASS\n", nil, "skip", "SKIP docker: away; enable with: up"},
		{"skipped otherwise", "    x_test.go:9: too short\n--- SKIP: TestX (0.00s)\nPASS\n", nil, "skip", "too short"},
		{"not found", "testing: warning: no tests to run\nPASS\n", nil, "fail", "did not run"},
	} {
		t.Run(test.name, func(t *testing.T) {
			outcome, message := readRerun("TestX", test.text, test.err)
			if outcome != test.outcome || !strings.Contains(message, test.said) {
				t.Errorf("%s with %q, want %s with %q", outcome, message, test.outcome, test.said)
			}
		})
	}
}
