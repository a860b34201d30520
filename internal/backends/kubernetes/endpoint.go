package kubernetes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// endpoint is one cluster.
type endpoint struct {
	target  target
	config  connection
	own     *client
	now     func() time.Time
	log     *slog.Logger
	timings timings

	mu       sync.Mutex
	identity string
	users    map[string]*client
	// namespaces that this process has met, for a list without the right to list the whole cluster.
	namespaces map[string]bool
	listings   map[string]*listing
	listeners  map[string]*listener
	// checks has one slot for each Sandbox whose pod is being checked.
	checks     map[types.UID]chan struct{}
	sandboxAPI *sandboxAPI
}

// client is one way to speak to the cluster: as the provider itself, or as a user.
type client struct {
	config *rest.Config
	kube   kubernetes.Interface
}

// The client library does not write to standard error, which is Terraform's log: what matters comes back as an error,
// and what the library prints beside it may hold addresses and answers. Its logger can be set only before it is used.
func init() { klog.SetLogger(logr.Discard()) }

func newEndpoint(to target, b *backend) (*endpoint, error) {
	to.config = rest.CopyConfig(to.config)
	// The client's own limit of five requests a second would make a hundred sandboxes wait for nothing; the server has
	// limits of its own and says when to come back, which the client obeys.
	to.config.QPS = -1
	to.config.UserAgent = "terraform-provider-agentkernel"
	// Connection attempts and silent servers must end; runs stream for as long as they like.
	to.config.Timeout = 0
	own, err := newClient(to.config)
	if err != nil {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeUnreachable, Attempted: "the cluster's configuration could not be used", Object: "kubernetes (" + to.origin + ")",
			Said: sentence(err.Error()), Next: "Check certificates and credentials of the configuration.",
		}
	}
	return &endpoint{
		target: to, config: b.config, own: own, now: b.now, log: b.log, timings: b.timings,
		users: map[string]*client{}, namespaces: map[string]bool{}, listings: map[string]*listing{}, listeners: map[string]*listener{}, checks: map[types.UID]chan struct{}{},
	}, nil
}

func newClient(config *rest.Config) (*client, error) {
	h, err := httpClient(config)
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfigAndClient(config, h)
	if err != nil {
		return nil, err
	}
	return &client{config: config, kube: kube}, nil
}

// httpClient gives a client that follows no redirect: the credential would go with it.
func httpClient(config *rest.Config) (*http.Client, error) {
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	if h == http.DefaultClient {
		h = &http.Client{}
	}
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if config.ExecProvider != nil {
		h.Transport = pluginLimit{h.Transport}
	}
	return h, nil
}

// pluginGrace is how long a request may go on after its time was over before its credential plugin is to blame.
const pluginGrace = time.Second

// errPluginSilent is the end of a request whose credential plugin has not answered.
var errPluginSilent = errors.New("getting credentials: the credential plugin did not answer in time")

// pluginLimit ends requests that wait for a credential plugin when their time is over: the client library waits for the
// plugin itself, for as long as it runs.
type pluginLimit struct{ http.RoundTripper }

// RoundTrip is that of http.RoundTripper.
func (p pluginLimit) RoundTrip(req *http.Request) (*http.Response, error) {
	type answer struct {
		res *http.Response
		err error
	}
	done := make(chan answer, 1)
	go func() {
		res, err := p.RoundTripper.RoundTrip(req) //nolint:bodyclose // whoever takes the answer closes it
		done <- answer{res, err}
	}()
	select {
	case a := <-done:
		return a.res, a.err
	case <-req.Context().Done():
	}
	t := time.NewTimer(pluginGrace)
	defer t.Stop()
	select {
	case a := <-done: // everything else obeys the context
		return a.res, a.err
	case <-t.C:
		go func() {
			if a := <-done; a.res != nil {
				_ = a.res.Body.Close()
			}
		}()
		return nil, errPluginSilent
	}
}

