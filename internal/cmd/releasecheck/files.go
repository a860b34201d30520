package main

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// checkFiles wants exactly the files of a release, and sums that are right for each.
func (b *built) checkFiles(targets []target) error {
	wanted := []string{sumsName, sumsName + ".sig"}
	summed := []string{manifestName}
	for _, t := range targets {
		wanted = append(wanted, archiveFiles(t)...)
		summed = append(summed, archiveFiles(t)...)
	}
	entries, err := os.ReadDir(b.dist)
	if err != nil {
		return err
	}
	var found []string
	for _, entry := range entries {
		// What goreleaser notes for itself is named otherwise, and each program has a directory.
		if strings.HasPrefix(entry.Name(), name) && !entry.IsDir() {
			found = append(found, entry.Name())
		}
	}
	if err := sameNames("the files of the release", found, wanted); err != nil {
		return err
	}
	text, err := os.ReadFile(b.path(sumsName))
	if err != nil {
		return err
	}
	sums, err := readSums(text)
	if err != nil {
		return err
	}
	if err := sameNames(sumsName, slices.Collect(maps.Keys(sums)), summed); err != nil {
		return err
	}
	for file, sum := range sums {
		path := b.path(file)
		if file == manifestName {
			// It is uploaded under this name, and lies in the tree under its own.
			path = filepath.Join(filepath.Dir(b.dist), "terraform-registry-manifest.json")
			if err := checkManifest(path); err != nil {
				return err
			}
		}
		if got, err := sumOf(path); err != nil {
			return err
		} else if got != sum {
			return fmt.Errorf("%s says %s of %s, and its sum is %s", sumsName, sum, file, got)
		}
	}
	return nil
}

func sameNames(what string, found, wanted []string) error {
	found, wanted = slices.Sorted(slices.Values(found)), slices.Sorted(slices.Values(wanted))
	if !slices.Equal(found, wanted) {
		return fmt.Errorf("%s are\n  %s\nand should be\n  %s", what, strings.Join(found, "\n  "), strings.Join(wanted, "\n  "))
	}
	return nil
}

var sumLine = regexp.MustCompile(`^([0-9a-f]{64})  (\S+)\n$`)

func readSums(text []byte) (map[string]string, error) {
	sums := map[string]string{}
	for line := range strings.Lines(string(text)) {
		m := sumLine.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("the line %q of the sums is not a sum, two spaces and a name", line)
		}
		if _, twice := sums[m[2]]; twice {
			return nil, fmt.Errorf("the sums name %s twice", m[2])
		}
		sums[m[2]] = m[1]
	}
	return sums, nil
}

