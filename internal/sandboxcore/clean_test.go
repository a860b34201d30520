package sandboxcore_test

import (
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// What is quoted is escaped once, so that a reader sees the same escape everywhere.
func TestQuoted(t *testing.T) {
	for in, want := range map[string]string{
		"": `""`, "a": `"a"`, "a\x1b[31m\n": `"a\x1b[31m\n"`, `say "x"`: `"say \"x\""`, "é": `"é"`, "\u202e": `"\u202e"`,
	} {
		if got := sandboxcore.Quoted(in); got != want {
			t.Errorf("%q is quoted as %s, want %s", in, got, want)
		}
	}
}
