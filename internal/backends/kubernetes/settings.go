package kubernetes

import (
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Defaults of spec version 1. They never change: a profile that does not name a key has the value that it had when
// version 1 came out.
const (
	defaultNamespace     = "default"
	defaultImage         = "python:3.12-slim"
	defaultPullPolicy    = "missing"
	defaultCreateTimeout = 120.0
	defaultWorkspaceMB   = 1024
	defaultUser          = 1000
	defaultArchitecture  = "amd64"
)

// Values of workload.
const (
	workloadPod     = "pod"
	workloadSandbox = "sandbox"
)

// Keys of the provider attribute.
const (
	keyConfigPath     = "config_path"
	keyContext        = "context"
	keyInCluster      = "in_cluster"
	keyHost           = "host"
	keyToken          = "token"
	keyCA             = "cluster_ca_certificate"
	keyExec           = "exec"
	keyNamespaces     = "namespaces"
	keyProbeNamespace = "probe_namespace"
	keyProbeImage     = "probe_image"
)

// Keys of exec in the provider attribute.
const (
	keyExecAPIVersion = "api_version"
	keyExecCommand    = "command"
	keyExecArgs       = "args"
	keyExecEnv        = "env"

	defaultExecAPIVersion = "client.authentication.k8s.io/v1"
)

// Keys of the profile attribute.
const (
	keyNamespace         = "namespace"
	keyImage             = "image"
	keyServiceAccount    = "service_account"
	keyPullSecrets       = "image_pull_secrets" // #nosec G101 -- the name of a setting
	keyLabels            = "labels"
	keyNodeSelector      = "node_selector"
	keyEnv               = "env"
	keyPodSecurity       = "security_context"
	keyContainerSecurity = "container_security_context"
	keyNetworkPolicy     = "network_policy"
	keyCreateTimeout     = "create_timeout"

	keyWorkload       = "workload"
	keyPullPolicy     = "pull_policy"
	keyTolerations    = "tolerations"
	keyRuntimeClass   = "runtime_class_name"
	keyIsolation      = "isolation"
	keyPriorityClass  = "priority_class_name"
	keyWorkspaceMB    = "workspace_size_mb"
	keyWorkspaceClaim = "workspace_claim"
	keyStorageClass   = "workspace_storage_class"
	keyAllowDNS       = "network_allow_dns"
	keyWaitForNode    = "wait_for_node"
	keyArchitecture   = "architecture"

	keyRunAsUser      = "run_as_user"
	keyRunAsGroup     = "run_as_group"
	keyRunAsNonRoot   = "run_as_non_root"
	keyFSGroup        = "fs_group"
	keySupplemental   = "supplemental_groups"
	keySeccomp        = "seccomp_profile"
	keyEscalation     = "allow_privilege_escalation"
	keyReadOnlyRoot   = "read_only_root_filesystem"
	keyCapabilities   = "capabilities_add"
	seccompDefault    = "RuntimeDefault"
	seccompUnconfined = "Unconfined"
)

func number(v float64) *float64 { return new(v) }

const (
	dnsLabel     = `^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	dnsLabelHint = "up to 63 lower-case letters, digits and '-'"
	dnsName      = `^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`
	dnsNameHint  = "the name of an object: lower-case letters, digits, '-' and '.'"
)

func providerSettings() []sandboxcore.Setting {
	return []sandboxcore.Setting{
		{
			Name: keyConfigPath, Kind: sandboxcore.KindString,
			Description: "Path of a kubeconfig file, with the credentials in it: certificates, tokens, exec plugins. Conflicts with " +
				"`host` and `in_cluster`. Defaults to `KUBECONFIG`, then `~/.kube/config`, then the service account of the pod that the provider runs in.",
		},
		{
			Name: keyContext, Kind: sandboxcore.KindString,
			Description: "Context of the kubeconfig to use. Defaults to its current context.",
		},
		{
			Name: keyInCluster, Kind: sandboxcore.KindBool,
			Description: "Use the service account of the pod that the provider runs in. Conflicts with `config_path`, `context` and `host`.",
		},
		{
			Name: keyHost, Kind: sandboxcore.KindString,
			Description: "Address of the API server, `https://host:port`. It uses no credential of the environment or of a kubeconfig: " +
				"set `token` or `exec` and, unless its certificate is publicly trusted, `cluster_ca_certificate` beside it.",
			Pattern: `^https://[^/?#@]+(/[^?#]*)?$`, PatternHint: "https:// followed by host and port",
		},
		{
			Name: keyToken, Kind: sandboxcore.KindString, Sensitive: true,
			Description: "Bearer token for `host`; only together with it.",
		},
		{
			Name: keyCA, Kind: sandboxcore.KindString,
			Description: "PEM certificates of the authorities that may have signed the certificate of `host`; only together with it.",
		},
		{
			Name: keyExec, Kind: sandboxcore.KindObject,
			Description: "Credential plugin for `host`: a program on the machine of the provider that prints an `ExecCredential`, such as `aws eks " +
				"get-token`. It gets no terminal. Only together with `host`; conflicts with `token`. A kubeconfig names its own plugin.",
			Fields: []sandboxcore.Setting{
				{
					Name: keyExecAPIVersion, Kind: sandboxcore.KindString, OneOf: []string{defaultExecAPIVersion, "client.authentication.k8s.io/v1beta1"},
					Description: "Version of the `ExecCredential` that the program prints. Defaults to `" + defaultExecAPIVersion + "`.",
				},
				{
					Name: keyExecCommand, Kind: sandboxcore.KindString,
					Description: "The program: a name that is looked up on the `PATH`, or a path. Required.",
				},
				{
					Name: keyExecArgs, Kind: sandboxcore.KindStringList, Ordered: true,
					Description: "Its arguments. Everybody on the machine can read them in the list of processes, so put secrets into `env`.",
				},
				{
					Name: keyExecEnv, Kind: sandboxcore.KindStringMap, Sensitive: true,
					Description: "Environment variables for it, beside those of the provider.",
				},
			},
		},
		{
			Name: keyNamespaces, Kind: sandboxcore.KindStringList, Pattern: dnsLabel, PatternHint: dnsLabelHint,
			Description: "Namespaces in which `terraform query` and `agentkernel_sandboxes` look for sandboxes. Defaults to all, " +
				"which needs the right to list pods of the whole cluster.",
		},
		{
			Name: keyProbeNamespace, Kind: sandboxcore.KindString, Pattern: dnsLabel, PatternHint: dnsLabelHint,
			Description: "Namespace in which `agentkernel_backends { probe = true }` makes two short-lived pods to see whether the " +
				"cluster enforces network policies. Without it that is not probed.",
		},
		{
			Name: keyProbeImage, Kind: sandboxcore.KindString,
			Description: "Image of the pods of that probe. Defaults to `" + defaultImage + "`.",
		},
	}
}

