package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const (
	sandboxGroup = "agents.x-k8s.io"
	// podNameAnnotation names the pod of a Sandbox where it is not called like the Sandbox.
	podNameAnnotation = sandboxGroup + "/pod-name"
	// markVerified is the uid of the pod whose policy was seen to hold: the next pod of the same Sandbox has another one.
	markVerified   = prefix + "verified"
	workspaceClaim = "workspace"
)

// claimName is what the controller of agent-sandbox calls the claim of a Sandbox.
func claimName(sandbox string) string { return workspaceClaim + "-" + sandbox }

// sandboxVersions are the versions of the API that we speak, the newest first.
var sandboxVersions = []string{"v1beta1", "v1alpha1"}

// sandboxAPI is how the cluster serves Sandbox objects.
type sandboxAPI struct {
	version string // empty: not at all
}

func (a *sandboxAPI) resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: sandboxGroup, Version: a.version, Resource: "sandboxes"}
}

// running is the part of a Sandbox's spec that says whether it has a pod.
func (a *sandboxAPI) running(yes bool) map[string]any {
	switch {
	case a.version == "v1alpha1" && yes:
		return map[string]any{"replicas": int64(1)}
	case a.version == "v1alpha1":
		return map[string]any{"replicas": int64(0)}
	case yes:
		return map[string]any{"operatingMode": "Running"}
	}
	return map[string]any{"operatingMode": "Suspended"}
}

// suspended reports whether a Sandbox is told to have no pod.
func (a *sandboxAPI) suspended(o *unstructured.Unstructured) bool {
	if a.version == "v1alpha1" {
		n, found, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
		return found && n == 0
	}
	mode, _, _ := unstructured.NestedString(o.Object, "spec", "operatingMode")
	return mode == "Suspended"
}

// sandboxes finds out, once, which version of the API the cluster serves.
func (e *endpoint) sandboxes(ctx context.Context) (*sandboxAPI, error) {
	e.mu.Lock()
	known := e.sandboxAPI
	e.mu.Unlock()
	if known != nil {
		return known, nil
	}
	api := &sandboxAPI{}
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	group, err := e.own.kube.Discovery().RESTClient().Get().AbsPath("/apis/" + sandboxGroup).DoRaw(ctx)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, e.failure(ctx, err, sandboxcore.CodeUnreachable, "the cluster could not be asked for the Sandbox API", "Kubernetes at "+e.target.config.Host, "Check the API server.")
	default:
		var served metav1.APIGroup
		if err := json.Unmarshal(group, &served); err != nil {
			return nil, e.failure(ctx, err, sandboxcore.CodeUnreachable, "the cluster's answer about the Sandbox API is not understood", "Kubernetes at "+e.target.config.Host, "Check the API server.")
		}
		for _, v := range sandboxVersions {
			for _, s := range served.Versions {
				if s.Version == v && api.version == "" {
					api.version = v
				}
			}
		}
		// Only what is there stays there: the API may be installed at any moment.
		if api.version != "" {
			e.mu.Lock()
			e.sandboxAPI = api
			e.mu.Unlock()
		}
	}
	return api, nil
}

// sandboxClient gives the resource of one namespace (all: empty).
func (e *endpoint) sandboxClient(c *client, api *sandboxAPI, namespace string) (dynamic.ResourceInterface, error) {
	d, err := e.dynamicClient(c)
	if err != nil {
		return nil, err
	}
	return d.Resource(api.resource()).Namespace(namespace), nil
}

// sandboxObject is the Sandbox behind a handle.
type sandboxObject struct {
	api      *sandboxAPI
	uid      types.UID
	paused   bool
	verified string
	// weak is where its pod holds less than its template says.
	weak []string
}

