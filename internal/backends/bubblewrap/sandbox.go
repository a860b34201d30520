//go:build linux && (amd64 || arm64)

package bubblewrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/supervised"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/workspace"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/runhelper"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// sandbox is the handle of one sandbox.
type sandbox struct {
	endpoint *endpoint
	box      *workspace.Sandbox
	config   config
}

// Info is the look that was taken when the handle was made. A sandbox is always "running": a run needs nothing to be
// started before.
func (s *sandbox) Info() sandboxcore.SandboxInfo {
	identity, _ := s.endpoint.store.Identity() // the engine asks for it itself, and reports its error
	details := map[string]string{"workspace": s.box.Workspace()}
	if s.box.UID != workspace.NoUID {
		details["uid"] = fmt.Sprint(s.box.UID)
	}
	return sandboxcore.SandboxInfo{
		NativeID: s.box.ID, Endpoint: identity, Status: sandboxcore.StatusRunning, Marks: s.box.Marks, CreatedAt: s.box.Marks.Created, Details: details,
	}
}

// environment is what a run gets: a few variables of ours, then the sandbox's, then its own.
func environment(box *workspace.Sandbox, own map[string]string) ([]string, error) {
	env := map[string]string{
		"PATH": insidePath, "HOME": sandboxcore.Workspace, "LANG": "C.UTF-8", "USER": "sandbox", "LOGNAME": "sandbox", "TMPDIR": "/tmp",
	}
	sandboxEnv, err := box.Env()
	if err != nil {
		return nil, err
	}
	maps.Copy(env, sandboxEnv)
	maps.Copy(env, own)
	list := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list, nil
}

// target is where the engine's requests run: a bwrap of their own each.
func (s *sandbox) target(box *workspace.Sandbox, env []string, started **run) supervised.Target {
	return supervised.Target{
		Object: box.Object(), Place: "the sandbox (" + insidePath + ")",
		Open: func(ctx context.Context) (*runhelper.Conn, error) {
			r, err := s.start(ctx, box)
			if err != nil {
				return nil, err
			}
			*started = r
			return r.conn, nil
		},
		Adjust: func(r *runhelper.Request) {
			r.ClearEnv = true
			r.Env = env
		},
	}
}

// Run runs one request. The run is ended by a Destroy of the sandbox, which then is gone.
func (s *sandbox) Run(ctx context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	box, err := s.endpoint.store.Find(s.box.ID)
	if err != nil {
		return sandboxcore.RunResult{}, err
	}
	if err := requireInterpreter(req.Kind, req.Language); err != nil {
		return sandboxcore.RunResult{}, err
	}
	if req.KeepBackground {
		return sandboxcore.RunResult{}, &sandboxcore.Error{
			Code: sandboxcore.CodeOperation, Attempted: "the run was refused", Object: box.Object(), Said: "a run's processes end with its namespace.",
			Next: "Remove background = \"keep\".", Attribute: []string{"background"},
		}
	}
	env, err := environment(box, req.Env)
	if err != nil {
		return sandboxcore.RunResult{}, err
	}
	if req.WorkingDirectory != "" && !path.IsAbs(req.WorkingDirectory) {
		req.WorkingDirectory = path.Join(sandboxcore.Workspace, req.WorkingDirectory)
	}
	ctx, done := s.endpoint.active.Begin(ctx, box.ID)
	defer done()
	var r *run
	res, err := supervised.Run(ctx, s.target(box, env, &r), req, stdout, stderr)
	switch {
	case err != nil && errors.Is(context.Cause(ctx), workspace.ErrDestroyed):
		return res, box.Closing()
	case r == nil || !r.outOfMemory:
	case err == nil && res.ExitCode == 137, sandboxcore.IsCode(err, sandboxcore.CodeUnknownOutcome) && ctx.Err() == nil:
		// Either the program was killed, or the supervisor with everything else.
		res.OOMKilled, res.ExitCode, res.Signal = true, 137, int(syscall.SIGKILL)
		return res, nil
	}
	return res, err
}

// fileTarget prepares a file operation inside of the sandbox's own view.
func (s *sandbox) fileTarget(ctx context.Context, name string) (context.Context, func(), supervised.Target, string, error) {
	box, err := s.endpoint.store.Find(s.box.ID)
	if err == nil && (name == "" || strings.ContainsRune(name, 0)) {
		err = &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the path was refused", Object: sandboxcore.Printable(name), Said: "it is empty or has a NUL byte.",
			Next: "Use a path inside " + sandboxcore.Workspace + ".", Attribute: []string{"path"},
		}
	}
	if err != nil {
		return ctx, nil, supervised.Target{}, "", err
	}
	if !path.IsAbs(name) {
		// Not cleaned: the kernel knows better than we what ".." means behind a link.
		name = sandboxcore.Workspace + "/" + name
	}
	ctx, done := s.endpoint.active.Begin(ctx, box.ID)
	var r *run
	return ctx, done, s.target(box, nil, &r), name, nil
}

// ReadFile reads a file as the sandbox sees it.
func (s *sandbox) ReadFile(ctx context.Context, name string, limit int64) ([]byte, fs.FileMode, error) {
	ctx, done, target, name, err := s.fileTarget(ctx, name)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	return supervised.ReadFile(ctx, target, name, limit)
}

// WriteFile writes a file as the sandbox sees it.
func (s *sandbox) WriteFile(ctx context.Context, name string, content []byte, mode fs.FileMode) error {
	ctx, done, target, name, err := s.fileTarget(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	if err := s.kept(name); err != nil {
		return err
	}
	return supervised.WriteFile(ctx, target, name, content, mode)
}

// RemoveFile removes a file as the sandbox sees it.
func (s *sandbox) RemoveFile(ctx context.Context, name string) error {
	ctx, done, target, name, err := s.fileTarget(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	return supervised.RemoveFile(ctx, target, name)
}

// kept refuses a file that would be gone with the end of the operation: each has a /tmp and a /dev of its own.
func (s *sandbox) kept(name string) error {
	clean := path.Clean(name)
	for _, dir := range append([]string{sandboxcore.Workspace}, s.config.FSWrite...) {
		if within(clean, path.Clean(dir)) {
			return nil
		}
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeValue, Attempted: "the file was not written", Object: s.box.Object() + ": " + sandboxcore.Printable(name),
		Said: "what is there is read-only, or private to each run and gone with it.",
		Next: "Use a path below " + sandboxcore.Workspace + " or below one of policy.fs_allow_write.", Attribute: []string{"path"},
	}
}

// Pause is not offered.
func (s *sandbox) Pause(context.Context) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeOperation, Attempted: "the sandbox was not paused", Object: s.box.Object(), Said: "a bubblewrap sandbox has no processes between its runs.",
		Next: "Set desired_state = \"running\".", Attribute: []string{"desired_state"},
	}
}

// Resume has nothing to do.
func (s *sandbox) Resume(context.Context) error { return nil }

// Update records name, labels and what else is only recorded.
func (s *sandbox) Update(_ context.Context, _ *sandboxcore.Profile, marks sandboxcore.Marks) error {
	return s.box.UpdateMarks(marks)
}

// Destroy ends every run and removes the sandbox with its control groups.
func (s *sandbox) Destroy(ctx context.Context) error {
	return s.box.Destroy(ctx, s.endpoint.endRuns(s.box))
}