func profileSettings() []sandboxcore.Setting {
	return append(append(agentKernelSettings(), attachSetting()), ownSettings()...)
}

// agentKernelSettings are those that the Agent Kernel runtime has under the same name.
func agentKernelSettings() []sandboxcore.Setting {
	return []sandboxcore.Setting{
		{
			Name: keyNamespace, Kind: sandboxcore.KindString, Default: defaultNamespace, Pattern: dnsLabel, PatternHint: dnsLabelHint,
			Description: "Namespace of the sandbox, which must exist. Defaults to `" + defaultNamespace + "`.",
		},
		{
			Name: keyImage, Kind: sandboxcore.KindString, Default: defaultImage,
			Description: "Image of the sandbox, for the `architecture`. Defaults to `" + defaultImage + "`. Neither a shell nor Python " +
				"nor any other program has to be in it; what is missing is named when a run asks for it.",
		},
		{
			Name: keyServiceAccount, Kind: sandboxcore.KindString, Pattern: dnsName, PatternHint: dnsNameHint,
			Description: "Service account of the pod, for image pull secrets and admission. Its token is never mounted.",
		},
		{
			Name: keyPullSecrets, Kind: sandboxcore.KindStringList, Pattern: dnsName, PatternHint: dnsNameHint,
			Description: "Names of secrets of the namespace with credentials for the image's registry.",
		},
		{
			Name: keyLabels, Kind: sandboxcore.KindStringMap, Update: sandboxcore.UpdateLive,
			Description: "Labels of the pod. Changed in place.",
		},
		{
			Name: keyNodeSelector, Kind: sandboxcore.KindStringMap,
			Description: "Labels that the node must have.",
		},
		{
			Name: keyEnv, Kind: sandboxcore.KindStringMap,
			Description: "Environment of the pod. It can be read by whoever can read the pod: secrets belong into `secret_env` of the sandbox.",
		},
		{
			Name: keyPodSecurity, Kind: sandboxcore.KindObject, Fields: podSecuritySettings(),
			Description: "What differs from the default security context of the pod: user and group 1000, never root, the runtime's default system call filter.",
		},
		{
			Name: keyContainerSecurity, Kind: sandboxcore.KindObject, Fields: containerSecuritySettings(),
			Description: "What differs from the default security context of the container: no privilege escalation, no capabilities.",
		},
		{
			Name: keyNetworkPolicy, Kind: sandboxcore.KindBool, Default: false,
			Description: "Your assertion that the cluster enforces NetworkPolicy for pods of the namespace. Without it no egress policy " +
				"other than `allow` can be had. It is not taken on trust: a sandbox under `deny` or `allowlist` is ready only once its " +
				"policy was seen to hold, and is removed with an error if it never does.",
		},
		{
			Name: keyCreateTimeout, Kind: sandboxcore.KindFloat, Default: defaultCreateTimeout, Min: number(1), Max: number(3600), Update: sandboxcore.UpdateRecorded,
			Description: "Seconds that a sandbox may take to become ready, pulling its image included. Defaults to 120.",
		},
	}
}

