package docker

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const helperDir = "/.agentkernel"

// defaultCaps are the capabilities that Docker gives to ordinary containers. None of them leads out of a container;
// each beyond them (SYS_ADMIN, SYS_PTRACE, ...) would make the isolation tier or the end of a run a lie.
var defaultCaps = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
	"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// Validate gives the refusals that only this backend knows.
func (b *backend) Validate(p *sandboxcore.Profile) []*sandboxcore.Error {
	if p.Environment == sandboxcore.EnvironmentAttached {
		return validateAttached(p)
	}
	var out []*sandboxcore.Error
	refuse := func(code sandboxcore.Code, said, next string, attribute ...string) {
		out = append(out, &sandboxcore.Error{
			Code: code, Attempted: "the docker profile was refused", Object: p.Name, Said: said, Next: next, Attribute: attribute,
		})
	}
	o := optionsOf(p)
	if _, err := reference.ParseNormalizedNamed(o.image); err != nil && !isImageID(o.image) {
		refuse(sandboxcore.CodeValue, fmt.Sprintf("%q is no image reference: %s.", o.image, err), "Use name:tag or name@sha256:digest.", "docker", keyImage)
	}
	if o.isolation != "" && o.runtime == "" {
		refuse(sandboxcore.CodeValue, "An isolation tier can be asserted only for a runtime that is named.", "Set runtime as well, or remove isolation.", "docker", keyIsolation)
	}
	if o.network != "" {
		if p.Policy.NetworkEgress == sandboxcore.NetworkDeny {
			refuse(sandboxcore.CodeNetwork, "A sandbox with egress deny has no network, so that it can join none.", "Remove network, or set network_egress = \"allow\".", "docker", keyNetwork)
		}
		if slices.Contains([]string{"host", "none", "bridge", "default"}, o.network) {
			refuse(sandboxcore.CodeValue, fmt.Sprintf("%q is no user-defined network.", o.network),
				"Name a network made with docker network create. The host's own network is never given to a sandbox; egress deny gives none.", "docker", keyNetwork)
		}
	}
	for _, c := range o.capAdd {
		if !slices.Contains(defaultCaps, c) {
			refuse(sandboxcore.CodeValue, fmt.Sprintf("The capability %q would undo what this backend promises.", c),
				"Only these can be given back: "+strings.Join(defaultCaps, ", ")+".", "docker", keyCapAdd)
		}
	}
	if _, set := p.Settings[keyWorkspaceSizeMB]; set && o.workspace != workspaceMemory {
		refuse(sandboxcore.CodeValue, "workspace_size_mb is the size of an in-memory workspace.", "Set workspace = \"memory\", or remove it: a volume has no size limit.", "docker", keyWorkspaceSizeMB)
	}
	for _, w := range p.Policy.FSAllowWrite {
		if said := writablePathProblem(w); said != "" {
			refuse(sandboxcore.CodeFilesystem, said, "Name directories of the sandbox such as /workspace or /tmp.", "policy", "fs_allow_write")
		}
	}
	return out
}

// writablePathProblem says why a path cannot be one of the writable ones; empty if it can.
func writablePathProblem(p string) string {
	clean := path.Clean(p)
	switch {
	case !strings.HasPrefix(p, "/"):
		return fmt.Sprintf("%q is not absolute.", p)
	case clean == "/":
		return "The root itself cannot be a writable path of a read-only root."
	case strings.ContainsAny(p, ":\x00"):
		return fmt.Sprintf("%q holds a character that cannot be in a mount.", p)
	}
	for _, reserved := range []string{"/proc", "/sys", "/dev", helperDir} {
		if within(clean, reserved) || within(reserved, clean) {
			return fmt.Sprintf("%q belongs to the container itself.", p)
		}
	}
	return ""
}

// within reports whether p is dir or below it.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

func isImageID(image string) bool {
	hex, ok := strings.CutPrefix(image, "sha256:")
	return ok && len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == ""
}
