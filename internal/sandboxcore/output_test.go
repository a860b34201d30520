package sandboxcore_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain\ttext\n":      "plain\ttext\n",
		"\x1b[31mred\x1b[0m": `\x1b[31mred\x1b[0m`,
		"a\rb\x00\x7f\u009b": `a\x0db\x00\x7f\x9b`,
		"\u202eevil\u2066":   `\u202eevil\u2066`,
		"\xff\xfe":           "\uFFFD\uFFFD",
		"grüße 🌍 \uFFFD":     "grüße 🌍 \uFFFD",
		"a\u2028b\ufeff":     `a\u2028b\ufeff`,
	} {
		if got := sandboxcore.Clean(in); got != want {
			t.Errorf("%q gave %q, want %q", in, got, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\x1b[2J\xff\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		once := sandboxcore.Clean(s)
		if sandboxcore.Clean(once) != once {
			t.Fatalf("cleaning %q twice gives another text", s)
		}
		if strings.ContainsAny(once, "\x1b\x00\r\x7f\u202e") {
			t.Fatalf("%q left controls in %q", s, once)
		}
	})
}

const secret = "s3cr3t/+val ue&\"q\""

func secretShapes() map[string]string {
	js, _ := json.Marshal(secret)
	return map[string]string{
		"plain": secret, "query": url.QueryEscape(secret), "path": url.PathEscape(secret), "query, lower": strings.ToLower(url.QueryEscape("s3cr3t/+val ue&\"q\"")),
		"hex": hex.EncodeToString([]byte(secret)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(secret))), "json": string(js[1 : len(js)-1]), "json of others": `s3cr3t/+val ue&\"q\"`,
		"base64": base64.StdEncoding.EncodeToString([]byte(secret)), "base64url": base64.URLEncoding.EncodeToString([]byte(secret)),
		"base64 after 1": base64.StdEncoding.EncodeToString([]byte("x" + secret + "tail")), "base64 after 2": base64.StdEncoding.EncodeToString([]byte("xy" + secret + "tail")),
		"base64 in basic auth": base64.StdEncoding.EncodeToString([]byte("user:" + secret)),
	}
}

// A secret is found in every encoding and however the stream was cut into chunks.
func TestRedactorStream(t *testing.T) {
	t.Parallel()
	r := sandboxcore.NewRedactor(secret, "another-secret")
	for name, shape := range secretShapes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := "before " + shape + " after " + shape + " another-secret end"
			whole := r.String(text)
			core := shape[4 : len(shape)-4]
			if strings.Contains(whole, core) || !strings.HasPrefix(whole, "before ") || !strings.HasSuffix(whole, " end") {
				t.Fatalf("redacted to %q", whole)
			}
			for chunk := 1; chunk <= len(text); chunk++ {
				var b bytes.Buffer
				w := r.Writer(&b)
				for i := 0; i < len(text); i += chunk {
					if _, err := io.WriteString(w, text[i:min(i+chunk, len(text))]); err != nil {
						t.Fatal(err)
					}
				}
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
				if b.String() != whole {
					t.Fatalf("chunks of %d gave %q, want %q", chunk, b.String(), whole)
				}
			}
		})
	}
}

