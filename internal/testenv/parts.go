package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// The parts that tests ask for.
const (
	// Docker is an engine that answers and holds the test images.
	Docker Part = "docker"
	// Bubblewrap is a bwrap program that can really make a sandbox here, under an unprivileged uid.
	Bubblewrap Part = "bubblewrap"
	// Local is what tests of local processes run: python3 and bash.
	Local Part = "local"
	// Root is uid 0.
	Root Part = "root"
	// Unprivileged is a way to run a test as an ordinary user: RerunUnprivileged.
	Unprivileged Part = "unprivileged"
	// Cgroup is a place where a control group with memory and pids limits can be made.
	Cgroup Part = "cgroup"
	// ARM64 is a way to run linux/arm64 programs: RunARM64.
	ARM64 Part = "arm64"
)

type entry struct {
	part   Part
	probe  func() error
	enable string
}

var table = []entry{
	{Docker, probeDocker, "tools/dockerd.sh up && tools/testimages/build.sh (Debian packages docker.io, debootstrap)"},
	{Bubblewrap, probeBubblewrap, "apt-get install bubblewrap, and user namespaces allowed"},
	{Local, probeLocal, "apt-get install python3 bash"},
	{Root, probeRoot, "run the tests as root"},
	{Unprivileged, probeUnprivileged, "run the tests as root with CAP_SETUID, or as an ordinary user"},
	{Cgroup, probeCgroup, "run the tests as root on a machine with writable memory and pids controllers"},
	{ARM64, probeARM64, "apt-get install qemu-user-static"},
}

const probeTimeout = 20 * time.Second

// Images of the tests. tools/testimages/build.sh makes them and says what each is for.
var images = map[string]string{
	"python": "agentkernel-test/python:1",
	"user":   "agentkernel-test/user:1",
	"bare":   "agentkernel-test/bare:1",
}

// Image gives the reference of a test image: python, user or bare. A test that uses it requires Docker.
func Image(name string) string {
	reference, known := images[name]
	if !known {
		panic(fmt.Sprintf("testenv: no test image %q", name))
	}
	return reference
}

// probeDocker speaks the engine's own protocol where it is a plain socket, so that no docker program is needed; for
// ssh, TLS and contexts it asks that program.
func probeDocker() error {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	host := os.Getenv("DOCKER_HOST")
	network, address := "unix", "/var/run/docker.sock"
	if host != "" {
		at, err := url.Parse(host)
		if err != nil {
			return fmt.Errorf("DOCKER_HOST %q is no address", host)
		}
		switch {
		case at.Scheme == "unix":
			address = at.Path
		case at.Scheme == "tcp" && os.Getenv("DOCKER_TLS_VERIFY") == "":
			network, address = "tcp", at.Host
		default:
			network = ""
		}
	} else {
		host = "unix://" + address
	}
	if network != "" {
		err := askEngine(ctx, network, address)
		// Without DOCKER_HOST the engine may be where the docker program's current context says.
		var missing *engineAwayError
		if err == nil || os.Getenv("DOCKER_HOST") != "" || !errors.As(err, &missing) {
			return err
		}
	}
	if _, err := exec.LookPath("docker"); err != nil {
		return fmt.Errorf("no engine answers at %s", host)
	}
	out, err := exec.CommandContext(ctx, "docker", "version", "--format", "{{.Server.Version}}").CombinedOutput()
	if err != nil {
		return fmt.Errorf("no engine answers at %s: %s", host, lastLine(out))
	}
	for _, image := range images {
		if err := exec.CommandContext(ctx, "docker", "image", "inspect", image).Run(); err != nil {
			return fmt.Errorf("the engine has no image %s", image)
		}
	}
	return nil
}

type engineAwayError struct{ err error }

func (e *engineAwayError) Error() string { return "no engine answers: " + e.err.Error() }
func (e *engineAwayError) Unwrap() error { return e.err }

func askEngine(ctx context.Context, network, address string) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	get := func(path string) (int, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine"+path, http.NoBody)
		if err != nil {
			return 0, err
		}
		response, err := client.Do(request)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	status, err := get("/_ping")
	if err != nil {
		return &engineAwayError{err}
	}
	if status != http.StatusOK {
		return &engineAwayError{fmt.Errorf("%s answers a ping with status %d", address, status)}
	}
	for _, image := range images {
		status, err := get("/images/" + image + "/json")
		if err != nil {
			return &engineAwayError{err}
		}
		if status != http.StatusOK {
			return fmt.Errorf("the engine has no image %s", image)
		}
	}
	return nil
}

