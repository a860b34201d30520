package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// tools are the programs that a release is made and tried with.
type tools struct {
	goreleaser, cyclonedx string
	clis                  programs
}

// target is a system that a program is built for.
type target struct{ os, arch string }

// String is the name in the files of a release, as in linux_amd64.
func (t target) String() string { return t.os + "_" + t.arch }

// archiveFiles are the files of a release that are made for one target.
func archiveFiles(t target) []string {
	return []string{fmt.Sprintf("%s_%s_%s.zip", name, version, t), fmt.Sprintf("%s_%s_%s.cdx.json", name, version, t)}
}

// sumsName and manifestName are the files of a release that are made once.
const (
	sumsName     = name + "_" + version + "_SHA256SUMS"
	manifestName = name + "_" + version + "_manifest.json"
)

// wantedTargets are the systems that must have a program, as goreleaser writes them: those that Terraform's registry asks
// for (linux/amd64 is what Terraform's own service runs, linux/arm is ARMv6), and windows/arm64.
var wantedTargets = []string{
	"darwin_amd64", "darwin_arm64", "freebsd_amd64", "linux_amd64", "linux_arm64", "linux_arm_6", "windows_amd64", "windows_arm64",
}

// configuration is the part of goreleaser's configuration that is looked at here.
type configuration struct {
	Builds []struct {
		Targets []string       `yaml:"targets"`
		Others  map[string]any `yaml:",inline"`
	} `yaml:"builds"`
	Others map[string]any `yaml:",inline"`
}

func readConfiguration(file string) (configuration, error) {
	var c configuration
	text, err := os.ReadFile(file) // #nosec G304 -- goreleaser's configuration
	if err != nil {
		return c, err
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("%s: %w", file, err)
	}
	if len(c.Builds) != 1 {
		return c, fmt.Errorf("%s has %d builds, and this check knows what to do with one", file, len(c.Builds))
	}
	return c, nil
}

func checkTargets(file string) error {
	c, err := readConfiguration(file)
	if err != nil {
		return err
	}
	var wrong []error
	for _, t := range wantedTargets {
		if !slices.Contains(c.Builds[0].Targets, t) {
			wrong = append(wrong, fmt.Errorf("%s does not build for %s", file, t))
		}
	}
	return errors.Join(wrong...)
}

// only is the configuration with these targets in the place of all.
func only(file string, targets []target) ([]byte, error) {
	c, err := readConfiguration(file)
	if err != nil {
		return nil, err
	}
	c.Builds[0].Targets = nil
	for _, t := range targets {
		c.Builds[0].Targets = append(c.Builds[0].Targets, t.String())
	}
	return yaml.Marshal(c)
}

// built is what goreleaser left.
type built struct {
	dist, commit string
	env          []string
}

func (b *built) path(file string) string { return filepath.Join(b.dist, file) }

// build makes a release out of a copy of this tree, in dir. With a cache, nothing of Go's usual build cache is used.
func build(ctx context.Context, tools tools, key *signingKey, dir string, targets []target, cache string) (*built, error) {
	source := filepath.Join(dir, "source")
	if err := copyTree(ctx, source); err != nil {
		return nil, fmt.Errorf("copy the tree: %w", err)
	}
	// The same names and times for every copy, so that both have the same commit.
	git := func(arguments ...string) (string, error) {
		return output(ctx, source, gitEnvironment(), "git", arguments...)
	}
	for _, arguments := range [][]string{
		{"init", "-q", "-b", "main"},
		{"add", "-A"},
		{"commit", "-q", "-m", "What the check releases"},
		{"tag", "v" + version},
		// goreleaser wants to know where it would publish; it does not.
		{"remote", "add", "origin", "https://github.com/agentkernel/" + name + ".git"},
	} {
		if _, err := git(arguments...); err != nil {
			return nil, err
		}
	}
	commit, err := git("rev-parse", "HEAD")
	if err != nil {
		return nil, err
	}
	config, err := only(filepath.Join(source, ".goreleaser.yml"), targets)
	if err != nil {
		return nil, err
	}
	// Beside the tree: a file in it would make the tree differ from the tag.
	file := filepath.Join(dir, "goreleaser.yml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, err
	}
	env := append(clean(os.Environ(), "GITHUB_TOKEN", "GITLAB_TOKEN", "GITEA_TOKEN", "GOFLAGS", "GOOS", "GOARCH", "GIT_DIR", "GIT_WORK_TREE"),
		"PATH="+filepath.Dir(absolute(tools.cyclonedx))+string(os.PathListSeparator)+os.Getenv("PATH"),
		"GNUPGHOME="+key.home, "GPG_FINGERPRINT="+key.fingerprint)
	if cache != "" {
		env = append(env, "GOCACHE="+cache)
	}
	if _, err := output(ctx, source, env, absolute(tools.goreleaser), "release", "--clean", "--skip=publish,announce", "--config", file); err != nil {
		return nil, err
	}
	return &built{dist: filepath.Join(source, "dist"), commit: strings.TrimSpace(commit), env: env}, nil
}

// copyTree copies what git knows here, and what it would be told with `git add`.
func copyTree(ctx context.Context, to string) error {
	list, err := output(ctx, ".", gitEnvironment(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	for file := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		info, err := os.Lstat(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted here, and not yet in git
		}
		if err != nil {
			return err
		}
		into := filepath.Join(to, file)
		if err := os.MkdirAll(filepath.Dir(into), 0o755); err != nil { // #nosec G301 -- a source tree
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file", file)
		}
		if err := copyFile(file, into, info.Mode().Perm()); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string, mode os.FileMode) (err error) {
	source, err := os.Open(from) // #nosec G304 -- a file of the tree or of the release
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	into, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode) // #nosec G304 -- below a directory of our own
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, into.Close()) }()
	_, err = io.Copy(into, source)
	return err
}

// gitEnvironment makes git independent of whose machine this is.
func gitEnvironment() []string {
	env := clean(os.Environ(), "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
	return append(env, "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_AUTHOR_NAME=release-check", "GIT_AUTHOR_EMAIL=release-check@localhost", "GIT_AUTHOR_DATE=2020-01-02T03:04:05Z",
		"GIT_COMMITTER_NAME=release-check", "GIT_COMMITTER_EMAIL=release-check@localhost", "GIT_COMMITTER_DATE=2020-01-02T03:04:05Z")
}

// clean is an environment without some variables.
func clean(env []string, without ...string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		key, _, _ := strings.Cut(entry, "=")
		return slices.Contains(without, key)
	})
}

func absolute(program string) string {
	if path, err := exec.LookPath(program); err == nil {
		program = path
	}
	if path, err := filepath.Abs(program); err == nil {
		return path
	}
	return program
}

// output runs a program and gives its standard output; what it said stands in the error.
func output(ctx context.Context, dir string, env []string, program string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, program, arguments...) // #nosec G204 -- programs of the check
	command.Dir, command.Env = dir, env
	// goreleaser ends its compilers when it is interrupted, and cannot when it is killed.
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = 20 * time.Second
	var out, diagnostics bytes.Buffer
	command.Stdout, command.Stderr = &out, &diagnostics
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), strings.Join(arguments, " "), err, out.String(), diagnostics.String())
	}
	return out.String(), nil
}
