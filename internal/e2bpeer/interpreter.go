//go:build linux

package e2bpeer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"
)

// The code interpreter of E2B's template of that name: a web server on port 49999 in front of one kernel for each
// context. Facts are of its server and of the Jupyter messages that it passes on. Here a kernel is an interpreter that
// keeps its variables, started inside the sandbox as root, as in the template.

const (
	portInterpreter     = 49999
	interpreterTemplate = "code-interpreter-v1"
	// keepAliveLine is how often a silent execution gives a sign of life.
	keepAliveLine = 5 * time.Second
)

// Sources of the two kernels. Code comes in as a line of JSON on descriptor 3 (bash: the name of a file), what happened
// goes out on descriptor 4, and the mark on both outputs says that everything was written.
const (
	pythonKernel = `
import ast, json, os, sys, traceback
mark = sys.argv[1].encode()
for fd in (3, 4):
    os.set_inheritable(fd, False)
commands, events = os.fdopen(3), os.fdopen(4, "w")
space = {"__name__": "__main__", "__builtins__": __builtins__}
def tell(**event):
    events.write(json.dumps(event) + "\n")
    events.flush()
for line in commands:
    try:
        tree = ast.parse(json.loads(line), "<cell>")
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        exec(compile(tree, "<cell>", "exec"), space)
        if last is not None:
            value = eval(compile(last, "<cell>", "eval"), space)
            if value is not None:
                tell(type="result", is_main_result=True, text=repr(value))
    except SystemExit as e:
        text = "An exception has occurred, use %tb to see the full traceback.\n\nSystemExit: " + str(e)
        tell(type="error", name="SystemExit", value=str(e), traceback=text)
    except BaseException as e:
        tell(type="error", name=type(e).__name__, value=str(e), traceback=traceback.format_exc())
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(1, mark)
    os.write(2, mark)
    tell(type="end")
`
	bashKernel = `
while IFS= read -r __file <&3; do
	eval "$(cat -- "$__file")"
	__status=$?
	printf '%s' "$1"
	printf '%s' "$1" >&2
	if [ "$__status" != 0 ]; then printf '{"type":"error","name":"","value":"%s","traceback":""}\n' "$__status" >&4; fi
	printf '{"type":"end"}\n' >&4
done
`
)

// kernels are the contexts of one sandbox.
type kernels struct {
	mu       sync.Mutex
	byID     map[string]*kernel
	defaults map[string]string
}

// kernel is one context. What it runs, it runs one after the other.
type kernel struct {
	b                 *box
	id, language, cwd string
	busy              chan struct{} // holds one token
	count             int
	globals           bool // the sandbox's environment has been set

	mu   sync.Mutex
	proc *interpreter
}

// interpreter is the process of a kernel.
type interpreter struct {
	cmd    *exec.Cmd
	mark   []byte
	code   *os.File
	events chan map[string]any
	ended  chan struct{}
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// interpreterHandler is the web server.
func (b *box) interpreterHandler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, "OK") })
	m.HandleFunc("POST /execute", b.execute)
	m.HandleFunc("GET /contexts", func(w http.ResponseWriter, _ *http.Request) {
		b.kernels.mu.Lock()
		defer b.kernels.mu.Unlock()
		list := []map[string]any{}
		for _, id := range slices.Sorted(maps.Keys(b.kernels.byID)) {
			list = append(list, b.kernels.byID[id].describe())
		}
		writeJSON(w, http.StatusOK, list)
	})
	m.HandleFunc("POST /contexts", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Language, CWD string }
		if !decode(w, r, &in) {
			return
		}
		k, err := b.newKernel(languageOf(in.Language), in.CWD)
		if err != nil {
			plain(w, http.StatusInternalServerError, err.Error())
			return
		}
		writeJSON(w, http.StatusOK, k.describe())
	})
	one := func(f func(http.ResponseWriter, *kernel)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			b.kernels.mu.Lock()
			k := b.kernels.byID[r.PathValue("id")]
			b.kernels.mu.Unlock()
			if k == nil {
				plain(w, http.StatusNotFound, "Context "+r.PathValue("id")+" not found")
				return
			}
			f(w, k)
			writeJSON(w, http.StatusOK, nil)
		}
	}
	m.HandleFunc("POST /contexts/{id}/restart", one(func(_ http.ResponseWriter, k *kernel) { k.stop() }))
	m.HandleFunc("DELETE /contexts/{id}", one(func(_ http.ResponseWriter, k *kernel) {
		b.kernels.mu.Lock()
		delete(b.kernels.byID, k.id)
		b.kernels.mu.Unlock()
		k.stop()
	}))
	return m
}

func languageOf(name string) string {
	switch name = strings.ToLower(strings.TrimSpace(name)); name {
	case "":
		return "python"
	case "js":
		return "javascript"
	case "ts":
		return "typescript"
	}
	return name
}

func (k *kernel) describe() map[string]any {
	return map[string]any{"id": k.id, "language": k.language, "cwd": k.cwd}
}

