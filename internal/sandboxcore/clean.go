package sandboxcore

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// bidirectional controls reorder what a reader sees (Unicode TR 9); they are shown as escapes.
func isBidi(r rune) bool {
	return r == 0x061C || r == 0x200E || r == 0x200F || (r >= 0x202A && r <= 0x202E) || (r >= 0x2066 && r <= 0x2069)
}

// Clean makes untrusted output safe to store and to print: invalid UTF-8 becomes U+FFFD, control characters other than
// newline and tab, line and paragraph separators and bidirectional controls become visible escapes such as \x1b or
// \u202e. Terraform prints state values raw, escape sequences included.
func Clean(s string) string {
	if !needsCleaning(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 16)
	for _, r := range s {
		switch {
		case r == utf8.RuneError:
			b.WriteRune(utf8.RuneError)
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case isHidden(r):
			writeEscape(&b, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func isHidden(r rune) bool {
	return unicode.IsControl(r) || isBidi(r) || r == 0x2028 || r == 0x2029 || r == 0xFEFF
}

func needsCleaning(s string) bool {
	for i, r := range s {
		if r == '\n' || r == '\t' {
			continue
		}
		if isHidden(r) {
			return true
		}
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return true
			}
		}
	}
	return false
}

func writeEscape(b *strings.Builder, r rune) {
	if r < 0x100 {
		fmt.Fprintf(b, `\x%02x`, r)
		return
	}
	fmt.Fprintf(b, `\u%04x`, r)
}

// Printable makes a text from outside fit for one line of a message: cleaned, newlines and tabs as escapes, at most 200
// bytes.
func Printable(s string) string {
	const limit = 200
	cut := ""
	if len(s) > limit {
		s, cut = trimRight([]byte(s[:limit])), "…"
	}
	return strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(Clean(s)) + cut
}

// Quoted is Printable between quotation marks. The %q of package fmt would write every escape of it twice.
func Quoted(s string) string { return `"` + strings.ReplaceAll(Printable(s), `"`, `\"`) + `"` }

// isOneLine reports whether a text can stand in a path, an id or a label as it is: nothing in it that Printable would show
// as an escape. Its length does not matter.
func isOneLine(s string) bool { return !strings.ContainsAny(s, "\n\t") && Clean(s) == s }
