package runhelper

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

// clientProcess is a provider that will be killed in the middle of a run.
func clientProcess() {
	conn, err := StartProcess(context.Background(), os.Getenv("AKRUN_TEST_CLIENT"), []string{os.Getenv("AKRUN_TEST_MODE")}, nil)
	if err != nil {
		panic(err)
	}
	req := ShellRequest([]byte(os.Getenv("AKRUN_TEST_SCRIPT")))
	req.Stdin = neverReader{}
	_, err = Run(context.Background(), conn, req, os.Stdout, nil)
	panic(err)
}

func TestClientProcessKilled(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode string) {
		mark := marker(t)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), "AKRUN_TEST_CLIENT="+helperPath(t), "AKRUN_TEST_MODE="+mode,
			"AKRUN_TEST_SCRIPT=sh -c 'sleep 1000; : "+mark+"' & (setsid sh -c 'sleep 1001; : "+mark+"' &); echo ready; sh -c 'sleep 1002; : "+mark+"'")
		ready := &waitWriter{want: "ready", seen: make(chan struct{})}
		cmd.Stdout = ready
		cmd.WaitDelay = time.Second
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-ready.seen
		eventually(t, "all three run", func() bool { return len(marked(mark)) >= 3 })
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		eventually(t, "the tree of a killed client is dead", func() bool { return len(marked(mark)) == 0 })
	})
}
