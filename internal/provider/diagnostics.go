package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// This file is the one place where errors of the engine become diagnostics, and where every text of a diagnostic that
// the provider itself makes stands.

// attributeSchema is what a reporter needs of a construct's schema.
type attributeSchema interface {
	TypeAtPath(ctx context.Context, p path.Path) (attr.Type, diag.Diagnostics)
}

// reporter turns errors into diagnostics of one construct.
type reporter struct {
	diags *diag.Diagnostics
	// schema decides whether the attribute that an error blames is one of this construct.
	schema attributeSchema
	// fallback is the attribute that is blamed otherwise: on a sandbox, a refused policy is the fault of its profile.
	fallback string
	// redact hides the secrets of this request.
	redact *sandboxcore.Redactor
}

// error reports err, one diagnostic per refusal. what is used for errors that carry no code of their own.
func (r reporter) error(ctx context.Context, err error, fallback sandboxcore.Code) {
	if err == nil {
		return
	}
	tails := ""
	if run, ok := errors.AsType[*sandboxcore.RunError](err); ok {
		tails = runTails(run)
	}
	for _, e := range sandboxcore.AllErrors(err, fallback) {
		summary, detail := e.Code.Title(), r.redact.String(sandboxcore.Clean(errorDetail(e, tails)))
		if at, ok := r.locate(ctx, e); ok {
			r.diags.AddAttributeError(at, summary, detail)
			continue
		}
		r.diags.AddError(summary, detail)
	}
}

// locate finds the attribute to blame: the one of the construct that the error's path begins with, else the fallback. Only
// the first step is given to Terraform, which shows the line of a root attribute but, for a path into a nested one, just
// the head of the block; the whole path stands in the text.
func (r reporter) locate(ctx context.Context, e *sandboxcore.Error) (path.Path, bool) {
	if r.schema == nil {
		return path.Empty(), false
	}
	if len(e.Attribute) > 0 {
		root := path.Root(e.Attribute[0])
		if _, diags := r.schema.TypeAtPath(ctx, root); !diags.HasError() {
			return root, true
		}
	}
	if r.fallback != "" && (len(e.Attribute) > 0 || e.Code == sandboxcore.CodeSpec) {
		return path.Root(r.fallback), true
	}
	return path.Empty(), false
}

// errorDetail lays an error out: what was attempted, on which object, what was said, what to do, code, cause.
func errorDetail(e *sandboxcore.Error, tails string) string {
	var b strings.Builder
	b.WriteString(sentence(e.Attempted))
	if e.Object != "" {
		fmt.Fprintf(&b, " (%s)", e.Object)
	}
	if reason := e.Reason(); reason != "" {
		b.WriteString(reason)
	} else {
		b.WriteString(".")
	}
	if e.Next != "" {
		b.WriteString("\n\n" + e.Next)
	}
	b.WriteString(tails)
	fmt.Fprintf(&b, "\n\nCode: %s", e.Code)
	if len(e.Attribute) > 0 {
		fmt.Fprintf(&b, "\nAttribute: %s", dotted(e.Attribute))
	}
	if e.Err != nil {
		fmt.Fprintf(&b, "\nOriginal error: %v", e.Err)
	}
	return b.String()
}

func runTails(run *sandboxcore.RunError) string {
	var b strings.Builder
	if run.ExitCode != nil {
		fmt.Fprintf(&b, "\n\nExit status: %d", *run.ExitCode)
	} else {
		b.WriteString("\n\nExit status: not known")
	}
	for _, s := range []struct{ name, tail string }{{"standard output", run.StdoutTail}, {"standard error", run.StderrTail}} {
		if s.tail == "" {
			fmt.Fprintf(&b, "\n(no %s)", s.name)
			continue
		}
		fmt.Fprintf(&b, "\n\nEnd of %s:\n%s", s.name, strings.TrimRight(s.tail, "\n"))
	}
	return b.String()
}

