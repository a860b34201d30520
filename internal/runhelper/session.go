package runhelper

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Times that bound every wait. Variables only so that tests need not wait for them.
var (
	helloTimeout = 60 * time.Second  // from the start of a call to the helper's hello
	startTimeout = 120 * time.Second // from hello to "started" (the code travels in between)
	fileTimeout  = 120 * time.Second // without any progress of a file operation
	// margin is what the helper may take beyond timeout and grace: 5 s of killing, 5 s for the client to take
	// the last output, and the way of the last frame.
	margin      = 15 * time.Second
	brokenWait  = 10 * time.Second // for a last word when the control stream refuses writes
	closeWait   = 5 * time.Second  // for a connection's Close to unblock its Read and Write
	inUserGrace = 1 * time.Second  // for a caller's Write that has not returned
)

// Conn is one started helper as its client sees it. Every function of this package that takes a Conn uses it
// up: it is closed when the call returns.
type Conn struct {
	Control io.WriteCloser // the helper's stdin
	Frames  io.Reader      // the helper's stdout, nothing else mixed in
	// Close ends the connection and makes blocked calls of Control.Write and Frames.Read return. It is called
	// exactly once. It may be nil if closing Control does all that.
	Close func() error

	detach func()        // the helper stays behind on purpose: Close must not wait for it
	notes  func() string // what the starting process wrote to its stderr
}

func (c *Conn) close() error {
	if c.Close == nil {
		return c.Control.Close()
	}
	return c.Close()
}

// event is what the reader tells the main loop: a frame that is not output, or why there are no more.
type event struct {
	typ     byte
	payload []byte
	err     error // of the stream
	outErr  error // of the caller's writer; the stream goes on
}

// session owns the goroutines of one call.
type session struct {
	conn   *Conn
	events chan event
	ctl    chan []byte // frames to be written; unbuffered, so what was taken is being written
	ctlErr chan error
	stop   chan struct{}

	readerDone, writerDone chan struct{}
	inWrite                atomic.Bool // the reader is inside a writer of the caller
	stdin                  stdinPump
	shutOnce               sync.Once
}

func newSession(conn *Conn) *session {
	s := &session{
		conn:       conn,
		events:     make(chan event),
		ctl:        make(chan []byte),
		ctlErr:     make(chan error, 1),
		stop:       make(chan struct{}),
		readerDone: make(chan struct{}),
		writerDone: make(chan struct{}),
	}
	go s.writeLoop()
	return s
}

func (s *session) writeLoop() {
	defer close(s.writerDone)
	for {
		select {
		case <-s.stop:
			return
		case b := <-s.ctl:
			if _, err := s.conn.Control.Write(b); err != nil {
				s.ctlErr <- err
				return
			}
		}
	}
}

// startReader reads frames until the stream ends. Output goes to the writers, everything else to s.events.
func (s *session) startReader(stdout, stderr io.Writer) {
	go func() {
		defer close(s.readerDone)
		d := newDecoder(s.conn.Frames)
		hello, open := false, false
		for {
			typ, payload, err := d.next()
			if err == nil && !hello {
				if typ != 'H' {
					err = &ProtocolError{Reason: "no hello"}
				}
				hello = true
			}
			if err != nil {
				s.emit(event{err: err, payload: append([]byte(nil), d.rest()...)})
				return
			}
			var w *io.Writer
			switch typ {
			case 'O':
				w = &stdout
			case 'R':
				w = &stderr
			default:
				open = open || typ == 'S' || typ == 'M'
				if !s.emit(event{typ: typ, payload: append([]byte(nil), payload...)}) {
					return
				}
				continue
			}
			if !open {
				s.emit(event{err: &ProtocolError{Reason: "output before the start"}})
				return
			}
			if *w == nil {
				continue
			}
			s.inWrite.Store(true)
			n, err := (*w).Write(payload)
			s.inWrite.Store(false)
			if err == nil && n != len(payload) {
				err = io.ErrShortWrite
			}
			if err != nil {
				*w = nil // no further call: the rest is thrown away until the run has ended
				if !s.emit(event{outErr: err}) {
					return
				}
			}
		}
	}()
}

func (s *session) emit(e event) bool {
	select {
	case s.events <- e:
		return true
	case <-s.stop:
		return false
	}
}

// shut closes the connection and waits for the goroutines. One that is inside the caller's own Write or Read
// cannot be ended from outside; it ends as soon as that call returns.
func (s *session) shut() {
	s.shutOnce.Do(func() {
		close(s.stop)
		_ = s.conn.close() // the outcome is known already
		limit := time.NewTimer(closeWait)
		defer limit.Stop()
		wait := func(done <-chan struct{}) {
			select {
			case <-done:
			case <-limit.C:
				limit.Reset(0)
			}
		}
		wait(s.writerDone)
		if s.inWrite.Load() {
			limit.Reset(inUserGrace)
		}
		wait(s.readerDone)
		if s.stdin.done != nil && !s.stdin.inRead.Load() {
			wait(s.stdin.done)
		}
	})
}

// stdinPump sends the caller's stdin, never more than the helper gave credit for. So the helper can always
// read its control stream to the end, and a kill is never stuck behind data that nobody consumes.
type stdinPump struct {
	done   chan struct{}
	err    chan error
	inRead atomic.Bool
	credit atomic.Int64
	more   chan struct{}
}

func (s *session) startStdin(r io.Reader) {
	p := &s.stdin
	p.done = make(chan struct{})
	p.err = make(chan error, 1)
	p.more = make(chan struct{}, 1)
	p.credit.Store(stdinWindow)
	go func() {
		defer close(p.done)
		buf := make([]byte, 32<<10)
		for {
			n := min(p.credit.Load(), int64(len(buf)))
			if n == 0 {
				select {
				case <-p.more:
					continue
				case <-s.stop:
					return
				}
			}
			p.inRead.Store(true)
			got, err := r.Read(buf[:n])
			p.inRead.Store(false)
			if got > 0 {
				p.credit.Add(-int64(got))
				if !s.write(appendFrame(nil, 'I', buf[:got])) {
					return
				}
			}
			if err == io.EOF {
				s.write(appendFrame(nil, 'Z'))
				return
			}
			if err != nil {
				p.err <- err
				return
			}
			select {
			case <-s.stop:
				return
			default:
			}
		}
	}()
}

// grant adds credit. False: the helper acknowledged more than it got.
func (p *stdinPump) grant(n uint32) bool {
	if p.done == nil || p.credit.Add(int64(n)) > stdinWindow {
		return false
	}
	select {
	case p.more <- struct{}{}:
	default:
	}
	return true
}

// write hands a frame to the writer. False: the session is over or the stream refused a write before.
func (s *session) write(b []byte) bool {
	select {
	case s.ctl <- b:
		return true
	case <-s.stop:
		return false
	case <-s.writerDone:
		return false
	}
}
