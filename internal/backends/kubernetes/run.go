package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/supervised"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/runhelper"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// maxEnvBytes bounds the environment of a sandbox.
const maxEnvBytes = 1<<20 - 1

// oomPatience is how long the cluster may take to tell that a container was killed for its memory.
const oomPatience = 5 * time.Second

// Run runs one request as a process of the helper.
func (s *sandbox) Run(ctx context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	res, err := supervised.Run(ctx, s.target(s.withEnv), req, stdout, stderr)
	if err == nil {
		return res, nil
	}
	return s.judge(ctx, res, err)
}

// judge looks at the pod after a run whose connection broke: where the node kills a whole container for its memory, or
// the pod itself ended, that is the better answer.
func (s *sandbox) judge(ctx context.Context, res sandboxcore.RunResult, err error) (sandboxcore.RunResult, error) {
	code := sandboxcore.CodeOf(err)
	if ctx.Err() != nil || (code != sandboxcore.CodeUnknownOutcome && code != sandboxcore.CodeProvision) {
		return res, err
	}
	for until := s.e.now().Add(oomPatience); ; {
		pod, looked := s.e.getPod(ctx, s.namespace, s.pod)
		if sandboxcore.IsCode(looked, sandboxcore.CodeGone) || (looked == nil && pod.UID != s.podUID) {
			return res, s.lost(err, "Its pod was removed meanwhile.")
		}
		if looked != nil {
			return res, err
		}
		l := lifeOf(pod)
		if l.gone != "" {
			if code == sandboxcore.CodeUnknownOutcome && killedForMemory(pod) {
				return sandboxcore.RunResult{ExitCode: 137, Signal: 9, OOMKilled: true, Duration: res.Duration}, nil
			}
			return res, s.lost(err, l.gone)
		}
		if code != sandboxcore.CodeUnknownOutcome || l.status != sandboxcore.StatusRunning || !s.e.now().Before(until) || !pause(ctx, s.e.timings.poll) {
			return res, err
		}
		if !containerMayHaveEnded(pod) {
			return res, err
		}
	}
}

// containerMayHaveEnded: a broken connection to a pod that is told as running may be the first sign of its end, but only
// a pod with a memory limit can have been killed for its memory.
func containerMayHaveEnded(pod *corev1.Pod) bool {
	for _, c := range pod.Spec.Containers {
		if _, limited := c.Resources.Limits[corev1.ResourceMemory]; limited {
			return true
		}
	}
	return false
}

func killedForMemory(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.Name == containerName && c.State.Terminated != nil && c.State.Terminated.Reason == "OOMKilled"
	})
}

// lost adds what became of the pod to the error of a run. The outcome stays what it was: unknown, or nothing ran.
func (s *sandbox) lost(err error, said string) error {
	e := sandboxcore.AllErrors(err, sandboxcore.CodeUnknownOutcome)[0]
	out := *e
	out.Said = strings.TrimSpace(out.Said + " " + said)
	if out.Code == sandboxcore.CodeProvision {
		out.Code, out.Next = sandboxcore.CodeGone, "Apply again to make a new one; files in it are lost."
	}
	return &out
}

// ReadFile reads a file as the sandbox's user sees it.
func (s *sandbox) ReadFile(ctx context.Context, path string, limit int64) ([]byte, fs.FileMode, error) {
	return supervised.ReadFile(ctx, s.target(false), path, limit)
}

// WriteFile writes a file as the sandbox's user.
func (s *sandbox) WriteFile(ctx context.Context, path string, content []byte, mode fs.FileMode) error {
	return supervised.WriteFile(ctx, s.target(false), path, content, mode)
}

// RemoveFile removes a file as the sandbox's user.
func (s *sandbox) RemoveFile(ctx context.Context, path string) error {
	return supervised.RemoveFile(ctx, s.target(false), path)
}

func (s *sandbox) target(withEnv bool) supervised.Target {
	return supervised.Target{
		Object: objectID(s.info.NativeID),
		Place:  "the image " + s.info.Details["image"],
		Open: func(ctx context.Context) (*runhelper.Conn, error) {
			return s.open(ctx, withEnv)
		},
	}
}

// open starts one helper, as whoever the operation is for.
func (s *sandbox) open(ctx context.Context, withEnv bool) (*runhelper.Conn, error) {
	c, err := s.e.forUser(ctx, s.principal)
	if err != nil {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	command := []string{helperPath, "run"}
	if withEnv {
		command = append(command, envPath)
	}
	return s.begin(ctx, c, containerName, command...)
}

// begin starts one helper in a container of the pod.
func (s *sandbox) begin(ctx context.Context, c *client, container string, command ...string) (*runhelper.Conn, error) {
	p, err := s.e.startIn(ctx, c, s.namespace, s.pod, container, command...)
	if err != nil {
		return nil, s.e.notReached(ctx, err, s.info.NativeID)
	}
	said, err := s.e.samePod(ctx, s.e.own, p, s.namespace, s.pod, s.podUID)
	if err != nil {
		return nil, err
	}
	return &runhelper.Conn{Control: control{p}, Frames: said, Close: p.close}, nil
}

// frames is the reading side of a process. Where the server told a failure, that is why it ended.
type frames struct{ p *process }

func (f frames) Read(b []byte) (int, error) {
	n, err := f.p.Read(b)
	if errors.Is(err, io.EOF) {
		if status := f.p.status(); status != nil {
			err = status
		}
	}
	return n, err
}

// control is the writing side of a process.
type control struct{ p *process }

func (c control) Write(b []byte) (int, error) { return c.p.Write(b) }
func (c control) Close() error                { return c.p.closeStdin() }

// envFile is the environment of a sandbox in the form that its helper reads.
func envFile(req sandboxcore.CreateRequest) ([]byte, error) {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(req.Env)) {
		b.WriteString(k + "=" + req.Env[k] + "\x00")
	}
	if b.Len() > maxEnvBytes {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the sandbox was refused before anything was created", Object: req.Marks.Name,
			Said: fmt.Sprintf("Its environment has %d bytes, more than %d.", b.Len(), maxEnvBytes), Next: "Carry such data in a file.", Attribute: []string{"env"},
		}
	}
	return []byte(b.String()), nil
}

// writeEnv puts the environment of the sandbox into the pod's memory, where neither the API nor the node's disk see it. It
// does so in the pod's first container, which is the only one that may write there, and ends when it is done: what the code
// of the sandbox could change would decide about all later runs, and about what is known as secret in their output.
func (s *sandbox) writeEnv(ctx context.Context, env []byte) error {
	c, err := s.e.forUser(ctx, s.principal)
	if err != nil {
		return err
	}
	first := s.target(false)
	first.Open = func(ctx context.Context) (*runhelper.Conn, error) {
		return s.begin(ctx, c, envContainer, helperPath, "run")
	}
	return supervised.WriteFile(ctx, first, envPath, env, 0o600)
}

// ReadEnv gives the environment that the sandbox was made with.
func (s *sandbox) ReadEnv(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	if !s.withEnv {
		return out, nil
	}
	text, _, err := supervised.ReadFile(ctx, s.target(false), envPath, maxEnvBytes)
	if err != nil {
		return nil, err
	}
	for v := range strings.SplitSeq(string(text), "\x00") {
		if k, value, ok := strings.Cut(v, "="); ok {
			out[k] = value
		}
	}
	return out, nil
}
