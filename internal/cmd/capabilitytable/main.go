// Command capabilitytable writes the tables backend × capability into Markdown, from what the backends declare.
//
//	go run ./internal/cmd/capabilitytable README.md docs
//
// A table stands between two marks, of which the first may name a view; a directory is searched for files with marks.
package main

import (
	"fmt"
	"os"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: capabilitytable FILE-OR-DIRECTORY...")
		os.Exit(2)
	}
	for _, path := range os.Args[1:] {
		if err := update(path, backends.Registry()); err != nil {
			fmt.Fprintln(os.Stderr, "capabilitytable:", err)
			os.Exit(1)
		}
	}
}
