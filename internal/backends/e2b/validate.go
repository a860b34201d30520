package e2b

import (
	"maps"
	"slices"
	"strings"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Validate gives the refusals that only this backend knows.
func (b *backend) Validate(p *sandboxcore.Profile) []*sandboxcore.Error {
	var out []*sandboxcore.Error
	kind := string(b.place.Kind)
	refuse := func(code sandboxcore.Code, said, next string, attribute ...string) {
		out = append(out, &sandboxcore.Error{
			Code: code, Attempted: "the " + kind + " profile was refused", Object: p.Name, Said: said, Next: next, Attribute: attribute,
		})
	}
	o := optionsOf(p)
	if !o.secure && !o.publicTraffic {
		refuse(sandboxcore.CodeValue, "Traffic to a sandbox can be limited only where it is secure.", "Set secure = true, or allow_public_traffic = true.", kind, keyAllowPublicTraffic)
	}
	if o.autoResume && !o.autoPause {
		refuse(sandboxcore.CodeValue, "A sandbox that its time ends for good cannot be woken.", "Set auto_pause = true, or remove auto_resume.", kind, keyAutoResume)
	}
	if o.interpreter && p.Settings.String(keyTemplate, "") == "" {
		refuse(sandboxcore.CodeValue, "The default template has no code interpreter.", "Set template to one that has it, such as code-interpreter-v1.", kind, keyTemplate)
	}
	for _, k := range slices.Sorted(maps.Keys(o.metadata)) {
		switch {
		case k == hostMountKey && !o.hostMount:
			refuse(sandboxcore.CodeValue, "The metadata key \"host-mount\" mounts directories of the host on some servers.",
				"Remove it, or set allow_host_mount = true if that is really wanted.", kind, keyMetadata)
		case k == "" || strings.HasPrefix(k, "agentkernel.io/"):
			refuse(sandboxcore.CodeValue, "A metadata key is empty or has the prefix agentkernel.io/, which holds this provider's own marks.", "Use another key.", kind, keyMetadata)
		}
	}
	networkRefusals(refuse, p.Policy)
	return out
}
