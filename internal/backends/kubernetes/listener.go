package kubernetes

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const (
	listenerPort = 7420
	// listenerLife is after what time, beyond twice a create_timeout, the cluster ends a listener whose provider is gone.
	listenerLife = 15 * time.Minute
)

// listener is a small pod that takes connections. A policy cannot be asked whether it is in force already; that an
// address which is known to answer cannot be reached can be seen. All sandboxes that are made at the same time share
// one, and it goes with the last of them.
type listener struct {
	key  string
	refs int
	born time.Time
	stop context.CancelFunc
	done chan struct{} // closed when addr or err is there

	namespace, name string
	uid             types.UID
	owned           owned
	addr            netip.Addr
	err             error
}

// listen takes part in a listener. An allow-list has to know its address before the policy is made.
func (b *building) listen(ctx context.Context) error {
	if !isolated(b.req.Profile) {
		return nil
	}
	l, err := b.e.takeListener(ctx, b.req)
	if err != nil {
		return err
	}
	b.listener, b.release = l, func() { b.e.releaseListener(ctx, l) }
	if b.req.Profile.Policy.NetworkEgress != sandboxcore.NetworkAllowlist {
		return nil
	}
	addr, err := b.address(ctx)
	if err != nil {
		return err
	}
	b.closedFirst = lets(b.req.Profile, addr)
	return nil
}

func (b *building) address(ctx context.Context) (netip.Addr, error) {
	select {
	case <-b.listener.done:
		return b.listener.addr, b.listener.err
	case <-ctx.Done():
		return netip.Addr{}, b.e.failure(ctx, ctx.Err(), sandboxcore.CodeProvision, attemptedCreate, "namespace "+b.o.namespace, "")
	}
}

// refusal is what happens to a sandbox whose policy does not hold.
func (b *building) refusal() string {
	if b.again {
		return "nothing was run in the sandbox's new pod"
	}
	return "the sandbox was removed again"
}

// seeClosed returns when the policy of a sandbox is seen to hold.
func (b *building) seeClosed(ctx context.Context, s *sandbox) error {
	addr, err := b.address(ctx)
	if err != nil {
		return err
	}
	never := &sandboxcore.Error{
		Code: sandboxcore.CodeNetwork, Attempted: b.refusal() + ": its network policy does not hold", Object: objectID(s.info.NativeID),
		Said: fmt.Sprintf("It could still reach %s, which its policy forbids, when create_timeout (%s) was over. No code has run in it.", netip.AddrPortFrom(addr, listenerPort), b.o.createTimeout),
		Next: "The cluster does not enforce NetworkPolicy: remove network_policy = true, or install a network plugin that does.", Attribute: []string{"kubernetes", keyNetworkPolicy},
	}
	if err := b.dial(ctx, s, "closed", addr, never); err != nil {
		return err
	}
	// Closed only counts while there was something to reach.
	alive, err := b.e.getPod(ctx, b.listener.namespace, b.listener.name)
	if err != nil || lifeOf(alive).status != sandboxcore.StatusRunning || alive.UID != b.listener.uid {
		return &sandboxcore.Error{
			Code: sandboxcore.CodeProvision, Attempted: "it could not be seen whether the network policy holds", Object: objectID(s.info.NativeID),
			Said: "The pod that should not be reachable has ended meanwhile.", Next: "Run the command again.", Err: err,
		}
	}
	egress := egressOf(b.req.Profile)
	if b.closedFirst {
		egress = egress[:0]
	}
	if err := b.onlyOurs(ctx, s, egress); err != nil {
		return err
	}
	if !b.closedFirst {
		return nil
	}
	if err := b.setEgress(ctx, s, egressOf(b.req.Profile)); err != nil {
		return err
	}
	return b.dial(ctx, s, "open", addr, &sandboxcore.Error{
		Code: sandboxcore.CodeProvision, Attempted: b.refusal() + ": its allow-list has no effect", Object: objectID(s.info.NativeID),
		Said: fmt.Sprintf("It could not reach %s, which its policy allows, when create_timeout (%s) was over.", netip.AddrPortFrom(addr, listenerPort), b.o.createTimeout),
		Next: "Look for other network policies of the namespace that select the sandbox.", Attribute: []string{"policy", "network_allow"},
	})
}

