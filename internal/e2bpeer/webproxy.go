//go:build linux

package e2bpeer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// proxy takes connections to web ports and lets pass those whose Host (80) or server name (443) the sandbox may reach. A
// connection that it does not let pass has been accepted all the same: to the sandbox it looks open for a moment, as on E2B.
func (w *World) proxy(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		w.work.Go(func() {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			tc, ok := c.(*net.TCPConn)
			if !ok {
				return
			}
			to, port, err := originalDestination(tc)
			if err != nil {
				return
			}
			var name string
			var head []byte
			if port == 443 {
				name, head = serverName(c)
			} else {
				name, head = hostHeader(c)
			}
			if !w.mayReach(c.RemoteAddr(), name) {
				return
			}
			var up net.Conn
			err = enter(w.holder.Process.Pid, []space{{"net", unix.CLONE_NEWNET}}, func() (err error) {
				up, err = net.DialTCP("tcp4", nil, &net.TCPAddr{IP: to, Port: port})
				return err
			})
			if err != nil {
				return
			}
			defer up.Close()
			_ = up.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := up.Write(head); err != nil {
				return
			}
			go func() { _, _ = io.Copy(up, c) }()
			_, _ = io.Copy(c, up)
		})
	}
}

func (w *World) mayReach(from net.Addr, name string) bool {
	host, _, _ := net.SplitHostPort(from.String())
	w.mu.Lock()
	b := w.boxes[host]
	w.mu.Unlock()
	if b == nil || name == "" {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.names {
		if suffix, wild := strings.CutPrefix(n, "*"); n == name || (wild && strings.HasSuffix(name, suffix)) {
			return true
		}
	}
	return false
}

// originalDestination is where a redirected connection wanted to go (SO_ORIGINAL_DST).
func originalDestination(c *net.TCPConn) (net.IP, int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	var mreq *unix.IPv6Mreq // large enough for a sockaddr_in
	var inner error
	if err := raw.Control(func(fd uintptr) {
		const soOriginalDst = 80
		mreq, inner = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, soOriginalDst)
	}); err != nil || inner != nil {
		return nil, 0, errors.Join(err, inner)
	}
	a := mreq.Multiaddr
	return net.IPv4(a[4], a[5], a[6], a[7]), int(binary.BigEndian.Uint16(a[2:4])), nil
}

func hostHeader(c io.Reader) (string, []byte) {
	var head bytes.Buffer
	r, err := http.ReadRequest(bufio.NewReaderSize(io.TeeReader(c, &head), 4096))
	if err != nil {
		return "", nil
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	return strings.ToLower(host), head.Bytes()
}

var errSeen = errors.New("seen")

func serverName(c net.Conn) (string, []byte) {
	var head bytes.Buffer
	name := ""
	peek := tls.Server(reading{c, io.TeeReader(c, &head)}, &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			name = strings.ToLower(h.ServerName)
			return nil, errSeen
		},
	})
	_ = peek.HandshakeContext(context.Background())
	return name, head.Bytes()
}

// reading is a connection that is only read.
type reading struct {
	net.Conn
	r io.Reader
}

func (r reading) Read(p []byte) (int, error)  { return r.r.Read(p) }
func (r reading) Write(p []byte) (int, error) { return len(p), nil }
