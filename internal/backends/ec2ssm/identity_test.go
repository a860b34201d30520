//go:build linux

package ec2ssm

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/ssmpeer"
)

// TestSessionName: what STS takes (2 to 64 characters of its pattern), and never one name for two subjects.
func TestSessionName(t *testing.T) {
	valid := regexp.MustCompile(`^[A-Za-z0-9_+=,.@-]{2,64}$`)
	seen := map[string]string{}
	for _, subject := range []string{
		"a", "alice@example.org", "a/b", "a_b", "a b", "a:b", "ü", "u", strings.Repeat("x", 52), strings.Repeat("x", 53), strings.Repeat("x", 200),
		strings.Repeat("x", 199) + "y", strings.Repeat("ü", 200), strings.Repeat("/", 200), "a\nb", "日本", "a-0123456789ab", "x--", "x-",
		strings.TrimPrefix(sessionName("a/b"), sessionPrefix),
	} {
		name := sessionName(subject)
		if !valid.MatchString(name) || !strings.HasPrefix(name, sessionPrefix) {
			t.Errorf("%q becomes %q", subject, name)
		}
		if other, ok := seen[name]; ok {
			t.Errorf("%q and %q are both %q", subject, other, name)
		}
		seen[name] = subject
		if name != sessionName(subject) {
			t.Errorf("%q has two names", subject)
		}
	}
	if sessionName("alice@example.org") != "agentkernel-alice@example.org" {
		t.Error(sessionName("alice@example.org"))
	}
}

func asUser(subject, role string) sandboxcore.Principal {
	return sandboxcore.Principal{Mode: sandboxcore.IdentityUser, Subject: subject, EC2SSM: &sandboxcore.EC2SSMPrincipal{RoleARN: role}}
}

// TestOneSessionPerSubject: one AssumeRole for 20 runs of one subject at the same time, two for two subjects.
func TestOneSessionPerSubject(t *testing.T) {
	p := newPlace(t)
	role := p.peer.AddRole("runner", ssmpeer.Role{})
	spec := p.spec(userMode)
	b := p.bind(spec, asUser("alice/ü x", role))
	if b.Endpoint != ssmpeer.Account+"/eu-west-1" {
		t.Errorf("endpoint %s", b.Endpoint)
	}
	runs := func(subject string, n int) {
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				res, err := p.run(t.Context(), sandboxcore.ExecRequest{Binding: &b, Kind: sandboxcore.RunScript, Text: fmt.Appendf(nil, "echo %d", i), Principal: asUser(subject, role)})
				if err != nil || res.Stdout.Text != fmt.Sprintf("%d\n", i) {
					t.Errorf("%v %v", res.Stdout.Text, err)
				}
			})
		}
		all.Wait()
	}
	runs("alice/ü x", 20)
	if n := p.peer.Count("sts:AssumeRole"); n != 1 {
		t.Errorf("%d times AssumeRole for one subject", n)
	}
	runs("bob", 2)
	if n := p.peer.Count("sts:AssumeRole"); n != 2 {
		t.Errorf("%d times AssumeRole for two subjects", n)
	}
	for _, c := range p.peer.Journal() {
		if strings.HasPrefix(c.Action, "ssm:") && !strings.Contains(c.Caller, ":assumed-role/runner/agentkernel-") {
			t.Errorf("%s was called as %s", c.Action, c.Caller)
		}
	}
	// Everything that goes into a session has its own.
	for i, who := range []func(*sandboxcore.EC2SSMPrincipal){
		func(e *sandboxcore.EC2SSMPrincipal) { e.ExternalID = "ext" },
		func(e *sandboxcore.EC2SSMPrincipal) { e.SessionTags = map[string]string{"team": "ä b"} },
		func(e *sandboxcore.EC2SSMPrincipal) { e.SourceIdentity = "me" },
		func(e *sandboxcore.EC2SSMPrincipal) { e.RoleARN = p.peer.AddRole("other", ssmpeer.Role{}) },
	} {
		principal := asUser("bob", role)
		who(principal.EC2SSM)
		for range 2 {
			p.bind(spec, principal)
		}
		if n := p.peer.Count("sts:AssumeRole"); n != 3+i {
			t.Errorf("%d: %d times AssumeRole", i, n)
		}
	}
}

