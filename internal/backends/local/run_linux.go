//go:build amd64 || arm64

package local

import (
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/supervised"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/workspace"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/runhelper"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

func platformEnvironment() map[string]string { return nil }

// run supervises one request with the run helper.
func (e *endpoint) run(ctx context.Context, box *workspace.Sandbox, req sandboxcore.RunRequest, env []string, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	target := supervised.Target{
		Object: box.Object(), Place: "the directories of PATH (" + e.searchPath() + ")",
		Open: func(ctx context.Context) (*runhelper.Conn, error) { return e.start(ctx, box) },
		Adjust: func(r *runhelper.Request) {
			r.ClearEnv = true
			r.Env = env // with what the request brought, see sandbox.environment
		},
	}
	return supervised.Run(ctx, target, req, stdout, stderr)
}

// start starts a helper whose run is on record, so that whoever destroys the sandbox finds it.
func (e *endpoint) start(ctx context.Context, box *workspace.Sandbox) (*runhelper.Conn, error) {
	helper, err := runhelper.Extract(filepath.Join(e.store.DataDir(), "helper"))
	if err != nil {
		return nil, err
	}
	var cmd *exec.Cmd
	conn, err := runhelper.StartProcess(ctx, helper, []string{"guard"}, func(c *exec.Cmd) {
		c.Env = []string{}
		c.Dir = box.Workspace()
		cmd = c
	})
	if err != nil {
		return nil, err
	}
	closeConn := conn.Close
	record, err := box.Register(cmd.Process.Pid)
	if err != nil {
		_ = closeConn() // it has been given nothing to run
		return nil, err
	}
	conn.Close = func() error {
		defer record.Done()
		return closeConn()
	}
	return conn, nil
}

// killAfter is when a supervisor that was told to end its run is killed. It takes 5 s at most if all is well.
const killAfter = 8 * time.Second

// endRuns tells the supervisors of runs to end them. One that does not is killed; its second process then ends the run.
func (e *endpoint) endRuns(id string) workspace.EndRuns {
	asked := map[workspace.Run]time.Time{}
	return func(_ context.Context, runs []workspace.Run) (int, error) {
		left := e.active.Cancel(id)
		for _, run := range runs {
			since, before := asked[run]
			signal := syscall.SIGTERM
			switch {
			case !before:
				asked[run] = time.Now()
			case time.Since(since) < killAfter:
				continue
			default:
				signal = syscall.SIGKILL
			}
			if err := run.Signal(signal); err != nil {
				return left, err
			}
		}
		return left, nil
	}
}
