// Command changelog keeps CHANGELOG.md out of fragments: one small file for each change that users notice, so that two
// changes never meet in one line of one file. CONTRIBUTING.md shows a fragment.
//
//	go run ./internal/cmd/changelog check                      fails unless every fragment is valid
//	go run ./internal/cmd/changelog preview                    prints what the next release would say
//	go run ./internal/cmd/changelog release 1.2.3 2026-01-31   moves the fragments into CHANGELOG.md
//	go run ./internal/cmd/changelog notes 1.2.3                prints what CHANGELOG.md says of a release
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:], ".", os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "changelog:", err)
		os.Exit(1)
	}
}

func run(arguments []string, root string, out io.Writer) error {
	dir, file := filepath.Join(root, ".changes", "unreleased"), filepath.Join(root, "CHANGELOG.md")
	if len(arguments) == 0 {
		arguments = []string{""}
	}
	switch command, rest := arguments[0], arguments[1:]; {
	case command == "check" && len(rest) == 0:
		fragments, err := readFragments(dir)
		if err == nil {
			_, err = fmt.Fprintf(out, "%d fragments, all valid\n", len(fragments))
		}
		return err
	case command == "preview" && len(rest) == 0:
		fragments, err := readFragments(dir)
		if err == nil {
			_, err = fmt.Fprint(out, render(fragments))
		}
		return err
	case command == "release" && len(rest) == 2:
		return release(dir, file, rest[0], rest[1])
	case command == "notes" && len(rest) == 1:
		text, err := os.ReadFile(file) // #nosec G304 -- CHANGELOG.md
		if err != nil {
			return err
		}
		notes, err := notes(string(text), rest[0])
		if err == nil {
			_, err = fmt.Fprint(out, notes)
		}
		return err
	}
	return fmt.Errorf("usage: changelog check | preview | release VERSION DATE | notes VERSION")
}