// setEgress changes what the sandbox's own policy lets out.
func (b *building) setEgress(ctx context.Context, s *sandbox, egress []networkingv1.NetworkPolicyEgressRule) error {
	object := "NetworkPolicy " + s.namespace + "/" + s.name
	change := map[string]any{"spec": map[string]any{"egress": egress, "policyTypes": []string{string(networkingv1.PolicyTypeEgress)}}}
	if s.owned.policy != "" {
		change["metadata"] = map[string]any{"uid": s.owned.policy}
	}
	patch, err := json.Marshal(change)
	if err != nil {
		return err
	}
	call, cancel := withDeadline(ctx, b.e.timings.call)
	defer cancel()
	var set *networkingv1.NetworkPolicy
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		set, err = b.e.own.kube.NetworkingV1().NetworkPolicies(s.namespace).Patch(call, s.name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	if err == nil && !equality.Semantic.DeepEqual(set.Spec.Egress, egress) {
		return b.changedPolicy(s)
	}
	if apierrors.IsNotFound(err) || otherUID(err) {
		return &sandboxcore.Error{
			Code: sandboxcore.CodeNetwork, Attempted: b.refusal() + ": its network policy is gone", Object: objectID(s.info.NativeID),
			Said: "Somebody has removed " + object + ".", Next: "Replace the sandbox (terraform apply -replace); it brings its policy.", Attribute: []string{"kubernetes", keyNetworkPolicy},
		}
	}
	return b.e.failure(call, err, sandboxcore.CodeProvision, "the network policy of the sandbox could not be set", object, "Correct what the API server complains about.")
}

// onlyOurs refuses a sandbox that another policy opens: what several policies let out adds up, and the listener shows that
// only where the other one happens to let it through.
func (b *building) onlyOurs(ctx context.Context, s *sandbox, egress []networkingv1.NetworkPolicyEgressRule) error {
	pod, err := b.e.getPod(ctx, s.namespace, s.pod)
	if err != nil {
		return err
	}
	if pod.UID != s.podUID { // what was seen, was seen by the name of the pod
		return gone("it could not be seen whether the network policy holds", s.info.NativeID, "Another pod has taken the name of its pod.")
	}
	call, cancel := withDeadline(ctx, b.e.timings.call)
	defer cancel()
	list, err := b.e.own.kube.NetworkingV1().NetworkPolicies(s.namespace).List(call, metav1.ListOptions{})
	if err != nil {
		return b.e.failure(call, err, sandboxcore.CodeProvision, "it could not be seen whether another network policy opens the sandbox", "namespace "+s.namespace, "Grant list on networkpolicies.")
	}
	own := false
	for i := range list.Items {
		np := &list.Items[i]
		selector, err := metav1.LabelSelectorAsSelector(&np.Spec.PodSelector)
		selects := err != nil || selector.Matches(labels.Set(pod.Labels))
		if np.Name == s.name {
			own = selects && slices.Contains(np.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) && equality.Semantic.DeepEqual(np.Spec.Egress, egress)
			continue
		}
		if len(np.Spec.Egress) == 0 || !selects {
			continue
		}
		return &sandboxcore.Error{
			Code: sandboxcore.CodeNetwork, Attempted: b.refusal() + ": its network policy does not hold", Object: objectID(s.info.NativeID),
			Said: fmt.Sprintf("The NetworkPolicy %s/%s selects it as well and lets something out, and what policies let out adds up. No code has run in it.", np.Namespace, np.Name),
			Next: "Let that policy leave out pods with the label " + sandboxcore.MarkManaged + ", use a namespace without it, or use network_egress = \"allow\".", Attribute: []string{"kubernetes", keyNetworkPolicy},
		}
	}
	if !own {
		return b.changedPolicy(s)
	}
	return nil
}

// changedPolicy is the error of a policy that is not what was asked for.
func (b *building) changedPolicy(s *sandbox) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeNetwork, Attempted: b.refusal() + ": its network policy is not what was asked for", Object: objectID(s.info.NativeID),
		Said: fmt.Sprintf("The cluster, or somebody in it, has changed or removed the NetworkPolicy %s/%s. No code has run in the sandbox.", s.namespace, s.name),
		Next: "Let the admission webhooks and policies of the cluster leave the policies of sandboxes alone.", Attribute: []string{"kubernetes", keyNetworkPolicy},
	}
}

