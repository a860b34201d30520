//go:build !unix

package testenv

import "os/exec"

// dropPrivileges does nothing where there are no user ids; the parts that need it say so.
func dropPrivileges(*exec.Cmd) {}
