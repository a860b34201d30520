package ec2ssm

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Files go to a machine like the input of a run: as base64 in as many commands as it takes, put together there and held
// against a digest before anything is replaced. They come back like its output: a copy is made first, so that what comes in
// several pieces is of one moment, and held against the digest that was taken there. All of it is done as the user of a run,
// and relative to the directory that a run starts in.

var _ sandboxcore.FileHasher = (*machine)(nil)

const (
	attemptedRead   = "the file could not be read"
	attemptedWrite  = "the file could not be written"
	attemptedRemove = "the file could not be removed"
)

// fileLines make $f the path of the file. It is carried as base64, so that nothing in it is read as part of the script. A
// path that can only be a directory's is refused before anything is made for it.
func fileLines(path string) string {
	return fmt.Sprintf(`as=; home=${HOME:-/}
if [ -n "$u" ]; then home=$(getent passwd "$u" 2>/dev/null | cut -d: -f6); fi
[ -d "$home" ] || home=/
[ $how != root ] || as="runuser -u $u --"
f=$(printf %%s '%s' | base64 -d; echo .); f=${f%%.}
case $f in /*) ;; *) f=$home/$f ;; esac
case $f in */|*/.|*/..) fail kind ;; esac`, base64.StdEncoding.EncodeToString([]byte(path)))
}

// hashTime is how long the machine may hash a file: any size may have come into its place. The engine gives an operation on
// a file five minutes.
const hashTime = 3 * time.Minute

// The exit statuses of what is done as the user become words of fail.
const (
	// markFile marks every program from here on like those of a run: an agent that is not root cannot end what runs as another user.
	markFile  = `AGENTKERNEL_RUN=$id; export AGENTKERNEL_RUN`
	judgeFile = `case $? in 0) ;; 10) fail absent ;; 11) fail kind ;; 12) fail large "$(cat "$d/n")" "$most" ;; 14) fail space ;; *) fail access ;; esac`
	look      = `[ -e "$1" ] || { [ -L "$1" ] && exit 11; p=${1%/*}; while [ -n "$p" ] && [ ! -d "$p" ]; do [ -e "$p" ] && exit 11; p=${p%/*}; done; [ -x "${p:-/}" ] || exit 13; exit 10; }; [ -f "$1" ] || exit 11; [ -r "$1" ] || exit 13; `
)

// readLines copy at most limit bytes of a file and print what fits into one answer. hash: only the digest is wanted.
func readLines(k errand, path string, limit int64, hash bool) []string {
	const take = `n=$(wc -c <"$1") || exit 13; [ $n -le "$2" ] || { echo $((n)); exit 12; }; head -c "$2" "$1" || exit 14`
	body := []string{
		fileLines(path), markFile,
		`mkdir -m 700 "$d" || fail directory`,
	}
	if hash {
		body = append(body, fmt.Sprintf(`r=$($as sh -c '%ssha256sum <"$1" | cut -c1-64; stat -L -c %%a "$1"; wc -c <"$1"' sh "$f" 2>/dev/null); %s
set -- $r; rm -rf "$d"
say file size $3 mode $2 sum $1 here 0 0
say done`, look, judgeFile))
		return k.lines(body...)
	}
	return k.lines(append(body, fmt.Sprintf("most=%d", limit), fmt.Sprintf(`$as sh -c '%s%s' sh "$f" %d >"$d/out" 2>/dev/null
c=$?; [ $c != 12 ] || { cp "$d/out" "$d/n"; }; (exit $c); %s
m=$($as stat -L -c %%a "$f" 2>/dev/null) || fail access
o=$(wc -c <"$d/out"); o=$((o+0)); n=$o; [ $n -gt %d ] && n=%d
say file size $o mode $m sum $(sha256sum <"$d/out" | cut -c1-64) here $n 0
head -c $n "$d/out" | base64; say out
[ $n != $o ] || rm -rf "$d"
say done`, look, take, limit, judgeFile, pageBytes, pageBytes))...)
}

