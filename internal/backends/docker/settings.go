package docker

import (
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Defaults of spec version 1. They never change: a profile that does not name a key has the value that it had when
// version 1 came out.
const (
	defaultImage       = "python:3.12-slim"
	defaultPullPolicy  = pullMissing
	defaultPidsLimit   = 256
	defaultWorkspaceMB = 256
)

// Values of pull_policy.
const (
	pullAlways  = "always"
	pullMissing = "missing"
	pullNever   = "never"
)

// Values of workspace.
const (
	workspaceVolume = "volume"
	workspaceMemory = "memory"
)

// Values of seccomp_profile.
const (
	seccompDefault    = "default"
	seccompUnconfined = "unconfined"
)

// Keys of the provider attribute.
const (
	keyHost       = "host"
	keyContext    = "context"
	keyCertPath   = "cert_path"
	keyConfigDir  = "config_dir"
	keyAPIVersion = "api_version"
)

// Keys of the profile attribute.
const (
	keyImage           = "image"
	keyRuntime         = "runtime"
	keyPullPolicy      = "pull_policy"
	keyIsolation       = "isolation"
	keyNetwork         = "network"
	keyUser            = "user"
	keyWorkspace       = "workspace"
	keyWorkspaceSizeMB = "workspace_size_mb"
	keyPidsLimit       = "pids_limit"
	keyCapAdd          = "cap_add"
	keyNoNewPrivileges = "no_new_privileges"
	keySeccompProfile  = "seccomp_profile"
)

func providerSettings() []sandboxcore.Setting {
	return []sandboxcore.Setting{
		{
			Name: keyHost, Kind: sandboxcore.KindString,
			Description: "Address of the engine: `unix:///path`, `npipe:////./pipe/name`, `tcp://host:port` or " +
				"`ssh://user@host:port`. Conflicts with `context`. Defaults to `DOCKER_HOST`, then `DOCKER_CONTEXT` and the " +
				"current context of the Docker configuration, then the default socket. An address given here uses no " +
				"credential of the environment: name `cert_path` and `config_dir` beside it where they are needed.",
			Pattern: `^(unix|npipe|tcp|ssh)://.+$`, PatternHint: "unix://, npipe://, tcp:// or ssh:// followed by an address",
		},
		{
			Name: keyContext, Kind: sandboxcore.KindString,
			Description: "Name of a context of the Docker configuration, with the address and the TLS material stored in it.",
			Pattern:     `^[a-zA-Z0-9][a-zA-Z0-9_.+-]+$`, PatternHint: "a context name as in `docker context ls`",
		},
		{
			Name: keyCertPath, Kind: sandboxcore.KindString,
			Description: "Directory with `ca.pem`, `cert.pem` and `key.pem` for TLS to a `tcp://` address in `host`. The " +
				"engine's certificate is always verified. Defaults to `DOCKER_CERT_PATH` only when the address comes from `DOCKER_HOST`.",
		},
		{
			Name: keyConfigDir, Kind: sandboxcore.KindString,
			Description: "Directory of the Docker configuration: contexts, and the registry credentials (`docker login`) " +
				"that are handed to the engine for pulls. Defaults to `DOCKER_CONFIG`, then `~/.docker`; with `host`, registry " +
				"credentials are used only if this is set.",
		},
		{
			Name: keyAPIVersion, Kind: sandboxcore.KindString,
			Description: "Engine API version to speak, such as `1.41`. Defaults to `DOCKER_API_VERSION`, then to the newest that both sides know.",
			Pattern:     `^[0-9]+\.[0-9]+$`, PatternHint: "a version such as 1.41",
		},
	}
}

func profileSettings() []sandboxcore.Setting {
	return []sandboxcore.Setting{
		{
			Name: keyImage, Kind: sandboxcore.KindString, Default: defaultImage,
			Description: "Image of the sandbox, for linux/amd64 or linux/arm64. Defaults to `" + defaultImage + "`. Neither a " +
				"shell nor Python nor any other program has to be in it; what is missing is named when a run asks for it.",
		},
		{
			Name: keyRuntime, Kind: sandboxcore.KindString,
			Description: "Runtime of the engine that the sandbox runs with, for example `runsc`. Defaults to the engine's own default.",
			Pattern:     `^[a-zA-Z0-9][a-zA-Z0-9_.+/-]*$`, PatternHint: "a runtime name as in `docker info`",
		},
		attachSetting(),
		{
			Name: keyPullPolicy, Kind: sandboxcore.KindString, Default: defaultPullPolicy,
			OneOf: []string{pullAlways, pullMissing, pullNever}, Update: sandboxcore.UpdateRecorded,
			Description: "When the image is pulled: `always`, `missing` (the default: only if the engine does not have it) or `never`.",
		},
		{
			Name: keyIsolation, Kind: sandboxcore.KindString,
			OneOf: []string{string(sandboxcore.IsolationContainer), string(sandboxcore.IsolationSyscallFilter), string(sandboxcore.IsolationMicroVM)},
			Description: "The isolation tier that you assert for `runtime`, because the provider cannot see into it. Only " +
				"together with `runtime` (or `attach_to`), and marked as asserted everywhere. Without it the tier is `container`, attached `none`.",
		},
		{
			Name: keyNetwork, Kind: sandboxcore.KindString,
			Description: "Name of an existing user-defined network to join instead of the engine's default bridge. Only with egress `allow`.",
			Pattern:     `^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`, PatternHint: "a network name as in `docker network ls`",
		},
		{
			Name: keyUser, Kind: sandboxcore.KindString,
			Description: "User that code runs as: a name of the image or a number, with `:group` if wanted. Defaults to the image's own user, in most images root of the container.",
			Pattern:     `^[a-zA-Z0-9_][a-zA-Z0-9_.-]*(:[a-zA-Z0-9_][a-zA-Z0-9_.-]*)?$`, PatternHint: "user or user:group, by name or number",
		},
		{
			Name: keyWorkspace, Kind: sandboxcore.KindString, Default: workspaceVolume, OneOf: []string{workspaceVolume, workspaceMemory},
			Description: "Where the writable paths of `fs_allow_write` live: `volume` (the default: on the engine's disk, kept " +
				"while the sandbox exists) or `memory` (an executable in-memory file system of `workspace_size_mb` each, counted " +
				"against `memory_mb`, **empty again after every stop**). Without `fs_allow_write`, `memory` applies to `/workspace`.",
		},
		{
			Name: keyWorkspaceSizeMB, Kind: sandboxcore.KindInt, Default: float64(defaultWorkspaceMB), Min: new(float64(1)), Max: new(float64(1 << 20)),
			Description: "Size of each in-memory path in MB, with `workspace = \"memory\"` only. Defaults to 256.",
		},
		{
			Name: keyPidsLimit, Kind: sandboxcore.KindInt, Default: float64(defaultPidsLimit), Min: new(float64(16)), Max: new(float64(4096)),
			Description: "Most processes and threads that the sandbox may hold at once. Defaults to 256. Ending a run that keeps " +
				"forking takes time that grows with the square of this number.",
		},
		{
			Name: keyCapAdd, Kind: sandboxcore.KindStringList,
			Description: "Linux capabilities to give back; all are dropped otherwise. Only those that Docker itself gives to " +
				"ordinary containers can be named (`CHOWN`, `DAC_OVERRIDE`, `NET_BIND_SERVICE`, ...): others would undo the isolation.",
			Pattern: `^[A-Z_]+$`, PatternHint: "a capability name such as CHOWN, without CAP_",
		},
		{
			Name: keyNoNewPrivileges, Kind: sandboxcore.KindBool, Default: true,
			Description: "Whether programs are kept from gaining privileges through set-user-ID files. Defaults to true. With " +
				"false, the end of every process of a run can no longer be guaranteed, and the capabilities say so.",
		},
		{
			Name: keySeccompProfile, Kind: sandboxcore.KindString, Default: seccompDefault, OneOf: []string{seccompDefault, seccompUnconfined},
			Description: "System call filter: `default` (the engine's own) or `unconfined` (none).",
		},
	}
}

// options are the profile settings with their defaults.
type options struct {
	image           string
	runtime         string
	pullPolicy      string
	isolation       sandboxcore.Isolation
	network         string
	user            string
	workspace       string
	workspaceMB     int64
	pidsLimit       int64
	capAdd          []string
	noNewPrivileges bool
	seccomp         string
}

func optionsOf(p *sandboxcore.Profile) options {
	s := p.Settings
	return options{
		image:           s.String(keyImage, defaultImage),
		runtime:         s.String(keyRuntime, ""),
		pullPolicy:      s.String(keyPullPolicy, defaultPullPolicy),
		isolation:       sandboxcore.Isolation(s.String(keyIsolation, "")),
		network:         s.String(keyNetwork, ""),
		user:            s.String(keyUser, ""),
		workspace:       s.String(keyWorkspace, workspaceVolume),
		workspaceMB:     int64(s.Float(keyWorkspaceSizeMB, defaultWorkspaceMB)),
		pidsLimit:       int64(s.Float(keyPidsLimit, defaultPidsLimit)),
		capAdd:          s.Strings(keyCapAdd),
		noNewPrivileges: s.Bool(keyNoNewPrivileges, true),
		seccomp:         s.String(keySeccompProfile, seccompDefault),
	}
}
