// The provider's entry point: it serves the plugin protocol.
package main

import (
	"context"
	"flag"
	"log"
	"log/slog"
	"os"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
)

// Set by the linker.
var (
	version = "dev"
	commit  = ""
)

func main() {
	debug := flag.Bool("debug", false, "serve for a debugger such as delve, and print how to attach Terraform")
	flag.Parse()
	if commit != "" {
		version += "+" + commit
	}
	slog.SetDefault(slog.New(provider.LogHandler(os.Stderr)))
	err := providerserver.Serve(context.Background(), provider.New(version, backends.Registry()), providerserver.ServeOpts{
		Address: "registry.terraform.io/agentkernel/agentkernel",
		Debug:   *debug,
	})
	if err != nil {
		log.Fatal(err)
	}
}
