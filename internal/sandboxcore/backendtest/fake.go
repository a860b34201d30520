// Package backendtest has the contract suite that every backend passes, and a fake backend for faults that a real one
// cannot be made to have.
package backendtest

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Fake is a backend in memory. It counts calls, fails where it is told to, and keeps what exists. The zero value works.
// It is safe for concurrent use; set the exported fields before use.
type Fake struct {
	// Type is the backend type; empty: docker.
	Type sandboxcore.BackendType
	// Caps gives the capabilities; nil: DefaultCaps.
	Caps func(*sandboxcore.Profile) sandboxcore.Capabilities
	// Settings and ProviderSettings of the factory.
	Settings, ProviderSettings []sandboxcore.Setting
	// Live are the fields changed in place.
	Live []string
	// Records: an update is recorded with the object. The labels of a container, which cannot be changed, do not.
	Records bool
	// ID is the endpoint's identity; empty: "fake-endpoint".
	ID string
	// Fail is asked before each call ("connect", "identity", "admit", "create", "created", "find", "list", "live", "run",
	// "read", "write", "pause", "resume", "update", "destroy") and may give an error. "created" comes after onCreated.
	Fail func(ctx context.Context, call string) error
	// OnRun plays a run; nil: exit 0, no output.
	OnRun func(ctx context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error)
	// OnReadFile plays the files of a sandbox; nil: what was written there.
	OnReadFile func(name string, limit int64) ([]byte, error)

	mu      sync.Mutex
	next    int
	objects map[string]*fakeObject
	calls   []string
	targets map[string]*FakeTarget
}

type fakeObject struct {
	info  sandboxcore.SandboxInfo
	env   map[string]string
	files map[string][]byte
	alien bool
	// live is the profile of the last update that was not recorded.
	live *sandboxcore.Profile
}

// DefaultCaps are the capabilities of a fake that can do nearly everything.
func DefaultCaps() sandboxcore.Capabilities {
	return sandboxcore.Capabilities{
		Isolation: sandboxcore.IsolationContainer, Shell: true, Languages: []string{"python"}, Files: true, PackageInstall: true, Attach: true,
		Provisions: true, PolicyNetwork: true, PolicyFilesystem: true, PolicyResources: true,
		NetworkModes: []sandboxcore.NetworkMode{sandboxcore.NetworkAllow, sandboxcore.NetworkDeny}, FSWrite: true, Stdin: true, Streaming: true,
		SplitOutput: true, Pause: true, LiveUpdate: []string{"cpu", "memory_mb"}, KeepBackground: true, KillsTree: true,
	}
}

// Factory gives the fake as a backend kind. Every Backend it makes shares this fake's objects.
func (f *Fake) Factory() sandboxcore.Factory {
	t := f.Type
	if t == "" {
		t = sandboxcore.BackendDocker
	}
	return sandboxcore.Factory{
		Type: t, Settings: f.Settings, ProviderSettings: f.ProviderSettings, Describe: "in-memory fake",
		New: func(sandboxcore.Settings, func(string) string) (sandboxcore.Backend, error) {
			return &fakeBackend{f}, nil
		},
	}
}

// Calls gives the calls so far, in order.
func (f *Fake) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Count gives how often call was made.
func (f *Fake) Count(call string) int {
	n := 0
	for _, c := range f.Calls() {
		if c == call {
			n++
		}
	}
	return n
}

// Objects lists the ids that exist.
func (f *Fake) Objects() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for id := range f.objects {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Remove makes an object vanish, as if somebody had removed it behind our back.
func (f *Fake) Remove(nativeID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.objects, nativeID)
}

// SetStatus changes an object's status from outside.
func (f *Fake) SetStatus(nativeID string, s sandboxcore.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.objects[nativeID]; o != nil {
		o.info.Status = s
	}
}

// SetMarks changes what an object carries, as whoever may write to the backend can.
func (f *Fake) SetMarks(nativeID string, change func(*sandboxcore.Marks)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.objects[nativeID]; o != nil {
		change(&o.info.Marks)
	}
}

// SetDormant makes an object sleep because its time is over.
func (f *Fake) SetDormant(nativeID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.objects[nativeID]; o != nil {
		o.info.Status, o.info.Dormant = sandboxcore.StatusPaused, true
	}
}

