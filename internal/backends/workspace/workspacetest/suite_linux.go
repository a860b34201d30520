package workspacetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Suite runs every test that both backends pass.
func Suite(t *testing.T, factory sandboxcore.Factory) {
	tests := []struct {
		name string
		run  func(*testing.T, *Kit)
	}{
		{"life cycle", lifeCycle},
		{"import sees the create-time arguments", importSees},
		{"marker is private and holds no secret", markerIsPrivate},
		{"labels and recorded changes are kept", updates},
		{"only ids are taken for ids", onlyIDs},
		{"what has no marker of ours is refused", notOurs},
		{"half-made sandboxes do not show and are swept", halfMade},
		{"destroy removes what is hard to remove", hardToRemove},
		{"destroy never follows links out", destroyLinks},
		{"output is split and whole", output},
		{"large code and stdin", largeInput},
		{"exit status and signals are data", exitStatus},
		{"environment is minimal and laid over", environment},
		{"files", files},
		{"files outside of the workspace are refused", fileEscapes},
		{"working directory", workingDirectory},
		{"missing program is no exit status", missingProgram},
		{"runs are parallel", parallel},
		{"background is ended and does not hold up the result", background},
		{"cancellation ends the run", cancellation},
		{"destroy ends a run of this process", destroyEndsOwnRun},
		{"destroy ends a run of another process", destroyEndsForeignRun},
		{"a provider that is killed leaves no run", providerKilled},
		{"what is false is refused", falseFlags},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.run(t, New(t, factory)) })
	}
}

