package workspace

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// bootID is the kernel's id of this boot.
var bootID = sync.OnceValue(func() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
})

// startOf gives the start time and the state of a process.
func startOf(pid int) (uint64, byte, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	// The name of the program stands in brackets and may hold anything, brackets too.
	end := bytes.LastIndexByte(text, ')')
	fields := strings.Fields(string(text[end+1:]))
	if end < 0 || len(fields) < 20 {
		return 0, 0, fmt.Errorf("/proc/%d/stat is not understood", pid)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0][0], err
}

// RunOf names a process that is there now.
func RunOf(pid int) (Run, error) {
	start, _, err := startOf(pid)
	return Run{PID: pid, Start: start}, err
}

// Alive reports whether the process is still there and has not ended.
func (r Run) Alive() bool {
	start, state, err := startOf(r.PID)
	return err == nil && start == r.Start && state != 'Z' && state != 'X'
}

// Signal sends a signal to this very process: not to another one that has got its id in the meantime.
func (r Run) Signal(signal syscall.Signal) error {
	fd, err := unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil { // a kernel before 5.3
		if !r.Alive() {
			return nil
		}
		return ignoreGone(syscall.Kill(r.PID, signal))
	}
	defer func() { _ = unix.Close(fd) }()
	if !r.Alive() {
		return nil
	}
	return ignoreGone(unix.PidfdSendSignal(fd, signal, nil, 0))
}

func ignoreGone(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}
