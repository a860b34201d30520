// Command capabilitytable writes the table backend × capability into README.md, from what the backends declare.
//
//	go run ./internal/cmd/capabilitytable README.md
package main

import (
	"fmt"
	"os"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: capabilitytable README.md")
		os.Exit(2)
	}
	if err := update(os.Args[1], backends.Registry()); err != nil {
		fmt.Fprintln(os.Stderr, "capabilitytable:", err)
		os.Exit(1)
	}
}