// AddAlien makes an object without our marks and gives its id.
func (f *Fake) AddAlien() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.add(sandboxcore.Marks{}, nil, true).info.NativeID
}

// SetExpiry changes the time at which an object ends.
func (f *Fake) SetExpiry(nativeID string, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects[nativeID].info.ExpiresAt = at
}

// Env gives the environment that an object was made with.
func (f *Fake) Env(nativeID string) map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.objects[nativeID]; o != nil {
		return o.env
	}
	return nil
}

func (f *Fake) add(m sandboxcore.Marks, env map[string]string, alien bool) *fakeObject {
	if f.objects == nil {
		f.objects = map[string]*fakeObject{}
	}
	f.next++
	o := &fakeObject{
		info: sandboxcore.SandboxInfo{NativeID: fmt.Sprintf("fake-%d", f.next), Status: sandboxcore.StatusRunning, Marks: m, CreatedAt: m.Created},
		env:  env, files: map[string][]byte{}, alien: alien,
	}
	f.objects[o.info.NativeID] = o
	return o
}

func (f *Fake) call(ctx context.Context, name string) error {
	f.mu.Lock()
	f.calls = append(f.calls, name)
	fail := f.Fail
	f.mu.Unlock()
	if fail != nil {
		if err := fail(ctx, name); err != nil {
			return err
		}
	}
	return ctx.Err()
}

type fakeBackend struct{ f *Fake }

func (b *fakeBackend) Capabilities(p *sandboxcore.Profile) sandboxcore.Capabilities {
	if b.f.Caps != nil {
		return b.f.Caps(p)
	}
	return DefaultCaps()
}

func (b *fakeBackend) Validate(*sandboxcore.Profile) []*sandboxcore.Error { return nil }
func (b *fakeBackend) LiveFields() []string                               { return b.f.Live }

func (b *fakeBackend) Connect(ctx context.Context) (sandboxcore.Endpoint, error) {
	if err := b.f.call(ctx, "connect"); err != nil {
		return nil, err
	}
	return &fakeEndpoint{b.f}, nil
}

type fakeEndpoint struct{ f *Fake }

func (e *fakeEndpoint) Identity(ctx context.Context) (string, error) {
	if err := e.f.call(ctx, "identity"); err != nil {
		return "", err
	}
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	if e.f.ID == "" {
		return "fake-endpoint", nil
	}
	return e.f.ID, nil
}

// SetID changes the endpoint's identity, as if the provider were pointed at another engine.
func (f *Fake) SetID(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ID = id
}

