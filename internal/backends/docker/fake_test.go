package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// fake is an engine behind a real unix socket that answers as a test says.
type fake struct {
	t      testing.TB
	host   string
	routes []fakeRoute
	mu     sync.Mutex
	asked  []string
	api    string
}

type fakeRoute struct {
	method string
	path   *regexp.Regexp
	answer func(w http.ResponseWriter, r *http.Request)
}

func newFake(t testing.TB) *fake {
	t.Helper()
	f := &fake{t: t, api: "1.41"}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(f.serve))
	server.Listener.Close() //nolint:errcheck // replaced
	server.Listener = l
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	f.host = "unix://" + socket
	f.on("GET", "/info", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, goodInfo()) })
	return f
}

func goodInfo() map[string]any {
	return map[string]any{
		"ID": "FAKE:ENGINE", "OSType": "linux", "Architecture": "x86_64", "MemoryLimit": true, "CpuCfsQuota": true, "CpuCfsPeriod": true, "PidsLimit": true,
		"NCPU": 2, "MemTotal": 1 << 30, "SecurityOptions": []string{"name=seccomp,profile=default"}, "Runtimes": map[string]any{"runc": map[string]any{"path": "runc"}},
		"DefaultRuntime": "runc", "ServerVersion": "20.10.24", "CgroupVersion": "1",
	}
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body) //nolint:errcheck // a test
}

func refuse(w http.ResponseWriter, status int, message string) {
	answer(w, status, map[string]string{"message": message})
}

// on answers the requests of a method whose path, without the version, matches. Later ones win.
func (f *fake) on(method, path string, a func(http.ResponseWriter, *http.Request)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.routes = slices.Insert(f.routes, 0, fakeRoute{method, regexp.MustCompile("^" + path + "$"), a})
}

var apiPrefix = regexp.MustCompile(`^/v[0-9.]+`)

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	path := apiPrefix.ReplaceAllString(r.URL.Path, "")
	f.mu.Lock()
	f.asked = append(f.asked, r.Method+" "+path)
	routes, api := f.routes, f.api
	f.mu.Unlock()
	w.Header().Set("Api-Version", api)
	w.Header().Set("Ostype", "linux")
	for _, route := range routes {
		if route.method == r.Method && route.path.MatchString(path) {
			route.answer(w, r)
			return
		}
	}
	if path == "/_ping" {
		w.Write([]byte("OK")) //nolint:errcheck // a test
		return
	}
	refuse(w, 404, "page not found: "+r.Method+" "+path)
}

func (f *fake) count(request string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, a := range f.asked {
		if a == request {
			n++
		}
	}
	return n
}

// endpoint gives an endpoint on the fake, with short waits.
func (f *fake) endpoint(more sandboxcore.Settings) *endpoint {
	f.t.Helper()
	provider := sandboxcore.Settings{keyHost: f.host}
	maps.Copy(provider, more)
	b, err := newBackend(provider, getenvNone)
	if err != nil {
		f.t.Fatal(err)
	}
	bb := as[*backend](f.t, b)
	bb.log = slog.New(slog.DiscardHandler)
	bb.timings = timings{connect: 300 * time.Millisecond, call: 300 * time.Millisecond, pullIdle: 300 * time.Millisecond, listCache: time.Second, gone: 500 * time.Millisecond, lost: 500 * time.Millisecond}
	e, err := bb.Connect(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return as[*endpoint](f.t, e)
}

// hang never answers. A server sees that a client has gone only once it has read all of the request.
func hang(_ http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body) //nolint:errcheck // a test
	<-r.Context().Done()
}

