package e2b

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// sandbox is the handle of one sandbox with our marks.
type sandbox struct {
	e       *endpoint
	o       options // as they stand in the spec on the object
	info    sandboxcore.SandboxInfo
	session session
	// listed: it comes out of a list, which tells neither tokens nor places.
	listed bool
}

// Info is the look that was taken when the handle was made.
func (s *sandbox) Info() sandboxcore.SandboxInfo { return s.info }

// renew gives a running sandbox its time again. It is a courtesy of a refresh: that it failed is no reason to fail. A
// sandbox that has more, because a run needs it, keeps it: the call may shorten.
func (s *sandbox) renew(ctx context.Context, d *sandboxDetail) {
	if d.EndAt.After(d.seen.Add(s.o.idle)) {
		return
	}
	end, err := s.e.api.setTimeout(ctx, s.info.NativeID, s.o.idle)
	if err != nil {
		s.e.log.WarnContext(ctx, "the time of a sandbox could not be renewed", "id", s.info.NativeID, "error", err)
		return
	}
	s.info.ExpiresAt = end
}

// Pause keeps memory and files and stops the sandbox.
func (s *sandbox) Pause(ctx context.Context) error {
	const attempted = "the sandbox could not be paused"
	id := s.info.NativeID
	defer s.e.listing.drop()
	for attempt := 0; ; attempt++ {
		err := s.e.api.pause(ctx, id)
		if err != nil && !hasStatus(err, http.StatusConflict) {
			return s.e.sandboxFailure(ctx, err, sandboxcore.CodeProvision, attempted, id)
		}
		// 409: it is paused already, or on its way somewhere.
		d, gerr := s.e.api.get(ctx, id)
		switch {
		case gerr != nil:
			return s.e.sandboxFailure(ctx, gerr, sandboxcore.CodeProvision, attempted, id)
		case d.State == statePaused:
			return nil
		case attempt >= 20:
			if err != nil {
				return s.e.sandboxFailure(ctx, err, sandboxcore.CodeProvision, attempted, id)
			}
			return &sandboxcore.Error{
				Code: sandboxcore.CodeProvision, Attempted: attempted, Object: objectID(s.e.place.Kind, id),
				Said: "The server took the request, but still tells its state as \"" + sandboxcore.Printable(d.State) + "\".", Next: "Run the command again.",
			}
		}
		if werr := s.e.times.wait(ctx, s.e.times.poll); werr != nil {
			return s.e.failure(ctx, werr, sandboxcore.CodeProvision, attempted, objectID(s.e.place.Kind, id))
		}
	}
}

// Resume wakes it, whoever paused it.
func (s *sandbox) Resume(ctx context.Context) error {
	_, err := s.wake(ctx, s.o.idle)
	return err
}

// wake renews the time of the sandbox, wakes it if it is paused, and opens the session of the data plane. The egress that
// it had before has to be the one that it has afterwards.
func (s *sandbox) wake(ctx context.Context, lifetime time.Duration) (resumed bool, err error) {
	const attempted = "the sandbox could not be woken, or its time not be renewed"
	id := s.info.NativeID
	var egress *sandboxDetail
	if s.info.Status == sandboxcore.StatusPaused {
		if egress, err = s.e.api.get(ctx, id); err != nil {
			return false, s.e.sandboxFailure(ctx, err, sandboxcore.CodeProvision, attempted, id)
		}
	}
	var answer *sandboxAnswer
	for attempt := 0; ; attempt++ {
		answer, resumed, err = s.e.api.connect(ctx, id, lifetime)
		if err == nil {
			break
		}
		if !hasStatus(err, http.StatusConflict) || attempt >= 20 {
			out := s.e.sandboxFailure(ctx, err, sandboxcore.CodeProvision, attempted, id)
			s.e.blame(out, err)
			return false, out
		}
		if werr := s.e.times.wait(ctx, s.e.times.poll); werr != nil {
			return false, s.e.failure(ctx, werr, sandboxcore.CodeProvision, attempted, objectID(s.e.place.Kind, id))
		}
	}
	resumed = resumed || s.info.Status == sandboxcore.StatusPaused // some servers say 200 to that, too
	before, listed := s.session, s.listed
	s.session, s.listed = sessionOf(answer), false
	// A server may say less here than it did before.
	s.session.domain, s.session.envdURL = cmp.Or(s.session.domain, before.domain), cmp.Or(s.session.envdURL, before.envdURL)
	s.session.version = cmp.Or(s.session.version, before.version)
	if s.session.token == "" && !listed {
		s.session.token = before.token
	}
	if s.session.traffic == "" && !listed {
		s.session.traffic = before.traffic
	}
	if s.o.secure && s.session.token == "" {
		return resumed, &sandboxcore.Error{
			Code: sandboxcore.CodeUnreachable, Attempted: attempted, Object: objectID(s.e.place.Kind, id),
			Said: "It is a secure sandbox, but the server gave no access token for it.", Next: "Run the command again; if it stays, replace the sandbox.",
		}
	}
	if resumed {
		s.e.listing.drop()
	}
	if egress != nil {
		after, err := s.e.api.get(ctx, id)
		if err != nil {
			if !isMissing(err) && sameEgress(egress, &sandboxDetail{}) != "" {
				_ = sandboxcore.WithCleanup(ctx, s.Pause) // nobody knows whether its limits still hold
			}
			return resumed, s.e.sandboxFailure(ctx, err, sandboxcore.CodeProvision, attempted, id)
		}
		if said := sameEgress(egress, after); said != "" {
			next := "Replace the sandbox. It was paused again."
			if err := sandboxcore.WithCleanup(ctx, s.Pause); err != nil {
				next = "Replace the sandbox at once: it could not be paused again, and runs without its limits."
			}
			return resumed, s.e.networkMismatch(id, said, next)
		}
		s.info.Status, s.info.Dormant, s.info.ExpiresAt, s.info.Details = sandboxcore.StatusRunning, false, expiry(after), details(after)
	}
	return resumed, nil
}

