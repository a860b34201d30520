package provider

import (
	"errors"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/function"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// argumentError blames one argument of a function. Functions have neither summaries nor several errors, so that the title
// and every refusal go into one text, laid out as in diagnostics.
func argumentError(argument int64, err error) *function.FuncError {
	var texts []string
	refusals := sandboxcore.AllErrors(err, sandboxcore.CodeValue)
	// A spec that says what no profile can say is a malformed spec, whatever is wrong inside: the argument is the text.
	if whole, ok := errors.AsType[*sandboxcore.Error](err); ok {
		refusals = []*sandboxcore.Error{whole}
	}
	for _, e := range refusals {
		texts = append(texts, e.Code.Title()+". "+errorDetail(e, ""))
	}
	return function.NewArgumentFuncError(argument, sandboxcore.Clean(strings.Join(texts, "\n\n")))
}