func lifeCycle(t *testing.T, k *Kit) {
	ctx := t.Context()
	first, err := k.Endpoint.Identity(ctx)
	if err != nil || strings.Contains(first, "machine-/") {
		t.Fatalf("identity %q: %v", first, err)
	}
	sb := k.Sandbox(t, sandboxcore.Policy{})
	info := sb.Info()
	if info.Status != sandboxcore.StatusRunning || info.Marks.Name != "test" || info.CreatedAt.IsZero() || info.Endpoint != first {
		t.Errorf("info %+v", info)
	}
	Shell(sb, "echo kept > file").Want(t, "")
	again, err := Open(t, k.Factory, k.DataDir).Endpoint.Find(ctx, info.NativeID, true)
	if err != nil {
		t.Fatal(err)
	}
	Shell(again, "cat file").Want(t, "kept")
	list, err := k.Endpoint.List(ctx)
	if err != nil || len(list) != 1 || list[0].NativeID != info.NativeID {
		t.Errorf("list %v: %v", list, err)
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
	MustExist(t, k.Dir(sb), false)
	if err := sb.Destroy(ctx); err != nil {
		t.Errorf("second destroy: %v", err)
	}
	_, err = k.Endpoint.Find(ctx, info.NativeID, true)
	WantCode(t, err, sandboxcore.CodeGone)
	WantCode(t, Shell(again, "true").Err, sandboxcore.CodeGone)
	if second, err := k.Endpoint.Identity(ctx); err != nil || second != first {
		t.Errorf("identity changed from %q to %q: %v", first, second, err)
	}
	elsewhere, err := Open(t, k.Factory, k.DataDir+"2").Endpoint.Identity(ctx)
	if err != nil || elsewhere == first {
		t.Errorf("another data directory has the same identity %q: %v", elsewhere, err)
	}
}

func importSees(t *testing.T, k *Kit) {
	version := int64(3)
	req := Request(t, k.Profile(sandboxcore.Policy{}))
	principal := sandboxcore.DefaultPrincipal()
	req.Marks.Args = sandboxcore.CreateArgs{
		Env: map[string]string{"PLAIN": "ü\n"}, SecretEnv: map[string]string{"TOKEN": "name"}, EnvWOVersion: &version,
		Labels: map[string]string{"team": "a"}, Principal: &principal,
	}
	sb, err := k.Endpoint.Create(t.Context(), req, func(sandboxcore.SandboxInfo) {})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Destroy(context.Background()) //nolint:errcheck,usetesting // seen by the check of what is left
	Remember(sb.Info().NativeID)
	again, err := k.Endpoint.Find(t.Context(), sb.Info().NativeID, false)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprintf("%+v", again.Info().Marks.Args), fmt.Sprintf("%+v", req.Marks.Args); !strings.Contains(got, "PLAIN:ü") || len(got) != len(want) {
		t.Errorf("got %s, want %s", got, want)
	}
	if m := again.Info().Marks; m.Spec != req.Marks.Spec || m.Request != req.Marks.Request || !m.Created.Equal(req.Marks.Created) {
		t.Errorf("marks %+v", m)
	}
}

func markerIsPrivate(t *testing.T, k *Kit) {
	secret := "canary-" + Token()
	sb := k.Create(t, k.Profile(sandboxcore.Policy{}), map[string]string{"SECRET": secret})
	done := make(chan Outcome, 1)
	go func() {
		done <- Run(t.Context(), sb, sandboxcore.RunRequest{
			Kind: sandboxcore.RunScript, Text: []byte("echo $SECRET-$OWN; touch started; while [ ! -e go ]; do sleep 0.02; done; cat /proc/*/cmdline"),
			Env: map[string]string{"OWN": "own-" + secret}, Timeout: 20 * time.Second,
		})
	}()
	// The command lines of everything that belongs to the run, seen from outside.
	Eventually(t, "the run started", func() bool { _, err := os.Stat(filepath.Join(k.Dir(sb), "workspace", "started")); return err == nil })
	if pids := Processes(secret); len(pids) > 0 {
		t.Errorf("the secret is in the command line of %v", pids)
	}
	if err := os.WriteFile(filepath.Join(k.Dir(sb), "workspace", "go"), nil, 0o644); err != nil {
		t.Error(err)
	}
	o := <-done
	if !strings.HasPrefix(o.Stdout, secret+"-own-"+secret+"\n") || strings.Count(o.Stdout, secret) != 2 {
		t.Errorf("stdout %q, error %v", o.Stdout, o.Err)
	}
	err := filepath.WalkDir(k.DataDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		name := filepath.Base(path)
		if bytes.Contains(text, []byte(secret)) && name != "env.json" {
			t.Errorf("the secret is in %s", path)
		}
		if (name == "env.json" || name == "marker.json") && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if pids := Processes(secret); len(pids) > 0 {
		t.Errorf("the secret is in the command line of %v", pids)
	}
}

func updates(t *testing.T, k *Kit) {
	sb := k.Sandbox(t, sandboxcore.Policy{})
	marks := sb.Info().Marks
	marks.Name, marks.Args.Labels = "other", map[string]string{"a": "b"}
	if err := sb.Update(t.Context(), k.Profile(sandboxcore.Policy{}), marks); err != nil {
		t.Fatal(err)
	}
	again, err := k.Endpoint.Find(t.Context(), sb.Info().NativeID, true)
	if err != nil {
		t.Fatal(err)
	}
	if m := again.Info().Marks; m.Name != "other" || !maps.Equal(m.Args.Labels, marks.Args.Labels) || m.Spec != marks.Spec {
		t.Errorf("marks %+v", m)
	}
	Shell(again, "echo ok").Want(t, "ok")
}

func onlyIDs(t *testing.T, k *Kit) {
	for _, id := range []string{"", ".", "..", "../x", "a/b", "/etc", "0123456789abcdef0123456", "0123456789ABCDEF01234567", "0123456789abcdef0123456\x00", ".new-0123456789abcdef01234567"} {
		_, err := k.Endpoint.Find(t.Context(), id, true)
		WantCode(t, err, sandboxcore.CodeValue)
	}
	_, err := k.Endpoint.Find(t.Context(), "0123456789abcdef01234567", true)
	WantCode(t, err, sandboxcore.CodeGone)
}

func notOurs(t *testing.T, k *Kit) {
	ctx := t.Context()
	sb := k.Sandbox(t, sandboxcore.Policy{})
	marker := filepath.Join(k.Dir(sb), "marker.json")
	whole, err := os.ReadFile(marker)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string) {
		t.Helper()
		_, err := k.Endpoint.Find(ctx, sb.Info().NativeID, true)
		if !sandboxcore.IsCode(err, sandboxcore.CodeNotOurs) {
			t.Errorf("%s: find gave %v", what, err)
		}
		if err := sb.Destroy(ctx); !sandboxcore.IsCode(err, sandboxcore.CodeNotOurs) {
			t.Errorf("%s: destroy gave %v", what, err)
		}
		if list, err := k.Endpoint.List(ctx); err != nil || len(list) != 0 {
			t.Errorf("%s: list gave %v %v", what, list, err)
		}
		MustExist(t, filepath.Join(k.Dir(sb), "workspace"), true)
	}
	for what, text := range map[string]string{
		"not JSON":        "x",
		"empty":           "",
		"no marks":        "{}",
		"newer":           strings.Replace(string(whole), `"version":1`, `"version":2`, 1),
		"another id":      strings.Replace(string(whole), sb.Info().NativeID, "0123456789abcdef01234567", 1),
		"another backend": strings.Replace(string(whole), `"backend":"`, `"backend":"x`, 1),
		"another spec":    strings.Replace(string(whole), `\"v\":1`, `\"v\": 1`, 1),
		"not managed":     strings.Replace(string(whole), `"agentkernel.io/managed":"true"`, `"agentkernel.io/managed":"false"`, 1),
	} {
		if text == string(whole) {
			t.Fatalf("%s: the marker was not changed", what)
		}
		if err := os.WriteFile(marker, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		check(what)
	}
	if err := os.Remove(marker); err != nil {
		t.Fatal(err)
	}
	check("no marker")
	if err := os.WriteFile(marker, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	// A link of the right name to a sandbox is not a sandbox.
	link := filepath.Join(filepath.Dir(k.Dir(sb)), "0123456789abcdef01234567")
	if err := os.Symlink(k.Dir(sb), link); err != nil {
		t.Fatal(err)
	}
	_, err = k.Endpoint.Find(ctx, filepath.Base(link), true)
	WantCode(t, err, sandboxcore.CodeNotOurs)
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	// Nor is anything in a directory that others may write to.
	store := filepath.Dir(k.Dir(sb))
	before, err := os.Stat(store)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(store, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err = k.Endpoint.Find(ctx, sb.Info().NativeID, true)
	WantCode(t, err, sandboxcore.CodeUnreachable)
	if err := os.Chmod(store, before.Mode().Perm()); err != nil {
		t.Fatal(err)
	}
}

func halfMade(t *testing.T, k *Kit) {
	ctx := t.Context()
	k.Sandbox(t, sandboxcore.Policy{})
	store := filepath.Join(k.DataDir, string(k.Factory.Type))
	var made []string
	for _, name := range []string{".new-0123456789abcdef01234567", ".gone-0123456789abcdef01234567"} {
		dir := filepath.Join(store, name)
		if err := os.MkdirAll(filepath.Join(dir, "workspace", "x"), 0o700); err != nil {
			t.Fatal(err)
		}
		made = append(made, dir)
	}
	if list, err := k.Endpoint.List(ctx); err != nil || len(list) != 1 {
		t.Errorf("list %v: %v", list, err)
	}
	k.Sandbox(t, sandboxcore.Policy{})
	for _, dir := range made {
		MustExist(t, dir, false)
	}
}

func hardToRemove(t *testing.T, k *Kit) {
	sb := k.Sandbox(t, sandboxcore.Policy{})
	o := Python(sb, `
import os
os.makedirs("closed/inside/deeper"); open("closed/inside/f", "w").close()
os.chmod("closed/inside/deeper", 0); os.chmod("closed/inside", 0); os.chmod("closed", 0)
os.mkdir("ro"); open("ro/f", "w").close(); os.chmod("ro", 0o555)
os.mkfifo("fifo")
open("-rf", "w").close(); open(b"\xff\xfe\n", "w").close()
base = os.getcwd()
for i in range(1500):
    os.mkdir("d" * 100); os.chdir("d" * 100)
os.chdir(base)
os.mkdir("many")
for i in range(3000):
    open("many/%d" % i, "w").close()
print("made")
`)
	o.Want(t, "made")
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	MustExist(t, k.Dir(sb), false)
}

func destroyLinks(t *testing.T, k *Kit) {
	outside := filepath.Join(filepath.Dir(k.DataDir), "outside")
	if err := os.MkdirAll(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "precious"), []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	sb := k.Sandbox(t, sandboxcore.Policy{})
	Shell(sb, "mkdir -p a/b c && ln -s "+outside+" a/b/link && ln -s "+outside+" c/l && ln -s "+outside+" top && chmod 0 a/b && echo ok").Want(t, "ok")
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	MustExist(t, filepath.Join(outside, "precious"), true)
}

func output(t *testing.T, k *Kit) {
	sb := k.Sandbox(t, sandboxcore.Policy{})
	o := Python(sb, "import sys; print('out'); print('err', file=sys.stderr)")
	o.Want(t, "out")
	if o.Stderr != "err\n" {
		t.Errorf("stderr %q", o.Stderr)
	}
	o = Python(sb, "import sys; sys.stdout.buffer.write(bytes(range(256)) * 40000)")
	want := bytes.Repeat(func() []byte {
		b := make([]byte, 256)
		for i := range b {
			b[i] = byte(i)
		}
		return b
	}(), 40000)
	if o.Err != nil || sha256.Sum256([]byte(o.Stdout)) != sha256.Sum256(want) {
		t.Errorf("10 MB of every byte: got %d bytes, %v", len(o.Stdout), o.Err)
	}
	// Output arrives while the run goes on.
	first := make(chan struct{})
	var once sync.Once
	w := writerFunc(func(p []byte) (int, error) { once.Do(func() { close(first) }); return len(p), nil })
	done := make(chan error, 1)
	go func() {
		_, err := sb.Run(t.Context(), sandboxcore.RunRequest{
			Kind: sandboxcore.RunScript, Text: []byte("echo first; while [ ! -e go ]; do sleep 0.02; done"), Timeout: time.Minute,
		}, w, w)
		done <- err
	}()
	select {
	case <-first:
	case err := <-done:
		t.Fatalf("ended early: %v", err)
	case <-time.After(20 * time.Second):
		t.Fatal("no output while the run goes on")
	}
	if err := sb.WriteFile(t.Context(), "go", nil, 0o644); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func largeInput(t *testing.T, k *Kit) {
	sb := k.Sandbox(t, sandboxcore.Policy{})
	Python(sb, "x = '"+strings.Repeat("a", 1<<20)+"'\nprint(len(x))").Want(t, "1048576")
	Run(t.Context(), sb, sandboxcore.RunRequest{
		Kind: sandboxcore.RunCode, Language: "bash", Text: []byte("# " + strings.Repeat("b", 1<<20) + "\necho $0 | grep -c . && [[ a == a ]] && echo bash"),
	}).Want(t, "1\nbash")
	Run(t.Context(), sb, sandboxcore.RunRequest{
		Kind: sandboxcore.RunCommand, Argv: []string{"sha256sum"}, Stdin: bytes.Repeat([]byte("stdin"), 200000),
	}).Want(t, fmt.Sprintf("%x  -", sha256.Sum256(bytes.Repeat([]byte("stdin"), 200000))))
	Run(t.Context(), sb, sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"cat"}}).Want(t, "")
}

func exitStatus(t *testing.T, k *Kit) {
	sb := k.Sandbox(t, sandboxcore.Policy{})
	if o := Python(sb, "raise SystemExit(3)"); o.Err != nil || o.ExitCode != 3 || o.Signal != 0 {
		t.Errorf("%+v", o)
	}
	if o := Shell(sb, "kill -SEGV $$"); o.Err != nil || o.ExitCode != 139 || o.Signal != 11 {
		t.Errorf("%+v", o)
	}
}

func environment(t *testing.T, k *Kit) {
	t.Setenv("AGENTKERNEL_CANARY", "of the provider")
	sb := k.Create(t, k.Profile(sandboxcore.Policy{}), map[string]string{"A": "sandbox", "B": "sandbox", "HTTP": "x=y\nz"})
	o := Run(t.Context(), sb, sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"env", "-0"}, Env: map[string]string{"B": "run", "C": "run"}})
	got := map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(o.Stdout, "\x00"), "\x00") {
		k, v, _ := strings.Cut(entry, "=")
		got[k] = v
	}
	home := strings.TrimSpace(Shell(sb, "pwd").Stdout)
	for k, v := range map[string]string{"A": "sandbox", "B": "run", "C": "run", "HTTP": "x=y\nz", "HOME": home} {
		if got[k] != v {
			t.Errorf("%s is %q, want %q", k, got[k], v)
		}
		delete(got, k)
	}
	for _, k := range []string{"PATH", "LANG", "TMPDIR", "USER", "LOGNAME"} {
		delete(got, k)
	}
	if o.Err != nil || len(got) > 0 {
		t.Errorf("the run also has %v, error %v", got, o.Err)
	}
}

