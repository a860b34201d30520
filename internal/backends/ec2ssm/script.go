package ec2ssm

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// This file holds what runs on the machine. It is POSIX sh, with what coreutils, util-linux and busybox have alike. Values
// reach it as base64 or as text that was checked: nothing that a user wrote is ever read as part of the script.

const (
	// lineBytes is the base64 text of one element of the parameter commands, chunkBytes all that one command carries. SSM
	// refuses more than 64 KiB in all; reports of what it really takes differ, down to 16 KB for one element.
	lineBytes  = 7600
	chunkBytes = 30_400
	// pageBytes is how much raw output fits into one answer: 24,000 characters of base64 with line ends and a frame.
	pageBytes = 17_000
	// mostPaged is what further commands bring back of one stream.
	mostPaged = 480 << 10

	// wholeBytes is how much of both streams comes back through a bucket.
	wholeBytes = 40 << 20

	reportMark = "AKSSM1"

	// placePrefix begins the directory of a run on the machine.
	placePrefix = "/tmp/.agentkernel-ssm-"
)

// newRunID names one run on the machine. Nobody else can guess it.
func newRunID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// quote makes one word of s for sh.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// errand names a run to the commands that belong to it, and says as whom they work.
type errand struct {
	id string
	// runAs is the user of the machine; empty: that of the agent.
	runAs string
}

// lines are the elements of one command: the prelude, and what is to be done. With another user, that one is looked for
// first. An agent that is root becomes the user only to start the program (how is root). Any other one hands the whole of
// what is to be done to the user by sudo, because it could neither give files to the user nor see and end the user's
// processes. The text goes there over standard input, and ends with a word that nobody can guess: no argument holds any of it.
func (k errand) lines(body ...string) []string {
	all := append([]string{prelude(k.id)}, body...)
	if k.runAs == "" {
		return append([]string{"how=plain; u="}, all...)
	}
	all[0] = "how=$1; u=" + k.runAs + "\n" + all[0]
	word := reportMark + "-" + k.id
	gate := fmt.Sprintf(`id=%s; u=%s; how=plain; via=
fail() { printf '%s %%s fail %%s\n' "$id" "$1"; exit 1; }
id -u "$u" >/dev/null 2>&1 || fail user
if [ "$(id -u)" = "$(id -u "$u")" ]; then :
elif [ "$(id -u)" = 0 ] && command -v runuser >/dev/null 2>&1; then how=root
elif command -v sudo >/dev/null 2>&1; then via="sudo -n -u $u --"; $via sh -c : </dev/null >/dev/null 2>&1 || fail become
else fail become; fi
$via sh -s "$how" <<'%s'`, k.id, k.runAs, reportMark, word)
	return slices.Concat([]string{gate}, all, []string{word, "exit $?"})
}

// prelude defines where the run lives and how its processes are found: by the mark in their environment, which children
// inherit, and by their session. What changes both on purpose is not found. A pid is only ever taken from the name of a file:
// what a process says of itself, its name above all, may hold anything, and status alone writes it on one line.
func prelude(id string) string {
	return `id=` + id + `; d=` + placePrefix + `$id; umask 077; p=none
say() { printf '` + reportMark + ` %s %s\n' "$id" "$*"; }
fail() { say fail "$@"; rm -rf "$d"; exit 1; }
pids() { sed -n 's,^/proc/\([0-9]*\)/.*,\1,p' | sort -un; }
marked() { grep -ls "AGENTKERNEL_$1=$id" /proc/[0-9]*/environ 2>/dev/null; }
tree() { { marked RUN; grep -Ls '^State:.[ZX]' $(grep -ls "^NSsid:.$p\([^0-9]\|\$\)" /proc/[0-9]*/status) /dev/null; } 2>/dev/null | pids; }
sweep() { for q in $(tree); do kill "-$1" "$q" 2>/dev/null; done; }
end() { left=0; i=0; while t=$(marked TIMER | pids); l=$(tree); [ -n "$t$l" ]; do [ $i = 0 ] && [ -n "$l" ] && left=$(echo "$l" | wc -l); i=$((i+1)); [ $i -gt 100 ] && break
for q in $t $l; do kill -KILL "$q" 2>/dev/null; done; sleep 0.05 2>/dev/null || sleep 1; done; alive=0; [ -n "$t$l" ] && alive=$(echo $t $l | wc -w); left=$((left+0)); alive=$((alive+0)); }
`
}

