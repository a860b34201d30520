package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// configurationText uses the provider as a user would write it. A data source in it makes the plan start the program.
const configurationText = `terraform {
  required_providers {
    agentkernel = {
      source  = "agentkernel/agentkernel"
      version = "` + version + `"
    }
  }
}

data "agentkernel_capabilities" "local" {
  backend = "local_subprocess"
}

output "isolation" {
  value = data.agentkernel_capabilities.local.isolation
}
`

var packageHash = regexp.MustCompile(`"(h1:[^"]+)"`)

// checkMirror lays the archives out in both ways that `terraform providers mirror` and the documentation of mirrors know,
// packed and unpacked, and makes each program install from there and nowhere else, write a lock file, and plan.
func (b *built) checkMirror(ctx context.Context, clis []string, targets []target, dir string) error {
	hashes := map[string][]string{}
	for _, cli := range clis {
		said, err := output(ctx, ".", b.env, absolute(cli), "version")
		if err != nil {
			return err
		}
		title, _, _ := strings.Cut(said, "\n")
		host := "registry.terraform.io"
		if strings.HasPrefix(title, "OpenTofu") {
			host = "registry.opentofu.org"
		}
		for _, layout := range []string{"packed", "unpacked"} {
			where := filepath.Join(dir, strings.Fields(title)[0], layout)
			provider := filepath.Join(where, "mirror", host, "agentkernel", "agentkernel")
			for _, t := range targets {
				if err := b.mirror(provider, layout, t); err != nil {
					return err
				}
			}
			hash, err := b.install(ctx, absolute(cli), where)
			if err != nil {
				return fmt.Errorf("%s, %s mirror: %w", title, layout, err)
			}
			fmt.Printf("  %s, %s mirror: %s\n", title, layout, hash)
			hashes[hash] = append(hashes[hash], title+" "+layout)
		}
	}
	// The hash is one of the contents, so all must agree.
	if len(hashes) != 1 {
		return fmt.Errorf("the lock files differ: %v", hashes)
	}
	return nil
}

func (b *built) mirror(provider, layout string, t target) error {
	archive := archiveFiles(t)[0]
	if layout == "packed" {
		if err := os.MkdirAll(provider, 0o755); err != nil { // #nosec G301 -- a mirror
			return err
		}
		return copyFile(b.path(archive), filepath.Join(provider, archive), 0o644)
	}
	program := name + "_v" + version
	into := filepath.Join(provider, version, t.String())
	if err := os.MkdirAll(into, 0o755); err != nil { // #nosec G301 -- a mirror
		return err
	}
	return copyFile(filepath.Join(filepath.Dir(b.dist), "unpacked", t.String(), program), filepath.Join(into, program), 0o755)
}

// install gives the hash of the package that the lock file holds.
func (b *built) install(ctx context.Context, cli, where string) (string, error) {
	work := filepath.Join(where, "configuration")
	if err := os.Mkdir(work, 0o700); err != nil {
		return "", err
	}
	config := filepath.Join(where, "cli.tfrc")
	rc := fmt.Sprintf("provider_installation {\n  filesystem_mirror {\n    path = %q\n  }\n}\n", filepath.Join(where, "mirror"))
	for path, text := range map[string]string{config: rc, filepath.Join(work, "main.tf"): configurationText} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	env := clean(b.env, "TF_PLUGIN_CACHE_DIR", "TF_DATA_DIR", "TF_CLI_ARGS", "TF_CLI_ARGS_init", "TF_WORKSPACE", "TF_REATTACH_PROVIDERS", "TF_LOG", "AGENTKERNEL_AUDIT_LOG")
	env = append(env, "TF_CLI_CONFIG_FILE="+config, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "TF_INPUT=0")
	if _, err := output(ctx, work, env, cli, "init", "-no-color"); err != nil {
		return "", err
	}
	lock, err := os.ReadFile(filepath.Join(work, ".terraform.lock.hcl")) // #nosec G304 -- written by the program
	if err != nil {
		return "", err
	}
	if !strings.Contains(string(lock), `"`+version+`"`) {
		return "", fmt.Errorf("the lock file does not hold %s:\n%s", version, lock)
	}
	found := packageHash.FindStringSubmatch(string(lock))
	if found == nil {
		return "", fmt.Errorf("the lock file has no hash:\n%s", lock)
	}
	// Again, against the lock file.
	if _, err := output(ctx, work, env, cli, "init", "-no-color", "-lockfile=readonly"); err != nil {
		return "", err
	}
	planned, err := output(ctx, work, env, cli, "plan", "-no-color")
	if err != nil {
		return "", err
	}
	if !strings.Contains(planned, `+ isolation = "none"`) {
		return "", errors.New("the plan does not show what the provider says:\n" + planned)
	}
	return found[1], nil
}
