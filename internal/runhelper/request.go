package runhelper

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// Request describes one run.
type Request struct {
	// Program holds names of the program in order of preference; the next one is tried when the one before
	// was not found. A name without a slash is looked up in the PATH of the run's own environment. At least
	// one, at most 16.
	Program []string
	// Args are the arguments after the program's name.
	Args []string
	// Env holds KEY=VALUE entries. They are laid over the environment of the helper, unless ClearEnv is set;
	// of two entries with one key the last one counts.
	Env      []string
	ClearEnv bool
	// Dir is the working directory; empty means the helper's own.
	Dir string
	// Blob is readable as descriptor 3 by the program, if it is not nil.
	Blob []byte
	// Stdin is the program's standard input; nil means /dev/null. A Read that does not return is left behind
	// when the run ends.
	Stdin io.Reader
	// Timeout ends the run with SIGTERM, and with SIGKILL for everything after Grace. 0 means no limit.
	// Fractions of a millisecond are rounded up.
	Timeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL, for Timeout as well as for a cancellation. 0 means
	// SIGKILL at once.
	Grace time.Duration
	// KeepBackground leaves processes running that the program started and did not wait for. Without it they
	// are killed when the program ends.
	KeepBackground bool
}

const (
	maxStrings    = 16000   // arguments, and environment entries
	maxSetupBytes = 6 << 20 // all strings; the kernel takes no more than that either
)

// pythonBootstrap runs the code behind descriptor 3 as __main__, without the limits of a command line. pread
// leaves the descriptor's offset alone, and the descriptor stays open: the interpreter opens the file name
// again to show source lines in a traceback.
const pythonBootstrap = `exec(compile((lambda o:o.pread(3,o.fstat(3).st_size,0))(__import__("os")),"/proc/self/fd/3","exec",dont_inherit=True))`

// PythonRequest runs Python code of any size, as `python -c` would: __main__, sys.argv ["-c"], sys.path[0] "".
func PythonRequest(code []byte) *Request {
	return &Request{Program: []string{"python3", "python"}, Args: []string{"-c", pythonBootstrap}, Blob: notNil(code)}
}

// ShellRequest runs text of any size with sh.
func ShellRequest(script []byte) *Request {
	return &Request{Program: []string{"sh"}, Args: []string{"/proc/self/fd/3"}, Blob: notNil(script)}
}

// BashRequest runs text of any size with bash.
func BashRequest(script []byte) *Request {
	return &Request{Program: []string{"bash"}, Args: []string{"/proc/self/fd/3"}, Blob: notNil(script)}
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

const (
	paramClearEnv = 1 << iota
	paramKeep
	paramStdin
)

// encode returns all frames before 'G'.
func (r *Request) encode() ([]byte, error) {
	if len(r.Program) == 0 || len(r.Program) > 16 {
		return nil, &RequestError{"Program", fmt.Sprintf("%d names, want 1 to 16", len(r.Program))}
	}
	total := 0
	check := func(field string, i int, s string) error {
		if strings.IndexByte(s, 0) >= 0 {
			return &RequestError{field, fmt.Sprintf("element %d holds a NUL byte", i)}
		}
		if len(s) > maxString {
			return &RequestError{field, fmt.Sprintf("element %d has %d bytes, at most %d are possible", i, len(s), maxString)}
		}
		if total += len(s) + 1; total > maxSetupBytes {
			return &RequestError{field, fmt.Sprintf("arguments and environment exceed %d bytes", maxSetupBytes)}
		}
		return nil
	}
	var b []byte
	for i, p := range r.Program {
		if p == "" {
			return nil, &RequestError{"Program", fmt.Sprintf("element %d is empty", i)}
		}
		if err := check("Program", i, p); err != nil {
			return nil, err
		}
	}
	b = appendFrame(b, 'A', []byte(r.Program[0]))
	for _, p := range r.Program[1:] {
		b = appendFrame(b, 'L', []byte(p))
	}
	if len(r.Args) > maxStrings {
		return nil, &RequestError{"Args", fmt.Sprintf("%d elements, at most %d are possible", len(r.Args), maxStrings)}
	}
	for i, a := range r.Args {
		if err := check("Args", i, a); err != nil {
			return nil, err
		}
		b = appendFrame(b, 'A', []byte(a))
	}
	env := lastOfEach(r.Env)
	if len(env) > maxStrings {
		return nil, &RequestError{"Env", fmt.Sprintf("%d elements, at most %d are possible", len(env), maxStrings)}
	}
	for i, e := range env {
		// The value is not shown: it may be a secret.
		if k, _, ok := strings.Cut(e, "="); !ok || k == "" {
			return nil, &RequestError{"Env", fmt.Sprintf("element %d is not KEY=VALUE", i)}
		}
		if err := check("Env", i, e); err != nil {
			return nil, err
		}
		b = appendFrame(b, 'E', []byte(e))
	}
	if r.Dir != "" {
		if err := check("Dir", 0, r.Dir); err != nil {
			return nil, err
		}
		b = appendFrame(b, 'D', []byte(r.Dir))
	}
	if r.Blob != nil {
		blob := r.Blob
		for first := true; first || len(blob) > 0; first = false {
			n := min(len(blob), maxFrame)
			b = appendFrame(b, 'B', blob[:n])
			blob = blob[n:]
		}
	}
	if r.Timeout < 0 || r.Grace < 0 {
		return nil, &RequestError{"Timeout", "negative time"}
	}
	grace := milliseconds(r.Grace)
	if grace > math.MaxUint32 {
		return nil, &RequestError{"Grace", "too long"}
	}
	var flags uint32
	if r.ClearEnv {
		flags |= paramClearEnv
	}
	if r.KeepBackground {
		flags |= paramKeep
	}
	if r.Stdin != nil {
		flags |= paramStdin
	}
	p := binary.LittleEndian.AppendUint64(nil, milliseconds(r.Timeout))
	p = binary.LittleEndian.AppendUint32(p, uint32(grace))
	p = binary.LittleEndian.AppendUint32(p, flags)
	return appendFrame(b, 'P', p), nil
}

// milliseconds rounds up, so that a tiny timeout does not become "none".
func milliseconds(d time.Duration) uint64 {
	return (uint64(d) + uint64(time.Millisecond) - 1) / uint64(time.Millisecond)
}

func lastOfEach(env []string) []string {
	seen := make(map[string]int, len(env))
	out := make([]string, 0, len(env))
	for _, e := range env {
		k, _, _ := strings.Cut(e, "=")
		if i, ok := seen[k]; ok {
			out[i] = e
			continue
		}
		seen[k] = len(out)
		out = append(out, e)
	}
	return out
}
