package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

func find(t *testing.T, e *endpoint, id string) *sandbox {
	t.Helper()
	s, err := e.Find(t.Context(), id, true)
	if err != nil {
		t.Fatal(err)
	}
	return as[*sandbox](t, s)
}

func status(t *testing.T, e *endpoint, id string) sandboxcore.Status {
	t.Helper()
	return find(t, e, id).info.Status
}

func TestPauseAndResume(t *testing.T) {
	e := engine(t)
	s := create(t, e, profile("python"))
	id := s.info.NativeID
	for range 2 {
		if err := s.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := status(t, e, id); got != sandboxcore.StatusPaused {
			t.Fatal(got)
		}
	}
	o := shell(t, s, "true")
	refused(t, o.err, sandboxcore.CodeStopped, "desired_state", "running")
	refused(t, s.WriteFile(t.Context(), "x", nil, 0o600), sandboxcore.CodeStopped)
	for range 2 {
		if err := s.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := status(t, e, id); got != sandboxcore.StatusRunning {
			t.Fatal(got)
		}
	}
	shell(t, s, "true").ok(t)
	stop(t, e, id)
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := status(t, e, id); got != sandboxcore.StatusPaused {
		t.Fatal(got)
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func stop(t *testing.T, e *endpoint, id string) {
	t.Helper()
	grace := 1
	if _, err := e.cli.ContainerStop(t.Context(), id, client.ContainerStopOptions{Timeout: &grace}); err != nil {
		t.Fatal(err)
	}
}

// A container that somebody stopped starts on use, and says so.
func TestStoppedBehindOurBack(t *testing.T) {
	e := engine(t)
	s := create(t, e, profile("python", fsWrite("/workspace")))
	shell(t, s, "echo kept > file").ok(t)
	begin := time.Now()
	stop(t, e, s.info.NativeID)
	if time.Since(begin) > 900*time.Millisecond {
		t.Errorf("the helper does not end by itself when stopped: %s", time.Since(begin))
	}
	if got := status(t, e, s.info.NativeID); got != sandboxcore.StatusStopped {
		t.Fatal(got)
	}
	o := shell(t, s, "cat file")
	if o.ok(t) != "kept\n" || o.Notice != noticeStarted {
		t.Fatalf("%q %q", o.stdout, o.Notice)
	}
	if o := shell(t, s, "true"); o.Notice != "" {
		t.Errorf("a notice without a reason: %q", o.Notice)
	}
	stop(t, e, s.info.NativeID)
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := status(t, e, s.info.NativeID); got != sandboxcore.StatusRunning {
		t.Fatal(got)
	}
}

// Its volumes go as well when the container was removed by somebody else.
// A provider that is killed right after the engine has made the container leaves one that never ran. Whoever takes it over
// gets a sandbox like any other: it starts, and its directories are its user's.
func TestCreationThatWasCutOff(t *testing.T) {
	e := engine(t)
	for name, change := range map[string]func(*sandboxcore.Profile){
		"workspace": func(*sandboxcore.Profile) {},
		"volumes":   func(p *sandboxcore.Profile) { p.Policy.FSAllowWrite = []string{"/data", "/workspace"} },
		"memory":    settings(keyWorkspace, workspaceMemory),
	} {
		for way, wake := range map[string]func(*sandbox) error{
			"resumed": func(s *sandbox) error { return s.Resume(t.Context()) },
			"paused": func(s *sandbox) error {
				if err := s.Pause(t.Context()); err != nil {
					return err
				}
				return s.Resume(t.Context())
			},
			"run in": func(*sandbox) error { return nil },
		} {
			t.Run(name+", "+way, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				id := ""
				_, err := e.Create(ctx, request(profile("user", change)), func(i sandboxcore.SandboxInfo) {
					id = i.NativeID
					cancel()
				})
				if err == nil || id == "" {
					t.Fatalf("made %q: %v", id, err)
				}
				found, err := engine(t).Find(t.Context(), id, true)
				if err != nil {
					t.Fatal(err)
				}
				s := as[*sandbox](t, found)
				t.Cleanup(func() {
					if err := s.Destroy(context.WithoutCancel(t.Context())); err != nil {
						t.Error(err)
					}
				})
				if s.Info().Status != sandboxcore.StatusStopped {
					t.Fatalf("it is %s", s.Info().Status)
				}
				if err := wake(s); err != nil {
					t.Fatal(err)
				}
				where := "/workspace"
				if name == "volumes" {
					where = "/workspace /data"
				}
				if got := shell(t, s, "test $(id -u) != 0; for d in "+where+"; do echo x > $d/f; done; cat /workspace/f").ok(t); got != "x\n" {
					t.Errorf("wrote %q", got)
				}
			})
		}
	}
}

func TestRemovedBehindOurBack(t *testing.T) {
	e := engine(t)
	s := create(t, e, profile("python", fsWrite("/workspace", "/data")))
	id := s.info.NativeID
	if _, err := e.Find(t.Context(), id, false); err != nil {
		t.Fatal(err)
	}
	if _, err := e.cli.ContainerRemove(t.Context(), id, client.ContainerRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	o := shell(t, s, "true")
	refused(t, o.err, sandboxcore.CodeGone, id)
	_, err := e.Find(t.Context(), id, true)
	refused(t, err, sandboxcore.CodeGone, id)
	refused(t, s.Update(t.Context(), profile("python", memory(64)), s.info.Marks), sandboxcore.CodeGone)
	refused(t, s.Pause(t.Context()), sandboxcore.CodeGone)
	refused(t, s.Resume(t.Context()), sandboxcore.CodeGone)
	vs, err := e.cli.VolumeList(t.Context(), client.VolumeListOptions{Filters: labelFilter(sandboxcore.MarkRequest + "=" + s.info.Marks.Request)})
	if err != nil || len(vs.Items) != 0 {
		t.Fatalf("volumes are left: %v %v", vs.Items, err)
	}
	for range 2 {
		if err := s.Destroy(t.Context()); err != nil {
			t.Fatalf("destroying what is gone: %v", err)
		}
	}
}

func TestDestroyMeansGone(t *testing.T) {
	e := engine(t)
	for _, state := range []string{"running", "paused", "stopped", "busy"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			m, err := e.Create(t.Context(), request(profile("user", fsWrite("/workspace", "/tmp"))), nil)
			if err != nil {
				t.Fatal(err)
			}
			s := as[*sandbox](t, m)
			running := make(chan outcome, 1)
			switch state {
			case "paused":
				err = s.Pause(t.Context())
			case "stopped":
				stop(t, e, s.info.NativeID)
			case "busy":
				w := &signalWriter{first: make(chan struct{})}
				go func() {
					_, err := s.Run(context.WithoutCancel(t.Context()), sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("echo up; sleep 60"), Timeout: time.Minute}, w, nil)
					running <- outcome{err: err}
				}()
				<-w.first
			}
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := find0(t, e, s).Destroy(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := e.cli.ContainerInspect(t.Context(), s.info.NativeID, client.ContainerInspectOptions{}); !isNotFound(err) {
				t.Fatalf("the container: %v", err)
			}
			for _, v := range s.volumes {
				if _, err := e.cli.VolumeInspect(t.Context(), v, client.VolumeInspectOptions{}); !isNotFound(err) {
					t.Errorf("volume %s: %v", v, err)
				}
			}
			if len(s.volumes) != 2 {
				t.Errorf("volumes %v", s.volumes)
			}
			if state == "busy" {
				// Whoever was running learns that nobody knows how it ended.
				refused(t, (<-running).err, sandboxcore.CodeUnknownOutcome)
			}
		})
	}
}

