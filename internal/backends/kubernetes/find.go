package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// ourPods selects the pods of sandboxes that are pods.
const ourPods = sandboxcore.MarkManaged + "=true," + sandboxcore.MarkKind + "=" + kindSandbox

// pageSize bounds one answer of a list.
const pageSize = 500

// listing is the answer to one question that serves a whole refresh: the sandboxes of one namespace. Each change of ours
// drops it.
type listing struct {
	mu     sync.Mutex
	byName map[string]*corev1.Pod
	until  time.Time
	// changes counts the drops: an answer to a question asked before a change is not kept.
	changes uint64
	asking  *question
}

// question is one list under way, shared by all who wait for it.
type question struct {
	changes uint64
	done    chan struct{}
	byName  map[string]*corev1.Pod
	err     error
}

func (l *listing) drop() {
	l.mu.Lock()
	l.byName = nil
	l.changes++
	l.mu.Unlock()
}

func (e *endpoint) listing(namespace string) *listing {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.listings[namespace]
	if l == nil {
		l = &listing{}
		e.listings[namespace] = l
	}
	return l
}

// Find reads one sandbox. A dead pod, which the cluster keeps as an object, is told as gone and its object removed:
// nobody else would ever remove it.
func (e *endpoint) Find(ctx context.Context, nativeID string, fresh bool) (sandboxcore.ManagedSandbox, error) {
	namespace, kind, name, err := split(nativeID)
	if err != nil {
		return nil, err
	}
	id, err := e.Identity(ctx)
	if err != nil {
		return nil, err
	}
	e.met(namespace)
	if kind == workloadSandbox {
		return e.findSandbox(ctx, namespace, name, id)
	}
	var pod *corev1.Pod
	if !fresh {
		all, err := e.podsOf(ctx, namespace)
		if err != nil {
			return nil, err
		}
		pod = all[name]
	}
	if pod == nil {
		if pod, err = e.getPod(ctx, namespace, name); err != nil {
			return nil, err
		}
	}
	s, err := e.managed(pod, id)
	if err != nil {
		return nil, err
	}
	l := lifeOf(pod)
	if l.gone == "" {
		return s, nil
	}
	if l.dead {
		l = e.lastWords(ctx, pod)
		e.bury(ctx, s)
	}
	return nil, gone("the sandbox could not be used", nativeID, l.gone)
}

// lastWords waits a moment for the reason of an end: a node tells that a container has ended before it tells why.
func (e *endpoint) lastWords(ctx context.Context, pod *corev1.Pod) life {
	l := lifeOf(pod)
	for until := e.now().Add(e.timings.words); pod.Status.Phase == corev1.PodRunning && e.now().Before(until) && pause(ctx, e.timings.poll); {
		next, err := e.getPod(ctx, pod.Namespace, pod.Name)
		if err != nil || next.UID != pod.UID {
			break
		}
		pod = next
		if now := lifeOf(pod); now.gone != "" {
			l = now
		}
	}
	return l
}

func (e *endpoint) getPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	pod, err := e.own.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, goneMissing("the sandbox could not be looked up", namespace+"/"+name)
	}
	if err != nil {
		return nil, e.failure(ctx, err, sandboxcore.CodeUnreachable, "the sandbox could not be looked up", objectID(namespace+"/"+name), "Check the API server.")
	}
	return pod, nil
}

