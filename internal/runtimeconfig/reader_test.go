package runtimeconfig_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// The types of this file are Agent Kernel's keys and their types, and nothing else: a key that is not here is refused.

type akRoot struct {
	Sandbox *akSandbox `yaml:"sandbox"`
}

type akSandbox struct {
	Enabled            bool                 `yaml:"enabled"`
	Agents             *[]string            `yaml:"agents"`
	DefaultProfile     string               `yaml:"default_profile"`
	PrincipalResolver  *string              `yaml:"principal_resolver"`
	ToolOutputMaxChars *int64               `yaml:"tool_output_max_chars"`
	Broker             *akBroker            `yaml:"broker"`
	Profiles           map[string]akProfile `yaml:"profiles"`
}

type akBroker struct {
	Flavor                string   `yaml:"flavor"`
	WaitTimeout           *float64 `yaml:"wait_timeout"`
	WaitPollInterval      *float64 `yaml:"wait_poll_interval"`
	InlinePayloadMaxBytes *int64   `yaml:"inline_payload_max_bytes"`
	ResponseTTL           *float64 `yaml:"response_ttl"`
	SweepInterval         *float64 `yaml:"sweep_interval"`
	WorkerTimeoutCeiling  *float64 `yaml:"worker_timeout_ceiling"`
}

type akProfile struct {
	Type        string   `yaml:"type"`
	Scope       *string  `yaml:"scope"`
	Environment *string  `yaml:"environment"`
	IdleTimeout *float64 `yaml:"idle_timeout"`
	Identity    *struct {
		Mode *string `yaml:"mode"`
	} `yaml:"identity"`
	Policy *akPolicy `yaml:"policy"`

	LocalSubprocess *struct {
		Workdir *string `yaml:"workdir"`
	} `yaml:"local_subprocess"`
	Docker *struct {
		Image    *string `yaml:"image"`
		Runtime  *string `yaml:"runtime"`
		AttachTo *string `yaml:"attach_to"`
	} `yaml:"docker"`
	Kubernetes *akKubernetes `yaml:"kubernetes"`
	E2B        *struct {
		APIKeyEnv string  `yaml:"api_key_env"`
		Template  *string `yaml:"template"`
	} `yaml:"e2b"`
	Daytona *struct {
		APIKeyEnv string            `yaml:"api_key_env"`
		Target    *string           `yaml:"target"`
		Image     *string           `yaml:"image"`
		Snapshot  *string           `yaml:"snapshot"`
		EnvVars   map[string]string `yaml:"env_vars"`
	} `yaml:"daytona"`
	EC2SSM *struct {
		Region   *string `yaml:"region"`
		AttachTo *string `yaml:"attach_to"`
	} `yaml:"ec2_ssm"`
	BedrockAgentCore *struct {
		Region      *string `yaml:"region"`
		NetworkMode *string `yaml:"network_mode"`
	} `yaml:"bedrock_agentcore"`
}

type akPolicy struct {
	NetworkEgress *string  `yaml:"network_egress"`
	NetworkAllow  []string `yaml:"network_allow"`
	FSAllowRead   []string `yaml:"fs_allow_read"`
	FSAllowWrite  []string `yaml:"fs_allow_write"`
	CPU           *float64 `yaml:"cpu"`
	MemoryMB      *int64   `yaml:"memory_mb"`
	Timeout       *float64 `yaml:"timeout"`
	Strict        *bool    `yaml:"strict"`
}

type akKubernetes struct {
	Namespace        *string           `yaml:"namespace"`
	Image            *string           `yaml:"image"`
	AttachTo         *string           `yaml:"attach_to"`
	Kubeconfig       *string           `yaml:"kubeconfig"`
	ServiceAccount   *string           `yaml:"service_account"`
	ImagePullSecrets []string          `yaml:"image_pull_secrets"`
	Labels           map[string]string `yaml:"labels"`
	NodeSelector     map[string]string `yaml:"node_selector"`
	Env              map[string]string `yaml:"env"`
	// The fields of Kubernetes itself.
	SecurityContext *struct {
		RunAsUser          *int64  `yaml:"runAsUser"`
		RunAsGroup         *int64  `yaml:"runAsGroup"`
		FSGroup            *int64  `yaml:"fsGroup"`
		RunAsNonRoot       *bool   `yaml:"runAsNonRoot"`
		SupplementalGroups []int64 `yaml:"supplementalGroups"`
		SeccompProfile     *struct {
			Type *string `yaml:"type"`
		} `yaml:"seccompProfile"`
	} `yaml:"security_context"`
	ContainerSecurityContext *struct {
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   *bool `yaml:"readOnlyRootFilesystem"`
		Capabilities             *struct {
			Drop []string `yaml:"drop"`
			Add  []string `yaml:"add"`
		} `yaml:"capabilities"`
	} `yaml:"container_security_context"`
	NetworkPolicy *bool    `yaml:"network_policy"`
	CreateTimeout *float64 `yaml:"create_timeout"`
}

