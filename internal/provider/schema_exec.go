package provider

import (
	"context"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// runArguments are the arguments of a run that every form of agentkernel_exec has.
var runArguments = []string{
	"binding", "profile", "code", "script", "command", "language", "stdin", "env", "secret_env", "working_directory", "principal",
	"timeout", "success_exit_codes", "background",
}

// runAttributes gives attributes of the resource agentkernel_exec for a form of it that keeps no record, so that nothing
// of theirs can change.
func runAttributes(ctx context.Context, reg *sandboxcore.Registry, names []string) map[string]schema.Attribute {
	var resp resource.SchemaResponse
	newExecResource(reg).Schema(ctx, resource.SchemaRequest{}, &resp)
	out := map[string]schema.Attribute{}
	for _, name := range names {
		out[name] = withDescription(resp.Schema.Attributes[name], strings.ReplaceAll(resp.Schema.Attributes[name].GetMarkdownDescription(), runsAgain, ""))
	}
	for name, description := range map[string]string{
		"binding":    "Where to run: the `binding` of an `agentkernel_sandbox` or `agentkernel_attached_environment`, as a whole.",
		"secret_env": "Environment whose values are secrets: variable to name in the provider's `secrets`.",
		"language":   "Language of `code`. Defaults to `python`.",
	} {
		out[name] = withDescription(out[name], description)
	}
	out["principal"] = withDescription(principalAttribute(false), "Whose identity the code runs under. Defaults to the provider's `principal`.")
	return out
}

func withDescription(in schema.Attribute, description string) schema.Attribute {
	switch a := in.(type) {
	case schema.StringAttribute:
		a.MarkdownDescription = description
		return a
	case schema.Int64Attribute:
		a.MarkdownDescription = description
		return a
	case schema.BoolAttribute:
		a.MarkdownDescription = description
		return a
	case schema.ListAttribute:
		a.MarkdownDescription = description
		return a
	case schema.MapAttribute:
		a.MarkdownDescription = description
		return a
	case schema.SingleNestedAttribute:
		a.MarkdownDescription = description
		return a
	}
	return in
}

// readRun reads the arguments of a run from a configuration that has those of names.
func readRun(ctx context.Context, config attributeReader, names []string) (*execModel, diag.Diagnostics) {
	m := &execModel{}
	fields := map[string]any{
		"binding": &m.Binding, "profile": &m.Profile, "code": &m.Code, "script": &m.Script, "command": &m.Command, "language": &m.Language,
		"stdin": &m.Stdin, "env": &m.Env, "secret_env": &m.SecretEnv, "working_directory": &m.WorkingDirectory, "principal": &m.Principal,
		"timeout": &m.Timeout, "success_exit_codes": &m.SuccessExitCodes, "background": &m.Background, "output_files": &m.OutputFiles,
		"max_output_bytes": &m.MaxOutputBytes, "base64_output": &m.Base64Output,
	}
	var diags diag.Diagnostics
	for _, name := range names {
		diags.Append(config.GetAttribute(ctx, path.Root(name), fields[name])...)
	}
	return m, diags
}
