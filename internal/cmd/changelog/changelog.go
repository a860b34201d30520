package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// kinds are the headings of a release, in their order.
var kinds = []string{"BREAKING CHANGES", "NOTES", "FEATURES", "ENHANCEMENTS", "BUG FIXES"}

// lineWidth is how wide a line of CHANGELOG.md may be.
const lineWidth = 120

// fragment is one change, as a file of its own holds it. The two keys are those of changie's fragments.
type fragment struct {
	Kind string `yaml:"kind"`
	Body string `yaml:"body"`
}

var fragmentName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*\.yaml$`)

// readFragments reads the fragments of a directory; without the directory there are none. All that is wrong is told at once.
func readFragments(dir string) ([]fragment, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var fragments []fragment
	var wrong []error
	seen := map[fragment]string{}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(dir, entry.Name())) // #nosec G304 -- a fragment
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		f, err := parseFragment(entry.Name(), text)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", filepath.Join(dir, entry.Name()), err))
			continue
		}
		if other, twice := seen[f]; twice {
			wrong = append(wrong, fmt.Errorf("%s says the same as %s", filepath.Join(dir, entry.Name()), other))
		}
		seen[f] = entry.Name()
		fragments = append(fragments, f)
	}
	return fragments, errors.Join(wrong...)
}

func parseFragment(name string, text []byte) (fragment, error) {
	var f fragment
	if !fragmentName.MatchString(name) {
		return f, fmt.Errorf("the name of a fragment is like %q: small letters, digits, - and _", "sandbox-pause.yaml")
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&f); err != nil {
		return f, fmt.Errorf("a fragment is YAML with the keys kind and body: %w", err)
	}
	// A text may be folded over several lines; here it is one paragraph.
	paragraph := strings.Join(strings.Fields(f.Body), " ")
	switch {
	case !slices.Contains(kinds, f.Kind):
		return f, fmt.Errorf("kind is %q and must be one of %s", f.Kind, strings.Join(kinds, ", "))
	case paragraph == "":
		return f, errors.New("body is empty")
	case strings.Contains(strings.TrimSpace(f.Body), "\n\n"):
		return f, errors.New("body has several paragraphs; a fragment is one entry of a list")
	case strings.HasPrefix(paragraph, "- "), strings.HasPrefix(paragraph, "* "), strings.HasPrefix(paragraph, "#"):
		return f, errors.New("body must not begin like a list or a heading; it becomes an entry by itself")
	case !strings.HasSuffix(paragraph, "."):
		return f, errors.New("body must end with a full stop")
	}
	f.Body = paragraph
	return f, nil
}

// render gives the text of a release without its heading: the kinds in their order, and the entries of each in the order
// of the alphabet, so that entries of one construct stand together.
func render(fragments []fragment) string {
	var out strings.Builder
	for _, kind := range kinds {
		var bodies []string
		for _, f := range fragments {
			if f.Kind == kind {
				bodies = append(bodies, f.Body)
			}
		}
		if len(bodies) == 0 {
			continue
		}
		slices.Sort(bodies)
		if out.Len() > 0 {
			out.WriteByte('\n')
		}
		fmt.Fprintf(&out, "%s:\n\n", kind)
		for _, body := range bodies {
			out.WriteString(entry(body))
		}
	}
	return out.String()
}

// entry wraps one entry of a list.
func entry(body string) string {
	var out strings.Builder
	line := "-"
	for word := range strings.FieldsSeq(body) {
		if len(line)+1+len(word) > lineWidth {
			out.WriteString(line + "\n")
			line = " "
		}
		line += " " + word
	}
	out.WriteString(line + "\n")
	return out.String()
}

var (
	versionText = regexp.MustCompile(`^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$`)
	heading     = regexp.MustCompile(`(?m)^## (\S+) \([0-9]{4}-[0-9]{2}-[0-9]{2}\)\n`)
)

// release moves the fragments of dir into a new section of file, above the sections that are there.
func release(dir, file, version, date string) error {
	if !versionText.MatchString(version) {
		return fmt.Errorf("%q is no version like 1.2.3", version)
	}
	if _, err := time.Parse(time.DateOnly, date); err != nil {
		return fmt.Errorf("%q is no date like 2026-01-31", date)
	}
	fragments, err := readFragments(dir)
	if err != nil {
		return err
	}
	if len(fragments) == 0 {
		return fmt.Errorf("%s holds no fragment, so a release of %s would say nothing", dir, version)
	}
	old, err := os.ReadFile(file) // #nosec G304 -- CHANGELOG.md
	if err != nil {
		return err
	}
	text := string(old)
	if _, err := notes(text, version); err == nil {
		return fmt.Errorf("%s has a section for %s already", file, version)
	}
	section := fmt.Sprintf("## %s (%s)\n\n%s", version, date, render(fragments))
	if at := heading.FindStringIndex(text); at != nil {
		text = text[:at[0]] + section + "\n" + text[at[0]:]
	} else {
		text = strings.TrimRight(text, "\n") + "\n\n" + section
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil { // #nosec G306 G703 -- a file of the repository
		return err
	}
	// Only now: until the text is written the fragments are all there is.
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// notes gives what the changelog says of a release, without the heading.
func notes(text, version string) (string, error) {
	sections := heading.FindAllStringSubmatchIndex(text, -1)
	for i, at := range sections {
		if text[at[2]:at[3]] != version {
			continue
		}
		end := len(text)
		if i+1 < len(sections) {
			end = sections[i+1][0]
		}
		return strings.Trim(text[at[1]:end], "\n") + "\n", nil
	}
	return "", fmt.Errorf("CHANGELOG.md has no section for %s; `make changelog VERSION=%s` makes it out of the fragments", version, version)
}
