package sandboxcore

import (
	"context"
	"fmt"
)

// Attachment is what one look at an attached environment shows.
type Attachment struct {
	Binding  Binding
	Status   Status
	Platform string
	Details  map[string]string
}

// CheckAttach judges an attached profile without any network call.
func (e *Engine) CheckAttach(spec string, principal *Principal) (*Profile, Verdict, error) {
	p, err := e.cfg.Registry.ParseSpec(spec)
	if err != nil {
		return nil, Verdict{}, err
	}
	if p.Environment != EnvironmentAttached {
		return p, Verdict{}, profileError(p, CodeEnvironmentMode, []string{"profile"}, "the profile is of a managed sandbox, which exists only as an agentkernel_sandbox.",
			"Set environment = \"attached\" on the profile and name a target, or use agentkernel_sandbox.")
	}
	verdict, err := e.cfg.Registry.Decide(p, principal, nil)
	return p, verdict, err
}

// Attach looks at the environment that an attached profile names and gives its binding. It changes nothing there.
func (e *Engine) Attach(ctx context.Context, spec string, principal Principal) (at Attachment, err error) {
	ctx = withPrincipal(ctx, principal)
	rec := AuditRecord{Operation: OpAttach, Principal: &principal}
	ctx, end := e.step(ctx, "attach", &rec)
	defer end(&err)
	p, verdict, err := e.CheckAttach(spec, &principal)
	rec.Unenforced = verdict.Unenforced
	if p != nil {
		rec.Backend, rec.Fingerprint = p.Type, Fingerprint(spec)
	}
	if err != nil {
		return Attachment{}, e.refused(rec, err)
	}
	started := e.cfg.Now()
	at, err = e.look(ctx, &rec, p, spec)
	return at, e.finished(rec, started, err)
}

func (e *Engine) look(ctx context.Context, rec *AuditRecord, p *Profile, spec string) (Attachment, error) {
	ep, endpoint, err := e.connectFor(ctx, p)
	if err != nil {
		return Attachment{}, err
	}
	rec.Endpoint = endpoint
	target, err := attachTo(ctx, ep, p)
	if err != nil {
		return Attachment{}, err
	}
	rec.ID = SandboxID(p.Type, target.NativeID())
	return Attachment{
		Binding: Binding{Backend: p.Type, Endpoint: endpoint, Environment: EnvironmentAttached, ID: rec.ID, Spec: spec},
		Status:  target.Status(), Platform: target.Platform(), Details: target.Details(),
	}, nil
}

func attachTo(ctx context.Context, ep Endpoint, p *Profile) (AttachedEnvironment, error) {
	at, ok := optional[AttachingEndpoint](ep)
	if !ok {
		return nil, profileError(p, CodeEnvironmentMode, []string{"environment"}, "this backend cannot bind to an environment that it did not create.", "Choose a backend that attaches.")
	}
	return at.Attach(ctx, p)
}

// attach opens the environment of an attached binding. endpoint is the identity of ep for p.
func (e *Engine) attach(ctx context.Context, ep Endpoint, endpoint string, p *Profile, ref SandboxRef) (Environment, error) {
	if endpoint != ref.Endpoint {
		return nil, otherEndpoint(ref, endpoint)
	}
	target, err := attachTo(ctx, ep, p)
	if err != nil {
		return nil, err
	}
	if target.NativeID() != ref.NativeID {
		return nil, &Error{
			Code: CodeSpec, Attempted: "the run was refused", Object: ref.id(), Said: fmt.Sprintf("the profile's target is %q.", SandboxID(p.Type, target.NativeID())),
			Next: "Take the binding as a whole from agentkernel_attached_environment.", Attribute: []string{"binding", "id"},
		}
	}
	return target, nil
}
