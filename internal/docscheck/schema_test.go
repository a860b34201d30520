package docscheck_test

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
)

// schemas are what the provider declares, asked from it and not from a Terraform program: older ones know no actions.
type schemas struct {
	provider   *tfprotov6.SchemaBlock
	kinds      map[string]map[string]*tfprotov6.SchemaBlock // resource, data, ephemeral, action, list
	identities map[string][]*tfprotov6.ResourceIdentitySchemaAttribute
	functions  []string
}

// folders of the documentation, by kind of construct.
var folders = map[string]string{
	"resource": "resources", "data": "data-sources", "ephemeral": "ephemeral-resources", "action": "actions", "list": "list-resources",
}

func readSchemas(t *testing.T) *schemas {
	t.Helper()
	server, err := providerserver.NewProtocol6WithError(provider.New("dev", backends.Registry())())()
	if err != nil {
		t.Fatal(err)
	}
	answer, err := server.GetProviderSchema(t.Context(), &tfprotov6.GetProviderSchemaRequest{})
	if err != nil {
		t.Fatal(err)
	}
	identities, err := server.GetResourceIdentitySchemas(t.Context(), &tfprotov6.GetResourceIdentitySchemasRequest{})
	if err != nil {
		t.Fatal(err)
	}
	out := &schemas{
		provider: answer.Provider.Block,
		kinds: map[string]map[string]*tfprotov6.SchemaBlock{
			"resource": blocksOf(answer.ResourceSchemas), "data": blocksOf(answer.DataSourceSchemas), "ephemeral": blocksOf(answer.EphemeralResourceSchemas),
			"list": blocksOf(answer.ListResourceSchemas), "action": {},
		},
		identities: map[string][]*tfprotov6.ResourceIdentitySchemaAttribute{},
		functions:  slices.Sorted(maps.Keys(answer.Functions)),
	}
	for name, schema := range answer.ActionSchemas {
		out.kinds["action"][name] = schema.Schema.Block
	}
	for name, schema := range identities.IdentitySchemas {
		out.identities[name] = schema.IdentityAttributes
	}
	for kind, constructs := range out.kinds {
		if len(constructs) == 0 {
			t.Fatalf("no schema of kind %s", kind)
		}
	}
	return out
}

func blocksOf(in map[string]*tfprotov6.Schema) map[string]*tfprotov6.SchemaBlock {
	out := make(map[string]*tfprotov6.SchemaBlock, len(in))
	for name, schema := range in {
		out[name] = schema.Block
	}
	return out
}

// TestPageOfEveryConstruct: each has a page with an example and with what it enforces, and each resource says how it is
// imported, or that it is not.
func TestPageOfEveryConstruct(t *testing.T) {
	pages, declared := pagesByName(readPages(t)), readSchemas(t)
	wanted := map[string]string{}
	for kind, constructs := range declared.kinds {
		for name := range constructs {
			wanted[path.Join("docs", folders[kind], strings.TrimPrefix(name, "agentkernel_")+".md")] = kind
		}
	}
	for _, name := range declared.functions {
		wanted["docs/functions/"+name+".md"] = "function"
	}
	for name, kind := range wanted {
		p := pages[name]
		if p == nil {
			t.Errorf("there is no %s", name)
			continue
		}
		titles := []string{"Example Usage", "What it enforces"}
		if kind == "resource" {
			titles = append(titles, "Import")
		}
		for _, title := range titles {
			if !slices.Contains(p.titles, title) {
				t.Errorf("%s has no %q", name, title)
			}
		}
		if !slices.ContainsFunc(p.blocks, func(b block) bool { return configuration(b) }) {
			t.Errorf("%s has no configuration", name)
		}
	}
	for name := range pages {
		for _, folder := range append(slices.Collect(maps.Values(folders)), "functions") {
			if strings.HasPrefix(name, "docs/"+folder+"/") && wanted[name] == "" {
				t.Errorf("%s is about nothing that the provider has", name)
			}
		}
	}
	for _, want := range []string{"id = ", "identity = {", "-generate-config-out", "terraform import "} {
		if !strings.Contains(pages["docs/resources/sandbox.md"].text, want) {
			t.Errorf("docs/resources/sandbox.md does not show an import with %q", want)
		}
	}
}

