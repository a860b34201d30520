package sandboxcore

import (
	"fmt"
	"slices"
	"strings"
)

// Names of policy dimensions, as they stand in Verdict.Unenforced.
const (
	DimensionNetwork   = "network_egress"
	DimensionAllowlist = "network_allow"
	DimensionFSRead    = "fs_allow_read"
	DimensionFSWrite   = "fs_allow_write"
	DimensionCPU       = "cpu"
	DimensionMemory    = "memory_mb"
	DimensionIsolation = "min_isolation"
)

// attachToSetting is the setting that names the target of an attached profile.
const attachToSetting = "attach_to"

// Verdict is what the gate says of a request that may go on.
type Verdict struct {
	Capabilities Capabilities
	// Unenforced names the dimensions that strict = false lets pass although nobody enforces them, in a fixed order.
	Unenforced []string
}

// model gives a backend of type t without configuration, for its pure methods.
func (reg *Registry) model(t BackendType) (Backend, error) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if b, ok := reg.models[t]; ok {
		return b, nil
	}
	f, ok := reg.Factory(t)
	if !ok {
		return nil, &Error{
			Code: CodeUnknownType, Attempted: "the backend was looked up", Object: Printable(string(t)), Said: "there is no such backend type.",
			Next: "Use one of " + quoteList(reg.Types()) + ".", Attribute: []string{"type"},
		}
	}
	b, err := f.New(Settings{}, func(string) string { return "" })
	if err == nil {
		reg.models[t] = b
	}
	return b, err
}

// Capabilities gives what the backend of p supports and enforces with p's settings. It is pure.
func (reg *Registry) Capabilities(p *Profile) (Capabilities, error) {
	b, err := reg.model(p.Type)
	if err != nil {
		return Capabilities{}, err
	}
	return b.Capabilities(p), nil
}

// Unenforceable lists the dimensions of p's policy that its backend cannot enforce, whatever strict says.
func (reg *Registry) Unenforceable(p *Profile) ([]string, error) {
	caps, err := reg.Capabilities(p)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, v := range policyViolations(p, caps) {
		out = append(out, v.dimension)
	}
	return slices.Compact(out), nil
}

// LiveFields are the spec paths that the backend of type t changes in place.
func (reg *Registry) LiveFields(t BackendType) []string {
	b, err := reg.model(t)
	if err != nil {
		return nil
	}
	return b.LiveFields()
}

// Decide is the gate: the one function that decides whether a request may reach a backend, in the order of the design:
// environment, principal, policy (all violations in one error), operation, the backend's own refusals. Step 1, the
// configuration, is Resolve or ParseSpec, which made p. principal and op are nil when only a profile is judged. It is
// pure: no network, no file system.
func (reg *Registry) Decide(p *Profile, principal *Principal, op *Operation) (Verdict, error) {
	b, err := reg.model(p.Type)
	if err != nil {
		return Verdict{}, err
	}
	caps := b.Capabilities(p)
	verdict := Verdict{Capabilities: caps}
	if err := checkEnvironment(p, caps); err != nil {
		return verdict, err
	}
	if err := checkPrincipal(p, principal, caps); err != nil {
		return verdict, err
	}
	if found := policyViolations(p, caps); len(found) > 0 {
		var strict Violations
		for _, v := range found {
			strict = append(strict, v.err)
			verdict.Unenforced = append(verdict.Unenforced, v.dimension)
		}
		verdict.Unenforced = slices.Compact(verdict.Unenforced)
		if p.Policy.Strict {
			return verdict, strict
		}
	}
	if op != nil {
		if r, ok := b.(OperationRefuser); ok {
			if refusals := r.RefuseOperation(p, *op); len(refusals) > 0 {
				return verdict, Violations(refusals)
			}
		}
		if err := checkOperation(p, *op, caps); err != nil {
			return verdict, err
		}
	}
	refusals := b.Validate(p)
	if v, ok := b.(RequestValidator); ok {
		refusals = append(refusals, v.ValidateRequest(p, principal, op)...)
	}
	if len(refusals) > 0 {
		return verdict, Violations(refusals)
	}
	return verdict, nil
}

func profileError(p *Profile, code Code, attr []string, said, next string) *Error {
	return &Error{
		Code: code, Attempted: "the profile was refused", Object: fmt.Sprintf("profile %q, backend %s", p.Name, p.Type),
		Said: said, Next: next, Attribute: attr,
	}
}

