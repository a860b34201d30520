//go:build linux && (amd64 || arm64)

package bubblewrap

import (
	"crypto/rand"
	"errors"
	"math/big"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/workspace"
)

// Users for sandboxes come from a range that no distribution, container engine or directory service assigns
// (0x70000000 to 0x7FFDFFFF). The number is random: two data directories on one machine cannot ask each other.
const (
	firstUID = 0x70000000
	lastUID  = 0x7FFDFFFF
)

// allocateUID gives a user that no sandbox, no account and no process has.
func allocateUID(taken []int) (int, error) {
	running := runningUIDs()
	for range 100 {
		n, err := rand.Int(rand.Reader, big.NewInt(lastUID-firstUID+1))
		if err != nil {
			return 0, err
		}
		uid := firstUID + int(n.Int64())
		if slices.Contains(taken, uid) || running[uint32(uid)] {
			continue
		}
		if _, err := user.LookupId(strconv.Itoa(uid)); err == nil {
			continue
		}
		return uid, nil
	}
	return 0, errors.New("no free user id was found for the sandbox")
}

// processesOf lists the processes of a user.
func processesOf(uid int) []workspace.Run {
	var out []workspace.Run
	eachProcess(func(pid int, owner uint32) {
		if owner == uint32(uid) {
			if run, err := workspace.RunOf(pid); err == nil {
				out = append(out, run)
			}
		}
	})
	return out
}

func runningUIDs() map[uint32]bool {
	out := map[uint32]bool{}
	eachProcess(func(_ int, owner uint32) { out[owner] = true })
	return out
}

// eachProcess calls f with every process and its owner. The owner of /proc/PID is not always that of the process (one
// that cannot be dumped shows root), so it is read from its status.
func eachProcess(f func(pid int, owner uint32)) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if owner, ok := ownerOf(pid); ok {
			f(pid, owner)
		}
	}
}

func isRoot() bool { return syscall.Geteuid() == 0 }

// ownerOf reads whose process it is. One that has ended and that nobody has reaped yet is nobody's: it runs nothing, and
// where PID 1 reaps no orphans, as in many containers, it stays for ever.
func ownerOf(pid int) (uint32, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, false
	}
	if s := string(text); strings.Contains(s, "\nState:\tZ") && strings.Contains(s, "\nThreads:\t1\n") {
		return 0, false
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
			fields := strings.Fields(rest)
			if len(fields) == 0 {
				return 0, false
			}
			uid, err := strconv.ParseUint(fields[0], 10, 32)
			return uint32(uid), err == nil
		}
	}
	return 0, false
}
