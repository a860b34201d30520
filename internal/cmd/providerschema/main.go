// Command providerschema prints the schemas of this provider as JSON, in the form of `terraform providers schema -json`.
//
// The generator of docs/ reads it. It asks the provider itself and no Terraform program, because programs before 1.14, and
// OpenTofu, leave out actions and list resources, which they do not know.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
)

// The key under which tfplugindocs looks for the schemas of a provider of this name: it knows no other namespace than its
// own, and takes the bare name.
const key = "agentkernel"

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "providerschema:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	server, err := providerserver.NewProtocol6WithError(provider.New("dev", backends.Registry())())()
	if err != nil {
		return err
	}
	schemas, err := server.GetProviderSchema(ctx, &tfprotov6.GetProviderSchemaRequest{})
	if err != nil {
		return err
	}
	if err := firstError(schemas.Diagnostics); err != nil {
		return err
	}
	identities, err := server.GetResourceIdentitySchemas(ctx, &tfprotov6.GetResourceIdentitySchemasRequest{})
	if err != nil {
		return err
	}
	if err := firstError(identities.Diagnostics); err != nil {
		return err
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(&providersJSON{
		FormatVersion: "1.0",
		Schemas:       map[string]*providerJSON{key: convert(schemas, identities)},
	})
}

func firstError(diagnostics []*tfprotov6.Diagnostic) error {
	for _, d := range diagnostics {
		if d.Severity == tfprotov6.DiagnosticSeverityError {
			return errors.New(d.Summary + ": " + d.Detail)
		}
	}
	return nil
}
