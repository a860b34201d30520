package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFragmentsOfThisRepository(t *testing.T) {
	var out strings.Builder
	if err := run([]string{"check"}, filepath.Join("..", "..", ".."), &out); err != nil {
		t.Error(err)
	}
	t.Log(out.String())
}

func TestParseFragment(t *testing.T) {
	for _, test := range []struct{ name, file, text, wrong string }{
		{"one line", "sandbox-pause.yaml", "kind: BUG FIXES\nbody: 'resource/x: it works.'\n", ""},
		{"folded", "a.yaml", "kind: NOTES\nbody: >-\n  one\n  two.\n", ""},
		{"unknown kind", "a.yaml", "kind: FIXES\nbody: x.\n", "BREAKING CHANGES, NOTES"},
		{"no kind", "a.yaml", "body: x.\n", "kind is"},
		{"no body", "a.yaml", "kind: NOTES\n", "body is empty"},
		{"unknown key", "a.yaml", "kind: NOTES\nbody: x.\nissue: 7\n", "issue"},
		{"two paragraphs", "a.yaml", "kind: NOTES\nbody: |\n  a.\n\n  b.\n", "several paragraphs"},
		{"a list", "a.yaml", "kind: NOTES\nbody: '- a.'\n", "begin like"},
		{"no full stop", "a.yaml", "kind: NOTES\nbody: a\n", "full stop"},
		{"other file", "README.md", "kind: NOTES\nbody: a.\n", "name of a fragment"},
		{"capitals", "A.yaml", "kind: NOTES\nbody: a.\n", "name of a fragment"},
		{"empty", "a.yaml", "", "keys kind and body"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := parseFragment(test.file, []byte(test.text))
			switch {
			case test.wrong == "" && err != nil:
				t.Error(err)
			case test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)):
				t.Errorf("error %v, want one with %q", err, test.wrong)
			}
		})
	}
}

func TestSameFragmentTwice(t *testing.T) {
	root := repository(t, map[string]string{"a": "kind: NOTES\nbody: x.\n", "b": "kind: NOTES\nbody: x.\n"})
	if err := run([]string{"check"}, root, &strings.Builder{}); err == nil || !strings.Contains(err.Error(), "says the same as a.yaml") {
		t.Errorf("error %v", err)
	}
}

// repository makes a changelog without a release, and fragments.
func repository(t *testing.T, fragments map[string]string) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, ".changes", "unreleased")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range fragments {
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "CHANGELOG.md"), []byte("# Changelog\n\nWhat it is.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return root
}

func must(t *testing.T, root string, arguments ...string) string {
	t.Helper()
	var out strings.Builder
	if err := run(arguments, root, &out); err != nil {
		t.Fatalf("%v: %v", arguments, err)
	}
	return out.String()
}

func TestTwoReleases(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("word ", 40)) + "."
	root := repository(t, map[string]string{
		"fix":  "kind: BUG FIXES\nbody: a fix.\n",
		"new":  "kind: FEATURES\nbody: second.\n",
		"long": "kind: FEATURES\nbody: " + long + "\n",
		"also": "kind: FEATURES\nbody: first.\n",
	})
	const first = "FEATURES:\n\n- first.\n- second.\n- word "
	if got := must(t, root, "preview"); !strings.HasPrefix(got, first) || !strings.HasSuffix(got, "\n\nBUG FIXES:\n\n- a fix.\n") {
		t.Errorf("preview:\n%s", got)
	}
	preview := must(t, root, "preview")
	must(t, root, "release", "0.1.0", "2026-01-31")
	if left := must(t, root, "preview"); left != "" {
		t.Errorf("fragments are left: %s", left)
	}
	if got := must(t, root, "notes", "0.1.0"); got != preview {
		t.Errorf("notes:\n%s\nwant\n%s", got, preview)
	}
	for _, wrong := range [][]string{{"release", "0.2.0", "2026-02-01"}, {"release", "v1", "2026-02-01"}, {"release", "1.0.0", "today"}, {"notes", "0.2.0"}, {"merge"}, {}} {
		if err := run(wrong, root, &strings.Builder{}); err == nil {
			t.Errorf("%v succeeded", wrong)
		}
	}

	if err := os.WriteFile(filepath.Join(root, ".changes", "unreleased", "b.yaml"), []byte("kind: NOTES\nbody: later.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"release", "0.1.0", "2026-02-01"}, root, &strings.Builder{}); err == nil {
		t.Error("one version was released twice")
	}
	must(t, root, "release", "0.2.0", "2026-02-01")
	if got := must(t, root, "notes", "0.2.0"); got != "NOTES:\n\n- later.\n" {
		t.Errorf("notes of the second release:\n%s", got)
	}
	if got := must(t, root, "notes", "0.1.0"); got != preview {
		t.Errorf("notes of the first release changed:\n%s", got)
	}
	text, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "# Changelog\n\nWhat it is.\n\n## 0.2.0 (2026-02-01)\n\nNOTES:\n\n- later.\n\n## 0.1.0 (2026-01-31)\n\nFEATURES:\n"; !strings.HasPrefix(string(text), want) {
		t.Errorf("CHANGELOG.md is\n%s", text)
	}
	for line := range strings.Lines(string(text)) {
		if len(line) > lineWidth+1 {
			t.Errorf("a line is %d bytes wide: %s", len(line), line)
		}
	}
}
