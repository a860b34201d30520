//go:build linux

package examples_test

import (
	"encoding/json"
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
	for _, example := range []string{"ec2-ssm", filepath.Join("data-sources", "agentkernel_attached_environment")} {
		t.Run(filepath.Base(example), func(t *testing.T) {
			peer := ssmpeer.New()
			t.Cleanup(peer.Close)
			peer.AddMachine(ssmpeer.Machine{ID: "i-0123456789abcdef0"})
			key := peer.AddUser("terraform")
			dir := filepath.Join(base, example)
			copyExample(t, example, dir)
			env := []string{
				"TF_CLI_CONFIG_FILE=" + config, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "TF_INPUT=0", "XDG_STATE_HOME=" + dir, "AGENTKERNEL_AUDIT_LOG=",
				"AWS_ACCESS_KEY_ID=" + key.AccessKey, "AWS_SECRET_ACCESS_KEY=" + key.SecretKey, "AWS_SESSION_TOKEN=", "AWS_ENDPOINT_URL=" + peer.URL, "AWS_PROFILE=",
				"AWS_EC2_METADATA_DISABLED=true", "AWS_CONFIG_FILE=" + filepath.Join(base, "none"), "AWS_SHARED_CREDENTIALS_FILE=" + filepath.Join(base, "none"),
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
			called := peer.Actions()
			peer.ForgetJournal()
			run(t, dir, env, cli, "destroy", "-auto-approve", "-no-color")

			// A destroy looks, and does nothing else.
			for _, action := range peer.Actions() {
				if action != "ssm:DescribeInstanceInformation" && action != "sts:GetCallerIdentity" {
					t.Errorf("the destroy called %s", action)
				}
			}
			allowed := allowedActions(t, filepath.Join("ec2-ssm", "policy.json"))
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

func allowedActions(t *testing.T, file string) []string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var policy struct {
		Statement []struct {
			Effect string
			Action any
		}
	}
	if err := json.Unmarshal(content, &policy); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range policy.Statement {
		switch a := s.Action.(type) {
		case string:
			out = append(out, a)
		case []any:
			for _, v := range a {
				if text, ok := v.(string); ok {
					out = append(out, text)
				}
			}
		}
		if s.Effect != "Allow" {
			t.Errorf("effect %s", s.Effect)
		}
	}
	return out
}
