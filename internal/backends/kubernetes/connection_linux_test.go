package kubernetes

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// pluginConfig writes a kubeconfig of the test cluster whose only credential is what a program prints.
func (c *cluster) pluginConfig(t *testing.T, script string, mode clientcmdapi.ExecInteractiveMode) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "plugin")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"+script), 0o700); err != nil { // #nosec G306 -- a program
		t.Fatal(err)
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
			APIVersion: "client.authentication.k8s.io/v1", Command: program, InteractiveMode: mode, ProvideClusterInfo: false,
		}}
	}
	file := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// credential is what a plugin prints: the certificate of the test cluster's administrator.
func (c *cluster) credential(t *testing.T) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		if len(user.ClientCertificateData) == 0 {
			testenv.Skip(t, testenv.Kubernetes, "the administrator of this cluster has no certificate", "make cluster-up")
		}
		text, err := json.Marshal(map[string]any{
			"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
			"status": map[string]any{"clientCertificateData": string(user.ClientCertificateData), "clientKeyData": string(user.ClientKeyData)},
		})
		if err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(text)
	}
	t.Fatal("the kubeconfig has no user")
	return ""
}

// A credential plugin of the kubeconfig, on the real API server: it is asked, once for many calls, and runs and files work
// with what it gives. One that fails, hangs, or wants to talk to somebody is an error that says so.
func TestCredentialPlugin(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	asked := filepath.Join(t.TempDir(), "asked")
	works := c.pluginConfig(t, "echo x >>"+asked+"\necho "+c.credential(t)+" | base64 -d\n", clientcmdapi.NeverExecInteractiveMode)
	plugged := *c
	plugged.e = dial(t, sandboxcore.Settings{keyConfigPath: works})
	s := plugged.create(t, c.profile())
	if got := python(t.Context(), s, "print(1)").ok(t); got != "1\n" {
		t.Errorf("printed %q", got)
	}
	if text, err := os.ReadFile(asked); err != nil || string(text) != "x\n" {
		t.Errorf("asked %q, %v", text, err)
	}
	if id, err := plugged.e.Identity(t.Context()); err != nil || id != s.info.Endpoint {
		t.Errorf("%s, %v", id, err)
	}
	if _, err := c.e.Find(t.Context(), s.info.NativeID, true); err != nil {
		t.Errorf("it is another cluster: %v", err)
	}
	for name, bad := range map[string]struct {
		script string
		mode   clientcmdapi.ExecInteractiveMode
	}{
		"fails":           {"echo 'secret-of-the-plugin' >&2; exit 3", clientcmdapi.NeverExecInteractiveMode},
		"prints nonsense": {"echo secret-of-the-plugin", clientcmdapi.NeverExecInteractiveMode},
		"hangs":           {"exec sleep 30", clientcmdapi.NeverExecInteractiveMode},
		"wants to talk":   {"read secret", clientcmdapi.AlwaysExecInteractiveMode},
	} {
		t.Run(name, func(t *testing.T) {
			e := dial(t, sandboxcore.Settings{keyConfigPath: c.pluginConfig(t, bad.script, bad.mode)})
			e.timings.call = 3 * time.Second
			begun := time.Now()
			_, err := e.Identity(t.Context())
			refused(t, err, sandboxcore.CodeUnreachable, "plugin")
			if took := time.Since(begun); took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
			if strings.Contains(err.Error(), "secret-of") {
				t.Errorf("what the plugin said is in the error: %v", err)
			}
		})
	}
}

// The same for a plugin that stands in the provider configuration, with arguments in their order and variables of its own.
func TestCredentialPluginOfTheConfiguration(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	config, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	settings := sandboxcore.Settings{keyExec: map[string]any{
		keyExecCommand: "sh", keyExecArgs: []any{"-c", `[ "$1$2" = ba ] && printf %s "$CREDENTIAL" | base64 -d`, "plugin", "b", "a"},
		keyExecEnv: map[string]any{"CREDENTIAL": c.credential(t)},
	}}
	for _, cl := range config.Clusters {
		settings[keyHost], settings[keyCA] = cl.Server, string(cl.CertificateAuthorityData)
	}
	plugged := *c
	plugged.e = dial(t, settings)
	s := plugged.create(t, c.profile())
	if got := python(t.Context(), s, "print(1)").ok(t); got != "1\n" {
		t.Errorf("printed %q", got)
	}
}

