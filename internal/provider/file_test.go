package provider_test

import (
	"context"
	"encoding/base64"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

const tFile = "agentkernel_file"

// TestFileInARealSandbox takes a file through its life. In the container the user is not root, and the directories that are
// made for the file are the user's too.
func TestFileInARealSandbox(t *testing.T) {
	t.Run("local_subprocess", func(t *testing.T) {
		testenv.Require(t, testenv.Local)
		fileLife(t, "local_subprocess", config{})
	})
	t.Run("docker", func(t *testing.T) {
		testenv.Require(t, testenv.Docker)
		fileLife(t, "docker", config{"image": testenv.Image("user"), "pull_policy": "never"})
	})
}

func fileLife(t *testing.T, backend string, block config) {
	t.Helper()
	home := stateHome(t)
	s := protocoltest.New(t, provider.New("test", backends.Registry(), provider.WithGetenv(func(name string) string {
		return map[string]string{"XDG_STATE_HOME": home, "PATH": os.Getenv("PATH"), "DOCKER_HOST": os.Getenv("DOCKER_HOST")}[name]
	})))
	noErrors(t, s.Configure(config{}))
	made := s.MustApply(tProfile, protocoltest.State{}, config{"name": "p", "type": backend, backend: block})
	boxConfig := config{"profile": made.Get("spec")}
	box := s.MustApply(tSandbox, protocoltest.State{}, boxConfig)
	defer func() { // and no Cleanup, which has no context any more
		_, d := s.Apply(s.PlanDestroy(box))
		noErrors(t, d)
	}()
	cat := func(name string) string {
		t.Helper()
		run := s.MustApply(tExec, protocoltest.State{}, config{"binding": binding(box), "script": "cat " + name + "; stat -c ' %a' " + name})
		out, _ := run.Get("stdout").(string)
		return out
	}
	outside := func(script string) {
		t.Helper()
		s.MustApply(tExec, protocoltest.State{}, config{"binding": binding(box), "script": script})
	}

	cfg := config{"binding": binding(box), "path": "deep/er/f.txt", "content": "one\n", "mode": "0640"}
	p := s.Plan(tFile, protocoltest.State{}, cfg)
	noErrors(t, p.Diags)
	if p.Get("sha256") != sandboxcore.FileDigest([]byte("one\n")) || p.Get("size") != float64(4) {
		t.Errorf("planned %s", p.JSON())
	}
	file, d := s.Apply(p)
	noErrors(t, d)
	s.MustBeSettled(file, cfg)
	if got := cat("deep/er/f.txt"); got != "one\n 640\n" {
		t.Errorf("the file is %q", got)
	}

	for name, script := range map[string]string{"content": "echo two > deep/er/f.txt", "mode": "chmod 600 deep/er/f.txt", "all of it": "rm deep/er/f.txt"} {
		t.Run("drift of "+name, func(t *testing.T) {
			outside(script)
			read, d := s.Read(file)
			noErrors(t, d)
			p := s.Plan(tFile, read, cfg)
			noErrors(t, p.Diags)
			if p.Action != protocoltest.Update && (p.Action != protocoltest.Create || read.Exists()) {
				t.Errorf("planned %s", p.Action)
			}
			file, d = s.Apply(p)
			noErrors(t, d)
			s.MustBeSettled(file, cfg)
			if got := cat("deep/er/f.txt"); got != "one\n 640\n" {
				t.Errorf("the file is %q", got)
			}
		})
	}
	for name, script := range map[string]string{"a directory": "mkdir g.txt", "a pipe": "mkfifo g.txt", "more than may be": "head -c 70000000 /dev/zero > g.txt"} {
		t.Run(name, func(t *testing.T) {
			other := cfg.With(config{"path": "g.txt"})
			made := s.MustApply(tFile, protocoltest.State{}, other)
			outside("rm g.txt; " + script)
			read, d := s.Read(made)
			noErrors(t, d)
			p := s.Plan(tFile, read, other)
			noErrors(t, p.Diags)
			if p.Action != protocoltest.Update || !d.Warnings().Has("g.txt") {
				t.Errorf("planned %s, %s", p.Action, d)
			}
			_, d = s.Apply(s.PlanDestroy(read))
			noErrors(t, d)
			outside("rm -rf g.txt")
		})
	}
	t.Run("bytes", func(t *testing.T) {
		next := cfg.With(config{"content": nil, "content_base64": base64.StdEncoding.EncodeToString([]byte("\x00\xff")), "mode": nil})
		file = s.MustApply(tFile, file, next)
		s.MustBeSettled(file, next)
		if got := cat("deep/er/f.txt | od -An -tx1 #"); !strings.Contains(got, "00 ff") {
			t.Errorf("the file is %q", got)
		}
	})
	t.Run("source", func(t *testing.T) {
		source := filepath.Join(t.TempDir(), "source")
		write := func(text string) {
			t.Helper()
			if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("from here")
		next := cfg.With(config{"content": nil, "source": source})
		file = s.MustApply(tFile, file, next)
		s.MustBeSettled(file, next)
		if got := cat("deep/er/f.txt"); got != "from here 640\n" {
			t.Errorf("the file is %q", got)
		}
		write("changed")
		p := s.Plan(tFile, file, next)
		if p.Action != protocoltest.Update {
			t.Errorf("a changed source plans %s", p.Action)
		}
		write("changed again")
		_, d := s.Apply(p)
		wantError(t, d, "AK1003", "changed since the plan")
		_ = os.Remove(source)
		wantError(t, s.Plan(tFile, file, next).Diags, "AK1003", "source")
	})
	t.Run("as large as it may be", func(t *testing.T) {
		content := make([]byte, sandboxcore.MaxFileBytes)
		_, _ = rand.NewChaCha8([32]byte{1}).Read(content)
		next := cfg.With(config{"content": nil, "content_base64": base64.StdEncoding.EncodeToString(content), "mode": "0755"})
		file = s.MustApply(tFile, file, next)
		s.MustBeSettled(file, next)
		if got := cat("deep/er/f.txt | sha256sum #"); !strings.HasPrefix(got, sandboxcore.FileDigest(content)) || file.Get("size") != float64(len(content)) {
			t.Errorf("the file is %q, size %v", got, file.Get("size"))
		}
		outside("printf x >> deep/er/f.txt") // more than can be carried is drift like any other
		read, d := s.Read(file)
		noErrors(t, d)
		if p := s.Plan(tFile, read, next); p.Action != protocoltest.Update {
			t.Errorf("planned %s: %s", p.Action, p.Diags)
		}
		file = s.MustApply(tFile, read, cfg)
		s.MustBeSettled(file, cfg)
	})
	t.Run("what runs there may use the directories", func(t *testing.T) {
		outside("test -O deep && test -O deep/er && test -O deep/er/f.txt && touch deep/x deep/er/x && rm deep/x deep/er/x")
	})
	t.Run("a directory in its place", func(t *testing.T) {
		outside("mkdir -p there/f")
		p := s.Plan(tFile, protocoltest.State{}, cfg.With(config{"path": "there/f"}))
		noErrors(t, p.Diags)
		_, d := s.Apply(p)
		wantError(t, d, "there/f")
		outside("test -d there/f && rmdir there/f && test -z \"$(ls -A there)\"")
	})
	t.Run("out of the workspace", func(t *testing.T) {
		if backend == "docker" {
			p := s.Plan(tFile, protocoltest.State{}, cfg.With(config{"path": "/etc/agentkernel-test"}))
			noErrors(t, p.Diags)
			_, d := s.Apply(p)
			wantError(t, d, "/etc/agentkernel-test")
			return
		}
		p := s.Plan(tFile, protocoltest.State{}, cfg.With(config{"path": "../f"}))
		wantError(t, p.Diags, "AK1003", "..")
	})
	t.Run("removed", func(t *testing.T) {
		_, d := s.Apply(s.PlanDestroy(file))
		noErrors(t, d)
		run := s.MustApply(tExec, protocoltest.State{}, config{"binding": binding(box), "script": "ls deep/er"})
		if run.Get("stdout") != "" {
			t.Errorf("left: %v", run.Get("stdout"))
		}
	})
}

func TestFileThatIsNotKept(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	box := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil)})
	cfg := config{"binding": binding(box), "path": "token", "content_wo": secretValue, "content_wo_version": 1}
	file := s.MustApply(tFile, protocoltest.State{}, cfg)
	if strings.Contains(file.JSON(), secretValue) || file.Get("size") != float64(len(secretValue)) {
		t.Errorf("state %s", file.JSON())
	}
	s.MustBeSettled(file, cfg)
	s.MustBeSettled(file, cfg.With(config{"content_wo": "a new value alone"}))
	next := cfg.With(config{"content_wo": "another secret", "content_wo_version": 2})
	file = s.MustApply(tFile, file, next)
	s.MustBeSettled(file, next)

	fake.OnReadFile = func(string, int64) ([]byte, error) { return []byte("tampered with"), nil }
	read, d := s.Read(file)
	noErrors(t, d)
	if p := s.Plan(tFile, read, next); p.Action != protocoltest.Update || p.Get("sha256") != protocoltest.Unknown {
		t.Errorf("drift plans %s", p.Action)
	}
}

