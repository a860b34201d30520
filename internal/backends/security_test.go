package backends_test

import (
	"os"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// TestSecurityPolicyNamesEverything: a backend or a tier that the threat model says nothing about is one that nobody has
// thought through.
func TestSecurityPolicyNamesEverything(t *testing.T) {
	text, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.SplitSeq(string(text), "\n") {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			rows[strings.Trim(cells[1], " `")] = cells[2]
		}
	}
	for _, tier := range sandboxcore.IsolationTiers() {
		if _, ok := rows[string(tier)]; !ok {
			t.Errorf("the tier %s has no row", tier)
		}
	}
	reg := backends.Registry()
	for _, kind := range reg.Types() {
		row, ok := rows[string(kind)]
		if !ok {
			t.Errorf("the backend %s has no row", kind)
			continue
		}
		caps, err := reg.Capabilities(&sandboxcore.Profile{Name: "p", Type: kind, Settings: sandboxcore.Settings{}})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(row, "`"+string(caps.Isolation)+"`") {
			t.Errorf("the backend %s has the tier %s and SECURITY.md says %s", kind, caps.Isolation, row)
		}
	}
}
