package sandboxcore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// Limits of a run.
const (
	// MaxOutputFileBytes and MaxOutputFilesBytes bound what output_files may bring back, per file and in all.
	MaxOutputFileBytes  = 1 << 20
	MaxOutputFilesBytes = 4 << 20
	// MaxCodeBytes bounds code, script and standard input.
	MaxCodeBytes = 64 << 20

	// runGrace is between TERM and KILL; runMargin is what a backend may take on top of timeout and grace (starting a
	// stopped sandbox, confirming the kill) before the engine gives it up, unless it says that it needs more (LongFinisher).
	runGrace  = 2 * time.Second
	runMargin = time.Minute
	tailBytes = 2048
)

// ExecRequest is one run, in a sandbox or environment that exists (Binding) or in one made for it (Spec).
type ExecRequest struct {
	Binding *Binding
	Spec    string

	Kind     RunKind
	Argv     []string
	Language string
	Text     []byte
	Stdin    []byte

	Env, SecretEnv, EnvWO map[string]string
	WorkingDirectory      string
	Timeout               time.Duration // 0: the policy's
	SuccessExitCodes      []int         // nil: 0
	MaxOutputBytes        int           // 0: DefaultMaxOutputBytes
	OutputFiles           []string
	KeepBackground        bool
	Principal             Principal

	// Output is given what the run prints as it comes, with secrets hidden and otherwise raw; nil: nobody. Both streams may
	// call it at once. It must not block, and must not keep p.
	Output func(stderr bool, p []byte)
}

// ExecFile is one file that a run left and that was asked for.
type ExecFile struct {
	Content []byte
	SHA256  string // lower-case hex
	Size    int64
}

// ExecResult is how a run ended. On a *RunError what is known of it is filled in.
type ExecResult struct {
	RunID    string
	ExitCode int
	Stdout   Stream
	Stderr   Stream
	Duration time.Duration
	Notice   string
	Files    map[string]ExecFile
}

func (r ExecRequest) operation() Operation {
	return Operation{
		Name: OpRun, Kind: r.Kind, Language: r.Language, Stdin: len(r.Stdin) > 0, Files: len(r.OutputFiles) > 0,
		KeepBackground: r.KeepBackground, Timeout: r.Timeout, Secrets: len(r.SecretEnv)+len(r.EnvWO) > 0, InputBytes: r.inputBytes(),
	}
}

func (r ExecRequest) inputBytes() int {
	n := len(r.Text) + len(r.Stdin)
	for _, a := range r.Argv {
		n += len(a)
	}
	for k, v := range r.Env {
		n += len(k) + len(v)
	}
	return n
}

// CheckExec judges a run without any network call. A binding whose endpoint and id are not known yet is checked as far as
// it is known. secret_env names are looked up only at the run.
func (e *Engine) CheckExec(req ExecRequest) (*Profile, Verdict, error) {
	p, err := e.execProfile(req)
	if err != nil {
		return nil, Verdict{}, err
	}
	op := req.operation()
	verdict, err := e.cfg.Registry.Decide(p, &req.Principal, &op)
	if err != nil {
		return p, verdict, err
	}
	if found := checkRun(req); len(found) > 0 {
		return p, verdict, found
	}
	return p, verdict, nil
}

func (e *Engine) execProfile(req ExecRequest) (*Profile, error) {
	if req.Binding == nil {
		p, err := e.cfg.Registry.ParseSpec(req.Spec)
		if err != nil {
			return nil, err
		}
		if p.Environment == EnvironmentAttached {
			return nil, &Error{
				Code: CodeEnvironmentMode, Attempted: "the run was refused", Object: fmt.Sprintf("profile %q", p.Name), Attribute: []string{"profile"},
				Said: "the profile is of an attached environment, and a one-shot run makes and destroys its own.",
				Next: "Bind to the environment with data.agentkernel_attached_environment and give its binding.",
			}
		}
		return p, nil
	}
	b := *req.Binding
	if b.ID == "" && b.Endpoint == "" { // a sandbox still to be made
		b.ID, b.Endpoint = SandboxID(b.Backend, "unknown"), "unknown"
	}
	p, _, err := e.cfg.Registry.CheckBinding(b)
	return p, err
}

