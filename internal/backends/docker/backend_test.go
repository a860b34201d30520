package docker

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

func pure(t *testing.T) *backend {
	t.Helper()
	b, err := newBackend(nil, getenvNone)
	if err != nil {
		t.Fatal(err)
	}
	return as[*backend](t, b)
}

func TestFactory(t *testing.T) {
	f := Factory()
	if f.Type != sandboxcore.BackendDocker || f.New == nil || f.Describe == "" {
		t.Fatalf("%+v", f)
	}
	for _, list := range [][]sandboxcore.Setting{f.Settings, f.ProviderSettings} {
		seen := map[string]bool{}
		for _, s := range list {
			if seen[s.Name] || !strings.HasSuffix(s.Description, ".") {
				t.Errorf("%s: twice, or without a sentence", s.Name)
			}
			seen[s.Name] = true
		}
	}
	// Agent Kernel's own keys come first.
	if f.Settings[0].Name != keyImage || f.Settings[1].Name != keyRuntime {
		t.Error("the order of the settings")
	}
}

// The defaults are frozen for spec version 1: a change would replace every sandbox at an upgrade.
func TestFrozenDefaults(t *testing.T) {
	want := map[string]any{
		keyImage: "python:3.12-slim", keyPullPolicy: "missing", keyWorkspace: "volume", keyWorkspaceSizeMB: 256.0, keyPidsLimit: 256.0,
		keyNoNewPrivileges: true, keySeccompProfile: "default",
	}
	for _, s := range profileSettings() {
		if s.Default != want[s.Name] {
			t.Errorf("%s: %v, frozen is %v", s.Name, s.Default, want[s.Name])
		}
	}
	// What an absent key means in this package is what its default says.
	full := sandboxcore.Settings{}
	maps.Copy(full, want)
	if a, b := optionsOf(&sandboxcore.Profile{}), optionsOf(&sandboxcore.Profile{Settings: full}); !reflect.DeepEqual(a, b) {
		t.Errorf("%+v\n%+v", a, b)
	}
}

func TestCapabilities(t *testing.T) {
	b := pure(t)
	want := sandboxcore.Capabilities{
		Isolation: sandboxcore.IsolationContainer, Shell: true, Languages: []string{"python"}, Files: true, PackageInstall: true, Attach: true,
		Provisions: true, AttachesExternal: true, PolicyNetwork: true, PolicyFilesystem: true, PolicyResources: true,
		NetworkModes: []sandboxcore.NetworkMode{sandboxcore.NetworkAllow, sandboxcore.NetworkDeny}, FSWrite: true, Stdin: true, Streaming: true,
		SplitOutput: true, Pause: true, LiveUpdate: []string{"cpu", "memory_mb"}, KeepBackground: true, KillsTree: true, Assertable: []string{"isolation"},
	}
	for _, p := range []*sandboxcore.Profile{nil, profile("python")} {
		if got := b.Capabilities(p); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v", got)
		}
	}
	asserted := b.Capabilities(profile("python", settings(keyRuntime, "runsc", keyIsolation, "syscall_filter")))
	if asserted.Isolation != sandboxcore.IsolationSyscallFilter || !asserted.IsolationAsserted {
		t.Errorf("%+v", asserted)
	}
	// Naming a runtime asserts nothing.
	if c := b.Capabilities(profile("python", settings(keyRuntime, "runsc"))); c.Isolation != sandboxcore.IsolationContainer || c.IsolationAsserted {
		t.Errorf("%+v", c)
	}
	for what, p := range map[string]*sandboxcore.Profile{
		"set-user-ID programs work":    profile("python", settings(keyNoNewPrivileges, false)),
		"code may become another user": profile("python", settings(keyCapAdd, []any{"SETUID"})),
	} {
		if b.Capabilities(p).KillsTree {
			t.Errorf("%s: the end of every process cannot be promised", what)
		}
	}
	if !b.Capabilities(profile("python", settings(keyCapAdd, []any{"KILL", "SETUID"}))).KillsTree {
		t.Error("with KILL the helper reaches other users")
	}
}