// managed makes the handle of a pod that carries our marks, and refuses any other.
func (e *endpoint) managed(pod *corev1.Pod, identity string) (*sandbox, error) {
	nativeID := pod.Namespace + "/" + pod.Name
	marks, err := marksOf(nativeID, &pod.ObjectMeta)
	if err != nil {
		return nil, err
	}
	if pod.Annotations[markWorkload] == workloadSandbox {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeNotOurs, Attempted: "the object was refused", Object: objectID(nativeID), Said: "It is the pod of a Sandbox, which its controller makes and removes.",
			Next: "Name the Sandbox: kubernetes/<namespace>/sandbox/<name>.",
		}
	}
	s := &sandbox{e: e, namespace: pod.Namespace, name: pod.Name, pod: pod.Name, podUID: pod.UID, withEnv: hasEnv(pod.Spec), principal: marks.Args.Principal}
	s.labels, s.owned = pod.Annotations[markLabels], ownedOf(pod.Annotations)
	s.info = sandboxcore.SandboxInfo{
		NativeID: nativeID, Endpoint: identity, Marks: marks, CreatedAt: createdAt(marks, pod.CreationTimestamp), Details: details(pod),
	}
	if limit := pod.Spec.ActiveDeadlineSeconds; limit != nil && pod.Status.StartTime != nil { // counted from there
		s.info.ExpiresAt = pod.Status.StartTime.Add(time.Duration(*limit) * time.Second)
	}
	l := lifeOf(pod)
	s.info.Status = l.status
	if l.reason != "" {
		s.info.Details["reason"] = l.reason
	}
	return s, nil
}

// marksOf reads the marks of an object. The annotations alone are no proof: our lists go by label.
func marksOf(nativeID string, meta *metav1.ObjectMeta) (sandboxcore.Marks, error) {
	kv := maps.Clone(meta.Annotations)
	for _, k := range []string{sandboxcore.MarkManaged, sandboxcore.MarkKind} {
		if kv[k] != meta.Labels[k] {
			delete(kv, k)
		}
	}
	return sandboxcore.DecodeMarks(objectID(nativeID), kv)
}

func createdAt(m sandboxcore.Marks, created metav1.Time) time.Time {
	if !m.Created.IsZero() {
		return m.Created
	}
	return created.Time
}

func hasEnv(spec corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == envVolume })
}