func checkRun(req ExecRequest) Violations {
	var found Violations
	refuse := func(attr, object, said, next string) {
		found = append(found, &Error{Code: CodeValue, Attempted: "the run was refused", Object: Printable(object), Said: said, Next: next, Attribute: []string{attr}})
	}
	switch req.Kind {
	case RunCommand:
		switch {
		case len(req.Argv) == 0 || req.Argv[0] == "":
			refuse("command", "command", "it names no program.", "Give the program and its arguments as a list.")
		case slices.ContainsFunc(req.Argv, func(a string) bool { return strings.ContainsRune(a, 0) }):
			refuse("command", "command", "an argument has a NUL byte.", "Carry such data over stdin.")
		}
	case RunScript:
		checkText(refuse, "script", req.Text)
	case RunCode:
		checkText(refuse, "code", req.Text)
	}
	if len(req.Stdin) > MaxCodeBytes {
		refuse("stdin", "stdin", fmt.Sprintf("it has %d bytes, more than %d.", len(req.Stdin), MaxCodeBytes), "Put the data into a file.")
	}
	if req.MaxOutputBytes < 0 || req.MaxOutputBytes > MaxOutputBytes {
		refuse("max_output_bytes", "max_output_bytes", fmt.Sprintf("%d is out of range.", req.MaxOutputBytes), fmt.Sprintf("Use 2 to %d.", MaxOutputBytes))
	}
	if !isOneLine(req.WorkingDirectory) || len(req.WorkingDirectory) > MaxPathBytes {
		refuse("working_directory", req.WorkingDirectory, fmt.Sprintf("it has control characters, or more than %d bytes.", MaxPathBytes), "Use a plain path.")
	}
	for _, c := range req.SuccessExitCodes {
		if c < 0 || c > 255 {
			refuse("success_exit_codes", fmt.Sprint(c), "an exit status is 0 to 255.", "Remove it.")
		}
	}
	seen := map[string]bool{}
	for _, f := range req.OutputFiles {
		switch {
		case f == "" || !isOneLine(f) || len(f) > MaxPathBytes || isOfDirectory(f):
			refuse("output_files", f, "it is not the path of a file.", "Use a plain path.")
		case slices.Contains(strings.Split(f, "/"), ".."):
			refuse("output_files", f, "it has a \"..\" element.", "Use a path without it.")
		case seen[path.Clean(f)]:
			refuse("output_files", f, "it stands there twice.", "Remove one.")
		}
		seen[path.Clean(f)] = true
	}
	for _, k := range sortedKeys(req.EnvWO) {
		if err := CheckSecret(k, req.EnvWO[k]); err != nil {
			v := AllErrors(err, CodeValue)
			v[0].Attribute = []string{"env_wo"}
			found = append(found, v...)
		}
	}
	if _, err := MergeEnv(req.Env, req.SecretEnv, req.EnvWO); err != nil {
		found = append(found, AllErrors(err, CodeValue)...)
	}
	return found
}

func checkText(refuse func(attr, object, said, next string), attr string, text []byte) {
	switch {
	case len(text) == 0:
		refuse(attr, attr, "it is empty.", "Give the text to run.")
	case len(text) > MaxCodeBytes:
		refuse(attr, attr, fmt.Sprintf("it has %d bytes, more than %d.", len(text), MaxCodeBytes), "Carry data over stdin or in a file.")
	}
}

