package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// The markers between which README.md holds the table.
const (
	begin = "<!-- capabilities: begin (written by `make generate`) -->\n"
	end   = "<!-- capabilities: end -->\n"
)

// rows are the capabilities in the order of the table.
var rows = []struct {
	title string
	value func(sandboxcore.Capabilities) string
}{
	{"isolation", func(c sandboxcore.Capabilities) string {
		if c.IsolationAsserted {
			return "`" + string(c.Isolation) + "` (asserted)"
		}
		return "`" + string(c.Isolation) + "`"
	}},
	{"network egress: `allow`, `deny`, `allowlist`", func(c sandboxcore.Capabilities) string { return list(c.NetworkModes) }},
	{"allow-list entries", func(c sandboxcore.Capabilities) string { return list(c.AllowlistEntries) }},
	{"`fs_allow_read`", func(c sandboxcore.Capabilities) string { return yes(c.FSRead) }},
	{"`fs_allow_write`", func(c sandboxcore.Capabilities) string { return yes(c.FSWrite) }},
	{"`cpu`, `memory_mb`", func(c sandboxcore.Capabilities) string { return yes(c.PolicyResources) }},
	{"a timeout kills every process of a run", func(c sandboxcore.Capabilities) string { return yes(c.KillsTree) }},
	{"code in", func(c sandboxcore.Capabilities) string { return list(c.Languages) }},
	{"`script` (shell text)", func(c sandboxcore.Capabilities) string { return yes(c.Shell) }},
	{"`stdin`", func(c sandboxcore.Capabilities) string { return yes(c.Stdin) }},
	{"stdout and stderr apart", func(c sandboxcore.Capabilities) string { return yes(c.SplitOutput) }},
	{"output while the run goes on", func(c sandboxcore.Capabilities) string { return yes(c.Streaming) }},
	{"files in and out", func(c sandboxcore.Capabilities) string { return yes(c.Files) }},
	{"`packages`", func(c sandboxcore.Capabilities) string { return yes(c.PackageInstall) }},
	{"`background = \"keep\"`", func(c sandboxcore.Capabilities) string { return yes(c.KeepBackground) }},
	{"`desired_state = \"paused\"`", func(c sandboxcore.Capabilities) string { return yes(c.Pause) }},
	{"changes in place", func(c sandboxcore.Capabilities) string { return list(c.LiveUpdate) }},
	{"`max_lifetime`", func(c sandboxcore.Capabilities) string { return yes(c.MaxLifetime) }},
	{"creates environments (managed)", func(c sandboxcore.Capabilities) string { return yes(c.Provisions) }},
	{"finds its sandboxes again", func(c sandboxcore.Capabilities) string { return yes(c.Attach) }},
	{"binds to environments of others (attached)", func(c sandboxcore.Capabilities) string { return yes(c.AttachesExternal) }},
	{"runs under a user's identity", func(c sandboxcore.Capabilities) string { return yes(c.PrincipalUser) }},
	{"interpreter state between runs", func(c sandboxcore.Capabilities) string { return yes(c.Stateful) }},
	{"keeps what a run is given, so secrets are refused", func(c sandboxcore.Capabilities) string { return yes(c.RecordsInput) }},
	{"an operator may assert", func(c sandboxcore.Capabilities) string { return list(c.Assertable) }},
}

func yes(value bool) string {
	if value {
		return "yes"
	}
	return "–"
}

func list[T ~string](values []T) string {
	if len(values) == 0 {
		return "–"
	}
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i] = "`" + string(value) + "`"
	}
	return strings.Join(texts, ", ")
}

// table writes what every backend declares for a managed profile with the backend's default settings.
func table(registry *sandboxcore.Registry) (string, error) {
	var header, rule strings.Builder
	header.WriteString("| |")
	rule.WriteString("|---|")
	var declared []sandboxcore.Capabilities
	for _, factory := range registry.Factories() {
		// An empty environment: what this machine has set is not what the backend declares.
		backend, err := factory.New(nil, func(string) string { return "" })
		if err != nil {
			return "", fmt.Errorf("%s: %w", factory.Type, err)
		}
		declared = append(declared, backend.Capabilities(&sandboxcore.Profile{
			Name: "readme", Type: factory.Type, Environment: sandboxcore.EnvironmentManaged, Settings: sandboxcore.Settings{},
		}))
		header.WriteString(" `" + string(factory.Type) + "` |")
		rule.WriteString("---|")
	}
	var out strings.Builder
	out.WriteString(header.String() + "\n" + rule.String() + "\n")
	for _, row := range rows {
		out.WriteString("| " + row.title + " |")
		for _, capabilities := range declared {
			out.WriteString(" " + row.value(capabilities) + " |")
		}
		out.WriteString("\n")
	}
	return out.String(), nil
}

// replace gives the text with the table between its markers.
func replace(text, table string) (string, error) {
	before, rest, found := strings.Cut(text, begin)
	if !found {
		return "", errors.New("the marker of the beginning is missing: " + strings.TrimSpace(begin))
	}
	_, after, found := strings.Cut(rest, end)
	if !found {
		return "", errors.New("the marker of the end is missing: " + strings.TrimSpace(end))
	}
	return before + begin + "\n" + table + "\n" + end + after, nil
}

// update writes the table into the file.
func update(path string, registry *sandboxcore.Registry) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	written, err := table(registry)
	if err != nil {
		return err
	}
	text, err := replace(string(content), written)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), info.Mode().Perm())
}
