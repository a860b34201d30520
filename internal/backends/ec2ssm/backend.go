package ec2ssm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Factory describes the backend to the registry.
func Factory() sandboxcore.Factory {
	return sandboxcore.Factory{
		Type: sandboxcore.BackendEC2SSM, ProviderKey: providerKey,
		ProviderSettings: providerSettings(), Settings: profileSettings(),
		Describe: "Machines that AWS Systems Manager reaches: EC2 instances and hybrid machines. Attached only: they are never created, started, stopped or ended.",
		New:      newBackend,
	}
}

// maxInput is what a run may carry: code, standard input and environment. It goes ahead of the run in commands of at most
// chunkBytes each, every one of which takes about a second.
const maxInput = 256 << 10

// maxExecution is the longest executionTimeout that the shell document takes, in seconds.
const maxExecution = 172_800

// backend is the backend of one provider configuration.
type backend struct {
	config awsConfig

	mu       sync.Mutex
	endpoint *endpoint

	// What tests replace.
	clock   clock
	newID   func() string
	timings timings
}

// timings bound every wait of the backend.
type timings struct {
	pollFirst, pollMost time.Duration // between two looks at a command
	unseen              time.Duration // how long a command that was accepted may not be found
	call                time.Duration // one call
	delivery            time.Duration // least time in which a command has to reach the machine; SSM takes nothing below 30 s
}

func defaultTimings() timings {
	return timings{
		pollFirst: 300 * time.Millisecond, pollMost: 3 * time.Second, unseen: 30 * time.Second, call: 30 * time.Second, delivery: 30 * time.Second,
	}
}

// clock is the time of the backend.
type clock interface {
	Now() time.Time
	// Sleep waits, and gives the error of ctx if that ends first.
	Sleep(ctx context.Context, d time.Duration) error
}

type realClock struct{}

func (realClock) Now() time.Time { return time.Now() }

func (realClock) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// jitter spreads d by a quarter, so that many runs do not ask at the same moment.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1) // #nosec G404 -- a spread, no secret
}

func newBackend(provider sandboxcore.Settings, _ func(string) string) (sandboxcore.Backend, error) {
	config, err := readConfig(provider)
	if err != nil {
		return nil, err
	}
	return &backend{config: config, clock: realClock{}, newID: newRunID, timings: defaultTimings()}, nil
}

// LiveFields are none: nothing of a machine is changed.
func (b *backend) LiveFields() []string { return nil }

// Capabilities are what a run on somebody else's machine can have. Nothing of a policy but the time is enforced there, and
// the machine's own boundary is not ours to promise.
func (b *backend) Capabilities(*sandboxcore.Profile) sandboxcore.Capabilities {
	return sandboxcore.Capabilities{
		Isolation:        sandboxcore.IsolationNone,
		Shell:            true,
		Languages:        []string{"python"},
		Files:            true,
		AttachesExternal: true,
		PrincipalUser:    true,
		NetworkModes:     []sandboxcore.NetworkMode{sandboxcore.NetworkAllow},
		Stdin:            true,
		SplitOutput:      true,
		KeepBackground:   true,
		RecordsInput:     true,
	}
}

// Validate gives the refusals that only this backend knows.
func (b *backend) Validate(p *sandboxcore.Profile) []*sandboxcore.Error {
	var out []*sandboxcore.Error
	refuse := func(said, next string, attribute ...string) {
		out = append(out, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the ec2_ssm profile was refused", Object: p.Name, Said: said, Next: next, Attribute: attribute,
		})
	}
	if most := maxExecution - 60.0; p.Policy.Timeout > most {
		refuse(fmt.Sprintf("the timeout of %s s is longer than Systems Manager lets a command run.", sandboxcore.FormatNumber(p.Policy.Timeout)),
			fmt.Sprintf("Use at most %s s.", sandboxcore.FormatNumber(most)), "policy", "timeout")
	}
	if o := optionsOf(p); o.s3 != nil && o.s3.bucket == "" {
		refuse("output_s3 names no bucket.", "Set bucket, or remove output_s3.", string(sandboxcore.BackendEC2SSM), keyOutputS3, keyBucket)
	}
	return out
}

