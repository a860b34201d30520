//go:build unix

package testenv

import (
	"os/exec"
	"syscall"
)

// dropPrivileges makes a command that root starts run as an ordinary user without groups.
func dropPrivileges(command *exec.Cmd) {
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Credential = &syscall.Credential{Uid: UnprivilegedID, Gid: UnprivilegedID, Groups: []uint32{}}
}
