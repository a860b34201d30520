package e2b

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// createAttempts bounds how often a create is tried that the server had no room for.
const createAttempts = 4

// Create makes one sandbox, and looks at what it got: token, and egress as asked.
func (e *endpoint) Create(ctx context.Context, req sandboxcore.CreateRequest, onCreated func(sandboxcore.SandboxInfo)) (sandboxcore.ManagedSandbox, error) {
	o := e.b.options(req.Profile.Settings, req.Profile.IdleTimeout)
	body, want, err := e.createBody(req, o)
	if err != nil {
		return nil, err
	}
	defer e.listing.drop()
	e.log.InfoContext(ctx, "a sandbox is asked for", "backend", string(e.place.Kind), "server", e.place.identity(), "name", sandboxcore.Printable(req.Marks.Name))
	answer, err := e.createOnce(ctx, req, o, body)
	if err != nil {
		return nil, err
	}
	// Terraform shows no progress of a resource but its log.
	e.log.InfoContext(ctx, "a sandbox was created", "backend", string(e.place.Kind), "id", answer.SandboxID, "name", sandboxcore.Printable(req.Marks.Name), "created_so_far", e.created.Add(1))
	s := &sandbox{e: e, o: o, session: sessionOf(answer), info: sandboxcore.SandboxInfo{
		NativeID: answer.SandboxID, Endpoint: e.place.identity(), Status: sandboxcore.StatusRunning, Marks: req.Marks, CreatedAt: req.Marks.Created,
		ExpiresAt: e.b.now().Add(time.Duration(body.Timeout) * time.Second), Details: details(&sandboxDetail{sandboxAnswer: *answer, TemplateID: o.template}),
	}}
	if onCreated != nil {
		onCreated(s.info)
	}
	if err := e.checkCreated(ctx, s, answer, want); err != nil {
		// It exists without what was asked for, and nobody may use it.
		cleanup := sandboxcore.WithCleanup(ctx, s.Destroy)
		if cleanup != nil {
			return nil, sandboxcore.Violations(append(sandboxcore.AllErrors(err, sandboxcore.CodeProvision), sandboxcore.AllErrors(cleanup, sandboxcore.CodeDeleteFailed)...))
		}
		return nil, err
	}
	return s, nil
}

func (e *endpoint) createBody(req sandboxcore.CreateRequest, o options) (newSandbox, networkUpdate, error) {
	marks, err := req.Marks.Encode()
	if err != nil {
		return newSandbox{}, networkUpdate{}, err
	}
	body := newSandbox{TemplateID: o.template, Timeout: wholeSeconds(o.idle), AutoPause: o.autoPause, EnvVars: req.Env, Metadata: map[string]string{}}
	maps.Copy(body.Metadata, o.metadata)
	maps.Copy(body.Metadata, marks)
	if o.autoResume {
		body.AutoResume = &autoResume{true}
	}
	want := networkOf(req.Profile.Policy)
	if !want.AllowInternetAccess {
		no := false
		body.AllowInternetAccess = &no
		body.Network = &network{AllowOut: want.AllowOut, DenyOut: want.DenyOut}
	}
	if !o.publicTraffic {
		if body.Network == nil {
			body.Network = &network{}
		}
		no := false
		body.Network.AllowPublicTraffic = &no
	}
	return body, want, nil
}

// createOnce gets one sandbox from the server. After an error nothing is left, or the error says what may be.
func (e *endpoint) createOnce(ctx context.Context, req sandboxcore.CreateRequest, o options, body newSandbox) (*sandboxAnswer, error) {
	const attempted = "the sandbox could not be created"
	for attempt := 1; ; attempt++ {
		answer, err := e.api.create(ctx, body, o.secure)
		if err == nil && idPattern.MatchString(answer.SandboxID) {
			return answer, nil
		}
		if err == nil {
			err = sentError{errNoJSON}
		}
		out := e.failure(ctx, err, sandboxcore.CodeProvision, attempted, req.Marks.Name)
		e.blame(out, err)
		if !mayHaveActed(err) {
			return nil, out
		}
		if lost := e.removeLost(ctx, req.Marks.Request); lost != nil {
			return nil, sandboxcore.Violations(append(sandboxcore.AllErrors(out, sandboxcore.CodeProvision), &sandboxcore.Error{
				Code: sandboxcore.CodeProvision, Attempted: "it could not be checked whether the failed create left a sandbox", Object: req.Marks.Name,
				Next: fmt.Sprintf("Look for a sandbox with the metadata %s = %s at the server, and end it.", sandboxcore.MarkRequest, req.Marks.Request),
				Err:  quietCause(lost),
			}))
		}
		if !noRoom(err) || attempt >= createAttempts || ctx.Err() != nil {
			return nil, out
		}
		if werr := e.times.wait(ctx, e.times.backoff<<attempt); werr != nil {
			return nil, out
		}
	}
}