func sumOf(path string) (string, error) {
	f, err := os.Open(path) // #nosec G304 -- a file of the release
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// checkManifest wants what the registry reads: the protocol that the provider speaks, and nothing else.
func checkManifest(path string) error {
	text, err := os.ReadFile(path) // #nosec G304 -- a file of the release
	if err != nil {
		return err
	}
	var manifest struct {
		Version  int `json:"version"`
		Metadata struct {
			Protocols []string `json:"protocol_versions"`
		} `json:"metadata"`
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&manifest); err != nil {
		return fmt.Errorf("the manifest: %w", err)
	}
	if manifest.Version != 1 || !slices.Equal(manifest.Metadata.Protocols, []string{"6.0"}) {
		return fmt.Errorf("the manifest is of version %d with the protocols %q, and should be 1 with 6.0", manifest.Version, manifest.Metadata.Protocols)
	}
	return nil
}

// checkProgram looks into the archive of a target, and runs the program if it is one for this machine.
func (b *built) checkProgram(ctx context.Context, t target, runs bool) error {
	files := archiveFiles(t)
	archive, err := zip.OpenReader(b.path(files[0]))
	if err != nil {
		return err
	}
	defer func() { _ = archive.Close() }()
	program := name + "_v" + version
	if t.os == "windows" {
		program += ".exe"
	}
	if len(archive.File) != 1 || archive.File[0].Name != program {
		return fmt.Errorf("the archive holds %d files, the first %q; it should hold %q alone", len(archive.File), archive.File[0].Name, program)
	}
	if archive.File[0].Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s may not be executed (mode %s)", program, archive.File[0].Mode())
	}
	path := filepath.Join(filepath.Dir(b.dist), "unpacked", t.String(), program)
	if err := unpack(archive.File[0], path); err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	var wrong []error
	for key, want := range map[string]string{
		"GOOS": t.os, "GOARCH": t.arch, "CGO_ENABLED": "0", "-trimpath": "true", "vcs.revision": b.commit, "vcs.modified": "false",
	} {
		if settings[key] != want {
			wrong = append(wrong, fmt.Errorf("the program was built with %s=%q, and should be with %q", key, settings[key], want))
		}
	}
	if info.Main.Version != "v"+version {
		wrong = append(wrong, fmt.Errorf("the program says that its module is %s", info.Main.Version))
	}
	if runs {
		said, err := output(ctx, filepath.Dir(path), b.env, path, "-version")
		if want := version + "+" + b.commit; err != nil || strings.TrimSpace(said) != want {
			wrong = append(wrong, fmt.Errorf("-version says %q (%w), and should say %q", said, err, want))
		}
	}
	text, err := os.ReadFile(b.path(files[1]))
	if err != nil {
		return err
	}
	return errors.Join(append(wrong, checkBill(text, info))...)
}

func unpack(file *zip.File, to string) (err error) {
	from, err := file.Open()
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { // #nosec G301 -- a mirror
		return err
	}
	into, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755) // #nosec G302 G304 -- a program below a directory of our own
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, into.Close()) }()
	_, err = io.Copy(into, from) // #nosec G110 -- an archive of our own
	return err
}

// checkBill wants a CycloneDX document that names each module of the program with its version.
func checkBill(text []byte, info *buildinfo.BuildInfo) error {
	var bill struct {
		Format     string `json:"bomFormat"`
		Components []struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		} `json:"components"`
		Metadata struct {
			Component struct {
				Name    string `json:"name"`
				Version string `json:"version"`
			} `json:"component"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(text, &bill); err != nil {
		return fmt.Errorf("the bill of materials: %w", err)
	}
	if about := bill.Metadata.Component; bill.Format != "CycloneDX" || about.Name != info.Main.Path || about.Version != "v"+version {
		return fmt.Errorf("the bill of materials is %q about %q %q", bill.Format, about.Name, about.Version)
	}
	listed := map[string]string{}
	for _, c := range bill.Components {
		listed[c.Name] = c.Version
	}
	var wrong []error
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		if listed[module.Path] != module.Version {
			wrong = append(wrong, fmt.Errorf("the bill of materials says %q of %s, and the program has %s", listed[module.Path], module.Path, module.Version))
		}
	}
	if listed["std"] == "" {
		wrong = append(wrong, errors.New("the bill of materials lacks Go's standard library"))
	}
	if len(info.Deps) == 0 {
		wrong = append(wrong, errors.New("the program names no module that it is made of"))
	}
	return errors.Join(wrong...)
}

// sameFiles compares files of two builds.
func sameFiles(first, second *built, files []string) error {
	if first.commit != second.commit {
		return fmt.Errorf("the copies have the commits %s and %s", first.commit, second.commit)
	}
	var wrong []error
	for _, file := range files {
		one, err := sumOf(first.path(file))
		if err != nil {
			return err
		}
		other, err := sumOf(second.path(file))
		if err != nil {
			return err
		}
		if one != other {
			wrong = append(wrong, fmt.Errorf("%s is not reproducible: %s and %s", file, one, other))
			continue
		}
		fmt.Printf("  %s  %s\n", one, file)
	}
	return errors.Join(wrong...)
}