// dynamicClient speaks to resources whose types are not compiled in.
func (e *endpoint) dynamicClient(c *client) (dynamic.Interface, error) {
	h, err := httpClient(c.config)
	if err != nil {
		return nil, err
	}
	return dynamic.NewForConfigAndClient(c.config, h)
}

// as gives the client of a principal: the provider's own for an agent, and one that impersonates for a user. Clients are
// kept by user, groups and extra.
func (e *endpoint) as(p sandboxcore.Principal) (*client, error) {
	if p.Mode != sandboxcore.IdentityUser {
		return e.own, nil
	}
	who := rest.ImpersonationConfig{UserName: p.Subject, Groups: p.Groups}
	if k := p.Kubernetes; k != nil {
		if k.User != "" {
			who.UserName = k.User
		}
		if len(k.Groups) > 0 {
			who.Groups = k.Groups
		}
		who.Extra = k.Extra
	}
	if who.UserName == "" {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeIdentity, Attempted: "the user could not be impersonated", Object: "kubernetes", Said: "The principal names no user.",
			Next: "Set principal.subject, or principal.kubernetes.user.", Attribute: []string{"principal"},
		}
	}
	key, err := json.Marshal(who)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if c, ok := e.users[string(key)]; ok {
		return c, nil
	}
	config := rest.CopyConfig(e.own.config)
	config.Impersonate = who
	c, err := newClient(config)
	if err != nil {
		return nil, err
	}
	e.users[string(key)] = c
	return c, nil
}

// forUser gives the client for what is done in the name of whoever the operation is for.
func (e *endpoint) forUser(ctx context.Context, fallback *sandboxcore.Principal) (*client, error) {
	if p, ok := sandboxcore.PrincipalOf(ctx); ok {
		return e.as(p)
	}
	if fallback != nil {
		return e.as(*fallback)
	}
	return e.own, nil
}

// Identity is the uid of the namespace kube-system, which lives as long as the cluster. Where that may not be read, it is
// a digest of the server's address and of the authorities that may have signed its certificate.
func (e *endpoint) Identity(ctx context.Context) (string, error) {
	e.mu.Lock()
	known := e.identity
	e.mu.Unlock()
	if known != "" {
		return known, nil
	}
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	ns, err := e.own.kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	id := ""
	switch {
	case apierrors.IsForbidden(err):
		if id, err = e.digest(); err != nil {
			return "", err
		}
	case err != nil:
		return "", e.failure(ctx, err, sandboxcore.CodeUnreachable, "the cluster could not be identified", "Kubernetes at "+e.target.config.Host, "Check that its address and your credentials are right.")
	case ns.UID == "":
		return "", e.failure(ctx, errors.New("its namespace kube-system has no uid"), sandboxcore.CodeUnreachable, "the cluster could not be identified", "Kubernetes at "+e.target.config.Host, "Check that this is a Kubernetes API server.")
	default:
		id = string(ns.UID)
	}
	e.mu.Lock()
	e.identity = id
	e.mu.Unlock()
	return id, nil
}

func (e *endpoint) digest() (string, error) {
	ca := e.target.config.CAData
	if len(ca) == 0 && e.target.config.CAFile != "" {
		var err error
		if ca, err = os.ReadFile(e.target.config.CAFile); err != nil {
			return "", err
		}
	}
	sum := sha256.Sum256([]byte(e.target.config.Host + "\n" + string(ca)))
	return "server-" + hex.EncodeToString(sum[:16]), nil
}

// Admit has nothing to refuse: what a cluster cannot give shows in the events of the pod, and ends its creation.
func (e *endpoint) Admit(context.Context, *sandboxcore.Profile, sandboxcore.Operation) error {
	return nil
}

// withDeadline bounds one call. The cause tells a server that does not answer from a caller who gave up.
func withDeadline(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, errNoAnswer)
}

// met remembers a namespace.
func (e *endpoint) met(namespace string) {
	e.mu.Lock()
	e.namespaces[namespace] = true
	e.mu.Unlock()
}

func (e *endpoint) hasMet(namespace string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.namespaces[namespace]
}

// pause waits, and reports false when the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