// writeLines put the file into its place at once, making missing directories. rest is what did not go ahead. Until it is
// whole it has a name that others can know by then, in a directory that may be theirs: it is made anew (set -C), never
// through a link that was put there, and from then on it is spoken of as what is open.
func writeLines(k errand, path, rest, sum string, made bool, mode fs.FileMode) []string {
	return k.lines(append(arrived(rest, sum, made), fileLines(path), markFile,
		fmt.Sprintf(`r=$($as sh -c 'umask 022; t=${1%%/*}/.agentkernel-$2; [ ! -d "$1" ] || exit 11; mkdir -p "${1%%/*}/" || exit 13
umask 077; set -C; c=13
if [ ! -e "$t" ] && [ ! -L "$t" ]; then ( [ -f /proc/self/fd/1 ] || exit 13; cat || exit 14; chmod %o /proc/self/fd/1 || exit 13 ) >"$t"; c=$?; fi
[ $c != 0 ] || { sha256sum <"$t" | cut -c1-64 && mv -f "$t" "$1" && exit 0; c=13; }
rm -f "$t"; exit $c' sh "$f" "$id" <"$d/p" 2>/dev/null)
%s
rm -rf "$d"; say file size 0 mode 0 sum $r here 0 0; say done`, mode.Perm(), judgeFile))...)
}

// dropLines end what an operation that broke off still does, and remove what it may have left beside the file.
func dropLines(k errand, path string) []string {
	return k.lines(fileLines(path), `end; $as rm -f "${f%/*}/.agentkernel-$id"; rm -rf "$d"; say removed; say done`)
}

func removeLines(k errand, path string) []string {
	return k.lines(fileLines(path), markFile, `$as sh -c '[ -e "$1" ] || [ -L "$1" ] || { p=${1%/*}; while [ -n "$p" ] && [ ! -d "$p" ]; do p=${p%/*}; done; [ -x "${p:-/}" ] || exit 13; exit 0; }; [ -L "$1" ] || [ ! -d "$1" ] || exit 11; rm -f "$1" && [ ! -e "$1" ] || exit 13' sh "$f" >/dev/null 2>&1
`+judgeFile+`
say removed; say done`)
}

// errand begins something on the machine as the user of the operation.
func (m *machine) errand(ctx context.Context) (errand, error) {
	if err := m.ready(); err != nil {
		return errand{}, err
	}
	runAs, err := m.runAs(ctx)
	return errand{id: m.e.newID(), runAs: runAs}, err
}

// one does something with a file that takes one command, or one more after those that went ahead.
func (m *machine) one(ctx context.Context, k errand, s sending, path string, ahead bool, want string) (*report, error) {
	attempted := s.attempted
	s.execution = max(s.execution, overhead)
	command, sent, err := m.send(ctx, s)
	if err != nil {
		if sent || ahead {
			m.drop(ctx, k, path, "")
		}
		return nil, m.broken(ctx, attempted, err)
	}
	e, err := m.wait(ctx, command, s)
	if err != nil {
		m.drop(ctx, k, path, command)
		return nil, m.broken(ctx, attempted, err)
	}
	r, err := parseReport(k.id, aws.ToString(e.out.StandardOutputContent))
	if err != nil || len(r.fail) == 0 && r.word != want {
		if ahead || !e.nothingRan() {
			m.drop(ctx, k, path, "")
		}
		judged := m.judge(attempted, e, s)
		if judged.Code == sandboxcore.CodeTimeout {
			judged.Next = "Check the machine, and how large the file is: it is read and hashed there."
		}
		return nil, judged
	}
	if len(r.fail) > 0 && r.fail[0] == "absent" {
		return nil, &fs.PathError{Op: "open", Path: sandboxcore.Printable(path), Err: fs.ErrNotExist}
	}
	if err := m.refused(r, k.runAs); err != nil {
		if own, ok := errors.AsType[*sandboxcore.Error](err); ok {
			own.Attempted, own.Said = attempted, strings.TrimSuffix(own.Said, " Nothing ran.")
		}
		return nil, err
	}
	return r, nil
}

// drop cancels a command about a file, if one is named, and removes what it may have left.
func (m *machine) drop(ctx context.Context, k errand, path, command string) {
	_ = sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		if command != "" {
			_ = m.cancel(ctx, command)
		}
		_, err := m.exchange(ctx, k.id, sending{attempted: "what the operation left could not be removed", lines: dropLines(k, path), execution: overhead})
		return err
	})
}