func sentence(s string) string {
	if s == "" {
		return "The operation failed"
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func fractionError(at path.Path, got float64) diag.Diagnostic {
	return diag.NewAttributeErrorDiagnostic(at, sandboxcore.CodeValue.Title(),
		fmt.Sprintf("The value %s has a fraction.\n\nGive a number without a fraction.\n\nCode: %s", sandboxcore.FormatNumber(got), sandboxcore.CodeValue))
}

func hugeError(at path.Path, got float64) diag.Diagnostic {
	return diag.NewAttributeErrorDiagnostic(at, sandboxcore.CodeValue.Title(),
		fmt.Sprintf("The value %g is out of range.\n\nGive a number of at most %d.\n\nCode: %s", got, int64(maxWhole), sandboxcore.CodeValue))
}

func unconfiguredError(construct string) diag.Diagnostic {
	return diag.NewErrorDiagnostic("Provider Not Configured", construct+" was used before the provider was configured. This is a fault of the provider.")
}

func unknownPrincipalError() diag.Diagnostic {
	return diag.NewAttributeErrorDiagnostic(path.Root("principal"), "Principal Not Known Yet",
		"The provider's principal depends on values that are not known yet, and the environment has to be looked at under it. Apply what they depend on first, or give the data source a principal of its own.")
}

func providerDataError(construct string, data any) diag.Diagnostic {
	return diag.NewErrorDiagnostic("Unexpected Provider Data", fmt.Sprintf("%s was given %T instead of the provider's own data. This is a fault of the provider.", construct, data))
}

// unenforcedWarnings names each dimension that strict = false lets pass. An empty base blames the policy's own attribute.
func unenforcedWarnings(base path.Path, p *sandboxcore.Profile, verdict sandboxcore.Verdict) []diag.Diagnostic {
	var out []diag.Diagnostic
	for _, dimension := range verdict.Unenforced {
		at := base
		if at.Equal(path.Empty()) {
			at = path.Root("policy").AtName(dimension)
		}
		out = append(out, diag.NewAttributeWarningDiagnostic(at, "Policy Not Enforced",
			fmt.Sprintf("The profile %q asks for %s, which the backend %s does not enforce. It is accepted because strict is false: code runs without this limit.",
				p.Name, dimension, p.Type)))
	}
	return out
}

func runtimeWarning(profile, dimension, said string) diag.Diagnostic {
	return diag.NewAttributeWarningDiagnostic(path.Root("profiles"), "Not the Same in Agent Kernel", fmt.Sprintf("The profile %q, %s: %s", profile, dimension, said))
}

func isolationNoneWarning(p *sandboxcore.Profile) diag.Diagnostic {
	if p.Environment == sandboxcore.EnvironmentAttached {
		return diag.NewAttributeWarningDiagnostic(path.Root("type"), "No Isolation",
			fmt.Sprintf("Code under the profile %q runs next to whatever else runs in the attached environment, and this provider promises no isolation there. Use it only for code that may reach all of that.", p.Name))
	}
	if p.Type == sandboxcore.BackendPlugin {
		return diag.NewAttributeWarningDiagnostic(path.Root("type"), "No Isolation",
			fmt.Sprintf("Code under the profile %q runs at the server of the plugin, and nothing in a manifest says how strongly that isolates it (isolation = \"none\"). Ask whoever runs the server before code that you do not trust runs there.", p.Name))
	}
	return diag.NewAttributeWarningDiagnostic(path.Root("type"), "No Isolation",
		fmt.Sprintf("Code under the profile %q runs on this machine without any isolation (isolation = \"none\"): it can read and change whatever the user can who runs Terraform, the memory of the provider included. Use it only for code that you trust.", p.Name))
}

func skippedBackendsWarning(reasons map[string]string) diag.Diagnostic {
	var b strings.Builder
	b.WriteString("These backends could not be asked, and sandboxes that they may have are not listed. They do not stand in the provider block, so this is no error; name one there, or in backend, to have it count.\n")
	for _, backend := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(&b, "\n%s: %s", backend, reasons[backend])
	}
	return diag.NewWarningDiagnostic("Backends Not Asked", b.String())
}

func goneWarning(id string, err error) diag.Diagnostic {
	return diag.NewWarningDiagnostic("Sandbox Gone", fmt.Sprintf("The sandbox %s does not exist any more and is removed from the state; the next apply makes a new one. Files that were in it are lost.\n\n%s",
		id, sandboxcore.Clean(err.Error())))
}

func replaceWarning(id string, reasons []string) diag.Diagnostic {
	return diag.NewWarningDiagnostic("Sandbox Will Be Replaced", fmt.Sprintf("The sandbox %s has to be replaced, and the files in it will be lost. What changed: %s.", id, strings.Join(reasons, ", ")))
}

func lateReplacementError(id string, change sandboxChange) *sandboxcore.Error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeValue, Attempted: "the sandbox was not changed", Object: id, Attribute: []string{change.blame[0].String()},
		Said: "values that were not known at plan turned out to need a replacement (" + strings.Join(change.replace, ", ") + "), and the plan did not say that files would be lost.",
		Next: "Run terraform apply again: the values are known now, and the plan will show the replacement.",
	}
}

func otherThanFileWarning(name, then string, err error) diag.Diagnostic {
	return diag.NewAttributeWarningDiagnostic(path.Root("path"), "Something Else in the Place of the File", fmt.Sprintf("What stands at %s cannot be looked at as the file that was written there; %s.\n\n%s",
		sandboxcore.Quoted(name), then, sandboxcore.Clean(err.Error())))
}

func cleanupSkippedWarning(what string, err error) diag.Diagnostic {
	return diag.NewWarningDiagnostic("Clean-Up Not Run", fmt.Sprintf("%s was not run, because the environment does not exist any more. The object is removed from the state.\n\n%s", what, sandboxcore.Clean(err.Error())))
}

func taintedWarning(what string) diag.Diagnostic {
	return diag.NewWarningDiagnostic("Object Kept for Its Clean-Up", fmt.Sprintf("The run failed. Because %s is set, the object is kept in the state as tainted: the next apply or destroy runs the clean-up first.", what))
}
