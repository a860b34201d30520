package docker

import (
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

func TestFirstLight(t *testing.T) {
	e := engine(t)
	s := create(t, e, profile("python"))
	if got := python(t, s, "import os; print(os.getcwd(), os.getpid())").ok(t); got == "" {
		t.Fatal("no output")
	} else {
		t.Log(got)
	}
	_ = sandboxcore.StatusRunning
}
