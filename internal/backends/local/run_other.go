//go:build !linux || !(amd64 || arm64)

package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/workspace"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// platformEnvironment is what programs do not start without on Windows.
func platformEnvironment() map[string]string {
	if runtime.GOOS != "windows" {
		return nil
	}
	return map[string]string{"SYSTEMROOT": os.Getenv("SYSTEMROOT"), "TEMP": os.Getenv("TEMP"), "TMP": os.Getenv("TMP")}
}

// run starts the program as a plain child. What is killed at the end is its process group on Unix and the program
// alone on Windows; the capability says so.
func (e *endpoint) run(ctx context.Context, box *workspace.Sandbox, req sandboxcore.RunRequest, env []string, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	argv, err := e.argv(req)
	if err != nil {
		return sandboxcore.RunResult{}, err
	}
	deadline, cancel := context.WithTimeout(ctx, req.Timeout)
	defer cancel()
	cmd := exec.CommandContext(deadline, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = env, req.WorkingDirectory
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if req.Stdin != nil {
		cmd.Stdin = bytes.NewReader(req.Stdin)
	}
	if file, ok := e.find(argv[0]); ok {
		cmd.Path, cmd.Err = file, nil
	}
	ownGroup(cmd)
	cmd.Cancel = func() error { return terminate(cmd) }
	cmd.WaitDelay = max(req.Grace, 50*time.Millisecond) // a background child that holds the output does not hold up the result
	started := time.Now()
	err = cmd.Start()
	if err == nil {
		err = cmd.Wait()
		killGroup(cmd)
	}
	res := sandboxcore.RunResult{Duration: time.Since(started)}
	if cmd.ProcessState != nil {
		res.ExitCode, res.Signal = exitStatus(cmd.ProcessState)
	}
	var exit *exec.ExitError
	failed := &sandboxcore.Error{Code: sandboxcore.CodeUnknownOutcome, Attempted: "the run could not be carried out", Object: box.Object(), Err: err}
	switch {
	case ctx.Err() != nil:
		failed.Attempted, failed.Next, failed.Err = "the run was cancelled", "Find out what it had done by then before it runs again.", ctx.Err()
		return res, failed
	case deadline.Err() != nil:
		failed.Code, failed.Attempted, failed.Err = sandboxcore.CodeTimeout, "the run was ended because its time was over", nil
		failed.Said, failed.Attribute = fmt.Sprintf("it did not end within %s.", req.Timeout), []string{"timeout"}
		failed.Next = "Raise the timeout of the run or of the profile's policy, or make the run shorter."
		return res, failed
	case cmd.ProcessState == nil:
		failed.Code, failed.Said, failed.Next = sandboxcore.CodeOperation, "the program could not be started. Nothing ran.", "Check its name and the PATH of the provider."
		return res, failed
	case err == nil, errors.As(err, &exit), errors.Is(err, exec.ErrWaitDelay):
		return res, nil
	}
	failed.Next = "Find out what it did before it runs again."
	return res, failed
}

// maxCommandLine bounds code that travels as an argument, which it does only here.
const maxCommandLine = 100 << 10

func (e *endpoint) argv(req sandboxcore.RunRequest) ([]string, error) {
	switch req.Kind {
	case sandboxcore.RunCommand:
		return req.Argv, nil
	case sandboxcore.RunScript:
		req.Language = "sh"
	case sandboxcore.RunCode:
	}
	file, _ := e.find(interpreters[req.Language]...)
	if len(req.Text) > maxCommandLine {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the run was refused", Object: "local_subprocess on " + runtime.GOOS,
			Said: fmt.Sprintf("the code has %d bytes, more than a command line takes here.", len(req.Text)), Next: "Hand large data over stdin, or run on Linux.",
		}
	}
	return []string{file, "-c", string(req.Text)}, nil
}

// endRuns ends the runs of this process.
func (e *endpoint) endRuns(id string) workspace.EndRuns {
	return func(context.Context, []workspace.Run) (int, error) { return e.active.Cancel(id), nil }
}
