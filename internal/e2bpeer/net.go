//go:build linux

package e2bpeer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// World is the internet of a peer's sandboxes: a network namespace with addresses, web servers on them and a resolver. It
// is the router, so that its rules decide what a sandbox reaches, whatever a sandbox does. Nothing of it is connected to
// the network of this machine.
type World struct {
	holder  *exec.Cmd
	leash   io.WriteCloser
	names   map[string]string
	closers []io.Closer
	work    sync.WaitGroup

	mu    sync.Mutex
	boxes map[string]*boxNet // by the sandbox's address
	next  int
}

// resolverAddress is where sandboxes ask for names; E2B allows it by itself where a list has domains.
const resolverAddress = "8.8.8.8"

// proxyPort is where connections to web ports land that only a name can allow.
const proxyPort = 15080

// alwaysBlocked are ranges that no sandbox reaches.
const alwaysBlocked = "{ 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16 }"

// NewWorld makes a world in which each name has an address with a web server on port 80 and 443/tcp, which answers with the
// address that was reached. Needs root, ip and nft.
func NewWorld(ctx context.Context, names map[string]string) (w *World, err error) {
	w = &World{names: names, boxes: map[string]*boxNet{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	w.holder = exec.CommandContext(ctx, "/bin/sh", "-c", "ip link set lo up && echo ready && while read -r line; do :; done")
	w.holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	w.holder.Env = []string{"PATH=" + defaultPath}
	out, err := w.holder.StdoutPipe()
	if err != nil {
		return w, err
	}
	if w.leash, err = w.holder.StdinPipe(); err != nil {
		return w, err
	}
	if err := w.holder.Start(); err != nil {
		return w, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		return w, fmt.Errorf("the world did not come up: %q, %w", line, err)
	}
	addresses := []string{resolverAddress}
	for _, a := range names {
		addresses = append(addresses, a)
	}
	slices.Sort(addresses)
	for _, a := range slices.Compact(addresses) {
		if err := w.command(ctx, "", "ip", "addr", "add", a+"/32", "dev", "lo"); err != nil {
			return w, err
		}
	}
	if err := w.command(ctx, `table inet egress {
	chain input { type filter hook input priority 0; policy accept; }
	chain web { type nat hook prerouting priority -100; policy accept; }
}
`, "nft", "-f", "-"); err != nil {
		return w, err
	}
	return w, w.inhabit(addresses)
}

// inhabit starts the servers. A socket belongs to the namespace that it was made in, whoever reads it afterwards.
func (w *World) inhabit(addresses []string) error {
	return enter(w.holder.Process.Pid, []space{{"net", unix.CLONE_NEWNET}}, func() error {
		for _, a := range addresses {
			for _, port := range []string{"80", "443"} {
				if a == resolverAddress {
					continue
				}
				l, err := net.Listen("tcp4", net.JoinHostPort(a, port))
				if err != nil {
					return err
				}
				s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { // #nosec G112 -- a test's server
					_, _ = io.WriteString(rw, "reached "+l.Addr().(*net.TCPAddr).IP.String()) //nolint:forcetypeassert // as it was made
				})}
				w.closers = append(w.closers, s)
				w.work.Go(func() { _ = s.Serve(l) })
			}
		}
		l, err := net.Listen("tcp4", fmt.Sprintf(":%d", proxyPort))
		if err != nil {
			return err
		}
		w.closers = append(w.closers, l)
		w.work.Go(func() { w.proxy(l) })
		dns, err := net.ListenPacket("udp4", resolverAddress+":53")
		if err != nil {
			return err
		}
		w.closers = append(w.closers, dns)
		w.work.Go(func() { w.resolve(dns) })
		return nil
	})
}

// Close ends the world.
func (w *World) Close() error {
	for _, c := range w.closers {
		_ = c.Close()
	}
	if w.holder != nil && w.holder.Process != nil {
		_ = w.leash.Close()
		_ = w.holder.Process.Kill()
		_ = w.holder.Wait()
	}
	w.work.Wait()
	return nil
}

// command runs a program in the world.
func (w *World) command(ctx context.Context, stdin string, args ...string) error {
	return inNet(ctx, w.holder.Process.Pid, stdin, args...)
}