func checkEnvironment(p *Profile, caps Capabilities) error {
	target := p.Settings.String(attachToSetting, "")
	at := []string{string(p.Type), attachToSetting}
	switch {
	case p.Environment == EnvironmentAttached && !caps.AttachesExternal:
		return profileError(p, CodeEnvironmentMode, []string{"environment"}, "this backend cannot bind to an environment that it did not create.",
			"Set environment = \"managed\", or choose a backend that attaches.")
	case p.Environment == EnvironmentAttached && target == "":
		return profileError(p, CodeEnvironmentMode, at, "environment is \"attached\" but no target is named.", fmt.Sprintf("Set %s = { attach_to = … }.", p.Type))
	case p.Environment == EnvironmentManaged && !caps.Provisions:
		return profileError(p, CodeEnvironmentMode, []string{"environment"}, "this backend cannot create environments.", "Set environment = \"attached\" and name a target.")
	case p.Environment == EnvironmentManaged && target != "":
		return profileError(p, CodeEnvironmentMode, at, "environment is \"managed\" but attach_to names a target.", "Remove attach_to, or set environment = \"attached\".")
	}
	return nil
}

func checkPrincipal(p *Profile, principal *Principal, caps Capabilities) error {
	if p.Identity == IdentityUser && !caps.PrincipalUser {
		return profileError(p, CodeNoUserIdentity, []string{"identity", "mode"}, "the profile asks for a user's identity, and this backend cannot run code under one.",
			"Set identity = { mode = \"agent\" }, or choose a backend with user identity.")
	}
	if principal == nil {
		return nil
	}
	at := []string{"principal", "mode"}
	switch {
	case principal.Mode != IdentityAgent && principal.Mode != IdentityUser:
		return profileError(p, CodeIdentity, at, fmt.Sprintf("the principal's mode is %s.", Quoted(string(principal.Mode))), "Use \"agent\" or \"user\".")
	case strings.TrimSpace(principal.Subject) == "" || strings.ContainsRune(principal.Subject, 0):
		return profileError(p, CodeIdentity, []string{"principal", "subject"}, "the principal has no usable subject.", "Name the agent or the user.")
	case p.Identity == IdentityUser && principal.Mode != IdentityUser:
		return profileError(p, CodePrincipalMismatch, at, "the profile runs under a user's identity, but the principal is an agent.", "Give a principal with mode = \"user\".")
	case p.Identity == IdentityAgent && principal.Mode == IdentityUser:
		next := "Give a principal with mode = \"agent\", or set identity = { mode = \"user\" } on the profile."
		if !caps.PrincipalUser {
			next = "Give a principal with mode = \"agent\": this backend cannot run code under a user's identity."
		}
		return profileError(p, CodePrincipalMismatch, at, "the profile runs under the agent's identity, but the principal is a user.", next)
	}
	return nil
}

type violation struct {
	dimension string
	err       *Error
}

// policyViolations lists, in a fixed order, everything that the policy asks for and nobody would enforce.
func policyViolations(p *Profile, caps Capabilities) []violation {
	var out []violation
	pol := p.Policy
	add := func(dimension string, code Code, said, next string) {
		e := profileError(p, code, []string{"policy", dimension}, said, next+" Or set policy.strict = false to run without this limit.")
		out = append(out, violation{dimension, e})
	}
	modes := caps.NetworkModes
	if len(modes) == 0 {
		modes = []NetworkMode{NetworkAllow}
	}
	if pol.NetworkEgress != NetworkAllow && (!caps.PolicyNetwork || !slices.Contains(modes, pol.NetworkEgress)) {
		add(DimensionNetwork, CodeNetwork, fmt.Sprintf("network_egress = %q cannot be enforced; this backend can enforce %s.", pol.NetworkEgress, quoteList(modes)),
			"Use one of those, or a backend that enforces it (data source agentkernel_backends lists them).")
	} else if pol.NetworkEgress == NetworkAllowlist {
		for _, entry := range pol.NetworkAllow {
			if kind := AllowEntryKindOf(entry); !slices.Contains(caps.AllowlistEntries, kind) {
				can := "none"
				if len(caps.AllowlistEntries) > 0 {
					can = quoteList(caps.AllowlistEntries)
				}
				add(DimensionAllowlist, CodeAllowEntry, fmt.Sprintf("the entry %q is a %s; this backend can enforce entries of kind %s.", entry, kind, can), "Write it as a kind that can be enforced.")
			}
		}
	}
	if len(pol.FSAllowRead) > 0 && !(caps.PolicyFilesystem && caps.FSRead) {
		add(DimensionFSRead, CodeFilesystem, "fs_allow_read cannot be enforced by this backend."+fsCan(caps), "Remove it, or use a backend that enforces it.")
	}
	if len(pol.FSAllowWrite) > 0 && !(caps.PolicyFilesystem && caps.FSWrite) {
		add(DimensionFSWrite, CodeFilesystem, "fs_allow_write cannot be enforced by this backend."+fsCan(caps), "Remove it, or use a backend that enforces it.")
	}
	if pol.CPU != nil && !caps.PolicyResources {
		add(DimensionCPU, CodeResources, fmt.Sprintf("cpu = %s cannot be enforced: this backend limits neither cpu nor memory.", FormatNumber(*pol.CPU)), "Remove it, or use a backend with resource limits.")
	}
	if pol.MemoryMB != nil && !caps.PolicyResources {
		add(DimensionMemory, CodeResources, fmt.Sprintf("memory_mb = %d cannot be enforced: this backend limits neither cpu nor memory.", *pol.MemoryMB), "Remove it, or use a backend with resource limits.")
	}
	if pol.MinIsolation != "" && !caps.Isolation.AtLeast(pol.MinIsolation) {
		add(DimensionIsolation, CodeIsolation, fmt.Sprintf("min_isolation = %q, but this backend with these settings isolates with %q.", pol.MinIsolation, caps.Isolation), "Choose a stronger backend, or lower the minimum.")
	}
	return out
}

