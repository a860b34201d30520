package kubernetes

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/supervised"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/runhelper"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// A pod that somebody else made is bound and nothing more: it is not made, changed or deleted. What a run needs is written
// into one of its containers through exec, and removed as soon as it has started. The API server sees gets and execs only.

// keyAttachTo names the pod of an attached profile.
const keyAttachTo = "attach_to"

func attachSetting() sandboxcore.Setting {
	return sandboxcore.Setting{
		Name: keyAttachTo, Kind: sandboxcore.KindString,
		Description: "Pod of `namespace` to bind to, with `environment = \"attached\"`, as `pod` or `pod/container`; without a container the pod's default one. Only `get` on pods, and `get` and `create` on `pods/exec`, " +
			"are used. Its containers stay as they are; each run brings a small program into a writable directory (`/tmp` and the like) by the container's `sh`, `cat`, `chmod`, `wc` and `rm`, and removes it as soon as it has started. " +
			"A container without them, or without a directory that programs can be started from, can be looked at but not run in.",
		Pattern:     `^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?(/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$`,
		PatternHint: "the name of a pod, or pod/container",
	}
}

// attachedKeys are the settings that mean something for a pod that exists.
var attachedKeys = []string{keyAttachTo, keyNamespace, keyIsolation, keyArchitecture}

// attachedCapabilities: attaching applies no limit, and how strong the pod's own boundary is, only its owner knows.
func attachedCapabilities(o options) sandboxcore.Capabilities {
	c := sandboxcore.Capabilities{
		Isolation:        sandboxcore.IsolationNone,
		Shell:            true,
		Languages:        []string{"python"},
		Files:            true,
		AttachesExternal: true,
		PrincipalUser:    true,
		NetworkModes:     []sandboxcore.NetworkMode{sandboxcore.NetworkAllow},
		Stdin:            true,
		Streaming:        true,
		SplitOutput:      true,
		KeepBackground:   true,
		Assertable:       []string{keyIsolation},
	}
	if o.isolation != "" {
		c.Isolation, c.IsolationAsserted = o.isolation, true
	}
	return c
}

// validateAttached refuses settings that describe a pod still to be made.
func validateAttached(p *sandboxcore.Profile) []*sandboxcore.Error {
	var out []*sandboxcore.Error
	for _, s := range profileSettings() {
		if _, set := p.Settings[s.Name]; set && !slices.Contains(attachedKeys, s.Name) {
			out = append(out, &sandboxcore.Error{
				Code: sandboxcore.CodeValue, Attempted: "the kubernetes profile was refused", Object: p.Name, Attribute: []string{string(p.Type), s.Name},
				Said: s.Name + " describes a pod that is made, and this profile is attached to one that exists.", Next: "Remove it, or set environment = \"managed\".",
			})
		}
	}
	return out
}

// attached is the handle of a container of a pod that somebody else owns.
type attached struct {
	e                         *endpoint
	c                         *client
	pod                       *corev1.Pod
	container, arch, nativeID string
	status                    sandboxcore.Status
	reason                    string
}

var _ sandboxcore.AttachedEnvironment = (*attached)(nil)

