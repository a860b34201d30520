package sandboxcore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"
)

// EngineConfig is what an Engine works with. Registry is required; every other field has a usable zero value.
type EngineConfig struct {
	Registry *Registry
	// Provider are the provider settings by backend; a backend without an entry uses its defaults and the environment.
	Provider map[BackendType]Settings
	// Unknown names backends whose provider settings are not known yet (plan): they are never connected to.
	Unknown map[BackendType]bool
	// Getenv reads the environment of this process; nil: no variable is set.
	Getenv func(string) string
	// Secrets are the named values that secret_env refers to.
	Secrets map[string]string
	Audit   *AuditLog
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// NewID makes random ids; nil: 12 random bytes in hex.
	NewID func() string
	// Tracer is told of every step and of every call of a backend; nil: nobody is.
	Tracer Tracer
}

// Engine is the single path from a request to a backend. It is safe for concurrent use.
type Engine struct {
	cfg   EngineConfig
	mu    sync.Mutex
	ready map[BackendType]Backend
	// seen are write-only values that passed through this process: a later run in the same sandbox may print them.
	seen map[string]struct{}
}

// NewEngine makes an engine. It makes no network call. Secrets that cannot be redacted are refused.
func NewEngine(cfg EngineConfig) (*Engine, error) {
	if cfg.Getenv == nil {
		cfg.Getenv = func(string) string { return "" }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.NewID == nil {
		cfg.NewID = randomID
	}
	for _, name := range sortedKeys(cfg.Secrets) {
		if err := CheckSecret(name, cfg.Secrets[name]); err != nil {
			var e *Error
			e, _ = err.(*Error) //nolint:errorlint // CheckSecret gives nothing else
			e.Attribute = []string{"secrets"}
			return nil, e
		}
	}
	return &Engine{cfg: cfg, ready: map[BackendType]Backend{}, seen: map[string]struct{}{}}, nil
}

func randomID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand, Go 1.24)
	return hex.EncodeToString(b[:])
}

// Registry gives the engine's registry.
func (e *Engine) Registry() *Registry { return e.cfg.Registry }

// connect gives the endpoint of a backend type and its identity.
func (e *Engine) connect(ctx context.Context, t BackendType) (Endpoint, string, error) {
	ep, err := e.endpoint(ctx, t)
	if err != nil {
		return nil, "", err
	}
	id, err := ep.Identity(ctx)
	if err != nil {
		return nil, "", unreachable(t, err)
	}
	return ep, id, nil
}

// connectFor is connect for one profile: some backends are several places.
func (e *Engine) connectFor(ctx context.Context, p *Profile) (Endpoint, string, error) {
	ep, err := e.endpoint(ctx, p.Type)
	if err != nil {
		return nil, "", err
	}
	var id string
	if placing, ok := optional[PlacingEndpoint](ep); ok {
		id, err = placing.IdentityFor(ctx, p)
	} else {
		id, err = ep.Identity(ctx)
	}
	if err != nil {
		return nil, "", unreachable(p.Type, err)
	}
	return ep, id, nil
}

func (e *Engine) providerAttribute(t BackendType) string {
	if f, ok := e.cfg.Registry.Factory(t); ok {
		return f.ProviderAttribute()
	}
	return string(t)
}

func (e *Engine) endpoint(ctx context.Context, t BackendType) (Endpoint, error) {
	if e.cfg.Unknown[t] {
		return nil, &Error{
			Code: CodeUnreachable, Attempted: "the backend could not be reached", Object: string(t), Attribute: []string{e.providerAttribute(t)},
			Said: "its provider settings are not known yet.", Next: "Apply what they depend on first; a default endpoint is never used instead.",
		}
	}
	b, err := e.backend(t)
	if err != nil {
		return nil, err
	}
	ep, err := e.connected(ctx, t, b)
	if err != nil {
		return nil, unreachable(t, err)
	}
	return ep, nil
}

