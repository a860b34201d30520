package sandboxcore_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// TestGuideHasEveryCode compares the guide "Errors by code" with the codes that there are.
func TestGuideHasEveryCode(t *testing.T) {
	guide, err := os.ReadFile("../../templates/guides/errors.md.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	told := map[sandboxcore.Code]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z]+[0-9]+)` \\| ([^|]*) \\| ([^|]+) \\| ([^|]+) \\|$").FindAllStringSubmatch(string(guide), -1) {
		code := sandboxcore.Code(row[1])
		if told[code] {
			t.Errorf("the guide has %s twice", code)
		}
		told[code] = true
		if row[2] != code.Title() {
			t.Errorf("the guide calls %s %q, and errors call it %q", code, row[2], code.Title())
		}
	}
	codes := map[sandboxcore.Code]bool{}
	for _, code := range sandboxcore.Codes() {
		codes[code] = true
		if !told[code] {
			t.Errorf("the guide does not have %s (%s)", code, code.Title())
		}
	}
	for code := range told {
		if !codes[code] {
			t.Errorf("the guide has %s, which is no code", code)
		}
	}
}