func TestValidate(t *testing.T) {
	b := pure(t)
	tests := map[string]struct {
		p         *sandboxcore.Profile
		code      sandboxcore.Code
		attribute string
	}{
		"plain":                     {p: profile("python")},
		"all set":                   {p: profile("python", allow, settings(keyRuntime, "runsc", keyIsolation, "micro_vm", keyNetwork, "mine", keyCapAdd, []any{"CHOWN"}, keyWorkspace, "memory", keyWorkspaceSizeMB, 5.0, keyUser, "1:1"), fsWrite("/workspace", "/tmp"))},
		"image by digest":           {p: profile("python", settings(keyImage, "python@sha256:"+strings.Repeat("a", 64)))},
		"image by id":               {p: profile("python", settings(keyImage, "sha256:"+strings.Repeat("a", 64)))},
		"image reference":           {p: profile("python", settings(keyImage, "Not A Reference")), code: sandboxcore.CodeValue, attribute: "docker.image"},
		"empty image":               {p: profile("python", settings(keyImage, "")), code: sandboxcore.CodeValue, attribute: "docker.image"},
		"tier without runtime":      {p: profile("python", settings(keyIsolation, "micro_vm")), code: sandboxcore.CodeValue, attribute: "docker.isolation"},
		"network under deny":        {p: profile("python", settings(keyNetwork, "mine")), code: sandboxcore.CodeNetwork, attribute: "docker.network"},
		"the host's network":        {p: profile("python", allow, settings(keyNetwork, "host")), code: sandboxcore.CodeValue, attribute: "docker.network"},
		"a capability that escapes": {p: profile("python", settings(keyCapAdd, []any{"SYS_ADMIN"})), code: sandboxcore.CodeValue, attribute: "docker.cap_add"},
		"all capabilities":          {p: profile("python", settings(keyCapAdd, []any{"ALL"})), code: sandboxcore.CodeValue, attribute: "docker.cap_add"},
		"size of a volume":          {p: profile("python", settings(keyWorkspaceSizeMB, 5.0)), code: sandboxcore.CodeValue, attribute: "docker.workspace_size_mb"},
		"writable root":             {p: profile("python", fsWrite("/")), code: sandboxcore.CodeFilesystem, attribute: "policy.fs_allow_write"},
		"writable root, spelt":      {p: profile("python", fsWrite("/x/..")), code: sandboxcore.CodeFilesystem, attribute: "policy.fs_allow_write"},
		"writable helper":           {p: profile("python", fsWrite("/.agentkernel/x")), code: sandboxcore.CodeFilesystem, attribute: "policy.fs_allow_write"},
		"writable proc":             {p: profile("python", fsWrite("/proc/sys")), code: sandboxcore.CodeFilesystem, attribute: "policy.fs_allow_write"},
		"relative":                  {p: profile("python", fsWrite("workspace")), code: sandboxcore.CodeFilesystem, attribute: "policy.fs_allow_write"},
		"mount option":              {p: profile("python", fsWrite("/x:rw")), code: sandboxcore.CodeFilesystem, attribute: "policy.fs_allow_write"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := b.Validate(test.p)
			if test.code == "" {
				if len(got) != 0 {
					t.Fatal(got[0])
				}
				return
			}
			if len(got) != 1 || got[0].Code != test.code || strings.Join(got[0].Attribute, ".") != test.attribute || got[0].Next == "" {
				t.Fatalf("%v", got)
			}
		})
	}
	if got := b.Validate(profile("python", settings(keyIsolation, "micro_vm", keyCapAdd, []any{"SYS_ADMIN", "BPF"}, keyImage, ""))); len(got) != 4 {
		t.Errorf("%d refusals, want every one of 4", len(got))
	}
}

func TestOutermost(t *testing.T) {
	got := outermost([]string{"/tmp/x", "/workspace/", "/tmp", "/tmpfiles", "/tmp", "/a/../b"})
	if !slices.Equal(got, []string{"/b", "/tmp", "/tmpfiles", "/workspace"}) {
		t.Error(got)
	}
}

func TestLookupOwner(t *testing.T) {
	passwd := []byte("root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1001::/home/agent:/bin/sh\nbroken\n7:x:70:71::/:\n")
	group := []byte("root:x:0:\nstaff:x:50:agent\n")
	for user, want := range map[string]owner{
		"agent": {1000, 1001}, "1000": {1000, 1001}, "1000:0": {1000, 0}, "agent:staff": {1000, 50}, "agent:99": {1000, 99}, "4242": {4242, 0}, "7": {70, 71},
	} {
		if got, err := lookupOwner(user, passwd, group); err != nil || got != want {
			t.Errorf("%s: %v %v", user, got, err)
		}
	}
	for _, user := range []string{"nobody", "agent:none"} {
		if got, err := lookupOwner(user, passwd, group); err == nil {
			t.Errorf("%s: %v", user, got)
		}
	}
}

func TestContainerName(t *testing.T) {
	for name, want := range map[string]string{"": "agentkernel-sandbox-r", "a b/ü": "agentkernel-a-b--r", strings.Repeat("x", 90): "agentkernel-" + strings.Repeat("x", 40) + "-r"} {
		if got := containerName(sandboxcore.Marks{Name: name, Request: "r"}); got != want {
			t.Errorf("%q: %s", name, got)
		}
	}
}

// A secret in a malformed variable is not repeated by anybody.
func TestMalformedEnvironment(t *testing.T) {
	for _, env := range []map[string]string{{"": "canary"}, {"A=B": "canary"}, {"A": "cana\x00ry"}} {
		_, err := planContainer(request(profile("bare"), func(r *sandboxcore.CreateRequest) { r.Env = env }), imageFacts{}, "v")
		refused(t, err, sandboxcore.CodeValue)
		if strings.Contains(err.Error(), "cana") {
			t.Error(err)
		}
	}
}
