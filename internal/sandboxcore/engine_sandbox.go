package sandboxcore

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// SandboxRequest asks for one managed sandbox.
type SandboxRequest struct {
	Spec string
	Name string
	// Env is plain; SecretEnv is variable -> name of a provider secret; EnvWO are write-only values.
	Env, SecretEnv, EnvWO map[string]string
	EnvWOVersion          *int64
	Labels                map[string]string
	Packages              []string
	Principal             Principal
	MaxLifetime           string
	// Timeouts are only recorded, so that an import brings them back.
	Timeouts map[string]string
	// Paused: desired_state = "paused".
	Paused bool
}

// SandboxRef names one managed sandbox. Endpoint is empty when it is not known yet (import by id).
type SandboxRef struct {
	Backend  BackendType
	Endpoint string
	NativeID string
}

func (r SandboxRef) id() string { return SandboxID(r.Backend, r.NativeID) }

// SandboxUpdate is what changes on a sandbox. Nil and empty fields leave things as they are, except Spec, Name, Labels,
// Packages and Timeouts, which are always the wanted ones: they are recorded with the sandbox, for an import.
type SandboxUpdate struct {
	Spec     string
	Name     string
	Labels   map[string]string
	Packages []string
	Timeouts map[string]string
	// AddPackages are those of Packages that are not installed yet.
	AddPackages []string
	Paused      *bool
	Principal   Principal
}

// MaxLabels and MaxLabelBytes bound user labels.
const (
	MaxLabels     = 32
	MaxLabelBytes = 255
)

func checkLabels(labels map[string]string) Violations {
	var found Violations
	refuse := func(object, said string) {
		found = append(found, &Error{
			Code: CodeValue, Attempted: "the labels were refused", Object: Printable(object), Said: said, Attribute: []string{"labels"},
			Next: fmt.Sprintf("Use at most %d labels of at most %d bytes, plain text, outside the prefix agentkernel.io/.", MaxLabels, MaxLabelBytes),
		})
	}
	if len(labels) > MaxLabels {
		refuse("labels", fmt.Sprintf("there are %d.", len(labels)))
	}
	for _, k := range sortedKeys(labels) {
		v := labels[k]
		switch {
		case k == "" || len(k) > MaxLabelBytes || len(v) > MaxLabelBytes:
			refuse(k, "a key or value is empty or too long.")
		case !isOneLine(k) || Clean(v) != v:
			refuse(k, "a key or value has control characters.")
		case len(k) >= len("agentkernel.io/") && k[:len("agentkernel.io/")] == "agentkernel.io/":
			refuse(k, "the prefix agentkernel.io/ holds this provider's own marks.")
		}
	}
	return found
}

// checkArguments judges what creation and change of a sandbox have in common.
func checkArguments(name string, labels map[string]string, packages []string) Violations {
	var found Violations
	if !ValidName(name) {
		found = append(found, &Error{
			Code: CodeValue, Attempted: "the sandbox was refused", Object: Printable(name), Said: "the name is not possible.",
			Next: "Use " + ProfileNameHint + ".", Attribute: []string{"name"},
		})
	}
	found = append(found, checkLabels(labels)...)
	for _, pkg := range packages {
		if err := CheckRequirement(pkg); err != nil {
			found = append(found, AllErrors(err, CodeValue)...)
		}
	}
	return found
}

// CheckSandbox judges a request without any network call: the spec, the gate, names, environment, labels, packages.
func (e *Engine) CheckSandbox(req SandboxRequest) (*Profile, Verdict, error) {
	p, err := e.cfg.Registry.ParseSpec(req.Spec)
	if err != nil {
		return nil, Verdict{}, err
	}
	if p.Environment == EnvironmentAttached {
		return p, Verdict{}, &Error{
			Code: CodeEnvironmentMode, Attempted: "the sandbox was refused", Object: fmt.Sprintf("profile %q", p.Name), Attribute: []string{"profile"},
			Said: "the profile is of an attached environment, which somebody else owns; a sandbox is created and destroyed.",
			Next: "Bind to it with data.agentkernel_attached_environment, or use a profile with environment = \"managed\".",
		}
	}
	op := createOperation(req)
	verdict, err := e.cfg.Registry.Decide(p, &req.Principal, &op)
	if err != nil {
		return p, verdict, err
	}
	found := checkArguments(req.Name, req.Labels, req.Packages)
	for _, k := range sortedKeys(req.EnvWO) {
		if err := CheckSecret(k, req.EnvWO[k]); err != nil {
			v := AllErrors(err, CodeValue)
			v[0].Attribute = []string{"env_wo"}
			found = append(found, v...)
		}
	}
	if _, err := MergeEnv(req.Env, req.SecretEnv, req.EnvWO); err != nil {
		found = append(found, AllErrors(err, CodeValue)...)
	}
	if len(found) > 0 {
		return p, verdict, found
	}
	return p, verdict, nil
}

