package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// The marks between which a page holds a table. The first may name a view; without one it is the whole table.
var (
	begin = regexp.MustCompile("<!-- capabilities(?: of ([a-z]+))?: begin \\(written by `make generate`\\) -->\n")
	end   = "<!-- capabilities: end -->\n"
)

// row is one capability.
type row struct {
	title string
	value func(sandboxcore.Capabilities) string
	// code is what a request gets where the backend does not have it; empty: nothing is refused for it.
	code sandboxcore.Code
	// views name the tables that have the row, beside the whole one.
	views string
}

// rows are the capabilities in the order of the table.
var rows = []row{
	{"isolation", func(c sandboxcore.Capabilities) string {
		if c.IsolationAsserted {
			return "`" + string(c.Isolation) + "` (asserted)"
		}
		return "`" + string(c.Isolation) + "`"
	}, sandboxcore.CodeIsolation, "policy sandbox"},
	{"network egress: `allow`, `deny`, `allowlist`", func(c sandboxcore.Capabilities) string { return list(c.NetworkModes) }, sandboxcore.CodeNetwork, "policy attached"},
	{"allow-list entries", func(c sandboxcore.Capabilities) string { return list(c.AllowlistEntries) }, sandboxcore.CodeAllowEntry, "policy"},
	{"`fs_allow_read`", func(c sandboxcore.Capabilities) string { return yes(c.FSRead) }, sandboxcore.CodeFilesystem, "policy attached"},
	{"`fs_allow_write`", func(c sandboxcore.Capabilities) string { return yes(c.FSWrite) }, sandboxcore.CodeFilesystem, "policy attached"},
	{"`cpu`, `memory_mb`", func(c sandboxcore.Capabilities) string { return yes(c.PolicyResources) }, sandboxcore.CodeResources, "policy attached"},
	{"a timeout kills every process of a run", func(c sandboxcore.Capabilities) string { return yes(c.KillsTree) }, "", "policy run brief attached"},
	{"code in", func(c sandboxcore.Capabilities) string { return list(c.Languages) }, sandboxcore.CodeLanguage, "run brief attached"},
	{"`script` (shell text)", func(c sandboxcore.Capabilities) string { return yes(c.Shell) }, sandboxcore.CodeOperation, "run brief attached"},
	{"`stdin`", func(c sandboxcore.Capabilities) string { return yes(c.Stdin) }, sandboxcore.CodeOperation, "run brief attached"},
	{"stdout and stderr apart", func(c sandboxcore.Capabilities) string { return yes(c.SplitOutput) }, "", "run brief"},
	{"output while the run goes on", func(c sandboxcore.Capabilities) string { return yes(c.Streaming) }, "", "brief"},
	{"files in and out", func(c sandboxcore.Capabilities) string { return yes(c.Files) }, sandboxcore.CodeOperation, "run file attached"},
	{"`packages`", func(c sandboxcore.Capabilities) string { return yes(c.PackageInstall) }, sandboxcore.CodeOperation, "sandbox"},
	{"`background = \"keep\"`", func(c sandboxcore.Capabilities) string { return yes(c.KeepBackground) }, sandboxcore.CodeOperation, "run brief attached"},
	{"`desired_state = \"paused\"`", func(c sandboxcore.Capabilities) string { return yes(c.Pause) }, sandboxcore.CodeOperation, "sandbox"},
	{"changes in place", func(c sandboxcore.Capabilities) string { return list(c.LiveUpdate) }, "", "sandbox"},
	{"`max_lifetime`", func(c sandboxcore.Capabilities) string { return yes(c.MaxLifetime) }, sandboxcore.CodeLifetime, "sandbox"},
	{"creates environments (managed)", func(c sandboxcore.Capabilities) string { return yes(c.Provisions) }, sandboxcore.CodeEnvironmentMode, "policy sandbox"},
	{"finds its sandboxes again", func(c sandboxcore.Capabilities) string { return yes(c.Attach) }, "", "sandbox search"},
	{"binds to environments of others (attached)", func(c sandboxcore.Capabilities) string { return yes(c.AttachesExternal) }, sandboxcore.CodeEnvironmentMode, "policy"},
	{"runs under a user's identity", func(c sandboxcore.Capabilities) string { return yes(c.PrincipalUser) }, sandboxcore.CodeNoUserIdentity, "policy attached"},
	{"interpreter state between runs", func(c sandboxcore.Capabilities) string { return yes(c.Stateful) }, "", ""},
	{"keeps what a run is given, so secrets are refused", func(c sandboxcore.Capabilities) string { return yes(c.RecordsInput) }, "", "run brief attached"},
	{"an operator may assert", func(c sandboxcore.Capabilities) string { return list(c.Assertable) }, "", "policy"},
}