// Exec runs one request through the gate and the backend. The error is a *RunError when there is output or an exit
// status to show with it. A run is never started twice.
func (e *Engine) Exec(ctx context.Context, req ExecRequest) (result ExecResult, err error) {
	result.RunID = e.cfg.NewID()
	ctx = withPrincipal(ctx, req.Principal)
	rec := AuditRecord{Operation: OpRun, Principal: &req.Principal, RunID: result.RunID}
	ctx, end := e.step(ctx, "run", &rec)
	defer end(&err)
	rec.CodeSHA256, rec.CodeBytes = codeDigest(req)
	p, verdict, err := e.CheckExec(req)
	rec.Unenforced = verdict.Unenforced
	if p != nil {
		rec.Backend = p.Type
		if spec, serr := EncodeSpec(p); serr == nil {
			rec.Fingerprint = Fingerprint(spec)
		}
	}
	if err != nil {
		return result, e.refused(rec, err)
	}
	secrets, err := e.ResolveSecrets(req.SecretEnv)
	if err != nil {
		return result, e.refused(rec, err)
	}
	env, err := MergeEnv(req.Env, secrets, req.EnvWO)
	if err != nil {
		return result, e.refused(rec, err)
	}
	started := e.cfg.Now()
	_ = e.secretValues(secrets, req.EnvWO) // known from here on
	err = e.redacted(e.exec(ctx, &rec, p, req, env, &result))
	rec.ExitCode = exitCode(result, err)
	if done := e.finished(rec, started, err); err == nil && done != nil {
		// The code did run: whoever cleans up after a failed run has to know.
		err = runError(AllErrors(done, CodeValue), &result.ExitCode, &result)
	}
	return result, err
}

// exitCode gives the exit status of a run, if it is known.
func exitCode(result ExecResult, err error) *int {
	if err == nil {
		return &result.ExitCode
	}
	if run, ok := errors.AsType[*RunError](err); ok {
		return run.ExitCode
	}
	return nil
}

func codeDigest(req ExecRequest) (string, int) {
	text := req.Text
	if req.Kind == RunCommand {
		text = []byte(strings.Join(req.Argv, "\x00"))
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), len(text)
}

func (e *Engine) exec(ctx context.Context, rec *AuditRecord, p *Profile, req ExecRequest, env map[string]string, result *ExecResult) error {
	ep, endpoint, err := e.connectFor(ctx, p)
	if err != nil {
		return err
	}
	rec.Endpoint = endpoint
	if err := relax(p, ep.Admit(ctx, p, req.operation())); err != nil {
		return err
	}
	allowed := *rec
	allowed.Verdict = "allowed"
	if req.Binding != nil {
		where, err := e.bound(ctx, ep, endpoint, p, *req.Binding)
		if err != nil {
			return err
		}
		rec.ID, allowed.ID = req.Binding.ID, req.Binding.ID
		if err := e.audit(allowed); err != nil {
			return err
		}
		return e.runIn(ctx, where, p, req, env, result)
	}
	if err := e.audit(allowed); err != nil {
		return err
	}
	return e.oneShot(ctx, rec, ep, p, req, env, result)
}

// bound opens the environment that a binding names and checks that it is the one.
func (e *Engine) bound(ctx context.Context, ep Endpoint, endpoint string, p *Profile, b Binding) (Environment, error) {
	_, native, err := e.cfg.Registry.CheckBinding(b)
	if err != nil {
		return nil, err
	}
	ref := SandboxRef{Backend: b.Backend, Endpoint: b.Endpoint, NativeID: native}
	if b.Environment == EnvironmentAttached {
		return e.attach(ctx, ep, endpoint, p, ref)
	}
	sb, _, err := e.open(ctx, ref, true)
	if err != nil {
		return nil, err
	}
	info := sb.Info()
	if err := e.checkSpecOnObject(ref, info.Marks, p); err != nil {
		return nil, err
	}
	if info.Status == StatusPaused && !info.Dormant {
		return nil, &Error{
			Code: CodeStopped, Attempted: "the run was refused", Object: ref.id(), Said: "the sandbox is paused.",
			Next: "Set desired_state = \"running\" on the agentkernel_sandbox.", Attribute: []string{"binding"},
		}
	}
	if err := e.learnSecrets(ctx, sb); err != nil {
		return nil, err
	}
	return sb, nil
}

