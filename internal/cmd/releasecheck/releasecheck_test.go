package main

import (
	"archive/zip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestReleasedTargets(t *testing.T) {
	if err := checkTargets(filepath.Join("..", "..", "..", ".goreleaser.yml")); err != nil {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "goreleaser.yml")
	write(t, file, "builds:\n  - targets: [linux_amd64, linux_arm64]\n    flags: [-trimpath]\n")
	if err := checkTargets(file); err == nil || !strings.Contains(err.Error(), "does not build for darwin_arm64") || strings.Contains(err.Error(), "linux_arm64") {
		t.Errorf("error %v", err)
	}
	write(t, file, "builds: []\n")
	if err := checkTargets(file); err == nil {
		t.Error("a configuration that builds nothing is right")
	}
}

// All that is not the list of targets is what a release has.
func TestOnlyTheTargetsChange(t *testing.T) {
	file := filepath.Join("..", "..", "..", ".goreleaser.yml")
	text, err := only(file, []target{{"linux", "amd64"}})
	if err != nil {
		t.Fatal(err)
	}
	var was, is map[string]any
	original, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for source, into := range map[string]*map[string]any{string(original): &was, string(text): &is} {
		if err := yaml.Unmarshal([]byte(source), into); err != nil {
			t.Fatal(err)
		}
	}
	targets := func(c map[string]any) *any {
		builds, _ := c["builds"].([]any)
		build, _ := builds[0].(map[string]any)
		value := build["targets"]
		delete(build, "targets")
		return &value
	}
	if got := fmt.Sprint(*targets(is)); got != "[linux_amd64]" {
		t.Errorf("targets %s", got)
	}
	targets(was)
	if fmt.Sprint(is) != fmt.Sprint(was) {
		t.Errorf("more than the targets changed:\n%v\n%v", was, is)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const manifest = `{"version": 1, "metadata": {"protocol_versions": ["6.0"]}}`

// release lays out the files of a release for one target.
func release(t *testing.T) (*built, map[string]string) {
	t.Helper()
	b := &built{dist: filepath.Join(t.TempDir(), "dist")}
	files := map[string]string{"terraform-registry-manifest.json": manifest}
	for _, file := range archiveFiles(target{"linux", "amd64"}) {
		files["dist/"+file] = "contents of " + file
	}
	return b, files
}

func (b *built) lay(t *testing.T, files map[string]string) {
	t.Helper()
	var sums strings.Builder
	for file, text := range files {
		sum := sha256.Sum256([]byte(text))
		name := filepath.Base(file)
		if name == "terraform-registry-manifest.json" {
			name = manifestName
		}
		fmt.Fprintf(&sums, "%s  %s\n", hex.EncodeToString(sum[:]), name)
		write(t, filepath.Join(filepath.Dir(b.dist), file), text)
	}
	write(t, b.path(sumsName), sums.String())
	write(t, b.path(sumsName+".sig"), "signature")
}

func TestFilesOfARelease(t *testing.T) {
	linux := []target{{"linux", "amd64"}}
	archive := archiveFiles(linux[0])[0]
	if archive != "terraform-provider-agentkernel_0.9999.0_linux_amd64.zip" {
		t.Errorf("the archive is called %s", archive)
	}
	for _, test := range []struct {
		name, wrong string
		before      func(files map[string]string)
		after       func(b *built)
	}{
		{"right", "", nil, nil},
		{"an archive is away", "and should be", func(f map[string]string) { delete(f, "dist/"+archive) }, nil},
		{"one file too many", "and should be", func(f map[string]string) { f["dist/"+name+"_0.9999.0_plan9_amd64.zip"] = "" }, nil},
		{"no manifest in the sums", manifestName, func(f map[string]string) { delete(f, "terraform-registry-manifest.json") }, nil},
		{"another protocol", "should be 1 with 6.0", func(f map[string]string) {
			f["terraform-registry-manifest.json"] = strings.Replace(manifest, "6.0", "5.0", 1)
		}, nil},
		{"a slip in the manifest", "unknown field", func(f map[string]string) {
			f["terraform-registry-manifest.json"] = strings.Replace(manifest, "protocol_versions", "protocols", 1)
		}, nil},
		{"other bytes than summed", "and its sum is", nil, func(b *built) { write(t, b.path(archive), "others") }},
		{"no signature", "and should be", nil, func(b *built) { _ = os.Remove(b.path(sumsName + ".sig")) }},
		{"a sum without a name", "is not a sum", nil, func(b *built) { write(t, b.path(sumsName), strings.Repeat("0", 64)+"\n") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, files := release(t)
			if test.before != nil {
				test.before(files)
			}
			b.lay(t, files)
			if test.after != nil {
				test.after(b)
			}
			err := b.checkFiles(linux)
			if test.wrong == "" && err != nil || test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)) {
				t.Errorf("error %v, want %q", err, test.wrong)
			}
		})
	}
}

