package sandboxcore

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"sync"
	"unicode/utf8"
)

// DefaultMaxOutputBytes is how much of each stream is kept when nothing else is asked for.
const DefaultMaxOutputBytes = 64 << 10

// MaxOutputBytes is the most that can be asked for per stream: state is read and written whole.
const MaxOutputBytes = 4 << 20

// Capture keeps the head and the tail of a stream within a limit, and counts and hashes all of it. It is safe for
// concurrent use. Put a Redactor before it: it stores what it is given.
type Capture struct {
	mu    sync.Mutex
	limit int
	head  []byte
	tail  []byte // ring once full
	at    int    // next place in the ring
	total int64
	sum   hash.Hash
}

// NewCapture makes a capture that keeps at most limit bytes, half of them from the end.
func NewCapture(limit int) *Capture {
	return &Capture{limit: max(limit, 2), sum: sha256.New()}
}

// Write takes the next bytes of the stream. It never fails.
func (c *Capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(p)
	c.total += int64(n)
	c.sum.Write(p)
	headSize := c.limit - c.limit/2
	if room := headSize - len(c.head); room > 0 {
		take := min(room, len(p))
		c.head = append(c.head, p[:take]...)
		p = p[take:]
	}
	ring := c.limit / 2
	if len(p) >= ring {
		c.tail = append(c.tail[:0], p[len(p)-ring:]...)
		c.at = 0
		return n, nil
	}
	for len(p) > 0 {
		if len(c.tail) < ring {
			take := min(ring-len(c.tail), len(p))
			c.tail = append(c.tail, p[:take]...)
			p = p[take:]
			continue
		}
		k := copy(c.tail[c.at:], p)
		c.at = (c.at + k) % ring
		p = p[k:]
	}
	return n, nil
}

// Stream is what was kept of one output stream.
type Stream struct {
	// Text is cleaned: valid UTF-8 without control characters; where bytes were left out it says how many.
	Text string
	// Raw are the kept bytes, head and tail joined; the whole stream when not Truncated.
	Raw []byte
	// Bytes and SHA256 (lower-case hex) are of the whole stream after redaction.
	Bytes     int64
	SHA256    string
	Truncated bool
}

// Stream gives what was kept so far.
func (c *Capture) Stream() Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	tail := append(append([]byte{}, c.tail[c.at:]...), c.tail[:c.at]...)
	s := Stream{
		Raw:    append(append([]byte{}, c.head...), tail...),
		Bytes:  c.total,
		SHA256: hex.EncodeToString(c.sum.Sum(nil)),
	}
	left := c.total - int64(len(c.head)) - int64(len(tail))
	if left <= 0 {
		s.Text = Clean(string(s.Raw))
		return s
	}
	s.Truncated = true
	s.Text = fmt.Sprintf("%s\n… %d bytes left out …\n%s", Clean(trimRight(c.head)), left, Clean(trimLeft(tail)))
	return s
}

// without says of a stream that lost more bytes at its end never arrived: a backend with a limit left them where they were.
func (s Stream) without(lost int64) Stream {
	if lost > 0 {
		s.Truncated = true
		s.Text += fmt.Sprintf("\n… %d more bytes were not brought back …", lost)
	}
	return s
}

// Tail gives the cleaned last n bytes or so that were kept, for a diagnostic.
func (s Stream) Tail(n int) string {
	raw := s.Raw
	if len(raw) <= n {
		return Clean(string(raw))
	}
	return "… " + Clean(trimLeft(raw[len(raw)-n:]))
}

// trimRight drops a UTF-8 sequence that was cut at the end.
func trimRight(b []byte) string {
	for i := 1; i <= utf8.UTFMax && i <= len(b); i++ {
		if utf8.RuneStart(b[len(b)-i]) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return string(b[:len(b)-i])
			}
			break
		}
	}
	return string(b)
}

// trimLeft drops the rest of a UTF-8 sequence that was cut at the start.
func trimLeft(b []byte) string {
	for i := 0; i < utf8.UTFMax && i < len(b); i++ {
		if utf8.RuneStart(b[i]) {
			return string(b[i:])
		}
	}
	return string(b)
}