// SetFail changes Fail while the fake is in use.
func (f *Fake) SetFail(fail func(ctx context.Context, call string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Fail = fail
}

func (e *fakeEndpoint) Offers(ctx context.Context) (sandboxcore.Offer, error) {
	if err := e.f.call(ctx, "offers"); err != nil {
		return sandboxcore.Offer{}, err
	}
	return sandboxcore.Offer{Reachable: true, Languages: []string{"python"}, CPU: true, Memory: true, Network: true, Pause: true, Facts: map[string]string{"kind": "fake"}}, nil
}

func (e *fakeEndpoint) Admit(ctx context.Context, _ *sandboxcore.Profile, _ sandboxcore.Operation) error {
	return e.f.call(ctx, "admit")
}

func (e *fakeEndpoint) Create(ctx context.Context, req sandboxcore.CreateRequest, onCreated func(sandboxcore.SandboxInfo)) (sandboxcore.ManagedSandbox, error) {
	if err := e.f.call(ctx, "create"); err != nil {
		return nil, err
	}
	e.f.mu.Lock()
	o := e.f.add(req.Marks, req.Env, false)
	info := o.info
	e.f.mu.Unlock()
	onCreated(info)
	if err := e.f.call(ctx, "created"); err != nil {
		return nil, err
	}
	return &fakeSandbox{e.f, info}, nil
}

func (e *fakeEndpoint) Find(ctx context.Context, nativeID string, _ bool) (sandboxcore.ManagedSandbox, error) {
	if err := e.f.call(ctx, "find"); err != nil {
		return nil, err
	}
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	o := e.f.objects[nativeID]
	if o == nil {
		return nil, &sandboxcore.Error{Code: sandboxcore.CodeGone, Attempted: "the sandbox was looked up", Object: nativeID, Said: "it does not exist."}
	}
	if o.alien {
		return nil, &sandboxcore.Error{Code: sandboxcore.CodeNotOurs, Attempted: "the sandbox was looked up", Object: nativeID, Said: "it has no marks."}
	}
	return &fakeSandbox{e.f, o.info}, nil
}

func (e *fakeEndpoint) List(ctx context.Context) ([]sandboxcore.SandboxInfo, error) {
	if err := e.f.call(ctx, "list"); err != nil {
		return nil, err
	}
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	var out []sandboxcore.SandboxInfo
	for _, o := range e.f.objects {
		if !o.alien {
			out = append(out, o.info)
		}
	}
	return out, nil
}

// ReadLive gives cpu and memory as the last update left them.
func (e *fakeEndpoint) ReadLive(ctx context.Context, nativeID string, p *sandboxcore.Profile) error {
	if err := e.f.call(ctx, "live"); err != nil {
		return err
	}
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	if o := e.f.objects[nativeID]; o != nil && o.live != nil {
		p.Policy.CPU, p.Policy.MemoryMB = o.live.Policy.CPU, o.live.Policy.MemoryMB
	}
	return nil
}

type fakeSandbox struct {
	f    *Fake
	info sandboxcore.SandboxInfo
}

func (s *fakeSandbox) Info() sandboxcore.SandboxInfo { return s.info }

func (s *fakeSandbox) Run(ctx context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	if err := s.f.call(ctx, "run"); err != nil {
		return sandboxcore.RunResult{}, err
	}
	if s.f.OnRun != nil {
		return s.f.OnRun(ctx, req, stdout, stderr)
	}
	return sandboxcore.RunResult{Duration: time.Millisecond}, nil
}

// ReadEnv gives the environment that the object was made with.
func (s *fakeSandbox) ReadEnv(context.Context) (map[string]string, error) {
	return s.f.Env(s.info.NativeID), nil
}

func (s *fakeSandbox) with(ctx context.Context, call string, fn func(*fakeObject) error) error {
	if err := s.f.call(ctx, call); err != nil {
		return err
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	o := s.f.objects[s.info.NativeID]
	if o == nil {
		return &sandboxcore.Error{Code: sandboxcore.CodeGone, Attempted: call, Object: s.info.NativeID, Said: "it does not exist."}
	}
	return fn(o)
}

func (s *fakeSandbox) ReadFile(ctx context.Context, name string, limit int64) (content []byte, mode fs.FileMode, err error) {
	err = s.with(ctx, "read", func(o *fakeObject) error {
		if s.f.OnReadFile != nil {
			content, err = s.f.OnReadFile(name, limit)
			return err
		}
		c, ok := o.files[name]
		if !ok {
			return &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist}
		}
		if int64(len(c)) > limit {
			return fmt.Errorf("%s has %d bytes, more than %d", name, len(c), limit)
		}
		content = slices.Clone(c)
		return nil
	})
	return content, 0o644, err
}

func (s *fakeSandbox) WriteFile(ctx context.Context, name string, content []byte, _ fs.FileMode) error {
	return s.with(ctx, "write", func(o *fakeObject) error {
		o.files[name] = slices.Clone(content)
		return nil
	})
}

func (s *fakeSandbox) RemoveFile(ctx context.Context, name string) error {
	return s.with(ctx, "remove", func(o *fakeObject) error {
		delete(o.files, name)
		return nil
	})
}

func (s *fakeSandbox) status(ctx context.Context, call string, status sandboxcore.Status) error {
	return s.with(ctx, call, func(o *fakeObject) error {
		o.info.Status = status
		return nil
	})
}

func (s *fakeSandbox) Pause(ctx context.Context) error {
	return s.status(ctx, "pause", sandboxcore.StatusPaused)
}

func (s *fakeSandbox) Resume(ctx context.Context) error {
	return s.status(ctx, "resume", sandboxcore.StatusRunning)
}

func (s *fakeSandbox) Update(ctx context.Context, p *sandboxcore.Profile, marks sandboxcore.Marks) error {
	return s.with(ctx, "update", func(o *fakeObject) error {
		if s.f.Records {
			o.info.Marks = marks
		} else {
			o.live = p
		}
		return nil
	})
}

func (s *fakeSandbox) Destroy(ctx context.Context) error {
	if err := s.f.call(ctx, "destroy"); err != nil {
		return err
	}
	s.f.Remove(s.info.NativeID)
	return nil
}