func createOperation(req SandboxRequest) Operation {
	return Operation{Name: OpCreate, Packages: len(req.Packages) > 0, Pause: req.Paused, MaxLifetime: req.MaxLifetime != ""}
}

// CreateSandbox makes a sandbox. onCreated is called as soon as the object exists, so that the caller can record it
// before anything else can fail; when an error follows, the object is left for the caller to destroy or to keep tainted.
func (e *Engine) CreateSandbox(ctx context.Context, req SandboxRequest, onCreated func(SandboxInfo)) (info SandboxInfo, err error) {
	rec := AuditRecord{Operation: OpCreate, Fingerprint: Fingerprint(req.Spec), Principal: &req.Principal}
	ctx = withPrincipal(ctx, req.Principal)
	ctx, end := e.step(ctx, "create sandbox", &rec)
	defer end(&err)
	p, verdict, err := e.CheckSandbox(req)
	if p != nil {
		rec.Backend = p.Type
	}
	rec.Unenforced = verdict.Unenforced
	if err != nil {
		return SandboxInfo{}, e.refused(rec, err)
	}
	secrets, err := e.ResolveSecrets(req.SecretEnv)
	if err != nil {
		return SandboxInfo{}, e.refused(rec, err)
	}
	ep, endpoint, err := e.connect(ctx, p.Type)
	if err != nil {
		return SandboxInfo{}, e.finished(rec, e.cfg.Now(), err)
	}
	rec.Endpoint = endpoint
	if err := relax(p, ep.Admit(ctx, p, createOperation(req))); err != nil {
		return SandboxInfo{}, e.refused(rec, err)
	}
	env, err := MergeEnv(req.Env, secrets, req.EnvWO)
	if err != nil {
		return SandboxInfo{}, e.refused(rec, err)
	}
	rec.Verdict = "allowed"
	if err := e.audit(rec); err != nil {
		return SandboxInfo{}, err
	}
	started := e.cfg.Now()
	_ = e.secretValues(secrets, req.EnvWO) // known from here on
	info, err = e.create(ctx, ep, p, req, env, func(i SandboxInfo) {
		i.Endpoint = endpoint
		rec.ID = SandboxID(p.Type, i.NativeID)
		onCreated(i)
	})
	info.Endpoint = endpoint
	return info, e.finished(rec, started, err)
}

func (e *Engine) create(ctx context.Context, ep Endpoint, p *Profile, req SandboxRequest, env map[string]string, onCreated func(SandboxInfo)) (SandboxInfo, error) {
	principal := req.Principal
	marks := Marks{
		Name: req.Name, Spec: req.Spec, Created: e.cfg.Now().UTC().Truncate(time.Millisecond), Request: e.cfg.NewID(),
		Args: CreateArgs{
			Env: req.Env, SecretEnv: req.SecretEnv, EnvWO: sortedKeys(req.EnvWO), EnvWOVersion: req.EnvWOVersion, Labels: req.Labels, Packages: req.Packages,
			Principal: &principal, MaxLifetime: req.MaxLifetime, Timeouts: req.Timeouts,
		},
	}
	var info SandboxInfo
	sb, err := ep.Create(ctx, CreateRequest{Profile: p, Marks: marks, Env: env, Principal: req.Principal}, func(i SandboxInfo) {
		info = i
		onCreated(i)
	})
	if err != nil {
		return info, err
	}
	info = sb.Info()
	if len(req.Packages) > 0 {
		if err := e.install(ctx, sb, p, req.Packages, req.Packages); err != nil {
			return info, err
		}
	}
	if req.Paused {
		if err := sb.Pause(ctx); err != nil {
			return info, err
		}
		info.Status = StatusPaused
	}
	return info, nil
}

// install installs packages; all are those that are there afterwards.
func (e *Engine) install(ctx context.Context, env Environment, p *Profile, packages, all []string) (err error) {
	ctx, end := e.step(ctx, "install packages", nil)
	defer end(&err)
	req := installRequest(packages)
	req.Timeout = max(seconds(p.Policy.Timeout), 10*time.Minute)
	req.Grace = runGrace
	out, errOut := NewCapture(DefaultMaxOutputBytes), NewCapture(DefaultMaxOutputBytes)
	r := NewRedactor(e.secretValues()...)
	ro, re := r.Writer(out), r.Writer(errOut)
	res, err := env.Run(ctx, req, ro, re)
	err = errors.Join(err, ro.Close(), re.Close())
	if err != nil {
		return &RunError{Err: AllErrors(err, CodeProvision)[0], StdoutTail: out.Stream().Tail(tailBytes), StderrTail: errOut.Stream().Tail(tailBytes)}
	}
	if res.ExitCode != 0 {
		code := res.ExitCode
		return &RunError{
			Err: &Error{
				Code: CodeProvision, Attempted: "the packages could not be installed", Object: fmt.Sprint(packages),
				Said: fmt.Sprintf("pip ended with exit status %d.", res.ExitCode), Attribute: []string{"packages"},
				Next: "Read its output below; the image needs python3 with pip, a writable workspace and a way to the package index.",
			},
			ExitCode: &code, StdoutTail: out.Stream().Tail(tailBytes), StderrTail: errOut.Stream().Tail(tailBytes),
		}
	}
	return e.recordPackages(ctx, env, p, all)
}

