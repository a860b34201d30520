package bubblewrap

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// helperDir is where the view has the run helper.
const helperDir = "/.agentkernel"

// wish is one path of fs_allow_read or fs_allow_write.
type wish struct {
	path  string
	write bool
}

func (w wish) attribute() []string {
	if w.write {
		return []string{"policy", sandboxcore.DimensionFSWrite}
	}
	return []string{"policy", sandboxcore.DimensionFSRead}
}

func (w wish) refuse(said, next string) *sandboxcore.Error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeFilesystem, Attempted: "a path of the host was not let into the sandbox", Object: w.path,
		Said: said, Next: next, Attribute: w.attribute(),
	}
}

// forbiddenTrees are never in a sandbox, nor is anything below them.
var forbiddenTrees = []string{"/proc", "/sys", "/dev", "/run", "/var/run", "/boot"}

// forbiddenPath is the part of forbidden that looks at nothing but the text, so that it can be said at plan.
func forbiddenPath(w wish, path string) *sandboxcore.Error {
	path = filepath.Clean(path)
	if path == "/" {
		return w.refuse("it leads to the root of the machine.", "Name the directories that the code needs, one by one.")
	}
	for _, tree := range forbiddenTrees {
		if within(path, tree) || within(tree, path) {
			return w.refuse("it leads into "+tree+", which holds the kernel's own files or the sockets of services.", "Remove it from the list.")
		}
	}
	if base := filepath.Base(path); base == "docker.sock" || base == "containerd.sock" || base == "podman.sock" {
		return w.refuse("whoever can speak to it controls the machine.", "Remove it from the list.")
	}
	for _, own := range []string{sandboxcore.Workspace, helperDir} {
		if within(path, own) {
			return w.refuse("the sandbox has "+own+" of its own.", "Use another path. "+sandboxcore.Workspace+" can always be written.")
		}
	}
	return nil
}

// within reports whether path is dir or lies below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// wishes gives the paths in the order of mounting: a path after those that it lies in, and for writing after for
// reading, so that the narrower and the stronger wish holds.
func wishes(read, write []string) []wish {
	out := make([]wish, 0, len(read)+len(write))
	for _, p := range read {
		out = append(out, wish{path: p})
	}
	for _, p := range write {
		out = append(out, wish{path: p, write: true})
	}
	sortWishes(out)
	return out
}

func sortWishes(w []wish) {
	slices.SortStableFunc(w, func(a, b wish) int {
		if c := strings.Compare(filepath.Clean(a.path), filepath.Clean(b.path)); c != 0 {
			return c
		}
		switch {
		case a.write == b.write:
			return 0
		case b.write:
			return -1
		}
		return 1
	})
}
