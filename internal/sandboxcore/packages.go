package sandboxcore

import (
	"regexp"
)

// Workspace is the default working directory of managed container sandboxes and of bubblewrap.
const Workspace = "/workspace"

// PackagesDir is where packages are installed, below the working directory; backends that install packages have it on
// PYTHONPATH.
const PackagesDir = ".agentkernel/packages"

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
