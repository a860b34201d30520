package kubernetes

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Offers says what the cluster has. Whether it enforces network policies is seen by a real probe, where the configuration
// names a namespace for it.
func (e *endpoint) Offers(ctx context.Context) (sandboxcore.Offer, error) {
	id, err := e.Identity(ctx)
	if err != nil {
		return sandboxcore.Offer{}, err
	}
	o := sandboxcore.Offer{
		Endpoint: id, Reachable: true, Languages: []string{"python"}, CPU: true, Memory: true,
		Facts: map[string]string{"server": e.target.config.Host, "network policy": "not probed: kubernetes.probe_namespace of the provider names no namespace for it"},
	}
	if v := e.serverVersion(ctx); v != "" {
		o.Facts["server version"] = v
	}
	api, err := e.sandboxes(ctx)
	if err != nil {
		return o, err
	}
	o.Facts["sandbox API"] = "none"
	if api.version != "" {
		o.Facts["sandbox API"], o.Pause = api.resource().GroupVersion().String(), true
	}
	if ns := e.config.probe.namespace; ns != "" {
		e.reviewRights(ctx, ns, &o)
		err := e.probePolicy(ctx, ns)
		switch {
		case err == nil:
			o.Network, o.Facts["network policy"] = true, "enforced for pods of namespace "+ns
		case sandboxcore.IsCode(err, sandboxcore.CodeNetwork):
			o.Facts["network policy"] = "not enforced for pods of namespace " + ns
		default:
			o.Facts["network policy"] = "not known: " + err.Error()
		}
	}
	return o, nil
}

// serverVersion is empty where the server does not tell.
func (e *endpoint) serverVersion(ctx context.Context) string {
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	text, err := e.own.kube.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	var v version.Info
	if err != nil || json.Unmarshal(text, &v) != nil {
		return ""
	}
	return v.GitVersion
}

// reviewRights says which rights in the namespace are missing.
func (e *endpoint) reviewRights(ctx context.Context, namespace string, o *sandboxcore.Offer) {
	var missing strings.Builder
	for _, r := range []struct{ group, resource, sub, verb string }{
		{"", "pods", "", "create"},
		{"", "pods", "", "get"},
		{"", "pods", "", "list"},
		{"", "pods", "", "patch"},
		{"", "pods", "", "delete"},
		{"", "pods", "exec", "create"},
		{"", "pods", "exec", "get"},
		{"", "configmaps", "", "create"},
		{"", "configmaps", "", "delete"},
		{"networking.k8s.io", "networkpolicies", "", "create"},
		{"networking.k8s.io", "networkpolicies", "", "list"},
		{"networking.k8s.io", "networkpolicies", "", "patch"},
		{"networking.k8s.io", "networkpolicies", "", "delete"},
	} {
		call, cancel := withDeadline(ctx, e.timings.call)
		review, err := e.own.kube.AuthorizationV1().SelfSubjectAccessReviews().Create(call, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Group: r.group, Resource: r.resource, Subresource: r.sub, Verb: r.verb,
			}},
		}, metav1.CreateOptions{})
		cancel()
		if err != nil || review.Status.Allowed {
			continue
		}
		name := r.resource
		if r.sub != "" {
			name += "/" + r.sub
		}
		missing.WriteString(" " + r.verb + " " + name + ";")
	}
	if missing.Len() > 0 {
		o.Facts["missing rights"] = "in namespace " + namespace + ":" + missing.String()
	}
}

// probePolicy makes a pod that may reach another one and a pod that may not. Both halves count: where nothing can be
// reached anyway, a policy that seems to hold proves nothing.
func (e *endpoint) probePolicy(ctx context.Context, namespace string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	open, err := e.probeSandbox(ctx, namespace, sandboxcore.NetworkAllow)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sandboxcore.WithCleanup(ctx, open.Destroy)) }()
	p := probeProfile(e.config.probe.image, namespace, sandboxcore.NetworkDeny)
	b := &building{e: e, req: sandboxcore.CreateRequest{Profile: p, Marks: probeMarks(p)}, o: optionsOf(p), deadline: time.Now().Add(optionsOf(p).createTimeout)}
	if err := b.listen(ctx); err != nil {
		return err
	}
	defer b.release()
	addr, err := b.address(ctx)
	if err != nil {
		return err
	}
	b.deadline = time.Now().Add(15 * time.Second)
	if err := b.dial(ctx, open, "open", addr, &sandboxcore.Error{
		Code: sandboxcore.CodeProvision, Attempted: "it could not be seen whether network policies hold", Object: "namespace " + namespace,
		Said: "Pods of the namespace cannot reach each other even without a policy of ours.", Next: "Look for other network policies of the namespace.",
	}); err != nil {
		return err
	}
	closed, err := e.probeSandbox(ctx, namespace, sandboxcore.NetworkDeny)
	if err != nil {
		return err
	}
	return sandboxcore.WithCleanup(ctx, closed.Destroy)
}

func probeProfile(image, namespace string, egress sandboxcore.NetworkMode) *sandboxcore.Profile {
	cpu, memory := 0.1, int64(64)
	return &sandboxcore.Profile{
		Name: "probe", Type: sandboxcore.BackendKubernetes, Environment: sandboxcore.EnvironmentManaged, Identity: sandboxcore.IdentityAgent,
		Scope: sandboxcore.DefaultScope, IdleTimeout: sandboxcore.DefaultIdleTimeout,
		Policy:   sandboxcore.Policy{NetworkEgress: egress, CPU: &cpu, MemoryMB: &memory, Timeout: sandboxcore.DefaultTimeout, Strict: true},
		Settings: sandboxcore.Settings{keyImage: image, keyNamespace: namespace, keyNetworkPolicy: true, keyCreateTimeout: 60.0},
	}
}

func probeMarks(p *sandboxcore.Profile) sandboxcore.Marks {
	var id [12]byte
	_, _ = rand.Read(id[:]) // never fails
	spec, err := sandboxcore.EncodeSpec(p)
	if err != nil {
		spec = "{}"
	}
	return sandboxcore.Marks{
		Name: "probe", Spec: spec, Created: time.Now().UTC(), Request: "probe-" + hex.EncodeToString(id[:]),
		// It ends by itself if its provider does not live to remove it.
		Args: sandboxcore.CreateArgs{MaxLifetime: "15m"},
	}
}

func (e *endpoint) probeSandbox(ctx context.Context, namespace string, egress sandboxcore.NetworkMode) (*sandbox, error) {
	p := probeProfile(e.config.probe.image, namespace, egress)
	created := ""
	m, err := e.Create(ctx, sandboxcore.CreateRequest{Profile: p, Marks: probeMarks(p), Principal: sandboxcore.DefaultPrincipal()}, func(i sandboxcore.SandboxInfo) { created = i.NativeID })
	if err != nil {
		if created != "" {
			_ = sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
				left, ferr := e.Find(ctx, created, true)
				if ferr != nil {
					return ferr
				}
				return left.Destroy(ctx)
			})
		}
		return nil, err
	}
	s, ok := m.(*sandbox)
	if !ok {
		return nil, errors.New("a pod was asked for and something else was made")
	}
	return s, nil
}