// dial waits inside the sandbox until the listener can no longer, or can, be reached.
func (b *building) dial(ctx context.Context, s *sandbox, want string, addr netip.Addr, never *sandboxcore.Error) error {
	left := max(time.Until(b.deadline), time.Second)
	ctx, cancel := context.WithTimeout(ctx, left+b.e.timings.call)
	defer cancel()
	code, word, err := b.e.command(ctx, b.e.own, s.namespace, s.pod, helperPath, "dial", want,
		hex.EncodeToString(addr.Unmap().AsSlice()), strconv.Itoa(listenerPort), strconv.FormatInt(left.Milliseconds(), 10))
	switch {
	case err != nil:
		return b.e.failure(ctx, err, sandboxcore.CodeProvision, "it could not be seen whether the network policy holds", objectID(s.info.NativeID), "Run the command again.")
	case code == 0 && word == "dialing\nok\n":
		return nil
	case code == 0:
		return &sandboxcore.Error{
			Code: sandboxcore.CodeProvision, Attempted: "it could not be seen whether the network policy holds", Object: objectID(s.info.NativeID),
			Said: "The connection to the run helper ended before it said so.", Next: "Run the command again.",
		}
	case code == 1:
		return never
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeProvision, Attempted: "it could not be seen whether the network policy holds", Object: objectID(s.info.NativeID),
		Said: fmt.Sprintf("The run helper ended with status %d.", code), Next: "This is a fault of the provider; please report it.",
	}
}

func (e *endpoint) takeListener(ctx context.Context, req sandboxcore.CreateRequest) (*listener, error) {
	o := optionsOf(req.Profile)
	key, err := json.Marshal([]any{o.namespace, req.Profile.Settings})
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.listeners[string(key)]; l != nil && l.lasts(e.now()) {
		l.refs++
		return l, nil
	}
	// It outlives the create call that needed it first.
	own, stop := context.WithTimeout(context.WithoutCancel(ctx), o.createTimeout) //nolint:forbidigo // it is shared, and ended by its last user
	l := &listener{key: string(key), refs: 1, stop: stop, done: make(chan struct{}), namespace: o.namespace, born: e.now()}
	e.listeners[l.key] = l
	go func() {
		defer close(l.done)
		l.addr, l.err = e.startListener(own, l, req)
	}()
	return l, nil
}

// lasts reports whether one more can take part: a listener that could not be made is no reason for others to fail, and one
// that is old would end before they are done.
func (l *listener) lasts(now time.Time) bool {
	select {
	case <-l.done:
		return l.err == nil && now.Sub(l.born) < listenerLife/2
	default:
		return true
	}
}

func (e *endpoint) releaseListener(ctx context.Context, l *listener) {
	e.mu.Lock()
	l.refs--
	last := l.refs == 0
	if last && e.listeners[l.key] == l {
		delete(e.listeners, l.key)
	}
	e.mu.Unlock()
	if !last {
		return
	}
	l.stop()
	<-l.done
	if l.uid == "" {
		return
	}
	_ = sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		e.removeListener(ctx, l.namespace, l.name, l.uid, l.owned)
		return nil
	})
}

// removeListener removes the pod and what belongs to it. That it failed is no error of a sandbox: the cluster ends the pod
// after listenerLife.
func (e *endpoint) removeListener(ctx context.Context, namespace, name string, uid types.UID, beside owned) {
	now := int64(0)
	err := e.removeOne(ctx, "Pod "+namespace+"/"+name, uid, func(ctx context.Context, o metav1.DeleteOptions) error {
		o.GracePeriodSeconds = &now
		return e.own.kube.CoreV1().Pods(namespace).Delete(ctx, name, o)
	})
	if left := e.removeOwned(ctx, namespace, name, beside, "the listener "+namespace+"/"+name); err == nil {
		err = left
	}
	if err != nil {
		e.log.WarnContext(ctx, "the pod that network policies were checked against could not be removed; it ends by itself", "pod", namespace+"/"+name, "error", err)
	}
}

