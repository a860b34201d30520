// Package testenv says what the machine under a test offers.
//
// A test names the parts it needs and is skipped, with the reason and the command that would help, where one
// is missing:
//
//	func TestDockerEgress(t *testing.T) {
//		testenv.Require(t, testenv.Docker)
//		image := testenv.Image("python")
//
// Two environment variables change that; both hold part names separated by commas, or "all":
//
//	AGENTKERNEL_TEST_REQUIRE  a missing part named here fails the test instead of skipping it (CI)
//	AGENTKERNEL_TEST_WITHOUT  a part named here counts as missing (to try what a poorer machine does)
//
// Only tests import this package. A new part is one entry in the table in parts.go.
package testenv

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Environment variables that change what Require does.
const (
	EnvRequire = "AGENTKERNEL_TEST_REQUIRE"
	EnvWithout = "AGENTKERNEL_TEST_WITHOUT"
)

// Part is something that a test may need and a machine may lack.
type Part string

// Status is what a probe found.
type Status struct {
	Available bool
	// Reason says in one line why the part is missing; empty when it is there.
	Reason string
	// Enable is a command, or a short advice, that would make the part available.
	Enable string
}

// Parts are the names of all parts, in the order of the table.
func Parts() []Part {
	names := make([]Part, 0, len(table))
	for _, entry := range table {
		names = append(names, entry.part)
	}
	return names
}

var (
	probed   = map[Part]Status{}
	probedMu sync.Mutex
)

// Probe says whether the part is available. Each part is probed once per process.
func Probe(part Part) Status {
	probedMu.Lock()
	defer probedMu.Unlock()
	if status, done := probed[part]; done {
		return status
	}
	status := probe(part)
	probed[part] = status
	return status
}

func probe(part Part) Status {
	at := slices.IndexFunc(table, func(e entry) bool { return e.part == part })
	if at < 0 {
		return Status{Reason: fmt.Sprintf("there is no part %q", part), Enable: "name one of " + joined(Parts())}
	}
	status := Status{Enable: table[at].enable}
	without, err := listed(EnvWithout)
	switch {
	case err != nil:
		status.Reason = err.Error()
	case slices.Contains(without, part):
		status.Reason = "switched off by " + EnvWithout
		status.Enable = "unset " + EnvWithout
	default:
		if err := table[at].probe(); err != nil {
			// A reason is one line: the summary after the tests is a table.
			status.Reason = strings.Join(strings.Fields(err.Error()), " ")
		}
	}
	status.Available = status.Reason == ""
	return status
}

// Has says whether all parts are available, for tests that take another way without them.
func Has(parts ...Part) bool {
	for _, part := range parts {
		if !Probe(part).Available {
			return false
		}
	}
	return true
}

// Require skips the test unless every part is available, and fails it instead when the missing part is named in
// AGENTKERNEL_TEST_REQUIRE.
func Require(tb testing.TB, parts ...Part) {
	tb.Helper()
	required, err := listed(EnvRequire)
	if err != nil {
		tb.Fatal(err)
	}
	for _, part := range parts {
		status := Probe(part)
		if status.Available {
			continue
		}
		if !slices.Contains(Parts(), part) {
			tb.Fatal(status.Reason)
		}
		if slices.Contains(required, part) {
			tb.Fatalf("REQUIRED %s: %s; enable with: %s", part, status.Reason, status.Enable)
		}
		Skip(tb, part, status.Reason, status.Enable)
	}
}

// Skip skips a test in the form that the summary after `make test` reads, and fails it instead when the part is named in
// AGENTKERNEL_TEST_REQUIRE. It is for a lack that only the test itself can find; one that several tests share belongs
// into the table.
func Skip(tb testing.TB, part Part, reason, enable string) {
	tb.Helper()
	required, err := listed(EnvRequire)
	if err != nil {
		tb.Fatal(err)
	}
	if slices.Contains(required, part) {
		tb.Fatalf("REQUIRED %s: %s; enable with: %s", part, reason, enable)
	}
	tb.Skipf("SKIP %s: %s; enable with: %s", part, reason, enable)
}

// listed reads one of the two variables. A name that is no part is an error: a slip of the pen in CI would
// otherwise switch off the very check that it was meant to switch on.
func listed(variable string) ([]Part, error) {
	var parts []Part
	for name := range strings.SplitSeq(os.Getenv(variable), ",") {
		part := Part(strings.TrimSpace(name))
		switch {
		case part == "":
		case part == "all":
			return Parts(), nil
		case !slices.Contains(Parts(), part):
			return nil, fmt.Errorf("%s names %q, which is no part; the parts are %s, and all", variable, part, joined(Parts()))
		default:
			parts = append(parts, part)
		}
	}
	return parts, nil
}

func joined(parts []Part) string {
	names := make([]string, len(parts))
	for i, part := range parts {
		names[i] = string(part)
	}
	return strings.Join(names, ", ")
}
