package docker

import (
	"context"
	"errors"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// saboteur does something at the n-th call to a real engine.
type saboteur struct {
	calls atomic.Int64
	at    atomic.Int64 // 0: never
	act   func() error
}

func (s *saboteur) hook(*http.Request) error {
	if s.calls.Add(1) == s.at.Load() && s.act != nil {
		return s.act()
	}
	return nil
}

// arm lets the n-th call from now on do what act does.
func (s *saboteur) arm(n int64, act func() error) {
	s.calls.Store(0)
	s.act = act
	s.at.Store(n)
}

func sabotaged(t *testing.T) (*endpoint, *saboteur) {
	t.Helper()
	e := dial(t, nil, os.Getenv)
	s := &saboteur{}
	cli, err := newClient(e.target, client.WithHTTPRequestHook(s.hook))
	if err != nil {
		t.Fatal(err)
	}
	e.cli = cli
	e.timings.lost = time.Second
	if _, err := e.engineInfo(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e, s
}

var errSabotage = errors.New("the connection was cut")

// faults are what can happen at a call: it fails before it is sent, or the caller gives up while it is under way.
func faults(cancel context.CancelFunc) map[string]func() error {
	return map[string]func() error{
		"the call fails":      func() error { return errSabotage },
		"the caller gives up": func() error { cancel(); return nil },
		"given up meanwhile":  func() error { time.AfterFunc(15*time.Millisecond, cancel); return nil },
	}
}

// objects are the containers and volumes of one create call.
func objects(t *testing.T, e *endpoint, request string) (out []string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	cs, err := e.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: labelFilter(sandboxcore.MarkRequest + "=" + request)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cs.Items {
		out = append(out, "container "+c.ID)
	}
	vs, err := e.cli.VolumeList(ctx, client.VolumeListOptions{Filters: labelFilter(sandboxcore.MarkRequest + "=" + request)})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vs.Items {
		out = append(out, "volume "+v.Name)
	}
	return out
}

// Whatever happens at whichever call of a create: the id was told, or nothing exists; and what was told can be found and
// destroyed with all that belongs to it.
func TestFaultsOfCreate(t *testing.T) {
	testenv.Require(t, "docker")
	for _, what := range []string{"the call fails", "the caller gives up", "given up meanwhile"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			e, saboteur := sabotaged(t)
			for n := int64(1); n < 40; n++ {
				ctx, cancel := context.WithCancel(t.Context())
				e.images.drop()
				e.users = userCache{}
				req := request(profile("user", fsWrite("/workspace", "/tmp")))
				var told string
				saboteur.arm(n, faults(cancel)[what])
				s, err := e.Create(ctx, req, func(i sandboxcore.SandboxInfo) { told = i.NativeID })
				calls := saboteur.calls.Load()
				saboteur.arm(0, nil)
				cancel()
				left := objects(t, e, req.Marks.Request)
				if told == "" && len(left) > 0 {
					t.Errorf("call %d: nothing was told and %v exists", n, left)
				}
				if err == nil && s == nil || err != nil && s != nil {
					t.Errorf("call %d: %v %v", n, s, err)
				}
				if told != "" {
					m, err := e.Find(t.Context(), told, true)
					if err != nil {
						t.Fatalf("call %d: %v", n, err)
					}
					if err := m.Destroy(t.Context()); err != nil {
						t.Errorf("call %d: %v", n, err)
					}
					if left := objects(t, e, req.Marks.Request); len(left) > 0 {
						t.Errorf("call %d: after destroy %v", n, left)
					}
				}
				if err == nil && calls < n {
					t.Logf("%d calls", calls)
					return
				}
			}
			t.Error("a create without a fault was never reached")
		})
	}
}

// A destroy that is disturbed says so, and the next one finishes it.
func TestFaultsOfDestroy(t *testing.T) {
	testenv.Require(t, "docker")
	for _, what := range []string{"the call fails", "the caller gives up", "given up meanwhile"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			e, saboteur := sabotaged(t)
			for n := int64(1); n < 20; n++ {
				req := request(profile("bare", fsWrite("/workspace", "/tmp")))
				s, err := e.Create(t.Context(), req, nil)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				saboteur.arm(n, faults(cancel)[what])
				err = s.Destroy(ctx)
				calls := saboteur.calls.Load()
				saboteur.arm(0, nil)
				cancel()
				if left := objects(t, e, req.Marks.Request); err == nil && len(left) > 0 {
					t.Errorf("call %d: success, and %v exists", n, left)
				}
				if err := s.Destroy(t.Context()); err != nil {
					t.Errorf("call %d, again: %v", n, err)
				}
				if left := objects(t, e, req.Marks.Request); len(left) > 0 {
					t.Errorf("call %d, again: %v exists", n, left)
				}
				if calls < n {
					return
				}
			}
			t.Error("a destroy without a fault was never reached")
		})
	}
}
