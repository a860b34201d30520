package e2b

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"net/url"
	"path"
	"strings"

	"connectrpc.com/connect"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// isRPC reports an error of envd with one of Connect's codes, in whichever of the two forms it comes: in the end frame of a
// stream, or as the body of a unary answer.
func isRPC(err error, code string) bool {
	if a, ok := statusOf(err); ok {
		return a.code == code
	}
	var rpc *connect.Error
	return errors.As(err, &rpc) && rpc.Code().String() == code
}

// fileRequest makes a request to envd's /files, which is plain HTTP.
func (d *daemon) fileRequest(ctx context.Context, method, file string, body io.Reader) (*http.Request, error) {
	q := url.Values{"path": {file}}
	if d.user != "" {
		q.Set("username", d.user)
	}
	req, err := http.NewRequestWithContext(ctx, method, d.url("/files")+"?"+q.Encode(), body)
	if err != nil {
		return nil, err
	}
	d.dress(req.Header)
	req.Header.Set("Accept", "application/json")
	return req, nil
}

// upload writes a file as the daemon's user. Missing directories are made, a file that is there is overwritten.
func (d *daemon) upload(ctx context.Context, file string, content []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.e.times.upload, errNoAnswer)
	defer cancel()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", path.Base(file))
	if err != nil {
		return err
	}
	if _, err := part.Write(content); err != nil {
		return err
	}
	if err := form.Close(); err != nil {
		return err
	}
	req, err := d.fileRequest(ctx, http.MethodPost, file, &body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", form.FormDataContentType())
	res, err := d.e.data.Do(req)
	if err != nil {
		return sent(ctx, stripURL(err))
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswerBytes))
	return err
}

// open makes the session that file calls need. They wake nothing.
func (s *sandbox) open() error {
	if s.info.Status == sandboxcore.StatusPaused {
		return s.e.notRunning(s.info.NativeID)
	}
	return nil
}

// files gives the daemon for file calls.
func (s *sandbox) files(ctx context.Context, attempted string) (*daemon, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	switch {
	case !s.o.publicTraffic && s.session.traffic == "":
		// Only create and connect give the traffic token. With the full time: a server may set it instead of extending it.
		if _, err := s.wake(ctx, s.o.idle); err != nil {
			return nil, err
		}
	case s.listed || (s.session.token == "" && s.o.secure):
		d, err := s.e.api.get(ctx, s.info.NativeID)
		if err != nil {
			return nil, s.e.sandboxFailure(ctx, err, sandboxcore.CodeUnreachable, attempted, s.info.NativeID)
		}
		s.session, s.listed = sessionOf(&d.sandboxAnswer), false
	}
	return s.daemon(s.o.user)
}

// ReadFile reads a regular file as the sandbox's user sees it.
func (s *sandbox) ReadFile(ctx context.Context, name string, limit int64) ([]byte, fs.FileMode, error) {
	const attempted = "the file could not be read"
	d, err := s.files(ctx, attempted)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.e.times.upload, errNoAnswer)
	defer cancel()
	// The content has to be as long as the daemon says the file is, or something in between answered in its place.
	for attempt := 0; ; attempt++ {
		content, mode, size, err := s.readOnce(ctx, d, name, limit, attempted)
		if err != nil || size < 0 || size == int64(len(content)) {
			return content, mode, err
		}
		if attempt >= 3 {
			return nil, 0, fmt.Errorf("%s: %d bytes came of %d; it changes while it is read, or what answered is not the sandbox", attempted, len(content), size)
		}
	}
}

