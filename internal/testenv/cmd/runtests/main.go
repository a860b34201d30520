// Command runtests runs `go test` and closes with what a reader wants to know: failures in full, which parts this
// machine lacks and how to enable them, and the counts.
//
//	go run ./internal/testenv/cmd/runtests [-v] [-slowest N] -- [arguments of go test]
//
// It ends with status 0 only if at least one test ran, none failed and none was skipped for a part that
// AGENTKERNEL_TEST_REQUIRE demands.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
)

func main() {
	verbose := flag.Bool("v", false, "print the output of tests that pass, too")
	slowest := flag.Int("slowest", 5, "how many of the slowest tests to name")
	flag.Parse()

	status, err := run(os.Stdout, flag.Args(), *verbose, *slowest)
	if err != nil {
		fmt.Fprintln(os.Stderr, "runtests:", err)
	}
	os.Exit(status)
}

func run(out io.Writer, arguments []string, verbose bool, slowest int) (int, error) {
	// An interrupt reaches the tests as well: they are in the same process group and clean up by themselves. Here
	// it is only caught, so that the summary of what ran until then is still printed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	command := exec.Command("go", append([]string{"test", "-json"}, arguments...)...)
	command.Stderr = os.Stderr
	events, err := command.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := command.Start(); err != nil {
		return 1, err
	}
	summary := newSummary(out, os.Getenv("AGENTKERNEL_TEST_REQUIRE"), verbose)
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			summary.line(line)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 1, err
		}
	}
	waitErr := command.Wait()
	if ctx.Err() != nil {
		summary.printf("\ninterrupted: this is what had run\n")
	}
	return summary.finish(waitErr, slowest), nil
}
