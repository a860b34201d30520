package runhelper

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

func TestUpload(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := t.TempDir()
	up := func(path string, content []byte, mode fs.FileMode, opts *FileOptions) (FileInfo, error) {
		return Upload(ctx, start(t, "run").Conn, path, mode, bytes.NewReader(content), opts)
	}
	big := make([]byte, 5<<20+13)
	rand.Read(big)
	for _, c := range []struct {
		name    string
		content []byte
		mode    fs.FileMode
	}{{"empty", nil, 0o600}, {"small", []byte("hello"), 0o644}, {"big", big, 0o755 | fs.ModeSetuid}, {"none", []byte("x"), 0}} {
		path := filepath.Join(dir, c.name)
		info, err := up(path, c.content, c.mode, nil)
		if err != nil {
			t.Fatal(c.name, err)
		}
		st, err := os.Stat(path)
		if err != nil || st.Mode() != c.mode || st.Size() != int64(len(c.content)) || info.Size != st.Size() || !info.IsRegular() {
			t.Errorf("%s: %v %+v %v", c.name, st.Mode(), info, err)
		}
		if got, _ := os.ReadFile(path); !bytes.Equal(got, c.content) {
			t.Errorf("%s: content differs", c.name)
		}
	}
	t.Run("replaces", func(t *testing.T) {
		path := filepath.Join(dir, "small")
		old, _ := os.Open(path)
		defer old.Close()
		if _, err := up(path, []byte("new"), 0o600, nil); err != nil {
			t.Fatal(err)
		}
		// Atomic: who has the old file open still reads the old content.
		if b, _ := io.ReadAll(old); string(b) != "hello" {
			t.Errorf("the old file was written to: %q", b)
		}
	})
	t.Run("parents", func(t *testing.T) {
		path := filepath.Join(dir, "a/b//c/file")
		if _, err := up(path, nil, 0o600, nil); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("without MakeParents: %v", err)
		}
		if _, err := up(path, []byte("x"), 0o600, &FileOptions{MakeParents: true}); err != nil || !fileExists(path) {
			t.Error(err)
		}
		if _, err := up(path, []byte("y"), 0o600, &FileOptions{MakeParents: true}); err != nil {
			t.Error(err)
		}
		if _, err := up(dir+"/small/x/y", nil, 0o600, &FileOptions{MakeParents: true}); !errors.Is(err, ENOTDIR) {
			t.Error(err)
		}
	})
	t.Run("symlinks", func(t *testing.T) {
		must(t, os.WriteFile(dir+"/target", []byte("t"), 0o600))
		must(t, os.Symlink("target", dir+"/link"))
		must(t, os.Symlink(dir+"/link", dir+"/link2"))
		must(t, os.Symlink("loop", dir+"/loop"))
		must(t, os.Symlink(dir+"/not-yet", dir+"/dangling"))
		if _, err := up(dir+"/link2", []byte("through"), 0o600, nil); err != nil {
			t.Fatal(err)
		}
		if b, _ := os.ReadFile(dir + "/target"); string(b) != "through" {
			t.Errorf("%q", b)
		}
		if l, _ := os.Readlink(dir + "/link"); l != "target" {
			t.Error("the link was replaced")
		}
		if _, err := up(dir+"/link", nil, 0o600, &FileOptions{NoFollow: true}); !errors.Is(err, ELOOP) {
			t.Error(err)
		}
		if _, err := up(dir+"/loop", nil, 0o600, nil); !errors.Is(err, ELOOP) {
			t.Error(err)
		}
		if _, err := up(dir+"/dangling", []byte("d"), 0o600, nil); err != nil || !fileExists(dir+"/not-yet") {
			t.Error(err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		must(t, syscall.Mkfifo(dir+"/fifo", 0o600))
		for path, want := range map[string]Errno{dir: EISDIR, dir + "/": EISDIR, dir + "/fifo": EINVAL, "/dev/null": EINVAL, dir + "/" + strings.Repeat("n", 300): ENAMETOOLONG} {
			_, err := up(path, []byte("x"), 0o600, nil)
			var fe *FileError
			if !errors.As(err, &fe) || fe.Errno != want || fe.Op != "upload" || fe.Path != path {
				t.Errorf("%.80s: %v", path, err)
			}
		}
		for _, path := range []string{"", "a\x00b", strings.Repeat("p/", 2100)} {
			var re *RequestError
			if _, err := up(path, nil, 0o600, nil); !errors.As(err, &re) {
				t.Errorf("%.20q: %v", path, err)
			}
		}
	})
	t.Run("failed reader leaves nothing", func(t *testing.T) {
		boom := errors.New("boom")
		path := dir + "/partial"
		_, err := Upload(ctx, start(t, "run").Conn, path, 0o600, io.MultiReader(bytes.NewReader(big), errReader{boom}), nil)
		if !errors.Is(err, boom) || fileExists(path) {
			t.Error(err)
		}
		eventually(t, "no temporary file is left", func() bool { return noTemporary(dir) })
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		p := start(t, "run")
		done := make(chan error, 1)
		go func() {
			_, err := Upload(ctx, p.Conn, dir+"/cancelled", 0o600, zeroReader{}, nil)
			done <- err
		}()
		eventually(t, "the upload has begun", func() bool { return !noTemporary(dir) })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || fileExists(dir+"/cancelled") {
			t.Error(err)
		}
		eventually(t, "no temporary file is left", func() bool { return noTemporary(dir) })
	})
	if !noTemporary(dir) {
		t.Error("temporary files are left")
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func noTemporary(dir string) bool {
	found, _ := filepath.Glob(dir + "/.akrun-*")
	return len(found) == 0
}

func TestUploadDiskFull(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		testenv.Skip(t, testenv.Root, "no file system can be mounted: "+err.Error(), "run the tests as root with CAP_SYS_ADMIN")
	}
	defer func() { must(t, syscall.Unmount(dir, 0)) }()
	_, err := Upload(testContext(t), start(t, "run").Conn, dir+"/f", 0o600, bytes.NewReader(make([]byte, 8<<20)), nil)
	if !errors.Is(err, ENOSPC) || !noTemporary(dir) || fileExists(dir+"/f") {
		t.Error(err)
	}
}

func TestDownload(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := t.TempDir()
	down := func(path string, limit int64, opts *FileOptions) (string, FileInfo, error) {
		var b strings.Builder
		info, err := Download(ctx, start(t, "run").Conn, path, limit, &b, opts)
		return b.String(), info, err
	}
	big := make([]byte, 5<<20+13)
	rand.Read(big)
	must(t, os.WriteFile(dir+"/big", big, 0o640))
	must(t, os.WriteFile(dir+"/empty", nil, 0o600))
	must(t, os.Symlink("big", dir+"/link"))
	must(t, syscall.Mkfifo(dir+"/fifo", 0o600))

	for _, path := range []string{"/big", "/link"} {
		got, info, err := down(dir+path, int64(len(big)), nil)
		if err != nil || got != string(big) || info.Size != int64(len(big)) || info.Perm() != 0o640 {
			t.Errorf("%s: %d bytes %+v %v", path, len(got), info, err)
		}
	}
	if got, _, err := down(dir+"/empty", 0, nil); err != nil || got != "" {
		t.Error(got, err)
	}
	if got, _, err := down("/proc/self/comm", 100, nil); err != nil || !strings.HasPrefix(got, "akrun") {
		t.Error(got, err) // a size of 0 with content behind it
	}
	for _, c := range []struct {
		path string
		max  int64
		opts *FileOptions
		want Errno
	}{
		{"/big", int64(len(big)) - 1, nil, EFBIG},
		{"/link", 1 << 30, &FileOptions{NoFollow: true}, ELOOP},
		{"/fifo", 1 << 30, nil, EINVAL},
		{"/", 1 << 30, nil, EISDIR},
		{"/none", 1 << 30, nil, ENOENT},
		{"/big/x", 1 << 30, nil, ENOTDIR},
	} {
		got, _, err := down(dir+c.path, c.max, c.opts)
		var fe *FileError
		if !errors.As(err, &fe) || fe.Errno != c.want || got != "" {
			t.Errorf("%s: %v", c.path, err)
		}
	}
	if got, _, err := down("/dev/zero", 1<<30, nil); !errors.Is(err, EINVAL) || got != "" {
		t.Error(err)
	}
	if _, _, err := down("/proc/self/maps", 10, nil); !errors.Is(err, ErrDownloadTooLarge) {
		t.Errorf("grows while it is read: %v", err)
	}
	t.Run("writer fails", func(t *testing.T) {
		boom := errors.New("boom")
		if _, err := Download(ctx, start(t, "run").Conn, dir+"/big", 1<<30, errWriter{boom}, nil); !errors.Is(err, boom) {
			t.Error(err)
		}
	})
}

type errWriter struct{ err error }

func (w errWriter) Write([]byte) (int, error) { return 0, w.err }

func TestStatRemoveMkdir(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := t.TempDir()
	conn := func() *Conn { return start(t, "run").Conn }
	must(t, os.WriteFile(dir+"/f", []byte("12345"), 0o604))
	must(t, os.Chmod(dir+"/f", 0o604))
	when := time.Unix(1234567890, 0)
	must(t, os.Chtimes(dir+"/f", when, when))
	must(t, os.Symlink("f", dir+"/l"))
	info, err := Stat(ctx, conn(), dir+"/l", nil)
	if err != nil || info.Size != 5 || info.Perm() != 0o604 || !info.IsRegular() || !info.ModTime.Equal(when) || info.UID != uint32(os.Getuid()) || info.GID != uint32(os.Getgid()) {
		t.Errorf("%+v %v", info, err)
	}
	if info, err = Stat(ctx, conn(), dir+"/l", &FileOptions{NoFollow: true}); err != nil || !info.IsSymlink() {
		t.Errorf("%+v %v", info, err)
	}
	if info, err = Stat(ctx, conn(), dir, nil); err != nil || !info.IsDir() {
		t.Errorf("%+v %v", info, err)
	}
	if _, err = Stat(ctx, conn(), dir+"/none", nil); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := Remove(ctx, conn(), dir+"/l"); err != nil || !fileExists(dir+"/f") {
		t.Error(err)
	}
	if err := Remove(ctx, conn(), dir+"/f"); err != nil || fileExists(dir+"/f") {
		t.Error(err)
	}
	if err := Remove(ctx, conn(), dir+"/f"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := Remove(ctx, conn(), dir); !errors.Is(err, EISDIR) {
		t.Error(err)
	}
	if err := MkdirAll(ctx, conn(), dir+"/x/y//z/", 0o750); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(dir + "/x/y/z"); err != nil || st.Mode() != fs.ModeDir|0o750 {
		t.Error(st, err)
	}
	if err := MkdirAll(ctx, conn(), dir+"/x/y", 0o700); err != nil {
		t.Error(err)
	}
	if err := MkdirAll(ctx, conn(), "/", 0o700); err != nil {
		t.Error(err)
	}
	must(t, os.WriteFile(dir+"/file", nil, 0o600))
	if err := MkdirAll(ctx, conn(), dir+"/file/sub", 0o700); !errors.Is(err, ENOTDIR) {
		t.Error(err)
	}
}

func TestFilesInGuardMode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Upload(testContext(t), start(t, "guard").Conn, dir+"/f", 0o600, strings.NewReader("g"), nil); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if _, err := Download(testContext(t), start(t, "guard").Conn, dir+"/f", 1, &b, nil); err != nil || b.String() != "g" {
		t.Error(b.String(), err)
	}
}

func TestExtract(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "cache")
	paths := make(chan string, 16)
	for range 16 {
		go func() {
			p, err := Extract(dir)
			if err != nil {
				t.Error(err)
			}
			// Started at once, while the others may still be writing.
			conn, err := StartProcess(testContext(t), p, []string{"run"}, nil)
			if err != nil {
				t.Error(err)
			} else if res, err := Run(testContext(t), conn, sh("exit 6"), nil, nil); err != nil || res.ExitCode != 6 {
				t.Error(res, err)
			}
			paths <- p
		}()
	}
	first := <-paths
	for range 15 {
		if p := <-paths; p != first {
			t.Errorf("%s and %s", p, first)
		}
	}
	if st, err := os.Stat(first); err != nil || st.Mode() != 0o755 {
		t.Error(st, err)
	}
	if !noTemporary(dir) {
		t.Error("temporary files are left")
	}
	// What somebody damaged is replaced.
	must(t, os.WriteFile(first, []byte("#!/bin/sh\n"), 0o755))
	if p, err := Extract(dir); err != nil || p != first || !intact(p, filepath.Base(p)[len("akrun-"):]) {
		t.Error(p, err)
	}
}
