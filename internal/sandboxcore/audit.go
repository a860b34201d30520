package sandboxcore

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"
)

// AuditRecord is one line of the audit log. It never holds content: no code, output, environment or secret.
type AuditRecord struct {
	Time        time.Time   `json:"time"`
	Operation   string      `json:"operation"`
	Verdict     string      `json:"verdict"` // "allowed", "refused", "failed", "done"
	Codes       []Code      `json:"codes,omitempty"`
	Reasons     []string    `json:"reasons,omitempty"` // of the gate only: texts about the configuration
	Unenforced  []string    `json:"unenforced,omitempty"`
	Fingerprint string      `json:"fingerprint,omitempty"`
	Principal   *Principal  `json:"principal,omitempty"`
	Backend     BackendType `json:"backend,omitempty"`
	Endpoint    string      `json:"endpoint,omitempty"`
	ID          string      `json:"id,omitempty"`
	RunID       string      `json:"run_id,omitempty"`
	CodeSHA256  string      `json:"code_sha256,omitempty"`
	CodeBytes   int         `json:"code_bytes,omitempty"`
	ExitCode    *int        `json:"exit_code,omitempty"`
	DurationMS  int64       `json:"duration_ms,omitempty"`
}

// AuditLog writes records as JSON lines. One record is one write and is on disk before Write returns, so that a crash
// loses at most the line being written. A nil AuditLog writes nothing.
type AuditLog struct {
	mu   sync.Mutex
	file *os.File
	path string
}

// OpenAuditLog opens (or makes, mode 0600) the log for appending. A log that is configured but cannot be written is an
// error: the caller refuses to work rather than work unrecorded.
func OpenAuditLog(path string) (*AuditLog, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600) // #nosec G304 -- the operator names the path
	if err != nil {
		return nil, auditError(path, err)
	}
	return &AuditLog{file: f, path: path}, nil
}

func auditError(path string, err error) error {
	return &Error{
		Code: CodeValue, Attempted: "the audit log could not be written", Object: Printable(path), Err: err, Attribute: []string{"audit_log"},
		Said: "it is configured, so nothing is done without it.", Next: "Make the file writable, or remove audit_log (and AGENTKERNEL_AUDIT_LOG).",
	}
}

// Write appends one record.
func (l *AuditLog) Write(rec AuditRecord) error {
	if l == nil {
		return nil
	}
	rec.Time = rec.Time.UTC()
	line, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode an audit record: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		return auditError(l.path, err)
	}
	if err := l.file.Sync(); err != nil && !isNoSync(err) {
		return auditError(l.path, err)
	}
	return nil
}

// Close closes the file.
func (l *AuditLog) Close() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}