func ownSettings() []sandboxcore.Setting {
	return []sandboxcore.Setting{
		{
			Name: keyWorkload, Kind: sandboxcore.KindString, Default: workloadPod, OneOf: []string{workloadPod, workloadSandbox},
			Description: "What the sandbox is: `pod` (the default; gone when its node is lost or it is evicted) or `sandbox` (an object of " +
				"kubernetes-sigs/agent-sandbox, whose controller makes the pod again; needs that project in the cluster).",
		},
		{
			Name: keyPullPolicy, Kind: sandboxcore.KindString, Default: defaultPullPolicy, OneOf: []string{"always", "missing", "never"},
			Description: "When the image is pulled: `always`, `missing` (the default: only if the node does not have it) or `never`.",
		},
		{
			Name: keyTolerations, Kind: sandboxcore.KindStringList,
			Description: "Taints that the pod tolerates, each as `key[=value][:effect[:seconds]]`, for example `dedicated=agents:NoSchedule` or " +
				"`node.kubernetes.io/unreachable:NoExecute:30`.",
			Pattern:     `^[A-Za-z0-9][A-Za-z0-9._/-]*(=[A-Za-z0-9._-]*)?(:(NoSchedule|PreferNoSchedule|NoExecute(:[0-9]{1,9})?))?$`,
			PatternHint: "key[=value][:NoSchedule|PreferNoSchedule|NoExecute[:seconds]]",
		},
		{
			Name: keyRuntimeClass, Kind: sandboxcore.KindString, Pattern: dnsName, PatternHint: dnsNameHint,
			Description: "Runtime class of the pod, for example one of gVisor or Kata Containers.",
		},
		{
			Name: keyIsolation, Kind: sandboxcore.KindString,
			OneOf: []string{string(sandboxcore.IsolationContainer), string(sandboxcore.IsolationSyscallFilter), string(sandboxcore.IsolationMicroVM)},
			Description: "The isolation tier that you assert for `runtime_class_name`, because the provider cannot see into it. Only " +
				"together with it, and marked as asserted everywhere. Without it the tier is `container`.",
		},
		{
			Name: keyPriorityClass, Kind: sandboxcore.KindString, Pattern: dnsName, PatternHint: dnsNameHint,
			Description: "Priority class of the pod.",
		},
		{
			Name: keyWorkspaceMB, Kind: sandboxcore.KindInt, Default: float64(defaultWorkspaceMB), Min: number(1), Max: number(1 << 24),
			Description: "Size of each writable path in MB. A pod that exceeds it is evicted by its node within seconds. Defaults to 1024. " +
				"For `workload = \"sandbox\"` it is the size that the claim of the workspace asks for.",
		},
		{
			Name: keyWorkspaceClaim, Kind: sandboxcore.KindString, Pattern: dnsName, PatternHint: dnsNameHint,
			Description: "Name of an existing PersistentVolumeClaim of the namespace to use as `/workspace`. It is neither made nor removed by the provider.",
		},
		{
			Name: keyStorageClass, Kind: sandboxcore.KindString, Pattern: dnsName, PatternHint: dnsNameHint,
			Description: "Storage class of the workspace's claim, with `workload = \"sandbox\"` only. Defaults to the cluster's default class.",
		},
		{
			Name: keyAllowDNS, Kind: sandboxcore.KindBool, Default: false,
			Description: "Whether a sandbox under `allowlist` may also reach the cluster's DNS (pods `k8s-app=kube-dns` of `kube-system`, port 53). " +
				"DNS can carry data out. Defaults to false.",
		},
		{
			Name: keyWaitForNode, Kind: sandboxcore.KindBool, Default: false, Update: sandboxcore.UpdateRecorded,
			Description: "Whether a pod that fits on no node is waited for within `create_timeout`, for clusters that add nodes when " +
				"needed. Defaults to false: it is an error at once.",
		},
		{
			Name: keyArchitecture, Kind: sandboxcore.KindString, Default: defaultArchitecture, OneOf: []string{"amd64", "arm64"},
			Description: "Architecture of the nodes that the pod may run on: `amd64` (the default) or `arm64`. The pod's first process is a " +
				"program for it.",
		},
	}
}

