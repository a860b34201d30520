//go:build linux

package acceptance

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/ssmpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

const attachedMachine = "i-0fedcba9876543210"

// somebodys are environments that were made by somebody else: a machine behind a peer of AWS, and where there are an engine
// and a cluster, a container and a pod.
type somebodys struct {
	t         *testing.T
	peer      *ssmpeer.Peer
	docker    *client.Client
	container string
	cluster   *testenv.Cluster
	namespace string
}

func newSomebodys(t *testing.T) *somebodys {
	t.Helper()
	s := &somebodys{t: t, peer: ssmpeer.New()}
	t.Cleanup(s.peer.Close)
	s.peer.AddMachine(ssmpeer.Machine{ID: attachedMachine})
	if testenv.Has(testenv.Docker) {
		s.makeContainer()
	}
	if testenv.Has(testenv.Kubernetes) {
		s.makePod()
	}
	return s
}

func (s *somebodys) makeContainer() {
	s.t.Helper()
	cli, err := client.New(client.FromEnv)
	if err != nil {
		s.t.Fatal(err)
	}
	s.docker = cli
	s.container = fmt.Sprintf("somebodys-%d-%d", os.Getpid(), time.Now().UnixNano())
	if _, err := cli.ContainerCreate(s.t.Context(), client.ContainerCreateOptions{
		Name: s.container, Config: &container.Config{Image: testenv.Image("python"), Entrypoint: []string{"sleep", "600"}},
	}); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := cli.ContainerRemove(ctx, s.container, client.ContainerRemoveOptions{Force: true}); err != nil {
			s.t.Error(err)
		}
		_ = cli.Close()
	})
	if _, err := cli.ContainerStart(s.t.Context(), s.container, client.ContainerStartOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *somebodys) kubectl(ctx context.Context, args ...string) {
	s.t.Helper()
	cmd := exec.CommandContext(ctx, s.cluster.Kubectl, append([]string{"--kubeconfig", s.cluster.Kubeconfig}, args...)...) // #nosec G204 -- a test
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Errorf("kubectl %v: %v\n%s", args, err, out)
	}
}

func (s *somebodys) makePod() {
	s.t.Helper()
	c := testenv.KubernetesCluster(s.t)
	s.cluster = &c
	s.namespace = fmt.Sprintf("somebodys-%d-%d", os.Getpid(), time.Now().UnixNano())
	s.kubectl(s.t.Context(), "create", "namespace", s.namespace)
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s.kubectl(ctx, "delete", "namespace", s.namespace, "--wait=false")
	})
	// The service account of a new namespace comes a moment after it.
	s.kubectl(s.t.Context(), "-n", s.namespace, "wait", "--for=create", "serviceaccount/default", "--timeout=30s")
	s.kubectl(s.t.Context(), "-n", s.namespace, "run", "somebodys", "--image="+c.Image, "--image-pull-policy=Never", "--command", "--", "sleep", "600")
	s.kubectl(s.t.Context(), "-n", s.namespace, "wait", "--for=condition=Ready", "pod/somebodys", "--timeout=60s")
}

// config binds everything that there is and runs in it. It has data sources and execs only.
func (s *somebodys) config() string {
	key := s.peer.AddUser("terraform")
	var b strings.Builder
	fmt.Fprintf(&b, "provider \"agentkernel\" {\n  aws = {\n    region = %q\n    access_key = %q\n    secret_key = %q\n    endpoints = { ssm = %q, sts = %q }\n  }\n",
		s.peer.Region, key.AccessKey, key.SecretKey, s.peer.URL, s.peer.URL)
	if s.cluster != nil {
		fmt.Fprintf(&b, "  kubernetes = { config_path = %q }\n", s.cluster.Kubeconfig)
	}
	b.WriteString("}\n")
	bind := func(kind, settings string) {
		fmt.Fprintf(&b, `
data "agentkernel_profile" %[1]q {
  name        = "attached"
  type        = %[1]q
  environment = "attached"
  %[1]s = { %[2]s }
}
data "agentkernel_attached_environment" %[1]q {
  profile = data.agentkernel_profile.%[1]s.spec
}
resource "agentkernel_exec" %[1]q {
  binding        = data.agentkernel_attached_environment.%[1]s.binding
  script         = "echo hi from %[1]s"
}
output %[1]q {
  value = agentkernel_exec.%[1]s.stdout
}
`, kind, settings)
	}
	bind("ec2_ssm", fmt.Sprintf("attach_to = %q", attachedMachine))
	if s.docker != nil {
		bind("docker", fmt.Sprintf("attach_to = %q", s.container))
	}
	if s.cluster != nil {
		bind("kubernetes", fmt.Sprintf("attach_to = \"somebodys\"\n namespace = %q", s.namespace))
	}
	return b.String()
}

