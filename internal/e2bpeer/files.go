//go:build linux

package e2bpeer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// resolve makes a path absolute as envd does: relative ones are below the user's home.
func (b *box) resolve(path string, who user) string {
	if rest, ok := strings.CutPrefix(path, "~"); ok {
		path = who.home + "/" + rest
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(who.home, path)
	}
	if !b.p.root {
		// Without namespaces the home directory is elsewhere.
		if rest, ok := strings.CutPrefix(path, "/home/user"); ok && (rest == "" || rest[0] == '/') {
			path = filepath.Join(b.p.boxDir(b.id), "home", rest)
		}
	}
	return filepath.Clean(path)
}

// files is envd's plain HTTP interface for single files.
func (b *box) files(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	who, err := b.user(q.Get("username"))
	if err != nil {
		fail(w, http.StatusUnauthorized, "invalid username: %q", q.Get("username"))
		return
	}
	path := b.resolve(q.Get("path"), who)
	switch r.Method {
	case http.MethodGet:
		b.download(w, path)
	case http.MethodPost:
		b.upload(w, r, path, who)
	default:
		fail(w, http.StatusMethodNotAllowed, "method not allowed")
	}
}

func (b *box) download(w http.ResponseWriter, path string) {
	var f *os.File
	var info fs.FileInfo
	err := b.inside(func() (err error) {
		if info, err = os.Stat(path); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err = os.Open(path)
		return err
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		fail(w, http.StatusNotFound, "path '%s' does not exist", path)
	case err != nil:
		fail(w, http.StatusInternalServerError, "%v", err)
	case f == nil:
		fail(w, http.StatusBadRequest, "path '%s' is not a regular file", path)
	default:
		defer f.Close()
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
		_, _ = io.Copy(w, f)
	}
}

func (b *box) upload(w http.ResponseWriter, r *http.Request, path string, who user) {
	var names []string
	var err error
	if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") {
		form, ferr := r.MultipartReader()
		if ferr != nil {
			fail(w, http.StatusBadRequest, "error parsing multipart form: %v", ferr)
			return
		}
		for {
			part, perr := form.NextPart()
			if errors.Is(perr, io.EOF) {
				break
			}
			if perr != nil {
				fail(w, http.StatusBadRequest, "error reading form: %v", perr)
				return
			}
			if part.FormName() != "file" {
				continue
			}
			to := path
			if r.URL.Query().Get("path") == "" {
				// The name with its directories, which FileName would take off.
				_, disposition, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
				to = b.resolve(disposition["filename"], who)
			}
			if err = b.write(to, part, who); err != nil {
				break
			}
			names = append(names, to)
		}
	} else {
		err = b.write(path, r.Body, who)
		names = append(names, path)
	}
	if errors.Is(err, errDirectory) {
		fail(w, http.StatusBadRequest, "path is a directory: %s", path)
		return
	}
	if err != nil {
		fail(w, http.StatusInternalServerError, "%v", err)
		return
	}
	out := []map[string]any{}
	for _, n := range names {
		out = append(out, map[string]any{"name": filepath.Base(n), "path": n, "type": "file"})
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8") // a fact of envd
	writeBody(w, out)
}

var errDirectory = errors.New("is a directory")

// write makes missing directories and overwrites.
func (b *box) write(path string, content io.Reader, who user) error {
	var f *os.File
	err := b.inside(func() (err error) {
		if info, serr := os.Stat(path); serr == nil && info.IsDir() {
			return errDirectory
		}
		if err := mkdirs(filepath.Dir(path), who, b.p.root); err != nil {
			return err
		}
		if f, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644); err != nil {
			return err
		}
		if b.p.root {
			return f.Chown(who.uid, who.uid)
		}
		return nil
	})
	if err != nil {
		if f != nil {
			_ = f.Close()
		}
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

func mkdirs(dir string, who user, root bool) error {
	if info, err := os.Stat(dir); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is no directory", dir)
		}
		return nil
	}
	if err := mkdirs(filepath.Dir(dir), who, root); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil { // #nosec G301 -- as envd makes them
		return err
	}
	if root {
		return os.Chown(dir, who.uid, who.uid)
	}
	return nil
}

