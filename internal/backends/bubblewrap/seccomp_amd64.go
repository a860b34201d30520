//go:build linux

package bubblewrap

import "golang.org/x/sys/unix"

const (
	helperArch = "amd64"
	auditArch  = unix.AUDIT_ARCH_X86_64
	// x32Bit marks the numbers of the x32 instruction set, which has the architecture of the 64-bit one.
	x32Bit = 0x40000000
)