// quietCause is a cause as people may read it.
func quietCause(err error) error { return errors.New(clip(sandboxcore.Printable(err.Error()), 300)) }

// mayHaveActed reports an error after which the server may have made a sandbox all the same.
func mayHaveActed(err error) bool {
	if _, ok := errors.AsType[sentError](err); ok {
		return true
	}
	a, ok := statusOf(err)
	return ok && (a.status >= http.StatusInternalServerError || !a.shaped)
}

// noRoom reports the errors of capacity, which E2B's own tools try again.
func noRoom(err error) bool {
	a, ok := statusOf(err)
	return ok && a.shaped && (a.status == http.StatusServiceUnavailable || a.status == http.StatusGatewayTimeout)
}

// blame points at the attribute that a refusal is about, where its words tell.
func (e *endpoint) blame(out, err error) {
	var known *sandboxcore.Error
	a, ok := statusOf(err)
	if !ok || !errors.As(out, &known) || !a.shaped || known.Attribute != nil {
		return
	}
	said := strings.ToLower(a.message)
	switch {
	case a.status == http.StatusNotFound:
		known.Attribute = []string{string(e.place.Kind), keyTemplate}
		known.Next = "Check that the template exists for the team of this key."
	case a.status == http.StatusBadRequest && (strings.Contains(said, "timeout") || strings.Contains(said, "hours")):
		known.Code, known.Attribute = sandboxcore.CodeLifetime, []string{"idle_timeout"}
		known.Next = "idle_timeout is the time that the sandbox has on the server, and the plan of the team limits it (E2B: 1 hour, or 24 with Pro). Set a shorter one."
	case a.status == http.StatusBadRequest && strings.Contains(said, "template"):
		known.Attribute = []string{string(e.place.Kind), keyTemplate}
	}
}

// checkCreated proves that the sandbox is as asked.
func (e *endpoint) checkCreated(ctx context.Context, s *sandbox, answer *sandboxAnswer, want networkUpdate) error {
	const attempted = "the new sandbox is not as asked and was ended again"
	kind := string(e.place.Kind)
	refuse := func(said, next, key string) error {
		return &sandboxcore.Error{
			Code: sandboxcore.CodeProvision, Attempted: attempted, Object: objectID(e.place.Kind, s.info.NativeID), Said: said, Next: next,
			Attribute: []string{kind, key},
		}
	}
	if s.o.secure && text(answer.EnvdAccessToken) == "" {
		return refuse("A secure sandbox was asked for, but the server gave no access token: anybody who knows its id could run code in it.",
			"Use a server that supports it, or set secure = false if its network protects it.", keySecure)
	}
	if !s.o.publicTraffic && text(answer.TrafficAccessToken) == "" {
		return refuse("Traffic to its ports was to be limited, but the server gave no traffic token.",
			"Use a server that supports it, or set allow_public_traffic = true if its network protects it.", keyAllowPublicTraffic)
	}
	d, err := e.api.get(ctx, s.info.NativeID)
	if err != nil && want.AllowInternetAccess && !isMissing(err) {
		// Nothing was to be proved: only the end of its time is then our own guess until the next look.
		e.log.WarnContext(ctx, "a new sandbox could not be read back", "id", s.info.NativeID, "error", quietCause(err))
		return nil
	}
	if err != nil {
		return e.sandboxFailure(ctx, err, sandboxcore.CodeProvision, "the new sandbox could not be read back; it was ended again", s.info.NativeID)
	}
	// What was not asked for is not looked at: a server may limit what we do not.
	if said := readBack(want, d); said != "" && !want.AllowInternetAccess {
		return e.networkMismatch(s.info.NativeID, said+"; the sandbox was ended again", "Use a server that enforces the policy, or another policy.")
	}
	s.info.ExpiresAt, s.info.Details = expiry(d), details(d)
	return nil
}