func podSecuritySettings() []sandboxcore.Setting {
	id := func(name, what string) sandboxcore.Setting {
		return sandboxcore.Setting{Name: name, Kind: sandboxcore.KindInt, Min: number(0), Max: number(1<<31 - 1), Description: what}
	}
	return []sandboxcore.Setting{
		id(keyRunAsUser, "User that everything in the pod runs as. Defaults to 1000. 0 is root, which the restricted Pod Security Standard refuses; the sandbox's details say so."),
		id(keyRunAsGroup, "Group that everything in the pod runs as. Defaults to 1000."),
		id(keyFSGroup, "Group that the writable paths belong to. Defaults to 1000."),
		{Name: keyRunAsNonRoot, Kind: sandboxcore.KindBool, Description: "Whether the node refuses to run the pod as root. Defaults to true, with `run_as_user = 0` to false."},
		{Name: keySupplemental, Kind: sandboxcore.KindStringList, Pattern: `^[0-9]{1,10}$`, PatternHint: "a group number", Description: "Further groups, by number."},
		{
			Name: keySeccomp, Kind: sandboxcore.KindString, OneOf: []string{seccompDefault, seccompUnconfined},
			Description: "System call filter: `RuntimeDefault` (the default) or `Unconfined` (none; the restricted Pod Security Standard refuses it).",
		},
	}
}

func containerSecuritySettings() []sandboxcore.Setting {
	return []sandboxcore.Setting{
		{Name: keyEscalation, Kind: sandboxcore.KindBool, Description: "Whether programs may gain privileges through set-user-ID files. Defaults to false."},
		{Name: keyReadOnlyRoot, Kind: sandboxcore.KindBool, Description: "Whether the root file system is read-only. Always so with `fs_allow_write`. Defaults to false."},
		{
			Name: keyCapabilities, Kind: sandboxcore.KindStringList, Pattern: `^[A-Z_]+$`, PatternHint: "a capability name such as CHOWN, without CAP_",
			Description: "Linux capabilities to give back; all are dropped otherwise. Only those that container engines give to ordinary containers can be named.",
		},
	}
}

// options are the profile settings with their defaults.
type options struct {
	namespace      string
	image          string
	serviceAccount string
	pullSecrets    []string
	labels         map[string]string
	nodeSelector   map[string]string
	env            map[string]string
	networkPolicy  bool
	createTimeout  time.Duration
	workload       string
	pullPolicy     string
	tolerations    []string
	runtimeClass   string
	isolation      sandboxcore.Isolation
	priorityClass  string
	workspaceMB    int64
	workspaceClaim string
	storageClass   string
	allowDNS       bool
	waitForNode    bool
	architecture   string
	pod, container sandboxcore.Settings
}

func optionsOf(p *sandboxcore.Profile) options {
	s := p.Settings
	return options{
		namespace:      s.String(keyNamespace, defaultNamespace),
		image:          s.String(keyImage, defaultImage),
		serviceAccount: s.String(keyServiceAccount, ""),
		pullSecrets:    s.Strings(keyPullSecrets),
		labels:         s.StringMap(keyLabels),
		nodeSelector:   s.StringMap(keyNodeSelector),
		env:            s.StringMap(keyEnv),
		networkPolicy:  s.Bool(keyNetworkPolicy, false),
		createTimeout:  time.Duration(s.Float(keyCreateTimeout, defaultCreateTimeout) * float64(time.Second)),
		workload:       s.String(keyWorkload, workloadPod),
		pullPolicy:     s.String(keyPullPolicy, defaultPullPolicy),
		tolerations:    s.Strings(keyTolerations),
		runtimeClass:   s.String(keyRuntimeClass, ""),
		isolation:      sandboxcore.Isolation(s.String(keyIsolation, "")),
		priorityClass:  s.String(keyPriorityClass, ""),
		workspaceMB:    int64(s.Float(keyWorkspaceMB, defaultWorkspaceMB)),
		workspaceClaim: s.String(keyWorkspaceClaim, ""),
		storageClass:   s.String(keyStorageClass, ""),
		allowDNS:       s.Bool(keyAllowDNS, false),
		waitForNode:    s.Bool(keyWaitForNode, false),
		architecture:   s.String(keyArchitecture, defaultArchitecture),
		pod:            s.Object(keyPodSecurity),
		container:      s.Object(keyContainerSecurity),
	}
}

// user is the user that everything in the pod runs as.
func (o options) user() int64 { return int64(o.pod.Float(keyRunAsUser, defaultUser)) }
