package testenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// What a Terraform or OpenTofu program can do. A test names what it needs and is skipped with the other program, or with
// an older one; what it would show is then shown over the plugin protocol, in internal/provider.
const (
	// Terraform is a Terraform or OpenTofu program.
	Terraform Part = "terraform"
	// OpenTofu is an OpenTofu program beside one of Terraform, for tests that go from one to the other.
	OpenTofu Part = "opentofu"
	// Ephemeral are ephemeral resources.
	Ephemeral Part = "ephemeral"
	// WriteOnly are write-only attributes.
	WriteOnly Part = "write-only"
	// Identity is import by identity.
	Identity Part = "identity"
	// Actions are action blocks and action triggers.
	Actions Part = "actions"
	// Queries are list blocks and `terraform query`.
	Queries Part = "queries"
)

// features says since which version 1.x each program has what a part stands for; 0 is never. OpenTofu counts on its own:
// 1.14 of one says nothing about 1.14 of the other.
var features = []struct {
	part                Part
	terraform, openTofu int
}{
	{Ephemeral, 10, 11},
	{WriteOnly, 11, 11},
	{Identity, 12, 12},
	{Actions, 14, 0},
	{Queries, 14, 0},
}

func init() {
	table = append(
		table,
		entry{Terraform, probeTerraform, "put terraform or tofu on the PATH, or set TF_ACC_TERRAFORM_PATH"},
		entry{OpenTofu, probeOpenTofu, "put terraform on the PATH, and tofu or compile it with tools/build-tool.sh tofu"},
	)
	for _, f := range features {
		programs := fmt.Sprintf("Terraform 1.%d or later", f.terraform)
		if f.openTofu > 0 {
			programs += fmt.Sprintf(" or OpenTofu 1.%d or later", f.openTofu)
		}
		table = append(table, entry{f.part, func() error { return probeFeature(f.terraform, f.openTofu) }, "set TF_ACC_TERRAFORM_PATH to " + programs})
	}
}

// CLI is a Terraform or OpenTofu program.
type CLI struct {
	Path string
	// OpenTofu tells it from Terraform.
	OpenTofu bool
	// Major and Minor are the version, and Version its whole text.
	Major, Minor int
	Version      string
}

// String is the name and version, as in "OpenTofu 1.12.6".
func (c CLI) String() string {
	if c.OpenTofu {
		return "OpenTofu " + c.Version
	}
	return "Terraform " + c.Version
}

// RegistryHost is where the program looks for a provider whose source names no host.
func (c CLI) RegistryHost() string {
	if c.OpenTofu {
		return "registry.opentofu.org"
	}
	return "registry.terraform.io"
}

// TerraformCLI gives the path of the Terraform or OpenTofu program to test with, and skips the test without one.
func TerraformCLI(tb testing.TB) string {
	tb.Helper()
	return ChosenCLI(tb).Path
}

// ChosenCLI gives the program to test with, and skips the test without one.
func ChosenCLI(tb testing.TB) CLI {
	tb.Helper()
	Require(tb, Terraform)
	cli, err := chosenCLI()
	if err != nil {
		tb.Fatal(err)
	}
	return cli
}

// PluginTesting makes terraform-plugin-testing take the program to test with, for the rest of the test. It skips the test
// without one.
func PluginTesting(t *testing.T) {
	t.Helper()
	cli := ChosenCLI(t)
	t.Setenv("TF_ACC_TERRAFORM_PATH", cli.Path)
	// terraform-plugin-testing offers its provider under the address that a configuration without a host means.
	t.Setenv("TF_ACC_PROVIDER_HOST", cli.RegistryHost())
}

// BothCLIs gives a Terraform and an OpenTofu program, and skips the test without one of them.
func BothCLIs(tb testing.TB) []CLI {
	tb.Helper()
	Require(tb, OpenTofu)
	clis, err := bothCLIs()
	if err != nil {
		tb.Fatal(err)
	}
	return clis
}

func probeTerraform() error {
	_, err := chosenCLI()
	return err
}

func probeOpenTofu() error {
	_, err := bothCLIs()
	return err
}

func bothCLIs() ([]CLI, error) {
	terraform, err := terraformOnly()
	if err != nil {
		return nil, err
	}
	tofu, err := openTofu()
	if err != nil {
		return nil, err
	}
	return []CLI{terraform, tofu}, nil
}

func probeFeature(terraform, openTofu int) error {
	cli, err := chosenCLI()
	if err != nil {
		return err
	}
	return cli.has(terraform, openTofu)
}