// broken is the error of an operation on a file whose end nobody saw.
func (m *machine) broken(ctx context.Context, attempted string, err error) error {
	if own, ok := errors.AsType[*sandboxcore.Error](err); ok && ctx.Err() == nil {
		return own
	}
	out := &sandboxcore.Error{
		Code: sandboxcore.CodeUnknownOutcome, Attempted: attempted, Object: m.object, Said: "the operation was given up before the machine had answered.",
		Next: "Run the command again.", Err: err,
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		out.Code = sandboxcore.CodeTimeout
	}
	return out
}

// StatFile hashes a regular file on the machine.
func (m *machine) StatFile(ctx context.Context, path string) (sandboxcore.FileInfo, error) {
	k, err := m.errand(ctx)
	if err != nil {
		return sandboxcore.FileInfo{}, err
	}
	r, err := m.one(ctx, k, sending{attempted: attemptedRead, lines: readLines(k, path, 0, true), execution: hashTime}, path, false, "file")
	if err != nil {
		return sandboxcore.FileInfo{}, err
	}
	return sandboxcore.FileInfo{SHA256: r.sum, Size: r.number["size"], Mode: fs.FileMode(r.number["mode"]).Perm()}, nil // #nosec G115 -- checked to be an octal number
}

// ReadFile reads a regular file of at most limit bytes, and of no more than mostPaged.
func (m *machine) ReadFile(ctx context.Context, path string, limit int64) ([]byte, fs.FileMode, error) {
	k, err := m.errand(ctx)
	if err != nil {
		return nil, 0, err
	}
	r, err := m.one(ctx, k, sending{attempted: attemptedRead, lines: readLines(k, path, min(limit, mostPaged), false)}, path, false, "file")
	if err != nil {
		return nil, 0, err
	}
	content, size := r.parts["out"], r.number["size"]
	if int64(len(content)) != r.number["here out"] || int64(len(content)) > size || size > mostPaged {
		m.drop(ctx, k, path, "")
		return nil, 0, m.unknown(attemptedRead, "the report of the machine does not fit its sizes.", nil)
	}
	for int64(len(content)) < size {
		n := min(pageBytes, size-int64(len(content)))
		part, err := m.page(ctx, k, "out", int64(len(content)), n, int64(len(content))+n == size)
		if err != nil {
			m.drop(ctx, k, path, "")
			return nil, 0, m.broken(ctx, attemptedRead, err)
		}
		content = append(content, part...)
	}
	if got := sha256.Sum256(content); hex.EncodeToString(got[:]) != r.sum {
		return nil, 0, m.unknown(attemptedRead, "what arrived does not have the digest that was taken on the machine.", nil)
	}
	return content, fs.FileMode(r.number["mode"]).Perm(), nil // #nosec G115 -- checked to be an octal number
}

// WriteFile replaces a file by content, which has at most maxInput bytes.
func (m *machine) WriteFile(ctx context.Context, path string, content []byte, mode fs.FileMode) error {
	k, err := m.errand(ctx)
	if err != nil {
		return err
	}
	if len(content) > maxInput {
		return &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: attemptedWrite, Object: m.object, Said: fmt.Sprintf("the file has %d bytes, and this backend takes at most %d.", len(content), maxInput),
			Next: "Bring large files through S3.", Attribute: []string{"content"},
		}
	}
	sum := sandboxcore.FileDigest(content)
	ahead, rest := uploads(k, base64.StdEncoding.EncodeToString(content))
	if err := m.carryAhead(ctx, k, ahead, attemptedWrite); err != nil {
		return err
	}
	r, err := m.one(ctx, k, sending{attempted: attemptedWrite, lines: writeLines(k, path, rest, sum, len(ahead) > 0, mode)}, path, len(ahead) > 0, "file")
	if err != nil {
		return err
	}
	if r.sum != sum {
		return m.unknown(attemptedWrite, "it does not have the digest of what was sent. Something else may have written it.", nil)
	}
	return nil
}

// RemoveFile removes a file; absent is success.
func (m *machine) RemoveFile(ctx context.Context, path string) error {
	k, err := m.errand(ctx)
	if err != nil {
		return err
	}
	_, err = m.one(ctx, k, sending{attempted: attemptedRemove, lines: removeLines(k, path)}, path, false, "removed")
	return err
}