// changes is everything that act made the backends change, by their own records: the journal of the peer, the events of the
// engine, the audit log of the API server.
func (s *somebodys) changes(act func()) []string {
	s.t.Helper()
	s.peer.ForgetJournal()
	from := time.Now()
	act()
	var out []string
	for _, action := range s.peer.Actions() {
		if !slices.Contains([]string{"ssm:DescribeInstanceInformation", "ssm:GetCommandInvocation", "sts:GetCallerIdentity"}, action) {
			out = append(out, action)
		}
	}
	if s.docker != nil {
		r := s.docker.Events(s.t.Context(), client.EventsListOptions{
			Since: from.Format(time.RFC3339Nano), Until: time.Now().Format(time.RFC3339Nano), Filters: make(client.Filters).Add("container", s.container),
		})
		for open := true; open; {
			select {
			case m := <-r.Messages:
				out = append(out, "docker:"+strings.SplitN(string(m.Action), ":", 2)[0])
			case err := <-r.Err:
				_ = err // the end of the answer
				open = false
			}
		}
	}
	if s.cluster != nil && s.cluster.AuditLog != "" {
		out = append(out, s.audited(from)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (s *somebodys) audited(from time.Time) []string {
	s.t.Helper()
	f, err := os.Open(s.cluster.AuditLog)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	var out []string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.Contains(line, s.namespace) || !strings.Contains(line, `"userAgent":"terraform-provider-agentkernel"`) || !later(line, from) {
			continue
		}
		// Over WebSocket an exec is a get.
		if strings.Contains(line, `"subresource":"exec"`) {
			out = append(out, "kubernetes:exec")
			continue
		}
		for _, verb := range []string{"create", "update", "patch", "delete", "deletecollection"} {
			if strings.Contains(line, `"verb":"`+verb+`"`) {
				out = append(out, "kubernetes:"+verb)
			}
		}
	}
	return out
}

// later reports whether an audit event was received after from.
func later(line string, from time.Time) bool {
	_, rest, ok := strings.Cut(line, `"requestReceivedTimestamp":"`)
	if !ok {
		return false
	}
	text, _, _ := strings.Cut(rest, `"`)
	at, err := time.Parse(time.RFC3339Nano, text)
	return err == nil && at.After(from)
}

// TestDestroyLeavesAttachedEnvironments: `terraform destroy` of a configuration with attached environments changes nothing at
// all, by the records of whoever owns them; nor does a plan. Applying it does what the documentation lists, and no more.
func TestDestroyLeavesAttachedEnvironments(t *testing.T) {
	s := newSomebodys(t)
	st := newStack(t, s.config())
	listed := []string{"docker:exec_create", "docker:exec_die", "docker:exec_start", "docker:extract-to-dir", "kubernetes:exec", "ssm:SendCommand"}
	applied := s.changes(func() { st.must(t, "apply", "-auto-approve", "-no-color") })
	for _, c := range applied {
		if !slices.Contains(listed, c) {
			t.Errorf("the apply did %s, which the documentation does not list", c)
		}
	}
	if !slices.Contains(applied, "ssm:SendCommand") {
		t.Errorf("the apply did only %v", applied)
	}
	if got := s.changes(func() { st.must(t, "plan", "-detailed-exitcode", "-no-color") }); len(got) != 0 {
		t.Errorf("an empty plan did %v", got)
	}
	// What the engine says late of the execs of the apply is not of the destroy.
	if got := s.changes(func() { st.must(t, "destroy", "-auto-approve", "-no-color") }); len(got) != 0 {
		t.Errorf("the destroy did %v", got)
	}
	out := st.must(t, "show", "-json")
	if strings.Contains(out, "agentkernel_exec") {
		t.Errorf("the destroy left something in the state: %s", out)
	}
	for _, kind := range []string{"docker", "kubernetes"} {
		if !slices.ContainsFunc(applied, func(c string) bool { return strings.HasPrefix(c, kind+":") }) {
			testenv.Skip(t, testenv.Part(kind), "the part of this test with "+kind+" did not run", "see the other tests of "+kind)
		}
	}
}

// TestAttachedRefusedByTheFirstPlan: with no state yet, and for each direction.
func TestAttachedRefusedByTheFirstPlan(t *testing.T) {
	s := newSomebodys(t)
	base := s.config()
	profile := func(environment, kind, settings string) string {
		return fmt.Sprintf("\ndata \"agentkernel_profile\" \"bad\" {\n name = \"bad\"\n type = %q\n environment = %q\n %s = { %s }\n}\n", kind, environment, kind, settings)
	}
	on := func(arguments string) string {
		return "\nresource \"agentkernel_exec\" \"bad\" {\n binding = data.agentkernel_attached_environment.ec2_ssm.binding\n" + arguments + "\n}\n"
	}
	file := func(arguments string) string {
		return "\nresource \"agentkernel_file\" \"bad\" {\n binding = data.agentkernel_attached_environment.ec2_ssm.binding\n path = \"/tmp/x\"\n" + arguments + "\n}\n"
	}
	for name, test := range map[string]struct {
		hcl   string
		texts []string
	}{
		"managed with ec2_ssm":           {profile("managed", "ec2_ssm", ""), []string{"AK1004", "cannot create environments"}},
		"attached that cannot":           {profile("attached", "local_subprocess", ""), []string{"AK1004", "cannot bind"}},
		"attached without a target":      {profile("attached", "ec2_ssm", ""), []string{"AK1004", "no target"}},
		"managed with a target":          {profile("managed", "docker", `attach_to = "x"`), []string{"AK1004", "attach_to"}},
		"an attached profile in sandbox": {"\nresource \"agentkernel_sandbox\" \"bad\" {\n profile = data.agentkernel_profile.ec2_ssm.spec\n}\n", []string{"AK1004"}},
		"a language":                     {on(` code = "1"` + "\n" + ` language = "cobol"`), []string{"AK4001", "cobol"}},
		"packages":                       {profile("attached", "ec2_ssm", fmt.Sprintf("attach_to = %q", attachedMachine)) + "\nresource \"agentkernel_sandbox\" \"bad\" {\n profile = data.agentkernel_profile.bad.spec\n packages = [\"x\"]\n}\n", []string{"AK1004"}},
		"a large file":                   {file(` content = join("", [for i in range(1000) : join("", [for j in range(30) : "0123456789"])])`), []string{"AK1003", "300000", "262144"}},
		"a secret file":                  {file(` content_wo = "canary-canary"` + "\n" + ` content_wo_version = 1`), []string{"AK4002", "command history"}},
		"a timeout":                      {on(` script = "true"` + "\n" + ` timeout = "1h"`), []string{"AK1003", "1h"}},
		"too much input":                 {on(` script = "cat"` + "\n" + ` stdin = join("", [for i in range(1000) : join("", [for j in range(30) : "0123456789"])])`), []string{"AK1003", "262144"}},
		"a secret":                       {on(` script = "true"` + "\n" + ` env_wo = { T = "canary-canary" }`), []string{"AK4002", "command history"}},
	} {
		t.Run(name, func(t *testing.T) {
			st := newStack(t, base+test.hcl)
			out, err := st.command(t.Context(), "plan", "-no-color", "-lock=false").CombinedOutput()
			plain := strings.Join(strings.Fields(strings.ReplaceAll(string(out), "│", " ")), " ")
			if err == nil {
				t.Fatalf("the plan succeeded:\n%s", out)
			}
			for _, text := range test.texts {
				if !strings.Contains(plain, text) {
					t.Errorf("the plan does not say %q:\n%s", text, out)
				}
			}
		})
	}
	if n := s.peer.Count("ssm:SendCommand"); n != 0 {
		t.Errorf("%d commands were sent by plans", n)
	}
}

// TestFilesOnAMachine: a file is written, found unchanged, found changed, used and removed, as any other of Terraform's.
func TestFilesOnAMachine(t *testing.T) {
	peer := ssmpeer.New()
	t.Cleanup(peer.Close)
	peer.AddMachine(ssmpeer.Machine{ID: attachedMachine})
	s := &somebodys{t: t, peer: peer}
	dir := t.TempDir()
	st := newStack(t, s.config()+fmt.Sprintf(`
resource "agentkernel_file" "input" {
  binding = data.agentkernel_attached_environment.ec2_ssm.binding
  path    = "%[1]s/in/put"
  content = join("", [for i in range(1000) : "${i}: it goes on and so on until there is enough\n"])
}
resource "agentkernel_exec" "sum" {
  binding      = data.agentkernel_attached_environment.ec2_ssm.binding
  script       = "wc -l <%[1]s/in/put; cp %[1]s/in/put %[1]s/out"
  output_files = ["%[1]s/out"]
  triggers     = { input = agentkernel_file.input.sha256 }
}
output "same" {
  value = agentkernel_exec.sum.files["%[1]s/out"].sha256 == agentkernel_file.input.sha256
}
`, dir))
	st.must(t, "apply", "-auto-approve", "-no-color")
	if out := st.must(t, "output", "same"); strings.TrimSpace(out) != "true" {
		t.Errorf("the file that came back is another: %s", out)
	}
	st.must(t, "plan", "-detailed-exitcode", "-no-color")
	if err := os.WriteFile(dir+"/in/put", []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := st.command(t.Context(), "plan", "-detailed-exitcode", "-no-color").CombinedOutput(); err == nil || !strings.Contains(string(out), "agentkernel_file.input") {
		t.Errorf("the change was not seen: %v\n%s", err, out)
	}
	st.must(t, "apply", "-auto-approve", "-no-color")
	if content, err := os.ReadFile(dir + "/in/put"); err != nil || len(content) < 40_000 { // #nosec G304 -- of this test
		t.Errorf("%v, %d bytes", err, len(content))
	}
	st.must(t, "destroy", "-auto-approve", "-no-color")
	if _, err := os.Stat(dir + "/in/put"); err == nil {
		t.Error("the destroy left the file")
	}
	if _, err := os.Stat(dir + "/out"); err != nil {
		t.Errorf("the destroy removed what it did not write: %v", err)
	}
}