// Engines that are too old, too new, slow, or no engines: one diagnostic that names the address and what to do.
func TestFakeEngines(t *testing.T) {
	tests := map[string]struct {
		set   func(*fake)
		more  sandboxcore.Settings
		parts []string
	}{
		"too old": {
			set:   func(f *fake) { f.api = "1.24" },
			parts: []string{"1.24", "1.40 to 1.57", "DOCKER_API_VERSION"},
		},
		"too new": {
			set: func(f *fake) {
				f.api = "1.99"
				f.on("GET", "/info", func(w http.ResponseWriter, _ *http.Request) {
					refuse(w, 400, "client version 1.57 is too old. Minimum supported API version is 1.90, please upgrade your client to a newer version")
				})
			},
			parts: []string{"1.90", "1.40 to 1.57", "DOCKER_API_VERSION"},
		},
		"a version that was fixed": {
			set: func(f *fake) {
				f.on("GET", "/info", func(w http.ResponseWriter, _ *http.Request) {
					refuse(w, 400, "client version 1.50 is too new. Maximum supported API version is 1.41")
				})
			},
			more:  sandboxcore.Settings{keyAPIVersion: "1.50"},
			parts: []string{"1.41", "1.50", "api_version"},
		},
		"accepts and never answers": {set: func(f *fake) { f.on("HEAD", "/_ping", hang); f.on("GET", "/_ping", hang) }, parts: []string{"did not answer in time"}},
		"answers the ping only":     {set: func(f *fake) { f.on("GET", "/info", hang) }, parts: []string{"did not answer in time"}},
		"no JSON": {
			set: func(f *fake) {
				f.on("GET", "/info", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<html>welcome</html>")) }) //nolint:errcheck // a test
			},
			parts: []string{"does not speak the engine's protocol"},
		},
		"no engine ID": {
			set: func(f *fake) {
				f.on("GET", "/info", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, map[string]any{}) })
			},
			parts: []string{"no engine ID"},
		},
		"500": {
			set: func(f *fake) {
				f.on("GET", "/info", func(w http.ResponseWriter, _ *http.Request) { refuse(w, 500, "disk on fire") })
			},
			parts: []string{"disk on fire"},
		},
		"breaks off": {
			set: func(f *fake) {
				f.on("GET", "/info", func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Length", "100")
					w.Write([]byte(`{"ID":`)) //nolint:errcheck // a test
					panic(http.ErrAbortHandler)
				})
			},
			parts: []string{"broke"},
		},
		"redirects": {
			set: func(f *fake) {
				f.on("GET", "/info", func(w http.ResponseWriter, r *http.Request) {
					http.Redirect(w, r, "http://192.0.2.1/info", http.StatusTemporaryRedirect)
				})
			},
			parts: []string{"protocol"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			test.set(f)
			e := f.endpoint(test.more)
			begin := time.Now()
			_, err := e.Identity(t.Context())
			refused(t, err, sandboxcore.CodeUnreachable, append(test.parts, f.host)...)
			if took := time.Since(begin); took > 3*time.Second {
				t.Errorf("it took %s", took)
			}
			offer, err := e.Offers(t.Context())
			if err != nil || offer.Reachable || offer.Reason == "" {
				t.Errorf("offers: %+v %v", offer, err)
			}
		})
	}
}

func TestAPIVersionsThatWork(t *testing.T) {
	for _, api := range []string{"1.40", "1.41", "1.44", "1.52", "1.57", "1.70"} {
		f := newFake(t)
		f.api = api
		e := f.endpoint(nil)
		if id, err := e.Identity(t.Context()); err != nil || id != "FAKE:ENGINE" {
			t.Errorf("%s: %q %v", api, id, err)
		}
	}
}

