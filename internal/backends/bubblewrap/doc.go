// Package bubblewrap runs code on this machine inside Linux namespaces, by means of the program bwrap (isolation
// os_policy).
//
// A sandbox is a directory (package workspace). Every run is one bwrap with user, pid, ipc, uts, cgroup and, unless
// egress is allowed, network namespaces, without capabilities, without nested user namespaces, behind a system call
// filter, in a session of its own. PID 1 inside is the run helper, so that the end of a run is the end of its pid
// namespace: nothing can outlive it. What code sees is a fixed minimal view: /usr read-only, a stub /etc, private /tmp
// and /dev, its /workspace, and the paths of fs_allow_read and fs_allow_write; never a home directory, /run or a socket
// of the host.
//
// When the provider is root, bwrap itself is started under a user that only this sandbox has: what a flaw in the
// namespaces would lead to is then an account that owns nothing but the sandbox's own files.
//
// A control group per sandbox limits memory, cpu and the number of processes where the machine lets us make one.
package bubblewrap
