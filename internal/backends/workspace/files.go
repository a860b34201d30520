package workspace

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Files gives access to the files of a workspace for a backend whose code sees the same paths as the provider. Every
// access goes through os.Root: neither "..", nor an absolute path, nor a symbolic link leads out, also not one that
// changes while it is followed.
type Files struct{ Sandbox *Sandbox }

// Relative gives a path as a user writes it (relative to the workspace, or absolute and inside of it) relative to the
// workspace. attribute is what a refusal names.
func (f Files) Relative(path string, attribute string) (string, error) {
	refuse := func(said string) (string, error) {
		return "", &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the path was refused", Object: sandboxcore.Printable(path), Said: said,
			Next: "Use a path inside the workspace, relative to it or absolute below " + f.Sandbox.Workspace() + ".", Attribute: []string{attribute},
		}
	}
	if path == "" || strings.ContainsRune(path, 0) {
		return refuse("it is empty or has a NUL byte.")
	}
	if !filepath.IsAbs(path) {
		return path, nil
	}
	bases := []string{f.Sandbox.Workspace()}
	if resolved, err := filepath.EvalSymlinks(bases[0]); err == nil {
		bases = append(bases, resolved)
	}
	for _, base := range bases {
		if rel, err := filepath.Rel(base, path); err == nil && filepath.IsLocal(rel) {
			return rel, nil
		}
	}
	return refuse("it is outside of the workspace.")
}

func (f Files) open(path string) (*os.Root, string, error) {
	rel, err := f.Relative(path, "path")
	if err != nil {
		return nil, "", err
	}
	root, err := os.OpenRoot(f.Sandbox.Workspace())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", f.Sandbox.gone()
	}
	return root, rel, err
}

// failed gives an error a code; errors.Is still finds fs.ErrNotExist and the like.
func (f Files) failed(attempted, path string, err error) error {
	var known *sandboxcore.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	e := &sandboxcore.Error{
		Code: sandboxcore.CodeOperation, Attempted: attempted, Object: f.Sandbox.Object() + ": " + sandboxcore.Printable(path), Err: err,
		Next: "Check the path: only regular files of the workspace can be read and written.", Attribute: []string{"path"},
	}
	switch {
	case escapes(err):
		e.Code, e.Said = sandboxcore.CodeValue, "it leads out of the workspace."
		e.Next = "Use a path inside the workspace; links that lead out of it are not followed."
	case errors.Is(err, fs.ErrNotExist):
		e.Said = "there is no such file."
	case errors.As(err, new(unfitError)):
		e.Said, e.Next, e.Err = err.Error()+".", "Only regular files can be read and written. Make a large one smaller, or bring it out another way.", nil
	}
	return e
}

// unfitError says why something that is there is no file to take.
type unfitError string

func (e unfitError) Error() string { return string(e) }

// escapes reports whether os.Root refused the path. The error has no name that could be compared.
func escapes(err error) bool {
	var p *fs.PathError
	return errors.As(err, &p) && p.Err != nil && strings.Contains(p.Err.Error(), "escapes from parent")
}

// ReadFile reads a regular file of at most limit bytes.
func (f Files) ReadFile(_ context.Context, path string, limit int64) ([]byte, fs.FileMode, error) {
	content, mode, err := f.read(path, limit)
	return content, mode, f.failed("the file could not be read", path, err)
}

func (f Files) read(path string, limit int64) ([]byte, fs.FileMode, error) {
	root, rel, err := f.open(path)
	if err != nil {
		return nil, 0, err
	}
	defer root.Close()
	file, err := root.OpenFile(rel, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, unfitError("it is not a regular file")
	}
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = unfitError(fmt.Sprintf("it is larger than %d bytes", limit))
	}
	if err != nil {
		return nil, 0, err
	}
	return content, info.Mode() &^ fs.ModeType, nil
}

// WriteFile writes a file atomically, making missing parent directories.
func (f Files) WriteFile(_ context.Context, path string, content []byte, mode fs.FileMode) error {
	return f.failed("the file could not be written", path, f.write(path, content, mode))
}

func (f Files) write(path string, content []byte, mode fs.FileMode) error {
	root, rel, err := f.open(path)
	if err != nil {
		return err
	}
	defer root.Close()
	dir, name := filepath.Split(rel)
	if name == "" || name == "." || name == ".." {
		return errors.New("it names a directory")
	}
	if dir = filepath.Clean(dir); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if info, err := root.Lstat(rel); err == nil && !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0 {
		return errors.New("there is something else than a regular file in its place")
	}
	raw := make([]byte, 8)
	if _, err := rand.Read(raw); err != nil {
		return err
	}
	// Beside the target, so that the rename is atomic. A link in its place is replaced, never followed.
	temp := filepath.Join(dir, ".agentkernel-"+hex.EncodeToString(raw))
	file, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Chmod(mode&^fs.ModeType), file.Close())
	if err == nil {
		err = root.Rename(temp, rel)
	}
	if err != nil {
		return errors.Join(err, root.Remove(temp))
	}
	return nil
}

// RemoveFile removes a file; absent is success.
func (f Files) RemoveFile(_ context.Context, path string) error {
	root, rel, err := f.open(path)
	if err == nil {
		defer root.Close()
		info, lerr := root.Lstat(rel)
		switch {
		case errors.Is(lerr, fs.ErrNotExist):
			return nil
		case lerr != nil:
			err = lerr
		case info.IsDir():
			err = errors.New("it is a directory")
		default:
			if err = root.Remove(rel); errors.Is(err, fs.ErrNotExist) {
				return nil
			}
		}
	}
	return f.failed("the file could not be removed", path, err)
}

// Directory checks a working directory and gives its absolute path. One that does not exist is left to the run to
// report.
func (f Files) Directory(path string) (string, error) {
	const attribute = "working_directory"
	if path == "" {
		return f.Sandbox.Workspace(), nil
	}
	rel, err := f.Relative(path, attribute)
	if err != nil {
		return "", err
	}
	root, err := os.OpenRoot(f.Sandbox.Workspace())
	if errors.Is(err, fs.ErrNotExist) {
		return "", f.Sandbox.gone()
	}
	if err != nil {
		return "", err
	}
	defer root.Close()
	if _, err := root.Stat(rel); err != nil && escapes(err) {
		return "", &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the working directory was refused", Object: sandboxcore.Printable(path),
			Said: "it leads out of the workspace.", Next: "Use a directory inside the workspace.", Attribute: []string{attribute},
		}
	}
	return filepath.Join(f.Sandbox.Workspace(), rel), nil
}