// Patterns of the API of STS (AssumeRole), and what a role's ARN looks like.
var (
	rolePattern    = regexp.MustCompile(`^arn:aws[a-z-]*:iam::([0-9]{12}):role/[\x21-\x7e]{1,512}$`)
	sourcePattern  = regexp.MustCompile(`^[\w+=,.@-]{2,64}$`)
	externalChars  = regexp.MustCompile(`^[\w+=,.@:/-]+$`)
	tagPattern     = regexp.MustCompile(`^[\p{L}\p{Z}\p{N}_.:/=+\-@]*$`)
	runAsPattern   = regexp.MustCompile(sandboxcore.UserNamePattern)
	envNamePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// ValidateRequest gives the refusals that depend on whose identity a run has and on what it carries.
func (b *backend) ValidateRequest(p *sandboxcore.Profile, principal *sandboxcore.Principal, op *sandboxcore.Operation) []*sandboxcore.Error {
	var out []*sandboxcore.Error
	refuse := func(code sandboxcore.Code, said, next string, attribute ...string) {
		out = append(out, &sandboxcore.Error{
			Code: code, Attempted: "the request was refused before anything was sent", Object: fmt.Sprintf("profile %q, backend %s", p.Name, p.Type),
			Said: said, Next: next, Attribute: attribute,
		})
	}
	if principal != nil {
		validatePrincipal(*principal, func(said, next, key string) {
			refuse(sandboxcore.CodeIdentity, said, next, "principal", "ec2_ssm", key)
		})
	}
	if op == nil {
		return out
	}
	secret, large := "secret_env", "code"
	if op.Name == sandboxcore.OpFile {
		secret, large = "content_wo", "content"
	}
	if op.Secrets && !optionsOf(p).allowSecrets {
		refuse(sandboxcore.CodeOperation, "Systems Manager keeps what it is given in its command history, so that secret_env, env_wo and content_wo are refused.",
			"Let the code fetch its secrets on the machine, or set allow_secrets_in_command_history = true in the profile's ec2_ssm.", secret)
	}
	if op.InputBytes > maxInput && op.Name == sandboxcore.OpFile {
		refuse(sandboxcore.CodeValue, fmt.Sprintf("the file has %d bytes, and this backend takes at most %d.", op.InputBytes, maxInput),
			"Bring large data to the machine another way, such as S3.", large)
	} else if op.InputBytes > maxInput {
		refuse(sandboxcore.CodeValue, fmt.Sprintf("the run carries %d bytes of code, environment and standard input, and this backend takes at most %d.", op.InputBytes, maxInput),
			"Bring large data to the machine another way, such as S3, and let the code read it there.", large)
	}
	return out
}

func validatePrincipal(who sandboxcore.Principal, refuse func(said, next, key string)) {
	ec2 := sandboxcore.EC2SSMPrincipal{}
	if who.EC2SSM != nil {
		ec2 = *who.EC2SSM
	}
	switch {
	case who.Mode == sandboxcore.IdentityUser && ec2.RoleARN == "":
		refuse("a user's runs need the role that is assumed for them.", "Set principal.ec2_ssm.role_arn.", "role_arn")
	case who.Mode != sandboxcore.IdentityUser && (ec2.RoleARN != "" || ec2.ExternalID != "" || len(ec2.SessionTags) > 0 || ec2.SourceIdentity != ""):
		refuse("an agent runs under the provider's own credential; a role is assumed for a user only.", "Set mode = \"user\", or leave only run_as.", "role_arn")
	case ec2.RoleARN != "" && !rolePattern.MatchString(ec2.RoleARN):
		refuse(fmt.Sprintf("%s is no ARN of a role.", sandboxcore.Quoted(ec2.RoleARN)), "Write it as arn:aws:iam::123456789012:role/name.", "role_arn")
	}
	if n := len(ec2.ExternalID); n > 0 && (n < 2 || n > 1224 || !externalChars.MatchString(ec2.ExternalID)) {
		refuse("the external id is none that STS takes.", "Use 2 to 1224 letters, digits and + = , . @ : / -.", "external_id")
	}
	if s := ec2.SourceIdentity; s != "" && (!sourcePattern.MatchString(s) || strings.HasPrefix(strings.ToLower(s), "aws:")) {
		refuse("the source identity is none that STS takes.", "Use 2 to 64 letters, digits and + = , . @ -, not starting with aws:.", "source_identity")
	}
	if len(ec2.SessionTags) > 50 {
		refuse(fmt.Sprintf("there are %d session tags, and STS takes at most 50.", len(ec2.SessionTags)), "Use fewer.", "session_tags")
	}
	// Keys are told apart by more than their case, and the prefix aws: is reserved (IAM user guide, passing session tags).
	seen := map[string]bool{}
	for k, v := range ec2.SessionTags {
		if lower := strings.ToLower(k); seen[lower] || strings.HasPrefix(lower, "aws:") {
			refuse(fmt.Sprintf("the session tag %s is none that STS takes.", sandboxcore.Quoted(k)), "Use keys that differ in more than upper and lower case, and none that starts with aws:.", "session_tags")
		}
		seen[strings.ToLower(k)] = true
		if k == "" || len([]rune(k)) > 128 || len([]rune(v)) > 256 || !tagPattern.MatchString(k) || !tagPattern.MatchString(v) {
			refuse(fmt.Sprintf("the session tag %s is none that STS takes.", sandboxcore.Quoted(k)), "Use at most 128 characters for a key and 256 for a value: letters, digits, blanks and _ . : / = + - @.", "session_tags")
		}
	}
	if ec2.RunAs != "" && !runAsPattern.MatchString(ec2.RunAs) {
		refuse(fmt.Sprintf("%s is no name of a user.", sandboxcore.Quoted(ec2.RunAs)), "Use letters, digits, _, . and -, starting with a letter or _, at most 32.", "run_as")
	}
}

// Connect gives the endpoint. Files of the AWS tools are read with the first call that needs them.
func (b *backend) Connect(context.Context) (sandboxcore.Endpoint, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.endpoint == nil {
		b.endpoint = newEndpoint(b)
	}
	return b.endpoint, nil
}