// learnSecrets makes the secret values in a sandbox's own environment known, so that output shows none of them. They
// were given when it was made, perhaps by another process, and the provider's secrets may have changed since.
func (e *Engine) learnSecrets(ctx context.Context, sb ManagedSandbox) error {
	args := sb.Info().Marks.Args
	names := append(sortedKeys(args.SecretEnv), args.EnvWO...)
	reader, ok := optional[EnvironmentReader](sb)
	if len(names) == 0 || !ok {
		return nil
	}
	env, err := reader.ReadEnv(ctx)
	if err != nil {
		return err
	}
	for _, n := range names {
		_ = e.secretValues(map[string]string{n: env[n]})
	}
	return nil
}

// oneShot makes a sandbox, runs in it and destroys it, whatever happened and even when ctx has ended.
func (e *Engine) oneShot(ctx context.Context, rec *AuditRecord, ep Endpoint, p *Profile, req ExecRequest, env map[string]string, result *ExecResult) error {
	principal := req.Principal
	marks := Marks{
		Name: "run-" + result.RunID, Spec: req.Spec, Created: e.cfg.Now().UTC().Truncate(time.Millisecond), Request: e.cfg.NewID(),
		Args: CreateArgs{Principal: &principal},
	}
	created := ""
	sb, err := ep.Create(ctx, CreateRequest{Profile: p, Marks: marks, Principal: req.Principal}, func(i SandboxInfo) {
		created = i.NativeID
		rec.ID = SandboxID(p.Type, i.NativeID)
	})
	if err == nil {
		err = e.runIn(ctx, sb, p, req, env, result)
	}
	if created == "" && sb == nil {
		return err
	}
	ctx, end := e.step(ctx, "clean up", rec)
	cleanup := WithCleanup(ctx, func(ctx context.Context) error {
		if sb == nil {
			var ferr error
			if sb, ferr = ep.Find(ctx, created, true); ferr != nil {
				if IsCode(ferr, CodeGone) {
					return nil
				}
				return ferr
			}
		}
		return sb.Destroy(ctx)
	})
	end(&cleanup)
	if cleanup == nil {
		return err
	}
	left := &Error{
		Code: CodeDeleteFailed, Attempted: "the one-shot sandbox could not be removed", Object: rec.ID, Err: cleanup,
		Next: "It carries this provider's marks; remove it by hand.",
	}
	if err == nil {
		return left
	}
	if run, ok := errors.AsType[*RunError](err); ok { // exit status and output stay with it
		out := *run
		out.More = append(slices.Clone(run.More), left)
		return &out
	}
	return Violations(append(AllErrors(err, CodeProvision), left))
}

// runIn runs req in an environment that is there, collects output and files, and judges the end.
func (e *Engine) runIn(ctx context.Context, where Environment, p *Profile, req ExecRequest, env map[string]string, result *ExecResult) error {
	redactor := NewRedactor(e.secretValues()...)
	limit := req.MaxOutputBytes
	if limit == 0 {
		limit = DefaultMaxOutputBytes
	}
	timeout := req.Timeout
	if timeout == 0 {
		timeout = seconds(p.Policy.Timeout)
	}
	out, errOut := NewCapture(limit), NewCapture(limit)
	ro, re := redactor.Writer(req.tee(out, false)), redactor.Writer(req.tee(errOut, true))
	run := RunRequest{
		Kind: req.Kind, Argv: req.Argv, Language: req.Language, Text: req.Text, Env: env, Stdin: req.Stdin,
		WorkingDirectory: req.WorkingDirectory, Timeout: timeout, Grace: runGrace, KeepBackground: req.KeepBackground,
	}
	margin := runMargin
	if long, ok := optional[LongFinisher](where); ok {
		margin = max(margin, long.FinishTime(run))
	}
	// Only the run is under this deadline: the files that it left have one of their own.
	running, cancel := context.WithTimeout(ctx, timeout+runGrace+margin)
	defer cancel()
	res, err := where.Run(running, run, ro, re)
	err = errors.Join(err, ro.Close(), re.Close())
	result.Stdout, result.Stderr = out.Stream().without(res.StdoutLost), errOut.Stream().without(res.StderrLost)
	result.Duration, result.Notice = res.Duration, res.Notice
	if err != nil {
		return runError(AllErrors(err, CodeUnknownOutcome), nil, result)
	}
	result.ExitCode = res.ExitCode
	if res.OOMKilled {
		return runError([]*Error{{
			Code: CodeOutOfMemory, Attempted: "the run was ended", Object: "run " + result.RunID, Said: "it used more memory than the sandbox has." + memoryOf(p),
			Next: "Raise policy.memory_mb of the profile, or use less.",
		}}, &res.ExitCode, result)
	}
	accepted := req.SuccessExitCodes
	if len(accepted) == 0 {
		accepted = []int{0}
	}
	if !slices.Contains(accepted, res.ExitCode) {
		said := fmt.Sprintf("the program ended with exit status %d.", res.ExitCode)
		if res.Signal != 0 {
			said = fmt.Sprintf("the program was ended by signal %d (exit status %d).", res.Signal, res.ExitCode)
		}
		return runError([]*Error{{
			Code: CodeExitStatus, Attempted: "the run did not succeed", Object: "run " + result.RunID, Said: said,
			Next: fmt.Sprintf("Accepted are %v (success_exit_codes).", accepted),
		}}, &res.ExitCode, result)
	}
	if err := e.collectFiles(ctx, where, req.OutputFiles, redactor, result); err != nil {
		return runError(AllErrors(err, CodeUnknownOutcome), &res.ExitCode, result)
	}
	return nil
}

