package kubernetes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// A cluster may change what is asked of it before it makes it: webhooks and policies of its operators do. What it made is
// compared with what was asked for, and refused where it holds less. What is merely different (an image from a mirror, more
// labels and variables, lower limits, a container beside ours) is the operators' business.

// refuseWeaker refuses a pod that is weaker than what was asked for.
func refuseWeaker(attempted, nativeID string, weak []string) error {
	if len(weak) == 0 {
		return nil
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeProvision, Attempted: attempted, Object: objectID(nativeID),
		Said: "The cluster made its pod weaker than asked for: " + sandboxcore.Printable(strings.Join(weak, "; ")) + ". No code has run in it.",
		Next: "Let the admission webhooks and policies of the cluster leave such pods alone (kubectl get mutatingwebhookconfigurations), or ask for what they make of it.",
	}
}

// refuse removes a sandbox in which no user's code has run, and none ever may.
func (b *building) refuse(ctx context.Context, s *sandbox, err error) error {
	if left := sandboxcore.WithCleanup(ctx, s.Destroy); left != nil {
		return sandboxcore.Violations(append(sandboxcore.AllErrors(err, sandboxcore.CodeProvision), sandboxcore.AllErrors(left, sandboxcore.CodeDeleteFailed)...))
	}
	return err
}

// weaker says where a pod holds less than what was asked for.
func weaker(asked, got *corev1.Pod) []string {
	d := &difference{asked: &asked.Spec, got: &got.Spec}
	// By these it is found, and selected by its policy.
	for _, k := range []string{sandboxcore.MarkManaged, sandboxcore.MarkKind, sandboxcore.MarkRequest} {
		d.unless(got.Labels[k] == asked.Labels[k], "the label %s is %q", k, got.Labels[k])
	}
	d.pod()
	for i := range asked.Spec.InitContainers {
		d.container(&asked.Spec.InitContainers[i], got.Spec.InitContainers)
	}
	for i := range asked.Spec.Containers {
		d.container(&asked.Spec.Containers[i], got.Spec.Containers)
	}
	d.others()
	return d.found
}

type difference struct {
	asked, got *corev1.PodSpec
	found      []string
}

func (d *difference) unless(ok bool, format string, args ...any) {
	if !ok {
		d.found = append(d.found, fmt.Sprintf(format, args...))
	}
}

func (d *difference) pod() {
	got, asked := d.got, d.asked
	d.unless(!got.HostNetwork, "hostNetwork is on")
	d.unless(!got.HostPID, "hostPID is on")
	d.unless(!got.HostIPC, "hostIPC is on")
	d.unless(!is(got.ShareProcessNamespace), "shareProcessNamespace is on")
	d.unless(got.AutomountServiceAccountToken != nil && !*got.AutomountServiceAccountToken, "it is given a service account token")
	d.unless(got.RestartPolicy == asked.RestartPolicy, "restartPolicy is %s", got.RestartPolicy)
	if want := asked.ActiveDeadlineSeconds; want != nil {
		d.unless(got.ActiveDeadlineSeconds != nil && *got.ActiveDeadlineSeconds <= *want, "activeDeadlineSeconds is not %d", *want)
	}
	if want := asked.RuntimeClassName; want != nil {
		d.unless(got.RuntimeClassName != nil && *got.RuntimeClassName == *want, "runtimeClassName is not %s", *want)
	}
	if s := got.SecurityContext; s != nil && asked.SecurityContext != nil {
		for _, g := range s.SupplementalGroups {
			d.unless(slices.Contains(asked.SecurityContext.SupplementalGroups, g), "supplementalGroups has %d", g)
		}
	}
}

func (d *difference) container(asked *corev1.Container, all []corev1.Container) {
	at := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == asked.Name })
	if at < 0 {
		d.unless(false, "it has no container %s", asked.Name)
		return
	}
	got := &all[at]
	d.unless(slices.Equal(got.Command, asked.Command) && slices.Equal(got.Args, asked.Args), "the command of its container %s is another one", asked.Name)
	d.security(asked, got)
	for name, want := range asked.Resources.Limits {
		limit, ok := got.Resources.Limits[name]
		d.unless(ok && limit.Cmp(want) <= 0, "the limit of %s is %s", name, orNone(limit, ok))
	}
	d.mounts(asked, got)
}

func orNone(q resource.Quantity, ok bool) string {
	if !ok {
		return "none"
	}
	return q.String()
}