// startListener makes the pod, its helper and a policy that lets connections in: a default-deny of the namespace must not
// be mistaken for the policy of the sandbox.
func (e *endpoint) startListener(ctx context.Context, l *listener, req sandboxcore.CreateRequest) (netip.Addr, error) {
	e.sweepListeners(ctx, l.namespace)
	profile := *req.Profile
	// It needs no files of anybody, and a claim may be for one pod or one node only.
	profile.Settings = maps.Clone(profile.Settings)
	delete(profile.Settings, keyWorkspaceClaim)
	cpu, memory := 0.05, int64(32)
	profile.Policy = sandboxcore.Policy{NetworkEgress: sandboxcore.NetworkAllow, CPU: &cpu, MemoryMB: &memory}
	b := &building{
		e: e, o: optionsOf(&profile), deadline: time.Now().Add(optionsOf(&profile).createTimeout),
		// Another provider process may check the same sandbox at the same time.
		req: sandboxcore.CreateRequest{Profile: &profile, Marks: sandboxcore.Marks{Request: "listener-" + rand.Text()}},
	}
	life := int64((listenerLife + 2*b.o.createTimeout).Seconds())
	// Where the namespace asks for labels, it asks all pods for them.
	marked := userLabels(b.o, sandboxcore.Marks{})
	maps.Copy(marked, ownLabels(b.req.Marks, kindListener))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: objectName(b.req.Marks), Namespace: l.namespace, Labels: marked},
		Spec:       podSpec(&profile, objectName(b.req.Marks), false),
	}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: gateName}}
	pod.Spec.ActiveDeadlineSeconds = &life
	c := &pod.Spec.Containers[0]
	c.Command = []string{helperPath, "listen", strconv.Itoa(listenerPort)}
	c.ReadinessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(listenerPort)}}, PeriodSeconds: 1, TimeoutSeconds: 5,
	}
	created, err := b.createPod(ctx, e.own, pod)
	if err != nil {
		return netip.Addr{}, err
	}
	l.name, l.uid = created.Name, created.UID
	b.policy = newPolicy(b.req.Marks, l.namespace, nil, metav1.OwnerReference{})
	b.policy.Spec = networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{sandboxcore.MarkRequest: requestLabel(b.req.Marks)}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress:     []networkingv1.NetworkPolicyIngressRule{{}},
	}
	err = b.begin(ctx, created, ownedBy("v1", "Pod", created.Name, created.UID))
	l.owned = b.owned
	if err != nil {
		return netip.Addr{}, err
	}
	// Its readiness probe is answered: until then lifeOf does not call it running.
	running, err := b.waitRunning(ctx, created.Name, created.UID)
	if err != nil {
		return netip.Addr{}, err
	}
	addr, err := netip.ParseAddr(running.Status.PodIP)
	if err != nil {
		return addr, &sandboxcore.Error{
			Code: sandboxcore.CodeProvision, Attempted: "it could not be seen whether network policies hold", Object: objectID(l.namespace + "/" + l.name),
			Said: "A pod of the namespace has no address.", Next: "Check the network plugin of the cluster.",
		}
	}
	return addr, nil
}

// sweepListeners removes listeners that outlived their provider.
func (e *endpoint) sweepListeners(ctx context.Context, namespace string) {
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	list, err := e.own.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: sandboxcore.MarkManaged + "=true," + sandboxcore.MarkKind + "=" + kindListener})
	if err != nil {
		return
	}
	for i := range list.Items {
		if p := &list.Items[i]; lifeOf(p).dead || p.Spec.ActiveDeadlineSeconds != nil && time.Since(p.CreationTimestamp.Time) > 2*time.Duration(*p.Spec.ActiveDeadlineSeconds)*time.Second {
			e.removeListener(ctx, namespace, p.Name, p.UID, ownedOf(p.Annotations))
		}
	}
}