// carry gives the lines that append encoded to the file that the payload is put together in.
func carry(encoded string) []string {
	var lines []string
	for part := range slices.Chunk([]byte(encoded), lineBytes) {
		lines = append(lines, `printf %s '`+string(part)+`' >>"$d/b64"`)
	}
	return lines
}

// ofShell are the variables that the sh of some machine (bash above all: Amazon Linux, Red Hat) sets itself, or lets nobody
// set.
var ofShell = map[string]bool{
	"_": true, "UID": true, "EUID": true, "PPID": true, "RANDOM": true, "SRANDOM": true, "SECONDS": true, "LINENO": true, "OPTIND": true, "GROUPS": true, "DIRSTACK": true, "FUNCNAME": true, "HISTCMD": true,
	"SHELLOPTS": true, "BASHOPTS": true, "BASHPID": true, "EPOCHSECONDS": true, "EPOCHREALTIME": true, "SHLVL": true,
	"BASH_ALIASES": true, "BASH_ARGC": true, "BASH_ARGV": true, "BASH_CMDS": true, "BASH_COMMAND": true, "BASH_LINENO": true, "BASH_SOURCE": true, "BASH_SUBSHELL": true, "BASH_VERSINFO": true, "BASH_MONOSECONDS": true,
}

// payload is all that a run carries, in one text: what the program starts with, its code, its standard input.
type payload struct {
	start, code, stdin []byte
	encoded            string
	sum                string
}

