package sandboxcore

import (
	"context"
	"io"
	"io/fs"
	"time"
)

// Factory describes one backend kind to the registry. Everything in it works before any configuration is known.
type Factory struct {
	Type BackendType
	// ProviderKey names the provider attribute where that is not Type ("aws" serves every backend on AWS).
	ProviderKey string
	// ProviderSettings are the keys of the provider attribute of the backend (nil: the backend has none).
	ProviderSettings []Setting
	// Settings are the keys of the profile attribute named after the backend.
	Settings []Setting
	// Describe is the one-line description of the backend in generated documentation.
	Describe string
	// New makes the backend from the provider settings. It makes no network call and starts nothing. getenv reads the
	// environment of the provider process (tests give their own).
	New func(provider Settings, getenv func(string) string) (Backend, error)
	// Complete, where a setting names a file whose content matters, adds to checked settings what the file says (its
	// sha256), so that it stands in the spec. Resolve calls it on what a user wrote, ParseSpec never: a spec is pure data.
	Complete func(settings Settings) error
}

// OperationRefuser is a Backend that says more exactly than its capabilities why it does not offer an operation. It is
// asked first, and is as pure as Backend's own methods.
type OperationRefuser interface {
	RefuseOperation(p *Profile, op Operation) []*Error
}

// ProviderAttribute is the name of the provider attribute that holds ProviderSettings.
func (f Factory) ProviderAttribute() string {
	if f.ProviderKey != "" {
		return f.ProviderKey
	}
	return string(f.Type)
}

// Backend is one configured backend. All methods but Connect are pure: no network, no file system.
type Backend interface {
	// Capabilities with the settings and assertions of p. For an attached profile only what attaching really enforces.
	Capabilities(p *Profile) Capabilities
	// Validate gives the backend's own refusals of a profile; each names its attribute.
	Validate(p *Profile) []*Error
	// LiveFields are the spec paths (such as "policy.cpu") that Update changes in place.
	LiveFields() []string
	// Connect returns the endpoint, made lazily and once. It may be called concurrently.
	Connect(ctx context.Context) (Endpoint, error)
}

// RequestValidator is a Backend whose refusals depend on more than the profile: on the principal, or on what a run
// carries. Like Validate it is pure. principal and op are nil when only a profile is judged.
type RequestValidator interface {
	ValidateRequest(p *Profile, principal *Principal, op *Operation) []*Error
}

// Endpoint is one connected place of a backend kind. It is safe for concurrent use.
type Endpoint interface {
	// Identity is the stable identity of the place (Docker: engine ID). An error means unreachable.
	Identity(ctx context.Context) (string, error)
	// Offers reports what this machine or engine really has, for probe = true.
	Offers(ctx context.Context) (Offer, error)
	// Admit refuses what this machine or engine cannot give although the backend kind could (no cgroup, no
	// interpreter, a rootless engine). It changes nothing. p is managed or attached, op what is about to happen.
	Admit(ctx context.Context, p *Profile, op Operation) error
	// Create makes a sandbox and returns it running. onCreated is called as soon as the object exists, before any
	// further call, so that it can be recorded. After an error without onCreated nothing is left; after an error
	// with onCreated the caller destroys the object or keeps it tainted.
	Create(ctx context.Context, req CreateRequest, onCreated func(SandboxInfo)) (ManagedSandbox, error)
	// Find reads one managed sandbox. Errors: CodeGone when it does not exist, CodeNotOurs when it lacks our marks.
	// fresh = false may answer from the cache of one refresh; a miss there is always confirmed directly.
	Find(ctx context.Context, nativeID string, fresh bool) (ManagedSandbox, error)
	// List gives every object with our marks, orphans included.
	List(ctx context.Context) ([]SandboxInfo, error)
}

// AttachingEndpoint is an Endpoint that can bind to environments it did not create.
type AttachingEndpoint interface {
	Endpoint
	// Attach binds to the target of an attached profile. Errors: CodeGone when it does not exist. A target that exists but
	// cannot run anything now is no error: its status says so, and Run refuses.
	Attach(ctx context.Context, p *Profile) (AttachedEnvironment, error)
}

// PlacingEndpoint is an Endpoint whose identity depends on the profile or on the principal of the operation (a region
// that stands in the profile, an account that a role belongs to).
type PlacingEndpoint interface {
	IdentityFor(ctx context.Context, p *Profile) (string, error)
}

// LiveReader is an Endpoint whose objects keep the marks that they were made with, so that their spec no longer says what
// Update changed since.
type LiveReader interface {
	// ReadLive sets the live fields of p, the profile in the marks of a sandbox, to what holds for the sandbox now.
	ReadLive(ctx context.Context, nativeID string, p *Profile) error
}