// Attach looks the pod up, as whoever the operation is for. The uid is part of what a binding names: a pod that is made anew
// under the same name is another one.
func (e *endpoint) Attach(ctx context.Context, p *sandboxcore.Profile) (sandboxcore.AttachedEnvironment, error) {
	const attempted = "the pod could not be bound"
	namespace := p.Settings.String(keyNamespace, defaultNamespace)
	name, container, _ := strings.Cut(p.Settings.String(keyAttachTo, ""), "/")
	object := objectID(namespace + "/" + name)
	c, err := e.forUser(ctx, nil)
	if err != nil {
		return nil, err
	}
	call, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	pod, err := c.kube.CoreV1().Pods(namespace).Get(call, name, metav1.GetOptions{})
	gone := func(said string) error {
		return &sandboxcore.Error{
			Code: sandboxcore.CodeGone, Attempted: attempted, Object: object, Said: said,
			Next: "Check name and namespace, and that the provider speaks to the cluster that is meant.", Attribute: []string{string(p.Type), keyAttachTo},
		}
	}
	if apierrors.IsNotFound(err) {
		return nil, gone("The cluster has no such pod.")
	}
	if err != nil {
		return nil, e.failure(call, err, sandboxcore.CodeUnreachable, attempted, object, "Check the API server.")
	}
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return nil, gone(lifeOf(pod).gone)
	}
	if container == "" {
		container = defaultContainer(pod)
	}
	a := &attached{e: e, c: c, pod: pod, container: container, arch: p.Settings.String(keyArchitecture, defaultArchitecture), status: sandboxcore.StatusAway}
	if !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == container }) {
		return nil, gone(fmt.Sprintf("The pod has no container %q.", container))
	}
	a.nativeID = strings.Join([]string{namespace, name, container, string(pod.UID)}, "/")
	a.reason = "the pod is in phase " + string(pod.Status.Phase)
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name != container {
			continue
		}
		a.reason = "its container does not run"
		if s.State.Running != nil && pod.Status.Phase == corev1.PodRunning {
			a.status, a.reason = sandboxcore.StatusRunning, ""
		}
	}
	return a, nil
}

// defaultContainer is what kubectl exec would take.
func defaultContainer(pod *corev1.Pod) string {
	if name := pod.Annotations["kubectl.kubernetes.io/default-container"]; name != "" {
		return name
	}
	if len(pod.Spec.Containers) > 0 {
		return pod.Spec.Containers[0].Name
	}
	return ""
}

// NativeID is namespace, pod, container and the pod's uid.
func (a *attached) NativeID() string { return a.nativeID }

// Status is what the look showed.
func (a *attached) Status() sandboxcore.Status { return a.status }

// Platform is what the profile says of the node: the pod itself does not tell.
func (a *attached) Platform() string { return "linux/" + a.arch }

// Details are facts of the pod that its owner decides.
func (a *attached) Details() map[string]string {
	out := map[string]string{"pod": a.pod.Name, "namespace": a.pod.Namespace, "container": a.container, "uid": string(a.pod.UID), "phase": string(a.pod.Status.Phase), "node": a.pod.Spec.NodeName}
	for _, c := range a.pod.Spec.Containers {
		if c.Name == a.container {
			out["image"] = c.Image
			readOnly := c.SecurityContext != nil && c.SecurityContext.ReadOnlyRootFilesystem != nil && *c.SecurityContext.ReadOnlyRootFilesystem
			out["read_only_root"] = strconv.FormatBool(readOnly)
		}
	}
	return out
}

// Run runs one request in the container.
func (a *attached) Run(ctx context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	var notice string
	res, err := supervised.Run(ctx, a.target(&notice), req, stdout, stderr)
	res.Notice = strings.TrimSpace(res.Notice + " " + notice)
	return res, err
}

// ReadFile reads a file as the container's user sees it.
func (a *attached) ReadFile(ctx context.Context, path string, limit int64) ([]byte, fs.FileMode, error) {
	return supervised.ReadFile(ctx, a.target(nil), path, limit)
}

// WriteFile writes a file as the container's user.
func (a *attached) WriteFile(ctx context.Context, path string, content []byte, mode fs.FileMode) error {
	return supervised.WriteFile(ctx, a.target(nil), path, content, mode)
}

// RemoveFile removes a file as the container's user.
func (a *attached) RemoveFile(ctx context.Context, path string) error {
	return supervised.RemoveFile(ctx, a.target(nil), path)
}

func (a *attached) object() string { return objectID(a.pod.Namespace + "/" + a.pod.Name) }

func (a *attached) target(notice *string) supervised.Target {
	return supervised.Target{
		Object: a.object(), Place: "the container " + a.container,
		Open: func(ctx context.Context) (*runhelper.Conn, error) { return a.open(ctx, notice) },
	}
}

func (a *attached) start(ctx context.Context, command ...string) (*process, error) {
	return a.e.startIn(ctx, a.c, a.pod.Namespace, a.pod.Name, a.container, command...)
}

const attemptedBring = "the run helper could not be brought into the container"

