package sandboxcore_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// TestAttachedHandleCannotDestroy: what is attached belongs to somebody else. The handle has these methods and no other,
// so that no code path can end, start, stop or change it by mistake.
func TestAttachedHandleCannotDestroy(t *testing.T) {
	allowed := []string{"Details", "NativeID", "Platform", "ReadFile", "RemoveFile", "Run", "Status", "WriteFile"}
	handle := reflect.TypeFor[sandboxcore.AttachedEnvironment]()
	var has []string
	for m := range handle.Methods() {
		has = append(has, m.Name)
	}
	if !slices.Equal(has, allowed) {
		t.Errorf("an attached handle has %v and may have %v", has, allowed)
	}
	managed := reflect.TypeFor[sandboxcore.ManagedSandbox]()
	if handle.Implements(managed) {
		t.Error("an attached handle can be used as a managed one")
	}
	for m := range managed.Methods() {
		if !slices.Contains(allowed, m.Name) && m.Name != "Info" && !slices.Contains([]string{"Destroy", "Pause", "Resume", "Update"}, m.Name) {
			t.Errorf("a method of managed sandboxes that this test does not know: %s", m.Name)
		}
	}
}
