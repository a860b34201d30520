// Command parts tells which parts of testenv this machine has.
//
//	go run ./internal/testenv/cmd/parts             all of them, as a table
//	go run ./internal/testenv/cmd/parts bubblewrap  those named; status 1 if one is missing
package main

import (
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

func main() {
	parts := testenv.Parts()
	named := len(os.Args) > 1
	if named {
		parts = nil
		for _, name := range os.Args[1:] {
			parts = append(parts, testenv.Part(name))
		}
	}
	status := 0
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, part := range parts {
		found := testenv.Probe(part)
		if found.Available {
			_, _ = fmt.Fprintf(table, "%s\tavailable\n", part)
			continue
		}
		_, _ = fmt.Fprintf(table, "%s\tmissing\t%s; enable with: %s\n", part, found.Reason, found.Enable)
		if named {
			status = 1
		}
	}
	_ = table.Flush()
	os.Exit(status)
}
