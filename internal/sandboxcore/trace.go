package sandboxcore

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
)

// SpanKind says what a span is of.
type SpanKind int

// Kinds of span, from the outside in.
const (
	// SpanOperation is one request of Terraform.
	SpanOperation SpanKind = iota
	// SpanStep is one step of the engine.
	SpanStep
	// SpanCall is one call of a backend.
	SpanCall
)

// SpanFacts are all that a span may tell. The set is closed on purpose: ids, names, digests and exit status. There is no
// field for code, arguments, environment, output, secrets or the text of an error, so none can get into a trace.
type SpanFacts struct {
	// Construct is the type name of the Terraform construct, Change what is done to it ("create", "update", "delete").
	Construct, Change string
	Backend           BackendType
	ID                string // of the sandbox or environment
	RunID             string
	Fingerprint       string // of the profile
	ExitCode          *int
	// Failed: it ended with an error. Codes are the codes of that error, as far as it has any.
	Failed bool
	Codes  []Code
}

// Tracer records how long work takes and how it ends. It must not block, and is safe for concurrent use.
type Tracer interface {
	// StartSpan begins a span below the one in ctx and gives a context that carries it. end ends it, and is called once.
	StartSpan(ctx context.Context, kind SpanKind, name string) (_ context.Context, end func(SpanFacts))
}

// failed adds what err says to facts: its codes, never its text.
func (f SpanFacts) failed(err error) SpanFacts {
	if err == nil {
		return f
	}
	f.Failed = true
	for _, e := range AllErrors(err, "") {
		if e.Code != "" && !slices.Contains(f.Codes, e.Code) {
			f.Codes = append(f.Codes, e.Code)
		}
	}
	return f
}

// step begins one step of the engine. The function that it gives ends it: no error leaves a step with a secret in it, since
// a backend may quote what it was given. The span of the step tells what rec says by then, which may be nil, and the codes
// of the error.
func (e *Engine) step(ctx context.Context, name string, rec *AuditRecord) (context.Context, func(*error)) {
	if e.cfg.Tracer == nil {
		return ctx, func(err *error) { *err = e.redacted(*err) }
	}
	ctx, end := e.cfg.Tracer.StartSpan(ctx, SpanStep, name)
	return ctx, func(err *error) {
		*err = e.redacted(*err)
		var facts SpanFacts
		if rec != nil {
			facts = SpanFacts{Backend: rec.Backend, ID: rec.ID, RunID: rec.RunID, Fingerprint: rec.Fingerprint, ExitCode: rec.ExitCode}
		}
		end(facts.failed(*err))
	}
}

// redacted gives err without the values of secrets.
func (e *Engine) redacted(err error) error {
	if err == nil {
		return nil
	}
	return NewRedactor(e.secretValues()...).Error(err)
}

// connected connects to a backend and gives its endpoint with a span around each call. Optional interfaces of that are asked
// for with optional.
func (e *Engine) connected(ctx context.Context, t BackendType, b Backend) (Endpoint, error) {
	if e.cfg.Tracer == nil {
		return b.Connect(ctx)
	}
	c := calls{tracer: e.cfg.Tracer, backend: t}
	inner, end := c.start(ctx, "connect")
	ep, err := b.Connect(inner)
	end(SpanFacts{}, err)
	if err != nil {
		return nil, err
	}
	return &tracedEndpoint{Endpoint: ep, calls: c}, nil
}

// wrapper is a handle with spans around another one. It has the methods of every optional interface, whether or not the
// other has it.
type wrapper interface{ unwrap() any }

// optional gives handle as a T if what a backend gave is one. The engine asks with it, and never with a type assertion: that
// would be true of every wrapper.
func optional[T any](handle any) (T, bool) {
	if w, ok := handle.(wrapper); ok {
		inner, ok := optional[T](w.unwrap())
		if !ok {
			return inner, false
		}
		if outer, ok := handle.(T); ok {
			return outer, true
		}
		return inner, true // there is no span for it
	}
	t, ok := handle.(T)
	return t, ok
}

// calls makes the spans of the calls of one backend.
type calls struct {
	tracer  Tracer
	backend BackendType
}

func (c calls) start(ctx context.Context, name string) (context.Context, func(SpanFacts, error)) {
	ctx, end := c.tracer.StartSpan(ctx, SpanCall, string(c.backend)+" "+name)
	return ctx, func(facts SpanFacts, err error) {
		facts.Backend = c.backend
		end(facts.failed(err))
	}
}

