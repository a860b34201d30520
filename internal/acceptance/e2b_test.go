//go:build linux

package acceptance

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
)

// limiter lets a number of sandboxes be made in each second and turns the rest away with the time to wait. Who comes
// back too early is remembered.
type limiter struct {
	perSecond int

	mu     sync.Mutex
	began  time.Time
	taken  int
	until  map[string]time.Time // by the request's own mark
	turned int
	early  int
}

var requestMark = regexp.MustCompile(`"agentkernel\.io/request":"([^"]+)"`)

func (l *limiter) intercept(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/sandboxes") {
		next.ServeHTTP(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	who := ""
	if m := requestMark.FindSubmatch(body); m != nil {
		who = string(m[1])
	}
	now := time.Now()
	l.mu.Lock()
	if now.Before(l.until[who]) {
		l.early++
	}
	if now.Sub(l.began) >= time.Second {
		l.began, l.taken = now, 0
	}
	l.taken++
	over := l.taken > l.perSecond
	if over {
		l.turned++
		l.until[who] = now.Add(time.Second)
	}
	l.mu.Unlock()
	if over {
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"code":429,"message":"rate limit exceeded"}`)
		return
	}
	next.ServeHTTP(w, r)
}

// TestE2BMany: 200 sandboxes at a server that limits the rate. Each is made once, nobody comes back before the time that
// it was told, the log says how far it is; and a refresh costs pages, not sandboxes.
func TestE2BMany(t *testing.T) {
	const many = 200
	peer := startPeer(t, e2bpeer.Options{Plain: true})
	l := &limiter{perSecond: 25, until: map[string]time.Time{}}
	s := newStack(t, fmt.Sprintf(`
provider "agentkernel" {
  e2b = { api_key = %q, api_url = %q, sandbox_url = %q }
}
data "agentkernel_profile" "p" {
  name = "many"
  type = "e2b"
  e2b  = {}
}
resource "agentkernel_sandbox" "s" {
  count   = %d
  name    = "box-${count.index}"
  profile = data.agentkernel_profile.p.spec
}
output "ends" {
  value = length(distinct([for s in agentkernel_sandbox.s : s.id]))
}
`, peer.Key(), peer.APIURL(), peer.SandboxURL(), many))
	t.Cleanup(func() {
		peer.Intercept(nil)
		if code, out := s.run(t, "destroy", "-auto-approve"); code != 0 || len(peer.States()) != 0 {
			t.Errorf("destroy ended with %d, %d left:\n%.2000s", code, len(peer.States()), out)
		}
	})
	peer.Intercept(l.intercept)
	out := s.must(t, "apply", "-auto-approve", "-parallelism=40")
	peer.Intercept(nil)
	if !strings.Contains(out, fmt.Sprintf("ends = %d", many)) || len(peer.States()) != many {
		t.Errorf("%d sandboxes:\n%.2000s", len(peer.States()), out)
	}
	if l.turned == 0 || l.early > 0 {
		t.Errorf("%d turned away, %d came back too early", l.turned, l.early)
	}
	log, err := os.ReadFile(s.log)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a sandbox is asked for", "a sandbox was created", "the server asked to wait, or was busy"} {
		if !bytes.Contains(log, []byte(want)) {
			t.Errorf("the log does not say %q", want)
		}
	}
	if !regexp.MustCompile(fmt.Sprintf(`created_so_far"?[=:] ?%d\b`, many)).Match(log) {
		t.Errorf("the log does not count: %.300s", log[max(0, bytes.Index(log, []byte("a sandbox was created"))):])
	}
	if bytes.Contains(log, []byte(peer.Key())) {
		t.Error("the key is in the log")
	}

	peer.Forget()
	began := time.Now()
	s.wantEmptyPlan(t)
	// A listing serves what is asked within some seconds; each has 2 pages.
	listings := int(time.Since(began)/(3*time.Second)) + 1
	for _, r := range peer.Requests() {
		if r.Path != "/v2/sandboxes" {
			t.Errorf("a refresh asked %s %s", r.Method, r.Path)
		}
	}
	if n := len(peer.Requests()); n > 2*listings {
		t.Errorf("%d requests in %s for %d sandboxes", n, time.Since(began), many)
	}
	t.Logf("%d turned away; the refresh took %d requests", l.turned, len(peer.Requests()))
}