// find0 finds a sandbox again, so that a handle made by a look is destroyed and not only the one made by create.
func find0(t *testing.T, e *endpoint, s *sandbox) sandboxcore.ManagedSandbox {
	t.Helper()
	m, err := e.Find(t.Context(), s.info.NativeID, true)
	if err != nil {
		if sandboxcore.IsCode(err, sandboxcore.CodeGone) {
			return s
		}
		t.Fatal(err)
	}
	if got := as[*sandbox](t, m); !slices.Equal(slices.Sorted(slices.Values(got.volumes)), slices.Sorted(slices.Values(s.volumes))) || got.helperVolume != s.helperVolume {
		t.Errorf("found with other volumes: %v %v", got.volumes, s.volumes)
	}
	return m
}

// foreign makes a container that is not ours.
func foreign(t *testing.T, e *endpoint, name, image string, labels map[string]string) string {
	t.Helper()
	c, err := e.cli.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: name, Config: &container.Config{Image: testenv.Image(image), Labels: labels}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := e.cli.ContainerRemove(context.WithoutCancel(t.Context()), c.ID, client.ContainerRemoveOptions{Force: true})
		if err != nil {
			t.Error(err)
		}
	})
	return c.ID
}

func TestForeignContainersAreRefused(t *testing.T) {
	e := engine(t)
	s := create(t, e, profile("bare"))
	for what, labels := range map[string]map[string]string{
		"no marks":    nil,
		"half a mark": {sandboxcore.MarkManaged: "true"},
		"forged spec": {sandboxcore.MarkManaged: "true", sandboxcore.MarkKind: kindSandbox, sandboxcore.MarkSpec: `{"v":1}`, sandboxcore.MarkFingerprint: "00"},
	} {
		t.Run(what, func(t *testing.T) {
			id := foreign(t, e, "", "bare", labels)
			for _, fresh := range []bool{true, false} {
				_, err := e.Find(t.Context(), id, fresh)
				refused(t, err, sandboxcore.CodeNotOurs, id)
			}
			all, err := e.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(all, func(i sandboxcore.SandboxInfo) bool { return i.NativeID == id }) {
				t.Error("it is in the list")
			}
		})
	}
	t.Run("names and short ids", func(t *testing.T) {
		for _, id := range []string{s.info.NativeID[:12], containerName(s.info.Marks), "", "../x", strings.ToUpper(s.info.NativeID)} {
			_, err := e.Find(t.Context(), id, true)
			refused(t, err, sandboxcore.CodeValue, "64 hexadecimal digits")
		}
	})
	t.Run("a container named like an id", func(t *testing.T) {
		name := strings.Repeat("ab", 32)
		foreign(t, e, name, "bare", nil)
		_, err := e.Find(t.Context(), name, true)
		refused(t, err, sandboxcore.CodeGone)
	})
}

