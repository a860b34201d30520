package docker

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Frames of an attached exec without a terminal: one byte stream, three zero bytes, four bytes length (big endian).
const (
	demuxHeader = 8
	demuxStdout = 1
	demuxStderr = 2
	// The engine also sends its own errors on this stream number.
	demuxSystem = 3
)

// demux gives the standard output of an exec. What the helper's standard error or the engine itself says comes in the
// same order: the reader of helper frames takes it for what it is, text instead of frames.
type demux struct {
	r    io.Reader
	left uint32 // of the current frame
}

func newDemux(r io.Reader) *demux { return &demux{r: r} }

func (d *demux) Read(p []byte) (int, error) {
	for d.left == 0 {
		var h [demuxHeader]byte
		if _, err := io.ReadFull(d.r, h[:]); err != nil {
			return 0, err
		}
		if h[0] > demuxSystem || h[1] != 0 || h[2] != 0 || h[3] != 0 {
			return 0, fmt.Errorf("the engine sent no stream frame but %q", h)
		}
		d.left = binary.BigEndian.Uint32(h[4:])
	}
	n, err := d.r.Read(p[:min(len(p), int(d.left))])
	d.left -= uint32(n)
	return n, err
}
