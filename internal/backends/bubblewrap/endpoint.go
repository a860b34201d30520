//go:build linux && (amd64 || arm64)

package bubblewrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/workspace"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

type endpoint struct {
	store   *workspace.Store
	bwrap   string // as configured; empty: the system's
	groups  cgroups
	ownUIDs bool // every sandbox has a user of its own, because the provider is root
	active  workspace.Active
	inGroup users
}

func connect(_ context.Context, settings sandboxcore.Settings, getenv func(string) string) (sandboxcore.Endpoint, error) {
	dir, err := workspace.DataDir(sandboxcore.BackendBubblewrap, settings.String(settingDataDir, ""), getenv)
	if err != nil {
		return nil, err
	}
	return &endpoint{
		store: workspace.New(sandboxcore.BackendBubblewrap, dir, isRoot()), bwrap: settings.String(settingPath, ""),
		groups: machineCgroups(), ownUIDs: isRoot(),
	}, nil
}

// config is what a sandbox was made with and every run of it gets. It stands in the sandbox's marker.
type config struct {
	Network  bool     `json:"network"`
	FSRead   []string `json:"fs_read,omitempty"`
	FSWrite  []string `json:"fs_write,omitempty"`
	CPU      *float64 `json:"cpu,omitempty"`
	MemoryMB *int64   `json:"memory_mb,omitempty"`
	PIDs     int64    `json:"pids_limit"`
}

func configOf(p *sandboxcore.Profile) config {
	return config{
		Network: p.Policy.NetworkEgress != sandboxcore.NetworkDeny, FSRead: p.Policy.FSAllowRead, FSWrite: p.Policy.FSAllowWrite,
		CPU: p.Policy.CPU, MemoryMB: p.Policy.MemoryMB, PIDs: int64(p.Settings.Float(settingPIDsLimit, defaultPIDsLimit)),
	}
}

func (c config) limits() limits { return limits{CPU: c.CPU, MemoryMB: c.MemoryMB, PIDs: c.PIDs} }

// Identity tells which machine, user and data directory this is.
func (e *endpoint) Identity(context.Context) (string, error) { return e.store.Identity() }

// program gives bwrap if it works here.
func (e *endpoint) program(ctx context.Context) (program, error) {
	p := probe(ctx, e.bwrap)
	if p.err != nil {
		return p, p.err
	}
	return p, nil
}

// Offers reports what this machine has.
func (e *endpoint) Offers(ctx context.Context) (sandboxcore.Offer, error) {
	identity, err := e.store.Identity()
	if err != nil {
		return sandboxcore.Offer{}, err
	}
	offer := sandboxcore.Offer{Endpoint: identity, Facts: map[string]string{"data directory": e.store.Dir()}}
	p := probe(ctx, e.bwrap)
	if p.err != nil {
		offer.Reason = p.err.Said + " " + p.err.Next
		return offer, nil //nolint:nilerr // that it does not work is the answer
	}
	offer.Reachable, offer.Network = true, true
	offer.CPU, offer.Memory = e.groups[ctlCPU].usable(), e.groups[ctlMemory].usable()
	offer.Facts["bwrap"], offer.Facts["bwrap version"] = p.path, p.version
	offer.Facts["sandboxes run as"] = "the user of the provider"
	if e.ownUIDs {
		offer.Facts["sandboxes run as"] = "a user of their own each"
	}
	for _, controller := range []string{ctlMemory, ctlCPU, ctlPIDs} {
		h := e.groups[controller]
		offer.Facts["cgroup "+controller] = fmt.Sprintf("v%d, %s", h.version, h.dir)
		if !h.usable() {
			offer.Facts["cgroup "+controller] = "not available: " + h.reason
		}
	}
	for language, names := range interpreters {
		file, ok := findInView(names...)
		if !ok {
			file = "not found below /usr"
		} else if language != "sh" {
			offer.Languages = append(offer.Languages, language)
		}
		offer.Facts[language] = file
	}
	return offer, nil
}

// interpreters are the programs of each language, in the order of preference.
var interpreters = map[string][]string{"python": {"python3", "python"}, "bash": {"bash"}, "sh": {"sh"}}

// requireInterpreter refuses a language whose interpreter is not in the view.
func requireInterpreter(kind sandboxcore.RunKind, language string) *sandboxcore.Error {
	attribute := "language"
	switch kind {
	case sandboxcore.RunCommand:
		return nil
	case sandboxcore.RunScript:
		language, attribute = "sh", "script"
	case sandboxcore.RunCode:
	}
	names := interpreters[language]
	if _, ok := findInView(names...); ok {
		return nil
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeLanguage, Attempted: "the run was refused", Object: "bubblewrap",
		Said: "there is no interpreter of " + language + " in a sandbox: " + strings.Join(names, " and ") + " were looked for in " + insidePath + ", as far as it leads into /usr.",
		Next: "Install the system's package. Interpreters in home directories are not in the view.", Attribute: []string{attribute},
	}
}

// Admit refuses what this machine cannot give.
func (e *endpoint) Admit(ctx context.Context, p *sandboxcore.Profile, op sandboxcore.Operation) error {
	if _, err := e.program(ctx); err != nil {
		return err
	}
	if err := e.passable(); err != nil {
		return err
	}
	refused := e.refuseLimits(p)
	binds, err := e.guard(unknownUID).openAll(p.Policy.FSAllowRead, p.Policy.FSAllowWrite)
	closeBinds(binds)
	if err != nil {
		refused = append(refused, sandboxcore.AllErrors(err, sandboxcore.CodeFilesystem)...)
	}
	if op.Name == sandboxcore.OpRun {
		if err := requireInterpreter(op.Kind, op.Language); err != nil {
			refused = append(refused, err)
		}
	}
	if len(refused) > 0 {
		return refused
	}
	return nil
}