func seconds(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }

// secretValues gives all values that output and errors must not show: the provider's secrets, those of this request, and
// those of earlier requests of this process.
func (e *Engine) secretValues(more ...map[string]string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range more {
		for _, v := range m {
			if len(v) >= MinSecretBytes {
				e.seen[v] = struct{}{}
			}
		}
	}
	out := sortedKeys(e.seen)
	for _, v := range e.cfg.Secrets {
		out = append(out, v)
	}
	return out
}

// open finds a managed sandbox at the recorded endpoint.
func (e *Engine) open(ctx context.Context, ref SandboxRef, fresh bool) (ManagedSandbox, string, error) {
	ep, endpoint, err := e.connect(ctx, ref.Backend)
	if err != nil {
		return nil, "", err
	}
	if ref.Endpoint != "" && ref.Endpoint != endpoint {
		return nil, endpoint, otherEndpoint(ref, endpoint)
	}
	sb, err := ep.Find(ctx, ref.NativeID, fresh)
	return sb, endpoint, err
}

func otherEndpoint(ref SandboxRef, endpoint string) *Error {
	return &Error{
		Code: CodeOtherEndpoint, Attempted: "the sandbox was not looked up", Object: ref.id(),
		Said: fmt.Sprintf("it was made at endpoint %s, but the provider is now connected to %q.", Quoted(ref.Endpoint), endpoint),
		Next: "Point the provider at the endpoint where it was made. If that is gone for good, remove the object from the state.",
	}
}

// ReadSandbox looks at a sandbox. CodeGone only when the endpoint that it was made at says so.
func (e *Engine) ReadSandbox(ctx context.Context, ref SandboxRef) (_ SandboxInfo, err error) {
	ctx, end := e.step(ctx, "read sandbox", &AuditRecord{Backend: ref.Backend, ID: ref.id()})
	defer end(&err)
	sb, endpoint, err := e.open(ctx, ref, false)
	if err != nil {
		return SandboxInfo{}, err
	}
	info := sb.Info()
	info.Endpoint = endpoint
	return info, nil
}

// LiveSpec gives the spec of a sandbox as it is now, for an import: what info's marks say, with the limits that were
// changed in place since where the backend cannot record such a change. A spec that cannot be read is given as it is.
func (e *Engine) LiveSpec(ctx context.Context, t BackendType, info SandboxInfo) (_ string, err error) {
	ctx, end := e.step(ctx, "read live limits", &AuditRecord{Backend: t, ID: SandboxID(t, info.NativeID), Fingerprint: Fingerprint(info.Marks.Spec)})
	defer end(&err)
	ep, err := e.endpoint(ctx, t)
	if err != nil {
		return "", err
	}
	live, ok := optional[LiveReader](ep)
	if !ok {
		return info.Marks.Spec, nil
	}
	p, err := e.cfg.Registry.ParseSpec(info.Marks.Spec)
	if err != nil {
		return info.Marks.Spec, nil // whoever uses the spec is told what is wrong with it
	}
	if err := live.ReadLive(ctx, info.NativeID, p); err != nil {
		return "", err
	}
	return EncodeSpec(p)
}