func TestList(t *testing.T) {
	e := engine(t)
	s := create(t, e, profile("bare"))
	other := dial(t, nil, os.Getenv)
	all, err := other.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(i sandboxcore.SandboxInfo) bool { return i.NativeID == s.info.NativeID })
	if i < 0 || all[i].Marks.Name != "test" || all[i].Status != sandboxcore.StatusRunning || all[i].Marks.Spec != `{"v":1}` {
		t.Fatalf("not as created: %d %+v", i, all)
	}
}

// One listing serves a refresh, a change is seen at once, and a miss is asked for directly.
func TestFindUsesOneListing(t *testing.T) {
	e, calls := counted(t)
	var sandboxes []*sandbox
	for range 4 {
		sandboxes = append(sandboxes, create(t, e, profile("bare")))
	}
	begin := calls.Load()
	var wg sync.WaitGroup
	for _, s := range sandboxes {
		wg.Go(func() {
			if _, err := e.Find(t.Context(), s.info.NativeID, false); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := calls.Load() - begin; n != 1 {
		t.Errorf("%d calls for %d sandboxes", n, len(sandboxes))
	}
	if err := sandboxes[0].Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, err := e.Find(t.Context(), sandboxes[0].info.NativeID, false)
	if err != nil || m.Info().Status != sandboxcore.StatusPaused {
		t.Errorf("after a change: %v %v", m, err)
	}
	late := create(t, engine(t), profile("bare"))
	if _, err := e.Find(t.Context(), late.info.NativeID, false); err != nil {
		t.Errorf("not in the listing: %v", err)
	}
	now := e.now()
	e.now = func() time.Time { return now.Add(time.Minute) }
	begin = calls.Load()
	if _, err := e.Find(t.Context(), late.info.NativeID, false); err != nil || calls.Load()-begin != 1 {
		t.Errorf("after its time: %v, %d calls", err, calls.Load()-begin)
	}
}

// Several providers on an engine without the helper do not get into each other's way.
func TestHelperVolumeUnderContention(t *testing.T) {
	testenv.Require(t, "docker")
	volume, err := helperVolumeName("amd64")
	if err != nil {
		t.Fatal(err)
	}
	if engine(t).dropHelper(t.Context(), volume); t.Failed() {
		return
	}
	var wg sync.WaitGroup
	for range 6 {
		e := dial(t, nil, os.Getenv)
		wg.Go(func() {
			m, err := e.Create(t.Context(), request(profile("bare")), nil)
			if err != nil {
				t.Error(err)
				return
			}
			o := execute(t.Context(), m, sandboxcore.RunRequest{Argv: []string{"/bin/hello"}})
			if o.err != nil || o.stdout == "" {
				t.Errorf("%v", o.err)
			}
			if err := m.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// The helper's volume cannot be changed from inside a sandbox: it is shared by all of them.
func TestHelperIsReadOnly(t *testing.T) {
	e := engine(t)
	s := create(t, e, profile("python", settings(keyCapAdd, []any{"DAC_OVERRIDE", "FOWNER", "CHOWN"})))
	o := shell(t, s, "echo x > /.agentkernel/akrun; echo x > /.agentkernel/other; rm -f /.agentkernel/akrun; chmod 0 /.agentkernel/akrun")
	if strings.Count(o.stderr, "Read-only file system") != 4 {
		t.Fatal(o.stderr)
	}
}

// Where does a secret of a run show? Nowhere that the engine keeps.
func TestSecretsOfRunsStayOutOfTheEngine(t *testing.T) {
	e := engine(t)
	const canary = "canary-5f1d9c07"
	s := create(t, e, profile("python"))
	since := time.Now().Add(-time.Second)
	events := e.cli.Events(t.Context(), client.EventsListOptions{Since: since.Format(time.RFC3339Nano), Until: time.Now().Add(4 * time.Second).Format(time.RFC3339Nano)})
	w := &signalWriter{first: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		_, err := s.Run(t.Context(), sandboxcore.RunRequest{
			Kind: sandboxcore.RunCode, Language: "python", Timeout: time.Minute, Env: map[string]string{"SECRET": canary}, Stdin: []byte(canary),
			Text: []byte("code='" + canary + "'\nimport os,time\nprint('up',flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)"),
		}, w, nil)
		done <- err
	}()
	<-w.first
	look := func(what string, text []byte) {
		t.Helper()
		if strings.Contains(string(text), canary) {
			t.Errorf("the secret is in %s", what)
		}
	}
	argv, err := exec.Command("sh", "-c", "cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' '").Output()
	if err != nil && len(argv) == 0 {
		t.Fatal(err)
	}
	look("a command line of the host", argv)
	if !strings.Contains(string(argv), helperPath+" run") {
		t.Error("the look at the command lines does not see the run at all")
	}
	r, err := e.cli.ContainerInspect(t.Context(), s.info.NativeID, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	look("inspect", r.Raw)
	for _, id := range r.Container.ExecIDs {
		x, err := e.cli.ExecInspect(t.Context(), id, client.ExecInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		text, _ := json.Marshal(x)
		look("exec inspect", text)
	}
	if err := s.WriteFile(t.Context(), "go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	n := 0
	for {
		select {
		case m := <-events.Messages:
			n++
			text, _ := json.Marshal(m)
			look("the engine's events", text)
			continue
		case err := <-events.Err:
			if err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		break
	}
	if n == 0 {
		t.Error("no events were seen")
	}
	logs, err := e.cli.ContainerLogs(t.Context(), s.info.NativeID, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true})
	if err == nil {
		text, _ := io.ReadAll(logs)
		look("the container's log", text)
		logs.Close() //nolint:errcheck // a test
	}
}

// What a user puts on the sandbox is in its environment and in no label.
func TestSandboxEnvironmentIsNotInLabels(t *testing.T) {
	e := engine(t)
	const canary = "canary-77ab01"
	s := create(t, e, profile("python"), func(r *sandboxcore.CreateRequest) { r.Env = map[string]string{"SECRET": canary} })
	if got := shell(t, s, "echo $SECRET").ok(t); got != canary+"\n" {
		t.Fatal(got)
	}
	r, err := e.cli.ContainerInspect(t.Context(), s.info.NativeID, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range r.Container.Config.Labels {
		if strings.Contains(v, canary) {
			t.Errorf("label %s", k)
		}
	}
	if r.Container.Config.Labels[testLabel] != runMark {
		t.Error("the user's label is not on the container")
	}
}

func TestLabelsOfOursAreRefused(t *testing.T) {
	e, calls := counted(t)
	if _, err := e.engineInfo(t.Context()); err != nil {
		t.Fatal(err)
	}
	begin := calls.Load()
	_, err := e.Create(t.Context(), request(profile("bare"), func(r *sandboxcore.CreateRequest) {
		r.Marks.Args.Labels = map[string]string{sandboxcore.MarkManaged: "false"}
	}), nil)
	refused(t, err, sandboxcore.CodeValue, sandboxcore.MarkManaged)
	if calls.Load() != begin {
		t.Error("the engine was asked")
	}
}
