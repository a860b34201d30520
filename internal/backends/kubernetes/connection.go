package kubernetes

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// connection says which API server to speak to, before any file is read.
type connection struct {
	configPath string
	context    string
	inCluster  bool
	host       string
	token      string
	ca         string
	plugin     *clientcmdapi.ExecConfig // credential plugin for host; nil: the token
	namespaces []string
	probe      struct{ namespace, image string }

	env struct {
		kubeconfig string // KUBECONFIG
		home       string // HOME
		service    bool   // KUBERNETES_SERVICE_HOST is set: we run in a pod
	}
}

func readConnection(s sandboxcore.Settings, getenv func(string) string) (connection, error) {
	c := connection{
		configPath: s.String(keyConfigPath, ""), context: s.String(keyContext, ""), inCluster: s.Bool(keyInCluster, false),
		host: s.String(keyHost, ""), token: s.String(keyToken, ""), ca: s.String(keyCA, ""), namespaces: s.Strings(keyNamespaces),
	}
	c.probe.namespace, c.probe.image = s.String(keyProbeNamespace, ""), s.String(keyProbeImage, defaultImage)
	c.env.kubeconfig, c.env.home, c.env.service = getenv("KUBECONFIG"), getenv("HOME"), getenv("KUBERNETES_SERVICE_HOST") != ""
	if c.env.home == "" {
		c.env.home = getenv("USERPROFILE")
	}
	refuse := func(attribute, said, next string) (connection, error) {
		return c, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the provider configuration was refused", Object: "kubernetes", Said: said, Next: next,
			Attribute: []string{"kubernetes", attribute},
		}
	}
	plugin := s.Object(keyExec)
	switch {
	case plugin != nil && c.host == "":
		return refuse(keyExec, "A credential plugin is only for the host that stands beside it.", "Set host as well, or remove exec: a kubeconfig names its own plugin.")
	case plugin != nil && c.token != "":
		return refuse(keyExec, "A credential plugin and a token are both there.", "Keep one of them.")
	case plugin != nil && plugin.String(keyExecCommand, "") == "":
		return refuse(keyExec, "The credential plugin has no command.", "Set exec.command, such as \"aws\".")
	case c.host != "" && (c.configPath != "" || c.context != "" || c.inCluster):
		return refuse(keyHost, "host says where the API server is, and so does another setting.", "Keep host, or config_path with context, or in_cluster.")
	case c.inCluster && (c.configPath != "" || c.context != ""):
		return refuse(keyInCluster, "in_cluster uses the service account of this pod, and a kubeconfig is named as well.", "Remove one of them.")
	case c.host == "" && c.token != "":
		return refuse(keyToken, "A token is only for the host that stands beside it.", "Set host as well, or remove token: a kubeconfig holds its own credentials.")
	case c.host == "" && c.ca != "":
		return refuse(keyCA, "The certificates are only for the host that stands beside them.", "Set host as well, or remove cluster_ca_certificate.")
	case c.host != "" && c.token == "" && plugin == nil:
		return refuse(keyHost, "host has no credential beside it, and none of the environment or of a kubeconfig is sent to it.", "Set token or exec as well.")
	}
	if plugin != nil {
		c.plugin = credentialPlugin(plugin)
	}
	return c, nil
}

// credentialPlugin gives client-go's form of the exec setting.
func credentialPlugin(s sandboxcore.Settings) *clientcmdapi.ExecConfig {
	plugin := &clientcmdapi.ExecConfig{
		APIVersion: s.String(keyExecAPIVersion, defaultExecAPIVersion), Command: s.String(keyExecCommand, ""), Args: s.Strings(keyExecArgs),
		InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}
	env := s.StringMap(keyExecEnv)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		plugin.Env = append(plugin.Env, clientcmdapi.ExecEnvVar{Name: name, Value: env[name]})
	}
	withoutTerminal(plugin)
	return plugin
}

