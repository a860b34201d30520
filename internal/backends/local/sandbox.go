package local

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"slices"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/workspace"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// sandbox is the handle of one workspace.
type sandbox struct {
	endpoint *endpoint
	box      *workspace.Sandbox
}

// Info is the look that was taken when the handle was made. A workspace is always "running": a run needs nothing to be
// started before.
func (s *sandbox) Info() sandboxcore.SandboxInfo {
	identity, _ := s.endpoint.store.Identity() // the engine asks for it itself, and reports its error
	return sandboxcore.SandboxInfo{
		NativeID: s.box.ID, Endpoint: identity, Status: sandboxcore.StatusRunning, Marks: s.box.Marks, CreatedAt: s.box.Marks.Created,
		Details: map[string]string{"workspace": s.box.Workspace()},
	}
}

// environment is what a run gets: a few variables of ours, then the sandbox's, then its own. Nothing of the provider's
// environment but PATH, without which interpreters outside the system's directories would not be found.
func (s *sandbox) environment(own map[string]string) ([]string, error) {
	env := map[string]string{"PATH": s.endpoint.searchPath(), "HOME": s.box.Workspace(), "LANG": "C.UTF-8"}
	maps.Copy(env, platformEnvironment())
	sandboxEnv, err := s.box.Env()
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

// Run runs one request. The run is ended by a Destroy of the sandbox, which then is gone.
func (s *sandbox) Run(ctx context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	box, err := s.endpoint.store.Find(s.box.ID)
	if err != nil {
		return sandboxcore.RunResult{}, err
	}
	if err := s.endpoint.requireInterpreter(req.Kind, req.Language); err != nil {
		return sandboxcore.RunResult{}, err
	}
	if req.KeepBackground {
		return sandboxcore.RunResult{}, &sandboxcore.Error{
			Code: sandboxcore.CodeOperation, Attempted: "the run was refused", Object: box.Object(), Said: "what a run leaves in the background ends with it.",
			Next: "Remove background = \"keep\".", Attribute: []string{"background"},
		}
	}
	if req.WorkingDirectory, err = (workspace.Files{Sandbox: box}).Directory(req.WorkingDirectory); err != nil {
		return sandboxcore.RunResult{}, err
	}
	env, err := s.environment(req.Env)
	if err != nil {
		return sandboxcore.RunResult{}, err
	}
	ctx, done := s.endpoint.active.Begin(ctx, box.ID)
	defer done()
	res, err := s.endpoint.run(ctx, box, req, env, stdout, stderr)
	if err != nil && errors.Is(context.Cause(ctx), workspace.ErrDestroyed) {
		err = box.Closing()
	}
	return res, err
}

// ReadFile reads a file of the workspace.
func (s *sandbox) ReadFile(ctx context.Context, path string, limit int64) ([]byte, fs.FileMode, error) {
	return workspace.Files{Sandbox: s.box}.ReadFile(ctx, path, limit)
}

// WriteFile writes a file of the workspace.
func (s *sandbox) WriteFile(ctx context.Context, path string, content []byte, mode fs.FileMode) error {
	return workspace.Files{Sandbox: s.box}.WriteFile(ctx, path, content, mode)
}

// RemoveFile removes a file of the workspace.
func (s *sandbox) RemoveFile(ctx context.Context, path string) error {
	return workspace.Files{Sandbox: s.box}.RemoveFile(ctx, path)
}

// Pause is not offered.
func (s *sandbox) Pause(context.Context) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeOperation, Attempted: "the sandbox was not paused", Object: s.box.Object(), Said: "local processes cannot be paused.",
		Next: "Set desired_state = \"running\".", Attribute: []string{"desired_state"},
	}
}

// Resume has nothing to do.
func (s *sandbox) Resume(context.Context) error { return nil }

// Update records name, labels and what else is only recorded.
func (s *sandbox) Update(_ context.Context, _ *sandboxcore.Profile, marks sandboxcore.Marks) error {
	return s.box.UpdateMarks(marks)
}

// Destroy ends every run and removes the workspace.
func (s *sandbox) Destroy(ctx context.Context) error {
	return s.box.Destroy(ctx, s.endpoint.endRuns(s.box.ID))
}
