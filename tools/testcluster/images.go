package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const (
	pauseImage       = "agentkernel-test/pause:1"
	userImage        = "agentkernel-test/user:1"
	containerdSocket = runDir + "/containerd.sock"
)

// image is one image of a single layer, as containerd imports it.
type image struct {
	reference string
	config    map[string]any // the part named "config" of an image's configuration
	layer     string         // path of a tar file
}

// ctr runs containerd's own client in the namespace where the kubelet looks for images.
func (c *cluster) ctr(ctx context.Context, args ...string) (string, error) {
	return output(ctx, "", "ctr", append([]string{"--address", containerdSocket, "--namespace", "k8s.io"}, args...)...)
}

// importImages makes every image and hands it to containerd.
//
//	agentkernel-test/python:1  Debian with python3 and pip; no USER
//	agentkernel-test/user:1    the same files and a configuration that gets in the way: USER, WORKDIR, ENV, ENTRYPOINT
//	agentkernel-test/bare:1    one static program: no shell, no cat, no Python
//	agentkernel-test/pause:1   what holds a pod's namespaces: the run helper in its init mode
func (c *cluster) importImages(ctx context.Context) error {
	debian, err := c.debianTar(ctx)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(c.dir, "images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	bare, err := bareLayer(ctx, work)
	if err != nil {
		return err
	}
	pause, err := pauseLayer(work)
	if err != nil {
		return err
	}
	path := "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, i := range []image{
		{pauseImage, map[string]any{"Entrypoint": []string{"/akrun", "init"}}, pause},
		{bareImage, map[string]any{"Cmd": []string{"/bin/hello"}}, bare},
		{testImage, map[string]any{"Env": []string{path}, "Cmd": []string{"bash"}}, debian},
		{userImage, map[string]any{
			"User": "1000", "WorkingDir": "/srv", "Entrypoint": []string{"/usr/bin/env", "WRAPPED=1"}, "Cmd": []string{"sleep", "1"},
			"Env": []string{"FROM_IMAGE=set by the image", "LANG=C.UTF-8", path},
		}, debian},
	} {
		if err := c.importImage(ctx, i); err != nil {
			return fmt.Errorf("image %s: %w", i.reference, err)
		}
	}
	return nil
}

// importImage streams an archive of the kind that `docker save` makes into containerd.
func (c *cluster) importImage(ctx context.Context, i image) error {
	layer, err := os.Open(i.layer)
	if err != nil {
		return err
	}
	defer layer.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, layer)
	if err != nil {
		return err
	}
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return err
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": i.config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest}},
	})
	if err != nil {
		return err
	}
	configSum := sha256.Sum256(config)
	configName := hex.EncodeToString(configSum[:]) + ".json"
	manifest, err := json.Marshal([]any{map[string]any{"Config": configName, "RepoTags": []string{i.reference}, "Layers": []string{digest + ".tar"}}})
	if err != nil {
		return err
	}
	reader, writer := io.Pipe()
	cmd := exec.CommandContext(ctx, "ctr", "--address", containerdSocket, "--namespace", "k8s.io", "images", "import", "-")
	cmd.Stdin = reader
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return err
	}
	w := tar.NewWriter(writer)
	write := func(name string, size int64, from io.Reader) error {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size}); err != nil {
			return err
		}
		_, err := io.Copy(w, from)
		return err
	}
	err = errors.Join(
		write(digest+".tar", size, layer), write(configName, int64(len(config)), bytes.NewReader(config)),
		write("manifest.json", int64(len(manifest)), bytes.NewReader(manifest)), w.Close(), writer.Close())
	if waited := cmd.Wait(); waited != nil {
		return fmt.Errorf("%w: %s", waited, strings.TrimSpace(said.String()))
	}
	return err
}

// debianTar gives the Debian tree of the test image. tools/testimages makes the same tree for the Docker engine and
// keeps it in the same place; whoever comes first makes it.
func (c *cluster) debianTar(ctx context.Context) (string, error) {
	const suite, packages = "bookworm", "python3,python3-pip"
	sum := sha256.Sum256([]byte(packages))
	file := filepath.Join(c.cache, "images", fmt.Sprintf("debian-%s-%s-%s-1.tar", suite, runtime.GOARCH, hex.EncodeToString(sum[:])[:8]))
	if info, err := os.Stat(file); err == nil && info.Size() > 0 {
		return file, nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(filepath.Dir(file), "work.")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	root := filepath.Join(work, "root")
	say("debootstrap %s with %s", suite, packages)
	args := []string{"--variant=minbase", "--include=" + packages, suite, root}
	mirrors, _ := output(ctx, "", "apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Codename: "+suite)
	if fields := strings.Fields(mirrors); len(fields) > 0 {
		args = append(args, fields[0])
	}
	if _, err := output(ctx, "", "debootstrap", args...); err != nil {
		return "", err
	}
	for _, pattern := range []string{"var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*", "usr/share/doc/*", "usr/share/man/*", "usr/share/locale/*", "usr/share/info/*", "dev/*", "proc/*", "sys/*", "etc/resolv.conf", "etc/hostname"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return "", err
		}
		for _, f := range found {
			if err := os.RemoveAll(f); err != nil {
				return "", err
			}
		}
	}
	whole := filepath.Join(work, "debian.tar")
	if _, err := output(ctx, "", "tar", "--numeric-owner", "--one-file-system", "--xattrs", "-C", root, "-cf", whole, "."); err != nil {
		return "", err
	}
	return file, os.Rename(whole, file)
}

// bareLayer compiles the program of the image that has nothing else.
func bareLayer(ctx context.Context, work string) (string, error) {
	source, err := filepath.Abs(filepath.Join("..", "testimages", "bare", "main.go"))
	if err != nil {
		return "", err
	}
	program := filepath.Join(work, "hello")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, source)
	cmd.Env = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0", "GO111MODULE=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return layerOf(filepath.Join(work, "bare.tar"), program, "bin/hello", "bin/exit", "bin/env")
}

func pauseLayer(work string) (string, error) {
	return layerOf(filepath.Join(work, "pause.tar"), filepath.Join("..", "..", "internal", "runhelper", "bin", "akrun-linux-"+runtime.GOARCH), "akrun")
}

// layerOf makes a layer that holds one program under several names.
func layerOf(file, program string, names ...string) (string, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), ModTime: time.Unix(0, 0)}); err != nil {
			return "", err
		}
		if _, err := w.Write(content); err != nil {
			return "", err
		}
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return file, os.WriteFile(file, b.Bytes(), 0o644)
}
