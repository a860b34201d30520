//go:build linux && (amd64 || arm64)

package bubblewrap

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tree makes a directory that looks like a mounted hierarchy of version 2.
func tree(t *testing.T, groups map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for group, handsOn := range groups {
		dir := filepath.Join(root, group)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		controllers, procs := "memory cpu pids", ""
		if rest, ok := strings.CutPrefix(handsOn, "busy "); ok {
			handsOn, procs = rest, "1\n"
		}
		for file, text := range map[string]string{"cgroup.controllers": controllers, "cgroup.subtree_control": handsOn, "cgroup.procs": procs} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

// TestPlaceOfVersion2 looks for the place of groups in hierarchies that this machine does not have.
func TestPlaceOfVersion2(t *testing.T) {
	if isRoot() {
		// Root's groups lie at the top, if that hands the controller on or can be made to.
		for handsOn, usable := range map[string]bool{"memory cpu pids": true, "cpu": true, "busy cpu": true} {
			root := tree(t, map[string]string{"": handsOn, "a/b": ""})
			h := placeV2(ctlMemory, mountPoint{version: 2, root: "/", dir: root}, "/a/b")
			if (h.dir == root) != usable || h.version != 2 {
				t.Errorf("%q: %+v", handsOn, h)
			}
		}
		// The top of a container's own hierarchy is a group with processes like any other.
		root := tree(t, map[string]string{"": "busy cpu"})
		if h := placeV2(ctlMemory, mountPoint{version: 2, root: "/docker/x", dir: root}, "/docker/x"); h.usable() || h.reason == "" {
			t.Errorf("%+v", h)
		}
		return
	}
	// An ordinary user gets the nearest group above its own that was given to it and hands the controller on.
	root := tree(t, map[string]string{"": "memory", "slice": "memory", "slice/app": "memory", "slice/app/own": "busy "})
	if err := os.Chmod(root, 0o555); err != nil {
		t.Fatal(err)
	}
	m := mountPoint{version: 2, root: "/", dir: root}
	if h := placeV2(ctlMemory, m, "/slice/app/own"); h.dir != filepath.Join(root, "slice/app") {
		t.Errorf("%+v", h)
	}
	if h := placeV2(ctlMemory, m, "/"); h.usable() || h.reason == "" {
		t.Errorf("%+v", h)
	}
}

func TestPlaceOfVersion1(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "mine"), 0o755); err != nil {
		t.Fatal(err)
	}
	mounts := []mountPoint{{version: 1, root: "/", dir: root, options: []string{"rw", "memory"}}, {version: 2, root: "/", dir: root}}
	want := root
	if !isRoot() {
		want = filepath.Join(root, "mine")
	}
	if h := placeFor(ctlMemory, mounts, map[string]string{ctlMemory: "/mine"}); h.dir != want || h.version != 1 {
		t.Errorf("%+v", h)
	}
	if h := placeFor(ctlCPU, mounts, nil); h.usable() || !strings.Contains(h.reason, "cpu") {
		t.Errorf("%+v", h)
	}
}

func TestCgroupTables(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "mountinfo")
	text := `25 30 0:23 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
26 30 0:24 /docker/x /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
27 30 0:25 / /proc rw - proc proc rw
nonsense
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	mounts, err := cgroupMounts(file)
	if err != nil || len(mounts) != 2 || mounts[0].version != 1 || !slices.Contains(mounts[0].options, "memory") || mounts[1].root != "/docker/x" {
		t.Errorf("%+v %v", mounts, err)
	}
	if err := os.WriteFile(file, []byte("4:cpu,cpuacct:/a\n1:name=systemd:/\n0::/b:c\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	own, err := ownGroups(file)
	if err != nil || own["cpu"] != "/a" || own["cpuacct"] != "/a" || own[""] != "/b:c" {
		t.Errorf("%v %v", own, err)
	}
}

// TestLimitsOfBothVersions pins what is written for each limit.
func TestLimitsOfBothVersions(t *testing.T) {
	cpu, tiny, memory := 1.5, 0.001, int64(64)
	all := func(lim limits, version int) string {
		var out []string
		for _, c := range []string{ctlMemory, ctlCPU, ctlPIDs} {
			for _, s := range (group{lim: lim}).settings(c, version) {
				out = append(out, s.file+"="+s.value)
			}
		}
		return strings.Join(out, " ")
	}
	for _, c := range []struct {
		lim     limits
		version int
		want    string
	}{
		{limits{PIDs: 256}, 1, "pids.max=256"},
		{limits{PIDs: 256}, 2, "pids.max=256"},
		{limits{CPU: &cpu, MemoryMB: &memory, PIDs: 8}, 1, "memory.limit_in_bytes=67108864 memory.memsw.limit_in_bytes=67108864 memory.swappiness=0 cpu.cfs_period_us=100000 cpu.cfs_quota_us=150000 pids.max=8"},
		{limits{CPU: &cpu, MemoryMB: &memory, PIDs: 8}, 2, "memory.max=67108864 memory.swap.max=0 cpu.max=150000 100000 pids.max=8"},
		{limits{CPU: &tiny, PIDs: 8}, 2, "cpu.max=1000 100000 pids.max=8"},
	} {
		if got := all(c.lim, c.version); got != c.want {
			t.Errorf("%s: got %q, want %q", fmt.Sprint(c.lim, c.version), got, c.want)
		}
	}
}
