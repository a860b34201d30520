//go:build linux

package bubblewrap

import "golang.org/x/sys/unix"

const (
	helperArch = "arm64"
	auditArch  = unix.AUDIT_ARCH_AARCH64
	x32Bit     = 0
)