// views are the names that a mark may carry, with the mode of the profile that the backends are asked about.
var views = map[string]sandboxcore.EnvironmentMode{
	"":         sandboxcore.EnvironmentManaged,
	"policy":   sandboxcore.EnvironmentManaged,
	"sandbox":  sandboxcore.EnvironmentManaged,
	"run":      sandboxcore.EnvironmentManaged,
	"brief":    sandboxcore.EnvironmentManaged, // runs without files: the action and the ephemeral resource
	"file":     sandboxcore.EnvironmentManaged,
	"search":   sandboxcore.EnvironmentManaged,
	"attached": sandboxcore.EnvironmentAttached,
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

// table writes what the backends declare with their default settings. The whole table has all of them, the one of
// attached profiles those that attach, and a view has the code of the refusal in a column of its own.
func table(registry *sandboxcore.Registry, view string) (string, error) {
	environment, known := views[view]
	if !known {
		return "", fmt.Errorf("no view %q", view)
	}
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
		capabilities := backend.Capabilities(&sandboxcore.Profile{
			Name: "readme", Type: factory.Type, Environment: environment, Settings: sandboxcore.Settings{},
		})
		if environment == sandboxcore.EnvironmentAttached && !capabilities.AttachesExternal {
			continue
		}
		declared = append(declared, capabilities)
		header.WriteString(" `" + string(factory.Type) + "` |")
		rule.WriteString("---|")
	}
	if view != "" {
		header.WriteString(" where not |")
		rule.WriteString("---|")
	}
	var out strings.Builder
	out.WriteString(header.String() + "\n" + rule.String() + "\n")
	for _, row := range rows {
		if view != "" && !slices.Contains(strings.Fields(row.views), view) {
			continue
		}
		out.WriteString("| " + row.title + " |")
		for _, capabilities := range declared {
			out.WriteString(" " + row.value(capabilities) + " |")
		}
		if view != "" {
			if row.code == "" {
				out.WriteString(" |")
			} else {
				out.WriteString(" `" + string(row.code) + "` |")
			}
		}
		out.WriteString("\n")
	}
	return out.String(), nil
}

var errNoMark = errors.New("it has no mark for a table")

// replace gives the text with the tables between their marks. It is an error if there is none.
func replace(text string, registry *sandboxcore.Registry) (string, error) {
	var out strings.Builder
	for found := false; ; found = true {
		at := begin.FindStringSubmatchIndex(text)
		if at == nil {
			if !found {
				return "", errNoMark
			}
			return out.String() + text, nil
		}
		view := ""
		if at[2] >= 0 {
			view = text[at[2]:at[3]]
		}
		written, err := table(registry, view)
		if err != nil {
			return "", err
		}
		_, after, closed := strings.Cut(text[at[1]:], end)
		if !closed {
			return "", errors.New("the mark of the end is missing: " + strings.TrimSpace(end))
		}
		out.WriteString(text[:at[1]] + "\n" + written + "\n" + end)
		text = after
	}
}

// update writes the tables into the file, or into those files of the directory that have marks.
func update(path string, registry *sandboxcore.Registry) error {
	files := []string{path}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() {
		files = nil
		err := fs.WalkDir(os.DirFS(path), ".", func(name string, _ fs.DirEntry, err error) error {
			if filepath.Ext(name) == ".md" {
				files = append(files, filepath.Join(path, filepath.FromSlash(name)))
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		text, err := replace(string(content), registry)
		if errors.Is(err, errNoMark) && info.IsDir() {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil { // #nosec G306 -- documentation, which all may read
			return err
		}
	}
	return nil
}