// sandbox makes a Sandbox. It starts without a pod: its helper and its policy exist, owned by it, before it is told to run.
func (b *building) sandbox(ctx context.Context) (sandboxcore.ManagedSandbox, error) {
	if err := b.plainEnv(); err != nil {
		return nil, err
	}
	api, err := b.e.sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	if api.version == "" {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeProvision, Attempted: attemptedCreate, Object: "namespace " + b.o.namespace,
			Said: "The cluster serves no Sandbox objects (" + sandboxGroup + ", v1beta1 or v1alpha1).", Next: "Install kubernetes-sigs/agent-sandbox in the cluster, or use workload = \"pod\".",
			Attribute: []string{"kubernetes", keyWorkload},
		}
	}
	object, err := b.newSandbox(api)
	if err != nil {
		return nil, err
	}
	c, err := b.e.forUser(ctx, &b.req.Principal)
	if err != nil {
		return nil, err
	}
	resource, err := b.e.sandboxClient(c, api, b.o.namespace)
	if err != nil {
		return nil, err
	}
	// Whoever may not look for the claim at the end could not be told that it is gone.
	look, looked := withDeadline(ctx, b.e.timings.call)
	defer looked()
	_, err = b.e.own.kube.CoreV1().PersistentVolumeClaims(b.o.namespace).Get(look, claimName(object.GetName()), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, b.e.failure(look, err, sandboxcore.CodeProvision, attemptedCreate, "namespace "+b.o.namespace, "Grant get on persistentvolumeclaims.")
	}
	if err := b.listen(ctx); err != nil {
		return nil, err
	}
	call, cancel := withDeadline(ctx, b.e.timings.call)
	defer cancel()
	created, err := resource.Create(call, object, metav1.CreateOptions{})
	if err != nil {
		var answered apierrors.APIStatus
		if own, cerr := b.e.sandboxClient(b.e.own, api, b.o.namespace); cerr == nil && !asStatus(err, &answered) {
			b.e.removeLost(ctx, b.o.namespace+"/"+object.GetName(), func(ctx context.Context) error {
				made, err := own.Get(ctx, object.GetName(), metav1.GetOptions{})
				if err != nil || made.GetLabels()[sandboxcore.MarkRequest] != object.GetLabels()[sandboxcore.MarkRequest] {
					return err
				}
				uid := made.GetUID()
				return own.Delete(ctx, object.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
			})
		}
		return nil, b.e.failure(call, err, sandboxcore.CodeProvision, attemptedCreate, "namespace "+b.o.namespace, "Correct what the API server complains about.")
	}
	s, err := b.e.managedSandbox(created, nil, api, b.identity)
	if err != nil {
		return nil, err
	}
	s.principal = &b.req.Principal
	b.nativeID = s.info.NativeID
	b.onCreated(s.info)
	if err := refuseWeaker(attemptedCreate, b.nativeID, weaker(templateOf(object), templateOf(created))); err != nil {
		return nil, b.refuse(ctx, s, err)
	}
	if err := b.belongings(ctx, ownedBy(api.resource().GroupVersion().String(), "Sandbox", created.GetName(), created.GetUID())); err != nil {
		return nil, err
	}
	spec := map[string]any{"metadata": map[string]any{"uid": s.object.uid, "annotations": map[string]any{markUID: string(s.object.uid), markOwned: b.owned.String()}}, "spec": api.running(true)}
	if err := s.object.patch(ctx, s, spec); err != nil {
		return nil, b.forget(ctx, err)
	}
	if s, err = b.waitSandbox(ctx, s); err != nil {
		return nil, err
	}
	if !isolated(b.req.Profile) {
		return s, nil
	}
	if err := b.finish(ctx, s); err != nil {
		return nil, err
	}
	return s, s.object.verify(ctx, s)
}

// plainEnv refuses an environment with secrets: it would have to live in the pod's template, since the pod may be made
// again without us.
func (b *building) plainEnv() error {
	for k, v := range b.req.Env {
		if plain, ok := b.req.Marks.Args.Env[k]; !ok || plain != v {
			return &sandboxcore.Error{
				Code: sandboxcore.CodeOperation, Attempted: "the sandbox was refused before anything was created", Object: b.req.Marks.Name,
				Said: "The pod of this workload may be made again at any time, and a secret for it would have to be kept in the cluster for all to read.",
				Next: "Give secret_env to the runs instead, or use workload = \"pod\".", Attribute: []string{"secret_env"},
			}
		}
	}
	return nil
}

func (b *building) newSandbox(api *sandboxAPI) (*unstructured.Unstructured, error) {
	annotations, err := annotationsOf(b.o, b.req.Marks)
	if err != nil {
		return nil, err
	}
	o := b.o
	o.env = map[string]string{}
	for _, m := range []map[string]string{b.o.env, b.req.Env} {
		maps.Copy(o.env, m)
	}
	name := objectName(b.req.Marks)
	pod := podSpec(b.req.Profile, name, false)
	pod.Containers[0].Env = environmentOf(o)
	spec := api.running(false)
	b.claimWorkspace(&pod, spec)
	podMap, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&pod)
	if err != nil {
		return nil, err
	}
	labels := map[string]any{}
	for k, v := range labelsOf(b.o, b.req.Marks) {
		labels[k] = v
	}
	spec["podTemplate"] = map[string]any{
		"metadata": map[string]any{"labels": labels, "annotations": map[string]any{markWorkload: workloadSandbox}}, "spec": podMap,
	}
	if text := b.req.Marks.Args.MaxLifetime; text != "" {
		seconds, err := lifetimeSeconds(text)
		if err != nil {
			return nil, err
		}
		spec["shutdownTime"] = b.e.now().UTC().Add(time.Duration(seconds) * time.Second).Format(time.RFC3339)
		spec["shutdownPolicy"] = "Delete"
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetAPIVersion(api.resource().GroupVersion().String())
	object.SetKind("Sandbox")
	object.SetName(name)
	object.SetNamespace(b.o.namespace)
	object.SetLabels(labelsOf(b.o, b.req.Marks))
	object.SetAnnotations(annotations)
	return object, nil
}

