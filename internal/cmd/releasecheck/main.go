// Command releasecheck builds a release as the registry would get it, for two targets, and checks what came out: names,
// checksums, signature, manifest, bill of materials, version, that a second build elsewhere gives the same bytes, and
// that Terraform and OpenTofu install it from a mirror.
//
//	go run ./internal/cmd/releasecheck -goreleaser PROGRAM -cyclonedx PROGRAM -cli TERRAFORM -cli TOFU
//
// It works on a copy of the tree with a commit and a tag of its own and signs with a key that it throws away, so it
// changes nothing here, publishes nothing and needs no secret. It needs git and gpg.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
)

const (
	name = "terraform-provider-agentkernel"
	// version is one that no release ever gets. Its first number is below 2: Go takes no other tag for this module.
	version = "0.9999.0"
)

type programs []string

func (p *programs) String() string { return strings.Join(*p, ",") }

func (p *programs) Set(value string) error { *p = append(*p, value); return nil }

func main() {
	var tools tools
	flag.StringVar(&tools.goreleaser, "goreleaser", "goreleaser", "the goreleaser program")
	flag.StringVar(&tools.cyclonedx, "cyclonedx", "cyclonedx-gomod", "the cyclonedx-gomod program")
	flag.Var(&tools.clis, "cli", "a Terraform or OpenTofu program; may be given several times")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, tools); err != nil {
		fmt.Fprintln(os.Stderr, "releasecheck:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, tools tools) (err error) {
	if len(tools.clis) == 0 {
		return fmt.Errorf("no -cli given")
	}
	// Short, because the key ring has a socket in it, whose path may not be long.
	work, err := os.MkdirTemp("", "akrel-")
	if err != nil {
		return err
	}
	defer func() {
		// Go's module cache is read-only, and this removes only what was made here.
		if removed := os.RemoveAll(work); err == nil {
			err = removed
		}
	}()

	// This machine's own target, which can be run, and one of another system.
	own := target{runtime.GOOS, runtime.GOARCH}
	targets := []target{own, {"darwin", "arm64"}}
	if own == targets[1] {
		targets[1] = target{"linux", "amd64"}
	}

	step("every target that the registry's users have is released")
	if err := checkTargets(".goreleaser.yml"); err != nil {
		return err
	}
	step("building for %s and %s", targets[0], targets[1])
	key, err := newSigningKey(ctx, filepath.Join(work, "k"))
	if err != nil {
		return err
	}
	defer key.close(ctx)
	first, err := build(ctx, tools, key, filepath.Join(work, "first"), targets, "")
	if err != nil {
		return err
	}
	step("file names, checksums, manifest")
	if err := first.checkFiles(targets); err != nil {
		return err
	}
	step("signature")
	if err := key.checkSignature(ctx, first.path(sumsName)); err != nil {
		return err
	}
	step("each archive holds the program alone, built as it should be, and its bill of materials")
	for _, t := range targets {
		if err := first.checkProgram(ctx, t, t == own); err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
	}
	step("Terraform and OpenTofu install it from a mirror")
	if err := first.checkMirror(ctx, tools.clis, targets, filepath.Join(work, "mirror")); err != nil {
		return err
	}
	step("a second build, elsewhere and with nothing in Go's build cache, gives the same bytes")
	second, err := build(ctx, tools, key, filepath.Join(work, "another", "place"), targets[:1], filepath.Join(work, "cache"))
	if err != nil {
		return err
	}
	if err := sameFiles(first, second, archiveFiles(own)); err != nil {
		return err
	}
	step("all of it is as the registry wants it")
	return nil
}

func step(format string, arguments ...any) {
	fmt.Printf("release-check: "+format+"\n", arguments...)
}
