package runhelper

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
)

// fakeHelper is the other side of a Conn, as honest as the test wants it.
func fakeHelper(behave func(in io.Reader, out io.Writer)) *Conn {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	go func() {
		behave(inR, outW)
		_ = outW.Close()
		_ = inR.Close()
	}()
	return &Conn{Control: inW, Frames: outR, Close: func() error {
		_ = inW.Close()
		return outR.Close()
	}}
}

// says is a helper that reads everything and sends these frames; hold keeps the stream open afterwards.
func says(hold bool, frames ...[]byte) *Conn {
	return fakeHelper(func(in io.Reader, out io.Writer) {
		gone := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, in)
			close(gone)
		}()
		for _, f := range frames {
			if _, err := out.Write(f); err != nil {
				return
			}
		}
		if hold {
			<-gone
		}
	})
}

func fr(typ byte, payload ...[]byte) []byte { return appendFrame(nil, typ, payload...) }
func helloFrame() []byte                    { return fr('H', u32(1), u32(42)) }
func startFrame() []byte                    { return fr('S', u32(43), u32(0)) }
func endFrame(code, sig, flags uint32) []byte {
	return fr('X', u32(code), u32(sig), u32(flags), u32(0), u32(0), u64(5))
}

func shorten(t *testing.T) {
	t.Helper()
	old := []time.Duration{helloTimeout, startTimeout, fileTimeout, margin, brokenWait, inUserGrace}
	t.Cleanup(func() {
		helloTimeout, startTimeout, fileTimeout, margin, brokenWait, inUserGrace = old[0], old[1], old[2], old[3], old[4], old[5]
	})
	helloTimeout, startTimeout, fileTimeout, margin, brokenWait, inUserGrace = 300*time.Millisecond, 300*time.Millisecond,
		300*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond, 50*time.Millisecond
}

// noLeak fails when goroutines of this package outlive the test. Not for parallel tests.
func noLeak(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		var stacks string
		for range 200 {
			buf := make([]byte, 1<<20)
			stacks = string(buf[:runtime.Stack(buf, true)])
			if !strings.Contains(stacks, "runhelper.(*session)") {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
		t.Errorf("goroutines are left:\n%s", stacks)
	})
}

func simple() *Request { return &Request{Program: []string{"a", "b"}} }

func TestHonestFake(t *testing.T) {
	noLeak(t)
	var out, errs bytes.Buffer
	res, err := Run(t.Context(), says(false, helloFrame(), fr('S', u32(1), u32(1)), fr('O', []byte("o")), fr('R', []byte("e")),
		fr('X', u32(3), u32(0), u32(endTimedOut|endBackground), u32(7), u32(2), u64(1500))), simple(), &out, &errs)
	want := Result{ExitCode: 3, TimedOut: true, Background: true, LeftoversKilled: 7, OOMKills: 2, Program: "b", Duration: 1500 * time.Millisecond}
	if err != nil || res != want || out.String() != "o" || errs.String() != "e" {
		t.Errorf("%+v %v", res, err)
	}
}

func TestHostileFrames(t *testing.T) {
	noLeak(t)
	shorten(t)
	h, s := helloFrame(), startFrame()
	for name, frames := range map[string][][]byte{
		"garbage":               {[]byte("OCI runtime exec failed: no such file\r\n")},
		"huge length":           {h, s, {'O', 0xff, 0xff, 0xff, 0xff}},
		"a little too long":     {h, s, {'O', 1, 0, 1, 0}},
		"empty output":          {h, s, fr('O')},
		"unknown type":          {h, s, fr('z', []byte("x"))},
		"zero bytes":            {make([]byte, 64)},
		"no hello":              {s, endFrame(0, 0, 0)},
		"other version":         {fr('H', u32(2), u32(1)), s, endFrame(0, 0, 0)},
		"short hello":           {fr('H', u32(1))},
		"two hellos":            {h, h, s, endFrame(0, 0, 0)},
		"two starts":            {h, s, s, endFrame(0, 0, 0)},
		"start after refusal":   {h, s, fr('N', u32(2), u32(0), []byte("exec"))},
		"end without start":     {h, endFrame(0, 0, 0)},
		"output before start":   {h, fr('O', []byte("x")), s, endFrame(0, 0, 0)},
		"program out of range":  {h, fr('S', u32(1), u32(2))},
		"program far out":       {h, fr('S', u32(1), u32(0xffffffff))},
		"refusal out of range":  {h, fr('N', u32(2), u32(9), []byte("exec"))},
		"exit code":             {h, s, endFrame(256, 0, 0)},
		"signal":                {h, s, endFrame(0, 65, 0)},
		"short end":             {h, s, fr('X', u32(0))},
		"duration":              {h, s, fr('X', u32(0), u32(0), u32(0), u32(0), u32(0), u64(1<<63))},
		"credit without stdin":  {h, s, fr('C', u32(1)), endFrame(0, 0, 0)},
		"file frames":           {h, s, fr('M', make([]byte, 28)), endFrame(0, 0, 0)},
		"cut in the header":     {h, s, {'X', 28}},
		"cut in the payload":    {h, s, endFrame(0, 0, 0)[:20]},
		"nothing":               {},
		"only hello":            {h},
		"started, then nothing": {h, s},
	} {
		res, err := Run(t.Context(), says(false, frames...), simple(), io.Discard, io.Discard)
		var se *StreamError
		if !errors.As(err, &se) || !errors.Is(err, ErrStreamBroken) || se.Ended || res.ExitCode != 0 || res.Duration != 0 {
			t.Errorf("%s: %+v %v", name, res, err)
			continue
		}
		if mayHaveRun := len(frames) > 0 && bytes.Equal(frames[0], h); se.NothingRan == mayHaveRun {
			t.Errorf("%s: NothingRan = %v", name, se.NothingRan)
		}
		if name == "garbage" && !strings.Contains(se.Notes, "OCI runtime exec failed") {
			t.Errorf("%s: notes %q", name, se.Notes)
		}
	}
}