// Environment is a place where code can run. It is what managed and attached handles have in common; it has no
// method that could end, start or stop the environment.
type Environment interface {
	// Run runs one request and returns when it has ended and, unless KeepBackground, nothing of it is left. stdout and
	// stderr get the raw bytes as they arrive. Errors are of the machinery (CodeTimeout, CodeUnknownOutcome, CodeStopped,
	// CodeLanguage, ...); a non-zero exit is a result. On cancellation the run is killed before Run returns.
	Run(ctx context.Context, req RunRequest, stdout, stderr io.Writer) (RunResult, error)
	// ReadFile reads a regular file of at most limit bytes. errors.Is(err, fs.ErrNotExist) when absent.
	ReadFile(ctx context.Context, path string, limit int64) ([]byte, fs.FileMode, error)
	// WriteFile writes a file atomically, making missing parent directories.
	WriteFile(ctx context.Context, path string, content []byte, mode fs.FileMode) error
	// RemoveFile removes a file; absent is success.
	RemoveFile(ctx context.Context, path string) error
}

// LongFinisher is an Environment to which a run may need more time beside its own than the engine grants by itself: what it
// carries goes there in many pieces, or its output comes back in many.
type LongFinisher interface {
	// FinishTime is the most that bringing req there, confirming its end and bringing its output back may take, req.Timeout
	// and req.Grace not counted. The engine gives the run up after that.
	FinishTime(req RunRequest) time.Duration
}

// FileHasher is an Environment that hashes a file where it is, because bringing it here costs much.
type FileHasher interface {
	// StatFile looks at a regular file. errors.Is(err, fs.ErrNotExist) when absent.
	StatFile(ctx context.Context, path string) (FileInfo, error)
}

// ManagedSandbox is the handle of a sandbox that carries our marks.
type ManagedSandbox interface {
	Environment
	// Info is the look that was taken when the handle was made.
	Info() SandboxInfo
	// Pause freezes or stops it (desired_state = "paused"); Resume undoes Pause and a stop from outside.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Update applies the live fields of p; labels and name too where LiveUpdate says so.
	Update(ctx context.Context, p *Profile, marks Marks) error
	// Destroy removes it with everything that belongs to it, asks again, and errs (CodeDeleteFailed) if it is still
	// there. Gone already is success.
	Destroy(ctx context.Context) error
}

// EnvironmentReader is a ManagedSandbox that can tell the environment it was made with. The engine asks for it when that
// holds secrets, so that output of a run in another process of the provider is redacted all the same.
type EnvironmentReader interface {
	// ReadEnv gives the environment of CreateRequest.Env, possibly among other variables.
	ReadEnv(ctx context.Context) (map[string]string, error)
}

// AttachedEnvironment is the handle of an environment that somebody else owns. Deliberately, it has nothing beyond
// Environment and descriptions.
type AttachedEnvironment interface {
	Environment
	NativeID() string
	Status() Status
	Platform() string
	Details() map[string]string
}

// Offer is what a machine or engine really has.
type Offer struct {
	Endpoint  string
	Reachable bool
	// Reason says why not, when not reachable or not usable; with what to do.
	Reason string
	// Facts are name -> value for people ("engine version", "cgroup memory", "python").
	Facts map[string]string
	// Languages found, and which limits can be enforced here.
	Languages                   []string
	CPU, Memory, Network, Pause bool
}

// CreateRequest asks for one managed sandbox.
type CreateRequest struct {
	Profile *Profile
	Marks   Marks
	// Env is the environment of every run in the sandbox; it may hold secrets (secret_env, env_wo).
	Env       map[string]string
	Principal Principal
}

// RunKind says what a run's text is.
type RunKind int

// Kinds of run.
const (
	RunCommand RunKind = iota // Argv, no shell
	RunScript                 // Text is shell text
	RunCode                   // Text is code in Language
)

// RunRequest is one run of code or a command.
type RunRequest struct {
	Kind     RunKind
	Argv     []string
	Language string
	Text     []byte
	// Env is laid over the environment of the sandbox.
	Env   map[string]string
	Stdin []byte // nil: empty
	// WorkingDirectory: empty is the environment's default; relative is relative to that.
	WorkingDirectory string
	Timeout          time.Duration // the run is killed after it; > 0
	Grace            time.Duration // between TERM and KILL
	KeepBackground   bool
}

// RunResult is how a run ended. A non-zero exit is data.
type RunResult struct {
	ExitCode int // 128+signal when killed by a signal
	Signal   int // 0: none
	// OOMKilled: the memory limit ended it (an error of its own in the engine).
	OOMKilled bool
	Duration  time.Duration
	// LeftoversKilled counts background processes that were ended with the run.
	LeftoversKilled int
	// Notice is an advisory of the machinery ("started a stopped sandbox"), empty if none.
	Notice string
	// StdoutLost and StderrLost are the bytes at the end of a stream that a backend with a limit did not bring back.
	StdoutLost, StderrLost int64
}

// Operation is what is about to happen, for the gate and Admit.
type Operation struct {
	Name           string // "create", "run", "files", "pause"
	Kind           RunKind
	Language       string // for RunCode
	Stdin          bool
	Files          bool
	Packages       bool
	Pause          bool
	KeepBackground bool
	MaxLifetime    bool
	Timeout        time.Duration // asked for by the run; 0: the policy's
	// Secrets: the run is given values of secret_env or env_wo. InputBytes are code, environment and standard input.
	Secrets    bool
	InputBytes int
}
