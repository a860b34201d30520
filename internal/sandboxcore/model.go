package sandboxcore

import (
	"slices"
	"time"
)

// BackendType names a kind of place where code runs, for example "docker".
type BackendType string

// The backend types that the design fixes. A type is usable only when a backend of that name is registered.
const (
	BackendLocalSubprocess  BackendType = "local_subprocess"
	BackendBubblewrap       BackendType = "bubblewrap"
	BackendDocker           BackendType = "docker"
	BackendKubernetes       BackendType = "kubernetes"
	BackendE2B              BackendType = "e2b"
	BackendDaytona          BackendType = "daytona"
	BackendEC2SSM           BackendType = "ec2_ssm"
	BackendBedrockAgentCore BackendType = "bedrock_agentcore"
	BackendOpenSandbox      BackendType = "opensandbox"
	BackendPlugin           BackendType = "plugin"
)

// Isolation is the strength of the boundary between sandboxed code and the host.
type Isolation string

// Isolation tiers. IsolationWASM compares only with IsolationNone and with itself.
const (
	IsolationNone          Isolation = "none"
	IsolationOSPolicy      Isolation = "os_policy"
	IsolationContainer     Isolation = "container"
	IsolationSyscallFilter Isolation = "syscall_filter"
	IsolationMicroVM       Isolation = "micro_vm"
	IsolationWASM          Isolation = "wasm"
)

var isolationOrder = []Isolation{IsolationNone, IsolationOSPolicy, IsolationContainer, IsolationSyscallFilter, IsolationMicroVM}

// IsolationTiers lists every tier, weakest first, with wasm last.
func IsolationTiers() []Isolation { return append(slices.Clone(isolationOrder), IsolationWASM) }

// Valid reports whether i is a known tier.
func (i Isolation) Valid() bool { return slices.Contains(IsolationTiers(), i) }

// AtLeast reports whether i is as strong as minimum or stronger. Tiers that cannot be compared (wasm against
// anything but none and itself) are not at least each other.
func (i Isolation) AtLeast(minimum Isolation) bool {
	if !i.Valid() || !minimum.Valid() {
		return false
	}
	if minimum == IsolationNone || i == minimum {
		return true
	}
	if i == IsolationWASM || minimum == IsolationWASM {
		return false
	}
	return slices.Index(isolationOrder, i) >= slices.Index(isolationOrder, minimum)
}

// NetworkMode is an egress mode of a policy.
type NetworkMode string

// Egress modes.
const (
	NetworkAllow     NetworkMode = "allow"
	NetworkDeny      NetworkMode = "deny"
	NetworkAllowlist NetworkMode = "allowlist"
)

// AllowEntryKind is a kind of entry of an egress allow-list.
type AllowEntryKind string

// Kinds of allow-list entry.
const (
	AllowEntryCIDR   AllowEntryKind = "cidr"
	AllowEntryDomain AllowEntryKind = "domain"
)

// EnvironmentMode says whether we create the sandbox or bind to somebody else's.
type EnvironmentMode string

// Environment modes.
const (
	EnvironmentManaged  EnvironmentMode = "managed"
	EnvironmentAttached EnvironmentMode = "attached"
)

// IdentityMode is whose identity code runs under.
type IdentityMode string

// Identity modes, of profiles and of principals.
const (
	IdentityAgent IdentityMode = "agent"
	IdentityUser  IdentityMode = "user"
)

// Scope is the life span of a sandbox in the Agent Kernel runtime. Terraform only records it.
type Scope string

// Scopes.
const (
	ScopePerSession Scope = "per_session"
	ScopePerCall    Scope = "per_call"
	ScopePerRuntime Scope = "per_runtime"
)

// Capabilities is what a backend, with given settings and operator assertions, supports and enforces. The zero
// value of every field but Provisions is the under-declared, safe side. A flag may be true only where a test
// shows the enforcement.
type Capabilities struct {
	// Isolation is the tier; IsolationAsserted says that the operator vouches for it (a runtime we cannot see into).
	Isolation         Isolation
	IsolationAsserted bool
	// Shell: shell text can be run.
	Shell bool
	// Languages that code may be written in.
	Languages []string
	// Files: single files can be written into and read out of the environment.
	Files bool
	// PackageInstall: Python packages can be installed into the workspace.
	PackageInstall bool
	// Stateful: interpreter variables persist between runs.
	Stateful bool
	// Attach: a sandbox that we created can be found again by its id.
	Attach bool
	// Provisions: environments can be created.
	Provisions bool
	// AttachesExternal: environments that we did not create can be bound.
	AttachesExternal bool
	// PrincipalUser: code can run under a user's identity.
	PrincipalUser bool
	// PolicyNetwork: NetworkModes other than allow are enforced.
	PolicyNetwork bool
	// PolicyFilesystem: FSRead or FSWrite is enforced.
	PolicyFilesystem bool
	// PolicyResources: cpu and memory limits are enforced.
	PolicyResources bool

	// NetworkModes that can be had (allow included). AllowlistEntries are the kinds enforceable in mode allowlist.
	NetworkModes     []NetworkMode
	AllowlistEntries []AllowEntryKind
	// FSRead and FSWrite: fs_allow_read and fs_allow_write are enforced.
	FSRead  bool
	FSWrite bool
	// Stdin can be handed to a run.
	Stdin bool
	// Streaming: output arrives while the run goes on.
	Streaming bool
	// SplitOutput: stdout and stderr arrive apart.
	SplitOutput bool
	// Pause: desired_state = "paused" works.
	Pause bool
	// LiveUpdate lists the policy keys that can change in place ("cpu", "memory_mb", "network", "labels", "env").
	LiveUpdate []string
	// MaxLifetime: the backend itself ends a sandbox after max_lifetime.
	MaxLifetime bool
	// KeepBackground: background = "keep" is possible.
	KeepBackground bool
	// KillsTree: a timeout kills every process of a run, whatever it did to hide.
	KillsTree bool
	// RecordsInput: the backend keeps what a run is given where others can read it, so that secrets are refused unless the
	// profile allows them. The one flag whose zero value claims something.
	RecordsInput bool
	// Assertable lists the settings by which an operator vouches for something ("isolation", "network_policy").
	Assertable []string
}