func TestArchiveHoldsTheProgramAlone(t *testing.T) {
	linux := target{"linux", "amd64"}
	for title, names := range map[string][]string{
		"a licence beside it": {name + "_v" + version, "LICENSE"},
		"another name":        {name},
		"a directory":         {"dir/" + name + "_v" + version},
	} {
		t.Run(title, func(t *testing.T) {
			b := &built{dist: t.TempDir()}
			f, err := os.Create(b.path(archiveFiles(linux)[0]))
			if err != nil {
				t.Fatal(err)
			}
			z := zip.NewWriter(f)
			for _, n := range names {
				if _, err := z.Create(n); err != nil {
					t.Fatal(err)
				}
			}
			if err := z.Close(); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if err := b.checkProgram(t.Context(), linux, false); err == nil || !strings.Contains(err.Error(), "alone") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestBillOfMaterials(t *testing.T) {
	info := &debug.BuildInfo{
		Main: debug.Module{Path: "example.com/provider"},
		Deps: []*debug.Module{{Path: "example.com/a", Version: "v1.0.0"}, {Path: "example.com/b", Version: "v2.0.0", Replace: &debug.Module{Path: "example.com/c", Version: "v3.0.0"}}},
	}
	right := `{"bomFormat": "CycloneDX", "metadata": {"component": {"name": "example.com/provider", "version": "v` + version + `"}}, "components": [
		{"name": "example.com/a", "version": "v1.0.0"}, {"name": "example.com/c", "version": "v3.0.0"}, {"name": "std", "version": "go1"}]}`
	if err := checkBill([]byte(right), info); err != nil {
		t.Error(err)
	}
	for title, change := range map[string][3]string{
		"another format":  {"CycloneDX", "SPDX", "SPDX"},
		"another program": {`"example.com/provider"`, `"example.com/other"`, "other"},
		"another release": {"v" + version, "v1", `"v1"`},
		"a module lacks":  {`{"name": "example.com/c", "version": "v3.0.0"}, `, "", "example.com/c"},
		"another version": {"v1.0.0", "v1.0.1", "example.com/a"},
		"no Go":           {`"std"`, `"stb"`, "standard library"},
		"no JSON":         {"{", "", "bill of materials"},
	} {
		t.Run(title, func(t *testing.T) {
			err := checkBill([]byte(strings.Replace(right, change[0], change[1], 1)), info)
			if err == nil || !strings.Contains(err.Error(), change[2]) {
				t.Errorf("error %v, want %q", err, change[2])
			}
		})
	}
}

func TestBuildsThatDiffer(t *testing.T) {
	one, other := &built{dist: t.TempDir(), commit: "a"}, &built{dist: t.TempDir(), commit: "a"}
	write(t, one.path("f"), "bytes")
	write(t, other.path("f"), "bytes")
	if err := sameFiles(one, other, []string{"f"}); err != nil {
		t.Error(err)
	}
	write(t, other.path("f"), "Bytes")
	if err := sameFiles(one, other, []string{"f"}); err == nil || !strings.Contains(err.Error(), "not reproducible") {
		t.Errorf("error %v", err)
	}
	other.commit = "b"
	if err := sameFiles(one, other, nil); err == nil {
		t.Error("builds of two commits are the same")
	}
}