// claimWorkspace puts the workspace on a claim of the Sandbox, which outlives its pods.
func (b *building) claimWorkspace(pod *corev1.PodSpec, spec map[string]any) {
	c := &pod.Containers[0]
	for i := range c.VolumeMounts {
		if c.VolumeMounts[i].MountPath != sandboxcore.Workspace {
			continue
		}
		for k, v := range pod.Volumes {
			if v.Name == c.VolumeMounts[i].Name {
				pod.Volumes = append(pod.Volumes[:k:k], pod.Volumes[k+1:]...)
				break
			}
		}
		c.VolumeMounts[i].Name = workspaceClaim
		claim := map[string]any{
			"accessModes": []any{string(corev1.ReadWriteOnce)},
			"resources":   map[string]any{"requests": map[string]any{"storage": fmt.Sprintf("%dMi", b.o.workspaceMB)}},
		}
		if b.o.storageClass != "" {
			claim["storageClassName"] = b.o.storageClass
		}
		spec["volumeClaimTemplates"] = []any{map[string]any{"metadata": map[string]any{"name": workspaceClaim}, "spec": claim}}
	}
}

// waitSandbox waits until the controller has made the pod and the pod runs.
func (b *building) waitSandbox(ctx context.Context, s *sandbox) (*sandbox, error) {
	for {
		found, err := b.e.lookSandbox(ctx, s.namespace, s.name, b.identity)
		if err != nil {
			return nil, err
		}
		if found.podUID != "" {
			if _, err := b.waitRunning(ctx, found.pod, found.podUID); err != nil {
				return nil, err
			}
			if found, err = b.e.lookSandbox(ctx, s.namespace, s.name, b.identity); err != nil {
				return nil, err
			}
			found.principal = s.principal
			if err := refuseWeaker(attemptedCreate, s.info.NativeID, found.object.weak); err != nil {
				return nil, b.refuse(ctx, found, err)
			}
			return found, nil
		}
		if time.Now().After(b.deadline) || !pause(ctx, b.e.timings.poll) {
			return nil, b.notStarted(ctx, s.info.NativeID, s.object.uid, fmt.Sprintf("Its controller has made no pod within %s.", b.o.createTimeout),
				"Check that the controller of kubernetes-sigs/agent-sandbox runs, and its log.")
		}
	}
}

// findSandbox is Find for a Sandbox.
func (e *endpoint) findSandbox(ctx context.Context, namespace, name, identity string) (sandboxcore.ManagedSandbox, error) {
	s, err := e.lookSandbox(ctx, namespace, name, identity)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (e *endpoint) lookSandbox(ctx context.Context, namespace, name, identity string) (*sandbox, error) {
	const attempted = "the sandbox could not be looked up"
	nativeID := namespace + "/" + workloadSandbox + "/" + name
	api, err := e.sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	if api.version == "" {
		return nil, goneMissing(attempted, nativeID)
	}
	resource, err := e.sandboxClient(e.own, api, namespace)
	if err != nil {
		return nil, err
	}
	call, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	object, err := resource.Get(call, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, gone(attempted, nativeID, "The cluster has no such Sandbox any more: it was removed, or its max_lifetime is over.")
	}
	if err != nil {
		return nil, e.failure(call, err, sandboxcore.CodeUnreachable, attempted, objectID(nativeID), "Check the API server.")
	}
	if u := object.GetAnnotations()[markUID]; u != "" && u != string(object.GetUID()) {
		return nil, gone(attempted, nativeID, "Another Sandbox has taken its name: it carries the marks of the first one, but another uid.")
	}
	if object.GetDeletionTimestamp() != nil {
		return nil, gone(attempted, nativeID, "It is being deleted.")
	}
	podName := name
	if n := object.GetAnnotations()[podNameAnnotation]; n != "" {
		podName = n
	}
	pod, err := e.getPod(ctx, namespace, podName)
	if err != nil && !sandboxcore.IsCode(err, sandboxcore.CodeGone) {
		return nil, err
	}
	s, err := e.managedSandbox(object, pod, api, identity)
	if err != nil {
		return nil, err
	}
	if expired(object) {
		e.bury(ctx, s)
		return nil, gone(attempted, nativeID, "Its max_lifetime is over: it has expired.")
	}
	return s, nil
}

// expired recognises a Sandbox that was shut down and kept as an object.
func expired(o *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == "Ready" && m["status"] == "False" && m["reason"] == "SandboxExpired" {
			return true
		}
	}
	return false
}

