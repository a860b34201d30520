//go:build linux

package e2b

import (
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
)

func TestContract(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{})
	backendtest.Run(t, backendtest.Target{
		Factory:  Factory(),
		Provider: provider(peer),
		Foreign: func(t *testing.T) (string, func(*testing.T)) {
			id, err := peer.AddForeign()
			if err != nil {
				t.Fatal(err)
			}
			return id, func(t *testing.T) {
				if peer.States()[id] != "running" {
					t.Error("the foreign sandbox was touched")
				}
			}
		},
	})
}