// places are where the helper may be put, and found again; the name of its file is the first argument.
const places = `for d in /tmp /var/tmp /run /dev/shm "${HOME:-/}" .; do f="$d/` + bringPrefix + `$1"; `

const bringPrefix = ".agentkernel-"

// bring writes standard input, which has as many bytes as the second argument says, into the first directory that is
// writable and from which programs can be started, and prints where. What did not arrive whole is removed: the end of a
// broken connection looks like the end of the input. Its text is fixed: the command of an exec is part of the request's
// address. It says its first argument when the file is open. Nothing is sent before that: what a connection that breaks then
// leaves behind is there to be swept, and what one that breaks earlier leaves behind is not whole.
const bring = places + `if (: >"$f") 2>/dev/null && chmod 700 "$f" && [ -x "$f" ]; then ` +
	`{ echo "$1" >&3; cat; } 3>&1 >"$f" && [ "$(wc -c <"$f")" -eq "$2" ] && echo "$f" && exit 0; rm -f "$f"; exit 3; fi; rm -f "$f" 2>/dev/null; done; exit 4`

// sweep removes what bring may have left, and prints what it could not remove.
const sweep = places + `rm -f "$f" 2>/dev/null; [ -e "$f" ] && echo "$f"; done; echo swept`

// open brings the helper in, starts it, and takes its file out again as soon as it has answered: a program that runs needs
// its file no more, and so not even a provider that is killed in the middle of a run leaves anything behind.
func (a *attached) open(ctx context.Context, notice *string) (*runhelper.Conn, error) {
	if a.status != sandboxcore.StatusRunning {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeStopped, Attempted: "the run was refused", Object: a.object(), Said: sentence(strings.ToUpper(a.reason[:1]) + a.reason[1:]),
			Next: "Wait until it runs; this provider starts nothing that it did not make.", Attribute: []string{"binding"},
		}
	}
	binary, err := runhelper.Binary(a.arch)
	if err != nil {
		return nil, err
	}
	where, err := a.bring(ctx, binary)
	if err != nil {
		if own, ok := errors.AsType[*sandboxcore.Error](err); ok {
			return nil, own
		}
		return nil, a.e.failure(ctx, err, sandboxcore.CodeProvision, attemptedBring, a.object(), "Check that the caller may create pods/exec, and that the container has sh, cat, chmod, wc and rm.")
	}
	p, err := a.start(ctx, where, "run")
	if err != nil {
		a.remove(ctx, where, notice)
		return nil, a.e.failure(ctx, err, sandboxcore.CodeProvision, "the run helper could not be started in the container", a.object(), "Check the pod's events.")
	}
	// Once it has answered it needs its file no more; and only now it is known whose container it is in.
	said, err := a.e.samePod(ctx, a.c, p, a.pod.Namespace, a.pod.Name, a.pod.UID)
	a.remove(ctx, where, notice)
	if err != nil {
		return nil, err
	}
	return &runhelper.Conn{Control: control{p}, Frames: said, Close: p.close}, nil
}

// bring stores the helper in the container and gives its path. After an error nothing of it is left there, or the error says
// what may be.
func (a *attached) bring(ctx context.Context, binary []byte) (string, error) {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	name := hex.EncodeToString(b[:])
	p, err := a.start(ctx, "sh", "-c", bring, "sh", name, strconv.Itoa(len(binary)))
	if err != nil {
		if answered := apierrors.APIStatus(nil); asStatus(err, &answered) {
			return "", err // the server refused: nothing was started
		}
		return "", a.sweep(ctx, name, a.e.failure(ctx, err, sandboxcore.CodeProvision, attemptedBring, a.object(), "Run the command again."))
	}
	where, err := a.store(ctx, p, binary, name)
	if err != nil {
		return "", a.sweep(ctx, name, err)
	}
	return where, nil
}

