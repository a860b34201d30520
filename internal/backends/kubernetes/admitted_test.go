package kubernetes

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// TestWeaker is what a test cluster under the restricted standard cannot be made to do: each change alone is found, and one
// that takes nothing away is not.
func TestWeaker(t *testing.T) {
	t.Parallel()
	memory := int64(64)
	p := (&cluster{ns: "n"}).profile(set(keyRuntimeClass, "strong"), func(p *sandboxcore.Profile) {
		p.Policy.MemoryMB, p.Policy.FSAllowWrite = &memory, []string{"/workspace"}
	})
	asked, err := newPod(request(p, func(r *sandboxcore.CreateRequest) { r.Env = map[string]string{"A": "b"} }))
	if err != nil {
		t.Fatal(err)
	}
	yes, proc, other := true, corev1.UnmaskedProcMount, "other"
	mount := func(pod *corev1.Pod, source corev1.VolumeSource, readOnly bool) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "more", VolumeSource: source})
		c := &pod.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "more", MountPath: "/more", ReadOnly: readOnly})
	}
	token := corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}}}}
	for says, change := range map[string]func(pod *corev1.Pod){
		"":                         func(*corev1.Pod) {},
		"hostNetwork":              func(pod *corev1.Pod) { pod.Spec.HostNetwork = true },
		"hostPID":                  func(pod *corev1.Pod) { pod.Spec.HostPID = true },
		"hostIPC":                  func(pod *corev1.Pod) { pod.Spec.HostIPC = true },
		"service account token":    func(pod *corev1.Pod) { pod.Spec.AutomountServiceAccountToken = nil },
		"restartPolicy":            func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyAlways },
		"runtimeClassName":         func(pod *corev1.Pod) { pod.Spec.RuntimeClassName = &other },
		"supplementalGroups":       func(pod *corev1.Pod) { pod.Spec.SecurityContext.SupplementalGroups = []int64{0} },
		"privileged":               func(pod *corev1.Pod) { pod.Spec.Containers[0].SecurityContext.Privileged = &yes },
		"procMount":                func(pod *corev1.Pod) { pod.Spec.Containers[0].SecurityContext.ProcMount = &proc },
		"allowPrivilegeEscalation": func(pod *corev1.Pod) { pod.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil },
		"runAsNonRoot":             func(pod *corev1.Pod) { pod.Spec.SecurityContext.RunAsNonRoot = nil },
		"runAsGroup":               func(pod *corev1.Pod) { pod.Spec.SecurityContext.RunAsGroup = nil },
		"readOnlyRootFilesystem":   func(pod *corev1.Pod) { pod.Spec.Containers[0].SecurityContext = nil },
		"not dropped: ALL":         func(pod *corev1.Pod) { pod.Spec.InitContainers[0].SecurityContext.Capabilities = nil },
		"seccompProfile":           func(pod *corev1.Pod) { pod.Spec.SecurityContext = nil },
		"capability NET_RAW": func(pod *corev1.Pod) {
			pod.Spec.Containers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"NET_RAW"}
		},
		"part of the node": func(pod *corev1.Pod) {
			mount(pod, corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}, true)
		},
		"token is mounted at /more": func(pod *corev1.Pod) { mount(pod, token, true) },
		"device":                    func(pod *corev1.Pod) { pod.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "d"}} },
		"no container environment":  func(pod *corev1.Pod) { pod.Spec.InitContainers = nil },
		"at /workspace":             func(pod *corev1.Pod) { volume(&pod.Spec, "writable-0").EmptyDir.SizeLimit = nil },
		"at /.agentkernel-env":      func(pod *corev1.Pod) { volume(&pod.Spec, envVolume).EmptyDir.Medium = "" },
		"at /.agentkernel ":         func(pod *corev1.Pod) { volume(&pod.Spec, "helper").ConfigMap.Name = other },
		"container other sees": func(pod *corev1.Pod) {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: other, VolumeMounts: []corev1.VolumeMount{{Name: envVolume, MountPath: "/e"}}})
		},
	} {
		got := asked.DeepCopy()
		change(got)
		found := strings.Join(weaker(asked, got), "; ")
		if (found == "") != (says == "") || !strings.Contains(found+" ", says) {
			t.Errorf("%q: found %q", says, found)
		}
	}
	for name, change := range map[string]func(pod *corev1.Pod){
		"certificates": func(pod *corev1.Pod) {
			mount(pod, corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}, false)
		},
		"read-only files": func(pod *corev1.Pod) { mount(pod, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, true) },
		"a mirror":        func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = other },
		"a sidecar": func(pod *corev1.Pod) {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: other})
		},
		"the same, of the container": func(pod *corev1.Pod) {
			s, c := pod.Spec.SecurityContext, pod.Spec.Containers[0].SecurityContext
			c.RunAsUser, c.RunAsGroup, c.RunAsNonRoot, c.SeccompProfile = s.RunAsUser, s.RunAsGroup, s.RunAsNonRoot, s.SeccompProfile
		},
	} {
		got := asked.DeepCopy()
		change(got)
		if found := weaker(asked, got); len(found) > 0 {
			t.Errorf("%s: found %v", name, found)
		}
	}
}
