package backendtest

import (
	"context"
	"io"
	"io/fs"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// FakeTarget is an environment that the fake did not create.
type FakeTarget struct {
	NativeID string
	Status   sandboxcore.Status
	Platform string
	Details  map[string]string
}

// SetTarget makes the environment known that an attached profile names by attachTo; nil makes it gone.
func (f *Fake) SetTarget(attachTo string, t *FakeTarget) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.targets == nil {
		f.targets = map[string]*FakeTarget{}
	}
	f.targets[attachTo] = t
}

// Attach binds to a target.
func (e *fakeEndpoint) Attach(ctx context.Context, p *sandboxcore.Profile) (sandboxcore.AttachedEnvironment, error) {
	if err := e.f.call(ctx, "attach"); err != nil {
		return nil, err
	}
	name := p.Settings.String("attach_to", "")
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	t := e.f.targets[name]
	if t == nil {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeGone, Attempted: "the environment could not be bound", Object: name, Said: "it does not exist.", Next: "Name one that exists.",
		}
	}
	return &fakeAttached{e.f, *t}, nil
}

type fakeAttached struct {
	f *Fake
	t FakeTarget
}

func (a *fakeAttached) NativeID() string           { return a.t.NativeID }
func (a *fakeAttached) Status() sandboxcore.Status { return a.t.Status }
func (a *fakeAttached) Platform() string           { return a.t.Platform }
func (a *fakeAttached) Details() map[string]string { return a.t.Details }

func (a *fakeAttached) Run(ctx context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	if a.t.Status != sandboxcore.StatusRunning {
		return sandboxcore.RunResult{}, &sandboxcore.Error{
			Code: sandboxcore.CodeStopped, Attempted: "the run was refused", Object: a.t.NativeID, Said: "the environment is " + string(a.t.Status) + ".", Next: "Start it.",
		}
	}
	return (&fakeSandbox{f: a.f}).Run(ctx, req, stdout, stderr)
}

func (a *fakeAttached) ReadFile(ctx context.Context, _ string, _ int64) ([]byte, fs.FileMode, error) {
	return nil, 0, a.f.call(ctx, "read")
}

func (a *fakeAttached) WriteFile(ctx context.Context, _ string, _ []byte, _ fs.FileMode) error {
	return a.f.call(ctx, "write")
}

func (a *fakeAttached) RemoveFile(ctx context.Context, _ string) error {
	return a.f.call(ctx, "remove")
}
