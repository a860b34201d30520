package runhelper

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"
)

// FileInfo describes a file inside the sandbox.
type FileInfo struct {
	Mode    uint32 // st_mode, type bits included
	Size    int64  // bytes
	UID     uint32
	GID     uint32
	ModTime time.Time // resolution 1 s
}

const (
	modeType = 0o170000
	modeReg  = 0o100000
	modeDir  = 0o040000
	modeLink = 0o120000
)

// Perm returns the permission bits, set-user-id and the like included.
func (i FileInfo) Perm() uint32 { return i.Mode & 0o7777 }

// IsRegular, IsDir and IsSymlink tell the type.
func (i FileInfo) IsRegular() bool { return i.Mode&modeType == modeReg }

// IsDir tells whether it is a directory.
func (i FileInfo) IsDir() bool { return i.Mode&modeType == modeDir }

// IsSymlink tells whether it is a symbolic link, which only [Stat] with NoFollow can see.
func (i FileInfo) IsSymlink() bool { return i.Mode&modeType == modeLink }

// FileOptions changes what file operations do. The zero value (and nil) follow symbolic links and make no
// directories.
type FileOptions struct {
	// MakeParents makes missing directories above an upload with mode 0755.
	MakeParents bool
	// NoFollow: an upload and a download refuse a path that is a symbolic link (ELOOP), Stat describes the link.
	NoFollow bool
}

func (o *FileOptions) bits() uint32 {
	var b uint32
	if o != nil && o.MakeParents {
		b |= 1
	}
	if o != nil && o.NoFollow {
		b |= 2
	}
	return b
}

// ErrDownloadTooLarge wraps into the error of a [Download] when the file is, or grows, larger than its limit. It is
// the [Errno] EFBIG.
const ErrDownloadTooLarge = EFBIG

// Upload writes content to path: into a temporary file beside it, which is then renamed. So a reader sees the
// old file or the new one, and a failure leaves the old one. mode holds the permission bits (umask does not
// apply). A symbolic link at the end of path is followed, unless opts say otherwise; anything there that is
// not a regular file is refused. After an error that is not a [*FileError] or [*RequestError] it is not known
// whether the file was replaced.
func Upload(ctx context.Context, conn *Conn, path string, mode fs.FileMode, content io.Reader, opts *FileOptions) (FileInfo, error) {
	bits := uint32(mode.Perm())
	for m, b := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&m != 0 {
			bits |= b
		}
	}
	op := &fileOp{name: "upload", path: path, typ: 'U', fixed: append(u32(bits), u32(opts.bits())...), content: content, wantMeta: true}
	return op.do(ctx, conn)
}

// Download copies the regular file at path to w. A file larger than limit bytes gives a [*FileError] with EFBIG,
// before any byte is written if the size tells, otherwise in the middle. Devices, pipes and directories are
// refused and never block. FileInfo.Size is the number of bytes that were copied.
func Download(ctx context.Context, conn *Conn, path string, limit int64, w io.Writer, opts *FileOptions) (FileInfo, error) {
	if limit < 0 {
		_ = conn.close() // never used
		return FileInfo{}, &RequestError{"limit", "negative"}
	}
	count := &countWriter{w: w, left: limit}
	op := &fileOp{name: "download", path: path, typ: 'V', fixed: append(u64(uint64(limit)), u32(opts.bits())...), out: count, wantMeta: true}
	info, err := op.do(ctx, conn)
	if err == nil {
		info.Size = limit - count.left
	}
	return info, err
}

// Stat describes the file at path.
func Stat(ctx context.Context, conn *Conn, path string, opts *FileOptions) (FileInfo, error) {
	op := &fileOp{name: "stat", path: path, typ: 'T', fixed: u32(opts.bits()), wantMeta: true}
	return op.do(ctx, conn)
}

// Remove removes a file or a symbolic link, not a directory. That it does not exist is an error
// (fs.ErrNotExist).
func Remove(ctx context.Context, conn *Conn, path string) error {
	_, err := (&fileOp{name: "remove", path: path, typ: 'Y'}).do(ctx, conn)
	return err
}

// MkdirAll makes a directory and its parents with the given permission bits, less the helper's umask. An
// existing directory is fine and keeps its mode.
func MkdirAll(ctx context.Context, conn *Conn, path string, mode fs.FileMode) error {
	_, err := (&fileOp{name: "mkdir", path: path, typ: 'J', fixed: u32(uint32(mode.Perm()))}).do(ctx, conn)
	return err
}

// countWriter refuses what a hostile helper sends beyond the limit.
type countWriter struct {
	w    io.Writer
	left int64
}

func (c *countWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > c.left {
		return 0, &ProtocolError{Reason: "more content than allowed"}
	}
	n, err := c.w.Write(p)
	c.left -= int64(n)
	return n, err
}