// withoutTerminal keeps a credential plugin from asking somebody: standard input of a provider is Terraform's own.
func withoutTerminal(plugin *clientcmdapi.ExecConfig) {
	plugin.StdinUnavailable = true
	plugin.StdinUnavailableMessage = "a Terraform provider has no terminal"
}

// target is a connection that was resolved.
type target struct {
	config *rest.Config
	// origin says for people where the address comes from.
	origin string
	// namespace of the context, where one is named.
	namespace string
}

func (c connection) resolve() (target, error) {
	switch {
	case c.host != "":
		return target{origin: "host in the provider configuration", config: &rest.Config{
			Host: c.host, BearerToken: c.token, ExecProvider: c.plugin, TLSClientConfig: rest.TLSClientConfig{CAData: []byte(c.ca)},
		}}, nil
	case c.inCluster:
		return c.resolveInCluster("in_cluster in the provider configuration")
	}
	rules := &clientcmd.ClientConfigLoadingRules{}
	origin := ""
	switch {
	case c.configPath != "":
		rules.ExplicitPath, origin = c.configPath, "config_path in the provider configuration"
	case c.env.kubeconfig != "":
		rules.Precedence, origin = filepath.SplitList(c.env.kubeconfig), "KUBECONFIG"
	default:
		file := filepath.Join(c.env.home, ".kube", "config")
		_, err := os.Stat(file)
		switch {
		case c.env.home != "" && err == nil:
			rules.ExplicitPath, origin = file, "the default kubeconfig "+file
		case c.env.service:
			return c.resolveInCluster("the service account of this pod")
		default:
			return target{}, &sandboxcore.Error{
				Code: sandboxcore.CodeUnreachable, Attempted: "the cluster could not be found", Object: "kubernetes",
				Said: "Neither the provider configuration nor the environment names a cluster, and there is no ~/.kube/config.",
				Next: "Set config_path, host or in_cluster in the provider's kubernetes attribute, or KUBECONFIG.", Attribute: []string{"kubernetes"},
			}
		}
	}
	return c.fromKubeconfig(rules, origin)
}

func (c connection) fromKubeconfig(rules *clientcmd.ClientConfigLoadingRules, origin string) (target, error) {
	refuse := func(err error) (target, error) {
		next := "Check the file and its contexts (kubectl config get-contexts)."
		if errors.Is(err, fs.ErrNotExist) {
			next = "Check the path."
		}
		return target{}, &sandboxcore.Error{
			Code: sandboxcore.CodeUnreachable, Attempted: "the kubeconfig could not be used", Object: "kubernetes (" + origin + ")",
			Said: sentence(err.Error()), Next: next, Attribute: []string{"kubernetes", keyConfigPath},
		}
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.context})
	raw, err := loader.RawConfig()
	if err != nil {
		return refuse(err)
	}
	// An empty configuration would silently become the pod's own service account, or localhost.
	name := raw.CurrentContext
	if c.context != "" {
		name = c.context
	}
	if raw.Contexts[name] == nil {
		return refuse(fmt.Errorf("it has no context %q", name))
	}
	config, err := loader.ClientConfig()
	if err != nil {
		return refuse(err)
	}
	if config.ExecProvider != nil {
		withoutTerminal(config.ExecProvider)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		namespace = ""
	}
	return target{config: config, origin: origin + fmt.Sprintf(" (context %q)", name), namespace: namespace}, nil
}

func (c connection) resolveInCluster(origin string) (target, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return target{}, &sandboxcore.Error{
			Code: sandboxcore.CodeUnreachable, Attempted: "the service account of this pod could not be used", Object: "kubernetes",
			Said: sentence(err.Error()), Next: "Run the provider in a pod with a service account token, or name a kubeconfig.", Attribute: []string{"kubernetes", keyInCluster},
		}
	}
	return target{config: config, origin: origin}, nil
}

func sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" || strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}