// tee gives what w gets to Output too.
func (r ExecRequest) tee(w io.Writer, stderr bool) io.Writer {
	if r.Output == nil {
		return w
	}
	return io.MultiWriter(w, outputWriter(func(p []byte) { r.Output(stderr, p) }))
}

type outputWriter func(p []byte)

func (w outputWriter) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

func memoryOf(p *Profile) string {
	if p.Policy.MemoryMB == nil {
		return ""
	}
	return fmt.Sprintf(" The limit is %d MiB.", *p.Policy.MemoryMB)
}

func runError(errs []*Error, exit *int, result *ExecResult) error {
	return &RunError{Err: errs[0], ExitCode: exit, StdoutTail: result.Stdout.Tail(tailBytes), StderrTail: result.Stderr.Tail(tailBytes)}
}

func (e *Engine) collectFiles(ctx context.Context, where Environment, files []string, redactor *Redactor, result *ExecResult) (err error) {
	if len(files) == 0 {
		return nil
	}
	ctx, end := e.step(ctx, "collect files", nil)
	defer end(&err)
	left := int64(MaxOutputFilesBytes)
	for _, name := range files {
		bad := func(said, next string, err error) error {
			return &Error{Code: CodeValue, Attempted: "an output file could not be taken", Object: Printable(name), Said: said, Next: next, Attribute: []string{"output_files"}, Err: err}
		}
		call, cancel := context.WithTimeout(ctx, fileTimeout)
		content, _, err := where.ReadFile(call, name, MaxOutputFileBytes)
		cancel()
		var coded *Error
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return bad("the run left no such file.", "Let the program write it, or remove it from output_files.", nil)
		case errors.As(err, &coded) && slices.Equal(coded.Attribute, []string{"path"}):
			// Backends speak of a path; here it stands in a list, and what is wrong is the file.
			e := *coded
			e.Code, e.Attribute = CodeValue, []string{"output_files"}
			return &e
		case coded != nil:
			return err
		case err != nil:
			return bad("it could not be read.", fmt.Sprintf("It must be a regular file of at most %d bytes, and all together at most %d.", MaxOutputFileBytes, MaxOutputFilesBytes), err)
		case int64(len(content)) > left:
			return bad(fmt.Sprintf("with it the files have more than %d bytes together.", MaxOutputFilesBytes), "Make the files smaller, or take some of them with another exec.", nil)
		case redactor.Contains(content):
			return bad("it holds a secret that was handed to the run, so it is not stored.", "Do not write secrets into output files.", nil)
		}
		left -= int64(len(content))
		sum := sha256.Sum256(content)
		if result.Files == nil {
			result.Files = map[string]ExecFile{}
		}
		result.Files[name] = ExecFile{Content: content, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(content))}
	}
	return nil
}
