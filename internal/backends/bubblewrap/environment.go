//go:build linux && (amd64 || arm64)

package bubblewrap

import "context"

// ReadEnv gives the environment that the sandbox was made with.
func (s *sandbox) ReadEnv(context.Context) (map[string]string, error) { return s.box.Env() }