func (b *box) newKernel(language, cwd string) (*kernel, error) {
	if language != "python" && language != "bash" {
		return nil, fmt.Errorf(`Failed to create context: {"message": "Kernel does not exist: %s"}`, language) //nolint:staticcheck // the server's own words
	}
	if cwd == "" {
		cwd = "/home/user"
	}
	k := &kernel{b: b, id: newToken(), language: language, cwd: cwd, busy: make(chan struct{}, 1)}
	b.kernels.mu.Lock()
	defer b.kernels.mu.Unlock()
	if b.kernels.byID == nil {
		b.kernels.byID, b.kernels.defaults = map[string]*kernel{}, map[string]string{}
	}
	b.kernels.byID[k.id] = k
	return k, nil
}

// context finds the kernel that a request means; without one it is the default of the language, made when it is first used.
func (b *box) context(id, language string) (*kernel, error) {
	language = languageOf(language)
	b.kernels.mu.Lock()
	if id == "" {
		id = b.kernels.defaults[language]
	}
	k := b.kernels.byID[id]
	b.kernels.mu.Unlock()
	if k != nil || id != "" {
		return k, nil
	}
	k, err := b.newKernel(language, "")
	if err != nil {
		return nil, err
	}
	b.kernels.mu.Lock()
	defer b.kernels.mu.Unlock()
	b.kernels.defaults[language] = k.id
	return k, nil
}

// start gives the process of a kernel, started if there is none.
func (k *kernel) start() (*interpreter, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.proc != nil {
		select {
		case <-k.proc.ended:
		default:
			return k.proc, nil
		}
	}
	b := k.b
	who, err := b.user("root")
	if err != nil {
		return nil, err
	}
	p := &interpreter{mark: []byte("<" + newToken() + ">"), events: make(chan map[string]any), ended: make(chan struct{})}
	if k.language == "bash" {
		p.cmd = exec.CommandContext(b.life, "/bin/bash", "-c", bashKernel, "bash", string(p.mark))
	} else {
		p.cmd = exec.CommandContext(b.life, "/usr/bin/env", "python3", "-c", pythonKernel, string(p.mark))
	}
	p.cmd.Dir = b.resolve(k.cwd, who)
	p.cmd.Env = []string{"PATH=" + defaultPath, "HOME=" + who.home, "E2B_SANDBOX=true", "E2B_SANDBOX_ID=" + b.id, "PYTHONUNBUFFERED=1"}
	var ends []*os.File
	defer func() {
		for _, f := range ends {
			_ = f.Close()
		}
	}()
	pipe := func() (r, w *os.File) {
		if err == nil {
			r, w, err = os.Pipe()
		}
		return r, w
	}
	codeEnd, code := pipe()
	events, eventsEnd := pipe()
	stdout, stdoutEnd := pipe()
	stderr, stderrEnd := pipe()
	if err != nil {
		return nil, err
	}
	ends = []*os.File{codeEnd, eventsEnd, stdoutEnd, stderrEnd}
	p.code = code
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.ExtraFiles = stdoutEnd, stderrEnd, []*os.File{codeEnd, eventsEnd}
	b.procs.mu.Lock()
	defer b.procs.mu.Unlock()
	err = errors.New("the sandbox is over")
	if !b.procs.over {
		err = b.inside(p.cmd.Start)
	}
	if err != nil {
		_, _, _, _ = code.Close(), events.Close(), stdout.Close(), stderr.Close()
		return nil, err
	}
	k.proc, k.globals = p, false
	b.procs.work.Go(func() { k.watch(p, events, stdout, stderr) })
	return p, nil
}

// watch passes on what a kernel tells and writes, until it is dead.
func (k *kernel) watch(p *interpreter, events, stdout, stderr *os.File) {
	files := []*os.File{events, stdout, stderr, p.code}
	stop := context.AfterFunc(k.b.life, func() {
		for _, f := range files {
			_ = f.Close()
		}
	})
	defer stop()
	dead := make(chan struct{})
	send := func(ev map[string]any) {
		select {
		case p.events <- ev:
		case <-dead:
		}
	}
	var readers sync.WaitGroup
	readers.Go(func() {
		lines := bufio.NewReader(events)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			var ev map[string]any
			if json.Unmarshal(line, &ev) == nil {
				send(ev)
			}
		}
	})
	for name, f := range map[string]*os.File{"stdout": stdout, "stderr": stderr} {
		readers.Go(func() { p.output(name, f, send) })
	}
	_ = p.cmd.Wait()
	close(p.ended)
	close(dead)
	for _, f := range files { // a child may hold the other ends
		_ = f.Close()
	}
	readers.Wait()
}