func TestFileDoesNotWakeItsSandbox(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	box := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil)})
	cfg := config{"binding": binding(box), "path": "f", "content": "x"}
	file := s.MustApply(tFile, protocoltest.State{}, cfg)
	for _, status := range []sandboxcore.Status{sandboxcore.StatusPaused, sandboxcore.StatusStopped} {
		fake.SetStatus("fake-1", status)
		reads := fake.Count("read")
		s.MustBeSettled(file, cfg)
		if fake.Count("read") != reads || fake.Count("resume") != 0 {
			t.Errorf("%s: the refresh touched the sandbox: %v", status, fake.Calls())
		}
	}
	t.Run("gone with its sandbox", func(t *testing.T) {
		fake.Remove("fake-1")
		read, d := s.Read(file)
		noErrors(t, d)
		if read.Exists() {
			t.Errorf("kept %s", read.JSON())
		}
		_, d = s.Apply(s.PlanDestroy(file))
		noErrors(t, d)
	})
	t.Run("another place says nothing about it", func(t *testing.T) {
		fake.SetID("elsewhere")
		_, d := s.Read(file)
		wantError(t, d, "AK5009", "elsewhere")
	})
}

func TestFileFollowsItsSandbox(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	spec := profile(t, s, nil)
	first := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": spec})
	second := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": spec})
	cfg := config{"binding": binding(first), "path": "f", "content": "x"}
	file := s.MustApply(tFile, protocoltest.State{}, cfg)

	t.Run("a sandbox still to be made", func(t *testing.T) {
		still := s.Plan(tSandbox, protocoltest.State{}, config{"profile": spec})
		p := s.Plan(tFile, file, cfg.With(config{"binding": still.Get("binding")}))
		noErrors(t, p.Diags)
		if p.Action != protocoltest.Update {
			t.Errorf("planned %s", p.Action)
		}
	})
	moved := cfg.With(config{"binding": binding(second)})
	after := s.MustApply(tFile, file, moved)
	s.MustBeSettled(after, moved)
	if fake.Count("write") != 2 || fake.Count("remove") != 1 {
		t.Errorf("calls %v", fake.Calls())
	}
	if p := s.Plan(tFile, after, moved.With(config{"path": "g"})); p.Action != protocoltest.Replace {
		t.Errorf("another path plans %s", p.Action)
	}
}

