// Package runhelper carries akrun, a small static Linux program that starts, watches and kills runs inside
// sandboxes, and the client that talks to it.
//
// A backend brings the program into the sandbox (a volume, an upload, [Extract] for this machine), starts it
// with whatever the place offers, wraps the two byte streams in a [Conn] and calls [Run], [Upload],
// [Download], [Stat], [Remove] or [MkdirAll]. One process of akrun serves exactly one such call.
//
// # Modes
//
//   - akrun init [--lifetime=SECONDS]: PID 1 of a container. Keeps it alive, reaps, and kills every child that
//     it gets, which can only be an orphan whose supervisor died. Ends with SIGTERM or SIGINT, or when the
//     lifetime is over.
//   - akrun pod: the same as init, but ends with 143 when it is told to. The node of a cluster tells why it ended
//     a pod (evicted, expired) only when the pod's first process did not end with 0.
//   - akrun run: supervises one run, or does one file operation. Also as PID 1 of a pid namespace.
//   - akrun guard: the same with a second process that only watches the first. For hosts where the run has no
//     pid namespace of its own: code that kills its supervisor does not get away.
//   - akrun run FILE: the same as run, with the variables of FILE (KEY=VALUE, each ended by a NUL, less than
//     1 MiB) over those that it was started with.
//   - akrun dial closed|open HOST PORT MILLISECONDS: writes the line "dialing", and the line "ok" and ends with 0 as
//     soon as HOST (an address as 8 or 32 hexadecimal digits) is closed: every attempt to connect failed for two seconds, at least
//     four of them; or open: two attempts in a row succeeded. With 1 when the time is over first, with 4 when
//     attempts fail for a reason that is not the network's.
//   - akrun listen PORT: takes and closes connections until SIGTERM or SIGINT.
//   - akrun gate FILE: PID 1 of a container. Ends with 0 as soon as FILE exists and no other process is left, and
//     with 143 when it is told to end.
//
// # Protocol, version 1
//
// Both directions carry frames: one byte type, four bytes length (little endian), payload. Numbers are little
// endian; u32 unless said otherwise. No payload is larger than 64 KiB, except A and E (131,071 bytes, the
// kernel's own limit for one string).
//
// To the helper, for a run, in this order where it matters:
//
//	A  one element of argv, the first one is the program
//	L  another name for the program, tried when those before were not found
//	E  one KEY=VALUE
//	D  working directory
//	B  chunk of the code, which the program finds as descriptor 3
//	P  timeout in ms (u64, 0: none), grace in ms, flags (1 clean environment, 2 keep background processes,
//	   4 stdin open; otherwise it is /dev/null)
//	G  go
//	I  data for stdin, never more than 64 KiB that C has not acknowledged
//	Z  end of stdin
//	K  kill: TERM, and after the grace time KILL for the whole tree; the second K kills at once
//
// The end of this stream, at any time before the end of the run, kills the whole tree at once.
//
// From the helper:
//
//	H  first of all: protocol version, pid of the helper
//	S  started: pid, which of the program names was found
//	N  not started: errno, which name, stage as text. Nothing follows
//	O  chunk of stdout
//	R  chunk of stderr
//	C  so many bytes of stdin were consumed
//	X  end: exit code, signal, flags, left-over processes killed, out-of-memory kills, duration in ms (u64).
//	   Flags: 1 timed out, 2 killed as asked, 4 control stream lost, 8 out of memory, 16 supervisor lost,
//	   32 something may have survived, 64 background processes were kept, 128 supervisor told to stop
//
// File operations, instead of a run:
//
//	U  upload: mode, flags (1 make parents, 2 refuse a symbolic link), path; then I chunks and Z
//	V  download: max bytes (u64), flags (2), path
//	T  stat: flags (2: of the link itself), path
//	Y  remove a file: path
//	J  make a directory and its parents: mode, path
//
// answered by Q (errno, text), or by M (mode, size u64, uid, gid, modification time in s as u64) where there
// is something to tell, O chunks where there is content, and X.
//
// The sandboxed code may reach the helper's streams (it can run as the same user), so the client trusts
// nothing that it reads: every length is bounded, and what arrives out of order is an error.
package runhelper