// output turns one stream into events, and its mark into one of its own.
func (p *interpreter) output(name string, f io.Reader, send func(map[string]any)) {
	var held []byte
	buf := make([]byte, 32<<10)
	text := func(n int) {
		if n > 0 {
			send(map[string]any{"type": name, "text": string(held[:n]), "timestamp": "2026-01-01T00:00:00Z"})
			held = slices.Clone(held[n:])
		}
	}
	for {
		n, err := f.Read(buf)
		held = append(held, buf[:n]...)
		for {
			before, _, found := bytes.Cut(held, p.mark)
			if !found {
				break
			}
			text(len(before))
			held = held[len(p.mark):]
			send(map[string]any{"type": "mark"})
		}
		keep := 0
		for i := min(len(p.mark)-1, len(held)); i > 0; i-- { // the start of a mark
			if bytes.HasSuffix(held, p.mark[:i]) {
				keep = i
				break
			}
		}
		for i := 1; keep == 0 && i < utf8.UTFMax && i <= len(held); i++ { // half a character
			if c := held[len(held)-i]; utf8.RuneStart(c) {
				if !utf8.FullRune(held[len(held)-i:]) {
					keep = i
				}
				break
			}
		}
		text(len(held) - keep)
		if err != nil {
			return
		}
	}
}

// stop kills the process of a kernel, and with it its variables. The next execution starts another.
func (k *kernel) stop() {
	k.mu.Lock()
	p := k.proc
	k.mu.Unlock()
	if p != nil {
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// setEnv is how the server sets variables: as text of the language, in which a quote is not escaped.
func setEnv(language string, envs map[string]string) string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(envs)) {
		if language == "bash" {
			fmt.Fprintf(&out, "export %s='%s'\n", name, envs[name])
		} else {
			fmt.Fprintf(&out, "import os; os.environ['%s'] = '%s'\n", name, envs[name])
		}
	}
	return out.String()
}

// execute runs one piece of code and streams a line of JSON for each thing that happens. There is no exit status.
func (b *box) execute(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Code      string
		ContextID string `json:"context_id"`
		Language  string
		EnvVars   map[string]string `json:"env_vars"`
	}
	if !decode(w, r, &in) {
		return
	}
	if in.ContextID != "" && in.Language != "" {
		plain(w, http.StatusBadRequest, "Only one of context_id or language can be provided")
		return
	}
	k, err := b.context(in.ContextID, in.Language)
	if err != nil {
		plain(w, http.StatusInternalServerError, err.Error())
		return
	}
	if k == nil {
		plain(w, http.StatusNotFound, "Context "+in.ContextID+" not found")
		return
	}
	line := func(v any) {
		text, _ := json.Marshal(v)
		_, _ = w.Write(append(text, '\n'))
		_ = http.NewResponseController(w).Flush()
	}
	w.WriteHeader(http.StatusOK)
	ping := time.NewTicker(keepAliveLine)
	defer ping.Stop()
	over := b.runContext()
	for waiting := true; waiting; {
		select {
		case k.busy <- struct{}{}:
			waiting = false
		case <-r.Context().Done():
			return
		case <-over.Done():
			panic(http.ErrAbortHandler)
		}
	}
	defer func() { <-k.busy }()
	p, err := k.start()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	prefix := ""
	if !k.globals {
		// The server asks the daemon, with the token of the request; an answer that is none becomes variables, too.
		k.globals = true
		envs := b.envs
		if b.token != "" && r.Header.Get("X-Access-Token") != b.token {
			envs = map[string]string{"code": "401", "message": "unauthorized access"}
		}
		prefix = setEnv(k.language, envs)
	}
	if in.EnvVars != nil {
		prefix += setEnv(k.language, in.EnvVars)
	}
	k.count++
	line(map[string]any{"type": "number_of_executions", "execution_count": k.count})
	if err := b.hand(k, p, prefix+in.Code); err != nil {
		panic(http.ErrAbortHandler)
	}
	ended, marks := false, 0
	gone := r.Context().Done()
	for !ended || marks < 2 {
		select {
		case ev := <-p.events:
			switch ev["type"] {
			case "end":
				ended = true
			case "mark":
				marks++
			default:
				line(ev)
			}
		case <-ping.C:
			line(map[string]any{"type": "keepalive"})
		case <-p.ended:
			line(map[string]any{"type": "error", "name": "ContextRestarting", "value": "Context was restarted", "traceback": ""})
			line(map[string]any{"type": "end_of_execution"})
			return
		case <-gone:
			// The client is gone: the kernel is interrupted, and the next execution waits until it has noticed.
			gone = nil
			if !b.p.opt.DeafInterpreter {
				_ = p.cmd.Process.Signal(syscall.SIGINT)
			}
		case <-over.Done():
			panic(http.ErrAbortHandler)
		}
	}
	line(map[string]any{"type": "end_of_execution"})
}

// hand gives a kernel its code.
func (b *box) hand(k *kernel, p *interpreter, code string) error {
	if k.language != "bash" {
		text, err := json.Marshal(code)
		if err == nil {
			_, err = p.code.Write(append(text, '\n'))
		}
		return err
	}
	name := "cell-" + newToken()
	inside := "/tmp/" + name
	if !b.p.root {
		inside = filepath.Join(b.p.boxDir(b.id), "tmp", name)
	}
	if err := os.WriteFile(filepath.Join(b.p.boxDir(b.id), "tmp", name), []byte(code), 0o600); err != nil {
		return err
	}
	_, err := io.WriteString(p.code, inside+"\n")
	return err
}