func missingProgram(t *testing.T, k *Kit) {
	sb := k.Sandbox(t, sandboxcore.Policy{})
	o := Run(t.Context(), sb, sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"no-such-program"}})
	WantCode(t, o.Err, sandboxcore.CodeOperation)
	o = Run(t.Context(), sb, sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: "cobol", Text: []byte("x")})
	WantCode(t, o.Err, sandboxcore.CodeLanguage)
}

func parallel(t *testing.T, k *Kit) {
	sb := k.Sandbox(t, sandboxcore.Policy{})
	const n = 5
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			// Every run waits for all others: they can only end if they overlap.
			Shell(sb, fmt.Sprintf("touch here%d; for i in $(seq 1 400); do [ $(ls here* | wc -l) = %d ] && echo all && exit; sleep 0.05; done", i, n)).Want(t, "all")
		})
	}
	wg.Wait()
}

func background(t *testing.T, k *Kit) {
	sb := k.Sandbox(t, sandboxcore.Policy{})
	n := Number()
	// The best of a few: what else the machine does must not decide.
	best := time.Hour
	for range 5 {
		started := time.Now()
		Shell(sb, "sleep "+n+" & setsid sleep "+n+" & echo ok").Want(t, "ok")
		if best = min(best, time.Since(started)); best < time.Second {
			break
		}
	}
	if best > time.Second {
		t.Errorf("it took %v", best)
	}
	if pids := Processes(n); len(pids) > 0 {
		t.Errorf("left: %v", pids)
	}
}

