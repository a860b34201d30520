package runhelper

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

const (
	protocolVersion = 1
	maxFrame        = 64 << 10 // largest payload in either direction, A and E excepted
	maxString       = 131071   // A and E
	stdinWindow     = 64 << 10 // stdin bytes that may be unacknowledged
	headerSize      = 5
)

// appendFrame appends one frame to b.
func appendFrame(b []byte, typ byte, payload ...[]byte) []byte {
	n := 0
	for _, p := range payload {
		n += len(p)
	}
	b = append(b, typ)
	b = binary.LittleEndian.AppendUint32(b, uint32(n))
	for _, p := range payload {
		b = append(b, p...)
	}
	return b
}

func u32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
func u64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

// payloadLimits says how long the payload of a frame from the helper may be. Types that are not listed do not
// exist.
var payloadLimits = map[byte]struct{ min, max int }{
	'H': {8, 64},
	'S': {8, 8},
	'N': {8, 256},
	'O': {1, maxFrame},
	'R': {1, maxFrame},
	'C': {4, 4},
	'X': {28, 64},
	'M': {28, 64},
	'Q': {4, 256},
}

// decoder reads frames from an untrusted stream. It never holds more than one.
type decoder struct {
	r   *bufio.Reader
	buf []byte
}

func newDecoder(r io.Reader) *decoder {
	return &decoder{r: bufio.NewReaderSize(r, maxFrame+headerSize), buf: make([]byte, 0, 256)}
}

// next returns the next frame. The payload is valid until the next call. io.EOF comes only at a frame border.
func (d *decoder) next() (typ byte, payload []byte, err error) {
	h, err := d.r.Peek(headerSize) // taken only when it is a header, so that rest finds it otherwise
	if err != nil {
		if err == io.EOF && len(h) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(h[1:])
	limit, known := payloadLimits[h[0]]
	if !known {
		return 0, nil, &ProtocolError{Reason: fmt.Sprintf("unknown frame type %#02x", h[0])}
	}
	if uint64(n) < uint64(limit.min) || uint64(n) > uint64(limit.max) {
		return 0, nil, &ProtocolError{Reason: fmt.Sprintf("frame %q with %d bytes", h[0], n)}
	}
	typ = h[0]
	if _, err := d.r.Discard(headerSize); err != nil {
		return 0, nil, err
	}
	if cap(d.buf) < int(n) {
		d.buf = make([]byte, maxFrame)
	}
	d.buf = d.buf[:n]
	if _, err := io.ReadFull(d.r, d.buf); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return typ, d.buf, nil
}

// rest returns what was received but not taken as frames: the text of an engine that could not start the
// helper, for example.
func (d *decoder) rest() []byte {
	b, _ := d.r.Peek(min(d.r.Buffered(), 2048))
	return b
}

// hello checks an 'H' payload.
func checkHello(payload []byte) error {
	if v := binary.LittleEndian.Uint32(payload); v != protocolVersion {
		return &ProtocolError{Reason: fmt.Sprintf("version %d, this client speaks %d", v, protocolVersion)}
	}
	return nil
}

// printable keeps the text of a hostile helper harmless: the stages and reasons that we send are plain words.
func printable(b []byte) string {
	out := make([]byte, 0, len(b))
	for _, c := range b {
		if c < ' ' || c > '~' {
			c = '?'
		}
		out = append(out, c)
	}
	return string(out)
}
