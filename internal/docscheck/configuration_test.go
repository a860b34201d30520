package docscheck_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/format"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"go.yaml.in/yaml/v3"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// configuration says whether a block is Terraform's language.
func configuration(b block) bool { return b.language == "hcl" || b.language == "terraform" }

// cliConfiguration says whether it is for the program itself and not for a directory.
func cliConfiguration(b block) bool { return strings.Contains(b.text, "provider_installation {") }

// TestBlocksParse: whatever its language, a block is well-formed, and configuration looks as `terraform fmt` leaves it.
func TestBlocksParse(t *testing.T) {
	seen := map[string]int{}
	for _, p := range readPages(t) {
		for _, b := range p.blocks {
			seen[b.language]++
			if said := malformed(b); said != "" {
				t.Errorf("%s:%d: %s", p.name, b.line, said)
			}
		}
	}
	for _, language := range []string{"terraform", "hcl", "yaml", "go", "shell"} {
		if seen[language] == 0 {
			t.Errorf("no block in %s among %v", language, seen)
		}
	}
}

// malformed says what is wrong with a block, or nothing.
func malformed(b block) string {
	text := []byte(b.text)
	switch b.language {
	case "hcl", "terraform":
		if cliConfiguration(b) {
			return "" // an older form of the language; TestCLIConfigurationIsTaken asks the program
		}
		if _, diags := hclsyntax.ParseConfig(text, "block", hcl.InitialPos); diags.HasErrors() {
			return diags.Error()
		}
		if formatted := hclwrite.Format(text); !bytes.Equal(formatted, text) {
			return fmt.Sprintf("not formatted; it should be\n%s", formatted)
		}
	case "yaml":
		decoder := yaml.NewDecoder(bytes.NewReader(text))
		for {
			var value any
			if err := decoder.Decode(&value); err == io.EOF { //nolint:errorlint // Decode gives io.EOF itself
				return ""
			} else if err != nil {
				return err.Error()
			}
		}
	case "json":
		if !json.Valid(text) {
			return "no JSON"
		}
	case "go":
		if formatted, err := format.Source(text); err != nil {
			return err.Error()
		} else if !bytes.Equal(formatted, text) {
			return "not formatted"
		}
	case "shell", "console", "text":
	case "":
		return "it does not say which language it is in"
	default:
		return "a language that this test does not know: " + b.language
	}
	return ""
}

func TestMalformed(t *testing.T) {
	for language, texts := range map[string][2]string{
		"hcl": {"a = 1\n", "a = {\n"}, "terraform": {"a = 1\n", "a=1\n"}, "yaml": {"a: 1\n---\nb: 2\n", "a: [\n"}, "json": {"{}", "{"}, "go": {"func a() {}\n", "func a( {}\n"}, "text": {"", ""}, "": {"", ""}, "perl": {"", ""},
	} {
		good := language != "" && language != "perl"
		if said := malformed(block{language: language, text: texts[0]}); (said == "") != good {
			t.Errorf("%q: %q", language, said)
		}
		if language == "text" || !good {
			continue
		}
		if malformed(block{language: language, text: texts[1]}) == "" {
			t.Errorf("%q: %q is taken", language, texts[1])
		}
	}
}

// module is a block as a whole configuration: with what it refers to, which stands in blocks before it on the same page.
type module struct {
	page  *page
	block block
	body  *hclsyntax.Body // of the block itself
	text  string          // of all
}

// readModules gives every block of configuration for a directory.
func readModules(t *testing.T) []module {
	t.Helper()
	var out []module
	for _, p := range readPages(t) {
		for i, b := range p.blocks {
			if !configuration(b) || cliConfiguration(b) {
				continue
			}
			body := parse(b.text)
			if body == nil {
				continue // TestBlocksParse says so
			}
			m := module{page: p, block: b, body: body, text: b.text}
			for before := i - 1; before >= 0 && len(undeclared(m.text)) > 0; before-- {
				earlier := p.blocks[before]
				if !configuration(earlier) || cliConfiguration(earlier) || !declaresAny(earlier.text, undeclared(m.text)) {
					continue
				}
				m.text = earlier.text + "\n" + m.text
			}
			out = append(out, m)
		}
	}
	return out
}