func fsCan(caps Capabilities) string {
	switch {
	case caps.PolicyFilesystem && caps.FSWrite && !caps.FSRead:
		return " It can enforce fs_allow_write only."
	case caps.PolicyFilesystem && caps.FSRead && !caps.FSWrite:
		return " It can enforce fs_allow_read only."
	case caps.PolicyFilesystem:
		return ""
	}
	return " It has no file-system policy."
}

func checkOperation(p *Profile, op Operation, caps Capabilities) error {
	var found Violations
	add := func(code Code, attr []string, said, next string) {
		found = append(found, &Error{
			Code: code, Attempted: "the operation was refused before anything was created", Object: fmt.Sprintf("profile %q, backend %s", p.Name, p.Type),
			Said: said, Next: next, Attribute: attr,
		})
	}
	if op.Name == OpRun {
		switch op.Kind {
		case RunCode:
			if !slices.Contains(caps.Languages, op.Language) {
				add(CodeLanguage, []string{"language"}, fmt.Sprintf("language %s is not offered.", Quoted(op.Language)), "This backend offers "+quoteList(caps.Languages)+".")
			}
		case RunScript:
			if !caps.Shell {
				add(CodeOperation, []string{"script"}, "this backend runs no shell text.", "Use code or command.")
			}
		case RunCommand:
			if !caps.Shell {
				add(CodeOperation, []string{"command"}, "this backend runs no commands.", "Use code.")
			}
		}
	}
	if op.Stdin && !caps.Stdin {
		add(CodeOperation, []string{"stdin"}, "this backend cannot give a run standard input.", "Remove stdin, or put the data into a file.")
	}
	if op.Files && !caps.Files {
		add(CodeOperation, []string{"output_files"}, "this backend cannot carry files.", "Write the result to standard output.")
	}
	if op.KeepBackground && !caps.KeepBackground {
		add(CodeOperation, []string{"background"}, "background = \"keep\" is not possible: everything a run starts on this backend ends with it.", "Remove background, or use a backend that keeps processes.")
	}
	if op.Packages {
		switch {
		case !caps.PackageInstall:
			add(CodeOperation, []string{"packages"}, "this backend installs no packages.", "Use an image or a machine that has them.")
		case p.Policy.NetworkEgress == NetworkDeny:
			add(CodeOperation, []string{"packages"}, "packages cannot be installed under network_egress = \"deny\".", "Use an image that has them.")
		}
	}
	if op.Pause && !caps.Pause {
		add(CodeOperation, []string{"desired_state"}, "this backend cannot pause a sandbox.", "Use desired_state = \"running\".")
	}
	if op.MaxLifetime && !caps.MaxLifetime {
		add(CodeLifetime, []string{"max_lifetime"}, "this backend does not end a sandbox by itself.", "Remove max_lifetime.")
	}
	if op.Timeout < 0 {
		add(CodeValue, []string{"timeout"}, fmt.Sprintf("the timeout %s is negative.", op.Timeout), "Use a positive one, or leave it out to have the policy's.")
	}
	if limit := seconds(p.Policy.Timeout); op.Timeout > limit {
		add(CodeValue, []string{"timeout"}, fmt.Sprintf("the timeout %s is beyond the policy's %s.", op.Timeout, limit), "Use a shorter one, or raise policy.timeout of the profile.")
	}
	if len(found) > 0 {
		return found
	}
	return nil
}

// Names of operations.
const (
	OpCreate  = "create"
	OpRead    = "read"
	OpUpdate  = "update"
	OpDestroy = "destroy"
	OpRun     = "run"
	OpPackage = "packages"
	OpFile    = "file"
	OpList    = "list"
	OpAttach  = "attach"
)
