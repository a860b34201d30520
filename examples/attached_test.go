//go:build linux

package examples_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/ssmpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// TestAttachedExamples applies the examples with a machine that is not ours, against a peer of AWS, and checks that the
// policy beside them allows exactly what was called. GetCallerIdentity needs no permission.
func TestAttachedExamples(t *testing.T) {
	cli := testenv.TerraformCLI(t)
	testenv.Require(t, testenv.Root) // the example runs code as another user
	base := t.TempDir()
	bin := filepath.Join(base, "bin")
	run(t, "..", nil, "go", "build", "-o", filepath.Join(bin, "terraform-provider-agentkernel"), ".")
	config := filepath.Join(base, "cli.tfrc")
	write(t, config, "provider_installation {\n  dev_overrides {\n    \"agentkernel/agentkernel\" = \""+bin+"\"\n    \"hashicorp/agentkernel\" = \""+bin+"\"\n  }\n  direct {}\n}\n")
	const instance, hybrid = "i-0123456789abcdef0", "mi-0123456789abcdef0"
	for name, test := range map[string]struct{ example, machine, policy string }{
		"instance":    {"ec2-ssm", instance, "policy.json"},
		"hybrid":      {"ec2-ssm", hybrid, "policy-hybrid.json"},
		"data source": {"data-sources/agentkernel_attached_environment", instance, "policy.json"},
	} {
		t.Run(name, func(t *testing.T) {
			example := test.example
			peer := ssmpeer.New()
			t.Cleanup(peer.Close)
			peer.AddMachine(ssmpeer.Machine{ID: test.machine})
			key := peer.AddUser("terraform")
			dir := filepath.Join(base, name, "configuration")
			copyExample(t, example, dir)
			env := []string{
				"TF_CLI_CONFIG_FILE=" + config, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "TF_INPUT=0", "XDG_STATE_HOME=" + dir, "AGENTKERNEL_AUDIT_LOG=",
				"AWS_ACCESS_KEY_ID=" + key.AccessKey, "AWS_SECRET_ACCESS_KEY=" + key.SecretKey, "AWS_SESSION_TOKEN=", "AWS_ENDPOINT_URL=" + peer.URL, "AWS_PROFILE=",
				"TF_VAR_instance=" + test.machine, "AWS_EC2_METADATA_DISABLED=true", "AWS_CONFIG_FILE=" + filepath.Join(base, "none"), "AWS_SHARED_CREDENTIALS_FILE=" + filepath.Join(base, "none"),
			}
			run(t, dir, env, cli, "apply", "-auto-approve", "-no-color")
			out, err := command(t.Context(), dir, env, cli, "output", "-json").Output()
			if err != nil {
				t.Fatal(err)
			}
			if example == "ec2-ssm" && !strings.Contains(string(out), "runs this as 65534") {
				t.Errorf("the code did not run as the other user:\n%s", out)
			}
			run(t, dir, env, cli, "plan", "-detailed-exitcode", "-no-color")
			called, calls := peer.Actions(), peer.Journal()
			peer.ForgetJournal()
			run(t, dir, env, cli, "destroy", "-auto-approve", "-no-color")

			// A destroy looks, and does nothing else.
			for _, action := range peer.Actions() {
				if action != "ssm:DescribeInstanceInformation" && action != "sts:GetCallerIdentity" {
					t.Errorf("the destroy called %s", action)
				}
			}
			allowed, resources := allows(t, filepath.Join("ec2-ssm", test.policy))
			for _, call := range calls {
				if call.Action == "ssm:SendCommand" {
					on := "arn:aws:ec2:" + peer.Region + ":" + ssmpeer.Account + ":instance/" + test.machine
					if test.machine == hybrid {
						on = "arn:aws:ssm:" + peer.Region + ":" + ssmpeer.Account + ":managed-instance/" + test.machine
					}
					for _, resource := range []string{on, fmt.Sprintf("arn:aws:ssm:%s::document/%v", peer.Region, call.Params["DocumentName"])} {
						if !slices.Contains(resources["ssm:SendCommand"], resource) {
							t.Errorf("the policy does not allow a command on %s", resource)
						}
					}
				}
			}
			for _, action := range called {
				if action != "sts:GetCallerIdentity" && !slices.Contains(allowed, action) {
					t.Errorf("%s was called and the policy does not allow it", action)
				}
			}
			for _, action := range allowed {
				// A run that ends by itself is not cancelled; TestCancelKillsOnTheMachine of the backend shows that call.
				if action != "ssm:CancelCommand" && !slices.Contains(called, action) {
					t.Errorf("the policy allows %s, which is never called", action)
				}
			}
		})
	}
}

// allows gives the actions of a policy, and the resources of each.
func allows(t *testing.T, file string) (actions []string, resources map[string][]string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var policy struct {
		Statement []struct {
			Effect           string
			Action, Resource any
		}
	}
	if err := json.Unmarshal(content, &policy); err != nil {
		t.Fatal(err)
	}
	list := func(v any) []string {
		if text, ok := v.(string); ok {
			return []string{text}
		}
		var out []string
		all, _ := v.([]any)
		for _, one := range all {
			text, _ := one.(string)
			out = append(out, text)
		}
		return out
	}
	resources = map[string][]string{}
	for _, s := range policy.Statement {
		for _, action := range list(s.Action) {
			actions = append(actions, action)
			resources[action] = append(resources[action], list(s.Resource)...)
		}
		if s.Effect != "Allow" {
			t.Errorf("effect %s", s.Effect)
		}
	}
	return actions, resources
}