// readOnce reads a file and gives its size as the daemon tells it, negative if that says nothing: kernels tell no size of
// their own files.
func (s *sandbox) readOnce(ctx context.Context, d *daemon, name string, limit int64, attempted string) (content []byte, mode fs.FileMode, size int64, err error) {
	info, err := d.stat(ctx, name)
	if isRPC(err, "not_found") {
		return nil, 0, 0, fmt.Errorf("%s: %w", sandboxcore.Printable(name), fs.ErrNotExist)
	}
	if err != nil {
		return nil, 0, 0, s.dataFailure(ctx, err, sandboxcore.CodeUnreachable, attempted)
	}
	size = -1
	if info.Type == fileTypeSymlink {
		// What it leads to is looked at by the read itself; a link to something else than a file is refused there.
		if to := d.resolve(ctx, name, info); to != nil {
			info = to
		}
	}
	switch info.Type {
	case fileTypeFile:
		size, _ = info.Size.Int64() // absent: 0
	case fileTypeSymlink:
	default:
		return nil, 0, 0, fmt.Errorf("%s is no regular file", sandboxcore.Printable(name))
	}
	if size > limit {
		return nil, 0, 0, fmt.Errorf("%s has %d bytes, more than %d", sandboxcore.Printable(name), size, limit)
	}
	req, err := d.fileRequest(ctx, http.MethodGet, name, http.NoBody)
	if err != nil {
		return nil, 0, 0, err
	}
	res, err := d.e.data.Do(req)
	if err != nil {
		err = stripURL(err)
		a, ok := statusOf(err)
		switch {
		case ok && a.status == http.StatusNotFound && a.message != "" && !a.proxied:
			return nil, 0, 0, fmt.Errorf("%s: %w", sandboxcore.Printable(name), fs.ErrNotExist)
		case ok && a.status == http.StatusBadRequest && a.message != "":
			return nil, 0, 0, fmt.Errorf("%s is no regular file", sandboxcore.Printable(name))
		}
		return nil, 0, 0, s.dataFailure(ctx, sent(ctx, err), sandboxcore.CodeUnreachable, attempted)
	}
	defer res.Body.Close()
	content, err = io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil {
		return nil, 0, 0, s.dataFailure(ctx, sent(ctx, err), sandboxcore.CodeUnreachable, attempted)
	}
	if int64(len(content)) > limit {
		return nil, 0, 0, fmt.Errorf("%s has more than %d bytes", sandboxcore.Printable(name), limit)
	}
	if size == 0 && (strings.HasPrefix(path.Clean(name), "/proc/") || strings.HasPrefix(path.Clean(name), "/sys/")) {
		size = -1
	}
	return content, fs.FileMode(info.Mode) & fs.ModePerm, size, nil
}

// resolve follows a symbolic link to its end; nil if the daemon does not say where it leads.
func (d *daemon) resolve(ctx context.Context, name string, info *entryInfo) *entryInfo {
	for range 10 {
		if info.Type != fileTypeSymlink {
			return info
		}
		if info.Target == "" || strings.HasPrefix(info.Target, "..") || strings.Contains(info.Target, "/..") { // a directory on the way may be a link, too
			return nil
		}
		if !path.IsAbs(info.Target) {
			name = path.Join(path.Dir(name), info.Target)
		} else {
			name = info.Target
		}
		var err error
		if info, err = d.stat(ctx, name); err != nil {
			return nil
		}
	}
	return nil
}

// WriteFile uploads beside the place and moves into it, so that nobody sees half a file.
func (s *sandbox) WriteFile(ctx context.Context, name string, content []byte, mode fs.FileMode) error {
	const attempted = "the file could not be written"
	d, err := s.files(ctx, attempted)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.e.times.upload, errNoAnswer)
	defer cancel()
	dir, base := path.Split(name)
	temporary := dir + ".agentkernel-" + newRunID()
	if base == "" {
		return fmt.Errorf("%s is no name of a file", sandboxcore.Printable(name))
	}
	err = d.upload(ctx, temporary, content)
	if err != nil {
		err = s.dataFailure(ctx, err, sandboxcore.CodeUnreachable, attempted)
	} else {
		err = s.helper(ctx, d, attempted, writer, plain(temporary), plain(name), fmt.Sprintf("%04o", mode.Perm()))
	}
	if err != nil { // what was brought may be there all the same
		_ = sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
			return s.helper(ctx, d, attempted, `rm -f -- "$1"`, plain(temporary))
		})
		return err
	}
	return nil
}

// RemoveFile removes a file. A directory is refused by rm.
func (s *sandbox) RemoveFile(ctx context.Context, name string) error {
	const attempted = "the file could not be removed"
	d, err := s.files(ctx, attempted)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.e.times.upload, errNoAnswer)
	defer cancel()
	return s.helper(ctx, d, attempted, `rm -f -- "$1"`, plain(name))
}

// plain keeps a relative name from being taken for an option.
func plain(name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	return "./" + name
}

// helper runs shell text of ours with arguments.
func (s *sandbox) helper(ctx context.Context, d *daemon, attempted, script string, args ...string) error {
	no := false
	out, status, err := d.small(ctx, &startRequest{Stdin: &no, Process: processConfig{
		Cmd: "/bin/sh", Args: append([]string{"-c", script, "agentkernel"}, args...),
	}})
	if err != nil {
		return s.dataFailure(ctx, err, sandboxcore.CodeUnreachable, attempted)
	}
	if status != 0 {
		return fmt.Errorf("%s: %s", attempted, clip(sandboxcore.Printable(strings.TrimSpace(out)), 300))
	}
	return nil
}
