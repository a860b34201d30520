package sandboxcore

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"regexp"
	"slices"
)

// Workspace is the default working directory of managed container sandboxes and of bubblewrap.
const Workspace = "/workspace"

// PackagesDir is where packages are installed, below the working directory; backends that install packages have it on
// PYTHONPATH.
const PackagesDir = ".agentkernel/packages"

// packagesRecord is the file below the working directory that says which packages are installed: the marks of a sandbox
// are written before pip runs, and whoever kills the provider then leaves a sandbox without them.
const packagesRecord = ".agentkernel/installed.json"

// maxPackagesRecord bounds what is read of it. The code in the sandbox can write there, too.
const maxPackagesRecord = 1 << 20

// A requirement: name, extras, version clauses. No options, paths, URLs, markers or direct references (PEP 508 without
// its dangerous half).
var requirementPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?` +
	`(\[[A-Za-z0-9._-]+(,[A-Za-z0-9._-]+)*\])?` +
	`((===|==|!=|<=|>=|~=|<|>)[A-Za-z0-9.*+!_-]+(,(===|==|!=|<=|>=|~=|<|>)[A-Za-z0-9.*+!_-]+)*)?$`)

// CheckRequirement refuses what is not a plain Python requirement specifier.
func CheckRequirement(s string) error {
	if len(s) <= 200 && requirementPattern.MatchString(s) {
		return nil
	}
	return &Error{
		Code: CodeValue, Attempted: "the package was refused", Object: Printable(s),
		Said: "it is not a plain requirement specifier.", Attribute: []string{"packages"},
		Next: `Write a name with optional extras and version, without spaces, such as "requests>=2.32,<3"; no options, paths, URLs or markers.`,
	}
}

// installRequest is the run that installs packages: pip as an argument list, no shell. Debian's Python refuses to touch
// the system's packages (PEP 668), so they go into the workspace.
func installRequest(packages []string) RunRequest {
	argv := []string{
		"python3", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "--upgrade",
		"--target", PackagesDir, "--",
	}
	return RunRequest{Kind: RunCommand, Argv: append(argv, packages...)}
}

// IsOfTheFile reports whether an error of an operation on a file says something of what stands at its path, and not of the way
// there: that there is nothing, or no regular file, or one that is too large or closed to the sandbox's user.
func IsOfTheFile(err error) bool {
	var coded *Error
	return errors.Is(err, fs.ErrNotExist) || !errors.As(err, &coded) || (slices.Equal(coded.Attribute, []string{"path"}) && (coded.Code == CodeOperation || coded.Code == CodeValue))
}

// recordPackages leaves in the sandbox which packages are installed, where the backend carries files.
func (e *Engine) recordPackages(ctx context.Context, env Environment, p *Profile, packages []string) error {
	caps, err := e.cfg.Registry.Capabilities(p)
	if err != nil || !caps.Files {
		return err
	}
	record, err := json.Marshal(packages)
	if err != nil {
		return err
	}
	return env.WriteFile(ctx, packagesRecord, record, DefaultFileMode)
}

// InstalledPackages gives, for an import, those of the packages in info's marks that are installed: nil when none is. A
// sandbox that does not run is not woken for it, and has those that it was made with.
func (e *Engine) InstalledPackages(ctx context.Context, t BackendType, info SandboxInfo) (_ []string, err error) {
	wanted := info.Marks.Args.Packages
	if len(wanted) == 0 || info.Status != StatusRunning || info.Dormant {
		return wanted, nil
	}
	p, err := e.cfg.Registry.ParseSpec(info.Marks.Spec)
	if err != nil {
		return wanted, nil // whoever uses the spec is told what is wrong with it
	}
	caps, err := e.cfg.Registry.Capabilities(p)
	if err != nil || !caps.Files {
		return wanted, err
	}
	ref := SandboxRef{Backend: t, Endpoint: info.Endpoint, NativeID: info.NativeID}
	ctx, end := e.step(ctx, "read packages", &AuditRecord{Backend: t, ID: ref.id(), Fingerprint: Fingerprint(info.Marks.Spec)})
	defer end(&err)
	sb, _, err := e.open(ctx, ref, false)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, fileTimeout)
	defer cancel()
	text, _, err := sb.ReadFile(ctx, packagesRecord, maxPackagesRecord)
	if err != nil && (ctx.Err() != nil || !IsOfTheFile(err)) {
		return nil, err
	}
	// No file, or one that nothing can be read from, records nothing.
	var installed []string
	if err != nil || json.Unmarshal(text, &installed) != nil {
		installed = nil
	}
	var out []string
	for _, pkg := range wanted {
		if slices.Contains(installed, pkg) {
			out = append(out, pkg)
		}
	}
	return out, nil
}