type fileOp struct {
	name, path string
	typ        byte
	fixed      []byte
	content    io.Reader // upload
	out        io.Writer // download
	wantMeta   bool
}

// do performs the operation. It ends when ctx is done, or when nothing happens for two minutes.
func (o *fileOp) do(ctx context.Context, conn *Conn) (FileInfo, error) {
	if o.path == "" || len(o.path) > 4095 || strings.IndexByte(o.path, 0) >= 0 {
		_ = conn.close() // never used
		return FileInfo{}, &RequestError{"path", "empty, too long or with a NUL byte"}
	}
	s := newSession(conn)
	defer s.shut()
	progress := &progressWriter{w: o.out, tick: make(chan struct{}, 1)}
	s.startReader(progress, nil)
	fail := func(err error) (FileInfo, error) {
		return FileInfo{}, fmt.Errorf("%s %s: %w", o.name, o.path, err)
	}
	var (
		info   FileInfo
		meta   bool
		hello  bool
		upload <-chan error
		limit  = time.NewTimer(helloTimeout)
	)
	defer limit.Stop()
	for {
		select {
		case <-ctx.Done():
			return fail(ctx.Err())
		case <-limit.C:
			return fail(&StreamError{NothingRan: !hello, Cause: errors.New("no answer from the run helper")})
		case <-progress.tick:
			limit.Reset(fileTimeout)
		case err := <-upload:
			// The helper waits for the rest; it is told by the end of the stream, and drops the temporary file.
			return fail(err)
		case <-s.ctlErr: //nolint:errcheck // the frames say why
		case e := <-s.events:
			n := func(i int) uint32 { return binary.LittleEndian.Uint32(e.payload[i:]) }
			limit.Reset(fileTimeout)
			switch {
			case e.outErr != nil:
				return fail(e.outErr)
			case e.err != nil:
				if errors.Is(e.err, io.EOF) {
					e.err = io.ErrUnexpectedEOF
				}
				se := &StreamError{NothingRan: !hello, Cause: e.err}
				if !hello {
					se.Notes = string(e.payload)
					if conn.notes != nil {
						s.shut()
						se.Notes += conn.notes()
					}
				}
				return fail(se)
			case e.typ == 'H' && !hello:
				if err := checkHello(e.payload); err != nil {
					return fail(&StreamError{NothingRan: true, Cause: err})
				}
				hello = true
				upload = o.send(s, progress)
			case e.typ == 'M' && hello && o.wantMeta && !meta:
				size := binary.LittleEndian.Uint64(e.payload[4:])
				if size > 1<<62 {
					return fail(&StreamError{Cause: &ProtocolError{Reason: "impossible size"}})
				}
				meta = true
				info = FileInfo{
					Mode: n(0), Size: int64(size), UID: n(12), GID: n(16),
					ModTime: time.Unix(int64(binary.LittleEndian.Uint64(e.payload[20:])), 0),
				}
			case e.typ == 'Q' && hello:
				return FileInfo{}, &FileError{Op: o.name, Path: o.path, Errno: Errno(n(0)), Text: printable(e.payload[4:])}
			case e.typ == 'X' && hello && meta == o.wantMeta:
				return info, nil
			default:
				return fail(&StreamError{NothingRan: !hello, Cause: &ProtocolError{Reason: fmt.Sprintf("frame %q during a file operation", e.typ)}})
			}
		}
	}
}

// send sends the request and, for an upload, the content. An error on the channel is one of the caller's reader.
func (o *fileOp) send(s *session, progress *progressWriter) <-chan error {
	p := &s.stdin
	p.done = make(chan struct{})
	errs := make(chan error, 1)
	content := o.content
	if content == nil && o.typ == 'U' {
		content = bytes.NewReader(nil)
	}
	go func() {
		defer close(p.done)
		if !s.write(appendFrame(nil, o.typ, o.fixed, []byte(o.path))) || content == nil {
			return
		}
		buf := make([]byte, 32<<10)
		for {
			p.inRead.Store(true)
			n, err := content.Read(buf)
			p.inRead.Store(false)
			if n > 0 {
				if !s.write(appendFrame(nil, 'I', buf[:n])) {
					return
				}
				progress.note()
			}
			if err == io.EOF {
				s.write(appendFrame(nil, 'Z'))
				return
			}
			if err != nil {
				errs <- fmt.Errorf("reading the content: %w", err)
				return
			}
		}
	}()
	return errs
}

// progressWriter tells the loop that something moved.
type progressWriter struct {
	w    io.Writer
	tick chan struct{}
}

func (p *progressWriter) note() {
	select {
	case p.tick <- struct{}{}:
	default:
	}
}

func (p *progressWriter) Write(b []byte) (int, error) {
	if p.w == nil {
		return 0, &ProtocolError{Reason: "content that was not asked for"}
	}
	p.note()
	return p.w.Write(b)
}
