package kubernetes

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// admission gives a front whose cluster changes every object of one kind, as a webhook would.
func (c *cluster) admission(t *testing.T, resource string, change func(object map[string]any)) *endpoint {
	t.Helper()
	f := c.front(t)
	f.admit = func(path string, body []byte) []byte {
		var object map[string]any
		if !strings.HasSuffix(path, "/"+resource) || json.Unmarshal(body, &object) != nil {
			return body
		}
		change(object)
		out, err := json.Marshal(object)
		if err != nil {
			t.Error(err)
		}
		return out
	}
	// The backend speaks JSON where it is told to: a webhook sees JSON as well.
	settings := f.settings()
	e := dial(t, settings)
	e.own = jsonClient(t, e)
	return e
}

// jsonClient is the endpoint's client, with bodies that can be read.
func jsonClient(t *testing.T, e *endpoint) *client {
	t.Helper()
	config := *e.own.config
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json"
	own, err := newClient(&config)
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// A webhook of the cluster may change what is asked for. A pod that is weaker than that is not handed out, and no part of it
// has run; one that is only different is.
func TestPodThatTheClusterWeakenedIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	memory, cpu := int64(64), 0.5
	limited := func(p *sandboxcore.Profile) {
		p.Policy.MemoryMB, p.Policy.CPU, p.Policy.FSAllowWrite = &memory, &cpu, []string{"/workspace"}
	}
	put := func(value any, at ...string) func(map[string]any) {
		return func(pod map[string]any) {
			container := pod["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any) //nolint:forcetypeassert // a test
			if at[0] != "container" {
				if err := unstructured.SetNestedField(pod, value, at...); err != nil {
					t.Error(err)
				}
				return
			}
			if value == nil {
				unstructured.RemoveNestedField(container, at[1:]...)
			} else if err := unstructured.SetNestedField(container, value, at[1:]...); err != nil {
				t.Error(err)
			}
		}
	}
	for name, w := range map[string]struct {
		change func(map[string]any)
		says   string
	}{
		"root that can be written": {put(false, "container", "securityContext", "readOnlyRootFilesystem"), "readOnlyRootFilesystem"},
		"no memory limit":          {put(nil, "container", "resources", "limits", "memory"), "memory"},
		"more memory":              {put("640Mi", "container", "resources", "limits", "memory"), "memory"},
		"more CPU":                 {put("2", "container", "resources", "limits", "cpu"), "cpu"},
		"token":                    {put(true, "spec", "automountServiceAccountToken"), "token"},
		"another user":             {put(int64(2000), "container", "securityContext", "runAsUser"), "runAsUser"},
		"processes of others":      {put(true, "spec", "shareProcessNamespace"), "shareProcessNamespace"},
		"another command":          {put([]any{"sleep", "1000"}, "container", "command"), "command"},
		"labels":                   {put("other", "metadata", "labels", sandboxcore.MarkRequest), sandboxcore.MarkRequest},
		"no lifetime":              {func(pod map[string]any) { unstructured.RemoveNestedField(pod, "spec", "activeDeadlineSeconds") }, "activeDeadlineSeconds"},
		"one more volume": {func(pod map[string]any) {
			spec := pod["spec"].(map[string]any) //nolint:forcetypeassert // a test
			volumes := spec["volumes"].([]any)   //nolint:forcetypeassert // a test
			spec["volumes"] = append(volumes, map[string]any{"name": "more", "emptyDir": map[string]any{}})
			container := spec["containers"].([]any)[0].(map[string]any) //nolint:forcetypeassert // a test
			mounts := container["volumeMounts"].([]any)                 //nolint:forcetypeassert // a test
			container["volumeMounts"] = append(mounts, map[string]any{"name": "more", "mountPath": "/srv/more"})
		}, "/srv/more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := c.admission(t, "pods", w.change)
			told := ""
			m, err := e.Create(t.Context(), request(c.profile(limited), func(r *sandboxcore.CreateRequest) { r.Marks.Args.MaxLifetime = "10m" }), func(i sandboxcore.SandboxInfo) { told = i.NativeID })
			if err == nil {
				_ = sandboxcore.WithCleanup(t.Context(), m.Destroy)
			}
			refused(t, err, sandboxcore.CodeProvision, "weaker", w.says)
			if told == "" {
				t.Fatal("the caller does not know of it")
			}
			_, err = e.Find(t.Context(), told, true)
			refused(t, err, sandboxcore.CodeGone)
		})
	}
	t.Run("different", func(t *testing.T) {
		t.Parallel()
		e := c.admission(t, "pods", func(pod map[string]any) {
			put("x", "metadata", "labels", "added-by")(pod)
			put("32Mi", "container", "resources", "limits", "memory")(pod)
			put("32Mi", "container", "resources", "requests", "memory")(pod)
			put([]any{map[string]any{"name": "ADDED", "value": "x"}}, "container", "env")(pod)
		})
		m, err := e.Create(t.Context(), request(c.profile(limited)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := python(t.Context(), m, "print(1)").ok(t); got != "1\n" {
			t.Errorf("%q", got)
		}
		if err := sandboxcore.WithCleanup(t.Context(), m.Destroy); err != nil {
			t.Error(err)
		}
	})
}

// A webhook that opens every network policy a little: what the listener shows is not all of it.
func TestPolicyThatTheClusterChangedIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	e := c.admission(t, "networkpolicies", func(policy map[string]any) {
		rule := map[string]any{"to": []any{map[string]any{"ipBlock": map[string]any{"cidr": "192.0.2.0/24"}}}}
		if err := unstructured.SetNestedSlice(policy, []any{rule}, "spec", "egress"); err != nil {
			t.Error(err)
		}
	})
	m, err := e.Create(t.Context(), request(c.profile(deny)), nil)
	if err == nil {
		_ = sandboxcore.WithCleanup(t.Context(), m.Destroy)
	}
	refused(t, err, sandboxcore.CodeNetwork, "NetworkPolicy", "changed")
}

// A conflict is somebody else's change at the same moment, and no sign that the sandbox is gone.
func TestConflictIsNoEnd(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.create(t, c.profile())
	f := c.front(t)
	marks := s.info.Marks
	marks.Args.Labels = map[string]string{"team": "data"}
	through := f.through(t, s)
	f.conflicts.Store(2)
	if err := through.Update(t.Context(), c.profile(), marks); err != nil {
		t.Errorf("one or two conflicts: %v", err)
	}
	if got := c.pod(t, s.pod).Labels["team"]; got != "data" {
		t.Errorf("label %q", got)
	}
	f.conflicts.Store(1 << 30)
	refused(t, through.Update(t.Context(), c.profile(), marks), sandboxcore.CodeProvision, "modified")
	// Another pod under the same name is.
	other := *s
	other.podUID = "11111111-1111-1111-1111-111111111111"
	refused(t, other.Update(t.Context(), c.profile(), marks), sandboxcore.CodeGone, "taken its name")
}

// No request is waited for without an end: a server that answers all others and not this one is away.
func TestServerThatFallsSilent(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for name, silent := range map[string]func(*http.Request) bool{
		"watch":     func(r *http.Request) bool { return r.URL.Query().Get("watch") != "" },
		"discovery": func(r *http.Request) bool { return r.URL.Path == "/apis/"+sandboxGroup },
		"version":   func(r *http.Request) bool { return r.URL.Path == "/version" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := c.front(t)
			f.silent = silent
			e := dial(t, f.settings())
			e.timings.call = 2 * time.Second
			done := make(chan error, 1)
			go func() {
				if name != "watch" {
					_, err := e.Offers(t.Context())
					done <- err
					return
				}
				// It is looked at again and again instead.
				m, err := e.Create(t.Context(), request(c.profile()), nil)
				if err == nil {
					err = sandboxcore.WithCleanup(t.Context(), m.Destroy)
				}
				done <- err
			}()
			select {
			case err := <-done:
				if name == "discovery" {
					refused(t, err, sandboxcore.CodeUnreachable, "did not answer in time")
				} else if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				f.CloseClientConnections()
				t.Fatal("it is still waited for")
			}
		})
	}
}