func TestTooMuchCredit(t *testing.T) {
	noLeak(t)
	req := simple()
	req.Stdin = strings.NewReader("abc")
	_, err := Run(t.Context(), says(false, helloFrame(), startFrame(), fr('C', u32(0xffffffff)), endFrame(0, 0, 0)), req, nil, nil)
	if _, ok := errors.AsType[*ProtocolError](err); !ok {
		t.Error(err)
	}
}

// A silent or deaf helper must not hold the client beyond its limits.
func TestSilentHelper(t *testing.T) {
	noLeak(t)
	shorten(t)
	deaf := func(frames ...[]byte) *Conn { // reads nothing
		stop := make(chan struct{})
		c := fakeHelper(func(_ io.Reader, out io.Writer) {
			for _, f := range frames {
				_, _ = out.Write(f)
			}
			<-stop
		})
		inner := c.Close
		c.Close = func() error { close(stop); return inner() }
		return c
	}
	timed := simple()
	timed.Timeout = 100 * time.Millisecond
	fed := simple()
	fed.Timeout = 100 * time.Millisecond
	fed.Stdin = zeroes{}
	for name, c := range map[string]struct {
		conn *Conn
		req  *Request
	}{
		"no hello":               {says(true), simple()},
		"no start":               {says(true, helloFrame()), simple()},
		"no end after timeout":   {says(true, helloFrame(), startFrame()), timed},
		"no end, stdin is taken": {says(true, helloFrame(), startFrame()), fed},
		"deaf before hello":      {deaf(), simple()},
		"deaf after hello":       {deaf(helloFrame()), simple()},
		"deaf after start":       {deaf(helloFrame(), startFrame()), fed},
	} {
		began := time.Now()
		_, err := Run(t.Context(), c.conn, c.req, nil, nil)
		if !errors.Is(err, ErrStreamBroken) {
			t.Errorf("%s: %v", name, err)
		}
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("%s: took %v", name, d)
		}
	}
	t.Run("cancelled", func(t *testing.T) {
		for name, conn := range map[string]*Conn{"deaf": deaf(helloFrame(), startFrame()), "silent": says(true, helloFrame(), startFrame())} {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, err := Run(ctx, conn, simple(), nil, nil)
			cancel()
			var ce *CancelledError
			if !errors.As(err, &ce) || ce.Confirmed || ce.Ended || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrStreamBroken) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("never released", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := Run(ctx, deaf(), simple(), nil, nil)
		var ce *CancelledError
		if !errors.As(err, &ce) || !ce.Confirmed || ce.Ended {
			t.Errorf("%v", err)
		}
	})
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// The control stream breaks while the helper can still tell how the run ended.
func TestControlBreaksButEndIsTold(t *testing.T) {
	noLeak(t)
	conn := fakeHelper(func(in io.Reader, out io.Writer) {
		_, _ = out.Write(helloFrame())
		expectFrame(in, 'G')
		_, _ = out.Write(startFrame())
		tear(in, errors.New("torn"))
		time.Sleep(20 * time.Millisecond)
		_, _ = out.Write(endFrame(0, 9, endControlLost))
	})
	req := simple()
	req.Stdin = zeroes{}
	res, err := Run(t.Context(), conn, req, nil, nil)
	var se *StreamError
	if !errors.As(err, &se) || !se.Ended || se.NothingRan || res.Signal != 9 {
		t.Errorf("%+v %v", res, err)
	}
}

// tear makes the writes of the other side fail.
func tear(in io.Reader, err error) {
	if p, ok := in.(*io.PipeReader); ok {
		_ = p.CloseWithError(err)
	}
}

// expectFrame reads frames until one of the type has come, and returns its payload.
func expectFrame(in io.Reader, typ byte) []byte {
	var h [headerSize]byte
	for {
		if _, err := io.ReadFull(in, h[:]); err != nil {
			return nil
		}
		p := make([]byte, binary.LittleEndian.Uint32(h[1:]))
		if _, err := io.ReadFull(in, p); err != nil {
			return nil
		}
		if h[0] == typ {
			return p
		}
	}
}

func TestKillIsSentWhileTheWriterBlocks(t *testing.T) {
	noLeak(t)
	shorten(t)
	killed := make(chan struct{})
	conn := fakeHelper(func(in io.Reader, out io.Writer) {
		_, _ = out.Write(helloFrame())
		expectFrame(in, 'G')
		_, _ = out.Write(startFrame())
		go func() {
			for {
				if _, err := out.Write(fr('O', []byte("x"))); err != nil {
					return
				}
			}
		}()
		if expectFrame(in, 'K') != nil {
			close(killed)
		}
		_, _ = io.Copy(io.Discard, in)
	})
	ctx, cancel := context.WithCancel(t.Context())
	blocked := make(chan struct{})
	gate := make(chan struct{})
	defer close(gate)
	go func() {
		<-blocked
		cancel()
	}()
	began := time.Now()
	_, err := Run(ctx, conn, simple(), gateWriter{blocked, gate}, nil)
	var ce *CancelledError
	if !errors.As(err, &ce) || ce.Confirmed {
		t.Errorf("%v", err)
	}
	if d := time.Since(began); d > 3*time.Second {
		t.Errorf("took %v", d)
	}
	select {
	case <-killed:
	default:
		t.Error("no kill was sent")
	}
}

type gateWriter struct{ blocked, gate chan struct{} }

func (w gateWriter) Write(p []byte) (int, error) {
	close(w.blocked)
	<-w.gate
	return 0, io.ErrClosedPipe
}

func TestFailingWriterAndReader(t *testing.T) {
	noLeak(t)
	boom := errors.New("boom")
	helper := func() *Conn {
		return fakeHelper(func(in io.Reader, out io.Writer) {
			_, _ = out.Write(helloFrame())
			expectFrame(in, 'G')
			_, _ = out.Write(startFrame())
			done := make(chan struct{})
			go func() {
				defer close(done)
				if expectFrame(in, 'K') == nil {
					return
				}
				_, _ = out.Write(endFrame(0, 9, endKilled))
			}()
			for i := range 100 { // output goes on after the writer failed
				if _, err := out.Write(fr('O', []byte(fmt.Sprint(i)))); err != nil {
					break
				}
			}
			<-done
		})
	}
	w := &failOnce{err: boom}
	_, err := Run(t.Context(), helper(), simple(), w, nil)
	var ce *CancelledError
	if !errors.As(err, &ce) || !errors.Is(err, boom) || !ce.Confirmed || !ce.Ended || ce.Result.Signal != 9 || w.calls != 1 {
		t.Errorf("%v after %d calls", err, w.calls)
	}
	req := simple()
	req.Stdin = io.MultiReader(strings.NewReader("some"), &failingReader{boom})
	_, err = Run(t.Context(), helper(), req, nil, nil)
	if !errors.As(err, &ce) || !errors.Is(err, boom) || !ce.Ended {
		t.Errorf("%v", err)
	}
}

type failOnce struct {
	err   error
	calls int
}

func (w *failOnce) Write([]byte) (int, error) { w.calls++; return 0, w.err }

type failingReader struct{ err error }

func (r *failingReader) Read([]byte) (int, error) { return 0, r.err }

func TestHostileFileAnswers(t *testing.T) {
	noLeak(t)
	shorten(t)
	h := helloFrame()
	meta := func(size uint64) []byte {
		return fr('M', u32(modeReg|0o600), u64(size), u32(0), u32(0), u64(0))
	}
	for name, frames := range map[string][][]byte{
		"nothing":              {},
		"end before meta":      {h, endFrame(0, 0, 0)},
		"content before meta":  {h, fr('O', []byte("x")), meta(1), endFrame(0, 0, 0)},
		"more than allowed":    {h, meta(1), fr('O', bytes.Repeat([]byte("x"), 11)), endFrame(0, 0, 0)},
		"impossible size":      {h, meta(1 << 63), endFrame(0, 0, 0)},
		"two metas":            {h, meta(1), meta(1), endFrame(0, 0, 0)},
		"stderr":               {h, startFrame(), endFrame(0, 0, 0)},
		"cut":                  {h, meta(5), fr('O', []byte("x"))},
		"short meta":           {h, fr('M', u32(1))},
		"refusal before hello": {fr('Q', u32(2), []byte("open"))},
	} {
		var b bytes.Buffer
		if _, err := Download(t.Context(), says(false, frames...), "/f", 10, &b, nil); err == nil || b.Len() > 10 {
			t.Errorf("%s: no error, %d bytes", name, b.Len())
		}
	}
	_, err := Download(t.Context(), says(true, h, meta(1)), "/f", 10, io.Discard, nil)
	if !errors.Is(err, ErrStreamBroken) {
		t.Errorf("silent: %v", err)
	}
	var fe *FileError
	_, err = Stat(t.Context(), says(false, h, fr('Q', u32(13), []byte("a\x1b[31m\xff"))), "/f", nil)
	if !errors.As(err, &fe) || fe.Text != "a?[31m?" || !errors.Is(err, EACCES) {
		t.Errorf("%v", err)
	}
}

// FuzzRun feeds arbitrary bytes to the client. It must end, and must never report a success that no complete
// and orderly stream of frames told.
func FuzzRun(f *testing.F) {
	f.Add(bytes.Join([][]byte{helloFrame(), startFrame(), fr('O', []byte("hi")), fr('C', u32(3)), endFrame(0, 0, 0)}, nil))
	f.Add(bytes.Join([][]byte{helloFrame(), fr('N', u32(2), u32(1), []byte("exec"))}, nil))
	f.Add(bytes.Join([][]byte{helloFrame(), startFrame(), endFrame(0, 9, 0xff)}, nil))
	f.Add([]byte("exec failed"))
	f.Add([]byte{'H', 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, stream []byte) {
		req := simple()
		req.Stdin = strings.NewReader("abc")
		var out bytes.Buffer
		res, err := Run(t.Context(), says(false, stream), req, &out, &out)
		if out.Len() > len(stream) {
			t.Error("more output than input")
		}
		if err != nil {
			return
		}
		if res.Program == "" || !bytes.HasPrefix(stream, helloFrame()[:headerSize+4]) {
			t.Errorf("success out of %q", stream)
		}
	})
}

func FuzzDecoder(f *testing.F) {
	f.Add([]byte("H\x08\x00\x00\x00abcdefgh"), uint64(1))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		d := newDecoder(&choppy{stream, rand.New(rand.NewPCG(seed, 1))})
		total := 0
		for {
			_, p, err := d.next()
			if err != nil {
				break
			}
			if len(p) > maxFrame || cap(d.buf) > maxFrame {
				t.Fatalf("holds %d bytes", cap(d.buf))
			}
			total += headerSize + len(p)
		}
		if total > len(stream) || len(d.rest()) > len(stream)-total {
			t.Errorf("%d bytes of frames out of %d", total, len(stream))
		}
	})
}