// The identity is asked once, whoever asks.
func TestIdentityIsAskedOnce(t *testing.T) {
	f := newFake(t)
	e := f.endpoint(nil)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := e.Identity(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := f.count("GET /info"); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// An engine that was away is asked again later.
func TestUnreachableIsNotRemembered(t *testing.T) {
	f := newFake(t)
	var away atomic.Bool
	away.Store(true)
	f.on("HEAD", "/_ping", func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			panic(http.ErrAbortHandler)
		}
	})
	f.on("GET", "/_ping", func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	e := f.endpoint(nil)
	_, err := e.Identity(t.Context())
	refused(t, err, sandboxcore.CodeUnreachable)
	away.Store(false)
	if _, err := e.Identity(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// What an engine lacks refuses a profile that needs it, and only that.
func TestAdmit(t *testing.T) {
	tests := map[string]struct {
		info    map[string]any
		profile []func(*sandboxcore.Profile)
		code    sandboxcore.Code
		parts   []string
	}{
		"all is there":                {profile: []func(*sandboxcore.Profile){memory(64), cpu(1)}},
		"no memory limit, none asked": {info: map[string]any{"MemoryLimit": false}},
		"no memory limit":             {info: map[string]any{"MemoryLimit": false}, profile: []func(*sandboxcore.Profile){memory(64)}, code: sandboxcore.CodeResources, parts: []string{"memory"}},
		"no memory limit, not strict": {info: map[string]any{"MemoryLimit": false}, profile: []func(*sandboxcore.Profile){memory(64), func(p *sandboxcore.Profile) { p.Policy.Strict = false }}},
		"no cpu limit":                {info: map[string]any{"CpuCfsQuota": false}, profile: []func(*sandboxcore.Profile){cpu(1)}, code: sandboxcore.CodeResources, parts: []string{"processor"}},
		"more processors than there":  {profile: []func(*sandboxcore.Profile){cpu(64)}, code: sandboxcore.CodeResources, parts: []string{"64", "2"}},
		"no pids limit":               {info: map[string]any{"PidsLimit": false}, code: sandboxcore.CodeIsolation, parts: []string{"processes"}},
		"no seccomp":                  {info: map[string]any{"SecurityOptions": []string{}}, code: sandboxcore.CodeIsolation, parts: []string{"seccomp"}},
		"no seccomp, none asked":      {info: map[string]any{"SecurityOptions": []string{}}, profile: []func(*sandboxcore.Profile){settings(keySeccompProfile, seccompUnconfined)}},
		"unknown runtime":             {profile: []func(*sandboxcore.Profile){settings(keyRuntime, "runsc")}, code: sandboxcore.CodeValue, parts: []string{"runsc", "runc"}},
		"Windows containers":          {info: map[string]any{"OSType": "windows"}, code: sandboxcore.CodeProvision, parts: []string{"windows/amd64"}},
		"another architecture":        {info: map[string]any{"Architecture": "s390x"}, code: sandboxcore.CodeProvision, parts: []string{"linux/s390x"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			info := goodInfo()
			maps.Copy(info, test.info)
			f.on("GET", "/info", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, info) })
			err := f.endpoint(nil).Admit(t.Context(), profile("bare", test.profile...), sandboxcore.Operation{Name: "create"})
			if test.code == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			refused(t, err, test.code, test.parts...)
		})
	}
}

const fakeID = "1111111111111111111111111111111111111111111111111111111111111111"

// containers lets the fake have one container of ours.
func (f *fake) containers(state *atomic.Value) {
	labels, err := sandboxcore.Marks{Name: "n", Spec: `{"v":1}`, Request: "r1", Created: time.Now()}.Encode()
	if err != nil {
		f.t.Fatal(err)
	}
	f.on("GET", "/containers/"+fakeID+"/json", func(w http.ResponseWriter, _ *http.Request) {
		s := as[string](f.t, state.Load())
		if s == "" {
			refuse(w, 404, "No such container: "+fakeID)
			return
		}
		answer(w, 200, map[string]any{"Id": fakeID, "State": map[string]any{"Status": s}, "Config": map[string]any{"Labels": labels}, "Created": "2026-01-01T00:00:00Z", "Image": "sha256:aa"})
	})
}

func stateValue(s string) *atomic.Value {
	var v atomic.Value
	v.Store(s)
	return &v
}

// What the engine says to a removal, and what is made of it. The last word has the look afterwards.
func TestDestroyOnAFake(t *testing.T) {
	const remove = "DELETE /containers/" + fakeID
	tests := map[string]struct {
		answers []string // one for each removal: "gone", "busy", "progress", "500"; the last one repeats
		code    sandboxcore.Code
		parts   []string
	}{
		"at once":               {answers: []string{"gone"}},
		"conflict, then gone":   {answers: []string{"busy", "busy", "gone"}},
		"already in progress":   {answers: []string{"progress"}},
		"success that is not":   {answers: []string{"lie"}, code: sandboxcore.CodeDeleteFailed, parts: []string{`"running"`}},
		"an error that stays":   {answers: []string{"500"}, code: sandboxcore.CodeDeleteFailed, parts: []string{"driver failed"}},
		"an error that is none": {answers: []string{"500 but gone"}},
		"conflict that stays":   {answers: []string{"busy"}, code: sandboxcore.CodeDeleteFailed, parts: []string{"in use"}},
		"no answer":             {answers: []string{"hang"}, code: sandboxcore.CodeUnreachable},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			state := stateValue("running")
			f.containers(state)
			var n atomic.Int64
			f.on("DELETE", "/containers/"+fakeID, func(w http.ResponseWriter, r *http.Request) {
				switch test.answers[min(int(n.Add(1))-1, len(test.answers)-1)] {
				case "gone":
					state.Store("")
					w.WriteHeader(204)
				case "lie":
					w.WriteHeader(204)
				case "busy":
					refuse(w, 409, "container is in use")
				case "progress":
					state.Store("removing")
					time.AfterFunc(150*time.Millisecond, func() { state.Store("") })
					refuse(w, 409, "removal of container "+fakeID+" is already in progress")
				case "500":
					refuse(w, 500, "driver failed to remove root filesystem")
				case "500 but gone":
					state.Store("")
					refuse(w, 500, "driver failed to remove root filesystem")
				case "hang":
					hang(w, r)
				}
			})
			e := f.endpoint(nil)
			s, err := e.Find(t.Context(), fakeID, true)
			if err != nil {
				t.Fatal(err)
			}
			err = s.Destroy(t.Context())
			if test.code != "" {
				refused(t, err, test.code, test.parts...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if name == "already in progress" && f.count(remove) != 1 {
				t.Errorf("%d removals", f.count(remove))
			}
		})
	}
}

func TestStatesOnAFake(t *testing.T) {
	for state, want := range map[string]sandboxcore.Status{
		"running": sandboxcore.StatusRunning, "restarting": sandboxcore.StatusRunning, "paused": sandboxcore.StatusPaused,
		"created": sandboxcore.StatusStopped, "exited": sandboxcore.StatusStopped, "removing": "", "dead": "", "": "",
	} {
		f := newFake(t)
		f.containers(stateValue(state))
		f.on("GET", "/volumes", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, map[string]any{"Volumes": nil}) })
		s, err := f.endpoint(nil).Find(t.Context(), fakeID, true)
		if want == "" {
			refused(t, err, sandboxcore.CodeGone, fakeID)
			continue
		}
		if err != nil || s.Info().Status != want {
			t.Errorf("%s: %v %v", state, s, err)
		}
	}
}