func (e *Engine) backend(t BackendType) (Backend, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b, ok := e.ready[t]; ok {
		return b, nil
	}
	f, ok := e.cfg.Registry.Factory(t)
	if !ok {
		_, err := e.cfg.Registry.model(t)
		return nil, err
	}
	b, err := f.New(e.cfg.Provider[t], e.cfg.Getenv)
	if err != nil {
		return nil, err
	}
	e.ready[t] = b
	return b, nil
}

// unreachable gives err a code if it has none.
func unreachable(t BackendType, err error) error {
	if CodeOf(err) != "" {
		return err
	}
	return &Error{
		Code: CodeUnreachable, Attempted: "the backend could not be reached", Object: string(t), Err: err,
		Next: "Check that it runs and that the provider's settings for it are right.",
	}
}

// CheckBackends validates the provider settings of every configured backend against its list, without any network call.
func (e *Engine) CheckBackends() error {
	r := &resolver{object: "provider agentkernel"}
	for _, f := range e.cfg.Registry.Factories() {
		if s, ok := e.cfg.Provider[f.Type]; ok {
			r.settings([]string{f.ProviderAttribute()}, f.ProviderSettings, s)
		}
	}
	if len(r.violations) > 0 {
		for _, v := range r.violations {
			v.Attempted = "the provider configuration was refused"
		}
		return r.violations
	}
	return nil
}

// Admit asks the machine or engine whether it can give what p and op need. atPlan: an endpoint that cannot be reached
// now is no refusal, since it may exist by the time of the apply.
func (e *Engine) Admit(ctx context.Context, p *Profile, op Operation, atPlan bool) (err error) {
	ctx, end := e.step(ctx, "admit", &AuditRecord{Backend: p.Type})
	defer end(&err)
	if atPlan && e.cfg.Unknown[p.Type] {
		return nil
	}
	ep, err := e.endpoint(ctx, p.Type)
	if err == nil {
		err = ep.Admit(ctx, p, op)
	}
	if atPlan && IsCode(err, CodeUnreachable) {
		return nil
	}
	return relax(p, err)
}

// relax drops refusals of resource limits when the profile is not strict: strict = false lets unenforceable policy pass.
func relax(p *Profile, err error) error {
	if err == nil || p.Policy.Strict {
		return err
	}
	for _, v := range AllErrors(err, CodeUnreachable) {
		if !strings.HasPrefix(string(v.Code), "AK2") {
			return err
		}
	}
	return nil
}

// Offers asks what the machine or engine of a backend type really has. Unreachable is an answer, not an error.
func (e *Engine) Offers(ctx context.Context, t BackendType) (o Offer, err error) {
	ctx, end := e.step(ctx, "probe", &AuditRecord{Backend: t})
	defer end(&err)
	ep, err := e.endpoint(ctx, t)
	if err == nil {
		o, err = ep.Offers(ctx)
	}
	if err != nil {
		if IsCode(err, CodeUnreachable) {
			return Offer{Reason: e.redacted(err).Error()}, nil
		}
		return Offer{}, err
	}
	return o, nil
}

// Configured reports whether the provider configuration names the backend (defaults and the environment do not count).
func (e *Engine) Configured(t BackendType) bool {
	_, ok := e.cfg.Provider[t]
	return ok || e.cfg.Unknown[t]
}

// Waits reports whether the provider settings of a backend are not known yet, so that nothing can be asked of it.
func (e *Engine) Waits(t BackendType) bool { return e.cfg.Unknown[t] }

// ResolveSecrets turns variable -> secret name into variable -> value.
func (e *Engine) ResolveSecrets(secretEnv map[string]string) (map[string]string, error) {
	out := make(map[string]string, len(secretEnv))
	var found Violations
	for _, v := range sortedKeys(secretEnv) {
		name := secretEnv[v]
		value, ok := e.cfg.Secrets[name]
		if !ok {
			known := "The provider has none."
			if len(e.cfg.Secrets) > 0 {
				known = "The provider has " + quoteList(sortedKeys(e.cfg.Secrets)) + "."
			}
			found = append(found, &Error{
				Code: CodeValue, Attempted: "the secret was looked up", Object: Printable(name), Said: "the provider's secrets have no such name. " + known,
				Next: "Add it to secrets in the provider block.", Attribute: []string{"secret_env"},
			})
			continue
		}
		out[v] = value
	}
	if len(found) > 0 {
		return nil, found
	}
	return out, nil
}