func parse(text string) *hclsyntax.Body {
	parsed, diags := hclsyntax.ParseConfig([]byte(text), "block", hcl.InitialPos)
	if diags.HasErrors() {
		return nil
	}
	body, ok := parsed.Body.(*hclsyntax.Body)
	if !ok {
		return nil
	}
	return body
}

// declared gives the addresses of what a configuration declares.
func declared(body *hclsyntax.Body) []string {
	var out []string
	for _, b := range body.Blocks {
		switch {
		case b.Type == "resource" && len(b.Labels) == 2:
			out = append(out, strings.Join(b.Labels, "."))
		case slices.Contains([]string{"data", "ephemeral", "action"}, b.Type) && len(b.Labels) == 2:
			out = append(out, b.Type+"."+strings.Join(b.Labels, "."))
		}
	}
	return out
}

// undeclared gives the addresses of constructs of the provider that a configuration refers to and does not declare.
func undeclared(text string) []string {
	body := parse(text)
	if body == nil {
		return nil
	}
	have := declared(body)
	var out []string
	for _, traversal := range traversals(body) {
		if construct, address, _ := constructOf(traversal); construct != "" && !slices.Contains(have, address) {
			out = append(out, address)
		}
	}
	return out
}

// traversals are all references in a body.
func traversals(body *hclsyntax.Body) []hcl.Traversal {
	var out []hcl.Traversal
	for _, a := range body.Attributes {
		out = append(out, a.Expr.Variables()...)
	}
	for _, b := range body.Blocks {
		out = append(out, traversals(b.Body)...)
	}
	return out
}

func declaresAny(text string, addresses []string) bool {
	body := parse(text)
	return body != nil && slices.ContainsFunc(declared(body), func(a string) bool { return slices.Contains(addresses, a) })
}

// TestConfigurationFitsTheSchemas needs no Terraform program, so that it holds for what an older one does not know, too.
func TestConfigurationFitsTheSchemas(t *testing.T) {
	schemas, modules := readSchemas(t), readModules(t)
	for _, m := range modules {
		for _, said := range schemas.checkSchema(m.body) {
			t.Errorf("%s:%d: %s", m.page.name, m.block.line, said)
		}
		for _, address := range undeclared(m.text) {
			t.Errorf("%s:%d: %s stands neither in this block nor in one before it", m.page.name, m.block.line, address)
		}
	}
	if len(modules) < 30 {
		t.Errorf("found only %d blocks", len(modules))
	}
}

// needs names what not every program knows.
var needs = map[testenv.Part]*regexp.Regexp{
	testenv.Queries:   regexp.MustCompile(`(?m)^list "`),
	testenv.Actions:   regexp.MustCompile(`(?m)^action "|\baction_trigger \{`),
	testenv.Identity:  regexp.MustCompile(`(?s)import \{[^}]*\bidentity += \{`),
	testenv.Ephemeral: regexp.MustCompile(`(?m)^ephemeral "|\bephemeral +=`),
	testenv.WriteOnly: regexp.MustCompile(`_wo +=`),
}

// needed are the parts that the configuration needs. Whatever is missing, that it fits the schemas is tested.
func needed(text string) []testenv.Part {
	var out []testenv.Part
	for part, what := range needs {
		if what.MatchString(text) {
			out = append(out, part)
		}
	}
	return out
}