// A create whose answer is lost leaves nothing, also when the engine finishes it only later.
func TestLostCreate(t *testing.T) {
	for _, way := range []string{"breaks", "hangs", "cancelled", "nonsense"} {
		t.Run(way, func(t *testing.T) {
			f := newFake(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f.on("GET", "/images/.*/json", func(w http.ResponseWriter, _ *http.Request) {
				answer(w, 200, map[string]any{"Id": "sha256:aa", "Os": "linux", "Architecture": "amd64"})
			})
			var exists, removed atomic.Bool
			f.on("POST", "/containers/create", func(w http.ResponseWriter, r *http.Request) {
				time.AfterFunc(200*time.Millisecond, func() { exists.Store(true) })
				switch way {
				case "breaks":
					panic(http.ErrAbortHandler)
				case "hangs":
					hang(w, r)
				case "cancelled":
					cancel()
					hang(w, r)
				case "nonsense":
					answer(w, 201, map[string]any{})
				}
			})
			f.on("GET", "/containers/json", func(w http.ResponseWriter, r *http.Request) {
				if !strings.Contains(r.URL.Query().Get("filters"), sandboxcore.MarkRequest) {
					t.Error("it looked for more than its own request")
				}
				if exists.Load() && !removed.Load() {
					answer(w, 200, []any{map[string]any{"Id": fakeID}})
					return
				}
				answer(w, 200, []any{})
			})
			f.on("DELETE", "/containers/"+fakeID, func(w http.ResponseWriter, _ *http.Request) { removed.Store(true); w.WriteHeader(204) })
			f.on("GET", "/volumes", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, map[string]any{}) })
			_, err := f.endpoint(nil).Create(ctx, request(profile("bare")), func(sandboxcore.SandboxInfo) { t.Error("nothing was created as far as we know") })
			refused(t, err, sandboxcore.CodeUnreachable)
			if !removed.Load() {
				t.Error("the container is left")
			}
		})
	}
}

// A failing call after the container exists tells its id first, whatever fails.
func TestFailureAfterCreate(t *testing.T) {
	f := newFake(t)
	f.on("GET", "/images/.*/json", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, map[string]any{"Id": "sha256:aa", "Os": "linux", "Architecture": "amd64"})
	})
	f.on("POST", "/containers/create", func(w http.ResponseWriter, _ *http.Request) { answer(w, 201, map[string]any{"Id": fakeID}) })
	f.on("POST", "/containers/"+fakeID+"/start", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, 500, "OCI runtime create failed: no space left on device")
	})
	var id string
	_, err := f.endpoint(nil).Create(t.Context(), request(profile("bare")), func(i sandboxcore.SandboxInfo) { id = i.NativeID })
	refused(t, err, sandboxcore.CodeProvision, "no space left on device")
	if id != fakeID {
		t.Errorf("id %q", id)
	}
}

