//go:build linux && (amd64 || arm64)

package bubblewrap

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A sandbox has one control group per controller that can be had on this machine, in whichever version the controller
// is. The group is made before the first process of a run and removed with the last one; its name depends on the
// sandbox only, so that runs that overlap, of several provider processes too, share one limit.

// controllers that the backend uses.
const (
	ctlMemory = "memory"
	ctlCPU    = "cpu"
	ctlPIDs   = "pids"
)

// groupPrefix and the id of the sandbox are the name of its groups.
const groupPrefix = "agentkernel-"

const cpuPeriod = 100_000 // microseconds, the kernel's default

// limits of one sandbox. Nil: none.
type limits struct {
	CPU      *float64
	MemoryMB *int64
	PIDs     int64
}

// hierarchy is where the groups of one controller are made. A dir that is empty means that none can be made, and
// reason says why.
type hierarchy struct {
	version int
	dir     string
	reason  string
}

func (h hierarchy) usable() bool { return h.dir != "" }

// cgroups are the hierarchies of this machine by controller.
type cgroups map[string]hierarchy

// mountPoint is one mounted hierarchy.
type mountPoint struct {
	version int
	root    string // of the hierarchy, as it is mounted
	dir     string
	options []string
}

// findCgroups looks at this machine. It makes nothing.
func findCgroups() cgroups {
	found := cgroups{}
	mounts, err := cgroupMounts("/proc/self/mountinfo")
	own, err2 := ownGroups("/proc/self/cgroup")
	for _, controller := range []string{ctlMemory, ctlCPU, ctlPIDs} {
		if err = errors.Join(err, err2); err != nil {
			found[controller] = hierarchy{reason: err.Error()}
			continue
		}
		found[controller] = placeFor(controller, mounts, own)
	}
	return found
}

// placeFor finds where groups of a controller can be made.
func placeFor(controller string, mounts []mountPoint, own map[string]string) hierarchy {
	for _, m := range mounts {
		if m.version == 1 && slices.Contains(m.options, controller) {
			h := hierarchy{version: 1, dir: m.dir}
			if unix.Geteuid() != 0 {
				// Root's groups lie at the top, where every process finds the same; others may have been given their own.
				h.dir = filepath.Join(m.dir, strings.TrimPrefix(own[controller], strings.TrimSuffix(m.root, "/")))
			}
			if err := unix.Access(h.dir, unix.W_OK); err != nil {
				return hierarchy{reason: fmt.Sprintf("%s (cgroup v1) cannot be written: %v", h.dir, err)}
			}
			return h
		}
	}
	for _, m := range mounts {
		if m.version == 2 && slices.Contains(words(filepath.Join(m.dir, "cgroup.controllers")), controller) {
			return placeV2(controller, m, own[""])
		}
	}
	return hierarchy{reason: "no hierarchy with the controller " + controller + " is mounted"}
}

// placeV2 finds a group that we may make groups in and that hands the controller on to them. A process can be moved
// into a group only by who may write to a group above both: so the search begins above our own group.
func placeV2(controller string, m mountPoint, own string) hierarchy {
	reason := ""
	dir := filepath.Join(m.dir, strings.TrimPrefix(own, strings.TrimSuffix(m.root, "/")))
	if unix.Geteuid() == 0 {
		dir = m.dir
	} else if dir != m.dir {
		dir = filepath.Dir(dir)
	}
	for ; strings.HasPrefix(dir, m.dir); dir = filepath.Dir(dir) {
		control := filepath.Join(dir, "cgroup.subtree_control")
		err := errors.Join(unix.Access(dir, unix.W_OK), unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK))
		switch {
		case err != nil:
			reason = fmt.Sprintf("%s (cgroup v2) cannot be written: %v", dir, err)
		case slices.Contains(words(control), controller):
			return hierarchy{version: 2, dir: dir}
		case slices.Contains(words(filepath.Join(dir, "cgroup.controllers")), controller) && unix.Access(control, unix.W_OK) == nil &&
			(dir == m.dir && m.root == "/" || len(words(filepath.Join(dir, "cgroup.procs"))) == 0):
			return hierarchy{version: 2, dir: dir} // handed on when the first group is made
		default:
			reason = fmt.Sprintf("%s (cgroup v2) does not hand the controller %s on", dir, controller)
		}
	}
	return hierarchy{reason: reason}
}

func words(file string) []string {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

func cgroupMounts(file string) ([]mountPoint, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var out []mountPoint
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		m := mountPoint{root: left[3], dir: left[4], options: strings.Split(right[2], ",")}
		switch right[0] {
		case "cgroup":
			m.version = 1
		case "cgroup2":
			m.version = 2
		default:
			continue
		}
		out = append(out, m)
	}
	return out, lines.Err()
}

// ownGroups gives our own group by controller; that of version 2 stands under the empty name.
func ownGroups(file string) (map[string]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	own := map[string]string{}
	for line := range strings.SplitSeq(string(text), "\n") {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			own[controller] = parts[2]
		}
	}
	return own, nil
}

// group is the control groups of one sandbox.
type group struct {
	of   cgroups
	name string
	lim  limits
}

func (c cgroups) group(id string, lim limits) group {
	return group{of: c, name: groupPrefix + id, lim: lim}
}

