package supervised

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/runhelper"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// ReadFile reads a regular file of at most limit bytes.
func ReadFile(ctx context.Context, t Target, path string, limit int64) ([]byte, fs.FileMode, error) {
	const attempted = "the file could not be read"
	conn, err := t.open(ctx, attempted)
	if err != nil {
		return nil, 0, err
	}
	var b bytes.Buffer
	info, err := runhelper.Download(ctx, conn, path, limit, &b, t.Files)
	if err != nil {
		return nil, 0, t.fileError(ctx, err, attempted, path, limit)
	}
	return b.Bytes(), fileMode(info.Perm()), nil
}

// WriteFile writes a file atomically, making missing parent directories.
func WriteFile(ctx context.Context, t Target, path string, content []byte, mode fs.FileMode) error {
	const attempted = "the file could not be written"
	options := runhelper.FileOptions{}
	if t.Files != nil {
		options = *t.Files
	}
	options.MakeParents = true
	conn, err := t.open(ctx, attempted)
	if err != nil {
		return err
	}
	if _, err := runhelper.Upload(ctx, conn, path, mode, bytes.NewReader(content), &options); err != nil {
		return t.fileError(ctx, err, attempted, path, 0)
	}
	return nil
}

// RemoveFile removes a file; absent is success.
func RemoveFile(ctx context.Context, t Target, path string) error {
	const attempted = "the file could not be removed"
	conn, err := t.open(ctx, attempted)
	if err != nil {
		return err
	}
	if err := runhelper.Remove(ctx, conn, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return t.fileError(ctx, err, attempted, path, 0)
	}
	return nil
}

// fileError keeps errors.Is with fs.ErrNotExist and the like.
func (t Target) fileError(ctx context.Context, err error, attempted, path string, limit int64) error {
	var file *runhelper.FileError
	var request *runhelper.RequestError
	var stream *runhelper.StreamError
	e := &sandboxcore.Error{Code: sandboxcore.CodeOperation, Attempted: attempted, Object: t.Object + ": " + path, Attribute: []string{"path"}, Err: err}
	switch {
	case errors.As(err, &request):
		return requestError(t.Object, request)
	case errors.As(err, &file):
		switch {
		case errors.Is(err, fs.ErrNotExist):
			e.Said, e.Next = "There is no such file.", "Check the path; a relative one starts in the working directory of the sandbox."
		case errors.Is(err, runhelper.EFBIG):
			e.Said, e.Next = fmt.Sprintf("It is larger than %d bytes.", limit), "Make it smaller, or bring it out another way."
		case errors.Is(err, runhelper.EROFS):
			e.Said, e.Next = "That part of the file system is read-only.", "Use a path of fs_allow_write."
		case errors.Is(err, fs.ErrPermission):
			e.Said, e.Next = "The sandbox's user may not.", "Use a path that belongs to the sandbox's user, such as the workspace."
		case errors.Is(err, runhelper.ENOSPC), errors.Is(err, runhelper.EDQUOT):
			e.Said, e.Next = "There is no space left.", "Free space in the sandbox."
		case errors.Is(err, runhelper.ENOTDIR):
			e.Said, e.Next = "A part of the path is a file.", "Check the path."
		default:
			e.Said, e.Next = "The sandbox refused it.", "Check the path: only regular files can be read and written."
		}
		return e
	case errors.As(err, &stream):
		if stream.NothingRan {
			return t.broken(stream, attempted)
		}
		e.Code = sandboxcore.CodeUnknownOutcome
		e.Said, e.Next, e.Err = "The connection to the sandbox broke meanwhile.", "Run the command again.", cause{stream}
		return e
	}
	if ctx.Err() != nil {
		e.Code, e.Said, e.Next = sandboxcore.CodeUnknownOutcome, "It was cancelled.", "Run the command again."
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			e.Code, e.Said = sandboxcore.CodeTimeout, "The time was over before it was done."
		}
	}
	return e
}

func fileMode(bits uint32) fs.FileMode {
	m := fs.FileMode(bits & 0o777)
	for b, f := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&b != 0 {
			m |= f
		}
	}
	return m
}
