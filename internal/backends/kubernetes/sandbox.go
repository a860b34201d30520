package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// sandbox is the handle of one object with our marks: a pod, or a Sandbox with its pod.
type sandbox struct {
	e               *endpoint
	info            sandboxcore.SandboxInfo
	namespace, name string
	// pod is the pod where code runs; a Sandbox may have none at the moment, and another one later.
	pod    string
	podUID types.UID
	// object is the Sandbox, nil for a bare pod.
	object  *sandboxObject
	withEnv bool
	labels  string // keys of users' own labels
	owned   owned
	// principal is whoever it was made for; code runs as whoever an operation is for.
	principal *sandboxcore.Principal
}

// Info is the look that was taken when the handle was made.
func (s *sandbox) Info() sandboxcore.SandboxInfo { return s.info }

// ready refuses a sandbox in which nothing can be started.
func (s *sandbox) ready(ctx context.Context) error {
	if s.object != nil {
		return s.object.ready(ctx, s)
	}
	if s.info.Status == sandboxcore.StatusRunning {
		return nil
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeStopped, Attempted: "the sandbox could not be used", Object: objectID(s.info.NativeID), Said: s.why(),
		Next: "Wait until it runs, or replace the sandbox.",
	}
}

func (s *sandbox) why() string {
	reason := s.info.Details["reason"]
	if reason == "" {
		return "It does not run."
	}
	return sentence(strings.ToUpper(reason[:1]) + reason[1:])
}

// Pause is for workloads that have a switch for it.
func (s *sandbox) Pause(ctx context.Context) error {
	if s.object != nil {
		return s.object.setRunning(ctx, s, false)
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeOperation, Attempted: "the sandbox could not be paused", Object: objectID(s.info.NativeID), Said: "A pod cannot be paused.",
		Next: "Use workload = \"sandbox\", or desired_state = \"running\".", Attribute: []string{"desired_state"},
	}
}

// Resume undoes Pause. A bare pod that has ended cannot be started again.
func (s *sandbox) Resume(ctx context.Context) error {
	if s.object != nil {
		return s.object.setRunning(ctx, s, true)
	}
	return s.ready(ctx)
}

// Update applies labels and marks.
func (s *sandbox) Update(ctx context.Context, p *sandboxcore.Profile, marks sandboxcore.Marks) error {
	o := optionsOf(p)
	defer s.e.listing(s.namespace).drop()
	annotations, err := annotationsOf(o, marks)
	if err != nil {
		return err
	}
	labels := map[string]any{}
	for k := range strings.SplitSeq(s.labels, ",") {
		if k != "" {
			labels[k] = nil // taken away, unless it is wanted again
		}
	}
	for k, v := range labelsOf(o, marks) {
		labels[k] = v
	}
	metadata := map[string]any{"uid": s.uid(), "labels": labels, "annotations": annotations}
	if s.object != nil {
		return s.object.patch(ctx, s, map[string]any{"metadata": metadata})
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	call, cancel := withDeadline(ctx, s.e.timings.call)
	defer cancel()
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		_, err := s.e.own.kube.CoreV1().Pods(s.namespace).Patch(call, s.name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	return s.changed(call, err)
}

// changed makes the error of a patch.
func (s *sandbox) changed(ctx context.Context, err error) error {
	const attempted = "the sandbox could not be changed"
	switch {
	case apierrors.IsNotFound(err):
		return goneMissing(attempted, s.info.NativeID)
	case otherUID(err):
		return gone(attempted, s.info.NativeID, "Another object has taken its name.")
	}
	return s.e.failure(ctx, err, sandboxcore.CodeProvision, attempted, objectID(s.info.NativeID), "Correct what the API server complains about.")
}

func (s *sandbox) uid() types.UID {
	if s.object != nil {
		return s.object.uid
	}
	return s.podUID
}

// Destroy removes the sandbox, then what belongs to it, and asks again. It acts as the provider itself: whether something
// can be removed must not depend on the rights of the user that it was made for.
func (s *sandbox) Destroy(ctx context.Context) error {
	defer s.e.listing(s.namespace).drop()
	if s.object != nil {
		if err := s.object.remove(ctx, s); err != nil {
			return err
		}
	} else if err := s.e.removePod(ctx, s.namespace, s.name, s.podUID, s.info.NativeID); err != nil {
		return err
	}
	return s.e.removeOwned(ctx, s.namespace, s.name, s.owned, objectID(s.info.NativeID))
}

// removePod deletes one pod and waits until the cluster no longer has it.
func (e *endpoint) removePod(ctx context.Context, namespace, name string, uid types.UID, nativeID string) error {
	const attempted = "the sandbox could not be removed"
	w := e.watchPod(ctx, namespace, name)
	defer w.stop()
	call, cancel := withDeadline(ctx, e.timings.call)
	err := e.own.kube.CoreV1().Pods(namespace).Delete(call, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	failed := e.failure(call, err, sandboxcore.CodeDeleteFailed, attempted, objectID(nativeID), "Run the command again.")
	cancel()
	// Not found: gone already. A conflict: the name belongs to another one.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return failed
	}
	within, stop := context.WithTimeout(ctx, e.timings.gone)
	defer stop()
	last, err := e.getPod(ctx, namespace, name)
	for {
		switch {
		case sandboxcore.IsCode(err, sandboxcore.CodeGone):
			return nil
		case err != nil:
			return err
		case last.UID != uid:
			return nil
		}
		pod, ok, looked := w.next(within)
		if !ok {
			break
		}
		if last, err = pod, looked; err != nil {
			continue
		}
	}
	said := "The cluster still has the pod"
	if last.DeletionTimestamp != nil {
		said += fmt.Sprintf(", which is to be deleted since %s", last.DeletionTimestamp.UTC().Format(time.RFC3339))
	}
	if len(last.Finalizers) > 0 {
		said += "; it has finalizers: " + strings.Join(last.Finalizers, ", ")
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeDeleteFailed, Attempted: attempted, Object: objectID(nativeID), Said: said + ".", Err: ctx.Err(),
		Next: fmt.Sprintf("Run the command again. If node %q is lost for good, remove the node, or the pod with kubectl delete --force.", last.Spec.NodeName),
	}
}

// bury removes the object of a sandbox that has ended. It is told as gone whether or not that succeeds.
func (e *endpoint) bury(ctx context.Context, s *sandbox) {
	if err := sandboxcore.WithCleanup(ctx, s.Destroy); err != nil {
		e.log.WarnContext(ctx, "a sandbox that has ended could not be removed", "id", s.info.NativeID, "error", err)
	}
}