// has is nil if the program is new enough for what Terraform has since 1.terraform and OpenTofu since 1.openTofu, or
// never if that is 0.
func (c CLI) has(terraform, openTofu int) error {
	needed := terraform
	if c.OpenTofu {
		needed = openTofu
	}
	if needed == 0 || c.Major < 1 || c.Major == 1 && c.Minor < needed {
		return fmt.Errorf("%s does not have it", c)
	}
	return nil
}

// chosenCLI finds the program the way terraform-plugin-testing does, and a tofu besides. It is asked once.
var chosenCLI = sync.OnceValues(func() (CLI, error) {
	if path := os.Getenv("TF_ACC_TERRAFORM_PATH"); path != "" {
		cli, err := askCLI(path)
		if err != nil {
			return CLI{}, fmt.Errorf("TF_ACC_TERRAFORM_PATH: %w", err)
		}
		return cli, nil
	}
	for _, name := range []string{"terraform", "tofu"} {
		if path, err := exec.LookPath(name); err == nil {
			return askCLI(path)
		}
	}
	return CLI{}, errors.New("no terraform and no tofu on the PATH")
})

// terraformOnly gives the program to test with if it is Terraform, and otherwise the one on the PATH.
func terraformOnly() (CLI, error) {
	if cli, err := chosenCLI(); err == nil && !cli.OpenTofu {
		return cli, nil
	}
	path, err := exec.LookPath("terraform")
	if err != nil {
		return CLI{}, errors.New("no terraform on the PATH")
	}
	cli, err := askCLI(path)
	if err == nil && cli.OpenTofu {
		err = fmt.Errorf("%s is OpenTofu", path)
	}
	return cli, err
}

// openTofu gives the program to test with if it is OpenTofu, otherwise the one on the PATH, and otherwise the one that
// tools/build-tool.sh has compiled.
func openTofu() (CLI, error) {
	if cli, err := chosenCLI(); err == nil && cli.OpenTofu {
		return cli, nil
	}
	if path, err := exec.LookPath("tofu"); err == nil {
		return askCLI(path)
	}
	cache := os.Getenv("AGENTKERNEL_CACHE") // as in tools/build-tool.sh
	if cache == "" {
		user := os.Getenv("XDG_CACHE_HOME")
		if user == "" {
			user = filepath.Join(os.Getenv("HOME"), ".cache")
		}
		cache = filepath.Join(user, "terraform-provider-agentkernel")
	}
	built, err := filepath.Glob(filepath.Join(cache, "tools", "tofu-*", "tofu"))
	if err != nil || len(built) == 0 {
		return CLI{}, errors.New("no tofu on the PATH, and none was compiled")
	}
	newest := CLI{}
	for _, path := range built {
		cli, err := askCLI(path)
		if err == nil && (newest.Path == "" || cli.Major*1000+cli.Minor >= newest.Major*1000+newest.Minor) {
			newest = cli
		}
	}
	if newest.Path == "" {
		return CLI{}, fmt.Errorf("%s does not run", built[0])
	}
	return newest, nil
}

// askCLI asks a program what it is. It needs the text, too: the JSON of OpenTofu calls its version Terraform's.
func askCLI(program string) (CLI, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return CLI{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	ask := func(arguments ...string) ([]byte, error) {
		command := exec.CommandContext(ctx, path, arguments...) // #nosec G204 -- the program of the tests
		command.Env = append(os.Environ(), "CHECKPOINT_DISABLE=1", "TF_LOG=", "TF_CLI_CONFIG_FILE="+os.DevNull)
		return command.Output()
	}
	text, err := ask("version")
	if err != nil {
		return CLI{}, fmt.Errorf("%s does not run: %w", path, err)
	}
	structured, err := ask("version", "-json")
	if err != nil {
		return CLI{}, fmt.Errorf("%s does not tell its version: %w", path, err)
	}
	return readVersion(path, text, structured)
}

func readVersion(path string, text, structured []byte) (CLI, error) {
	var answer struct {
		Version string `json:"terraform_version"`
	}
	cli := CLI{Path: path}
	if err := json.Unmarshal(structured, &answer); err != nil {
		return cli, fmt.Errorf("%s does not tell its version: %w", path, err)
	}
	cli.Version = answer.Version
	if _, err := fmt.Sscanf(answer.Version, "%d.%d", &cli.Major, &cli.Minor); err != nil {
		return cli, fmt.Errorf("%s calls its version %q", path, answer.Version)
	}
	switch first, _, _ := strings.Cut(string(text), " "); first {
	case "OpenTofu":
		cli.OpenTofu = true
	case "Terraform":
	default:
		return cli, fmt.Errorf("%s is neither Terraform nor OpenTofu", path)
	}
	return cli, nil
}