// choppy returns its bytes in pieces of any size.
type choppy struct {
	b []byte
	r *rand.Rand
}

func (c *choppy) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := 1 + c.r.IntN(min(len(p), len(c.b)))
	copy(p, c.b[:n])
	c.b = c.b[n:]
	return n, nil
}

func TestBinaries(t *testing.T) {
	for arch, machine := range map[string]uint16{"amd64": 62, "arm64": 183, "x86_64": 62, "aarch64": 183} {
		b, err := Binary(arch)
		if err != nil || !bytes.HasPrefix(b, []byte("\x7fELF")) || binary.LittleEndian.Uint16(b[18:]) != machine {
			t.Errorf("%s: %v", arch, err)
		}
		if len(b) > 40<<10 {
			t.Errorf("%s: %d bytes", arch, len(b))
		}
		if d, err := Digest(arch); err != nil || len(d) != 64 {
			t.Errorf("%s: %q %v", arch, d, err)
		}
	}
	for _, arch := range []string{"", "386", "arm", "riscv64", "s390x"} {
		_, err := Binary(arch)
		_, err2 := Digest(arch)
		var ue *UnsupportedPlatformError
		if !errors.As(err, &ue) || !errors.As(err2, &ue) || ue.Arch != arch {
			t.Errorf("%s: %v", arch, err)
		}
	}
}