// TestSessionIsRefreshed: before its end under a fake clock, and in the middle of a wait when AWS says that it has ended.
func TestSessionIsRefreshed(t *testing.T) {
	clock := newFakeClock()
	p := newPlace(t, func(b *backend) { b.clock = clock })
	p.peer.Now = clock.Now
	role := p.peer.AddRole("runner", ssmpeer.Role{})
	spec := p.spec(userMode)
	for i, step := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {30 * time.Minute, 1}, {24 * time.Minute, 1}, {2 * time.Minute, 2}, {time.Minute, 2}, {2 * time.Hour, 3}} {
		if err := clock.Sleep(t.Context(), step.after); err != nil {
			t.Fatal(err)
		}
		p.bind(spec, asUser("alice", role))
		if n := p.peer.Count("sts:AssumeRole"); n != step.want {
			t.Errorf("step %d: %d times AssumeRole, want %d", i, n, step.want)
		}
	}
	b := p.bind(spec, asUser("alice", role))
	p.machine.Script = func(lines []string) []ssmpeer.State {
		return []ssmpeer.State{{Status: "InProgress"}, {Status: "InProgress"}, {Status: "Success", Stdout: played(lines, 0, "x")}}
	}
	p.peer.Lock()
	p.peer.Fault = func(action string, n int) *ssmpeer.Fault {
		if action == "ssm:GetCommandInvocation" && n == 2 {
			return &ssmpeer.Fault{Code: "ExpiredTokenException", Message: "expired"}
		}
		return nil
	}
	p.peer.Unlock()
	res, err := p.run(t.Context(), sandboxcore.ExecRequest{Binding: &b, Kind: sandboxcore.RunScript, Text: []byte("true"), Principal: asUser("alice", role)})
	if err != nil || res.Stdout.Text != "x" || p.peer.Count("sts:AssumeRole") != 4 {
		t.Errorf("%v %v, %d times AssumeRole", res.Stdout.Text, err, p.peer.Count("sts:AssumeRole"))
	}
}

// TestSessionThatEnded: whichever call finds a session at its end, it is renewed once, and what was refused is asked again.
func TestSessionThatEnded(t *testing.T) {
	p := newPlace(t)
	role := p.peer.AddRole("runner", ssmpeer.Role{})
	b := p.bind(p.spec(userMode), asUser("alice", role))
	for i, action := range []string{"ssm:DescribeInstanceInformation", "ssm:SendCommand", "ssm:GetCommandInvocation"} {
		p.peer.Lock()
		p.peer.Fault = func(a string, n int) *ssmpeer.Fault {
			if a == action && n == 1 {
				return &ssmpeer.Fault{Code: "ExpiredTokenException", Message: "expired"}
			}
			return nil
		}
		p.peer.Unlock()
		if i == 0 {
			p.peer.Revoke("runner")
		}
		p.peer.ForgetJournal()
		res, err := p.run(t.Context(), sandboxcore.ExecRequest{Binding: &b, Kind: sandboxcore.RunScript, Text: []byte("echo hi"), Principal: asUser("alice", role)})
		if err != nil || res.Stdout.Text != "hi\n" || p.peer.Count("sts:AssumeRole") != 1 {
			t.Errorf("%s: %q %v, %d times AssumeRole", action, res.Stdout.Text, err, p.peer.Count("sts:AssumeRole"))
		}
	}
}

// TestWaitingForASession: whoever waits for a role that somebody else has assumed can be cancelled, and gets it when it comes.
func TestWaitingForASession(t *testing.T) {
	p := newPlace(t)
	role := p.peer.AddRole("runner", ssmpeer.Role{})
	spec := p.spec(userMode)
	inside, open := make(chan struct{}), make(chan struct{})
	p.peer.Fault = func(action string, n int) *ssmpeer.Fault {
		if action == "sts:AssumeRole" && n == 1 {
			close(inside)
		}
		return nil
	}
	p.peer.Before = func(action string) {
		if action == "sts:AssumeRole" {
			<-open
		}
	}
	first := make(chan error, 1)
	go func() {
		_, err := p.engine.Attach(t.Context(), spec, asUser("alice", role))
		first <- err
	}()
	<-inside
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := p.engine.Attach(ctx, spec, asUser("alice", role))
	if sandboxcore.CodeOf(err) == "" {
		t.Errorf("%v", err)
	}
	close(open)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if n := p.peer.Count("sts:AssumeRole"); n != 1 {
		t.Errorf("%d times AssumeRole", n)
	}
}

