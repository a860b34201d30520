package provider

import (
	"context"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
)

// equalDuration plans nothing when a duration is only written in other words ("60s" and "1m").
type equalDuration struct{}

func (equalDuration) Description(context.Context) string {
	return "the same duration in other words is no change"
}

func (d equalDuration) MarkdownDescription(ctx context.Context) string { return d.Description(ctx) }

func (equalDuration) PlanModifyString(_ context.Context, req planmodifier.StringRequest, resp *planmodifier.StringResponse) {
	was, err := time.ParseDuration(req.StateValue.ValueString())
	if err != nil {
		return // there was none, or it is not known
	}
	if is, err := time.ParseDuration(req.PlanValue.ValueString()); err == nil && is == was {
		resp.PlanValue = req.StateValue
	}
}