// newPayload lays out a request. start is sh text that sets directory and environment and becomes the program.
func newPayload(k errand, req sandboxcore.RunRequest) (payload, error) {
	var b strings.Builder
	if runAs := k.runAs; runAs != "" {
		// runuser keeps the variables of root, and an agent that is the user already has its own; sudo sets them, to the same.
		fmt.Fprintf(&b, "USER=%s LOGNAME=%s HOME=$(getent passwd %s 2>/dev/null | cut -d: -f6); [ -n \"$HOME\" ] || HOME=/; export USER LOGNAME HOME\n", runAs, runAs, runAs)
	}
	b.WriteString("cd \"${HOME:-/}\" 2>/dev/null || cd /\n")
	if req.WorkingDirectory != "" {
		dir := req.WorkingDirectory
		if !strings.HasPrefix(dir, "/") {
			dir = "./" + dir // "-" alone would be the directory before
		}
		fmt.Fprintf(&b, "CDPATH= cd -- %s || exit 125\n", quote(dir))
	}
	names := make([]string, 0, len(req.Env))
	for k := range req.Env {
		if !envNamePattern.MatchString(k) {
			return payload{}, &sandboxcore.Error{
				Code: sandboxcore.CodeValue, Attempted: "the run was refused", Object: sandboxcore.Printable(k), Attribute: []string{"env"},
				Said: "a shell on the machine cannot hold a variable of this name.", Next: "Use letters, digits and _, not starting with a digit.",
			}
		}
		if ofShell[k] {
			return payload{}, &sandboxcore.Error{
				Code: sandboxcore.CodeValue, Attempted: "the run was refused", Object: k, Attribute: []string{"env"},
				Said: "a shell on the machine keeps this variable for itself, and the program would find another value in it, or none.", Next: "Use another name.",
			}
		}
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		fmt.Fprintf(&b, "%s=%s; export %s\n", k, quote(req.Env[k]), k)
	}
	// The mark goes last, so that no variable of the user takes its place. From here on no variable is read or set but it:
	// the user may have given any name a value. The step stays "$1" and the program follows it.
	b.WriteString("AGENTKERNEL_RUN=" + k.id + "; export AGENTKERNEL_RUN\n")
	code := placePrefix + k.id + "/code"
	argv := req.Argv
	switch req.Kind {
	case sandboxcore.RunScript:
		argv = []string{"sh", code}
	case sandboxcore.RunCode:
		if req.Language != "python" {
			return payload{}, &sandboxcore.Error{
				Code: sandboxcore.CodeLanguage, Attempted: "the run was refused", Said: fmt.Sprintf("language %s is not offered.", sandboxcore.Quoted(req.Language)),
				Next: "This backend offers python.", Attribute: []string{"language"},
			}
		}
		// As python -c would run it: __main__, sys.argv ["-c"], the current directory on sys.path.
		b.WriteString("AGENTKERNEL_CODE=" + code + "; export AGENTKERNEL_CODE\n")
		text := quote(`exec(compile(open(__import__("os").environ.pop("AGENTKERNEL_CODE"),"rb").read(),"<string>","exec"))`)
		fmt.Fprintf(&b, "if command -v python3 >/dev/null 2>&1; then set -- \"$1\" python3 -c %s; else set -- \"$1\" python -c %s; fi\n", text, text)
	}
	if req.Kind != sandboxcore.RunCode {
		words := make([]string, len(argv))
		for i, a := range argv {
			words[i] = quote(a)
		}
		b.WriteString("set -- \"$1\" " + strings.Join(words, " ") + "\n")
	}
	b.WriteString("if [ \"$1\" = check ]; then command -v \"$2\" >/dev/null 2>&1 || exit 127; exit 0; fi\nshift\nexec \"$@\"\n")
	p := payload{start: []byte(b.String()), code: req.Text, stdin: req.Stdin}
	all := slices.Concat(p.start, p.code, p.stdin)
	if len(all) > maxInput+16<<10 {
		return payload{}, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the run was refused", Attribute: []string{"code"},
			Said: fmt.Sprintf("it carries %d bytes of code, environment and standard input, and this backend takes at most %d.", len(all), maxInput),
			Next: "Bring large data to the machine another way, such as S3, and let the code read it there.",
		}
	}
	sum := sha256.Sum256(all)
	p.encoded, p.sum = base64.StdEncoding.EncodeToString(all), hex.EncodeToString(sum[:])
	return p, nil
}

// uploads splits what is carried: commands that go ahead, and what still fits into the last one.
func uploads(k errand, encoded string) (ahead [][]string, rest string) {
	rest = encoded
	for first := true; len(rest) > chunkBytes; first = false {
		var lines []string
		if first {
			lines = append(lines, `mkdir -m 700 "$d" || fail directory`)
		} else {
			lines = append(lines, `[ -d "$d" ] || fail payload`)
		}
		lines = append(lines, carry(rest[:chunkBytes])...)
		ahead, rest = append(ahead, k.lines(append(lines, `say stored`)...)), rest[chunkBytes:]
	}
	return ahead, rest
}

// arrived puts together what was carried, as $d/p, and holds it against its digest.
func arrived(rest, sum string, made bool) []string {
	var lines []string
	if !made {
		lines = append(lines, `mkdir -m 700 "$d" || fail directory`)
	}
	lines = append(lines, `[ -d "$d" ] || fail payload; : >>"$d/b64"`)
	lines = append(lines, carry(rest)...)
	return append(lines, fmt.Sprintf(`base64 -d <"$d/b64" >"$d/p" 2>/dev/null || fail payload
[ "$(sha256sum <"$d/p" | cut -c1-64)" = %s ] || fail payload`, sum))
}

// secondsOf writes a time for sleep: whole where it is, because not every sleep knows fractions.
func secondsOf(d time.Duration) string {
	return strconv.FormatFloat(math.Max(math.Ceil(d.Seconds()*1000)/1000, 0.001), 'f', -1, 64)
}