func (c calls) id(native string) string {
	if native == "" {
		return ""
	}
	return SandboxID(c.backend, native)
}

type tracedEndpoint struct {
	Endpoint
	calls calls
}

// errNotOffered is what a method answers that optional would not have led to.
var errNotOffered = errors.New("the backend does not offer this")

func (t *tracedEndpoint) unwrap() any { return t.Endpoint }

func (t *tracedEndpoint) Identity(ctx context.Context) (string, error) {
	ctx, end := t.calls.start(ctx, "identity")
	id, err := t.Endpoint.Identity(ctx)
	end(SpanFacts{}, err)
	return id, err
}

func (t *tracedEndpoint) Offers(ctx context.Context) (Offer, error) {
	ctx, end := t.calls.start(ctx, "offers")
	o, err := t.Endpoint.Offers(ctx)
	end(SpanFacts{}, err)
	return o, err
}

func (t *tracedEndpoint) Admit(ctx context.Context, p *Profile, op Operation) error {
	ctx, end := t.calls.start(ctx, "admit")
	err := t.Endpoint.Admit(ctx, p, op)
	end(SpanFacts{}, err)
	return err
}

func (t *tracedEndpoint) Create(ctx context.Context, req CreateRequest, onCreated func(SandboxInfo)) (ManagedSandbox, error) {
	ctx, end := t.calls.start(ctx, "create")
	facts := SpanFacts{Fingerprint: Fingerprint(req.Marks.Spec)}
	sb, err := t.Endpoint.Create(ctx, req, func(i SandboxInfo) {
		facts.ID = t.calls.id(i.NativeID)
		onCreated(i)
	})
	end(facts, err)
	return t.calls.sandbox(sb, err)
}

func (t *tracedEndpoint) Find(ctx context.Context, nativeID string, fresh bool) (ManagedSandbox, error) {
	ctx, end := t.calls.start(ctx, "find")
	sb, err := t.Endpoint.Find(ctx, nativeID, fresh)
	end(SpanFacts{ID: t.calls.id(nativeID)}, err)
	return t.calls.sandbox(sb, err)
}

func (t *tracedEndpoint) List(ctx context.Context) ([]SandboxInfo, error) {
	ctx, end := t.calls.start(ctx, "list")
	list, err := t.Endpoint.List(ctx)
	end(SpanFacts{}, err)
	return list, err
}

// Attach is there for an endpoint that is an AttachingEndpoint.
func (t *tracedEndpoint) Attach(ctx context.Context, p *Profile) (AttachedEnvironment, error) {
	attaching, ok := t.Endpoint.(AttachingEndpoint)
	if !ok {
		return nil, errNotOffered
	}
	ctx, end := t.calls.start(ctx, "attach")
	target, err := attaching.Attach(ctx, p)
	if err != nil {
		end(SpanFacts{}, err)
		return nil, err
	}
	id := t.calls.id(target.NativeID())
	end(SpanFacts{ID: id}, nil)
	return tracedAttached{AttachedEnvironment: target, runs: tracedRuns{t.calls, target, id}}, nil
}

// IdentityFor is there for an endpoint that is a PlacingEndpoint.
func (t *tracedEndpoint) IdentityFor(ctx context.Context, p *Profile) (string, error) {
	placing, ok := t.Endpoint.(PlacingEndpoint)
	if !ok {
		return "", errNotOffered
	}
	ctx, end := t.calls.start(ctx, "identity")
	id, err := placing.IdentityFor(ctx, p)
	end(SpanFacts{}, err)
	return id, err
}

// ReadLive is there for an endpoint that is a LiveReader.
func (t *tracedEndpoint) ReadLive(ctx context.Context, nativeID string, p *Profile) error {
	live, ok := t.Endpoint.(LiveReader)
	if !ok {
		return errNotOffered
	}
	ctx, end := t.calls.start(ctx, "read live")
	err := live.ReadLive(ctx, nativeID, p)
	end(SpanFacts{ID: t.calls.id(nativeID)}, err)
	return err
}

// sandbox gives sb with a span around each call.
func (c calls) sandbox(sb ManagedSandbox, err error) (ManagedSandbox, error) {
	if sb == nil {
		return nil, err
	}
	return tracedSandbox{ManagedSandbox: sb, runs: tracedRuns{c, sb, c.id(sb.Info().NativeID)}}, err
}

type tracedSandbox struct {
	ManagedSandbox
	runs tracedRuns
}

func (t tracedSandbox) unwrap() any { return t.ManagedSandbox }