// checker holds configuration against the schemas.
type checker struct {
	schemas *schemas
	found   []string
}

func (c *checker) add(at hcl.Range, format string, arguments ...any) {
	c.found = append(c.found, fmt.Sprintf("line %d: ", at.Start.Line)+fmt.Sprintf(format, arguments...))
}

// checkSchema gives what does not fit. Everything but the provider's own constructs is left to Terraform.
func (s *schemas) checkSchema(body *hclsyntax.Body) []string {
	c := &checker{schemas: s}
	for _, b := range body.Blocks {
		kind := b.Type
		switch {
		case kind == "provider" && len(b.Labels) == 1 && b.Labels[0] == "agentkernel":
			c.body(b.Body, s.provider, []string{"alias", "version"}, nil)
		case kind == "import":
			c.imported(b)
		case s.kinds[kind] != nil && len(b.Labels) == 2 && strings.HasPrefix(b.Labels[0], "agentkernel_"):
			schema := s.kinds[kind][b.Labels[0]]
			if schema == nil {
				c.add(b.DefRange(), "the provider has no %s %s", kind, b.Labels[0])
				continue
			}
			switch kind {
			case "action":
				c.wrapped(b, schema, []string{"count", "for_each", "provider"})
			case "list":
				c.wrapped(b, schema, []string{"provider", "limit", "include_resource", "count", "for_each"})
			default:
				c.body(b.Body, schema, []string{"count", "for_each", "provider", "depends_on"}, []string{"lifecycle"})
			}
		}
	}
	c.references(body)
	return c.found
}

// wrapped is an action or a list resource, whose arguments stand in a block config.
func (c *checker) wrapped(b *hclsyntax.Block, schema *tfprotov6.SchemaBlock, meta []string) {
	for name, a := range b.Body.Attributes {
		if !slices.Contains(meta, name) {
			c.add(a.Range(), "%s does not stand in a block %s", name, b.Type)
		}
	}
	for _, inner := range b.Body.Blocks {
		if inner.Type != "config" {
			c.add(inner.DefRange(), "block %s", inner.Type)
			continue
		}
		c.body(inner.Body, schema, nil, nil)
	}
}

func (c *checker) body(body *hclsyntax.Body, schema *tfprotov6.SchemaBlock, meta, blocks []string) {
	given := map[string]bool{}
	for name, a := range body.Attributes {
		given[name] = true
		if slices.Contains(meta, name) {
			continue
		}
		c.value(a.Range(), name, a.Expr, schema.Attributes)
	}
	for _, b := range body.Blocks {
		if !slices.Contains(blocks, b.Type) {
			c.add(b.DefRange(), "there is no block %s here", b.Type)
		}
	}
	for _, a := range schema.Attributes {
		if a.Required && !given[a.Name] {
			c.add(body.SrcRange, "%s is missing", a.Name)
		}
	}
}

// value checks the argument name and, where its value is written out, what is in it.
func (c *checker) value(at hcl.Range, name string, expr hclsyntax.Expression, attributes []*tfprotov6.SchemaAttribute) {
	a := find(attributes, name)
	switch {
	case a == nil:
		c.add(at, "there is no argument %s", name)
		return
	case !a.Optional && !a.Required:
		c.add(at, "%s cannot be set", name)
		return
	case a.NestedType == nil:
		return
	}
	c.nested(expr, a.NestedType)
}

func (c *checker) nested(expr hclsyntax.Expression, schema *tfprotov6.SchemaObject) {
	switch e := expr.(type) {
	case *hclsyntax.ParenthesesExpr:
		c.nested(e.Expression, schema)
	case *hclsyntax.ConditionalExpr:
		c.nested(e.TrueResult, schema)
		c.nested(e.FalseResult, schema)
	case *hclsyntax.TupleConsExpr:
		for _, element := range e.Exprs {
			c.nested(element, schema)
		}
	case *hclsyntax.ObjectConsExpr:
		if schema.Nesting == tfprotov6.SchemaObjectNestingModeMap {
			for _, item := range e.Items {
				c.nested(item.ValueExpr, &tfprotov6.SchemaObject{Attributes: schema.Attributes, Nesting: tfprotov6.SchemaObjectNestingModeSingle})
			}
			return
		}
		given := map[string]bool{}
		for _, item := range e.Items {
			key, diags := item.KeyExpr.Value(nil)
			if diags.HasErrors() {
				c.add(item.KeyExpr.Range(), "a computed key where the provider knows the names")
				continue
			}
			given[key.AsString()] = true
			c.value(item.KeyExpr.Range(), key.AsString(), item.ValueExpr, schema.Attributes)
		}
		for _, a := range schema.Attributes {
			if a.Required && !given[a.Name] {
				c.add(e.SrcRange, "%s is missing", a.Name)
			}
		}
	}
}