// details are the facts of a pod worth showing.
func details(pod *corev1.Pod) map[string]string {
	d := map[string]string{"uid": string(pod.UID), "node": pod.Spec.NodeName}
	for _, c := range pod.Spec.Containers {
		if c.Name == containerName {
			d["image"] = c.Image
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == containerName && c.ImageID != "" {
			d["image_id"] = c.ImageID
		}
	}
	if s := pod.Spec.SecurityContext; s != nil && s.RunAsUser != nil {
		d["user"] = fmt.Sprint(*s.RunAsUser)
		if *s.RunAsUser == 0 {
			d["user"] = "0 (root, as security_context asks for)"
		}
	}
	if pod.Spec.RuntimeClassName != nil {
		d["runtime_class"] = *pod.Spec.RuntimeClassName
	}
	return d
}

// List gives every sandbox of ours, in all namespaces or in those of the configuration. Without the right to list them
// all, those that this process has met are looked into.
func (e *endpoint) List(ctx context.Context) ([]sandboxcore.SandboxInfo, error) {
	id, err := e.Identity(ctx)
	if err != nil {
		return nil, err
	}
	namespaces := e.config.namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	var out []sandboxcore.SandboxInfo
	for _, ns := range namespaces {
		pods, err := e.ask(ctx, ns)
		if apierrors.IsForbidden(err) && ns == metav1.NamespaceAll {
			pods, err = e.askKnown(ctx)
		}
		if err != nil {
			return nil, e.failure(ctx, err, sandboxcore.CodeUnreachable, "the sandboxes of the cluster could not be listed", "Kubernetes at "+e.target.config.Host, "Check the API server.")
		}
		out = append(out, e.infos(ctx, pods, id)...)
		more, err := e.listSandboxes(ctx, ns, id)
		if apierrors.IsForbidden(err) && ns == metav1.NamespaceAll {
			more, err = nil, nil
			for _, known := range e.known() {
				some, serr := e.listSandboxes(ctx, known, id)
				if serr != nil && !apierrors.IsForbidden(serr) {
					err = serr
				}
				more = append(more, some...)
			}
		}
		// Whoever may not list Sandbox objects has none.
		if err != nil && !apierrors.IsForbidden(err) {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// known are the namespaces that this process has met, and the one of the kubeconfig's context.
func (e *endpoint) known() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := maps.Clone(e.namespaces)
	if e.target.namespace != "" {
		known[e.target.namespace] = true
	}
	return slices.Sorted(maps.Keys(known))
}

func (e *endpoint) infos(ctx context.Context, pods []*corev1.Pod, identity string) []sandboxcore.SandboxInfo {
	var out []sandboxcore.SandboxInfo
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil || pod.Annotations[markWorkload] == workloadSandbox {
			continue
		}
		s, err := e.managed(pod, identity)
		if err != nil {
			// Marks that do not fit together: not ours, and nobody asked for it by name.
			e.log.WarnContext(ctx, "a pod with our label was left out of the list", "pod", pod.Namespace+"/"+pod.Name, "error", err)
			continue
		}
		out = append(out, s.info)
	}
	return out
}

// askKnown lists the known namespaces.
func (e *endpoint) askKnown(ctx context.Context) ([]*corev1.Pod, error) {
	var out []*corev1.Pod
	var refused error
	looked := false
	for _, ns := range e.known() {
		pods, err := e.ask(ctx, ns)
		if apierrors.IsForbidden(err) && !e.hasMet(ns) {
			refused = err // nobody asked for the namespace of the kubeconfig's context
			continue
		}
		if err != nil {
			return nil, err
		}
		looked = true
		out = append(out, pods...)
	}
	if !looked {
		return nil, refused
	}
	return out, nil
}

// ask lists our pods of one namespace, page by page.
func (e *endpoint) ask(ctx context.Context, namespace string) ([]*corev1.Pod, error) {
	var out []*corev1.Pod
	options := metav1.ListOptions{LabelSelector: ourPods, Limit: pageSize}
	for {
		page, err := func() (*corev1.PodList, error) {
			ctx, cancel := withDeadline(ctx, e.timings.call)
			defer cancel()
			return e.own.kube.CoreV1().Pods(namespace).List(ctx, options)
		}()
		if apierrors.IsResourceExpired(err) && options.Continue != "" {
			// The pages lost their place while they were read: from the start, in one piece.
			out, options = nil, metav1.ListOptions{LabelSelector: ourPods}
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			out = append(out, &page.Items[i])
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return out, nil
		}
	}
}

// podsOf gives the sandboxes of a namespace for one refresh.
func (e *endpoint) podsOf(ctx context.Context, namespace string) (map[string]*corev1.Pod, error) {
	l := e.listing(namespace)
	l.mu.Lock()
	if l.byName != nil && e.now().Before(l.until) {
		byName := l.byName
		l.mu.Unlock()
		return byName, nil
	}
	q := l.asking
	if q == nil || q.changes != l.changes {
		q = &question{changes: l.changes, done: make(chan struct{})}
		l.asking = q
		// The first who asks must not end the question for the others when it is cancelled.
		go func() {
			_ = sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
				e.answer(ctx, namespace, l, q)
				return nil
			})
		}()
	}
	l.mu.Unlock()
	select {
	case <-q.done:
		return q.byName, q.err
	case <-ctx.Done():
		return nil, e.failure(ctx, ctx.Err(), sandboxcore.CodeUnreachable, "the sandboxes of the namespace could not be listed", "namespace "+namespace, "")
	}
}

func (e *endpoint) answer(ctx context.Context, namespace string, l *listing, q *question) {
	begun := e.now()
	pods, err := e.ask(ctx, namespace)
	if err != nil {
		q.err = e.failure(ctx, err, sandboxcore.CodeUnreachable, "the sandboxes of the namespace could not be listed", "namespace "+namespace, "Check the API server.")
	} else {
		q.byName = make(map[string]*corev1.Pod, len(pods))
		for _, pod := range pods {
			q.byName[pod.Name] = pod
		}
	}
	l.mu.Lock()
	if l.asking == q {
		l.asking = nil
	}
	if q.err == nil && l.changes == q.changes {
		l.byName, l.until = q.byName, begun.Add(e.timings.listCache)
	}
	l.mu.Unlock()
	close(q.done)
}
