package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// TestTablesAreFresh looks at every page that holds a table.
func TestTablesAreFresh(t *testing.T) {
	if runtime.GOOS != "linux" {
		testenv.Skip(t, testenv.Local, "the tables say what backends enforce on Linux; elsewhere some of them declare less", "run it on Linux")
	}
	pages := []string{"../../../README.md"}
	err := filepath.WalkDir("../../../docs", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, page := range pages {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		want, err := replace(string(content), backends.Registry())
		if errors.Is(err, errNoMark) {
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", page, err)
		}
		for _, mark := range begin.FindAllStringSubmatch(string(content), -1) {
			seen[mark[1]] = true
		}
		if string(content) != want {
			t.Errorf("the table in %s is stale; run make generate. It should be:\n%s", page, want)
		}
	}
	for view := range views {
		if !seen[view] {
			t.Errorf("no page has the table %q", view)
		}
	}
}

// Fields that the table says in other words.
var saidOtherwise = map[string]string{
	"PolicyNetwork":    "NetworkModes",
	"PolicyFilesystem": "FSRead and FSWrite",
}

func TestEveryCapabilityShows(t *testing.T) {
	shown := func(c sandboxcore.Capabilities) string {
		var out strings.Builder
		for _, row := range rows {
			out.WriteString(row.value(c) + "|")
		}
		return out.String()
	}
	none := shown(sandboxcore.Capabilities{})
	for i := range reflect.TypeFor[sandboxcore.Capabilities]().NumField() {
		var declared sandboxcore.Capabilities
		field := reflect.ValueOf(&declared).Elem().Field(i)
		name := reflect.TypeFor[sandboxcore.Capabilities]().Field(i).Name
		switch field.Kind() {
		case reflect.Bool:
			field.SetBool(true)
		case reflect.String:
			field.SetString("something")
		case reflect.Slice:
			field.Set(reflect.MakeSlice(field.Type(), 1, 1))
			field.Index(0).SetString("something")
		default:
			t.Fatalf("%s: a kind of field that this test does not know: %s", name, field.Kind())
		}
		if _, otherwise := saidOtherwise[name]; !otherwise && shown(declared) == none {
			t.Errorf("the table does not show %s", name)
		}
	}
}

// wishes ask for what a row is about.
var wishes = map[string]func(*sandboxcore.Profile, *sandboxcore.Operation){
	"isolation": func(p *sandboxcore.Profile, _ *sandboxcore.Operation) {
		p.Policy.MinIsolation = sandboxcore.IsolationMicroVM
	},
	"network egress: `allow`, `deny`, `allowlist`": func(p *sandboxcore.Profile, _ *sandboxcore.Operation) {
		p.Policy.NetworkEgress = sandboxcore.NetworkDeny
	},
	"allow-list entries": func(p *sandboxcore.Profile, _ *sandboxcore.Operation) {
		p.Policy.NetworkEgress, p.Policy.NetworkAllow = sandboxcore.NetworkAllowlist, []string{"example.org"}
	},
	"`fs_allow_read`":  func(p *sandboxcore.Profile, _ *sandboxcore.Operation) { p.Policy.FSAllowRead = []string{"/data"} },
	"`fs_allow_write`": func(p *sandboxcore.Profile, _ *sandboxcore.Operation) { p.Policy.FSAllowWrite = []string{"/data"} },
	"`cpu`, `memory_mb`": func(p *sandboxcore.Profile, _ *sandboxcore.Operation) {
		p.Policy.CPU, p.Policy.MemoryMB = new(1.0), new(int64(64))
	},
	"code in": func(_ *sandboxcore.Profile, op *sandboxcore.Operation) {
		op.Name, op.Kind, op.Language = sandboxcore.OpRun, sandboxcore.RunCode, "python"
	},
	"`script` (shell text)": func(_ *sandboxcore.Profile, op *sandboxcore.Operation) {
		op.Name, op.Kind = sandboxcore.OpRun, sandboxcore.RunScript
	},
	"`stdin`":                      func(_ *sandboxcore.Profile, op *sandboxcore.Operation) { op.Stdin = true },
	"files in and out":             func(_ *sandboxcore.Profile, op *sandboxcore.Operation) { op.Files = true },
	"`packages`":                   func(_ *sandboxcore.Profile, op *sandboxcore.Operation) { op.Packages = true },
	"`background = \"keep\"`":      func(_ *sandboxcore.Profile, op *sandboxcore.Operation) { op.KeepBackground = true },
	"`desired_state = \"paused\"`": func(_ *sandboxcore.Profile, op *sandboxcore.Operation) { op.Pause = true },
	"`max_lifetime`":               func(_ *sandboxcore.Profile, op *sandboxcore.Operation) { op.MaxLifetime = true },
	"creates environments (managed)": func(p *sandboxcore.Profile, _ *sandboxcore.Operation) {
		p.Environment, p.Settings = sandboxcore.EnvironmentManaged, sandboxcore.Settings{}
	},
	"binds to environments of others (attached)": func(p *sandboxcore.Profile, _ *sandboxcore.Operation) {
		p.Environment = sandboxcore.EnvironmentAttached
	},
	"runs under a user's identity": func(p *sandboxcore.Profile, _ *sandboxcore.Operation) { p.Identity = sandboxcore.IdentityUser },
}

// TestCodesOfRefusals asks the gate for what each backend declares not to have, and wants the code of the column.
func TestCodesOfRefusals(t *testing.T) {
	registry := backends.Registry()
	for _, row := range rows {
		wish, known := wishes[row.title]
		if known == (row.code == "") {
			t.Errorf("%s: has the code %q, and a wish: %t", row.title, row.code, known)
		}
		if !known {
			continue
		}
		refused := 0
		for _, factory := range registry.Factories() {
			p := &sandboxcore.Profile{
				Name: "p", Type: factory.Type, Environment: sandboxcore.EnvironmentManaged, Identity: sandboxcore.IdentityAgent, Settings: sandboxcore.Settings{},
				Policy: sandboxcore.Policy{NetworkEgress: sandboxcore.NetworkAllow, Strict: true, Timeout: 60},
			}
			capabilities, err := registry.Capabilities(p)
			if err != nil {
				t.Fatal(err)
			}
			if !capabilities.Provisions {
				p.Environment, p.Settings = sandboxcore.EnvironmentAttached, sandboxcore.Settings{"attach_to": "target"}
			}
			var op sandboxcore.Operation
			wish(p, &op)
			if capabilities, err = registry.Capabilities(p); err != nil {
				t.Fatal(err)
			}
			if row.value(capabilities) != "–" && row.code != sandboxcore.CodeIsolation && row.code != sandboxcore.CodeNetwork {
				continue
			}
			if row.code == sandboxcore.CodeIsolation && capabilities.Isolation.AtLeast(p.Policy.MinIsolation) || row.code == sandboxcore.CodeNetwork && slices.Contains(capabilities.NetworkModes, p.Policy.NetworkEgress) {
				continue
			}
			refused++
			_, err = registry.Decide(p, nil, &op)
			want := []sandboxcore.Code{row.code}
			switch {
			case factory.Type == sandboxcore.BackendPlugin && op != (sandboxcore.Operation{}):
				want = append(want, sandboxcore.CodePluginFeature) // the manifest's own refusal comes first
			case row.code == sandboxcore.CodeAllowEntry:
				want = append(want, sandboxcore.CodeNetwork) // no allow-list at all
			}
			if !slices.ContainsFunc(want, func(code sandboxcore.Code) bool { return sandboxcore.IsCode(err, code) }) {
				t.Errorf("%s on %s: want one of %v, got %v", row.title, factory.Type, want, err)
			}
		}
		if refused == 0 {
			t.Errorf("%s: no backend refuses it, so nothing was tested", row.title)
		}
	}
}

func TestReplace(t *testing.T) {
	const one = "<!-- capabilities of file: begin (written by `make generate`) -->\n"
	written, err := table(backends.Registry(), "file")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(written, "\n") != 3 || !strings.Contains(written, "`AK4002`") {
		t.Errorf("the view of files is\n%s", written)
	}
	got, err := replace("a\n"+one+"old\n"+end+"m\n"+one+end+"z\n", backends.Registry())
	if want := "a\n" + one + "\n" + written + "\n" + end + "m\n" + one + "\n" + written + "\n" + end + "z\n"; err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
	for _, text := range []string{"", one, end, end + one, strings.Replace(one, "file", "nothing", 1) + end} {
		if _, err := replace(text, backends.Registry()); err == nil {
			t.Errorf("no error for %q", text)
		}
	}
}

func TestAttachedViewHasBackendsThatAttach(t *testing.T) {
	written, err := table(backends.Registry(), "attached")
	if err != nil {
		t.Fatal(err)
	}
	header, _, _ := strings.Cut(written, "\n")
	if !strings.Contains(header, "`docker`") || strings.Contains(header, "`bubblewrap`") {
		t.Errorf("the columns are %s", header)
	}
}
