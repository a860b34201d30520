package e2b

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// markFilter passes on what it gets, except a text that is nothing but a line which the wrapper writes.
type markFilter struct {
	out     io.Writer
	prefix  string
	held    []byte
	decided bool // it was none
}

// Write holds back what may be the mark, and no more.
func (m *markFilter) Write(p []byte) (int, error) {
	if m.decided {
		return m.out.Write(p)
	}
	m.held = append(m.held, p...)
	if possible := m.prefix + m.word() + "\n"; strings.HasPrefix(possible, string(m.held)) {
		return len(p), nil
	}
	m.decided = true
	_, err := m.out.Write(m.held)
	m.held = nil
	return len(p), err
}

// word is the one of the wrapper's words that the held text may become.
func (m *markFilter) word() string {
	rest := strings.TrimPrefix(string(m.held), m.prefix)
	for _, w := range markWords {
		if strings.HasPrefix(w+"\n", rest) {
			return w
		}
	}
	return ""
}

// flush passes on what was held back: it is the program's after all.
func (m *markFilter) flush() {
	if len(m.held) > 0 {
		_, _ = m.out.Write(m.held) // the engine's writers keep their own errors
	}
	m.decided, m.held = true, nil
}

// found gives what the wrapper said. Whether it was the wrapper, the end has to show: a program knows the mark of its run.
func (m *markFilter) found() (string, bool) {
	rest, marked := strings.CutPrefix(string(m.held), m.prefix)
	what, whole := strings.CutSuffix(rest, "\n")
	return what, marked && whole && slices.Contains(markWords, what)
}

// kill ends everything that is left of a run, whatever became of ctx, and says how many processes would not die.
func (r *run) kill(ctx context.Context, grace time.Duration) (left int, err error) {
	err = sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, r.s.e.times.kill+grace)
		defer cancel()
		msg := func() *startRequest {
			no := false
			return &startRequest{Stdin: &no, Process: processConfig{
				Cmd: "/bin/sh", Args: []string{"-c", killer, "agentkernel", r.id, strconv.Itoa(int(grace / (100 * time.Millisecond))), r.codeFile},
			}}
		}
		// Root sees the environment of processes that changed their user. A server without that user gets our own.
		for _, user := range []string{"root", r.s.o.user} {
			d, derr := r.s.daemon(user)
			if derr != nil {
				return derr
			}
			var out string
			out, _, err = d.small(ctx, msg())
			if err == nil {
				left, err = killReport(out)
				return err
			}
			if !refusesUser(err) {
				break
			}
		}
		return r.s.dataFailure(ctx, err, sandboxcore.CodeUnknownOutcome, "what is left of the run could not be ended")
	})
	return left, err
}

func killReport(out string) (int, error) {
	_, tail, ok := strings.Cut(out, "agentkernel-kill:")
	_, count, more := strings.Cut(strings.TrimSpace(tail), ":")
	left, err := strconv.Atoi(count)
	if !ok || !more || err != nil {
		return 0, errors.New("the helper that ends processes said nothing")
	}
	return left, nil
}

// refusesUser reports that envd does not know the user.
func refusesUser(err error) bool {
	return isRPC(err, "unauthenticated") || isRPC(err, "permission_denied") || hasStatus(err, http.StatusUnauthorized) || hasStatus(err, http.StatusForbidden)
}

// maxSmallBytes bounds the output of our own helpers.
const maxSmallBytes = 64 << 10

// small runs a helper of ours and gives the start of its stdout, and its exit status.
func (d *daemon) small(ctx context.Context, msg *startRequest) (string, int, error) {
	stream, err := d.start(ctx, msg)
	if err != nil {
		return "", 0, err
	}
	defer stream.Close()
	var out, errs bytes.Buffer
	for stream.Receive() {
		ev := stream.Msg().Event
		switch {
		case ev.Data != nil:
			keep(&out, ev.Data.Stdout)
			keep(&errs, ev.Data.Stderr)
		case ev.End != nil:
			if ev.End.ExitCode != 0 {
				return errs.String(), ev.End.ExitCode, nil
			}
			return out.String(), 0, nil
		}
	}
	if err := d.discreet(stream.Err()); err != nil {
		return "", 0, err
	}
	return "", 0, io.ErrUnexpectedEOF
}

func keep(b *bytes.Buffer, p []byte) {
	if room := maxSmallBytes - b.Len(); room > 0 {
		b.Write(p[:min(len(p), room)])
	}
}

// dataFailure makes the error of a call to the sandbox itself. The proxy's "no such sandbox" is proved by asking the API.
func (s *sandbox) dataFailure(ctx context.Context, err error, code sandboxcore.Code, attempted string) error {
	var known *sandboxcore.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	err = stripURL(err)
	a, ok := statusOf(err)
	if ok && a.proxied && !a.closedPort && (a.status == http.StatusBadGateway || a.status == http.StatusNotFound || a.status == http.StatusConflict) {
		d, gerr := s.e.api.get(ctx, s.info.NativeID)
		switch {
		case isMissing(gerr):
			return s.e.gone(attempted, s.info.NativeID)
		case gerr == nil && d.State == statePaused:
			return s.e.notRunning(s.info.NativeID)
		}
	}
	if ok && a.closedPort {
		return &sandboxcore.Error{
			Code: code, Attempted: attempted, Object: s.object(), Err: quiet{err},
			Said: fmt.Sprintf("The sandbox is there, but its daemon does not listen (status %d).", a.status), Next: "Run the command again; if it stays, replace the sandbox.",
		}
	}
	if ok && (a.status == http.StatusUnauthorized || a.status == http.StatusForbidden) {
		return &sandboxcore.Error{
			Code: code, Attempted: attempted, Object: s.object(), Err: quiet{err},
			Said: sentence(fmt.Sprintf("The sandbox refused its token or the user %q (status %d). %s", s.o.user, a.status, a.message)),
			Next: "Check user in the profile; if that is right, replace the sandbox.", Attribute: []string{string(s.e.place.Kind), keyUser},
		}
	}
	return s.e.failure(ctx, err, code, attempted, s.object())
}
