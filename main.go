// The provider's entry point: it serves the plugin protocol.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6/tf6server"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/telemetry"
)

// Set by the linker.
var (
	version = "dev"
	commit  = ""
)

func main() {
	debug := flag.Bool("debug", false, "serve for a debugger such as delve, and print how to attach Terraform")
	ask := flag.Bool("version", false, "print the version and end")
	flag.Parse()
	if commit != "" {
		version += "+" + commit
	}
	if *ask {
		fmt.Println(version)
		return
	}
	slog.SetDefault(slog.New(provider.LogHandler(os.Stderr)))
	if err := serve(context.Background(), *debug); err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context, debug bool) error {
	tracing := telemetry.Start(ctx, version)
	defer tracing.Stop(ctx)
	made := provider.New(version, backends.Registry(), provider.WithTracer(tracing.Tracer()))
	server := func() tfprotov6.ProviderServer {
		return provider.Traced(providerserver.NewProtocol6(made())(), tracing.Tracer())
	}
	var options []tf6server.ServeOpt
	if debug {
		options = append(options, tf6server.WithManagedDebug())
	}
	return tf6server.Serve("registry.terraform.io/agentkernel/agentkernel", server, options...)
}
