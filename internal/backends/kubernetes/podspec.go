package kubernetes

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/runhelper"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const (
	prefix        = "agentkernel.io/"
	containerName = "sandbox"
	envContainer  = "environment"
	envVolume     = "env"
	gateName      = prefix + "setup"
	podNamePrefix = "ak-sandbox-"

	managedByLabel = "app.kubernetes.io/managed-by"

	// Marks of ours beside those of the engine.
	markUID      = prefix + "uid"      // of the object itself: a copy under the same name has another one
	markWorkload = prefix + "workload" // what the sandbox is
	markLabels   = prefix + "labels"   // keys of the labels that users asked for
	markOwned    = prefix + "owned"    // uids of what was made beside it

	helperDir  = "/.agentkernel"
	helperPath = helperDir + "/akrun"
	envDir     = helperDir + "-env"
	envPath    = envDir + "/env"

	kindSandbox  = "sandbox"
	kindHelper   = "helper"
	kindPolicy   = "policy"
	kindListener = "listener"

	podGrace = 5 // seconds between TERM and KILL; the helper needs none
)

// objectName is the name of everything that belongs to one create call. It comes from the call's own random id, so that
// what an unanswered call may have made can be found.
func objectName(m sandboxcore.Marks) string {
	sum := sha256.Sum256([]byte(m.Request))
	return podNamePrefix + hex.EncodeToString(sum[:6])
}

// requestLabel is the label by which the objects of one create call are found and selected.
func requestLabel(m sandboxcore.Marks) string {
	sum := sha256.Sum256([]byte(m.Request))
	return hex.EncodeToString(sum[:16])
}

// ownLabels are the labels by which we find and select our objects. Users cannot override them.
func ownLabels(m sandboxcore.Marks, kind string) map[string]string {
	return map[string]string{
		sandboxcore.MarkManaged: "true", sandboxcore.MarkKind: kind, sandboxcore.MarkRequest: requestLabel(m),
		managedByLabel: "terraform-provider-agentkernel",
	}
}

// labelsOf are the labels of a sandbox: those of the profile, those of the sandbox as far as a label can hold them (the
// others are in its marks), and ours.
func labelsOf(o options, m sandboxcore.Marks) map[string]string {
	out := userLabels(o, m)
	maps.Copy(out, ownLabels(m, kindSandbox))
	return out
}

func userLabels(o options, m sandboxcore.Marks) map[string]string {
	out := maps.Clone(o.labels)
	if out == nil {
		out = map[string]string{}
	}
	for k, v := range m.Args.Labels {
		if validLabel(k, v) && k != managedByLabel {
			out[k] = v
		}
	}
	return out
}

func validLabel(k, v string) bool {
	return len(validation.IsQualifiedName(k)) == 0 && len(validation.IsValidLabelValue(v)) == 0
}

// annotationsOf are the marks. Labels hold 63 characters, so that they cannot hold a spec.
func annotationsOf(o options, m sandboxcore.Marks) (map[string]string, error) {
	kv, err := m.Encode()
	if err != nil {
		return nil, err
	}
	kv[markWorkload] = o.workload
	// Which labels are users' own: an update has to know what to take away.
	kv[markLabels] = strings.Join(slices.Sorted(maps.Keys(userLabels(o, m))), ",")
	return kv, nil
}

// newPod says what pod a request asks for. It is pure.
func newPod(req sandboxcore.CreateRequest) (*corev1.Pod, error) {
	o := optionsOf(req.Profile)
	annotations, err := annotationsOf(o, req.Marks)
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: objectName(req.Marks), Namespace: o.namespace, Labels: labelsOf(o, req.Marks), Annotations: annotations,
		},
		Spec: podSpec(req.Profile, objectName(req.Marks), len(req.Env) > 0),
	}
	// The pod exists, and its id is known, before any part of it runs: its policy and its helper can belong to it.
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: gateName}}
	if text := req.Marks.Args.MaxLifetime; text != "" {
		seconds, err := lifetimeSeconds(text)
		if err != nil {
			return nil, err
		}
		pod.Spec.ActiveDeadlineSeconds = &seconds
	}
	return pod, nil
}

func lifetimeSeconds(text string) (int64, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second || d > math.MaxInt32*time.Second {
		return 0, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the sandbox was refused before anything was created", Object: sandboxcore.Printable(text),
			Said: "That is no max_lifetime that a pod can have.", Next: "Write a duration of at least one second, such as \"30m\".", Attribute: []string{"max_lifetime"},
		}
	}
	return int64(math.Ceil(d.Seconds())), nil
}

