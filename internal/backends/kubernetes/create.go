package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const attemptedCreate = "the sandbox could not be created"

// Create makes a sandbox and returns it when it runs, with its policy seen to hold and its environment in place.
func (e *endpoint) Create(ctx context.Context, req sandboxcore.CreateRequest, onCreated func(sandboxcore.SandboxInfo)) (sandboxcore.ManagedSandbox, error) {
	if onCreated == nil {
		onCreated = func(sandboxcore.SandboxInfo) {}
	}
	id, err := e.Identity(ctx)
	if err != nil {
		return nil, err
	}
	o := optionsOf(req.Profile)
	e.met(o.namespace)
	defer e.listing(o.namespace).drop()
	b := &building{e: e, req: req, o: o, identity: id, deadline: time.Now().Add(o.createTimeout), onCreated: onCreated}
	defer func() {
		if b.release != nil {
			b.release()
		}
	}()
	if o.workload == workloadSandbox {
		return b.sandbox(ctx)
	}
	return b.pod(ctx)
}

// building is one create call under way.
type building struct {
	e         *endpoint
	req       sandboxcore.CreateRequest
	o         options
	identity  string
	deadline  time.Time
	onCreated func(sandboxcore.SandboxInfo)
	nativeID  string // where it is not that of the pod
	// listener is the address that the policy forbids, for sandboxes that have one; release gives it back.
	listener *listener
	release  func()
	// owned is what was made beside it; policy is the one to make, where it is not that of a sandbox.
	owned  owned
	policy *networkingv1.NetworkPolicy
	// again: the policy is looked at for another pod of a sandbox that exists.
	again bool
	// closedFirst: the allow-list lets the listener through, so that the policy starts without it and opens later.
	closedFirst bool
}

func (b *building) pod(ctx context.Context) (sandboxcore.ManagedSandbox, error) {
	pod, err := newPod(b.req)
	if err != nil {
		return nil, err
	}
	env, err := envFile(b.req)
	if err != nil {
		return nil, err
	}
	c, err := b.e.forUser(ctx, &b.req.Principal)
	if err != nil {
		return nil, err
	}
	if err := b.listen(ctx); err != nil {
		return nil, err
	}
	created, err := b.createPod(ctx, c, pod)
	if err != nil {
		return nil, err
	}
	weak := refuseWeaker(attemptedCreate, created.Namespace+"/"+created.Name, weaker(pod, created))
	s, err := b.e.managed(created, b.identity)
	if err != nil { // its marks are not what they were: nobody would find it
		if weak != nil {
			err = weak
		}
		return nil, b.refuse(ctx, &sandbox{e: b.e, namespace: created.Namespace, name: created.Name, podUID: created.UID, info: sandboxcore.SandboxInfo{NativeID: created.Namespace + "/" + created.Name}}, err)
	}
	s.principal = &b.req.Principal
	b.onCreated(s.info)
	if weak != nil {
		return nil, b.refuse(ctx, s, weak)
	}
	if err := b.begin(ctx, created, ownedBy("v1", "Pod", created.Name, created.UID)); err != nil {
		return nil, err
	}
	if len(b.req.Env) > 0 {
		if _, err := b.waitFor(ctx, created.Name, created.UID, takesEnv); err != nil {
			return nil, err
		}
		if err := s.writeEnv(ctx, env); err != nil {
			return nil, err
		}
	}
	running, err := b.waitRunning(ctx, created.Name, created.UID)
	if err != nil {
		return nil, err
	}
	if s, err = b.e.managed(running, b.identity); err != nil {
		return nil, err
	}
	s.principal = &b.req.Principal
	if err := b.finish(ctx, s); err != nil {
		return nil, err
	}
	return s, nil
}

// createPod makes the pod as whoever it is for.
func (b *building) createPod(ctx context.Context, c *client, pod *corev1.Pod) (*corev1.Pod, error) {
	call, cancel := withDeadline(ctx, b.e.timings.call)
	defer cancel()
	created, err := c.kube.CoreV1().Pods(pod.Namespace).Create(call, pod, metav1.CreateOptions{})
	if err == nil {
		return created, nil
	}
	var answered apierrors.APIStatus
	if !asStatus(err, &answered) {
		pods := b.e.own.kube.CoreV1().Pods(pod.Namespace)
		b.e.removeLost(ctx, pod.Namespace+"/"+pod.Name, func(ctx context.Context) error {
			made, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil || made.Labels[sandboxcore.MarkRequest] != pod.Labels[sandboxcore.MarkRequest] {
				return err
			}
			return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &made.UID}})
		})
	}
	next := "Correct what the API server complains about."
	if apierrors.IsNotFound(err) {
		next = fmt.Sprintf("Create the namespace %q, or name one that exists.", pod.Namespace)
	}
	return nil, b.e.failure(call, err, sandboxcore.CodeProvision, attemptedCreate, "namespace "+pod.Namespace, next)
}

