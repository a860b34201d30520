package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// down stops everything that up started, pods included, and removes every trace. It does nothing to anything else,
// and nothing at all when there is nothing.
func (c *cluster) down(ctx context.Context) error {
	if c.existing {
		say("the cluster of KUBECONFIG was not started here, so it is not stopped")
		return nil
	}
	if _, err := os.Stat(c.dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	names := []string{}
	for _, d := range c.daemons() {
		names = append(names, d.name)
	}
	slices.Reverse(names)
	for _, name := range names {
		// containerd goes after its pods, etcd after whoever writes to it.
		if name == "containerd" {
			continue
		}
		if err := c.stopDaemon(ctx, name); err != nil {
			return err
		}
	}
	if err := stopPods(ctx); err != nil {
		return err
	}
	if err := c.stopDaemon(ctx, "containerd"); err != nil {
		return err
	}
	c.removeNetwork(ctx)
	if err := unmountBelow(c.dir, runDir); err != nil {
		return err
	}
	c.removeNamespaces()
	removeGroups()
	c.removeLogLinks()
	return errors.Join(os.RemoveAll(runDir), os.RemoveAll(c.dir))
}

// stopPods kills every process of our pods: the shims of our containerd, and what runs below them.
func stopPods(ctx context.Context) error {
	return wait(ctx, "the pods' processes", 30*time.Second, func() error {
		doomed := podProcesses()
		if len(doomed) == 0 {
			return nil
		}
		for _, pid := range doomed {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return fmt.Errorf("%d are left", len(doomed))
	})
}

func podProcesses() []int {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	parents := map[int]int{}
	ours := map[int]bool{}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue
		}
		// The name in parentheses may hold anything: the fields are those after the last one.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		parents[pid], _ = strconv.Atoi(fields[1])
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err == nil && strings.Contains(string(line), "containerd-shim") && strings.Contains(string(line), containerdSocket) {
			ours[pid] = true
		}
	}
	var out []int
	for pid := range parents {
		for up := pid; up > 1; up = parents[up] {
			if ours[up] {
				out = append(out, pid)
				break
			}
		}
	}
	return out
}

// unmountBelow unmounts everything below the directories, the innermost first.
func unmountBelow(dirs ...string) error {
	for range 5 {
		text, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			return err
		}
		var points []string
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) > 1 && slices.ContainsFunc(dirs, func(d string) bool { return strings.HasPrefix(fields[1], d+"/") }) {
				points = append(points, fields[1])
			}
		}
		if len(points) == 0 {
			return nil
		}
		slices.Sort(points)
		slices.Reverse(points)
		for _, p := range points {
			_ = syscall.Unmount(strings.ReplaceAll(p, `\040`, " "), syscall.MNT_DETACH)
		}
	}
	return errors.New("some mounts below " + strings.Join(dirs, ", ") + " stay")
}

// removeNamespaces removes the network namespaces of pods. The addresses that the pod network has given out tell which
// are ours: containerd gives every one of them a name of this form, and no other program of this machine does.
func (c *cluster) removeNamespaces() {
	found, err := filepath.Glob("/run/netns/cni-*")
	if err != nil {
		return
	}
	for _, f := range found {
		_ = syscall.Unmount(f, syscall.MNT_DETACH)
		_ = os.Remove(f)
	}
}

// removeGroups removes the control groups of the kubelet, the innermost first. They are empty by now.
func removeGroups() {
	roots, err := filepath.Glob("/sys/fs/cgroup/*/kubepods")
	if err != nil {
		return
	}
	for _, root := range append(roots, "/sys/fs/cgroup/kubepods") {
		var dirs []string
		_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		slices.Reverse(dirs)
		for _, d := range dirs {
			_ = syscall.Rmdir(d)
		}
	}
}

// removeLogLinks removes the links that the kubelet makes to the logs of its containers.
func (c *cluster) removeLogLinks() {
	found, err := filepath.Glob("/var/log/containers/*")
	if err != nil {
		return
	}
	for _, f := range found {
		if target, err := os.Readlink(f); err == nil && strings.HasPrefix(target, c.dir+"/") {
			_ = os.Remove(f)
		}
	}
	_ = os.Remove("/var/log/containers") // only when empty
}
