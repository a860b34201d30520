package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

// sandboxIdentity tells a sandbox from every other one, for as long as it exists. Its name and profile may change in
// place and are no part of it.
type sandboxIdentity struct {
	Backend  types.String `tfsdk:"backend"`
	Endpoint types.String `tfsdk:"endpoint"`
	NativeID types.String `tfsdk:"native_id"`
}

func (r *sandboxResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = identityschema.Schema{Attributes: map[string]identityschema.Attribute{
		"backend": identityschema.StringAttribute{Description: "Backend type.", RequiredForImport: true},
		"endpoint": identityschema.StringAttribute{
			Description: "Identity of the place where the sandbox is. Left out of an import, it is the place that the provider is connected to; given, another place is refused.", OptionalForImport: true,
		},
		"native_id": identityschema.StringAttribute{Description: "The backend's own id of the sandbox.", RequiredForImport: true},
	}}
}

// identify sets the identity of the sandbox that m shows. identity is nil where Terraform knows no identities.
func (m *sandboxModel) identify(ctx context.Context, identity *tfsdk.ResourceIdentity) diag.Diagnostics {
	if identity == nil {
		return nil
	}
	return identity.Set(ctx, &sandboxIdentity{Backend: m.Backend, Endpoint: m.Endpoint, NativeID: m.NativeID})
}