// sameEgress says whether a sandbox lost its limits while it was paused.
func sameEgress(before, after *sandboxDetail) string {
	if before.Network == nil && (before.AllowInternetAccess == nil || *before.AllowInternetAccess) {
		return ""
	}
	want := networkUpdate{}
	if before.Network != nil {
		want.AllowOut, want.DenyOut = before.Network.AllowOut, before.Network.DenyOut
	}
	shut := before.AllowInternetAccess != nil && !*before.AllowInternetAccess
	for _, d := range canonical(want.DenyOut) {
		shut = shut || d == everything
	}
	if !shut {
		return ""
	}
	return readBack(want, after)
}

// Update applies the network policy of p. Metadata, and with them the marks, cannot change.
func (s *sandbox) Update(ctx context.Context, p *sandboxcore.Profile, _ sandboxcore.Marks) error {
	const attempted = "the network policy could not be changed"
	id := s.info.NativeID
	d, err := s.e.api.get(ctx, id)
	if err != nil {
		return s.e.sandboxFailure(ctx, err, sandboxcore.CodeNetwork, attempted, id)
	}
	want := networkOf(p.Policy)
	if readBack(want, d) == "" {
		return nil
	}
	if s.info.Status == sandboxcore.StatusPaused {
		if !s.info.Dormant {
			out := s.e.notRunning(id)
			return out
		}
		if _, err := s.wake(ctx, s.o.idle); err != nil {
			return err
		}
	}
	defer s.e.listing.drop()
	return s.updateNetwork(ctx, want)
}

// Destroy ends the sandbox, its snapshot included, and asks again.
func (s *sandbox) Destroy(ctx context.Context) error {
	const attempted = "the sandbox could not be ended"
	id := s.info.NativeID
	defer s.e.listing.drop()
	until := s.e.b.now().Add(s.e.times.gone)
	ask := true
	var said error
	for {
		if ask {
			said = s.e.api.remove(ctx, id)
			// 404: there was neither a sandbox nor a snapshot. 409 and errors of the server: asked for again.
			ask = said != nil && !isMissing(said)
		}
		if a, answered := statusOf(said); said != nil && !isMissing(said) && (!answered || (a.status < http.StatusInternalServerError && a.status != http.StatusConflict)) {
			return s.e.failure(ctx, said, sandboxcore.CodeDeleteFailed, attempted, objectID(s.e.place.Kind, id))
		}
		_, err := s.e.api.get(ctx, id)
		if isMissing(err) {
			return nil
		}
		if err != nil {
			if a, answered := statusOf(err); !answered || a.status < http.StatusInternalServerError {
				return s.e.failure(ctx, err, sandboxcore.CodeDeleteFailed, "it could not be checked whether the sandbox is gone", objectID(s.e.place.Kind, id))
			}
			said = err
		}
		if !s.e.b.now().Before(until) {
			break
		}
		if werr := s.e.times.wait(ctx, s.e.times.poll); werr != nil {
			return s.e.failure(ctx, werr, sandboxcore.CodeDeleteFailed, attempted, objectID(s.e.place.Kind, id))
		}
	}
	if said != nil && !isMissing(said) {
		return s.e.failure(ctx, said, sandboxcore.CodeDeleteFailed, attempted, objectID(s.e.place.Kind, id))
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeDeleteFailed, Attempted: attempted, Object: objectID(s.e.place.Kind, id),
		Said: "The server took the request, but the sandbox is still there.", Next: "Run the command again; if it stays, end it with the server's own tools.",
	}
}
