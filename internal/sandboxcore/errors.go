package sandboxcore

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Code is the stable code of an error, shown in every diagnostic.
type Code string

// Error codes. Their numbers are part of the product's surface and never change meaning.
const (
	CodeUnknownType       Code = "AK1001"
	CodeSettingsBlock     Code = "AK1002"
	CodeValue             Code = "AK1003"
	CodeEnvironmentMode   Code = "AK1004"
	CodeSpec              Code = "AK1005"
	CodeNetwork           Code = "AK2001"
	CodeAllowEntry        Code = "AK2002"
	CodeFilesystem        Code = "AK2003"
	CodeResources         Code = "AK2004"
	CodeIsolation         Code = "AK2005"
	CodeLifetime          Code = "AK2006"
	CodeNoUserIdentity    Code = "AK3001"
	CodePrincipalMismatch Code = "AK3002"
	CodeIdentity          Code = "AK3003"
	CodeLanguage          Code = "AK4001"
	CodeOperation         Code = "AK4002"
	CodeTimeout           Code = "AK5001"
	CodeGone              Code = "AK5002"
	CodeStopped           Code = "AK5003"
	CodeUnknownOutcome    Code = "AK5004"
	CodeProvision         Code = "AK5005"
	CodeExitStatus        Code = "AK5006"
	CodeOutOfMemory       Code = "AK5007"
	CodeNotOurs           Code = "AK5008"
	CodeOtherEndpoint     Code = "AK5009"
	CodeUnreachable       Code = "AK5010"
	CodeDeleteFailed      Code = "AK5011"
	CodePluginFeature     Code = "E8004" // the number that Agent Sandbox plugins give it
)

// codeTitles are the summaries of diagnostics: short, title case, without ids.
var codeTitles = map[Code]string{
	CodeUnknownType:       "Unknown Backend Type",
	CodeSettingsBlock:     "Backend Settings Missing or Foreign",
	CodeValue:             "Invalid Value",
	CodeEnvironmentMode:   "Environment Mode Not Possible",
	CodeSpec:              "Malformed Spec or Binding",
	CodeNetwork:           "Network Egress Not Enforceable",
	CodeAllowEntry:        "Allow-List Entry Not Enforceable",
	CodeFilesystem:        "File-System Policy Not Enforceable",
	CodeResources:         "Resource Limit Not Enforceable",
	CodeIsolation:         "Isolation Below the Minimum",
	CodeLifetime:          "Lifetime Not Enforceable",
	CodeNoUserIdentity:    "Backend Has No User Identity",
	CodePrincipalMismatch: "Principal Does Not Match the Profile",
	CodeIdentity:          "Identity Incomplete or Refused",
	CodeLanguage:          "Language Not Offered",
	CodeOperation:         "Operation Not Offered",
	CodeTimeout:           "Run Timed Out",
	CodeGone:              "Sandbox Gone",
	CodeStopped:           "Sandbox Not Running",
	CodeUnknownOutcome:    "Outcome of the Run Unknown",
	CodeProvision:         "Sandbox Creation Failed",
	CodeExitStatus:        "Exit Status Not Accepted",
	CodeOutOfMemory:       "Run Out of Memory",
	CodeNotOurs:           "Not a Sandbox of This Provider",
	CodeOtherEndpoint:     "Another Endpoint",
	CodeUnreachable:       "Backend Unreachable",
	CodeDeleteFailed:      "Sandbox Still There After Delete",
	CodePluginFeature:     "Plugin Feature Not Declared",
}

// Title is the short title of a code, for the summary of a diagnostic.
func (c Code) Title() string {
	if t, ok := codeTitles[c]; ok {
		return t
	}
	return "Sandbox Error"
}

// Codes lists every code of this package, for documentation and tests.
func Codes() []Code {
	return slices.Sorted(maps.Keys(codeTitles))
}

// Error is what a user sees: what was attempted, on which object, what the backend said, what to do next.
type Error struct {
	Code Code
	// Attempted completes "could not ...": a sentence without a code and without the object.
	Attempted string
	// Object is what it was attempted on: a sandbox id, a profile name, a path.
	Object string
	// Said is what the backend (or the check) said.
	Said string
	// Next is what the user can do.
	Next string
	// Attribute is the path of the attribute to blame, relative to the construct ("policy", "network_egress"); nil if none.
	Attribute []string
	// Err is the cause.
	Err error
}

// Error gives everything but the title in one text.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(string(e.Code))
	b.WriteString(": ")
	b.WriteString(e.Attempted)
	if e.Object != "" {
		fmt.Fprintf(&b, " (%s)", e.Object)
	}
	b.WriteString(e.Reason())
	if e.Next != "" {
		b.WriteString(" ")
		b.WriteString(e.Next)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, " Original error: %v", e.Err)
	}
	return b.String()
}

// Reason is Said in the form in which it follows what was attempted: after a colon, or, when it is a sentence of its own,
// after a full stop.
func (e *Error) Reason() string {
	switch first, _ := utf8.DecodeRuneInString(e.Said); {
	case e.Said == "":
		return ""
	case unicode.IsUpper(first):
		return ". " + e.Said
	}
	return ": " + e.Said
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf gives the code of the first Error in err's chain (of the first violation for Violations), or "" if there is none.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	var v Violations
	if errors.As(err, &v) && len(v) > 0 {
		return v[0].Code
	}
	return ""
}

// IsCode reports whether err carries code.
func IsCode(err error, code Code) bool { return CodeOf(err) == code }

// Violations are all refusals of one step of the gate, in one error.
type Violations []*Error

// Error joins the violations, one a line.
func (v Violations) Error() string {
	lines := make([]string, len(v))
	for i, e := range v {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives the violations one by one, for errors.Is and errors.As.
func (v Violations) Unwrap() []error {
	out := make([]error, len(v))
	for i, e := range v {
		out[i] = e
	}
	return out
}

// outermost finds the error of this package that stands first in err's chain. What it has as its cause is not what the
// user is told: a spec that says the impossible is a malformed spec, whatever a profile would be told about it.
func outermost(err error) (*RunError, Violations, *Error) {
	for e := err; e != nil; e = errors.Unwrap(e) {
		switch x := e.(type) { //nolint:errorlint // the chain is walked here
		case *RunError:
			return x, nil, nil
		case Violations:
			return nil, x, nil
		case *Error:
			return nil, nil, x
		}
	}
	// A joined error has several chains.
	if run, ok := errors.AsType[*RunError](err); ok {
		return run, nil, nil
	}
	if v, ok := errors.AsType[Violations](err); ok {
		return nil, v, nil
	}
	e, _ := errors.AsType[*Error](err)
	return nil, nil, e
}

// AllErrors flattens err into its Error values; an error of another type becomes one Error with the code fallback.
func AllErrors(err error, fallback Code) []*Error {
	if err == nil {
		return nil
	}
	switch run, v, e := outermost(err); {
	case run != nil:
		return append([]*Error{run.Err}, run.More...)
	case v != nil:
		return v
	case e != nil:
		return []*Error{e}
	}
	return []*Error{{Code: fallback, Attempted: "the operation failed", Err: err}}
}

// RunError is an error of a run that still has output worth showing: the cleaned tails of both streams and, when the
// program ended, its exit status.
type RunError struct {
	Err        *Error
	ExitCode   *int
	StdoutTail string
	StderrTail string
	// More is what failed after the run: the removal of its sandbox.
	More []*Error
}

// Error gives the cause's text.
func (e *RunError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *RunError) Unwrap() error { return e.Err }