func (t tracedSandbox) do(ctx context.Context, name string, call func(context.Context) error) error {
	ctx, end := t.runs.calls.start(ctx, name)
	err := call(ctx)
	end(SpanFacts{ID: t.runs.id}, err)
	return err
}

// ReadEnv is there for a sandbox that is an EnvironmentReader.
func (t tracedSandbox) ReadEnv(ctx context.Context) (map[string]string, error) {
	reader, ok := t.ManagedSandbox.(EnvironmentReader)
	if !ok {
		return nil, errNotOffered
	}
	ctx, end := t.runs.calls.start(ctx, "read environment")
	env, err := reader.ReadEnv(ctx)
	end(SpanFacts{ID: t.runs.id}, err)
	return env, err
}

func (t tracedSandbox) Run(ctx context.Context, req RunRequest, stdout, stderr io.Writer) (RunResult, error) {
	return t.runs.Run(ctx, req, stdout, stderr)
}

func (t tracedSandbox) ReadFile(ctx context.Context, path string, limit int64) ([]byte, fs.FileMode, error) {
	return t.runs.ReadFile(ctx, path, limit)
}

func (t tracedSandbox) WriteFile(ctx context.Context, path string, content []byte, mode fs.FileMode) error {
	return t.runs.WriteFile(ctx, path, content, mode)
}

func (t tracedSandbox) RemoveFile(ctx context.Context, path string) error {
	return t.runs.RemoveFile(ctx, path)
}

func (t tracedSandbox) Pause(ctx context.Context) error {
	return t.do(ctx, "pause", t.ManagedSandbox.Pause)
}

func (t tracedSandbox) Resume(ctx context.Context) error {
	return t.do(ctx, "resume", t.ManagedSandbox.Resume)
}

func (t tracedSandbox) Destroy(ctx context.Context) error {
	return t.do(ctx, "destroy", t.ManagedSandbox.Destroy)
}

func (t tracedSandbox) Update(ctx context.Context, p *Profile, marks Marks) error {
	return t.do(ctx, "update", func(ctx context.Context) error { return t.ManagedSandbox.Update(ctx, p, marks) })
}

type tracedAttached struct {
	AttachedEnvironment
	runs tracedRuns
}

func (t tracedAttached) unwrap() any { return t.AttachedEnvironment }

func (t tracedAttached) Run(ctx context.Context, req RunRequest, stdout, stderr io.Writer) (RunResult, error) {
	return t.runs.Run(ctx, req, stdout, stderr)
}

func (t tracedAttached) ReadFile(ctx context.Context, path string, limit int64) ([]byte, fs.FileMode, error) {
	return t.runs.ReadFile(ctx, path, limit)
}

func (t tracedAttached) WriteFile(ctx context.Context, path string, content []byte, mode fs.FileMode) error {
	return t.runs.WriteFile(ctx, path, content, mode)
}

func (t tracedAttached) RemoveFile(ctx context.Context, path string) error {
	return t.runs.RemoveFile(ctx, path)
}

// tracedRuns is the part that managed and attached environments have in common.
type tracedRuns struct {
	calls calls
	next  Environment
	id    string
}

func (t tracedRuns) Run(ctx context.Context, req RunRequest, stdout, stderr io.Writer) (RunResult, error) {
	ctx, end := t.calls.start(ctx, "run")
	res, err := t.next.Run(ctx, req, stdout, stderr)
	facts := SpanFacts{ID: t.id}
	if err == nil {
		facts.ExitCode = &res.ExitCode
	}
	end(facts, err)
	return res, err
}

func (t tracedRuns) ReadFile(ctx context.Context, path string, limit int64) ([]byte, fs.FileMode, error) {
	ctx, end := t.calls.start(ctx, "read file")
	content, mode, err := t.next.ReadFile(ctx, path, limit)
	end(SpanFacts{ID: t.id}, err)
	return content, mode, err
}

func (t tracedRuns) WriteFile(ctx context.Context, path string, content []byte, mode fs.FileMode) error {
	ctx, end := t.calls.start(ctx, "write file")
	err := t.next.WriteFile(ctx, path, content, mode)
	end(SpanFacts{ID: t.id}, err)
	return err
}

func (t tracedRuns) RemoveFile(ctx context.Context, path string) error {
	ctx, end := t.calls.start(ctx, "remove file")
	err := t.next.RemoveFile(ctx, path)
	end(SpanFacts{ID: t.id}, err)
	return err
}
