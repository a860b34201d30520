package docker

import (
	"context"
	"io"
	"io/fs"
	"sync"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/supervised"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/runhelper"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// noticeStarted tells that a sandbox was started on use.
const noticeStarted = "The sandbox was stopped and has been started for this; what ran in it before is gone."

// Run runs one request as an exec of the helper.
func (s *sandbox) Run(ctx context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	var notice string
	res, err := supervised.Run(ctx, s.target(&notice), req, stdout, stderr)
	res.Notice = joinNotices(notice, res.Notice)
	return res, err
}

// ReadFile reads a file as the sandbox's user sees it.
func (s *sandbox) ReadFile(ctx context.Context, path string, limit int64) ([]byte, fs.FileMode, error) {
	return supervised.ReadFile(ctx, s.target(nil), path, limit)
}

// WriteFile writes a file as the sandbox's user.
func (s *sandbox) WriteFile(ctx context.Context, path string, content []byte, mode fs.FileMode) error {
	return supervised.WriteFile(ctx, s.target(nil), path, content, mode)
}

// RemoveFile removes a file as the sandbox's user.
func (s *sandbox) RemoveFile(ctx context.Context, path string) error {
	return supervised.RemoveFile(ctx, s.target(nil), path)
}

func joinNotices(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + " " + b
}

func (s *sandbox) target(notice *string) supervised.Target {
	return supervised.Target{
		Object: objectID(s.info.NativeID),
		Place:  "the image " + s.info.Details["image"],
		Open: func(ctx context.Context) (*runhelper.Conn, error) {
			conn, started, err := s.open(ctx)
			if started && notice != nil {
				*notice = noticeStarted
			}
			return conn, err
		},
	}
}

// open starts one helper. The usual case costs two calls; only when the engine refuses is the state looked at, and a
// stopped sandbox started.
func (s *sandbox) open(ctx context.Context) (conn *runhelper.Conn, started bool, err error) {
	const attempted = "the run helper could not be started in the sandbox"
	for attempt := 0; ; attempt++ {
		conn, err = s.exec(ctx)
		if err == nil {
			return conn, started, nil
		}
		if away := s.e.target.unreachable(ctx, err, attempted); away != nil {
			return nil, started, away
		}
		f, looked := s.e.inspect(ctx, s.info.NativeID)
		if looked != nil {
			return nil, started, looked
		}
		status, _ := stateOf(f.state)
		switch {
		case status == sandboxcore.StatusPaused:
			return nil, started, notRunning(s.info.NativeID)
		case status == sandboxcore.StatusStopped && attempt < 2:
			s.e.listing.drop()
			if err := s.restart(ctx, f); err != nil {
				return nil, started, err
			}
			started = true
			continue
		case status == sandboxcore.StatusRunning && isConflict(err) && attempt < 2:
			continue // it was on its way from one state to the other
		}
		return nil, started, s.e.failure(ctx, err, sandboxcore.CodeProvision, attempted, objectID(s.info.NativeID), "Check the engine's log; replacing the sandbox makes a new container.")
	}
}

// restart starts a container that does not run. One that never ran lost its creator right after the engine had made it,
// and what was still to be done is done first.
func (s *sandbox) restart(ctx context.Context, f found) error {
	info, err := s.e.engineInfo(ctx)
	if err != nil {
		return err
	}
	if f.state == container.StateCreated {
		if err := s.e.giveDirectories(ctx, f.id, f.imageID, s.info.Marks.Request, f.plan(s.info.Marks.Request)); err != nil {
			return err
		}
	}
	return s.e.startNew(ctx, f.id, goArch(info.Architecture), s.helperVolume, f.imageID)
}

// exec starts one helper and gives its streams.
func (s *sandbox) exec(ctx context.Context) (*runhelper.Conn, error) {
	call, cancel := withDeadline(ctx, s.e.timings.call)
	defer cancel()
	created, err := s.e.cli.ExecCreate(call, s.info.NativeID, client.ExecCreateOptions{
		AttachStdin: true, AttachStdout: true,
		// Code, environment and secrets go over stdin: this list is in the engine's events and in /proc.
		Cmd: []string{helperPath, "run"},
	})
	if err != nil {
		return nil, err
	}
	attached, err := s.e.cli.ExecAttach(call, created.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, err
	}
	conn := &execConn{hijacked: attached.HijackedResponse}
	return &runhelper.Conn{
		Control: conn,
		Frames:  newDemux(attached.Reader),
		Close:   conn.Close,
	}, nil
}

// execConn is the writing side of a hijacked connection.
type execConn struct {
	hijacked client.HijackedResponse
	once     sync.Once
	err      error
}

func (c *execConn) Write(p []byte) (int, error) { return c.hijacked.Conn.Write(p) }

// Close closes both directions: a blocked Read or Write returns, and the helper sees the end of its input.
func (c *execConn) Close() error {
	c.once.Do(func() { c.err = c.hijacked.Conn.Close() })
	return c.err
}