func (d *difference) security(askedContainer, gotContainer *corev1.Container) {
	asked, got := effective(d.asked, askedContainer), effective(d.got, gotContainer)
	d.unless(!is(got.Privileged), "it is privileged")
	d.unless(got.ProcMount == nil || *got.ProcMount == corev1.DefaultProcMount, "procMount is not the default")
	d.unless(is(asked.AllowPrivilegeEscalation) || got.AllowPrivilegeEscalation != nil && !*got.AllowPrivilegeEscalation, "allowPrivilegeEscalation is on")
	d.unless(!is(asked.ReadOnlyRootFilesystem) || is(got.ReadOnlyRootFilesystem), "readOnlyRootFilesystem is off")
	d.unless(!is(asked.RunAsNonRoot) || is(got.RunAsNonRoot), "runAsNonRoot is off")
	d.unless(same(asked.RunAsUser, got.RunAsUser), "runAsUser is not %d", value(asked.RunAsUser))
	d.unless(same(asked.RunAsGroup, got.RunAsGroup), "runAsGroup is not %d", value(asked.RunAsGroup))
	if asked.SeccompProfile != nil && asked.SeccompProfile.Type != corev1.SeccompProfileTypeUnconfined {
		d.unless(got.SeccompProfile != nil && got.SeccompProfile.Type != corev1.SeccompProfileTypeUnconfined, "seccompProfile is off")
	}
	var wanted, have corev1.Capabilities
	if asked.Capabilities != nil {
		wanted = *asked.Capabilities
	}
	if got.Capabilities != nil {
		have = *got.Capabilities
	}
	for _, c := range wanted.Drop {
		d.unless(slices.Contains(have.Drop, c), "capabilities are not dropped: %s", c)
	}
	for _, c := range have.Add {
		d.unless(slices.Contains(wanted.Add, c), "it is given the capability %s", c)
	}
}

// effective is the security context of a container with what it takes over from its pod.
func effective(spec *corev1.PodSpec, c *corev1.Container) corev1.SecurityContext {
	var out corev1.SecurityContext
	if c.SecurityContext != nil {
		out = *c.SecurityContext
	}
	p := spec.SecurityContext
	if p == nil {
		return out
	}
	if out.RunAsUser == nil {
		out.RunAsUser = p.RunAsUser
	}
	if out.RunAsGroup == nil {
		out.RunAsGroup = p.RunAsGroup
	}
	if out.RunAsNonRoot == nil {
		out.RunAsNonRoot = p.RunAsNonRoot
	}
	if out.SeccompProfile == nil {
		out.SeccompProfile = p.SeccompProfile
	}
	return out
}

// mounts: what was asked for is there as it was asked for, and what is more can neither be written where the root cannot,
// nor is it a token or a part of the node.
func (d *difference) mounts(asked, got *corev1.Container) {
	d.unless(len(got.VolumeDevices) == 0, "it is given a device")
	for _, m := range asked.VolumeMounts {
		there := slices.ContainsFunc(got.VolumeMounts, func(g corev1.VolumeMount) bool {
			return g.Name == m.Name && g.MountPath == m.MountPath && g.ReadOnly == m.ReadOnly && g.SubPath == m.SubPath && g.SubPathExpr == m.SubPathExpr
		})
		want := volume(d.asked, m.Name) // none: the controller of a Sandbox brings it
		d.unless(there && (want == nil || sameVolume(want, volume(d.got, m.Name))), "what is mounted at %s is not what was asked for", m.MountPath)
	}
	for _, g := range got.VolumeMounts {
		if slices.ContainsFunc(asked.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == g.MountPath }) {
			continue
		}
		v := volume(d.got, g.Name)
		switch {
		case v == nil:
		case v.HostPath != nil:
			d.unless(false, "a part of the node is mounted at %s", g.MountPath)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				d.unless(s.ServiceAccountToken == nil, "a service account token is mounted at %s", g.MountPath)
			}
		case v.ConfigMap != nil, v.Secret != nil, v.DownwardAPI != nil, g.ReadOnly: // cannot be written
		default:
			s := asked.SecurityContext
			d.unless(s == nil || !is(s.ReadOnlyRootFilesystem), "%s can be written", g.MountPath)
		}
	}
}

// others: a container beside ours has no part in the environment of the sandbox.
func (d *difference) others() {
	for _, c := range slices.Concat(d.got.InitContainers, d.got.Containers) {
		if c.Name == containerName || c.Name == envContainer {
			continue
		}
		d.unless(!slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == envVolume }), "its container %s sees the environment", c.Name)
	}
}

func volume(spec *corev1.PodSpec, name string) *corev1.Volume {
	for i := range spec.Volumes {
		if spec.Volumes[i].Name == name {
			return &spec.Volumes[i]
		}
	}
	return nil
}

func sameVolume(asked, got *corev1.Volume) bool {
	switch {
	case got == nil:
		return false
	case asked.ConfigMap != nil:
		return got.ConfigMap != nil && got.ConfigMap.Name == asked.ConfigMap.Name
	case asked.PersistentVolumeClaim != nil:
		return got.PersistentVolumeClaim != nil && got.PersistentVolumeClaim.ClaimName == asked.PersistentVolumeClaim.ClaimName
	case asked.EmptyDir != nil:
		limit := asked.EmptyDir.SizeLimit
		return got.EmptyDir != nil && got.EmptyDir.Medium == asked.EmptyDir.Medium &&
			(limit == nil || got.EmptyDir.SizeLimit != nil && got.EmptyDir.SizeLimit.Cmp(*limit) <= 0)
	}
	return true
}

func is(b *bool) bool { return b != nil && *b }

func same(a, b *int64) bool { return a == nil || b != nil && *a == *b }

func value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}