// probeBubblewrap makes a sandbox with what the provider's own sandboxes need at least. "Installed" says nothing:
// in a container the program is there and may make no namespace.
func probeBubblewrap() error {
	if runtime.GOOS != "linux" {
		return errors.New("bubblewrap is for Linux")
	}
	program, err := exec.LookPath("bwrap")
	if err != nil {
		return errors.New("no bwrap program on the PATH")
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	arguments := []string{
		"--unshare-all", "--unshare-user", "--disable-userns", "--assert-userns-disabled", "--cap-drop", "ALL",
		"--new-session", "--die-with-parent", "--ro-bind", "/usr", "/usr",
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if target, err := os.Readlink("/" + name); err == nil {
			arguments = append(arguments, "--symlink", target, "/"+name)
		} else if _, err := os.Stat("/" + name); err == nil {
			arguments = append(arguments, "--ro-bind", "/"+name, "/"+name)
		}
	}
	arguments = append(arguments, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/", "--", "/usr/bin/env", "true")
	command := exec.CommandContext(ctx, program, arguments...)
	command.Dir = "/"
	if os.Geteuid() == 0 {
		dropPrivileges(command)
	}
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("bwrap makes no sandbox: %w: %s", err, lastLine(out))
	}
	return nil
}

func probeLocal() error {
	for _, program := range []string{"python3", "bash"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("no %s on the PATH", program)
		}
	}
	return nil
}

func probeRoot() error {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("the tests run as uid %d", uid)
	}
	return nil
}

func probeUnprivileged() error {
	switch os.Geteuid() {
	case -1:
		return errors.New("this system has no user ids")
	case 0:
		ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
		defer cancel()
		command := exec.CommandContext(ctx, "true")
		command.Dir = "/"
		dropPrivileges(command)
		if err := command.Run(); err != nil {
			return fmt.Errorf("root cannot become another user here: %w", err)
		}
	}
	return nil
}

// probeCgroup looks per controller, in version 1 and version 2 hierarchies: mixed machines exist.
func probeCgroup() error {
	if runtime.GOOS != "linux" {
		return errors.New("control groups are Linux's")
	}
	for controller, files := range map[string][]string{
		"memory": {"memory.max", "memory.limit_in_bytes"},
		"pids":   {"pids.max"},
	} {
		if err := probeController(controller, files); err != nil {
			return err
		}
	}
	return nil
}

func probeController(controller string, files []string) error {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	var parents []string
	for line := range strings.Lines(string(own)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		switch {
		case fields[1] == "": // version 2
			for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
				parents = append(parents, filepath.Join(root, fields[2]), root)
			}
		case strings.Contains(","+fields[1]+",", ","+controller+","):
			for _, root := range []string{"/sys/fs/cgroup/" + controller, "/sys/fs/cgroup/" + fields[1]} {
				parents = append(parents, filepath.Join(root, fields[2]), root)
			}
		}
	}
	for _, parent := range parents {
		child, err := os.MkdirTemp(parent, "agentkernel-testenv-")
		if err != nil {
			continue
		}
		found := false
		for _, file := range files {
			if handle, err := os.OpenFile(filepath.Join(child, file), os.O_WRONLY, 0); err == nil {
				_ = handle.Close()
				found = true
			}
		}
		// The kernel refuses with "busy" for a moment after a group was used; this one never was.
		if err := os.Remove(child); err != nil {
			return fmt.Errorf("made %s and cannot remove it: %w", child, err)
		}
		if found {
			return nil
		}
	}
	return fmt.Errorf("no place to make a control group with the %s controller", controller)
}

func probeARM64() error {
	_, err := arm64Runner()
	return err
}

func arm64Runner() ([]string, error) {
	if runtime.GOOS != "linux" {
		return nil, errors.New("linux/arm64 programs run on Linux")
	}
	if runtime.GOARCH == "arm64" {
		return nil, nil
	}
	for _, name := range []string{"qemu-aarch64-static", "qemu-aarch64"} {
		if path, err := exec.LookPath(name); err == nil {
			return []string{path}, nil
		}
	}
	return nil, fmt.Errorf("this machine is %s and has no qemu-aarch64", runtime.GOARCH)
}

// RunARM64 gives the command that runs a linux/arm64 program here, natively or under emulation.
func RunARM64(tb testing.TB, program string, arguments ...string) *exec.Cmd {
	tb.Helper()
	Require(tb, ARM64)
	runner, err := arm64Runner()
	if err != nil {
		tb.Fatal(err)
	}
	line := append(append(runner, program), arguments...)
	return exec.CommandContext(tb.Context(), line[0], line[1:]...)
}

func lastLine(out []byte) string {
	text := strings.TrimSpace(string(out))
	return text[strings.LastIndexByte(text, '\n')+1:]
}