// TestRoleThatMayNotBeAssumed: one clear error, and nothing runs, not even as the provider itself.
func TestRoleThatMayNotBeAssumed(t *testing.T) {
	p := newPlace(t)
	mine := p.peer.AddRole("mine", ssmpeer.Role{})
	b := p.bind(p.spec(userMode), asUser("alice", mine))
	p.peer.ForgetJournal()
	for name, arn := range map[string]string{
		"another's": p.peer.AddRole("others", ssmpeer.Role{Trusts: []string{"arn:aws:iam::" + ssmpeer.Account + ":user/somebody"}}),
		"external":  p.peer.AddRole("external", ssmpeer.Role{ExternalID: "secret"}),
		"absent":    "arn:aws:iam::" + ssmpeer.Account + ":role/absent",
	} {
		_, err := p.run(t.Context(), sandboxcore.ExecRequest{Binding: &b, Kind: sandboxcore.RunScript, Text: []byte("true"), Principal: asUser("alice", arn)})
		refused(t, err, sandboxcore.CodeIdentity, arn, "trust policy")
		if n := len(sandboxcore.AllErrors(err, "")); n != 1 {
			t.Errorf("%s: %d errors", name, n)
		}
	}
	if got := p.peer.Actions(); len(got) != 1 || got[0] != "sts:AssumeRole" {
		t.Errorf("calls %v", got)
	}
}

// TestIdentityRefusals: by the gate, before anything is sent.
func TestIdentityRefusals(t *testing.T) {
	p := newPlace(t)
	role := "arn:aws:iam::" + ssmpeer.Account + ":role/r"
	user := func(e sandboxcore.EC2SSMPrincipal) sandboxcore.Principal {
		return sandboxcore.Principal{Mode: sandboxcore.IdentityUser, Subject: "alice", EC2SSM: &e}
	}
	tags := map[string]string{}
	for i := range 51 {
		tags[fmt.Sprint(i)] = ""
	}
	for name, test := range map[string]struct {
		who  sandboxcore.Principal
		mode func(*sandboxcore.Profile)
		code sandboxcore.Code
		says string
	}{
		"user without a role":    {user(sandboxcore.EC2SSMPrincipal{}), userMode, sandboxcore.CodeIdentity, "role_arn"},
		"user without anything":  {sandboxcore.Principal{Mode: sandboxcore.IdentityUser, Subject: "alice"}, userMode, sandboxcore.CodeIdentity, "role_arn"},
		"agent with a role":      {sandboxcore.Principal{Mode: sandboxcore.IdentityAgent, Subject: "a", EC2SSM: &sandboxcore.EC2SSMPrincipal{RoleARN: role}}, nil, sandboxcore.CodeIdentity, "user only"},
		"agent for a user":       {sandboxcore.DefaultPrincipal(), userMode, sandboxcore.CodePrincipalMismatch, "agent"},
		"user for an agent":      {user(sandboxcore.EC2SSMPrincipal{RoleARN: role}), nil, sandboxcore.CodePrincipalMismatch, "user"},
		"no ARN":                 {user(sandboxcore.EC2SSMPrincipal{RoleARN: "runner"}), userMode, sandboxcore.CodeIdentity, "no ARN"},
		"source identity of AWS": {user(sandboxcore.EC2SSMPrincipal{RoleARN: role, SourceIdentity: "aws:x"}), userMode, sandboxcore.CodeIdentity, "source identity"},
		"external id":            {user(sandboxcore.EC2SSMPrincipal{RoleARN: role, ExternalID: "x"}), userMode, sandboxcore.CodeIdentity, "external id"},
		"51 tags":                {user(sandboxcore.EC2SSMPrincipal{RoleARN: role, SessionTags: tags}), userMode, sandboxcore.CodeIdentity, "51"},
		"a tag of AWS":           {user(sandboxcore.EC2SSMPrincipal{RoleARN: role, SessionTags: map[string]string{"AWS:x": "y"}}), userMode, sandboxcore.CodeIdentity, "session tag"},
		"two tags in one":        {user(sandboxcore.EC2SSMPrincipal{RoleARN: role, SessionTags: map[string]string{"Team": "a", "team": "b"}}), userMode, sandboxcore.CodeIdentity, "session tag"},
		"a long tag":             {user(sandboxcore.EC2SSMPrincipal{RoleARN: role, SessionTags: map[string]string{"k": strings.Repeat("x", 257)}}), userMode, sandboxcore.CodeIdentity, "session tag"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := p.spec()
			if test.mode != nil {
				spec = p.spec(test.mode)
			}
			_, err := p.engine.Attach(t.Context(), spec, test.who)
			refused(t, err, test.code, test.says)
		})
	}
	// Nor does a user's call that got past the gate use the provider's own credential.
	for _, who := range []*sandboxcore.EC2SSMPrincipal{nil, {}, {RoleARN: "runner"}} {
		_, err := newEndpoint(&backend{config: awsConfig{region: p.peer.Region, accessKey: p.key.AccessKey, secretKey: p.key.SecretKey}}).clientOf(t.Context(), profile(userMode), sandboxcore.Principal{Mode: sandboxcore.IdentityUser, Subject: "alice", EC2SSM: who})
		refused(t, err, sandboxcore.CodeIdentity, "role")
	}
	managed := profile(func(p *sandboxcore.Profile) {
		p.Environment = sandboxcore.EnvironmentManaged
		p.Settings = sandboxcore.Settings{}
	})
	_, err := p.engine.Registry().Decide(managed, nil, nil)
	refused(t, err, sandboxcore.CodeEnvironmentMode, "cannot create")
	if len(p.peer.Journal()) != 0 {
		t.Errorf("calls %v", p.peer.Actions())
	}
}