// runLines are the commands of the run itself. whole: both streams are printed to their end, because SSM puts them into a
// bucket; else only as much as its answer holds, and the files stay for further commands when that is not all.
func (p payload) runLines(k errand, rest string, made, whole bool, req sandboxcore.RunRequest) []string {
	lines := arrived(rest, p.sum, made)
	keep, limit := "0", strconv.Itoa(pageBytes)
	if req.KeepBackground {
		keep = "1"
	}
	if whole {
		limit = strconv.Itoa(wholeBytes)
	}
	a, c := len(p.start), len(p.code)
	return k.lines(append(lines, fmt.Sprintf(`head -c %d "$d/p" >"$d/start"; tail -c +%d "$d/p" | head -c %d >"$d/code"; tail -c +%d "$d/p" >"$d/in"; rm -f "$d/b64" "$d/p"; : >"$d/out"; : >"$d/err"`,
		a, a+1, c, a+c+1),
		`as=
if [ $how = root ]; then as="runuser -u $u --"
chown "$u" "$d/start" "$d/code" "$d/in" "$d/out" "$d/err" && chmod 711 "$d" || fail become
$as true </dev/null >/dev/null 2>&1 || fail become
fi
$as sh "$d/start" check </dev/null >/dev/null 2>&1; c=$?
case $c in 0) ;; 125) fail directory-of-run ;; 127) fail program ;; *) fail start "$c" ;; esac`,
		// The timer is in a session of its own, so that it goes with the sleep that it waits for.
		fmt.Sprintf(`command -v setsid >/dev/null 2>&1 || fail setsid
read -r t0 _ </proc/uptime
setsid $as sh "$d/start" run <"$d/in" >>"$d/out" 2>>"$d/err" &
p=$!; echo "$p" >"$d/pid"
AGENTKERNEL_TIMER=$id setsid sh -s "$p" >/dev/null 2>&1 <<'timer' &
%sp=$1
sleep %s; : >"$d/late"; sweep TERM; sleep %s; sweep KILL
timer
w=$!
wait $p; x=$?
kill -KILL "-$w" 2>/dev/null || kill -KILL $w 2>/dev/null; wait $w 2>/dev/null; kill -KILL "-$w" 2>/dev/null
read -r t1 _ </proc/uptime
late=0; [ -e "$d/late" ] && late=1
left=0; alive=0; [ %s = 1 ] && [ $late = 0 ] || end`, prelude(k.id), secondsOf(req.Timeout), secondsOf(req.Grace), keep),
		fmt.Sprintf(`o=$(wc -c <"$d/out"); e=$(wc -c <"$d/err"); o=$((o+0)); e=$((e+0)); b=%s
n=$o; [ $n -gt $((b*2/3)) ] && n=$((b*2/3)); m=$e; [ $m -gt $((b-n)) ] && m=$((b-n)); n=$o; [ $n -gt $((b-m)) ] && n=$((b-m))
say exit $x late $late left $left alive $alive from $t0 to $t1 out $o err $e here $n $m
head -c $n "$d/out" | base64; say out
head -c $m "$d/err" | base64; say err
if [ $n = $o ] && [ $m = $e ]; then rm -rf "$d"; else rm -f "$d/start" "$d/code" "$d/in"; fi
say done
exit $x`, limit))...)
}

// pageLines bring back one more part of a stream. The last one removes what the run left on the machine.
func pageLines(k errand, stream string, from, n int64, last bool) []string {
	clean := ""
	if last {
		clean = `rm -rf "$d"`
	}
	return k.lines(fmt.Sprintf(`[ -f "$d/%s" ] || fail page
say page %s %d %d
tail -c +%d "$d/%s" | head -c %d | base64; say %s
%s
say done`, stream, stream, from, n, from+1, stream, n, stream, clean))
}

// endLines kill whatever is left of a run, remove its files and tell.
func endLines(k errand) []string {
	return k.lines(`[ -f "$d/pid" ] && read -r p <"$d/pid"; case $p in ''|*[!0-9]*) p=none ;; esac
end; rm -rf "$d"; say ended left $left alive $alive; say done`)
}
