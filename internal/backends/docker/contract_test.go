package docker_test

import (
	"context"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/docker"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// The contract on a real engine, on an image whose user is root and on one with USER, WORKDIR, ENV and ENTRYPOINT.
func TestContract(t *testing.T) {
	testenv.Require(t, "docker")
	for _, image := range []string{"python", "user"} {
		t.Run(image, func(t *testing.T) {
			backendtest.Run(t, backendtest.Target{
				Factory:  docker.Factory(),
				Settings: sandboxcore.Settings{"image": testenv.Image(image), "pull_policy": "never"},
				Foreign:  foreignContainer,
			})
		})
	}
}

// foreignContainer makes a container without our marks, as any other user of the engine would.
func foreignContainer(t *testing.T) (string, func(*testing.T)) {
	t.Helper()
	cli, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cli.Close() })
	created, err := cli.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config: &container.Config{Image: testenv.Image("python"), Entrypoint: []string{"sleep"}, Cmd: []string{"600"}, Labels: map[string]string{"somebody": "else"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := cli.ContainerRemove(context.WithoutCancel(t.Context()), created.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	})
	if _, err := cli.ContainerStart(t.Context(), created.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	return created.ID, func(t *testing.T) {
		t.Helper()
		got, err := cli.ContainerInspect(t.Context(), created.ID, client.ContainerInspectOptions{})
		if err != nil || !got.Container.State.Running || got.Container.Config.Labels["somebody"] != "else" {
			t.Errorf("the foreign container was touched: %+v, %v", got.Container.State, err)
		}
	}
}