// imported checks an import block: its identity has the attributes of that of the resource.
func (c *checker) imported(b *hclsyntax.Block) {
	to := b.Body.Attributes["to"]
	if to == nil {
		c.add(b.DefRange(), "to is missing")
		return
	}
	traversal, diags := hcl.AbsTraversalForExpr(to.Expr)
	if diags.HasErrors() {
		c.add(to.Range(), "to is no address")
		return
	}
	attributes, known := c.schemas.identities[traversal.RootName()]
	if !known {
		c.add(to.Range(), "%s has no identity", traversal.RootName())
		return
	}
	identity := b.Body.Attributes["identity"]
	if (identity == nil) == (b.Body.Attributes["id"] == nil) {
		c.add(b.DefRange(), "exactly one of id and identity")
	}
	if identity == nil {
		return
	}
	object, ok := identity.Expr.(*hclsyntax.ObjectConsExpr)
	if !ok {
		c.add(identity.Range(), "identity is no object")
		return
	}
	given := map[string]bool{}
	for _, item := range object.Items {
		key, diags := item.KeyExpr.Value(nil)
		if diags.HasErrors() {
			continue
		}
		given[key.AsString()] = true
		if !slices.ContainsFunc(attributes, func(a *tfprotov6.ResourceIdentitySchemaAttribute) bool { return a.Name == key.AsString() }) {
			c.add(item.KeyExpr.Range(), "the identity has no %s", key.AsString())
		}
	}
	for _, a := range attributes {
		if a.RequiredForImport && !given[a.Name] {
			c.add(identity.Range(), "the identity lacks %s", a.Name)
		}
	}
}

// references checks that what is read of a construct exists.
func (c *checker) references(body *hclsyntax.Body) {
	diags := hclsyntax.VisitAll(body, func(node hclsyntax.Node) hcl.Diagnostics {
		switch e := node.(type) {
		case *hclsyntax.ScopeTraversalExpr:
			c.traversal(e.Traversal)
		case *hclsyntax.FunctionCallExpr:
			if name, ours := strings.CutPrefix(e.Name, "provider::agentkernel::"); ours && !slices.Contains(c.schemas.functions, name) {
				c.add(e.Range(), "the provider has no function %s", name)
			}
		}
		return nil
	})
	if diags.HasErrors() {
		c.found = append(c.found, diags.Error())
	}
}

func (c *checker) traversal(traversal hcl.Traversal) {
	construct, _, rest := constructOf(traversal)
	if construct == "" {
		return
	}
	kind, name, _ := strings.Cut(construct, " ")
	schema := c.schemas.kinds[kind][name]
	if schema == nil {
		c.add(traversal.SourceRange(), "the provider has no %s %s", kind, name)
		return
	}
	attributes, object := schema.Attributes, tftypes.Type(nil)
	for _, step := range rest {
		attribute, ok := step.(hcl.TraverseAttr)
		if !ok {
			continue // an index or a splat: the element has the attributes
		}
		if object != nil {
			o, is := object.(tftypes.Object)
			if !is {
				return // a map or a primitive
			}
			if object, ok = o.AttributeTypes[attribute.Name]; !ok {
				c.add(traversal.SourceRange(), "there is no %s in it", attribute.Name)
				return
			}
			object = element(object)
			continue
		}
		a := find(attributes, attribute.Name)
		if a == nil {
			c.add(traversal.SourceRange(), "%s has no attribute %s", name, attribute.Name)
			return
		}
		if a.NestedType != nil {
			if a.NestedType.Nesting == tfprotov6.SchemaObjectNestingModeMap {
				return // the next step may be a key
			}
			attributes = a.NestedType.Attributes
			continue
		}
		object = element(a.Type)
	}
}

func element(t tftypes.Type) tftypes.Type {
	if list, ok := t.(tftypes.List); ok {
		return list.ElementType
	}
	return t
}

