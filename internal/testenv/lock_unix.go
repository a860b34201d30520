//go:build unix

package testenv

import (
	"errors"
	"os"
	"syscall"
)

// lockFile takes a lock that other processes see, shared or alone, and gives what releases it.
func lockFile(path string, alone bool) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) // #nosec G304 -- the path is the test environment's own
	if err != nil {
		return nil, err
	}
	how := syscall.LOCK_SH
	if alone {
		how = syscall.LOCK_EX
	}
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return func() { _ = f.Close() }, nil
	}
}
