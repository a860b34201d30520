// Package docker is the backend that runs code in containers of a Docker engine.
package docker

import (
	_ "github.com/containerd/errdefs"
	_ "github.com/distribution/reference"
	_ "github.com/docker/cli/cli/config"
	_ "github.com/docker/cli/cli/config/configfile"
	_ "github.com/docker/cli/cli/connhelper"
	_ "github.com/docker/cli/cli/context/docker"
	_ "github.com/docker/cli/cli/context/store"
	_ "github.com/docker/go-connections/tlsconfig"
	_ "github.com/moby/moby/api/types/container"
	_ "github.com/moby/moby/client"
	_ "golang.org/x/sync/singleflight"
)
