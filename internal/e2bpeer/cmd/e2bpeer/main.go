//go:build linux

// Command e2bpeer starts a peer and runs a program with the variables of E2B's tools pointing at it, then ends both.
// Without a program it prints the variables and serves until it is interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
)

func main() {
	status, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2bpeer:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

func run(args []string) (status int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	peer, err := e2bpeer.Start(ctx, e2bpeer.Options{Bearer: true})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, peer.Close()) }()
	env := []string{"E2B_API_KEY=" + peer.Key(), "E2B_API_URL=" + peer.APIURL(), "E2B_SANDBOX_URL=" + peer.SandboxURL()}
	if len(args) == 0 {
		for _, e := range env {
			fmt.Println(e)
		}
		<-ctx.Done()
		return 0, nil
	}
	c := exec.CommandContext(ctx, args[0], args[1:]...) // #nosec G204 -- the caller's own program
	c.Env = append(os.Environ(), env...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = c.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}