func TestFileIsCheckedAtPlan(t *testing.T) {
	fake := newFake()
	weak := backendtest.DefaultCaps()
	weak.Files = false
	poor := newFake()
	poor.Caps = func(*sandboxcore.Profile) sandboxcore.Capabilities { return weak }
	s, without := newServer(t, fake, config{}), newServer(t, poor, config{})
	box := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil)})
	cfg := config{"binding": binding(box), "path": "f", "content": "x"}
	for name, c := range map[string]struct {
		change config
		want   []string
	}{
		"no content":        {config{"content": nil}, []string{"content"}},
		"two contents":      {config{"content_base64": "eA=="}, []string{"content"}},
		"no base64":         {config{"content": nil, "content_base64": "?"}, []string{"AK1003", "content_base64"}},
		"a directory":       {config{"path": "f/"}, []string{"AK1003", "path"}},
		"mode":              {config{"mode": "rwx"}, []string{"octal"}},
		"setuid":            {config{"mode": "4755"}, []string{"octal"}},
		"too large":         {config{"content": strings.Repeat("x", sandboxcore.MaxFileBytes+1)}, []string{"AK1003", "content"}},
		"principal":         {config{"principal": config{"mode": "user", "subject": "ann"}}, []string{"AK300"}},
		"content not known": {config{"content": protocoltest.Unknown}, nil},
		"path not known":    {config{"path": protocoltest.Unknown}, nil},
		"binding not known": {config{"binding": protocoltest.Unknown}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := s.Plan(tFile, protocoltest.State{}, cfg.With(c.change))
			if c.want == nil {
				noErrors(t, p.Diags)
				return
			}
			wantError(t, p.Diags, c.want...)
		})
	}
	t.Run("a backend without files", func(t *testing.T) {
		wantError(t, without.Plan(tFile, protocoltest.State{}, cfg).Diags, "AK4002", "cannot carry files", "path")
	})
	if fake.Count("write") != 0 {
		t.Error("a plan wrote the file")
	}
}

