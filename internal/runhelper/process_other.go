//go:build !linux

package runhelper

import (
	"context"
	"os/exec"
	"runtime"
)

// Extract needs Linux; elsewhere it returns an [*UnsupportedPlatformError].
func Extract(string) (string, error) {
	return "", &UnsupportedPlatformError{OS: runtime.GOOS, Arch: runtime.GOARCH}
}

// StartProcess needs Linux; elsewhere it returns an [*UnsupportedPlatformError].
func StartProcess(context.Context, string, []string, func(*exec.Cmd)) (*Conn, error) {
	return nil, &UnsupportedPlatformError{OS: runtime.GOOS, Arch: runtime.GOARCH}
}