func cancellation(t *testing.T, k *Kit) {
	sb := k.Sandbox(t, sandboxcore.Policy{})
	n := Number()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan Outcome, 1)
	go func() {
		done <- Run(ctx, sb, sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("setsid sleep " + n + " & sleep " + n)})
	}()
	Eventually(t, "the run started", func() bool { return len(Processes(n)) >= 2 })
	cancel()
	o := <-done
	WantCode(t, o.Err, sandboxcore.CodeUnknownOutcome)
	if pids := Processes(n); len(pids) > 0 {
		t.Errorf("left: %v", pids)
	}
	o = Run(ctx, sb, sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("touch ran")})
	if o.Err == nil {
		t.Error("a cancelled context ran something")
	}
	Shell(sb, "ls").Want(t, "")
}

func destroyEndsOwnRun(t *testing.T, k *Kit) {
	sb := k.Sandbox(t, sandboxcore.Policy{})
	n := Number()
	done := make(chan Outcome, 1)
	go func() { done <- Shell(sb, "setsid sleep "+n+" & sleep "+n) }()
	Eventually(t, "the run started", func() bool { return len(Processes(n)) >= 2 })
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pids := Processes(n); len(pids) > 0 {
		t.Errorf("left: %v", pids)
	}
	MustExist(t, k.Dir(sb), false)
	WantCode(t, (<-done).Err, sandboxcore.CodeGone)
}