// guard checks paths of the host for a sandbox of this user; unknownUID is ownUID where sandboxes have none of their own.
func (e *endpoint) guard(uid int) guard {
	if !e.ownUIDs {
		uid = ownUID
	}
	return guard{dataDir: e.store.DataDir(), uid: uid}
}

// refuseLimits refuses cpu and memory where no control group can be made.
func (e *endpoint) refuseLimits(p *sandboxcore.Profile) sandboxcore.Violations {
	var refused sandboxcore.Violations
	add := func(controller, dimension string) {
		if h := e.groups[controller]; !h.usable() {
			refused = append(refused, &sandboxcore.Error{
				Code: sandboxcore.CodeResources, Attempted: "the profile was refused", Object: fmt.Sprintf("profile %q, backend bubblewrap", p.Name),
				Said: dimension + " cannot be enforced on this machine: " + h.reason + ".",
				Next: "Run the provider where it may make control groups (as root, or in a delegated group: systemd-run --user --scope -p Delegate=yes), " +
					"remove the limit, or set policy.strict = false to run without it.",
				Attribute: []string{"policy", dimension},
			})
		}
	}
	if p.Policy.CPU != nil {
		add(ctlCPU, sandboxcore.DimensionCPU)
	}
	if p.Policy.MemoryMB != nil {
		add(ctlMemory, sandboxcore.DimensionMemory)
	}
	return refused
}

// passable refuses a data directory that the users of sandboxes could not pass through.
func (e *endpoint) passable() error {
	if !e.ownUIDs {
		return nil
	}
	g := e.guard(unknownUID)
	for dir := e.store.Dir(); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist): // will be made, and passable
		case err != nil || g.bits(info)&1 == 0:
			return &sandboxcore.Error{
				Code: sandboxcore.CodeValue, Attempted: "the data directory was refused", Object: e.store.Dir(), Err: err,
				Said:      "sandboxes run under users of their own, because the provider is root, and these may not enter " + dir + ".",
				Next:      "Make it passable (chmod o+x " + dir + "), or set data_dir of bubblewrap to a directory below one that everybody may enter.",
				Attribute: []string{string(sandboxcore.BackendBubblewrap), settingDataDir},
			}
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// Create makes a sandbox: a workspace and, for root, a user for it. Nothing runs in it yet.
func (e *endpoint) Create(ctx context.Context, req sandboxcore.CreateRequest, onCreated func(sandboxcore.SandboxInfo)) (sandboxcore.ManagedSandbox, error) {
	if _, err := e.program(ctx); err != nil {
		return nil, err
	}
	if err := e.passable(); err != nil {
		return nil, err
	}
	if req.Profile.Policy.Strict {
		if refused := e.refuseLimits(req.Profile); len(refused) > 0 {
			return nil, refused
		}
	}
	cfg := configOf(req.Profile)
	binds, err := e.guard(unknownUID).openAll(cfg.FSRead, cfg.FSWrite)
	closeBinds(binds)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	opts := workspace.Options{Marks: req.Marks, Env: req.Env, Config: text}
	if e.ownUIDs {
		opts.UID = allocateUID
	}
	box, err := e.store.Create(ctx, opts)
	if err != nil {
		return nil, err
	}
	s, err := e.handle(box)
	if err != nil {
		return nil, errors.Join(err, box.Destroy(ctx, e.endRuns(box)))
	}
	onCreated(s.Info())
	return s, nil
}

func closeBinds(binds []bind) {
	for _, b := range binds {
		_ = b.source.Close()
	}
}

func (e *endpoint) handle(box *workspace.Sandbox) (*sandbox, error) {
	s := &sandbox{endpoint: e, box: box}
	if err := json.Unmarshal(box.Config, &s.config); err != nil {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeNotOurs, Attempted: "the directory was refused", Object: box.Dir(), Said: "its marker does not say what the sandbox may do.",
			Next: "Only sandboxes that this provider created are used or removed; it never touches other directories.",
		}
	}
	if e.ownUIDs && (box.UID < firstUID || box.UID > lastUID) {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeNotOurs, Attempted: "the directory was refused", Object: box.Dir(), Said: "its marker names no user that sandboxes of root run as.",
			Next: "Only sandboxes that this provider created are used or removed; it never touches other directories.",
		}
	}
	return s, nil
}

// Find looks at one sandbox.
func (e *endpoint) Find(_ context.Context, nativeID string, _ bool) (sandboxcore.ManagedSandbox, error) {
	box, err := e.store.Find(nativeID)
	if err != nil {
		return nil, err
	}
	return e.handle(box)
}

// List gives every sandbox.
func (e *endpoint) List(context.Context) ([]sandboxcore.SandboxInfo, error) {
	boxes, err := e.store.List()
	if err != nil {
		return nil, err
	}
	infos := make([]sandboxcore.SandboxInfo, 0, len(boxes))
	for _, box := range boxes {
		if s, err := e.handle(box); err == nil {
			infos = append(infos, s.Info())
		}
	}
	return infos, nil
}
