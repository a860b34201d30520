package sandboxcore

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// MinSecretBytes is the shortest secret that is accepted: redacting shorter ones would blank out ordinary text.
const MinSecretBytes = 6

// Redacted stands where a secret stood.
const Redacted = "***"

// Redactor replaces known secrets in text and streams, also in their base64 (any alignment, both alphabets), URL, hex and
// JSON encodings. A secret of several lines is also found line by line. A nil Redactor redacts nothing.
type Redactor struct {
	patterns [][]byte // longest first
	longest  int
}

// CheckSecret refuses values that cannot be redacted usefully. name is what the user called it.
func CheckSecret(name, value string) error {
	said := ""
	switch {
	case value == "":
		said = "the value is empty."
	case len(value) < MinSecretBytes:
		said = fmt.Sprintf("the value is shorter than %d bytes, so it could not be told apart from ordinary output.", MinSecretBytes)
	case strings.ContainsRune(value, 0):
		said = "the value has a NUL byte."
	default:
		return nil
	}
	return &Error{Code: CodeValue, Attempted: "the secret was refused", Object: Printable(name), Said: said, Next: "Give the whole value of the secret."}
}

// NewRedactor makes a redactor for the given secrets. Empty ones are ignored.
func NewRedactor(secrets ...string) *Redactor {
	set := map[string]struct{}{}
	for _, s := range secrets {
		for _, form := range secretForms(s) {
			for _, p := range encodings(form) {
				if len(p) >= MinSecretBytes {
					set[p] = struct{}{}
				}
			}
		}
	}
	r := &Redactor{}
	for p := range set {
		r.patterns = append(r.patterns, []byte(p))
		r.longest = max(r.longest, len(p))
	}
	slices.SortFunc(r.patterns, func(a, b []byte) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return bytes.Compare(a, b)
	})
	return r
}

// minSecretLine is how long a line of a secret must be to be searched for by itself.
const minSecretLine = 12

func secretForms(s string) []string {
	forms := []string{s, strings.TrimSpace(s)}
	if strings.Contains(strings.TrimSpace(s), "\n") {
		for line := range strings.Lines(s) {
			if line = strings.TrimSpace(line); len(line) >= minSecretLine {
				forms = append(forms, line)
			}
		}
	}
	return forms
}

func encodings(s string) []string {
	if s == "" {
		return nil
	}
	out := []string{s, url.QueryEscape(s), url.PathEscape(s), lowerEscapes(url.QueryEscape(s)), hex.EncodeToString([]byte(s)), strings.ToUpper(hex.EncodeToString([]byte(s)))}
	if j, err := json.Marshal(s); err == nil {
		escaped := string(j[1 : len(j)-1])
		quoted := strconv.QuoteToASCII(s) // Python's json.dumps and many others: all but ASCII as \u escapes, <>& as they are
		out = append(out, escaped, quoted[1:len(quoted)-1])
	}
	// In base64 a secret looks different at each of three alignments. Only the characters that the secret alone
	// decides are searched for.
	for shift := range 3 {
		padded := append(make([]byte, shift), s...)
		from, to := (shift*8+5)/6, len(padded)*8/6
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			out = append(out, enc.EncodeToString(padded)[from:to])
		}
	}
	return out
}

// lowerEscapes turns %2F into %2f.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:i+3], bytes.ToLower(b[i+1:i+3]))
			i += 2
		}
	}
	return string(b)
}

// String redacts s.
func (r *Redactor) String(s string) string {
	if r == nil || len(r.patterns) == 0 || s == "" {
		return s
	}
	out, _ := r.scan(nil, []byte(s), true)
	return string(out)
}

// Contains reports whether b holds a known secret in any of its forms.
func (r *Redactor) Contains(b []byte) bool {
	if r == nil {
		return false
	}
	return slices.ContainsFunc(r.patterns, func(p []byte) bool { return bytes.Contains(b, p) })
}

// scan appends the redacted form of in to out and gives what has to be kept for the next call: the bytes in which a
// secret may have begun. final says that nothing follows.
func (r *Redactor) scan(out, in []byte, final bool) (redacted, rest []byte) {
	next := make([]int, len(r.patterns))
	for i, p := range r.patterns {
		next[i] = bytes.Index(in, p)
	}
	pos := 0
	for {
		best, bestAt := -1, len(in)
		for i, p := range r.patterns {
			if next[i] >= 0 && next[i] < pos {
				if n := bytes.Index(in[pos:], p); n >= 0 {
					next[i] = pos + n
				} else {
					next[i] = -1
				}
			}
			if next[i] >= 0 && next[i] < bestAt { // patterns are sorted longest first: the longest wins at one place
				best, bestAt = i, next[i]
			}
		}
		keepFrom := len(in)
		if !final {
			keepFrom = max(pos, len(in)-r.longest+1)
		}
		if best < 0 || (!final && bestAt >= keepFrom) {
			out = append(out, in[pos:keepFrom]...)
			return out, in[keepFrom:]
		}
		out = append(out, in[pos:bestAt]...)
		out = append(out, Redacted...)
		pos = bestAt + len(r.patterns[best])
	}
}

// Writer gives a writer that passes redacted text to w. Close flushes what was held back because a secret may have been
// beginning there; it does not close w.
func (r *Redactor) Writer(w io.Writer) io.WriteCloser {
	return &redactingWriter{r: r, w: w}
}

type redactingWriter struct {
	r    *Redactor
	w    io.Writer
	held []byte
	out  []byte
}

func (rw *redactingWriter) Write(p []byte) (int, error) {
	if rw.r == nil || len(rw.r.patterns) == 0 {
		return rw.w.Write(p)
	}
	rw.held = append(rw.held, p...)
	out, rest := rw.r.scan(rw.out[:0], rw.held, false)
	rw.out = out
	rw.held = append(rw.held[:0], rest...)
	if len(out) == 0 {
		return len(p), nil
	}
	if _, err := rw.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (rw *redactingWriter) Close() error {
	if len(rw.held) == 0 {
		return nil
	}
	out, _ := rw.r.scan(nil, rw.held, true)
	rw.held = nil
	_, err := rw.w.Write(out)
	return err
}

// Error gives err with every text in it redacted, and its type and code kept. What a backend says may quote what it was
// given.
func (r *Redactor) Error(err error) error {
	if err == nil || r == nil || len(r.patterns) == 0 {
		return err
	}
	run, v, one := outermost(err)
	switch {
	case run != nil:
		out := *run
		out.Err = r.one(run.Err)
		out.StdoutTail, out.StderrTail = r.String(run.StdoutTail), r.String(run.StderrTail)
		out.More = make([]*Error, len(run.More))
		for i, e := range run.More {
			out.More[i] = r.one(e)
		}
		return &out
	case v != nil:
		out := make(Violations, len(v))
		for i, e := range v {
			out[i] = r.one(e)
		}
		return out
	case one != nil:
		return r.one(one)
	case r.Contains([]byte(err.Error())):
		return &redactedError{r.String(err.Error()), err}
	}
	return err
}

func (r *Redactor) one(e *Error) *Error {
	out := *e
	out.Object, out.Said, out.Next = r.String(e.Object), r.String(e.Said), r.String(e.Next)
	if e.Err != nil && r.Contains([]byte(e.Err.Error())) {
		out.Err = &redactedError{r.String(e.Err.Error()), e.Err}
	}
	return &out
}

// redactedError is what another error is, and says less. It does not unwrap: the text would be found again.
type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string { return e.text }

// Is answers for the other error.
func (e *redactedError) Is(target error) bool { return errors.Is(e.err, target) }