// removeLost removes the object of a create call that was not answered. The server may go on with a request whose caller is
// gone, so it is looked for a while.
func (e *endpoint) removeLost(ctx context.Context, object string, remove func(context.Context) error) {
	_ = sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		for until := time.Now().Add(e.timings.lost); ; {
			err := remove(ctx)
			if err == nil || !time.Now().Before(until) || !pause(ctx, 250*time.Millisecond) {
				if err != nil && !apierrors.IsNotFound(err) {
					e.log.WarnContext(ctx, "it could not be checked whether a failed create left an object", "object", object, "error", err)
				}
				return nil
			}
		}
	})
}

// begin makes what belongs to a pod, and lets the pod start.
func (b *building) begin(ctx context.Context, pod *corev1.Pod, owner metav1.OwnerReference) error {
	if err := b.belongings(ctx, owner); err != nil {
		return err
	}
	if err := b.openGate(ctx, pod); err != nil {
		return b.forget(ctx, err)
	}
	return nil
}

// forget removes what belongs to a sandbox that does not know of it yet.
func (b *building) forget(ctx context.Context, err error) error {
	left := sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		return b.e.removeOwned(ctx, b.o.namespace, objectName(b.req.Marks), b.owned, "namespace "+b.o.namespace)
	})
	if left == nil {
		return err
	}
	return sandboxcore.Violations(append(sandboxcore.AllErrors(err, sandboxcore.CodeProvision), sandboxcore.AllErrors(left, sandboxcore.CodeDeleteFailed)...))
}

// belongings makes what belongs to a sandbox, as the provider: its helper, and its policy. After an error nothing of it is
// left, as far as the cluster has told of it.
func (b *building) belongings(ctx context.Context, owner metav1.OwnerReference) error {
	if err := b.makeBelongings(ctx, owner); err != nil {
		return b.forget(ctx, err)
	}
	return nil
}

func (b *building) makeBelongings(ctx context.Context, owner metav1.OwnerReference) error {
	call, cancel := withDeadline(ctx, b.e.timings.call)
	defer cancel()
	cm, err := helperMap(b.req.Marks, b.o, owner)
	if err != nil {
		return err
	}
	made, err := b.e.own.kube.CoreV1().ConfigMaps(b.o.namespace).Create(call, cm, metav1.CreateOptions{})
	if err != nil {
		return b.e.failure(call, err, sandboxcore.CodeProvision, "the run helper could not be brought into the cluster", "ConfigMap "+cm.Namespace+"/"+cm.Name, "Correct what the API server complains about.")
	}
	b.owned.helper = made.UID
	np := b.policy
	switch {
	case np == nil && !isolated(b.req.Profile):
		return nil
	case np == nil:
		egress := egressOf(b.req.Profile)
		if b.closedFirst {
			egress = egress[:0]
		}
		np = newPolicy(b.req.Marks, b.o.namespace, egress, owner)
	default:
		np.OwnerReferences = []metav1.OwnerReference{owner}
	}
	policy, err := b.e.own.kube.NetworkingV1().NetworkPolicies(b.o.namespace).Create(call, np, metav1.CreateOptions{})
	if err != nil {
		return b.e.failure(call, err, sandboxcore.CodeProvision, "the network policy of the sandbox could not be created", "NetworkPolicy "+np.Namespace+"/"+np.Name, "Correct what the API server complains about.")
	}
	b.owned.policy = policy.UID
	return nil
}

// openGate lets the pod start. The pod now carries its own uid, which a copy of it does not have.
func (b *building) openGate(ctx context.Context, pod *corev1.Pod) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]string{markUID: string(pod.UID), markOwned: b.owned.String()}},
		"spec":     map[string]any{"schedulingGates": nil},
	})
	if err != nil {
		return err
	}
	call, cancel := withDeadline(ctx, b.e.timings.call)
	defer cancel()
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		_, err := b.e.own.kube.CoreV1().Pods(pod.Namespace).Patch(call, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	return b.e.failure(call, err, sandboxcore.CodeProvision, "the sandbox could not be started", objectID(pod.Namespace+"/"+pod.Name), "Correct what the API server complains about.")
}