// TestCredentialAndEndpoint: an endpoint of the configuration gets no credential of the environment.
func TestCredentialAndEndpoint(t *testing.T) {
	for name, s := range map[string]sandboxcore.Settings{
		"endpoint alone": {keyEndpoints: map[string]any{keySSM: "http://127.0.0.1:1"}},
		"half a key":     {keyAccessKey: "x"},
		"token alone":    {keyToken: "x"},
		"two of them":    {keyAccessKey: "x", keySecretKey: "y", keyProfile: "z"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newBackend(s, nil)
			refused(t, err, sandboxcore.CodeValue)
		})
	}
	// Credential and endpoints of the environment belong together, as the AWS tools read them.
	p := newPlace(t)
	t.Setenv("AWS_ACCESS_KEY_ID", p.key.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", p.key.SecretKey)
	t.Setenv("AWS_ENDPOINT_URL", p.peer.URL)
	t.Setenv("AWS_REGION", p.peer.Region)
	b, err := newBackend(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	bb, _ := b.(*backend)
	bb.timings, bb.newID = quickTimings(), testID
	t.Cleanup(bb.close)
	if m := attachWith(t.Context(), t, bb); m.try(t.Context(), script("echo hi")).stdout != "hi\n" {
		t.Error("no run with credential and endpoint of the environment")
	}
	// No region anywhere.
	t.Setenv("AWS_REGION", "")
	b, err = newBackend(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	e, _ := b.Connect(t.Context())
	_, err = e.Identity(t.Context())
	refused(t, err, sandboxcore.CodeValue, "region")
}

// TestProfileWithoutCredential: a profile that takes the credential of the machine, of its container or of the environment
// gives none to a configured address; one that holds or fetches its own does. Nothing is asked for a credential to find out.
func TestProfileWithoutCredential(t *testing.T) {
	p := newPlace(t)
	var asked atomic.Int32
	ambient := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		expires := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		_, _ = fmt.Fprintf(w, `{"AccessKeyId":%q,"SecretAccessKey":%q,"Token":"","Expiration":%q}`, p.key.AccessKey, p.key.SecretKey, expires)
	}))
	t.Cleanup(ambient.Close)
	dir := t.TempDir()
	file := filepath.Join(dir, "config")
	keys := fmt.Sprintf("aws_access_key_id = %s\naws_secret_access_key = %s\n", p.key.AccessKey, p.key.SecretKey)
	text := "[profile plain]\nregion = eu-west-1\n" +
		"[profile container]\nrole_arn = arn:aws:iam::123456789012:role/r\ncredential_source = EcsContainer\n" +
		"[profile machine]\nrole_arn = arn:aws:iam::123456789012:role/r\ncredential_source = Ec2InstanceMetadata\n" +
		"[profile environment]\nrole_arn = arn:aws:iam::123456789012:role/r\ncredential_source = Environment\n" +
		"[profile chained]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = container\n" +
		"[profile keys]\n" + keys +
		"[profile process]\ncredential_process = cat " + filepath.Join(dir, "credential") + "\n"
	credential := fmt.Sprintf(`{"Version":1,"AccessKeyId":%q,"SecretAccessKey":%q}`, p.key.AccessKey, p.key.SecretKey)
	for name, content := range map[string]string{file: text, filepath.Join(dir, "credential"): credential} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("AWS_CONFIG_FILE", file)
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", ambient.URL)
	t.Setenv("AWS_ACCESS_KEY_ID", p.key.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", p.key.SecretKey)
	for name, endpoints := range map[string]map[string]any{
		"all": {keySSM: p.peer.URL, keySTS: p.peer.URL, keyS3: p.peer.URL}, "only ssm": {keySSM: p.peer.URL}, "only sts": {keySTS: p.peer.URL}, "only s3": {keyS3: p.peer.URL},
	} {
		for _, profile := range []string{"plain", "container", "machine", "environment", "chained"} {
			t.Run(name+"/"+profile, func(t *testing.T) {
				b, err := newBackend(sandboxcore.Settings{keyRegion: p.peer.Region, keyProfile: profile, keyEndpoints: endpoints}, nil)
				if err != nil {
					t.Fatal(err)
				}
				bb, _ := b.(*backend)
				t.Cleanup(bb.close)
				e, _ := b.Connect(t.Context())
				_, err = e.Identity(t.Context())
				refused(t, err, sandboxcore.CodeValue, "an endpoint is set", "credential")
			})
		}
	}
	if n := asked.Load(); n != 0 || len(p.peer.Journal()) != 0 {
		t.Errorf("a credential was asked for %d times, calls %v", n, p.peer.Actions())
	}
	for _, profile := range []string{"keys", "process"} {
		b, err := newBackend(sandboxcore.Settings{keyRegion: p.peer.Region, keyProfile: profile, keyEndpoints: map[string]any{keySSM: p.peer.URL, keySTS: p.peer.URL}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		bb, _ := b.(*backend)
		t.Cleanup(bb.close)
		e, _ := b.Connect(t.Context())
		if id, err := e.Identity(t.Context()); err != nil || id != ssmpeer.Account+"/"+p.peer.Region {
			t.Errorf("%s: %q %v", profile, id, err)
		}
	}
	// Without endpoints of the configuration a profile may use them: they go where the AWS tools send them.
	t.Setenv("AWS_ENDPOINT_URL", p.peer.URL)
	b, err := newBackend(sandboxcore.Settings{keyRegion: p.peer.Region, keyProfile: "plain"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	bb, _ := b.(*backend)
	t.Cleanup(bb.close)
	e, _ := b.Connect(t.Context())
	if id, err := e.Identity(t.Context()); err != nil || id != ssmpeer.Account+"/"+p.peer.Region || asked.Load() == 0 {
		t.Errorf("%q %v, asked %d times", id, err, asked.Load())
	}
}

// TestBucketOfTheEnvironment: output is read from where the AWS tools look for S3, and not at AWS with the credential of
// another place.
func TestBucketOfTheEnvironment(t *testing.T) {
	p := newPlace(t)
	t.Setenv("AWS_ACCESS_KEY_ID", p.key.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", p.key.SecretKey)
	t.Setenv("AWS_REGION", p.peer.Region)
	for name, variables := range map[string]map[string]string{
		"one for all":    {"AWS_ENDPOINT_URL": p.peer.URL},
		"one of its own": {"AWS_ENDPOINT_URL_SSM": p.peer.URL, "AWS_ENDPOINT_URL_STS": p.peer.URL, "AWS_ENDPOINT_URL_S3": p.peer.URL + "/"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range variables {
				t.Setenv(k, v)
			}
			p.peer.ForgetJournal()
			b, err := newBackend(nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			bb, _ := b.(*backend)
			bb.timings, bb.newID = quickTimings(), testID
			t.Cleanup(bb.close)
			m := attachWith(t.Context(), t, bb, with(keyOutputS3, map[string]any{keyBucket: "the-bucket"}))
			if o := m.try(t.Context(), script(`head -c 100000 /dev/zero`)); o.err != nil || len(o.stdout) != 100_000 {
				t.Errorf("%v, %d bytes", o.err, len(o.stdout))
			}
			if p.peer.Count("s3:GetObject") != 1 {
				t.Errorf("calls %v", p.peer.Actions())
			}
		})
	}
}