// TestConfigurationValidates runs `terraform validate` with this provider on every block. One after a comment
// `refused: CODE...` has to fail with these codes. What may stand in a module is
// validated as one, all of them at once; the rest one by one.
func TestConfigurationValidates(t *testing.T) {
	cli := newCLI(t)
	var together []module
	alone := 0
	for _, m := range readModules(t) {
		codes, refused := strings.CutPrefix(m.block.comment, "refused: ")
		if testenv.Has(needed(m.text)...) && !rootOnly.MatchString(m.text) && !refused {
			together = append(together, m)
			continue
		}
		alone++
		t.Run(fmt.Sprintf("%s:%d", m.page.name, m.block.line), func(t *testing.T) {
			testenv.Require(t, needed(m.text)...)
			dir := t.TempDir()
			arguments := []string{"validate", "-no-color"}
			if strings.HasPrefix(m.block.text, "list ") || strings.Contains(m.block.text, "\nlist ") {
				arguments = append(arguments, "-query")
				write(t, filepath.Join(dir, "provider.tf"), "provider \"agentkernel\" {}\n")
				writeModule(t, dir, "main.tfquery.hcl", m)
			} else {
				writeModule(t, dir, "main.tf", m)
			}
			out, err := cli.run(t, dir, arguments...)
			if (err != nil) != refused {
				t.Errorf("%v\n%s\n%s", err, m.text, out)
			}
			for code := range strings.FieldsSeq(codes) {
				if refused && !strings.Contains(out, "Code: "+code) {
					t.Errorf("it is not refused with %s:\n%s", code, out)
				}
			}
		})
	}
	if len(together) < 20 || alone == 0 {
		t.Errorf("found only %d and %d blocks", len(together), alone)
	}
	dir := t.TempDir()
	var calls strings.Builder
	for i, m := range together {
		name := fmt.Sprintf("%s-%d", strings.NewReplacer("/", "-", ".", "-").Replace(m.page.name), m.block.line)
		writeModule(t, filepath.Join(dir, name), "main.tf", m)
		writeFiles(t, dir, m)
		fmt.Fprintf(&calls, "module \"m%d\" {\n  source = \"./%s\"\n", i, name)
		for _, b := range m.body.Blocks {
			if b.Type == "variable" && b.Body.Attributes["default"] == nil {
				fmt.Fprintf(&calls, "  %s = null\n", b.Labels[0])
			}
		}
		calls.WriteString("}\n")
	}
	write(t, filepath.Join(dir, "main.tf"), calls.String())
	if out, err := cli.run(t, dir, "get", "-no-color"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := cli.run(t, dir, "validate", "-no-color"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// rootOnly is what Terraform takes in no module.
var rootOnly = regexp.MustCompile(`(?m)^(import|list) ["{]`)

// writeModule writes the block with what it needs beside it.
func writeModule(t *testing.T, dir, name string, m module) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, name), m.text)
	if !strings.Contains(m.text, "required_providers {") {
		write(t, filepath.Join(dir, "terraform.tf"), requiredProviders)
	}
	var missing strings.Builder
	for _, name := range undeclaredVariables(m.text) {
		fmt.Fprintf(&missing, "variable %q {\n  default = null\n}\n", name)
	}
	write(t, filepath.Join(dir, "variables.tf"), missing.String())
	writeFiles(t, dir, m)
}

// undeclaredVariables are the input variables that a block reads and leaves to its reader to declare.
func undeclaredVariables(text string) []string {
	body := parse(text)
	var out []string
	for _, traversal := range traversals(body) {
		if traversal.RootName() != "var" || len(traversal) < 2 {
			continue
		}
		name, ok := traversal[1].(hcl.TraverseAttr)
		if !ok || slices.Contains(out, name.Name) || slices.ContainsFunc(body.Blocks, func(b *hclsyntax.Block) bool { return b.Type == "variable" && b.Labels[0] == name.Name }) {
			continue
		}
		out = append(out, name.Name)
	}
	return out
}

// writeFiles makes what file("…") reads. It only has to be there; a name without path.module is below the root module.
func writeFiles(t *testing.T, dir string, m module) {
	t.Helper()
	for _, found := range regexp.MustCompile(`\bfile\("(?:\$\{path\.module\}/)?([a-z0-9._-]+)"\)`).FindAllStringSubmatch(m.text, -1) {
		write(t, filepath.Join(dir, found[1]), "{}\n")
	}
	for _, found := range regexp.MustCompile(`\bmanifest += "([a-z0-9./_-]+)"`).FindAllStringSubmatch(m.text, -1) {
		name := filepath.Join(dir, filepath.FromSlash(found[1]))
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, name, manifest)
	}
}

