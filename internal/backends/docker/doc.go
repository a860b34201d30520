// Package docker is the backend that runs code in containers of a Docker engine.
//
// One container is one sandbox. Its main process is the run helper, which reaches the container through one read-only
// volume per engine; every run is an exec of the same helper, so that deadlines, kills and exit statuses do not depend
// on anything that the image brings along. What belongs to a sandbox (the container, the volumes of its writable paths)
// carries our labels, and nothing without them is ever changed.
//
// Reading order: settings.go (what a user can say), backend.go (what is promised), target.go and client.go (which
// engine, and the only place that makes a client), failures.go (what an engine's answer means), endpoint.go, create.go,
// containerspec.go, image.go, owner.go, helper.go, find.go, sandbox.go, run.go.
package docker
