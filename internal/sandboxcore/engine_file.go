package sandboxcore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// MaxFileBytes bounds a file that is written: it travels in one piece and, unless it is write-only, stands in the state.
const MaxFileBytes = 4 << 20

// DefaultFileMode is the mode of a file that asks for none.
const DefaultFileMode fs.FileMode = 0o644

// fileTimeout is how long one operation on a file may take.
const fileTimeout = 5 * time.Minute

// FileRequest names a file in a bound environment and, when it is written, its content.
type FileRequest struct {
	Binding   Binding
	Path      string
	Content   []byte
	Mode      fs.FileMode
	Principal Principal
	// Secret: neither the content nor a digest of it may stand in the audit log.
	Secret bool
}

// FileInfo is what one look at a file shows.
type FileInfo struct {
	SHA256 string // lower-case hex
	Size   int64
	Mode   fs.FileMode // 0: the backend does not tell
}

// CheckFile judges an operation on a file without any network call, as far as the binding is known.
func (e *Engine) CheckFile(req FileRequest) (*Profile, Verdict, error) {
	b := req.Binding
	if b.ID == "" && b.Endpoint == "" { // a sandbox still to be made
		b.ID, b.Endpoint = SandboxID(b.Backend, "unknown"), "unknown"
	}
	p, _, err := e.cfg.Registry.CheckBinding(b)
	if err != nil {
		return nil, Verdict{}, err
	}
	verdict, err := e.cfg.Registry.Decide(p, &req.Principal, &Operation{Name: OpFile, Files: true, Secrets: req.Secret, InputBytes: len(req.Content)})
	if err != nil {
		found := AllErrors(err, CodeOperation)
		out := make(Violations, len(found))
		for i, v := range found {
			one := *v
			if slices.Equal(one.Attribute, []string{"output_files"}) {
				one.Attribute, one.Next = []string{"path"}, "Use a backend that carries files (files in its capabilities)."
			}
			out[i] = &one
		}
		return p, verdict, out
	}
	bad := func(attr, said, next string) error {
		return &Error{Code: CodeValue, Attempted: "the file was refused", Object: Printable(req.Path), Said: said, Next: next, Attribute: []string{attr}}
	}
	switch {
	case req.Path == "" || !isOneLine(req.Path) || len(req.Path) > MaxPathBytes || isOfDirectory(req.Path):
		return p, verdict, bad("path", "it is not the path of a file.", "Use a plain path.")
	case slices.Contains(strings.Split(req.Path, "/"), ".."):
		return p, verdict, bad("path", "it has a \"..\" element.", "Use a path without it.")
	case len(req.Content) > MaxFileBytes:
		return p, verdict, bad("content", fmt.Sprintf("it has %d bytes, more than %d.", len(req.Content), MaxFileBytes), "Have a run fetch data of that size.")
	}
	return p, verdict, nil
}

// isOfDirectory reports a path that can only be a directory's.
func isOfDirectory(p string) bool { return strings.HasSuffix(p, "/") || path.Base(p) == "." }

// WriteFile writes a file.
func (e *Engine) WriteFile(ctx context.Context, req FileRequest) error {
	rec := AuditRecord{Operation: OpFile + " write", CodeBytes: len(req.Content)}
	if req.Secret {
		_ = e.secretValues(map[string]string{"content": string(req.Content)}) // known from here on
	} else {
		rec.CodeSHA256 = FileDigest(req.Content)
	}
	if req.Mode == 0 {
		req.Mode = DefaultFileMode
	}
	return e.onFile(ctx, rec, req, func(ctx context.Context, where Environment) error {
		return where.WriteFile(ctx, req.Path, req.Content, req.Mode)
	})
}

// StatFile hashes a file. errors.Is(err, fs.ErrNotExist) when it is absent; CodeStopped when the environment does not run:
// it is not woken for a look.
func (e *Engine) StatFile(ctx context.Context, req FileRequest) (FileInfo, error) {
	var info FileInfo
	err := e.onFile(ctx, AuditRecord{Operation: OpFile + " read"}, req, func(ctx context.Context, where Environment) error {
		if !isAwake(where) {
			return &Error{Code: CodeStopped, Attempted: "the file was not looked at", Object: req.Binding.ID, Said: "the environment does not run.", Next: "Start it."}
		}
		if hasher, ok := optional[FileHasher](where); ok {
			var err error
			info, err = hasher.StatFile(ctx, req.Path)
			return err
		}
		content, mode, err := where.ReadFile(ctx, req.Path, MaxCodeBytes)
		if err != nil {
			return err
		}
		info = FileInfo{SHA256: FileDigest(content), Size: int64(len(content)), Mode: mode.Perm()}
		return nil
	})
	return info, err
}

// RemoveFile removes a file; absent is success.
func (e *Engine) RemoveFile(ctx context.Context, req FileRequest) error {
	return e.onFile(ctx, AuditRecord{Operation: OpFile + " remove"}, req, func(ctx context.Context, where Environment) error {
		return where.RemoveFile(ctx, req.Path)
	})
}

// FileDigest is the SHA-256 of content in lower-case hex.
func FileDigest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func isAwake(where Environment) bool {
	switch w := where.(type) {
	case ManagedSandbox:
		info := w.Info()
		return info.Status == StatusRunning && !info.Dormant
	case AttachedEnvironment:
		return w.Status() == StatusRunning
	}
	return true
}

// onFile takes an operation on a file through the gate and the audit log.
func (e *Engine) onFile(ctx context.Context, rec AuditRecord, req FileRequest, do func(context.Context, Environment) error) (err error) {
	ctx, end := e.step(ctx, rec.Operation, &rec)
	defer end(&err)
	ctx, cancel := context.WithTimeout(withPrincipal(ctx, req.Principal), fileTimeout)
	defer cancel()
	rec.Principal, rec.Backend, rec.ID, rec.Fingerprint = &req.Principal, req.Binding.Backend, req.Binding.ID, Fingerprint(req.Binding.Spec)
	p, verdict, err := e.CheckFile(req)
	rec.Unenforced = verdict.Unenforced
	if err != nil {
		return e.refused(rec, err)
	}
	started := e.cfg.Now()
	where, err := e.openForFile(ctx, &rec, p, req)
	if err == nil {
		allowed := rec
		allowed.Verdict = "allowed"
		if err := e.audit(allowed); err != nil {
			return err
		}
		err = do(ctx, where)
	}
	return e.finished(rec, started, err)
}

func (e *Engine) openForFile(ctx context.Context, rec *AuditRecord, p *Profile, req FileRequest) (Environment, error) {
	ep, endpoint, err := e.connectFor(ctx, p)
	if err != nil {
		return nil, err
	}
	rec.Endpoint = endpoint
	if err := relax(p, ep.Admit(ctx, p, Operation{Name: OpFile, Files: true})); err != nil {
		return nil, err
	}
	return e.bound(ctx, ep, endpoint, p, req.Binding)
}
