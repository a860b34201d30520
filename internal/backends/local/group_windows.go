package local

import (
	"os"
	"os/exec"
)

func ownGroup(*exec.Cmd) {}

func terminate(cmd *exec.Cmd) error { return cmd.Process.Kill() }

func killGroup(*exec.Cmd) {}

func exitStatus(state *os.ProcessState) (code, signal int) { return state.ExitCode(), 0 }