// maxEnvBytes is the longest "name=value" that Linux hands to a program: MAX_ARG_STRLEN without the closing NUL.
const maxEnvBytes = 128<<10 - 1

// CheckEnv refuses names and values that no environment can hold. attr is the attribute to blame.
func CheckEnv(attr string, env map[string]string) error {
	var found Violations
	for _, k := range sortedKeys(env) {
		said := ""
		switch {
		case k == "" || strings.ContainsAny(k, "=\x00"):
			said = "a variable's name is empty or has \"=\" or NUL in it."
		case strings.ContainsRune(env[k], 0):
			said = "the value has a NUL byte."
		case len(k)+len(env[k])+1 > maxEnvBytes:
			said = fmt.Sprintf("name and value have %d bytes, and Linux gives a program at most %d in one variable.", len(k)+len(env[k])+1, maxEnvBytes)
		default:
			continue
		}
		found = append(found, &Error{
			Code: CodeValue, Attempted: "the environment was refused", Object: Printable(k), Said: said, Next: "Remove it, or carry such data in a file or over stdin.",
			Attribute: []string{attr},
		})
	}
	if len(found) > 0 {
		return found
	}
	return nil
}

// MergeEnv lays later maps over earlier ones. A variable that stands in two of them is refused: which of an env and a
// secret_env wins should not be a riddle.
func MergeEnv(env, secret, writeOnly map[string]string) (map[string]string, error) {
	out := map[string]string{}
	from := map[string]string{}
	for _, part := range []struct {
		attr string
		m    map[string]string
	}{{"env", env}, {"secret_env", secret}, {"env_wo", writeOnly}} {
		if err := CheckEnv(part.attr, part.m); err != nil {
			return nil, err
		}
		for _, k := range sortedKeys(part.m) {
			if other, ok := from[k]; ok {
				return nil, &Error{
					Code: CodeValue, Attempted: "the environment was refused", Object: Printable(k),
					Said: fmt.Sprintf("the variable stands in %s and in %s.", other, part.attr), Next: "Keep it in one of them.", Attribute: []string{part.attr},
				}
			}
			from[k], out[k] = part.attr, part.m[k]
		}
	}
	return out, nil
}

// audit writes one record. Its error stops the operation: an operator who asked for a log gets no unrecorded work.
func (e *Engine) audit(rec AuditRecord) error {
	rec.Time = e.cfg.Now()
	return e.cfg.Audit.Write(rec)
}

// refused records a refusal by the gate and gives the error back.
func (e *Engine) refused(rec AuditRecord, err error) error {
	rec.Verdict = "refused"
	for _, v := range AllErrors(err, CodeValue) {
		rec.Codes = append(rec.Codes, v.Code)
		rec.Reasons = append(rec.Reasons, v.Said)
	}
	if len(rec.Reasons) > 0 {
		redactor := NewRedactor(e.secretValues()...)
		for i, said := range rec.Reasons {
			rec.Reasons[i] = redactor.String(said)
		}
	}
	if aerr := e.audit(rec); aerr != nil {
		return aerr
	}
	return err
}

// finished records how an operation that was allowed ended, and gives err back (or the audit log's own error).
func (e *Engine) finished(rec AuditRecord, started time.Time, err error) error {
	rec.Verdict = "done"
	rec.DurationMS = e.cfg.Now().Sub(started).Milliseconds()
	if err != nil {
		rec.Verdict = "failed"
		for _, v := range AllErrors(err, CodeUnreachable) {
			rec.Codes = append(rec.Codes, v.Code)
		}
	}
	if aerr := e.audit(rec); aerr != nil && err == nil {
		return aerr
	}
	return err
}
