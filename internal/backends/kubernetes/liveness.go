package kubernetes

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// life is what a pod's status says about a sandbox. "The object exists" and "the sandbox lives" are two things.
type life struct {
	status sandboxcore.Status
	// gone is why it will never run again; empty while it may.
	gone string
	// dead says that the cluster keeps the object although it is gone, so that somebody has to remove it.
	dead bool
	// reason is why it does not run now, although it may again.
	reason string
}

// lifeOf reads phase, reason and conditions.
func lifeOf(pod *corev1.Pod) life {
	switch {
	case pod.Annotations[markUID] != "" && pod.Annotations[markUID] != string(pod.UID):
		return life{gone: "Another pod has taken its name: it carries the marks of the first one, but another uid."}
	case pod.DeletionTimestamp != nil:
		if pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "" {
			return life{gone: ended(pod)} // it had ended by then
		}
		return life{gone: "It is being deleted" + because(disruption(pod)) + "."}
	case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
		return life{status: sandboxcore.StatusStopped, gone: ended(pod), dead: true}
	case pod.Status.Phase == corev1.PodUnknown:
		return life{gone: "Its node is lost (phase Unknown" + because(pod.Status.Reason) + ")."}
	case pod.Status.Phase == corev1.PodRunning:
		for _, c := range pod.Status.ContainerStatuses {
			switch {
			case c.Name != containerName: // the cluster's own, beside the sandbox
			case c.State.Terminated != nil:
				return life{status: sandboxcore.StatusStopped, gone: ended(pod), dead: true}
			case c.State.Running == nil:
				return life{status: sandboxcore.StatusStopped, reason: "its container does not run"}
			case !c.Ready:
				return life{status: sandboxcore.StatusStopped, reason: "its container is not ready"}
			}
		}
		// When our container is ready and the pod is not, neither for another container nor for a gate, its node does not answer.
		if c := condition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionFalse && c.Reason != "ContainersNotReady" && c.Reason != "ReadinessGatesNotReady" {
			return life{status: sandboxcore.StatusStopped, reason: fmt.Sprintf("its node %s does not answer the cluster", pod.Spec.NodeName)}
		}
		return life{status: sandboxcore.StatusRunning}
	}
	return life{status: sandboxcore.StatusStopped, reason: "it has not started: " + pendingReason(pod)}
}

// ended says why a pod that will not run again has ended.
func ended(pod *corev1.Pod) string {
	said := "It has ended"
	switch pod.Status.Reason {
	case "Evicted":
		said = "Its node evicted it"
	case "DeadlineExceeded":
		said = "Its max_lifetime is over: it has expired"
	case "Preempting", "Preempted":
		said = "It was preempted by a pod of higher priority"
	case "NodeLost":
		said = "Its node is lost"
	case "":
		if d := disruption(pod); d != "" {
			said = "The cluster ended it: " + d
		}
	default:
		said += " (" + pod.Status.Reason + ")"
	}
	var parts []string
	if pod.Status.Message != "" {
		parts = append(parts, strings.TrimSuffix(pod.Status.Message, "."))
	}
	sandboxed := slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.Name == containerName })
	for _, c := range containers(pod) {
		t := c.State.Terminated
		if t == nil || sandboxed && c.Name != containerName && c.Name != envContainer || c.Name == envContainer && t.ExitCode == 0 {
			continue
		}
		text := fmt.Sprintf("its container ended with status %d", t.ExitCode)
		if t.Reason == "OOMKilled" {
			text = "its memory limit killed it"
		} else if t.Reason != "" && t.Reason != "Error" && t.Reason != "Completed" {
			text += " (" + t.Reason + ")"
		}
		// Of a container that has run, the message is what its own programs wrote to /dev/termination-log.
		if m := strings.TrimSpace(t.Message); m != "" && (t.Reason == "StartError" || t.Reason == "ContainerCannotRun") {
			text += ": " + strings.TrimSuffix(m, ".")
		}
		parts = append(parts, text)
	}
	if len(parts) > 0 {
		said += ": " + strings.Join(parts, "; ")
	}
	return sandboxcore.Printable(said) + "."
}

// disruption gives the cluster's own reason for ending a pod.
func disruption(pod *corev1.Pod) string {
	c := condition(pod, corev1.DisruptionTarget)
	if c == nil || c.Status != corev1.ConditionTrue {
		return ""
	}
	switch c.Reason {
	case "DeletionByTaintManager":
		return "its node is lost or tainted (" + c.Reason + ")"
	case "EvictionByEvictionAPI":
		return "it was evicted (" + c.Reason + ")"
	case "PreemptionByScheduler":
		return "it was preempted by a pod of higher priority (" + c.Reason + ")"
	}
	if c.Message == "" {
		return c.Reason
	}
	return c.Reason + ": " + strings.TrimSuffix(c.Message, ".")
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// containers are the states of a pod's containers, in the order in which they start.
func containers(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// takesEnv reports whether the pod's first container waits for the environment.
func takesEnv(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.InitContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.Name == envContainer && c.State.Running != nil
	})
}

// pendingReason says what a pod that has not started waits for.
func pendingReason(pod *corev1.Pod) string {
	for _, c := range containers(pod) {
		if w := c.State.Waiting; w != nil && w.Reason != "" {
			return w.Reason + because(strings.TrimSuffix(w.Message, "."))
		}
	}
	if c := condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return c.Reason + because(strings.TrimSuffix(c.Message, "."))
	}
	return "phase " + string(pod.Status.Phase)
}

// hopeless gives the reason for which a pod that has not started never will, empty while there is hope.
func hopeless(pod *corev1.Pod, waitForNode bool) string {
	for _, c := range containers(pod) {
		w := c.State.Waiting
		if w == nil {
			continue
		}
		switch w.Reason {
		case "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "CreateContainerConfigError", "CreateContainerError",
			"RunContainerError", "CrashLoopBackOff", "ImagePullBackOff", "SignatureValidationFailed":
			return w.Reason + because(w.Message)
		case "ErrImagePull":
			// The first attempt of many: only an answer that will not change ends the wait.
			text := strings.ToLower(w.Message)
			for _, final := range []string{"not found", "not exist", "denied", "unauthorized", "authorization failed", "invalid reference", "no match for platform"} {
				if strings.Contains(text, final) {
					return w.Reason + because(w.Message)
				}
			}
		}
	}
	if c := condition(pod, corev1.PodScheduled); c != nil && !waitForNode && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable &&
		// A claim that was just made is bound in a moment.
		!strings.Contains(c.Message, "unbound immediate PersistentVolumeClaims") {
		return c.Reason + because(c.Message)
	}
	return ""
}