type pathMessage struct {
	Path        string `json:"path"`
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Depth       int    `json:"depth"`
}

// filesystem serves the calls of filesystem.Filesystem that are used by anybody here.
func (b *box) filesystem(m *http.ServeMux, option connect.HandlerOption) {
	handle := func(name string, f func(who user, in *pathMessage) (map[string]any, error)) {
		procedure := "/filesystem.Filesystem/" + name
		m.Handle(procedure, connect.NewUnaryHandler(procedure, func(_ context.Context, req *connect.Request[pathMessage]) (*connect.Response[map[string]any], error) {
			who, err := b.user(basicUser(req.Header()))
			if err != nil {
				return nil, connect.NewError(connect.CodeUnauthenticated, err)
			}
			var out map[string]any
			err = b.inside(func() (err error) {
				out, err = f(who, req.Msg)
				return err
			})
			if err != nil {
				return nil, fileError(err)
			}
			return connect.NewResponse(&out), nil
		}, option))
	}
	handle("Stat", func(who user, in *pathMessage) (map[string]any, error) {
		entry, err := entryOf(b.resolve(in.Path, who))
		return map[string]any{"entry": entry}, err
	})
	handle("MakeDir", func(who user, in *pathMessage) (map[string]any, error) {
		path := b.resolve(in.Path, who)
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("directory already exists: %s", path))
		}
		if err := mkdirs(path, who, b.p.root); err != nil {
			return nil, err
		}
		entry, err := entryOf(path)
		return map[string]any{"entry": entry}, err
	})
	handle("Move", func(who user, in *pathMessage) (map[string]any, error) {
		to := b.resolve(in.Destination, who)
		if err := mkdirs(filepath.Dir(to), who, b.p.root); err != nil {
			return nil, err
		}
		if err := os.Rename(b.resolve(in.Source, who), to); err != nil {
			return nil, err
		}
		entry, err := entryOf(to)
		return map[string]any{"entry": entry}, err
	})
	handle("Remove", func(who user, in *pathMessage) (map[string]any, error) {
		return map[string]any{}, os.RemoveAll(b.resolve(in.Path, who))
	})
	handle("ListDir", func(who user, in *pathMessage) (map[string]any, error) {
		list, err := os.ReadDir(b.resolve(in.Path, who))
		if err != nil {
			return nil, err
		}
		entries := []map[string]any{}
		for _, e := range list {
			if entry, err := entryOf(filepath.Join(b.resolve(in.Path, who), e.Name())); err == nil {
				entries = append(entries, entry)
			}
		}
		return map[string]any{"entries": entries}, nil
	})
}

func fileError(err error) error {
	var known *connect.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return connect.NewError(connect.CodeNotFound, err)
	case errors.Is(err, fs.ErrPermission):
		return connect.NewError(connect.CodePermissionDenied, err)
	}
	return connect.NewError(connect.CodeInternal, err)
}

func entryOf(path string) (map[string]any, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	entry := map[string]any{
		"name": filepath.Base(path), "path": path, "mode": int(info.Mode().Perm()), "permissions": info.Mode().Perm().String(),
		"owner": "user", "group": "user", "modifiedTime": info.ModTime().UTC().Format(time.RFC3339Nano),
	}
	switch {
	case info.Mode().IsRegular():
		entry["type"] = "FILE_TYPE_FILE"
	case info.IsDir():
		entry["type"] = "FILE_TYPE_DIRECTORY"
	case info.Mode()&fs.ModeSymlink != 0:
		entry["type"] = "FILE_TYPE_SYMLINK"
		if to, err := os.Readlink(path); err == nil {
			entry["symlinkTarget"] = to
		}
	}
	if info.Size() > 0 {
		entry["size"] = strconv.FormatInt(info.Size(), 10)
	}
	return entry, nil
}