// TestWriteOnlyContentIsWrittenByItsVersion: an ephemeral value is another one in each run of Terraform. Unless its version
// says so it is not written, whatever else of the file changes.
func TestWriteOnlyContentIsWrittenByItsVersion(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	box := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil)})
	first := config{"binding": binding(box), "path": "f", "content_wo": "first value", "content_wo_version": 1}
	file := s.MustApply(tFile, protocoltest.State{}, first)
	resized := s.MustApply(tSandbox, box, config{"profile": profile(t, s, config{"policy": config{"cpu": 2}})})

	for name, change := range map[string]config{
		"principal": {"principal": config{"subject": "ann"}},
		"profile":   {"binding": binding(resized)},
	} {
		t.Run(name, func(t *testing.T) {
			writes := fake.Count("write")
			cfg := first.With(change).With(config{"content_wo": "another value"})
			p := s.Plan(tFile, file, cfg)
			noErrors(t, p.Diags)
			after, d := s.Apply(p)
			noErrors(t, d)
			if got, want := after.Get("sha256"), sandboxcore.FileDigest([]byte("first value")); got != want || fake.Count("write") != writes {
				t.Errorf("sha256 %v, written %d times", got, fake.Count("write")-writes)
			}
			s.MustBeSettled(after, cfg)
			again := s.MustApply(tFile, after, cfg.With(config{"content_wo_version": 2}))
			if got := again.Get("sha256"); got != sandboxcore.FileDigest([]byte("another value")) {
				t.Errorf("after the new version sha256 is %v", got)
			}
			file = s.MustApply(tFile, again, first.With(config{"content_wo_version": 3}))
			first["content_wo_version"] = 3
		})
	}
}

// TestSomethingElseInThePlaceOfAFile: the code in the sandbox can put a directory there, or something endless. That is drift
// and a warning: neither a plan nor the destruction of everything else hangs on it, and what is not ours is not removed.
func TestSomethingElseInThePlaceOfAFile(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	box := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil)})
	refused := func(cause error) error {
		return &sandboxcore.Error{Code: sandboxcore.CodeOperation, Attempted: "the file was not touched", Attribute: []string{"path"}, Said: "no regular file", Err: cause}
	}
	broken := func(err error) {
		fake.OnReadFile = nil
		fake.SetFail(nil)
		if err != nil {
			fake.OnReadFile = func(string, int64) ([]byte, error) { return nil, err }
			fake.SetFail(func(_ context.Context, call string) error {
				if call == "remove" {
					return err
				}
				return nil
			})
		}
	}
	for name, cfg := range map[string]config{"kept": {"content": "x"}, "write-only": {"content_wo": "xyzxyz", "content_wo_version": 1}} {
		t.Run(name, func(t *testing.T) {
			broken(nil)
			cfg := cfg.With(config{"binding": binding(box), "path": "f"})
			file := s.MustApply(tFile, protocoltest.State{}, cfg)
			broken(refused(nil))
			read, d := s.Read(file)
			noErrors(t, d)
			if !d.Warnings().Has("no regular file", "f") {
				t.Errorf("no warning: %s", d)
			}
			p := s.Plan(tFile, read, cfg)
			noErrors(t, p.Diags)
			if p.Action != protocoltest.Update {
				t.Errorf("planned %s", p.Action)
			}
			_, d = s.Apply(s.PlanDestroy(read))
			noErrors(t, d)
			if !d.Warnings().Has("no regular file", "f") {
				t.Errorf("no warning: %s", d)
			}
			for what, err := range map[string]error{
				"not allowed": refused(fs.ErrPermission), "away": &sandboxcore.Error{Code: sandboxcore.CodeUnreachable, Attempted: "x"},
			} {
				broken(err)
				_, d = s.Apply(s.PlanDestroy(read))
				if !d.HasError() {
					t.Errorf("%s: the file may still be there, and no error", what)
				}
			}
		})
	}
}