// An attached pod behind a proxy that knows no WebSocket: its shell says nothing before it was given something.
func TestAttachedPodOverSPDY(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.somebodysPod(t)
	f := c.front(t)
	f.noWebSocket.Store(true)
	e := dial(t, f.settings())
	e.timings.call = 10 * time.Second
	var m sandboxcore.AttachedEnvironment
	c.eventually(t, "the pod runs", func() bool {
		var err error
		m, err = e.Attach(t.Context(), c.profile(attachedTo("foreign")))
		return err == nil && m.Status() == sandboxcore.StatusRunning
	})
	if got := execute(t.Context(), m, sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("cat; ls -a /tmp"), Stdin: []byte("in\n")}).ok(t); !strings.HasPrefix(got, "in\n") || strings.Contains(got, "agentkernel") {
		t.Errorf("%q", got)
	}
}

// A provider with rights in one namespace lists that one, whatever the kubeconfig's context would be for kubectl.
func TestListWithRightsInOneNamespace(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.create(t, c.profile())
	const who = "lister"
	kube := c.e.own.kube.RbacV1()
	if _, err := kube.Roles(c.ns).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: who}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.RoleBindings(c.ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: who}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: who},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: who + c.ns}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e := dial(t, sandboxcore.Settings{keyConfigPath: c.Kubeconfig})
	own, err := e.as(user(who + c.ns))
	if err != nil {
		t.Fatal(err)
	}
	e.own = own
	if _, err := e.Find(t.Context(), s.info.NativeID, true); err != nil {
		t.Fatal(err)
	}
	infos, err := e.List(t.Context())
	if err != nil || len(infos) != 1 || infos[0].NativeID != s.info.NativeID {
		t.Errorf("%+v, %v", infos, err)
	}
	// Where nothing at all may be listed, that is an error and no empty list.
	blind := dial(t, sandboxcore.Settings{keyConfigPath: c.Kubeconfig})
	if blind.own, err = blind.as(user("nobody" + c.ns)); err != nil {
		t.Fatal(err)
	}
	_, err = blind.List(t.Context())
	refused(t, err, sandboxcore.CodeIdentity, "Grant")
}

