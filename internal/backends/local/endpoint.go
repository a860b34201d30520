package local

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/workspace"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// defaultPath is PATH where the provider has none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

type endpoint struct {
	store  *workspace.Store
	path   string // the provider's PATH: the only variable of its environment that code gets
	active workspace.Active
}

func (e *endpoint) searchPath() string {
	if e.path == "" {
		return defaultPath
	}
	return e.path
}

// Identity tells which machine, user and data directory this is.
func (e *endpoint) Identity(context.Context) (string, error) { return e.store.Identity() }

// interpreters are the programs of each language, in the order of preference.
var interpreters = map[string][]string{"python": {"python3", "python"}, "bash": {"bash"}, "sh": {"sh"}}

// find looks for a program as the run helper will: in the directories of PATH.
func (e *endpoint) find(names ...string) (string, bool) {
	for _, name := range names {
		for _, dir := range filepath.SplitList(e.searchPath()) {
			if !filepath.IsAbs(dir) {
				continue // it would be looked for in the sandbox's own files
			}
			file := filepath.Join(dir, name)
			if runtime.GOOS == "windows" {
				file += ".exe"
			}
			info, err := os.Stat(file)
			if err == nil && info.Mode().IsRegular() && (runtime.GOOS == "windows" || info.Mode().Perm()&0o111 != 0) {
				return file, true
			}
		}
	}
	return "", false
}

// requireInterpreter refuses a language whose interpreter is not on this machine.
func (e *endpoint) requireInterpreter(kind sandboxcore.RunKind, language string) error {
	attribute := "language"
	switch kind {
	case sandboxcore.RunCommand:
		return nil
	case sandboxcore.RunScript:
		language, attribute = "sh", "script"
	case sandboxcore.RunCode:
	}
	names := interpreters[language]
	if _, ok := e.find(names...); ok {
		return nil
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeLanguage, Attempted: "the run was refused", Object: "local_subprocess",
		Said: "there is no interpreter of " + language + " on this machine: " + strings.Join(names, " and ") + " were looked for in " + e.searchPath() + ".",
		Next: "Install it, or put its directory on the PATH of the provider.", Attribute: []string{attribute},
	}
}

// Offers reports what is on this machine.
func (e *endpoint) Offers(context.Context) (sandboxcore.Offer, error) {
	identity, err := e.store.Identity()
	if err != nil {
		return sandboxcore.Offer{}, err
	}
	offer := sandboxcore.Offer{
		Endpoint: identity, Reachable: true,
		Facts: map[string]string{"data directory": e.store.Dir(), "platform": runtime.GOOS + "/" + runtime.GOARCH, "kills the whole tree": yesNo(supervises())},
	}
	for _, language := range []string{"python", "bash"} {
		if file, ok := e.find(interpreters[language]...); ok {
			offer.Languages = append(offer.Languages, language)
			offer.Facts[language] = file
		} else {
			offer.Facts[language] = "not found in " + e.searchPath()
		}
	}
	return offer, nil
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// Admit refuses a language whose interpreter is not here.
func (e *endpoint) Admit(_ context.Context, _ *sandboxcore.Profile, op sandboxcore.Operation) error {
	if op.Name != sandboxcore.OpRun {
		return nil
	}
	return e.requireInterpreter(op.Kind, op.Language)
}

// Create makes a workspace.
func (e *endpoint) Create(ctx context.Context, req sandboxcore.CreateRequest, onCreated func(sandboxcore.SandboxInfo)) (sandboxcore.ManagedSandbox, error) {
	box, err := e.store.Create(ctx, workspace.Options{Marks: req.Marks, Env: req.Env})
	if err != nil {
		return nil, err
	}
	s := &sandbox{endpoint: e, box: box}
	onCreated(s.Info())
	return s, nil
}

// Find looks at one workspace.
func (e *endpoint) Find(_ context.Context, nativeID string, _ bool) (sandboxcore.ManagedSandbox, error) {
	box, err := e.store.Find(nativeID)
	if err != nil {
		return nil, err
	}
	return &sandbox{endpoint: e, box: box}, nil
}

// List gives every workspace.
func (e *endpoint) List(context.Context) ([]sandboxcore.SandboxInfo, error) {
	boxes, err := e.store.List()
	if err != nil {
		return nil, err
	}
	infos := make([]sandboxcore.SandboxInfo, len(boxes))
	for i, box := range boxes {
		infos[i] = (&sandbox{endpoint: e, box: box}).Info()
	}
	return infos, nil
}
