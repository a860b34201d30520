package workspacetest

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// envProvider makes the test program act as a provider: it holds the data directory, the id of a sandbox and shell text
// to run in it, separated by newlines.
const envProvider = "AGENTKERNEL_TEST_AS_PROVIDER"

// Main runs the tests of a package and then looks whether they left a process or a control group.
func Main(m *testing.M, factory sandboxcore.Factory) int {
	if text := os.Getenv(envProvider); text != "" {
		return actAsProvider(factory, text)
	}
	// Orphans become our children, so that none can hide from the look at the end.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	var left []string
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if left = leftovers(); len(left) == 0 || time.Now().After(end) {
			break
		}
	}
	if len(left) > 0 {
		fmt.Fprintln(os.Stderr, "FAIL: the tests left behind:\n"+strings.Join(left, "\n"))
		return 1
	}
	return code
}

// children lists our living child processes. Zombies of orphans do not count: nobody waits for them here.
func children() []int {
	var found []int
	each(func(pid int) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) && fields[0] != "Z" {
			found = append(found, pid)
		}
	})
	return found
}

func actAsProvider(factory sandboxcore.Factory, text string) int {
	parts := strings.SplitN(text, "\n", 3)
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	backend, err := factory.New(sandboxcore.Settings{"data_dir": parts[0]}, os.Getenv)
	if err != nil {
		return fail(err)
	}
	endpoint, err := backend.Connect(context.Background())
	if err != nil {
		return fail(err)
	}
	sb, err := endpoint.Find(context.Background(), parts[1], true)
	if err != nil {
		return fail(err)
	}
	o := Shell(sb, parts[2])
	if o.Err != nil {
		return fail(o.Err)
	}
	return o.ExitCode
}