// podSpec is the part that a bare pod and the template of a Sandbox have in common. helper is the name of the ConfigMap
// with the run helper; withEnv says that the sandbox has an environment of its own.
func podSpec(p *sandboxcore.Profile, helper string, withEnv bool) corev1.PodSpec {
	o := optionsOf(p)
	no := false
	grace := int64(podGrace)
	spec := corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: &grace,
		AutomountServiceAccountToken:  &no,
		// Names and addresses of other services are nothing that sandboxed code has to know.
		EnableServiceLinks: &no,
		ServiceAccountName: o.serviceAccount,
		NodeSelector:       nodeSelectorOf(o),
		PriorityClassName:  o.priorityClass,
		Tolerations:        tolerationsOf(o),
		SecurityContext:    podSecurity(o),
	}
	if o.runtimeClass != "" {
		spec.RuntimeClassName = &o.runtimeClass
	}
	for _, s := range o.pullSecrets {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
	}
	c := corev1.Container{
		Name: containerName, Image: o.image, ImagePullPolicy: pullPolicyOf(o),
		Command: []string{helperPath, "pod"}, WorkingDir: sandboxcore.Workspace,
		Env: environmentOf(o), Resources: resourcesOf(p), SecurityContext: containerSecurity(p, o),
		TerminationMessagePolicy: corev1.TerminationMessageReadFile,
	}
	mode := int32(0o555)
	spec.Volumes = []corev1.Volume{{Name: "helper", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: helper}, DefaultMode: &mode,
	}}}}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "helper", MountPath: helperDir, ReadOnly: true}}
	if withEnv {
		limit := resource.MustParse("2Mi")
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: envVolume, VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &limit},
		}})
		env := corev1.VolumeMount{Name: envVolume, MountPath: envDir}
		spec.InitContainers = []corev1.Container{envGate(c, env)}
		env.ReadOnly = true
		c.VolumeMounts = append(c.VolumeMounts, env)
	}
	for i, dir := range writablePaths(p) {
		v := corev1.Volume{Name: fmt.Sprintf("writable-%d", i)}
		if dir == sandboxcore.Workspace && o.workspaceClaim != "" {
			v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: o.workspaceClaim}
		} else {
			v.EmptyDir = &corev1.EmptyDirVolumeSource{SizeLimit: resource.NewQuantity(o.workspaceMB<<20, resource.BinarySI)}
		}
		spec.Volumes = append(spec.Volumes, v)
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: dir})
	}
	spec.Containers = []corev1.Container{c}
	return spec
}

// envGate is the container that takes the environment of a sandbox: it runs nothing but the helper, and ends when the file
// is there. It asks for the same as c, so that the pod needs no more than without it.
func envGate(c corev1.Container, env corev1.VolumeMount) corev1.Container {
	readOnly := true
	security := c.SecurityContext.DeepCopy()
	security.ReadOnlyRootFilesystem = &readOnly
	return corev1.Container{
		Name: envContainer, Image: c.Image, ImagePullPolicy: c.ImagePullPolicy, Command: []string{helperPath, "gate", envPath}, WorkingDir: "/",
		Resources: *c.Resources.DeepCopy(), SecurityContext: security, VolumeMounts: append(slices.Clone(c.VolumeMounts), env),
		TerminationMessagePolicy: corev1.TerminationMessageReadFile,
	}
}

// writablePaths are the paths that are volumes of their own: the workspace, or with fs_allow_write exactly those.
func writablePaths(p *sandboxcore.Profile) []string {
	if len(p.Policy.FSAllowWrite) == 0 {
		return []string{sandboxcore.Workspace}
	}
	return outermost(p.Policy.FSAllowWrite)
}

// outermost drops paths that lie within another one.
func outermost(paths []string) []string {
	var out []string
	for _, p := range slices.Sorted(slices.Values(paths)) {
		p = path.Clean(p)
		if !slices.ContainsFunc(out, func(o string) bool { return within(p, o) }) {
			out = append(out, p)
		}
	}
	return out
}

// within reports whether p is dir or below it.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