func inNet(ctx context.Context, pid int, stdin string, args ...string) error {
	c := exec.CommandContext(ctx, "nsenter", append([]string{"-t", fmt.Sprint(pid), "-n", "--"}, args...)...) // #nosec G204 -- our own
	c.Stdin = strings.NewReader(stdin)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// boxNet is the link of one sandbox into the world.
type boxNet struct {
	world *World
	dev   string
	mu    sync.Mutex
	names []string // that it may reach
}

// joinWorld connects a sandbox and puts its rules in force.
func (b *box) joinWorld() error {
	w := b.p.opt.World
	if w == nil {
		return nil
	}
	w.mu.Lock()
	w.next++
	n := w.next
	w.mu.Unlock()
	b.net = &boxNet{world: w, dev: fmt.Sprintf("w%d", n)}
	outside, inside := fmt.Sprintf("10.77.%d.1", n), fmt.Sprintf("10.77.%d.2", n)
	w.mu.Lock()
	w.boxes[inside] = b.net
	w.mu.Unlock()
	pid := b.holder.Process.Pid
	for _, step := range []struct {
		pid  int
		args []string
	}{
		{w.holder.Process.Pid, []string{"ip", "link", "add", b.net.dev, "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(pid)}},
		{w.holder.Process.Pid, []string{"ip", "addr", "add", outside + "/30", "dev", b.net.dev}},
		{w.holder.Process.Pid, []string{"ip", "link", "set", b.net.dev, "up"}},
		{pid, []string{"ip", "addr", "add", inside + "/30", "dev", "eth0"}},
		{pid, []string{"ip", "link", "set", "eth0", "up"}},
		{pid, []string{"ip", "route", "add", "default", "via", outside}},
		{w.holder.Process.Pid, []string{"nft", "add chain inet egress " + b.net.dev}},
		{w.holder.Process.Pid, []string{"nft", "add chain inet egress " + b.net.dev + "web"}},
		{w.holder.Process.Pid, []string{"nft", "add rule inet egress input iifname " + b.net.dev + " jump " + b.net.dev}},
		{w.holder.Process.Pid, []string{"nft", "add rule inet egress web iifname " + b.net.dev + " jump " + b.net.dev + "web"}},
	} {
		if err := inNet(b.life, step.pid, "", step.args...); err != nil {
			return err
		}
	}
	return b.applyEgress(b.life)
}

// leaveWorld: the link goes with the sandbox's namespace.
func (b *box) leaveWorld() {
	if b.net == nil {
		return
	}
	b.net.world.mu.Lock()
	defer b.net.world.mu.Unlock()
	for a, n := range b.net.world.boxes {
		if n == b.net {
			delete(b.net.world.boxes, a)
		}
	}
}

// applyEgress turns the sandbox's lists into rules: what is allowed passes, then what is denied does not, and the rest
// passes. Names are looked at by the proxy, on the ports of the web only.
func (b *box) applyEgress(ctx context.Context) error {
	if b.net == nil {
		return nil
	}
	b.p.mu.Lock()
	var lists networkBody
	if b.network != nil {
		lists = *b.network
	}
	shut := b.internet != nil && !*b.internet
	b.p.mu.Unlock()
	deny := slices.Clone(lists.DenyOut)
	if shut {
		deny = append(deny, "0.0.0.0/0")
	}
	var allow, names []string
	for _, a := range lists.AllowOut {
		if isAddress(a) {
			allow = append(allow, a)
		} else {
			names = append(names, strings.ToLower(a))
		}
	}
	if len(names) > 0 {
		allow = append(allow, resolverAddress)
	}
	b.net.mu.Lock()
	b.net.names = names
	b.net.mu.Unlock()
	dev := b.net.dev
	var rules strings.Builder
	fmt.Fprintf(&rules, "flush chain inet egress %s\nflush chain inet egress %sweb\n", dev, dev)
	rule := func(chain, format string, args ...any) {
		fmt.Fprintf(&rules, "add rule inet egress %s %s\n", chain, fmt.Sprintf(format, args...))
	}
	rule(dev, "tcp dport %d ct status dnat accept", proxyPort)
	rule(dev, "ip daddr %s drop", alwaysBlocked)
	for _, a := range allow {
		rule(dev, "ip daddr %s accept", a)
		rule(dev+"web", "ip daddr %s return", a)
	}
	for _, d := range deny {
		rule(dev, "ip daddr %s reject", d)
	}
	if len(names) > 0 {
		rule(dev+"web", "tcp dport { 80, 443 } redirect to :%d", proxyPort)
	}
	return b.net.world.command(ctx, rules.String(), "nft", "-f", "-")
}

// resolvConf is the file that sandboxes of a world have as /etc/resolv.conf.
func (b *box) resolvConf() error {
	if b.p.opt.World == nil {
		return nil
	}
	return os.WriteFile(filepath.Join(b.p.boxDir(b.id), "resolv.conf"), []byte("nameserver "+resolverAddress+"\noptions timeout:1 attempts:1\n"), 0o644) // #nosec G306 -- everybody reads it
}

func (w *World) resolve(conn net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
		q := m.Questions[0]
		address, known := w.names[strings.TrimSuffix(strings.ToLower(q.Name.String()), ".")]
		switch {
		case !known:
			m.RCode = dnsmessage.RCodeNameError
		case q.Type == dnsmessage.TypeA:
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1},
				Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(address).To4())},
			}}
		}
		if out, err := m.Pack(); err == nil {
			_, _ = conn.WriteTo(out, from)
		}
	}
}

type space struct {
	name string
	flag int
}

// enter calls f on a thread that is in namespaces of a process; what f starts or opens is born there.
func enter(pid int, spaces []space, f func() error) error {
	result := make(chan error, 1)
	go func() {
		// Never unlocked: the thread is of no use to anybody else afterwards and ends with this goroutine.
		runtime.LockOSThread()
		result <- func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			fds := make([]int, len(spaces))
			for i, s := range spaces { // all before the first switch: afterwards /proc is another
				fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, s.name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd) //nolint:errcheck // only a name was read
				fds[i] = fd
			}
			for i, s := range spaces {
				if err := unix.Setns(fds[i], s.flag); err != nil {
					return fmt.Errorf("enter namespace %s: %w", s.name, err)
				}
			}
			return f()
		}()
	}()
	return <-result
}
