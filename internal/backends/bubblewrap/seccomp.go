//go:build linux && (amd64 || arm64)

package bubblewrap

import (
	"bytes"
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// The system call filter closes what namespaces and dropped capabilities leave open: the kernel's keyrings, which no
// namespace separates from the provider's; sockets of families that no network namespace confines, such as AF_VSOCK to
// the hypervisor; typing into a terminal; and interfaces that have nothing to do with running code and a history of
// holes. io_uring is among them because it does the work of system calls behind the filter's back.

// deniedCalls answer EPERM.
var deniedCalls = []uint32{
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
	unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
	unix.SYS_MOUNT_SETATTR,
	unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_SYSLOG,
	unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_VHANGUP,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
	unix.SYS_NFSSERVCTL, unix.SYS_FANOTIFY_INIT,
}

// deniedIoctls answer EPERM: typing into a terminal (TIOCSTI, and TIOCLINUX by way of its selection).
var deniedIoctls = []uint32{unix.TIOCSTI, 0x541C}

// filterOptions are what depends on the profile.
type filterOptions struct {
	// unixSockets lets AF_UNIX sockets be made. Only a sandbox that shares neither the network namespace (abstract
	// sockets) nor a directory (sockets in it) with the host may have them; pairs are harmless and always allowed.
	unixSockets bool
}

// Offsets into struct seccomp_data, little endian.
const (
	dataNr   = 0
	dataArch = 4
	dataArg0 = 16
	dataArg1 = 24
)

type bpf []unix.SockFilter

func (p *bpf) load(offset uint32) {
	*p = append(*p, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset})
}

func (p *bpf) and(mask uint32) {
	*p = append(*p, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask})
}

func (p *bpf) ret(value uint32) {
	*p = append(*p, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value})
}

// ifEqual runs then only if the loaded value is value. A block must end in a return, or leave the accumulator as the
// code after it expects it.
func (p *bpf) ifEqual(value uint32, then func()) { p.jump(unix.BPF_JEQ, value, true, then) }

// unlessEqual runs then only if the loaded value is another.
func (p *bpf) unlessEqual(value uint32, then func()) { p.jump(unix.BPF_JEQ, value, false, then) }

// ifAtLeast runs then only if the loaded value is value or more.
func (p *bpf) ifAtLeast(value uint32, then func()) { p.jump(unix.BPF_JGE, value, true, then) }

func (p *bpf) jump(op uint16, value uint32, when bool, then func()) {
	at := len(*p)
	*p = append(*p, unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: value})
	then()
	length := len(*p) - at - 1
	if length > 255 {
		panic("a block of the system call filter is too long")
	}
	if when {
		(*p)[at].Jf = uint8(length)
	} else {
		(*p)[at].Jt = uint8(length)
	}
}

const (
	retAllow = unix.SECCOMP_RET_ALLOW
	retErrno = unix.SECCOMP_RET_ERRNO
)

// filterProgram is the filter in the form that bwrap reads.
func filterProgram(opts filterOptions) []byte {
	var p bpf
	deny := func() { p.ret(retErrno | uint32(unix.EPERM)) }
	noFamily := func() { p.ret(retErrno | uint32(unix.EAFNOSUPPORT)) }

	// Another instruction set (32-bit programs, x32) has other numbers: none of its calls exists here.
	p.load(dataArch)
	p.unlessEqual(auditArch, func() { p.ret(retErrno | uint32(unix.ENOSYS)) })
	p.load(dataNr)
	if x32Bit != 0 {
		p.ifAtLeast(x32Bit, func() { p.ret(retErrno | uint32(unix.ENOSYS)) })
	}
	p.ifEqual(unix.SYS_SOCKET, func() {
		p.load(dataArg0)
		for _, family := range []uint32{unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK} {
			p.ifEqual(family, func() { p.ret(retAllow) })
		}
		if opts.unixSockets {
			p.ifEqual(unix.AF_UNIX, func() { p.ret(retAllow) })
		}
		noFamily()
	})
	p.ifEqual(unix.SYS_SOCKETPAIR, func() {
		p.load(dataArg0)
		p.unlessEqual(unix.AF_UNIX, noFamily)
		if !opts.unixSockets {
			// One half of a datagram pair can be connected again, to any address.
			p.load(dataArg1)
			p.and(0xf)
			p.ifEqual(unix.SOCK_DGRAM, noFamily)
			p.ifEqual(unix.SOCK_RAW, noFamily) // the same for AF_UNIX
		}
		p.ret(retAllow)
	})
	p.ifEqual(unix.SYS_IOCTL, func() {
		p.load(dataArg1) // the kernel looks at the lower half only
		for _, request := range deniedIoctls {
			p.ifEqual(request, deny)
		}
		p.ret(retAllow)
	})
	for _, call := range deniedCalls {
		p.ifEqual(call, deny)
	}
	p.ret(retAllow)

	var b bytes.Buffer
	if err := binary.Write(&b, binary.NativeEndian, []unix.SockFilter(p)); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// filterFile is the filter as a descriptor for --seccomp.
func filterFile(opts filterOptions) (*os.File, error) { return memoryFile(filterProgram(opts)) }
