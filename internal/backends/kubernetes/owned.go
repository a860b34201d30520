package kubernetes

import (
	"context"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// owned are the uids of what was made beside a pod or a Sandbox, under its name. They are kept in an annotation of it, so
// that what is deleted is what was made, without the right to read it.
type owned struct{ helper, policy types.UID }

const (
	ownedHelper = "configmap"
	ownedPolicy = "networkpolicy"
)

// String is the form of the annotation.
func (o owned) String() string {
	return ownedHelper + "=" + string(o.helper) + "," + ownedPolicy + "=" + string(o.policy)
}

func ownedOf(annotations map[string]string) owned {
	var o owned
	for part := range strings.SplitSeq(annotations[markOwned], ",") {
		switch kind, uid, _ := strings.Cut(part, "="); kind {
		case ownedHelper:
			o.helper = types.UID(uid)
		case ownedPolicy:
			o.policy = types.UID(uid)
		}
	}
	return o
}

// removeOwned removes the policy and the helper of a sandbox. The cluster does so too, when their owner is gone, but in its
// own time.
func (e *endpoint) removeOwned(ctx context.Context, namespace, name string, o owned, of string) error {
	policy := e.removeOne(ctx, "NetworkPolicy "+namespace+"/"+name+" of "+of, o.policy, func(ctx context.Context, d metav1.DeleteOptions) error {
		return e.own.kube.NetworkingV1().NetworkPolicies(namespace).Delete(ctx, name, d)
	})
	helper := e.removeOne(ctx, "ConfigMap "+namespace+"/"+name+" of "+of, o.helper, func(ctx context.Context, d metav1.DeleteOptions) error {
		return e.own.kube.CoreV1().ConfigMaps(namespace).Delete(ctx, name, d)
	})
	if policy != nil {
		return policy
	}
	return helper
}

// removeOne deletes one object until the cluster says that it has none with this uid: that it took the first delete is a
// promise only. An object whose uid is not known was not made, or by a call that was not answered, and then it goes with
// its owner.
func (e *endpoint) removeOne(ctx context.Context, object string, uid types.UID, remove func(context.Context, metav1.DeleteOptions) error) error {
	if uid == "" {
		return nil
	}
	until := time.Now().Add(e.timings.gone)
	for asked := 0; ; asked++ {
		call, cancel := withDeadline(ctx, e.timings.call)
		err := remove(call, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		failed := e.failure(call, err, sandboxcore.CodeDeleteFailed, "what belongs to the sandbox could not be removed", object, "Run the command again; the cluster removes it by itself when its owner is gone.")
		cancel()
		switch {
		case apierrors.IsNotFound(err), otherUID(err):
			return nil
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return failed
		}
		if err == nil && asked == 0 {
			continue // most objects are gone at once
		}
		if time.Now().Before(until) && pause(ctx, e.timings.poll) {
			continue
		}
		if failed != nil {
			return failed
		}
		return &sandboxcore.Error{
			Code: sandboxcore.CodeDeleteFailed, Attempted: "what belongs to the sandbox could not be removed", Object: object, Said: "The cluster still has it.",
			Next: "Run the command again; check its finalizers.", Err: ctx.Err(),
		}
	}
}

// otherUID recognises the answer to a delete or a patch whose object is another one by now. Any other conflict is a change of
// somebody else at the same moment: the object is still there.
func otherUID(err error) bool {
	if apierrors.IsConflict(err) {
		return strings.Contains(err.Error(), "recondition")
	}
	return apierrors.IsInvalid(err) && apierrors.HasStatusCause(err, metav1.CauseTypeFieldValueInvalid) && strings.Contains(err.Error(), "metadata.uid")
}