// constructOf splits a reference to a construct of this provider into its kind and type, its address, and what is read of
// it.
func constructOf(traversal hcl.Traversal) (construct, address string, rest hcl.Traversal) {
	kind, at := "resource", 0
	switch traversal.RootName() {
	case "data", "ephemeral", "action":
		kind, at = traversal.RootName(), 1
	}
	if len(traversal) < at+2 {
		return "", "", nil
	}
	var names []string
	for _, step := range traversal[:at+2] {
		switch s := step.(type) {
		case hcl.TraverseRoot:
			names = append(names, s.Name)
		case hcl.TraverseAttr:
			names = append(names, s.Name)
		default:
			return "", "", nil
		}
	}
	if !strings.HasPrefix(names[at], "agentkernel_") {
		return "", "", nil
	}
	return kind + " " + names[at], strings.Join(names, "."), traversal[at+2:]
}

func find(attributes []*tfprotov6.SchemaAttribute, name string) *tfprotov6.SchemaAttribute {
	for _, a := range attributes {
		if a.Name == name {
			return a
		}
	}
	return nil
}

func TestCheckSchemaFindsWhatDoesNotFit(t *testing.T) {
	declared := readSchemas(t)
	for text, want := range map[string]string{
		`resource "agentkernel_sandbox" "a" { profile = "x" }`:                                                                  "",
		`resource "agentkernel_sandbox" "a" {}`:                                                                                 "profile is missing",
		`resource "agentkernel_box" "a" {}`:                                                                                     "no resource agentkernel_box",
		"resource \"agentkernel_sandbox\" \"a\" {\n profile = \"x\"\n id = \"y\"\n}":                                            "id cannot be set",
		"resource \"agentkernel_sandbox\" \"a\" {\n profile = \"x\"\n imege = \"y\"\n}":                                         "no argument imege",
		"data \"agentkernel_profile\" \"a\" {\n name = \"x\"\n type = \"docker\"\n docker = { imege = \"y\" }\n}":               "no argument imege",
		"data \"agentkernel_profile\" \"a\" {\n name = \"x\"\n type = \"docker\"\n docker = true ? { imege = \"y\" } : null\n}": "no argument imege",
		"data \"agentkernel_profile\" \"a\" {\n name = \"x\"\n type = \"docker\"\n docker {}\n}":                                "no block docker",
		"provider \"agentkernel\" {\n dokker = {}\n}":                                                                           "no argument dokker",
		"action \"agentkernel_exec\" \"a\" {\n config {\n scrypt = \"x\"\n }\n}":                                                "no argument scrypt",
		"action \"agentkernel_exec\" \"a\" {\n script = \"x\"\n}":                                                               "does not stand in a block action",
		"list \"agentkernel_sandbox\" \"a\" {\n provider = agentkernel\n config {\n bakend = \"x\"\n }\n}":                      "no argument bakend",
		"import {\n to = agentkernel_sandbox.a\n identity = { backend = \"docker\" }\n}":                                        "lacks native_id",
		"import {\n to = agentkernel_sandbox.a\n identity = { native_id = \"a\", backend = \"docker\", name = \"x\" }\n}":       "has no name",
		"import {\n to = agentkernel_exec.a\n id = \"x\"\n}":                                                                    "has no identity",
		`output "a" { value = agentkernel_sandbox.a.stats }`:                                                                    "no attribute stats",
		`output "a" { value = agentkernel_sandbox.a.binding.idd }`:                                                              "no attribute idd",
		`output "a" { value = data.agentkernel_profile.a.capabilities.isolation }`:                                              "",
		`output "a" { value = provider::agentkernel::parse(1) }`:                                                                "no function parse",
	} {
		parsed, diags := hclsyntax.ParseConfig([]byte(text), "x.tf", hcl.InitialPos)
		if diags.HasErrors() {
			t.Fatalf("%s: %s", text, diags)
		}
		body, ok := parsed.Body.(*hclsyntax.Body)
		if !ok {
			t.Fatal("no body")
		}
		found := strings.Join(declared.checkSchema(body), "; ")
		if (want == "") != (found == "") || !strings.Contains(found, want) {
			t.Errorf("%s: %q, want %q", text, found, want)
		}
	}
}