// readStrictly reads a configuration the way a reader would that knows Agent Kernel's keys and no others.
func readStrictly(text string) (akSandbox, error) {
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	var root akRoot
	if err := d.Decode(&root); err != nil {
		return akSandbox{}, err
	}
	if err := d.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return akSandbox{}, fmt.Errorf("text follows: %w", err)
	}
	if root.Sandbox == nil {
		return akSandbox{}, errors.New("there is no section")
	}
	return *root.Sandbox, nil
}

// readVariables puts environment variables together as Agent Kernel does: names in small letters, split at "__"; what is
// no plain text is JSON.
func readVariables(t *testing.T, env map[string]string) string {
	t.Helper()
	root := map[string]any{}
	for name, value := range env {
		rest, ok := strings.CutPrefix(name, "AK_")
		if !ok {
			t.Errorf("the variable %s is none of Agent Kernel's", name)
		}
		at := root
		keys := strings.Split(strings.ToLower(rest), "__")
		for _, k := range keys[:len(keys)-1] {
			next, _ := at[k].(map[string]any)
			if next == nil {
				next = map[string]any{}
				at[k] = next
			}
			at = next
		}
		var v any = value
		d := json.NewDecoder(strings.NewReader(value))
		d.UseNumber()
		var decoded any
		if err := d.Decode(&decoded); err == nil {
			v = decoded
		}
		at[keys[len(keys)-1]] = v
	}
	text, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// input turns what was read back into the profile of a user. The block is read once more without types: that its keys and
// types are Agent Kernel's is known by then.
func (p akProfile) input(t *testing.T, name, text string) sandboxcore.ProfileInput {
	t.Helper()
	in := sandboxcore.ProfileInput{Name: name, Type: p.Type, Scope: p.Scope, Environment: p.Environment, IdleTimeout: p.IdleTimeout, Blocks: map[string]sandboxcore.Settings{}}
	if p.Identity != nil {
		in.Identity = p.Identity.Mode
	}
	if q := p.Policy; q != nil {
		in.Policy = sandboxcore.PolicyInput{
			NetworkEgress: q.NetworkEgress, NetworkAllow: q.NetworkAllow, FSAllowRead: q.FSAllowRead, FSAllowWrite: q.FSAllowWrite,
			CPU: q.CPU, MemoryMB: q.MemoryMB, Timeout: q.Timeout, Strict: q.Strict,
		}
	}
	var loose struct {
		Sandbox struct {
			Profiles map[string]map[string]any `yaml:"profiles"`
		} `yaml:"sandbox"`
	}
	if err := yaml.Unmarshal([]byte(text), &loose); err != nil {
		t.Fatal(err)
	}
	block, ok := loose.Sandbox.Profiles[name][p.Type].(map[string]any)
	if !ok {
		t.Fatalf("the profile %s has no block %s", name, p.Type)
	}
	delete(block, "api_key_env") // a profile has no credentials, not even their names
	if k := p.Kubernetes; k != nil {
		delete(block, "security_context")
		delete(block, "container_security_context")
		if c := k.SecurityContext; c != nil {
			m := map[string]any{}
			setNumber(m, "run_as_user", c.RunAsUser)
			setNumber(m, "run_as_group", c.RunAsGroup)
			setNumber(m, "fs_group", c.FSGroup)
			if c.RunAsNonRoot != nil {
				m["run_as_non_root"] = *c.RunAsNonRoot
			}
			for _, g := range c.SupplementalGroups {
				list, _ := m["supplemental_groups"].([]any)
				m["supplemental_groups"] = append(list, strconv.FormatInt(g, 10))
			}
			if c.SeccompProfile != nil {
				m["seccomp_profile"] = *c.SeccompProfile.Type
			}
			block["security_context"] = m
		}
		if c := k.ContainerSecurityContext; c != nil {
			m := map[string]any{}
			if c.AllowPrivilegeEscalation != nil {
				m["allow_privilege_escalation"] = *c.AllowPrivilegeEscalation
			}
			if c.ReadOnlyRootFilesystem != nil {
				m["read_only_root_filesystem"] = *c.ReadOnlyRootFilesystem
			}
			if c.Capabilities != nil {
				if !slices.Equal(c.Capabilities.Drop, []string{"ALL"}) {
					t.Errorf("capabilities are given back without taking all away first: %v", c.Capabilities)
				}
				var list []any
				for _, a := range c.Capabilities.Add {
					list = append(list, a)
				}
				m["capabilities_add"] = list
			}
			block["container_security_context"] = m
		}
	}
	in.Blocks[p.Type] = block
	return in
}

func setNumber(m map[string]any, key string, n *int64) {
	if n != nil {
		m[key] = float64(*n)
	}
}
