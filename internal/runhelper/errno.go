package runhelper

import (
	"fmt"
	"io/fs"
	"runtime"
	"syscall"
)

// Errno is an error number of the Linux system that the helper runs on. The provider may run on another
// system whose numbers differ, so this is not a [syscall.Errno]. errors.Is finds fs.ErrNotExist, fs.ErrExist,
// fs.ErrPermission and, when the provider runs on Linux too, the syscall.Errno of the same number.
type Errno uint32

// The numbers that callers have a reason to look for.
const (
	EPERM        Errno = 1
	ENOENT       Errno = 2
	E2BIG        Errno = 7
	ENOEXEC      Errno = 8
	EAGAIN       Errno = 11
	ENOMEM       Errno = 12
	EACCES       Errno = 13
	EBUSY        Errno = 16
	EEXIST       Errno = 17
	ENOTDIR      Errno = 20
	EISDIR       Errno = 21
	EINVAL       Errno = 22
	ETXTBSY      Errno = 26
	EFBIG        Errno = 27
	ENOSPC       Errno = 28
	EROFS        Errno = 30
	ENAMETOOLONG Errno = 36
	ENOTEMPTY    Errno = 39
	ELOOP        Errno = 40
	EPROTO       Errno = 71
	EDQUOT       Errno = 122
)

var errnoTexts = map[Errno]string{
	EPERM:        "operation not permitted",
	ENOENT:       "no such file or directory",
	E2BIG:        "argument list too long",
	ENOEXEC:      "exec format error",
	EAGAIN:       "resource temporarily unavailable",
	ENOMEM:       "cannot allocate memory",
	EACCES:       "permission denied",
	EBUSY:        "device or resource busy",
	EEXIST:       "file exists",
	ENOTDIR:      "not a directory",
	EISDIR:       "is a directory",
	EINVAL:       "invalid argument",
	ETXTBSY:      "text file busy",
	EFBIG:        "file too large",
	ENOSPC:       "no space left on device",
	EROFS:        "read-only file system",
	ENAMETOOLONG: "file name too long",
	ENOTEMPTY:    "directory not empty",
	ELOOP:        "too many levels of symbolic links",
	EPROTO:       "protocol error",
	EDQUOT:       "disk quota exceeded",
}

func (e Errno) Error() string {
	if t, ok := errnoTexts[e]; ok {
		return t
	}
	return fmt.Sprintf("errno %d", uint32(e))
}

// Is makes errors.Is work with the errors of io/fs and, on Linux, with syscall.Errno.
func (e Errno) Is(target error) bool {
	switch target {
	case fs.ErrNotExist:
		return e == ENOENT
	case fs.ErrExist:
		return e == EEXIST || e == ENOTEMPTY
	case fs.ErrPermission:
		return e == EACCES || e == EPERM
	}
	if t, ok := target.(syscall.Errno); ok && runtime.GOOS == "linux" {
		return uint64(t) == uint64(e)
	}
	return false
}