// manifest is a plugin's, with what one has to say.
const manifest = `manifest_version = 1

[provider]
id = "acme"
name = "Acme"
version = "1.0.0"
description = "Sandboxes."
license = "Apache-2.0"

[compat]
protocol = "e2b-rest/1"

[runtime]
kind = "rest"

[endpoint]
base_url = "https://api.acme.example.org"

[endpoint.auth]
scheme = "header"
header = "X-API-Key"

[features]
supported = ["sandbox.lifecycle", "exec.run"]

[security]
network = ["api.acme.example.org"]

[auth]
any_of = ["api_key"]

[config.fields.api_key]
type = "string"
secret = true
credential = true
description = "The key."
`

const requiredProviders = "terraform {\n  required_providers {\n    agentkernel = {\n      source = \"agentkernel/agentkernel\"\n    }\n  }\n}\n"

// TestCLIConfigurationIsTaken gives what the pages show for the program itself to the program.
func TestCLIConfigurationIsTaken(t *testing.T) {
	cli := newCLI(t)
	found := 0
	for _, p := range readPages(t) {
		for _, b := range p.blocks {
			if !configuration(b) || !cliConfiguration(b) {
				continue
			}
			found++
			file := filepath.Join(t.TempDir(), "cli.tfrc")
			write(t, file, b.text)
			c := exec.CommandContext(t.Context(), cli.Path, "version")
			c.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE="+file, "CHECKPOINT_DISABLE=1")
			if out, err := c.CombinedOutput(); err != nil || strings.Contains(string(out), "problems with the CLI configuration") {
				t.Errorf("%s:%d: %v\n%s", p.name, b.line, err, out)
			}
		}
	}
	if found < 3 {
		t.Errorf("found only %d", found)
	}
}

// shown is the comment before a block that shows what a command prints.
var shown = regexp.MustCompile(`^output of: terraform (plan) in (examples/[a-z/-]+)$`)

// TestShownOutput: where a page shows what a command prints, it prints that. Lines are broken by the width of a terminal, so
// that only the words count.
func TestShownOutput(t *testing.T) {
	cli := newCLI(t)
	found := 0
	for _, p := range readPages(t) {
		for _, b := range p.blocks {
			if !strings.HasPrefix(b.comment, "output of:") {
				continue
			}
			found++
			parts := shown.FindStringSubmatch(b.comment)
			if parts == nil {
				t.Errorf("%s:%d: %q says no command that this test runs", p.name, b.line, b.comment)
				continue
			}
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(filepath.Join(root, filepath.FromSlash(parts[2])))); err != nil {
				t.Fatal(err)
			}
			out, _ := cli.run(t, dir, parts[1], "-no-color", "-input=false") // a refusal is shown, too
			words := func(s string) string { return strings.Join(strings.Fields(s), " ") }
			if cli.OpenTofu {
				continue // it draws frames and colours otherwise
			}
			if !strings.Contains(words(out), words(b.text)) {
				t.Errorf("%s:%d: %s prints now\n%s", p.name, b.line, b.comment, out)
			}
		}
	}
	if found == 0 {
		t.Error("found none")
	}
}

// bin is the directory of the program, which is built once.
var bin string

func TestMain(m *testing.M) {
	status := m.Run()
	if bin != "" {
		if err := os.RemoveAll(bin); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(status)
}

var built = sync.OnceValues(func() (string, error) {
	var err error
	if bin, err = os.MkdirTemp("", "agentkernel-docs-"); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", filepath.Join(bin, "terraform-provider-agentkernel"), ".")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return bin, nil
})

// cli is Terraform or OpenTofu with this provider.
type cli struct {
	testenv.CLI
	config string
}

func newCLI(t *testing.T) *cli {
	t.Helper()
	c := &cli{CLI: testenv.ChosenCLI(t), config: filepath.Join(t.TempDir(), "cli.tfrc")}
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	write(t, c.config, "provider_installation {\n  dev_overrides {\n    \"agentkernel/agentkernel\" = \""+filepath.ToSlash(bin)+"\"\n  }\n  direct {}\n}\n")
	return c
}

func (c *cli) run(t *testing.T, dir string, arguments ...string) (string, error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), c.Path, arguments...)
	command.Dir = dir
	command.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE="+c.config, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "TF_INPUT=0", "AGENTKERNEL_AUDIT_LOG=")
	out, err := command.CombinedOutput()
	return string(out), err
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