func podSecurity(o options) *corev1.PodSecurityContext {
	user := o.user()
	group := int64(o.pod.Float(keyRunAsGroup, defaultUser))
	fsGroup := int64(o.pod.Float(keyFSGroup, defaultUser))
	nonRoot := o.pod.Bool(keyRunAsNonRoot, user != 0)
	// A claim may hold many files: their owner is changed only when the top directory's is wrong.
	change := corev1.FSGroupChangeOnRootMismatch
	s := &corev1.PodSecurityContext{
		RunAsUser: &user, RunAsGroup: &group, FSGroup: &fsGroup, RunAsNonRoot: &nonRoot, FSGroupChangePolicy: &change,
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileType(o.pod.String(keySeccomp, seccompDefault))},
	}
	for _, g := range o.pod.Strings(keySupplemental) {
		if n, err := strconv.ParseInt(g, 10, 64); err == nil {
			s.SupplementalGroups = append(s.SupplementalGroups, n)
		}
	}
	return s
}

func containerSecurity(p *sandboxcore.Profile, o options) *corev1.SecurityContext {
	escalation := o.container.Bool(keyEscalation, false)
	readOnly := o.container.Bool(keyReadOnlyRoot, false) || len(p.Policy.FSAllowWrite) > 0
	s := &corev1.SecurityContext{
		AllowPrivilegeEscalation: &escalation, ReadOnlyRootFilesystem: &readOnly,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	for _, c := range o.container.Strings(keyCapabilities) {
		s.Capabilities.Add = append(s.Capabilities.Add, corev1.Capability(c))
	}
	return s
}

// environmentOf is the pod's own environment. HOME is for users that no file of the image knows; PYTHONPATH is where
// packages are installed.
func environmentOf(o options) []corev1.EnvVar {
	env := map[string]string{"HOME": sandboxcore.Workspace, "PYTHONPATH": path.Join(sandboxcore.Workspace, sandboxcore.PackagesDir)}
	maps.Copy(env, o.env)
	var out []corev1.EnvVar
	for _, k := range slices.Sorted(maps.Keys(env)) {
		// The API expands $(NAME) in values; a doubled $ is a plain one.
		out = append(out, corev1.EnvVar{Name: k, Value: strings.ReplaceAll(env[k], "$", "$$")})
	}
	return out
}

// resourcesOf gives requests = limits: what a sandbox may use is reserved for it, and it is never killed for the memory
// of others.
func resourcesOf(p *sandboxcore.Profile) corev1.ResourceRequirements {
	list := corev1.ResourceList{}
	if p.Policy.CPU != nil {
		list[corev1.ResourceCPU] = *resource.NewMilliQuantity(max(1, int64(math.Round(*p.Policy.CPU*1000))), resource.DecimalSI)
	}
	if p.Policy.MemoryMB != nil {
		list[corev1.ResourceMemory] = *resource.NewQuantity(*p.Policy.MemoryMB<<20, resource.BinarySI)
	}
	if len(list) == 0 {
		return corev1.ResourceRequirements{}
	}
	return corev1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}
}

// nodeSelectorOf keeps the pod off nodes that could not run its first process.
func nodeSelectorOf(o options) map[string]string {
	out := map[string]string{corev1.LabelArchStable: o.architecture}
	maps.Copy(out, o.nodeSelector)
	return out
}

func pullPolicyOf(o options) corev1.PullPolicy {
	switch o.pullPolicy {
	case "always":
		return corev1.PullAlways
	case "never":
		return corev1.PullNever
	}
	return corev1.PullIfNotPresent
}

func tolerationsOf(o options) []corev1.Toleration {
	var out []corev1.Toleration
	for _, text := range o.tolerations {
		parts := strings.Split(text, ":")
		key, value, hasValue := strings.Cut(parts[0], "=")
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists}
		if hasValue {
			t.Operator, t.Value = corev1.TolerationOpEqual, value
		}
		if len(parts) > 1 {
			t.Effect = corev1.TaintEffect(parts[1])
		}
		if len(parts) > 2 {
			if n, err := strconv.ParseInt(parts[2], 10, 64); err == nil {
				t.TolerationSeconds = &n
			}
		}
		out = append(out, t)
	}
	return out
}

// helperMap is the ConfigMap with the run helper, owned by the object whose pod uses it.
func helperMap(m sandboxcore.Marks, o options, owner metav1.OwnerReference) (*corev1.ConfigMap, error) {
	b, err := runhelper.Binary(o.architecture)
	if err != nil {
		return nil, err
	}
	yes := true
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: objectName(m), Namespace: o.namespace, Labels: ownLabels(m, kindHelper), OwnerReferences: []metav1.OwnerReference{owner},
		},
		Immutable: &yes, BinaryData: map[string][]byte{"akrun": b},
	}, nil
}

// ownedBy is a reference without a claim on the owner's finalizers, which would need rights on them.
func ownedBy(apiVersion, kind, name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid}
}
