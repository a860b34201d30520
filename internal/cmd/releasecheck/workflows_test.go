package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var (
	pinned         = regexp.MustCompile(`^[\w.-]+/[\w./-]+@[0-9a-f]{40}$`)
	versionComment = regexp.MustCompile(`^# v[0-9]+\.[0-9]+\.[0-9]+$`)
)

// workflowFaults says what a workflow lacks of: actions by commit with the version beside it, a token that may only read
// unless one job says otherwise, an end to each job, one run at a time, and no token left in the work tree.
func workflowFaults(text []byte) ([]string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	if len(document.Content) != 1 {
		return []string{"is empty"}, nil
	}
	var faults []string
	root := document.Content[0]
	// Everything that a token may do by default is in this one line, so it must be there and say so.
	switch permissions := child(root, "permissions"); {
	case permissions == nil:
		faults = append(faults, "has no permissions at the top")
	case permissions.Kind != yaml.MappingNode:
		faults = append(faults, "gives permissions at the top that are no list")
	default:
		for i := 1; i < len(permissions.Content); i += 2 {
			if value := permissions.Content[i].Value; value != "read" && value != "none" {
				faults = append(faults, fmt.Sprintf("gives %s: %s to every job", permissions.Content[i-1].Value, value))
			}
		}
	}
	if child(root, "concurrency") == nil {
		faults = append(faults, "has no concurrency")
	}
	jobs := child(root, "jobs")
	if jobs == nil {
		return append(faults, "has no jobs"), nil
	}
	for i := 1; i < len(jobs.Content); i += 2 {
		name, job := jobs.Content[i-1].Value, jobs.Content[i]
		if child(job, "timeout-minutes") == nil {
			faults = append(faults, fmt.Sprintf("job %s has no timeout-minutes", name))
		}
		uses := []*yaml.Node{job}
		if steps := child(job, "steps"); steps != nil {
			uses = append(uses, steps.Content...)
		}
		for _, step := range uses {
			action := child(step, "uses")
			if action == nil {
				continue
			}
			switch {
			case !pinned.MatchString(action.Value):
				faults = append(faults, fmt.Sprintf("job %s uses %s, which is no commit", name, action.Value))
			case !versionComment.MatchString(action.LineComment):
				faults = append(faults, fmt.Sprintf("job %s does not say which version %s is", name, action.Value))
			}
			if strings.HasPrefix(action.Value, "actions/checkout@") {
				if keep := child(child(step, "with"), "persist-credentials"); keep == nil || keep.Value != "false" {
					faults = append(faults, fmt.Sprintf("job %s leaves its token in the work tree: no persist-credentials: false", name))
				}
			}
		}
	}
	return faults, nil
}

// child gives the value of a key, or nil.
func child(node *yaml.Node, key string) *yaml.Node {
	if node == nil || node.Kind != yaml.MappingNode {
		return nil
	}
	for i := 1; i < len(node.Content); i += 2 {
		if node.Content[i-1].Value == key {
			return node.Content[i]
		}
	}
	return nil
}

func TestWorkflows(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "..", ".github", "workflows", "*.y*ml"))
	if err != nil || len(files) < 2 {
		t.Fatalf("found %v (%v)", files, err)
	}
	actions := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		faults, err := workflowFaults(text)
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, fault := range faults {
			t.Errorf("%s %s", filepath.Base(file), fault)
		}
		for _, m := range regexp.MustCompile(`uses: ([^@\s]+)@(\S+)`).FindAllStringSubmatch(string(text), -1) {
			if other := actions[m[1]]; other != "" && other != m[2] {
				t.Errorf("%s uses %s at %s, and elsewhere it is %s", filepath.Base(file), m[1], m[2], other)
			}
			actions[m[1]] = m[2]
		}
	}
}

func TestWorkflowFaults(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	good := `
permissions: { contents: read }
concurrency: x
jobs:
  a:
    timeout-minutes: 5
    permissions: { contents: write }
    steps:
      - uses: actions/checkout@` + commit + ` # v1.2.3
        with:
          persist-credentials: false
      - run: "true"
`
	if faults, err := workflowFaults([]byte(good)); err != nil || len(faults) > 0 {
		t.Errorf("%v %v", faults, err)
	}
	for name, change := range map[string]struct{ old, new, want string }{
		"a tag":                {"@" + commit, "@v1", "no commit"},
		"a short commit":       {"@" + commit, "@" + commit[:12], "no commit"},
		"no version":           {" # v1.2.3", "", "which version"},
		"a moving version":     {" # v1.2.3", " # v1", "which version"},
		"no permissions":       {"permissions: { contents: read }\n", "", "no permissions"},
		"all permissions":      {"permissions: { contents: read }", "permissions: write-all", "no list"},
		"one permission":       {"permissions: { contents: read }", "permissions: { contents: write }", "contents: write to every job"},
		"no timeout":           {"    timeout-minutes: 5\n", "", "no timeout-minutes"},
		"no concurrency":       {"concurrency: x\n", "", "no concurrency"},
		"credentials are kept": {"persist-credentials: false", "persist-credentials: true", "persist-credentials"},
		"a workflow of others": {"    steps:", "    uses: a/b/.github/workflows/c.yml@main\n    steps:", "no commit"},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(good, change.old) {
				t.Fatalf("%q is not there", change.old)
			}
			faults, err := workflowFaults([]byte(strings.Replace(good, change.old, change.new, 1)))
			if err != nil || !slices.ContainsFunc(faults, func(f string) bool { return strings.Contains(f, change.want) }) {
				t.Errorf("%v %v, want %q", faults, err, change.want)
			}
		})
	}
}
