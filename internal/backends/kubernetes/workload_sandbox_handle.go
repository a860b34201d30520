package kubernetes

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

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
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		_, err := resource.Patch(call, s.name, types.MergePatchType, text, metav1.PatchOptions{})
		return err
	})
	return s.changed(call, err)
}

// verify records that the policy of the present pod was seen to hold.
func (o *sandboxObject) verify(ctx context.Context, s *sandbox) error {
	return o.mark(ctx, s, string(s.podUID))
}

func (o *sandboxObject) mark(ctx context.Context, s *sandbox, verified string) error {
	if err := o.patch(ctx, s, map[string]any{"metadata": map[string]any{"annotations": map[string]any{markVerified: verified}}}); err != nil {
		return err
	}
	o.verified = verified
	return nil
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
	checking := false
	for until := time.Now().Add(opts.createTimeout); ; {
		now, err := s.e.lookSandbox(ctx, s.namespace, s.name, s.info.Endpoint)
		if err != nil {
			return err
		}
		if now.object.uid != o.uid {
			return gone("the sandbox could not be used", s.info.NativeID, "Another Sandbox has taken its name.")
		}
		switch now.info.Status {
		case sandboxcore.StatusRunning:
			s.pod, s.podUID, s.owned, s.info.Status, o.verified = now.pod, now.podUID, now.owned, now.info.Status, now.object.verified
			if err := refuseWeaker("nothing was run in the sandbox's new pod", s.info.NativeID, now.object.weak); err != nil {
				return err
			}
			if !isolated(p) || o.verified == string(s.podUID) {
				return nil
			}
			if checking {
				return o.seeClosed(ctx, s, p)
			}
			// Its policy is closed and opened again meanwhile: one at a time, and the others look again.
			done, err := s.e.checkAlone(ctx, o.uid)
			if err != nil {
				return s.e.failure(ctx, err, sandboxcore.CodeStopped, "the sandbox could not be used", objectID(s.info.NativeID), "Run the command again.")
			}
			defer done()
			checking = true
			continue
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

// checkAlone waits until nobody else of this process checks the policy of a Sandbox.
func (e *endpoint) checkAlone(ctx context.Context, uid types.UID) (done func(), err error) {
	e.mu.Lock()
	slot := e.checks[uid]
	if slot == nil {
		slot = make(chan struct{}, 1)
		e.checks[uid] = slot
	}
	e.mu.Unlock()
	select {
	case slot <- struct{}{}:
		return func() { <-slot }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// profile reads the profile that the object itself carries, as far as this backend needs it.
func (s *sandbox) profile() (*sandboxcore.Profile, error) {
	return sandboxcore.NewRegistry(Factory()).ParseSpec(s.info.Marks.Spec)
}

// seeClosed checks the policy for a pod that the controller has made again, as at creation: where the allow-list lets the
// listener through, the policy is closed first. No code runs in the pod meanwhile, and if the check is broken off the policy
// stays closed and the pod unverified: the next one who wants to run something checks again.
func (o *sandboxObject) seeClosed(ctx context.Context, s *sandbox, p *sandboxcore.Profile) error {
	b := &building{
		e: s.e, req: sandboxcore.CreateRequest{Profile: p, Marks: s.info.Marks}, o: optionsOf(p), identity: s.info.Endpoint,
		deadline: time.Now().Add(optionsOf(p).createTimeout), again: true,
	}
	if err := b.listen(ctx); err != nil {
		return err
	}
	defer b.release()
	egress := egressOf(p)
	if b.closedFirst {
		egress = egress[:0]
		// Another process may have verified the pod by now. If this one does not get to the end, the next has to know.
		if err := o.mark(ctx, s, ""); err != nil {
			return err
		}
	}
	if err := b.setEgress(ctx, s, egress); err != nil {
		return err
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
		look, done := withDeadline(ctx, s.e.timings.call)
		object, err := resource.Get(look, s.name, metav1.GetOptions{})
		failed := s.e.failure(look, err, sandboxcore.CodeDeleteFailed, "it could not be checked whether the sandbox is gone", objectID(s.info.NativeID), "Run the command again.")
		done()
		switch {
		case apierrors.IsNotFound(err), err == nil && object.GetUID() != o.uid:
			if err := s.e.podGone(ctx, s, until); err != nil {
				return err
			}
			return o.claimGone(ctx, s, until)
		case err != nil:
			return failed
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

// claimGone waits until the claim of the workspace is gone, with the files on it. The cluster removes it, because it belongs
// to the Sandbox.
func (o *sandboxObject) claimGone(ctx context.Context, s *sandbox, until time.Time) error {
	const attempted = "it could not be checked whether the files of the sandbox are gone"
	name := claimName(s.name)
	object := "PersistentVolumeClaim " + s.namespace + "/" + name + " of " + objectID(s.info.NativeID)
	for {
		call, cancel := withDeadline(ctx, s.e.timings.call)
		claim, err := s.e.own.kube.CoreV1().PersistentVolumeClaims(s.namespace).Get(call, name, metav1.GetOptions{})
		failed := s.e.failure(call, err, sandboxcore.CodeDeleteFailed, attempted, object, "Run the command again.")
		cancel()
		switch {
		case apierrors.IsNotFound(err), err == nil && !belongsTo(claim, o.uid):
			return nil
		case err != nil:
			return failed
		}
		if time.Now().After(until) || !pause(ctx, s.e.timings.poll) {
			said := "The cluster still has it."
			if len(claim.Finalizers) > 0 {
				said = "The cluster still has it; it has finalizers: " + strings.Join(claim.Finalizers, ", ") + "."
			}
			return &sandboxcore.Error{
				Code: sandboxcore.CodeDeleteFailed, Attempted: "the files of the sandbox could not be removed", Object: object, Said: said,
				Next: "See what keeps the claim (kubectl describe pvc), and remove it.", Err: ctx.Err(),
			}
		}
	}
}

func belongsTo(object metav1.Object, uid types.UID) bool {
	return slices.ContainsFunc(object.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == uid })
}