const inClusterChild = "AGENTKERNEL_TEST_IN_CLUSTER"

// in_cluster takes the service account of the pod that the provider runs in. Its files are at a fixed place, so that the test
// runs once more in a mount namespace of its own, where they are.
func TestInCluster(t *testing.T) {
	if dir := os.Getenv(inClusterChild); dir != "" {
		inCluster(t, dir)
		return
	}
	t.Parallel()
	testenv.Require(t, testenv.Root) // only root can lay files where a service account has them
	c := newCluster(t)
	rbac := filepath.Join(t.TempDir(), "rbac.yaml")
	writeFile(t, rbac, fmt.Sprintf(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: provider}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: provider}
rules:
- {apiGroups: [""], resources: [pods], verbs: [create, get, list, watch, patch, delete]}
- {apiGroups: [""], resources: [pods/exec], verbs: [create, get]}
- {apiGroups: [""], resources: [configmaps], verbs: [create, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: provider}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: provider}
subjects: [{kind: ServiceAccount, name: provider, namespace: %s}]
`, c.ns))
	c.kubectl(t, "apply", "-f", rbac)
	dir := t.TempDir()
	config, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	var host *url.URL
	for _, cl := range config.Clusters {
		writeFile(t, filepath.Join(dir, "ca.crt"), string(cl.CertificateAuthorityData))
		if host, err = url.Parse(cl.Server); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(dir, "token"), strings.TrimSpace(c.kubectl(t, "create", "token", "provider")))
	writeFile(t, filepath.Join(dir, "namespace"), c.ns)
	writeFile(t, filepath.Join(dir, "image"), c.Image)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInCluster$", "-test.v")
	cmd.Env = append(os.Environ(), inClusterChild+"="+dir, "KUBERNETES_SERVICE_HOST="+host.Hostname(), "KUBERNETES_SERVICE_PORT="+host.Port(), "KUBECONFIG=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestInCluster") {
		t.Errorf("%v\n%s", err, out)
	}
}

// inCluster runs in a mount namespace of its own.
func inCluster(t *testing.T, dir string) {
	t.Helper()
	const account = "/var/run/secrets/kubernetes.io/serviceaccount"
	files := map[string]string{}
	for _, name := range []string{"ca.crt", "token", "namespace", "image"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	run, err := filepath.EvalSymlinks("/var/run")
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", run, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(account, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca.crt", "token", "namespace"} {
		writeFile(t, filepath.Join(account, name), files[name])
	}
	for name, settings := range map[string]sandboxcore.Settings{
		"asked for":       {keyInCluster: true, keyNamespaces: []any{files["namespace"]}},
		"nothing is said": {keyNamespaces: []any{files["namespace"]}}, // a pod without a kubeconfig
	} {
		t.Run(name, func(t *testing.T) {
			b, err := newBackend(settings, func(k string) string {
				if k == "HOME" {
					return dir
				}
				return os.Getenv(k)
			})
			if err != nil {
				t.Fatal(err)
			}
			m, err := b.Connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c := &cluster{e: m.(*endpoint), ns: files["namespace"]} //nolint:forcetypeassert // a test
			c.Image = files["image"]
			if id, err := c.e.Identity(t.Context()); err != nil || !strings.HasPrefix(id, "server-") {
				t.Errorf("identity %q, %v", id, err) // it may not read kube-system
			}
			s := c.create(t, c.profile())
			if got := python(t.Context(), s, "print(1)").ok(t); got != "1\n" {
				t.Errorf("printed %q", got)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := s.Destroy(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