// waitRunning waits until the pod runs.
func (b *building) waitRunning(ctx context.Context, name string, uid types.UID) (*corev1.Pod, error) {
	return b.waitFor(ctx, name, uid, func(pod *corev1.Pod) bool { return lifeOf(pod).status == sandboxcore.StatusRunning })
}

// waitFor waits until the pod is as it should be. It ends at once for whatever time cannot heal.
func (b *building) waitFor(ctx context.Context, name string, uid types.UID, done func(*corev1.Pod) bool) (*corev1.Pod, error) {
	nativeID := b.nativeID
	if nativeID == "" {
		nativeID = b.o.namespace + "/" + name
	}
	w := b.e.watchPod(ctx, b.o.namespace, name)
	defer w.stop()
	within, cancel := context.WithDeadline(ctx, b.deadline)
	defer cancel()
	pod, err := b.e.getPod(ctx, b.o.namespace, name)
	for {
		if err != nil {
			return nil, err
		}
		if pod.UID != uid {
			return nil, gone("the sandbox did not start", nativeID, "Another pod has taken its name.")
		}
		l := lifeOf(pod)
		why := l.gone
		switch {
		case why != "":
		case done(pod):
			return pod, nil
		default:
			if why = hopeless(pod, b.o.waitForNode); why != "" {
				why = sentence(sandboxcore.Printable(why))
			}
		}
		if why != "" {
			return nil, b.notStarted(ctx, nativeID, uid, why, nextFor(why, b.o))
		}
		last := sandboxcore.Printable(pendingReason(pod))
		var ok bool
		if pod, ok, err = w.next(within); ok {
			continue
		}
		if ctx.Err() != nil {
			return nil, b.notStarted(ctx, nativeID, uid, "The operation was ended while it started; the last that was seen: "+last+".", "Run the command again.")
		}
		return nil, b.notStarted(ctx, nativeID, uid, fmt.Sprintf("It does not run after %s; the last that was seen: %s.", b.o.createTimeout, last),
			"Raise create_timeout, or look at the events of the pod.")
	}
}

func (b *building) notStarted(ctx context.Context, nativeID string, uid types.UID, said, next string) error {
	if events := b.e.events(ctx, b.o.namespace, uid); events != "" && !strings.Contains(said, events) {
		said += " Events: " + events
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeProvision, Attempted: "the sandbox did not start", Object: objectID(nativeID), Said: said, Next: next, Err: ctx.Err(),
	}
}

func nextFor(why string, o options) string {
	switch {
	case strings.Contains(why, "Image"):
		return fmt.Sprintf("Check that the nodes can pull %q, with image_pull_secrets where its registry asks for credentials.", o.image)
	case strings.Contains(why, "Unschedulable"):
		return "Free a node, ask for less, correct node_selector, tolerations and architecture, or set wait_for_node = true where nodes are added when needed."
	case strings.Contains(why, "exec format error"):
		return "Set architecture to the one of the nodes and of the image."
	case strings.Contains(why, "run as non-root"), strings.Contains(why, "non-root"):
		return "Use an image that can run as another user than root, or set security_context."
	}
	return "Correct what the cluster complains about."
}

// events gives the last warnings about an object; empty where they may not be read.
func (e *endpoint) events(ctx context.Context, namespace string, uid types.UID) string {
	var out []string
	_ = sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		list, err := e.own.kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(uid), Limit: 50})
		if err != nil {
			return nil //nolint:nilerr // the events make an error better; without them it stays one
		}
		for _, ev := range list.Items {
			if ev.Type == corev1.EventTypeWarning {
				out = append(out, sentence(sandboxcore.Printable(ev.Reason+": "+ev.Message)))
			}
		}
		return nil
	})
	if len(out) > 3 {
		out = out[len(out)-3:]
	}
	return strings.Join(out, " ")
}

// finish lets a running sandbox out of hand only when its policy is seen to hold.
func (b *building) finish(ctx context.Context, s *sandbox) error {
	if !isolated(b.req.Profile) {
		return nil
	}
	if err := b.seeClosed(ctx, s); err != nil {
		return b.refuse(ctx, s, err)
	}
	return nil
}