// store sends the helper to the shell that waits for it.
func (a *attached) store(ctx context.Context, p *process, binary []byte, name string) (string, error) {
	call, cancel := withDeadline(ctx, a.e.timings.call)
	defer cancel()
	stop := context.AfterFunc(call, func() { _ = p.close() })
	defer func() {
		stop()
		_ = p.close()
	}()
	first := make([]byte, len(name)+1)
	_, readErr := io.ReadFull(p, first)
	var answer []byte
	if readErr == nil && string(first) == name+"\n" {
		written := make(chan struct{})
		go func() {
			defer close(written)
			// What did not arrive is not stored, and the shell's answer says so.
			if _, err := p.Write(binary); err == nil {
				_ = p.closeStdin()
			}
		}()
		answer, readErr = io.ReadAll(io.LimitReader(p, 4096))
		_ = p.close()
		<-written
	}
	where := strings.TrimSpace(string(answer))
	if strings.HasSuffix(where, "/"+bringPrefix+name) && sandboxcore.Printable(where) == where {
		return where, nil
	}
	if call.Err() != nil {
		return "", a.e.failure(call, call.Err(), sandboxcore.CodeProvision, attemptedBring, a.object(), "Run the command again.")
	}
	said := "Its shell could not store it"
	if status := p.status(); status != nil {
		said += ": " + sandboxcore.Printable(status.Error())
	} else if readErr != nil {
		said += ": " + sandboxcore.Printable(readErr.Error())
	}
	return "", &sandboxcore.Error{
		Code: sandboxcore.CodeProvision, Attempted: attemptedBring, Object: a.object(),
		Said: sentence(said) + " " + sandboxcore.Printable(strings.TrimSpace(p.notes())) + " Nothing ran.",
		Next: "Runs need sh, cat, chmod, wc and rm in the container, and a writable directory from which programs can be started (/tmp, or an emptyDir).",
	}
}

// sweep removes what a failed upload may have left in the container, even if the caller has given up, and adds to err what
// may be left all the same.
func (a *attached) sweep(ctx context.Context, name string, err error) error {
	var left string
	failed := sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		p, err := a.start(ctx, "sh", "-c", sweep, "sh", name)
		if err != nil {
			return err
		}
		call, cancel := withDeadline(ctx, a.e.timings.call)
		defer cancel()
		stop := context.AfterFunc(call, func() { _ = p.close() })
		defer func() {
			stop()
			_ = p.close()
		}()
		text, err := io.ReadAll(io.LimitReader(p, 4096))
		if err != nil {
			return err
		}
		var swept bool
		left, swept = strings.CutSuffix(string(text), "swept\n")
		if !swept && noShell(p.status()) {
			return nil // and nothing that could have stored anything
		}
		if !swept {
			return errors.New("the container's shell did not say that it is done")
		}
		return nil
	})
	e := *sandboxcore.AllErrors(err, sandboxcore.CodeProvision)[0]
	switch {
	case failed != nil:
		e.Said += fmt.Sprintf(" The file %s%s of this provider may still be in /tmp, /var/tmp, /run, /dev/shm, the home or the working directory of the container: %s.", bringPrefix, name, sandboxcore.Printable(failed.Error()))
	case left != "":
		e.Said += " This file of this provider is still in the container: " + sandboxcore.Printable(strings.Join(strings.Fields(left), ", ")) + "."
	default:
		return err
	}
	e.Next += " Remove the file by hand."
	return &e
}

// noShell recognises how a runtime says that a container has no such program.
func noShell(status error) bool {
	if status == nil {
		return false
	}
	if code, err := exitCode(status); err == nil {
		return code == 126 || code == 127
	}
	return strings.Contains(status.Error(), "executable file not found") || strings.Contains(status.Error(), "no such file or directory")
}

// remove lets the helper remove itself: it belongs to the container's user.
func (a *attached) remove(ctx context.Context, where string, notice *string) {
	err := sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		p, err := a.start(ctx, where, "run")
		if err != nil {
			return err
		}
		err = runhelper.Remove(ctx, &runhelper.Conn{Control: control{p}, Frames: frames{p}, Close: p.close}, where)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil && notice != nil {
		*notice = strings.TrimSpace(*notice + " " + fmt.Sprintf("The file %s of this provider may still be in the container: %s.", where, sandboxcore.Printable(err.Error())))
	}
}