// Where the cluster takes only pods with certain labels, the pod that policies are checked against has them, too.
func TestListenerHasTheLabelsOfTheProfile(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var mu sync.Mutex
	var made []map[string]string
	e := c.admission(t, "pods", func(pod map[string]any) {
		labels, _, err := unstructured.NestedStringMap(pod, "metadata", "labels")
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		made = append(made, labels)
		mu.Unlock()
	})
	m, err := e.Create(t.Context(), request(c.profile(deny, set(keyLabels, map[string]any{"team": "data"}))), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := sandboxcore.WithCleanup(t.Context(), m.Destroy); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	kinds := map[string]bool{}
	for _, labels := range made {
		kinds[labels[sandboxcore.MarkKind]] = true
		if labels["team"] != "data" {
			t.Errorf("%v", labels)
		}
	}
	if len(made) != 2 || !kinds[kindSandbox] || !kinds[kindListener] {
		t.Errorf("%v", made)
	}
}

// What becomes of a container that the cluster puts beside the sandbox is not what becomes of the sandbox.
func TestContainerBesideTheSandbox(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	e := c.admission(t, "pods", func(pod map[string]any) {
		spec := pod["spec"].(map[string]any)     //nolint:forcetypeassert // a test
		containers := spec["containers"].([]any) //nolint:forcetypeassert // a test
		ours := containers[0].(map[string]any)   //nolint:forcetypeassert // a test
		beside := func(name string, more map[string]any) map[string]any {
			out := map[string]any{"name": name, "image": ours["image"], "imagePullPolicy": "Never", "securityContext": ours["securityContext"]}
			maps.Copy(out, more)
			return out
		}
		spec["containers"] = append(containers,
			beside("ends", map[string]any{"command": []any{"true"}}),
			beside("never-ready", map[string]any{"command": []any{"sleep", "600"}, "readinessProbe": map[string]any{"exec": map[string]any{"command": []any{"false"}}}}),
		)
	})
	m, err := e.Create(t.Context(), request(c.profile()), nil)
	if err != nil {
		t.Fatal(err)
	}
	id := m.Info().NativeID
	c.eventually(t, "the one beside it has ended", func() bool {
		return strings.Contains(c.kubectl(t, "get", "pod", m.(*sandbox).pod, "-o", `jsonpath={.status.containerStatuses[?(@.name=="ends")].state}`), "terminated") //nolint:forcetypeassert // a test
	})
	found, err := e.Find(t.Context(), id, true)
	if err != nil {
		t.Fatal(err)
	}
	if got := python(t.Context(), found, "print(1)").ok(t); got != "1\n" || found.Info().Status != sandboxcore.StatusRunning {
		t.Errorf("%q, %s", got, found.Info().Status)
	}
	if err := sandboxcore.WithCleanup(t.Context(), found.Destroy); err != nil {
		t.Error(err)
	}
}