// provider starts another process that runs text in the sandbox.
func (k *Kit) provider(t *testing.T, sb sandboxcore.ManagedSandbox, text string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^$")
	cmd.Env = append(os.Environ(), envProvider+"="+k.DataDir+"\n"+sb.Info().NativeID+"\n"+text)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func destroyEndsForeignRun(t *testing.T, k *Kit) {
	sb := k.Sandbox(t, sandboxcore.Policy{})
	n := Number()
	other := k.provider(t, sb, "setsid sleep "+n+" & sleep "+n)
	Eventually(t, "the run started", func() bool { return len(Processes(n)) >= 2 })
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pids := Processes(n); len(pids) > 0 {
		t.Errorf("left: %v", pids)
	}
	if err := other.Wait(); err == nil {
		t.Error("the other process took its run for a success")
	}
}

func providerKilled(t *testing.T, k *Kit) {
	sb := k.Sandbox(t, sandboxcore.Policy{})
	n := Number()
	other := k.provider(t, sb, "(setsid env -i sleep "+n+" &) ; sleep "+n)
	Eventually(t, "the run started", func() bool { return len(Processes(n)) >= 2 })
	if err := other.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait()
	Eventually(t, "every process of the run is gone", func() bool { return len(Processes(n)) == 0 })
	Shell(sb, "echo usable").Want(t, "usable")
}

// falseFlags shows that what is not declared is refused.
func falseFlags(t *testing.T, k *Kit) {
	sb := k.Sandbox(t, sandboxcore.Policy{})
	caps := k.Backend.Capabilities(k.Profile(sandboxcore.Policy{}))
	if caps.Pause || caps.KeepBackground || caps.PackageInstall || caps.AttachesExternal || caps.PrincipalUser || caps.MaxLifetime || caps.Stateful || len(caps.Assertable) > 0 {
		t.Errorf("a flag is true without a test: %+v", caps)
	}
	WantCode(t, sb.Pause(t.Context()), sandboxcore.CodeOperation)
	o := Run(t.Context(), sb, sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("true"), KeepBackground: true})
	WantCode(t, o.Err, sandboxcore.CodeOperation)
	if _, ok := k.Endpoint.(sandboxcore.AttachingEndpoint); ok {
		t.Error("it attaches to what it did not create")
	}
	registry := sandboxcore.NewRegistry(k.Factory)
	for what, op := range map[string]sandboxcore.Operation{
		"packages":        {Name: sandboxcore.OpCreate, Packages: true},
		"pause":           {Name: sandboxcore.OpUpdate, Pause: true},
		"max_lifetime":    {Name: sandboxcore.OpCreate, MaxLifetime: true},
		"keep background": {Name: sandboxcore.OpRun, Kind: sandboxcore.RunScript, KeepBackground: true},
		"language":        {Name: sandboxcore.OpRun, Kind: sandboxcore.RunCode, Language: "node"},
	} {
		if _, err := registry.Decide(k.Profile(sandboxcore.Policy{}), nil, &op); err == nil {
			t.Errorf("%s was let pass", what)
		}
	}
	attached, user := k.Profile(sandboxcore.Policy{}), k.Profile(sandboxcore.Policy{})
	attached.Environment = sandboxcore.EnvironmentAttached
	_, err := registry.Decide(attached, nil, nil)
	WantCode(t, err, sandboxcore.CodeEnvironmentMode)
	user.Identity = sandboxcore.IdentityUser
	_, err = registry.Decide(user, nil, nil)
	WantCode(t, err, sandboxcore.CodeNoUserIdentity)
	variables := Python(sb, "x = 1")
	variables.Want(t, "")
	if o := Python(sb, "print(x)"); o.ExitCode == 0 {
		t.Error("variables persist, and the capability says no")
	}
}
