package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// An image without shell, Python, sleep, ps and /etc runs what it has, and what it has not is named: never as an exit
// status of the program.
func TestBareImage(t *testing.T) {
	e := engine(t)
	s := create(t, e, profile("bare"))
	run := func(r sandboxcore.RunRequest) outcome { return execute(t.Context(), s, r) }
	if o := run(sandboxcore.RunRequest{Argv: []string{"hello"}}); o.ok(t) != "hello from bare\n" || o.stderr != "and from its stderr\n" {
		t.Errorf("%+v", o)
	}
	for _, code := range []string{"0", "3", "126", "127", "137"} {
		if o := run(sandboxcore.RunRequest{Argv: []string{"exit", code}}); o.err != nil || o.Signal != 0 || o.OOMKilled || strings.TrimLeft(code, "0") != strings.TrimLeft(itoa(o.ExitCode), "0") {
			t.Errorf("exit %s: %+v", code, o)
		}
	}
	if o := run(sandboxcore.RunRequest{Argv: []string{"cat"}, Stdin: []byte("through")}); o.ok(t) != "through" {
		t.Errorf("%+v", o)
	}
	refused(t, run(sandboxcore.RunRequest{Argv: []string{"no-such-program"}}).err, sandboxcore.CodeOperation, "no-such-program", testenv.Image("bare"))
	refused(t, run(sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("true")}).err, sandboxcore.CodeOperation, "no sh", testenv.Image("bare"))
	refused(t, run(sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: "python", Text: []byte("1")}).err, sandboxcore.CodeLanguage, "python", testenv.Image("bare"))
	refused(t, run(sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: "cobol"}).err, sandboxcore.CodeLanguage, "cobol")
	if err := s.WriteFile(t.Context(), "/deep/er/file", []byte("x"), 0o600); err != nil {
		t.Error(err)
	}
	if _, _, err := s.ReadFile(t.Context(), "/deep/er/file", 1); err != nil {
		t.Error(err)
	}
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// What an image sets is not what a profile sets: user, environment and files are the image's, working directory and
// main process are ours.
func TestImageWithConfiguration(t *testing.T) {
	e := engine(t)
	s := create(t, e, profile("user"))
	got := python(t, s, `
import os
st=os.stat("/workspace")
print(os.getuid(), os.getcwd(), st.st_uid, os.environ["FROM_IMAGE"], os.environ.get("WRAPPED"))
open("mine","w")
print(open("/proc/1/cmdline").read().replace("\0"," "))
`).ok(t)
	if got != "1000 /workspace 1000 set by the image None\n/.agentkernel/akrun init \n" {
		t.Errorf("%q", got)
	}
	if err := s.WriteFile(t.Context(), "also", []byte("x"), 0o600); err != nil {
		t.Error(err)
	}
}

// A volume that the image declares is not one more writable path.
func TestVolumesOfTheImage(t *testing.T) {
	e := engine(t)
	image := commit(t, e, "VOLUME /var/data", "VOLUME /workspace/inside")
	s := create(t, e, profile("python", fsWrite("/workspace"), settings(keyImage, image)))
	got := python(t, s, `
for p in ["/var/data/x","/workspace/x","/workspace/inside/x","/etc/x"]:
    try: open(p,"w"); print(p,"yes")
    except OSError as e: print(p,e.strerror)
`).ok(t)
	want := "/var/data/x Read-only file system\n/workspace/x yes\n/workspace/inside/x yes\n/etc/x Read-only file system\n"
	if got != want {
		t.Errorf("%q", got)
	}
}

// commit makes an image from the Python one, removed at the end.
func commit(t *testing.T, e *endpoint, changes ...string) string {
	t.Helper()
	name := "agentkernel-test/commit-" + randomHex() + ":1"
	id := foreign(t, e, "", "python", nil)
	if _, err := e.cli.ContainerCommit(t.Context(), id, client.ContainerCommitOptions{Reference: name, Changes: changes}); err != nil {
		t.Fatal(err)
	}
	removeImage(t, e, name)
	return name
}

func removeImage(t *testing.T, e *endpoint, name string) {
	t.Helper()
	t.Cleanup(func() {
		if _, err := e.cli.ImageRemove(context.WithoutCancel(t.Context()), name, client.ImageRemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	})
}

// An image for another platform is refused before anything exists.
func TestForeignPlatformIsRefused(t *testing.T) {
	e, _ := counted(t)
	if _, err := e.engineInfo(t.Context()); err != nil {
		t.Fatal(err)
	}
	name := loadImage(t, e, "s390x")
	p := profile("bare", settings(keyImage, name))
	_, err := e.Create(t.Context(), request(p), func(sandboxcore.SandboxInfo) { t.Error("something was created") })
	refused(t, err, sandboxcore.CodeProvision, "linux/s390x", "before anything was created")
}

func TestPullPolicy(t *testing.T) {
	e := engine(t)
	_, err := e.Create(t.Context(), request(profile("bare", settings(keyImage, "agentkernel-test/absent:1"))), nil)
	refused(t, err, sandboxcore.CodeProvision, "pull_policy", "agentkernel-test/absent:1")
	// Nothing listens there: the pull fails at once, and the engine's words are passed on.
	_, err = e.Create(t.Context(), request(profile("bare", settings(keyImage, "127.0.0.1:1/absent:1", keyPullPolicy, pullMissing))), nil)
	refused(t, err, sandboxcore.CodeProvision, "could not be pulled", "127.0.0.1:1")
	// What is there is not pulled.
	create(t, e, profile("bare", settings(keyPullPolicy, pullMissing)))
	// By its own id as well.
	s := create(t, e, profile("bare"))
	create(t, e, profile("bare", settings(keyImage, s.info.Details["image_id"], keyPullPolicy, pullMissing)))
}

// loadImage loads an image with one empty layer that claims to be for an architecture.
func loadImage(t *testing.T, e *endpoint, arch string) string {
	t.Helper()
	name := "agentkernel-test/arch-" + randomHex() + ":1"
	var layer bytes.Buffer
	if err := tar.NewWriter(&layer).Close(); err != nil {
		t.Fatal(err)
	}
	// The sha256 of 1024 zero bytes.
	const diff = "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"
	config, _ := json.Marshal(map[string]any{
		"architecture": arch, "os": "linux", "config": map[string]any{"Cmd": []string{"/x"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{diff}}, "history": []any{map[string]any{"created_by": "test"}},
	})
	manifest, _ := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range []struct {
		name    string
		content []byte
	}{{"config.json", config}, {"layer.tar", layer.Bytes()}, {"manifest.json", manifest}} {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := e.cli.ImageLoad(t.Context(), &b)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := out.ReadFrom(r); err != nil || strings.Contains(out.String(), "error") {
		t.Fatal(out.String(), err)
	}
	removeImage(t, e, name)
	return name
}

func TestRepoDigest(t *testing.T) {
	const digest = "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"
	digests := []string{"other/python@sha256:" + strings.Repeat("0", 64), "python@" + digest}
	for ref, want := range map[string]string{"python:3.12-slim": digest, "docker.io/library/python": digest, "busybox": "", "sha256:" + strings.Repeat("a", 64): ""} {
		if got := repoDigest(ref, digests); got != want {
			t.Errorf("%s: %q", ref, got)
		}
	}
}
