package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// patch changes the Sandbox, which must still be the same one.
func (o *sandboxObject) patch(ctx context.Context, s *sandbox, change map[string]any) error {
	if meta, ok := change["metadata"].(map[string]any); ok {
		meta["uid"] = o.uid
	} else {
		change["metadata"] = map[string]any{"uid": o.uid}
	}
	text, err := json.Marshal(change)
	if err != nil {
		return err
	}
	resource, err := s.e.sandboxClient(s.e.own, o.api, s.namespace)
	if err != nil {
		return err
	}
	call, cancel := withDeadline(ctx, s.e.timings.call)
	defer cancel()
	_, err = resource.Patch(call, s.name, types.MergePatchType, text, metav1.PatchOptions{})
	return s.changed(call, err)
}

// verify records that the policy of the present pod was seen to hold.
func (o *sandboxObject) verify(ctx context.Context, s *sandbox) error {
	o.verified = string(s.podUID)
	return o.patch(ctx, s, map[string]any{"metadata": map[string]any{"annotations": map[string]any{markVerified: o.verified}}})
}

// ready looks for the present pod, and waits for one that the controller is making again. Code runs in it only once its
// policy was seen to hold.
func (o *sandboxObject) ready(ctx context.Context, s *sandbox) error {
	p, err := s.profile()
	if err != nil {
		return err
	}
	o.paused = false
	opts := optionsOf(p)
	for until := time.Now().Add(opts.createTimeout); ; {
		now, err := s.e.lookSandbox(ctx, s.namespace, s.name, s.info.Endpoint)
		if err != nil {
			return err
		}
		switch now.info.Status {
		case sandboxcore.StatusRunning:
			s.pod, s.podUID, s.info.Status, o.verified = now.pod, now.podUID, now.info.Status, now.object.verified
			if !s.policy || o.verified == string(s.podUID) {
				return nil
			}
			return o.seeClosed(ctx, s, p)
		case sandboxcore.StatusPaused:
			return &sandboxcore.Error{
				Code: sandboxcore.CodeStopped, Attempted: "the sandbox could not be used", Object: objectID(s.info.NativeID), Said: "It is paused.",
				Next: "Set desired_state = \"running\" on the sandbox first.", Attribute: []string{"desired_state"},
			}
		}
		s.info.Details["reason"] = now.info.Details["reason"]
		if time.Now().After(until) || !pause(ctx, s.e.timings.poll) {
			return &sandboxcore.Error{
				Code: sandboxcore.CodeStopped, Attempted: "the sandbox could not be used", Object: objectID(s.info.NativeID), Said: s.why(),
				Next: "Check the controller of kubernetes-sigs/agent-sandbox, or replace the sandbox.", Err: ctx.Err(),
			}
		}
	}
}

// profile reads the profile that the object itself carries, as far as this backend needs it.
func (s *sandbox) profile() (*sandboxcore.Profile, error) {
	return sandboxcore.NewRegistry(Factory()).ParseSpec(s.info.Marks.Spec)
}

// seeClosed checks the policy for a pod that the controller has made again. The listener it is checked against is under
// the same policies as at creation.
func (o *sandboxObject) seeClosed(ctx context.Context, s *sandbox, p *sandboxcore.Profile) error {
	b := &building{e: s.e, req: sandboxcore.CreateRequest{Profile: p, Marks: s.info.Marks}, o: optionsOf(p), identity: s.info.Endpoint, deadline: time.Now().Add(optionsOf(p).createTimeout)}
	b.req.Marks.Request += fmt.Sprintf("-%s", s.podUID)
	if err := b.listen(ctx); err != nil {
		return err
	}
	defer b.release()
	if b.closedFirst {
		// The policy is open for the listener already, so that nothing can be seen from it: the object of the policy is
		// older than the pod, and that is all that can be said.
		return o.verify(ctx, s)
	}
	if err := b.seeClosed(ctx, s); err != nil {
		return err
	}
	return o.verify(ctx, s)
}

// setRunning pauses or resumes, and waits until it is so.
func (o *sandboxObject) setRunning(ctx context.Context, s *sandbox, running bool) error {
	defer s.e.listing(s.namespace).drop()
	if err := o.patch(ctx, s, map[string]any{"spec": o.api.running(running)}); err != nil {
		return err
	}
	if running {
		return o.ready(ctx, s)
	}
	for until := time.Now().Add(s.e.timings.gone); ; {
		now, err := s.e.lookSandbox(ctx, s.namespace, s.name, s.info.Endpoint)
		if err != nil {
			return err
		}
		if now.podUID == "" {
			return nil
		}
		if time.Now().After(until) || !pause(ctx, s.e.timings.poll) {
			return &sandboxcore.Error{
				Code: sandboxcore.CodeProvision, Attempted: "the sandbox could not be paused", Object: objectID(s.info.NativeID), Said: "Its controller has not removed its pod.",
				Next: "Check the controller of kubernetes-sigs/agent-sandbox.", Err: ctx.Err(),
			}
		}
	}
}

// remove deletes the Sandbox and waits until neither it nor its pod is there.
func (o *sandboxObject) remove(ctx context.Context, s *sandbox) error {
	const attempted = "the sandbox could not be removed"
	resource, err := s.e.sandboxClient(s.e.own, o.api, s.namespace)
	if err != nil {
		return err
	}
	call, cancel := withDeadline(ctx, s.e.timings.call)
	defer cancel()
	uid, background := o.uid, metav1.DeletePropagationBackground
	err = resource.Delete(call, s.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return s.e.failure(call, err, sandboxcore.CodeDeleteFailed, attempted, objectID(s.info.NativeID), "Run the command again.")
	}
	for until := time.Now().Add(s.e.timings.gone); ; {
		object, err := resource.Get(ctx, s.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && object.GetUID() != o.uid:
			return s.e.podGone(ctx, s, until)
		case err != nil:
			return s.e.failure(ctx, err, sandboxcore.CodeDeleteFailed, "it could not be checked whether the sandbox is gone", objectID(s.info.NativeID), "Run the command again.")
		}
		if time.Now().After(until) || !pause(ctx, s.e.timings.poll) {
			return &sandboxcore.Error{
				Code: sandboxcore.CodeDeleteFailed, Attempted: attempted, Object: objectID(s.info.NativeID), Said: "The cluster still has the Sandbox.",
				Next: "Run the command again; check its finalizers.", Err: ctx.Err(),
			}
		}
	}
}

// podGone waits until the last pod of a Sandbox is gone, which the cluster removes by itself.
func (e *endpoint) podGone(ctx context.Context, s *sandbox, until time.Time) error {
	if s.podUID == "" {
		return nil
	}
	for {
		pod, err := e.getPod(ctx, s.namespace, s.pod)
		switch {
		case sandboxcore.IsCode(err, sandboxcore.CodeGone), err == nil && pod.UID != s.podUID:
			return nil
		case err != nil:
			return err
		}
		if time.Now().After(until) || !pause(ctx, e.timings.poll) {
			return &sandboxcore.Error{
				Code: sandboxcore.CodeDeleteFailed, Attempted: "the sandbox could not be removed", Object: objectID(s.info.NativeID), Said: "Its pod is still there.",
				Next: "Run the command again.", Err: ctx.Err(),
			}
		}
	}
}