// Principal is whose identity code runs under.
type Principal struct {
	Mode    IdentityMode `json:"mode"`
	Subject string       `json:"subject"`
	Groups  []string     `json:"groups,omitempty"`
	// Kubernetes names the user as a cluster knows it; nil: Subject and Groups.
	Kubernetes *KubernetesPrincipal `json:"kubernetes,omitempty"`
	// EC2SSM says how AWS and the machine know the user.
	EC2SSM *EC2SSMPrincipal `json:"ec2_ssm,omitempty"`
}

// EC2SSMPrincipal is a user as AWS and one of its machines know it: the role that is assumed, and the user of the
// machine that code runs as.
type EC2SSMPrincipal struct {
	RoleARN        string            `json:"role_arn,omitempty"`
	ExternalID     string            `json:"external_id,omitempty"`
	SessionTags    map[string]string `json:"session_tags,omitempty"`
	SourceIdentity string            `json:"source_identity,omitempty"`
	RunAs          string            `json:"run_as,omitempty"`
}

// KubernetesPrincipal is a user as the API server of a cluster knows it.
type KubernetesPrincipal struct {
	User   string              `json:"user,omitempty"`
	Groups []string            `json:"groups,omitempty"`
	Extra  map[string][]string `json:"extra,omitempty"`
}

// DefaultPrincipal is the principal of a configuration that names none.
func DefaultPrincipal() Principal { return Principal{Mode: IdentityAgent, Subject: "terraform"} }

// Policy is the limits that a profile asks for.
type Policy struct {
	NetworkEgress NetworkMode
	NetworkAllow  []string // CIDRs or domains, only with NetworkAllowlist
	FSAllowRead   []string // absolute paths
	FSAllowWrite  []string // absolute paths
	CPU           *float64 // cores
	MemoryMB      *int64   // MiB
	Timeout       float64  // seconds of wall clock per run
	Strict        bool
	MinIsolation  Isolation // empty: no minimum
}

// Settings are a backend's settings of a profile as JSON-like values (string, bool, float64, []any,
// map[string]any), checked against the backend's Setting list. A key that is absent has its default.
type Settings map[string]any

// Profile is a resolved profile: pure data, no secrets.
type Profile struct {
	Name        string
	Type        BackendType
	Environment EnvironmentMode
	Scope       Scope
	IdleTimeout float64 // seconds
	Identity    IdentityMode
	Policy      Policy
	Settings    Settings
}

// Status is the state of a sandbox as users see it.
type Status string

// Statuses.
const (
	StatusRunning Status = "running"
	StatusPaused  Status = "paused"
	StatusStopped Status = "stopped"
	// StatusAway is an attached environment that is known but does not answer now.
	StatusAway Status = "away"
)

// Binding names one environment. ID is "<backend>/<native id>", the same text as the id of agentkernel_sandbox.
type Binding struct {
	Backend     BackendType
	Endpoint    string
	Environment EnvironmentMode
	ID          string
	Spec        string
}

// CreateArgs are the create-time arguments of a sandbox that are not secret. They travel with the object (in
// labels or a marker file) so that it can be listed and imported.
type CreateArgs struct {
	Env          map[string]string `json:"env,omitzero"`
	SecretEnv    map[string]string `json:"secret_env,omitzero"` // variable -> name of the provider secret, never the value
	EnvWO        []string          `json:"env_wo,omitempty"`    // names of the write-only variables, sorted
	EnvWOVersion *int64            `json:"env_wo_version,omitzero"`
	Labels       map[string]string `json:"labels,omitzero"`
	Packages     []string          `json:"packages,omitzero"`
	Principal    *Principal        `json:"principal,omitempty"`
	MaxLifetime  string            `json:"max_lifetime,omitempty"`
	// Timeouts are the time limits that Terraform was told for operations on the sandbox; nothing else depends on them.
	Timeouts map[string]string `json:"timeouts,omitzero"`
}

// SandboxInfo is what one look at a managed sandbox shows.
type SandboxInfo struct {
	NativeID  string
	Endpoint  string
	Status    Status
	Marks     Marks
	CreatedAt time.Time
	// ExpiresAt is when the backend itself ends or pauses the sandbox unless its time is renewed; zero: it never does. Of a
	// sandbox that is dormant it is past.
	ExpiresAt time.Time
	// Dormant: it is paused because its time was over, not because somebody wanted it to be. It counts as running: the
	// next use wakes it.
	Dormant bool
	// Details are backend facts worth showing (image digest, uid), never secrets.
	Details map[string]string
}

// DesiredState is what desired_state says about a sandbox that looks like i, where before stood there ("" after an import).
// One that is dormant is as it was wanted: no plan has to change it.
func (i SandboxInfo) DesiredState(before Status) Status {
	switch {
	case !i.Dormant:
		return i.Status
	case before == "":
		return StatusRunning
	}
	return before
}