// managedSandbox makes the handle of a Sandbox that carries our marks; pod is its pod, nil when it has none.
func (e *endpoint) managedSandbox(object *unstructured.Unstructured, pod *corev1.Pod, api *sandboxAPI, identity string) (*sandbox, error) {
	nativeID := object.GetNamespace() + "/" + workloadSandbox + "/" + object.GetName()
	meta := metav1.ObjectMeta{Labels: object.GetLabels(), Annotations: object.GetAnnotations()}
	marks, err := marksOf(nativeID, &meta)
	if err != nil {
		return nil, err
	}
	s := &sandbox{
		e: e, namespace: object.GetNamespace(), name: object.GetName(), pod: object.GetName(), principal: marks.Args.Principal,
		labels: meta.Annotations[markLabels], owned: ownedOf(meta.Annotations),
		object: &sandboxObject{api: api, uid: object.GetUID(), paused: api.suspended(object), verified: meta.Annotations[markVerified]},
	}
	s.info = sandboxcore.SandboxInfo{
		NativeID: nativeID, Endpoint: identity, Marks: marks, CreatedAt: createdAt(marks, object.GetCreationTimestamp()),
		Status: sandboxcore.StatusStopped, Details: map[string]string{"uid": string(object.GetUID()), "api": api.resource().GroupVersion().String()},
	}
	if text, _, _ := unstructured.NestedString(object.Object, "spec", "shutdownTime"); text != "" {
		s.info.ExpiresAt, _ = time.Parse(time.RFC3339, text)
	}
	reason := "its controller has not made its pod"
	if pod != nil && pod.DeletionTimestamp == nil && metav1.IsControlledBy(pod, object) {
		s.pod, s.podUID = pod.Name, pod.UID
		for k, v := range details(pod) {
			if k != "uid" {
				s.info.Details[k] = v
			}
		}
		s.info.Details["pod_uid"] = string(pod.UID)
		s.object.weak = weaker(templateOf(object), pod)
		l := lifeOf(pod)
		s.info.Status, reason = l.status, l.reason
		if l.gone != "" {
			s.info.Status, reason = sandboxcore.StatusStopped, l.gone
		}
	}
	if s.object.paused {
		s.info.Status, reason = sandboxcore.StatusPaused, ""
	}
	if reason != "" {
		s.info.Details["reason"] = reason
	}
	return s, nil
}

// templateOf is the pod that a Sandbox asks for.
func templateOf(object *unstructured.Unstructured) *corev1.Pod {
	pod := &corev1.Pod{}
	template, _, _ := unstructured.NestedMap(object.Object, "spec", "podTemplate")
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, pod); err != nil {
		return &corev1.Pod{} // which no pod of ours is like
	}
	return pod
}

func (e *endpoint) listSandboxes(ctx context.Context, namespace, identity string) ([]sandboxcore.SandboxInfo, error) {
	api, err := e.sandboxes(ctx)
	if err != nil || api.version == "" {
		return nil, err
	}
	resource, err := e.sandboxClient(e.own, api, namespace)
	if err != nil {
		return nil, err
	}
	call, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	list, err := resource.List(call, metav1.ListOptions{LabelSelector: ourPods})
	if apierrors.IsForbidden(err) {
		return nil, err // for the caller, who knows what that means
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, e.failure(call, err, sandboxcore.CodeUnreachable, "the sandboxes of the cluster could not be listed", "Kubernetes at "+e.target.config.Host, "Check the API server.")
	}
	var out []sandboxcore.SandboxInfo
	for i := range list.Items {
		if list.Items[i].GetDeletionTimestamp() != nil {
			continue
		}
		s, err := e.managedSandbox(&list.Items[i], nil, api, identity)
		if err != nil {
			e.log.WarnContext(ctx, "a Sandbox with our label was left out of the list", "name", list.Items[i].GetName(), "error", err)
			continue
		}
		delete(s.info.Details, "reason")
		out = append(out, s.info)
	}
	return out, nil
}
