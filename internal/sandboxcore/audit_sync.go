package sandboxcore

import (
	"errors"
	"syscall"
)

// isNoSync tells a file that cannot be synced (a pipe, a terminal, /dev/stdout) from a disk that failed.
func isNoSync(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP)
}