// users counts the runs of this process in each group. The last one to leave removes the group: before that, a run that the
// memory limit has ended still has to read so from it. The zero value is ready to use.
type users struct {
	mu sync.Mutex
	of map[string]int
}

func (u *users) enter(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of == nil {
		u.of = map[string]int{}
	}
	u.of[name]++
}

// leave reports whether nobody is left.
func (u *users) leave(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of[name]--; u.of[name] > 0 {
		return false
	}
	delete(u.of, name)
	return true
}

// dirs gives the group's directories, each once.
func (g group) dirs() []string {
	var out []string
	for _, controller := range []string{ctlMemory, ctlCPU, ctlPIDs} {
		if h := g.of[controller]; h.usable() {
			if dir := filepath.Join(h.dir, g.name); !slices.Contains(out, dir) {
				out = append(out, dir)
			}
		}
	}
	return out
}

// make makes the group with its limits; one that is there gets the limits again.
func (g group) make() error {
	for _, controller := range []string{ctlMemory, ctlCPU, ctlPIDs} {
		h := g.of[controller]
		if !h.usable() {
			continue
		}
		dir := filepath.Join(h.dir, g.name)
		if h.version == 2 && !slices.Contains(words(filepath.Join(h.dir, "cgroup.subtree_control")), controller) {
			if err := os.WriteFile(filepath.Join(h.dir, "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
				return err
			}
		}
		if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		for _, s := range g.settings(controller, h.version) {
			err := os.WriteFile(filepath.Join(dir, s.file), []byte(s.value), 0)
			if s.optional && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
				continue
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

type groupSetting struct {
	file, value string
	optional    bool
}

func (g group) settings(controller string, version int) []groupSetting {
	switch {
	case controller == ctlPIDs:
		return []groupSetting{{file: "pids.max", value: strconv.FormatInt(g.lim.PIDs, 10)}}
	case controller == ctlCPU && g.lim.CPU != nil:
		quota := max(minCPU*cpuPeriod, int64(*g.lim.CPU*cpuPeriod))
		if version == 2 {
			return []groupSetting{{file: "cpu.max", value: fmt.Sprintf("%d %d", quota, cpuPeriod)}}
		}
		return []groupSetting{{file: "cpu.cfs_period_us", value: strconv.Itoa(cpuPeriod)}, {file: "cpu.cfs_quota_us", value: strconv.FormatInt(quota, 10)}}
	case controller == ctlMemory && g.lim.MemoryMB != nil:
		bytes := strconv.FormatInt(*g.lim.MemoryMB<<20, 10)
		if version == 2 {
			// Swap files may be switched off, and then there is nothing to limit. A kill takes one process at a time: the
			// run's supervisor should live to tell.
			return []groupSetting{{file: "memory.max", value: bytes}, {file: "memory.swap.max", value: "0", optional: true}}
		}
		// memsw is memory and swap together, and exists only where the kernel accounts swap.
		return []groupSetting{
			{file: "memory.limit_in_bytes", value: bytes},
			{file: "memory.memsw.limit_in_bytes", value: bytes, optional: true},
			{file: "memory.swappiness", value: "0", optional: true},
		}
	}
	return nil
}

// join makes the group if need be and puts processes into it.
func (g group) join(pids ...int) error {
	var err error
	// The run that ends in this moment may remove the group between our making and our joining it.
	for range 50 {
		if err = g.make(); err == nil {
			err = g.enter(pids)
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			return err
		}
	}
	return err
}

func (g group) enter(pids []int) error {
	for _, dir := range g.dirs() {
		for _, pid := range pids {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// oomKills is how many processes of the group the memory limit has ended.
func (g group) oomKills() int64 {
	h := g.of[ctlMemory]
	if !h.usable() || g.lim.MemoryMB == nil {
		return 0
	}
	file := "memory.oom_control"
	if h.version == 2 {
		file = "memory.events"
	}
	fields := words(filepath.Join(h.dir, g.name, file))
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i] == "oom_kill" {
			n, _ := strconv.ParseInt(fields[i+1], 10, 64)
			return n
		}
	}
	return 0
}

// processes lists what is in the group.
func (g group) processes() []int {
	var out []int
	for _, dir := range g.dirs() {
		for _, w := range words(filepath.Join(dir, "cgroup.procs")) {
			if pid, err := strconv.Atoi(w); err == nil && pid > 0 && !slices.Contains(out, pid) {
				out = append(out, pid)
			}
		}
	}
	return out
}

// remove removes the group if nothing is in it. The kernel says "busy" for a moment after the last process is gone,
// and as long as another run is in it, which then removes it.
func (g group) remove(ctx context.Context) error {
	for attempt := range 60 {
		var left error
		for _, dir := range g.dirs() {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				left = errors.Join(left, err)
			}
		}
		if left == nil || len(g.processes()) > 0 {
			return left
		}
		if !errors.Is(left, unix.EBUSY) {
			return left
		}
		select {
		case <-ctx.Done():
			return left
		case <-time.After(time.Duration(min(attempt+1, 20)) * time.Millisecond):
		}
	}
	return fmt.Errorf("the control group %s stays busy", g.name)
}

// machineCgroups are looked up once: what is mounted does not change while the provider runs.
var machineCgroups = sync.OnceValue(findCgroups)