func TestPullOnAFake(t *testing.T) {
	tests := map[string]struct {
		pull  func(http.ResponseWriter, *http.Request)
		code  sandboxcore.Code
		parts []string
	}{
		"progress": {pull: func(w http.ResponseWriter, _ *http.Request) {
			for range 5 {
				io.WriteString(w, `{"status":"Downloading","id":"a","progressDetail":{"current":1,"total":2}}`+"\n") //nolint:errcheck // a test
				as[http.Flusher](t, w).Flush()
				time.Sleep(100 * time.Millisecond)
			}
		}},
		"error in the stream": {pull: func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"errorDetail":{"message":"toomanyrequests: slow down"},"error":"toomanyrequests: slow down"}`+"\n") //nolint:errcheck // a test
		}, code: sandboxcore.CodeProvision, parts: []string{"toomanyrequests", "log in"}},
		"denied": {pull: func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, 404, "pull access denied for x, repository does not exist or may require 'docker login'")
		}, code: sandboxcore.CodeProvision, parts: []string{"docker login"}},
		"no progress": {pull: func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, `{"status":"Downloading"}`+"\n") //nolint:errcheck // a test
			as[http.Flusher](t, w).Flush()
			hang(w, r)
		}, code: sandboxcore.CodeUnreachable, parts: []string{"did not answer in time"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			var pulled atomic.Bool
			f.on("POST", "/images/create", func(w http.ResponseWriter, r *http.Request) {
				test.pull(w, r)
				pulled.Store(true)
			})
			f.on("GET", "/images/.*/json", func(w http.ResponseWriter, _ *http.Request) {
				if !pulled.Load() {
					refuse(w, 404, "No such image")
					return
				}
				answer(w, 200, map[string]any{"Id": "sha256:aa", "Os": "linux", "Architecture": "amd64", "RepoDigests": []string{"x@sha256:" + strings.Repeat("b", 64)}})
			})
			facts, err := f.endpoint(nil).image(t.Context(), options{image: "x", pullPolicy: pullMissing})
			if test.code != "" {
				refused(t, err, test.code, test.parts...)
				return
			}
			if err != nil || facts.digest != "sha256:"+strings.Repeat("b", 64) {
				t.Errorf("%+v %v", facts, err)
			}
		})
	}
}

// The answer to a question that was asked before a change is not kept.
func TestListingAskedBeforeAChange(t *testing.T) {
	f := newFake(t)
	release, asked := make(chan struct{}), make(chan struct{}, 2)
	f.on("GET", "/containers/json", func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-release
		answer(w, 200, []any{})
	})
	e := f.endpoint(nil)
	if err := e.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := e.list(t.Context()); done <- err }()
	<-asked
	e.listing.drop()
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := e.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := f.count("GET /containers/json"); n != 2 {
		t.Errorf("%d questions", n)
	}
}

// All that carries our marks is listed, oldest first, with one question to the engine, however much there is. What is on its
// way out is not there any more, and marks that do not fit together are not ours.
func TestListOfManySandboxes(t *testing.T) {
	const many = 250
	f := newFake(t)
	var containers []map[string]any
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	add := func(state string, labels map[string]string) {
		id := fmt.Sprintf("%064x", len(containers)*7919%1009) // in no order
		containers = append(containers, map[string]any{"Id": id, "State": state, "Labels": labels})
	}
	for i := range many {
		labels, err := sandboxcore.Marks{Name: fmt.Sprint("n", i), Spec: `{"v":1}`, Request: fmt.Sprint("r", i), Created: begun.Add(time.Duration(i*37%many) * time.Second)}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		add([]string{"running", "paused", "exited", "created"}[i%4], labels)
		if i == 100 {
			add("removing", labels)
			add("dead", labels)
			torn := maps.Clone(labels)
			delete(torn, sandboxcore.MarkSpec)
			add("running", torn)
		}
	}
	f.on("GET", "/containers/json", func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Query().Get("filters"), sandboxcore.MarkManaged) || r.URL.Query().Get("all") != "1" {
			t.Errorf("asked for %s", r.URL.RawQuery)
		}
		answer(w, 200, containers)
	})
	got, err := f.endpoint(nil).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != many {
		t.Fatalf("%d are listed", len(got))
	}
	for i, s := range got {
		if want := begun.Add(time.Duration(i) * time.Second); !s.CreatedAt.Equal(want) || s.Endpoint != "FAKE:ENGINE" {
			t.Fatalf("number %d is %+v", i, s)
		}
	}
	if n := f.count("GET /containers/json"); n != 1 {
		t.Errorf("%d questions", n)
	}
}