func TestRedactorLeavesOtherTextAlone(t *testing.T) {
	t.Parallel()
	r := sandboxcore.NewRedactor(secret, "", "aaaaaaab")
	for _, s := range []string{"", "nothing here", "aaaaaaaaaaaaa", strings.Repeat("s3cr3t ", 50)} {
		if got := r.String(s); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
	if got := r.String("xaaaaaaaaabx"); got != "xaa***x" {
		t.Errorf("overlapping prefix gave %q", got)
	}
	var none *sandboxcore.Redactor
	if none.String("x") != "x" || none.Contains([]byte("x")) || none.Error(errors.New("x")) == nil {
		t.Error("a nil redactor changed something")
	}
}

func TestRedactorMultiline(t *testing.T) {
	t.Parallel()
	key := "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nBAQEFAASCBKcwggSjAgEAAo\n-----END KEY-----\n"
	got := sandboxcore.NewRedactor(key).String("  MIIEvQIBADANBgkqhkiG9w0\r\n  BAQEFAASCBKcwggSjAgEAAo\r\n")
	if strings.Contains(got, "MIIE") || strings.Contains(got, "BAQE") {
		t.Errorf("indented lines of the key stayed: %q", got)
	}
}

func TestRedactorError(t *testing.T) {
	t.Parallel()
	r := sandboxcore.NewRedactor(secret)
	cause := &sandboxcore.Error{Code: sandboxcore.CodeProvision, Attempted: "create", Said: "bad " + secret, Err: errors.New("env " + secret)}
	for _, err := range []error{
		cause,
		sandboxcore.Violations{cause},
		fmt.Errorf("outer: %w", cause), errors.New("x " + secret),
		&sandboxcore.RunError{Err: cause, StdoutTail: secret},
	} {
		got := r.Error(err)
		if strings.Contains(fmt.Sprintf("%v", got), "s3cr3t") {
			t.Errorf("%v", got)
		}
		if sandboxcore.CodeOf(err) != sandboxcore.CodeOf(got) {
			t.Errorf("code of %v was lost", err)
		}
	}
}

func TestCheckSecret(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "12345", "with\x00nul"} {
		if err := sandboxcore.CheckSecret("n", bad); !sandboxcore.IsCode(err, sandboxcore.CodeValue) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := sandboxcore.CheckSecret("n", "123456"); err != nil {
		t.Error(err)
	}
}

// Whatever the chunks, head and tail, count and hash are those of the whole stream.
func TestCapture(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, limit := range []int{2, 3, 10, 64, 1000} {
		for _, size := range []int{0, 1, limit - 1, limit, limit + 1, 3*limit + 1, 5000} {
			data := make([]byte, size)
			for i := range data {
				data[i] = byte('a' + rng.IntN(26))
			}
			c := sandboxcore.NewCapture(limit)
			for rest := data; len(rest) > 0; {
				n := min(1+rng.IntN(limit), len(rest))
				_, _ = c.Write(rest[:n])
				rest = rest[n:]
			}
			s := c.Stream()
			sum := sha256.Sum256(data)
			if s.Bytes != int64(size) || s.SHA256 != hex.EncodeToString(sum[:]) || s.Truncated != (size > limit) {
				t.Fatalf("limit %d size %d: %+v", limit, size, s)
			}
			want := data
			if size > limit {
				want = append(append([]byte{}, data[:limit-limit/2]...), data[size-limit/2:]...)
			}
			if !bytes.Equal(s.Raw, want) {
				t.Fatalf("limit %d size %d: kept %q, want %q", limit, size, s.Raw, want)
			}
			if size <= limit && s.Text != string(data) {
				t.Fatalf("text %q", s.Text)
			}
		}
	}
}

func TestCaptureCutsBetweenRunes(t *testing.T) {
	t.Parallel()
	c := sandboxcore.NewCapture(11)
	_, _ = io.WriteString(c, strings.Repeat("ü", 100))
	if got := c.Stream().Text; strings.Contains(got, "\uFFFD") || !strings.Contains(got, "bytes left out") {
		t.Errorf("%q", got)
	}
}

// A gigabyte passes through in memory that does not depend on it.
func BenchmarkOutputPath(b *testing.B) {
	chunk := bytes.Repeat([]byte("0123456789abcdef"), 2048)
	for _, secrets := range []int{0, 1, 10} {
		b.Run(fmt.Sprintf("secrets=%d", secrets), func(b *testing.B) {
			var list []string
			for i := range secrets {
				list = append(list, fmt.Sprintf("secret-value-number-%d", i))
			}
			w := sandboxcore.NewRedactor(list...).Writer(sandboxcore.NewCapture(64 << 10))
			b.SetBytes(int64(len(chunk)))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = w.Write(chunk)
			}
		})
	}
}

func TestAuditLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	for i := range 2 { // a second process appends
		l, err := sandboxcore.OpenAuditLog(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Write(sandboxcore.AuditRecord{Time: time.Unix(int64(i), 0), Operation: "run", Verdict: "done", ExitCode: new(0)}); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 2 || !strings.Contains(lines[1], `"exit_code":0`) || !strings.Contains(lines[1], `"time":"1970-01-01T00:00:01Z"`) {
		t.Errorf("%q", text)
	}
	if st, _ := os.Stat(path); st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", st.Mode())
	}
	for _, bad := range []string{t.TempDir(), filepath.Join(t.TempDir(), "no", "such", "dir")} {
		if _, err := sandboxcore.OpenAuditLog(bad); !sandboxcore.IsCode(err, sandboxcore.CodeValue) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	var none *sandboxcore.AuditLog
	if none.Write(sandboxcore.AuditRecord{}) != nil || none.Close() != nil {
		t.Error("a nil log failed")
	}
	full, err := sandboxcore.OpenAuditLog("/dev/full")
	if err == nil {
		if werr := full.Write(sandboxcore.AuditRecord{}); !sandboxcore.IsCode(werr, sandboxcore.CodeValue) {
			t.Errorf("a full disk: %v", werr)
		}
		_ = full.Close()
	}
}

func TestCheckRequirement(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"requests", "requests==2.32.3", "requests>=2,<3", "uvicorn[standard]", "a[b,c]~=1.0", "zope.interface", "x==1.*", "x===weird_1+local"} {
		if err := sandboxcore.CheckRequirement(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "-r", "-rfile", "--index-url=http://x", "./pkg", "/pkg", "pkg @ http://x", "git+https://x", "a b", "a;python_version>'3'", "a\nb", "a==", "a[", "http://x/y.whl",
		"a.whl/../b", "-e.", "a#egg=b", "a==1;", "$(id)", strings.Repeat("a", 201),
	} {
		if err := sandboxcore.CheckRequirement(bad); !sandboxcore.IsCode(err, sandboxcore.CodeValue) {
			t.Errorf("%q was accepted", bad)
		}
	}
}
