package protocoltest

import (
	"fmt"
	"slices"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// Action is what a plan is going to do.
type Action string

// Actions.
const (
	NoOp    Action = "no-op"
	Create  Action = "create"
	Update  Action = "update"
	Replace Action = "replace"
	Destroy Action = "destroy"
)

// Plan is a planned change of one object.
type Plan struct {
	Type    string
	Prior   State
	Config  tftypes.Value
	Planned tftypes.Value
	Private []byte
	// RequiresReplace are the attributes to blame, as Path writes them.
	RequiresReplace []string
	Action          Action
	Diags           Diags
}

// Get gives a planned attribute, as State.Get does.
func (p Plan) Get(names ...string) any { return get(p.Planned, names) }

// JSON gives the planned object the way a plan shows it.
func (p Plan) JSON() string { return asJSON(p.Planned) }

// Validate checks a configuration of a resource as `terraform validate` does.
func (s *Server) Validate(typeName string, config Config) Diags {
	s.tb.Helper()
	schema := s.resource(typeName)
	resp, err := s.server.ValidateResourceConfig(s.context(), &tfprotov6.ValidateResourceConfigRequest{
		TypeName: typeName, Config: s.pack(schema, s.value(schema, config)),
		ClientCapabilities: &tfprotov6.ValidateResourceConfigClientCapabilities{WriteOnlyAttributesAllowed: true},
	})
	s.must("validate "+typeName, err)
	return resp.Diagnostics
}

// ValidateData checks a configuration of a data source.
func (s *Server) ValidateData(typeName string, config Config) Diags {
	s.tb.Helper()
	schema := s.data(typeName)
	resp, err := s.server.ValidateDataResourceConfig(s.context(), &tfprotov6.ValidateDataResourceConfigRequest{
		TypeName: typeName, Config: s.pack(schema, s.value(schema, config)),
	})
	s.must("validate "+typeName, err)
	return resp.Diagnostics
}

func (s *Server) data(name string) *tfprotov6.Schema {
	s.tb.Helper()
	schema, ok := s.schema.DataSourceSchemas[name]
	if !ok {
		s.tb.Fatalf("the provider has no data source %s", name)
	}
	return schema
}

// ReadData reads a data source.
func (s *Server) ReadData(typeName string, config Config) (State, Diags) {
	s.tb.Helper()
	if d := s.ValidateData(typeName, config); d.HasError() {
		return State{}, d
	}
	schema := s.data(typeName)
	resp, err := s.server.ReadDataSource(s.context(), &tfprotov6.ReadDataSourceRequest{TypeName: typeName, Config: s.pack(schema, s.value(schema, config))})
	s.must("read "+typeName, err)
	return State{Type: typeName, Value: s.unpack(schema, resp.State)}, resp.Diagnostics
}

// Plan validates a configuration and plans it. A tainted prior object is planned as a replacement.
func (s *Server) Plan(typeName string, prior State, config Config) Plan {
	s.tb.Helper()
	schema := s.resource(typeName)
	if d := s.Validate(typeName, config); d.HasError() {
		return Plan{Type: typeName, Prior: prior, Diags: d}
	}
	value := s.value(schema, config)
	none := State{Type: typeName, Value: tftypes.NewValue(schema.ValueType(), nil)}
	if !prior.Exists() {
		p := s.plan(typeName, none, value)
		p.Action = Create
		return p
	}
	first := prior
	if prior.Tainted {
		first = none
	}
	p := s.plan(typeName, first, value)
	switch {
	case p.Diags.HasError():
	case prior.Tainted:
		p.Action = Replace
	case len(p.RequiresReplace) > 0:
		// Core plans a replacement once more as a creation, and shows the diagnostics of both.
		again := s.plan(typeName, none, value)
		again.Diags = append(p.Diags, again.Diags...)
		again.RequiresReplace, again.Action = p.RequiresReplace, Replace
		p = again
	case p.Planned.Equal(prior.Value):
		p.Action = NoOp
	default:
		p.Action = Update
	}
	p.Prior = prior
	return p
}

func (s *Server) plan(typeName string, prior State, config tftypes.Value) Plan {
	s.tb.Helper()
	schema := s.resource(typeName)
	proposed := proposedNew(schema.Block.Attributes, prior.Value, config)
	resp, err := s.server.PlanResourceChange(s.context(), &tfprotov6.PlanResourceChangeRequest{
		TypeName: typeName, PriorState: s.pack(schema, prior.Value), ProposedNewState: s.pack(schema, proposed),
		Config: s.pack(schema, config), PriorPrivate: prior.Private,
	})
	s.must("plan "+typeName, err)
	p := Plan{Type: typeName, Prior: prior, Config: config, Private: resp.PlannedPrivate, Diags: resp.Diagnostics}
	p.Planned = s.unpack(schema, resp.PlannedState)
	for _, at := range resp.RequiresReplace {
		p.RequiresReplace = append(p.RequiresReplace, Path(at))
	}
	slices.Sort(p.RequiresReplace)
	if !p.Diags.HasError() {
		for _, fault := range planFaults("", schema.Block.Attributes, prior.Value, config, p.Planned) {
			s.tb.Errorf("Terraform would refuse this plan of %s: %s", typeName, fault)
		}
	}
	return p
}

// PlanDestroy plans the destruction of an object.
func (s *Server) PlanDestroy(prior State) Plan {
	s.tb.Helper()
	schema := s.resource(prior.Type)
	null := tftypes.NewValue(schema.ValueType(), nil)
	resp, err := s.server.PlanResourceChange(s.context(), &tfprotov6.PlanResourceChangeRequest{
		TypeName: prior.Type, PriorState: s.pack(schema, prior.Value), ProposedNewState: s.pack(schema, null),
		Config: s.pack(schema, null), PriorPrivate: prior.Private,
	})
	s.must("plan to destroy "+prior.Type, err)
	return Plan{Type: prior.Type, Prior: prior, Config: null, Planned: null, Private: resp.PlannedPrivate, Action: Destroy, Diags: resp.Diagnostics}
}

// Apply applies a plan and gives the state that Terraform would keep. changes are values of the configuration that were
// unknown at plan and are known now.
func (s *Server) Apply(p Plan, changes ...Config) (State, Diags) {
	s.tb.Helper()
	if p.Diags.HasError() {
		s.tb.Fatalf("a plan with errors was applied: %s", p.Diags)
	}
	schema := s.resource(p.Type)
	config, planned := p.Config, p.Planned
	for _, c := range changes {
		config, planned = s.overlay(schema, config, c), s.overlay(schema, planned, c)
	}
	null := tftypes.NewValue(schema.ValueType(), nil)
	switch p.Action {
	case NoOp:
		return p.Prior, nil
	case Destroy:
		return s.apply(p.Prior, null, null, p.Private)
	case Replace:
		left, d := s.apply(p.Prior, null, null, nil)
		if d.HasError() {
			return left, d
		}
		made, more := s.apply(State{Type: p.Type, Value: null}, planned, config, p.Private)
		return made, append(d, more...)
	case Create, Update:
	}
	prior := p.Prior
	if p.Action == Create {
		prior = State{Type: p.Type, Value: null}
	}
	return s.apply(prior, planned, config, p.Private)
}

func (s *Server) overlay(schema *tfprotov6.Schema, v tftypes.Value, c Config) tftypes.Value {
	s.tb.Helper()
	var attributes map[string]tftypes.Value
	s.must("read a value", v.As(&attributes))
	for _, a := range schema.Block.Attributes {
		if known, ok := c[a.Name]; ok {
			n, err := valueOf(a.ValueType(), known)
			s.must("build a value", err)
			attributes[a.Name] = n
		}
	}
	return tftypes.NewValue(schema.ValueType(), attributes)
}

func (s *Server) apply(prior State, planned, config tftypes.Value, private []byte) (State, Diags) {
	s.tb.Helper()
	schema := s.resource(prior.Type)
	if !planned.IsNull() {
		planned = withoutWriteOnly(schema.Block.Attributes, planned)
	}
	resp, err := s.server.ApplyResourceChange(s.context(), &tfprotov6.ApplyResourceChangeRequest{
		TypeName: prior.Type, PriorState: s.pack(schema, prior.Value), PlannedState: s.pack(schema, planned),
		Config: s.pack(schema, config), PlannedPrivate: private, PlannedIdentity: s.packIdentity(prior.Type, prior.Identity),
	})
	s.must("apply "+prior.Type, err)
	after := State{Type: prior.Type, Value: s.unpack(schema, resp.NewState), Private: resp.Private, Identity: s.unpackIdentity(prior.Type, resp.NewIdentity)}
	diags := Diags(resp.Diagnostics)
	for _, name := range writeOnlySet(schema.Block.Attributes, after.Value) {
		// Core discards the whole new object: this is how a sandbox gets lost.
		s.tb.Errorf("the write-only attribute %s of %s came back in the state; Terraform would lose the object", name, prior.Type)
	}
	if diags.HasError() {
		after.Tainted = after.Exists() && !prior.Exists()
		return after, diags
	}
	for _, fault := range resultFaults("", planned, after.Value) {
		s.tb.Errorf("Terraform would refuse the result of applying %s: %s", prior.Type, fault)
	}
	return after, diags
}

// Read refreshes an object.
func (s *Server) Read(state State) (State, Diags) {
	s.tb.Helper()
	schema := s.resource(state.Type)
	resp, err := s.server.ReadResource(s.context(), &tfprotov6.ReadResourceRequest{
		TypeName: state.Type, CurrentState: s.pack(schema, state.Value), Private: state.Private, CurrentIdentity: s.packIdentity(state.Type, state.Identity),
	})
	s.must("read "+state.Type, err)
	if Diags(resp.Diagnostics).HasError() {
		return state, resp.Diagnostics
	}
	return State{
		Type: state.Type, Value: s.unpack(schema, resp.NewState), Private: resp.Private, Tainted: state.Tainted,
		Identity: s.unpackIdentity(state.Type, resp.NewIdentity),
	}, resp.Diagnostics
}

// Import imports an object by id and refreshes it, as Terraform does.
func (s *Server) Import(typeName, id string) (State, Diags) {
	s.tb.Helper()
	return s.importObject(typeName, &tfprotov6.ImportResourceStateRequest{TypeName: typeName, ID: id})
}

// ImportIdentity imports an object by its identity.
func (s *Server) ImportIdentity(typeName string, identity map[string]any) (State, Diags) {
	s.tb.Helper()
	return s.importObject(typeName, &tfprotov6.ImportResourceStateRequest{TypeName: typeName, Identity: s.packIdentity(typeName, identity)})
}

func (s *Server) importObject(typeName string, req *tfprotov6.ImportResourceStateRequest) (State, Diags) {
	s.tb.Helper()
	resp, err := s.server.ImportResourceState(s.context(), req)
	s.must("import "+typeName, err)
	diags := Diags(resp.Diagnostics)
	if diags.HasError() {
		return State{}, diags
	}
	if len(resp.ImportedResources) != 1 {
		s.tb.Fatalf("the import of %s gave %d objects", typeName, len(resp.ImportedResources))
	}
	got := resp.ImportedResources[0]
	state, more := s.Read(State{
		Type: typeName, Value: s.unpack(s.resource(typeName), got.State), Private: got.Private, Identity: s.unpackIdentity(typeName, got.Identity),
	})
	return state, append(diags, more...)
}

// Upgrade reads the JSON of an object that an older release wrote.
func (s *Server) Upgrade(typeName string, version int64, object []byte) (State, Diags) {
	s.tb.Helper()
	resp, err := s.server.UpgradeResourceState(s.context(), &tfprotov6.UpgradeResourceStateRequest{
		TypeName: typeName, Version: version, RawState: &tfprotov6.RawState{JSON: object},
	})
	s.must("upgrade "+typeName, err)
	return State{Type: typeName, Value: s.unpack(s.resource(typeName), resp.UpgradedState)}, resp.Diagnostics
}

// MustApply plans and applies and fails the test on any error.
func (s *Server) MustApply(typeName string, prior State, config Config) State {
	s.tb.Helper()
	p := s.Plan(typeName, prior, config)
	if p.Diags.HasError() {
		s.tb.Fatalf("plan %s: %s", typeName, p.Diags)
	}
	after, d := s.Apply(p)
	if d.HasError() {
		s.tb.Fatalf("apply %s: %s", typeName, d)
	}
	return after
}

// MustBeSettled fails the test unless a refresh finds the object as it is and a plan of it is empty.
func (s *Server) MustBeSettled(state State, config Config) {
	s.tb.Helper()
	read, d := s.Read(state)
	if d.HasError() {
		s.tb.Fatalf("read %s: %s", state.Type, d)
	}
	if !read.Value.Equal(state.Value) {
		s.tb.Errorf("the refresh of %s changed it:\nbefore %s\nafter  %s", state.Type, state.JSON(), read.JSON())
	}
	p := s.Plan(state.Type, read, config)
	if p.Diags.HasError() {
		s.tb.Fatalf("plan %s: %s", state.Type, p.Diags)
	}
	if p.Action != NoOp {
		s.tb.Errorf("the plan of %s is not empty: %s\nstate %s\nplan  %s", state.Type, fmt.Sprint(p.Action, p.RequiresReplace), read.JSON(), p.JSON())
	}
}
