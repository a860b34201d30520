package provider

import (
	"cmp"
	"context"
	"iter"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// searchAttributes are what sandboxes are found by, in the data source and in the list resource.
func searchAttributes(reg *sandboxcore.Registry) map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"backend": schema.StringAttribute{
			MarkdownDescription: "Backend type to look at: " + codeList(reg.Types()) + ". Unless it is given, every backend is asked, and one that does not answer and does not stand in the provider block is left out.",
			Optional:            true,
			Validators:          []validator.String{oneOf(reg.Types()...)},
		},
		"name": schema.StringAttribute{
			MarkdownDescription: "Only sandboxes of this name. Names need not be unique.",
			Optional:            true,
			Validators:          []validator.String{stringvalidator.LengthAtLeast(1)},
		},
		"labels": schema.MapAttribute{
			MarkdownDescription: "Only sandboxes that have all of these labels.",
			Optional:            true, ElementType: types.StringType,
			Validators: []validator.Map{mapvalidator.NoNullValues()},
		},
		"fingerprint": schema.StringAttribute{
			MarkdownDescription: "Only sandboxes whose profile has this `fingerprint`.",
			Optional:            true,
			Validators:          []validator.String{stringvalidator.LengthAtLeast(1)},
		},
	}
}

// sandboxSearch is what to look for. Empty fields exclude nothing.
type sandboxSearch struct {
	backend     sandboxcore.BackendType
	name        string
	labels      map[string]string
	fingerprint string
}

func readSearch(ctx context.Context, config attributeReader) (sandboxSearch, diag.Diagnostics) {
	var backend, name, fingerprint types.String
	var labels types.Map
	var diags diag.Diagnostics
	for at, into := range map[string]any{"backend": &backend, "name": &name, "labels": &labels, "fingerprint": &fingerprint} {
		diags.Append(config.GetAttribute(ctx, path.Root(at), into)...)
	}
	s := sandboxSearch{backend: sandboxcore.BackendType(backend.ValueString()), name: name.ValueString(), fingerprint: fingerprint.ValueString()}
	s.labels, _ = stringMap(labels)
	return s, diags
}

func (s sandboxSearch) matches(info sandboxcore.SandboxInfo) bool {
	for k, want := range s.labels {
		if got, ok := info.Marks.Args.Labels[k]; !ok || got != want {
			return false
		}
	}
	return (s.name == "" || info.Marks.Name == s.name) && (s.fingerprint == "" || sandboxcore.Fingerprint(info.Marks.Spec) == s.fingerprint)
}

// backendSandboxes is the answer of one backend: what matches, oldest first, or why there is none.
type backendSandboxes struct {
	backend sandboxcore.BackendType
	found   []sandboxcore.SandboxInfo
	err     error
	// skipped: nobody said that this backend is in use, so that its error is no fault.
	skipped bool
}

// sandboxes asks one backend after the other, and none before its turn: whoever has enough stops.
func (d *providerData) sandboxes(ctx context.Context, s sandboxSearch) iter.Seq[backendSandboxes] {
	return func(yield func(backendSandboxes) bool) {
		for _, t := range d.registry.Types() {
			if (s.backend != "" && s.backend != t) || !d.makesSandboxes(t) {
				continue
			}
			all, err := d.engine.ListSandboxes(ctx, t)
			answer := backendSandboxes{backend: t, err: err, skipped: err != nil && s.backend == "" && !d.engine.Configured(t) && ctx.Err() == nil}
			for _, info := range all {
				if s.matches(info) {
					answer.found = append(answer.found, info)
				}
			}
			slices.SortFunc(answer.found, func(a, b sandboxcore.SandboxInfo) int {
				return cmp.Or(a.Marks.Created.Compare(b.Marks.Created), cmp.Compare(a.NativeID, b.NativeID))
			})
			if !yield(answer) {
				return
			}
		}
	}
}

// makesSandboxes reports whether a backend can have managed sandboxes at all; one that only attaches is not asked.
func (d *providerData) makesSandboxes(t sandboxcore.BackendType) bool {
	p, err := plainProfile(d.registry, string(t), sandboxcore.PolicyInput{})
	if err != nil {
		return true // it needs settings to say anything
	}
	caps, err := d.registry.Capabilities(p)
	return err != nil || caps.Provisions
}
