package runhelper

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"sync"
)

//go:embed bin/akrun-linux-amd64
var binaryAMD64 []byte

//go:embed bin/akrun-linux-arm64
var binaryARM64 []byte

var digests = sync.OnceValue(func() map[string]string {
	sum := func(b []byte) string {
		s := sha256.Sum256(b)
		return hex.EncodeToString(s[:])
	}
	return map[string]string{"amd64": sum(binaryAMD64), "arm64": sum(binaryARM64)}
})

// UnsupportedPlatformError says that there is no helper for a platform, or that an operation needs Linux.
type UnsupportedPlatformError struct {
	OS   string // as in GOOS; empty where only the architecture was asked about
	Arch string // as in GOARCH
}

func (e *UnsupportedPlatformError) Error() string {
	os := e.OS
	if os == "" {
		os = "linux"
	}
	return fmt.Sprintf("no run helper for %s/%s: only linux/amd64 and linux/arm64", os, e.Arch)
}

// Binary returns a copy of the helper for Linux on arch ("amd64" or "arm64", as GOARCH spells it; the kernel's
// "x86_64" and "aarch64" are understood too). The error is an [*UnsupportedPlatformError].
func Binary(arch string) ([]byte, error) {
	b, _, err := binaryOf(arch)
	if err != nil {
		return nil, err
	}
	return append([]byte(nil), b...), nil
}

// Digest returns the SHA-256 of [Binary](arch) in lower-case hexadecimal digits. The error is an
// [*UnsupportedPlatformError].
func Digest(arch string) (string, error) {
	_, name, err := binaryOf(arch)
	if err != nil {
		return "", err
	}
	return digests()[name], nil
}

func binaryOf(arch string) (b []byte, name string, err error) {
	switch arch {
	case "amd64", "x86_64":
		return binaryAMD64, "amd64", nil
	case "arm64", "aarch64":
		return binaryARM64, "arm64", nil
	}
	return nil, "", &UnsupportedPlatformError{Arch: arch}
}