// UpdateSandbox changes a sandbox in place. A spec whose difference needs a replacement is refused.
func (e *Engine) UpdateSandbox(ctx context.Context, ref SandboxRef, up SandboxUpdate) (info SandboxInfo, err error) {
	ctx = withPrincipal(ctx, up.Principal)
	rec := AuditRecord{Operation: OpUpdate, Backend: ref.Backend, Endpoint: ref.Endpoint, ID: ref.id(), Fingerprint: Fingerprint(up.Spec), Principal: &up.Principal}
	ctx, end := e.step(ctx, "update sandbox", &rec)
	defer end(&err)
	p, err := e.cfg.Registry.ParseSpec(up.Spec)
	if err != nil {
		return SandboxInfo{}, e.refused(rec, err)
	}
	op := Operation{Name: OpUpdate, Packages: len(up.AddPackages) > 0, Pause: up.Paused != nil && *up.Paused}
	verdict, err := e.cfg.Registry.Decide(p, &up.Principal, &op)
	rec.Unenforced = verdict.Unenforced
	if err != nil {
		return SandboxInfo{}, e.refused(rec, err)
	}
	if found := checkArguments(up.Name, up.Labels, up.AddPackages); len(found) > 0 {
		return SandboxInfo{}, e.refused(rec, found)
	}
	sb, endpoint, err := e.open(ctx, ref, true)
	if err != nil {
		return SandboxInfo{}, e.finished(rec, e.cfg.Now(), err)
	}
	rec.Endpoint = endpoint
	if err := e.checkSpecOnObject(ref, sb.Info().Marks, p); err != nil {
		return SandboxInfo{}, e.refused(rec, err)
	}
	rec.Verdict = "allowed"
	if err := e.audit(rec); err != nil {
		return SandboxInfo{}, err
	}
	started := e.cfg.Now()
	err = e.update(ctx, sb, p, up)
	if err == nil {
		sb, _, err = e.open(ctx, ref, true)
	}
	if sb != nil {
		info = sb.Info()
		info.Endpoint = endpoint
	}
	return info, e.finished(rec, started, err)
}

func (e *Engine) update(ctx context.Context, sb ManagedSandbox, p *Profile, up SandboxUpdate) error {
	info := sb.Info()
	marks := info.Marks
	marks.Name, marks.Spec, marks.Args.Labels = up.Name, up.Spec, up.Labels
	marks.Args.Packages, marks.Args.Timeouts = up.Packages, up.Timeouts
	if err := sb.Update(ctx, p, marks); err != nil {
		return err
	}
	wake := info.Status != StatusRunning && (len(up.AddPackages) > 0 || (up.Paused != nil && !*up.Paused))
	if wake {
		if err := sb.Resume(ctx); err != nil {
			return err
		}
	}
	if len(up.AddPackages) > 0 {
		if err := e.install(ctx, sb, p, up.AddPackages, up.Packages); err != nil {
			return err
		}
	}
	if up.Paused != nil && *up.Paused && (info.Status != StatusPaused || wake) {
		return sb.Pause(ctx)
	}
	return nil
}

// checkSpecOnObject refuses to treat an object under a spec that is not its own: the spec on the object decides. Parts
// that are only recorded, or that the backend changes in place, may differ.
func (e *Engine) checkSpecOnObject(ref SandboxRef, marks Marks, p *Profile) error {
	own, err := e.cfg.Registry.ParseSpec(marks.Spec)
	if err != nil {
		return err
	}
	if own.Type == p.Type {
		change := e.cfg.Registry.DiffProfiles(own, p, e.cfg.Registry.LiveFields(p.Type))
		if len(change.Replace) == 0 {
			return nil
		}
		return &Error{
			Code: CodeSpec, Attempted: "the sandbox was refused", Object: ref.id(), Attribute: []string{"binding", "spec"},
			Said: fmt.Sprintf("it was made with another spec; they differ in %s.", quoteList(change.Replace)),
			Next: "Take the binding as a whole from agentkernel_sandbox.",
		}
	}
	return &Error{
		Code: CodeSpec, Attempted: "the sandbox was refused", Object: ref.id(), Attribute: []string{"binding", "spec"},
		Said: fmt.Sprintf("it was made with a spec of type %q.", own.Type), Next: "Take the binding as a whole from agentkernel_sandbox.",
	}
}

// DestroySandbox removes a sandbox and what belongs to it, and asks again whether it is gone. Gone already is success.
func (e *Engine) DestroySandbox(ctx context.Context, ref SandboxRef) (err error) {
	rec := AuditRecord{Operation: OpDestroy, Backend: ref.Backend, Endpoint: ref.Endpoint, ID: ref.id(), Verdict: "allowed"}
	ctx, end := e.step(ctx, "destroy sandbox", &rec)
	defer end(&err)
	if err := e.audit(rec); err != nil {
		return err
	}
	started := e.cfg.Now()
	sb, endpoint, err := e.open(ctx, ref, true)
	rec.Endpoint = endpoint
	switch {
	case IsCode(err, CodeGone):
		err = nil
	case err == nil:
		rec.Fingerprint = Fingerprint(sb.Info().Marks.Spec)
		err = sb.Destroy(ctx)
	}
	return e.finished(rec, started, err)
}

// ListSandboxes gives everything at the endpoint that carries our marks, orphans included.
func (e *Engine) ListSandboxes(ctx context.Context, t BackendType) (_ []SandboxInfo, err error) {
	ctx, end := e.step(ctx, "list sandboxes", &AuditRecord{Backend: t})
	defer end(&err)
	ep, endpoint, err := e.connect(ctx, t)
	if err != nil {
		return nil, err
	}
	list, err := ep.List(ctx)
	if err != nil {
		return nil, err
	}
	for i := range list {
		list[i].Endpoint = endpoint
	}
	return list, nil
}
