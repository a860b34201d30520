package sandboxcore_test

import (
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
)

// The texts and fingerprints of version 1 are frozen: a change here makes every sandbox of every user differ.
func TestSpecGolden(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, nil)
	cases := []struct {
		name, spec, fingerprint string
		in                      sandboxcore.ProfileInput
	}{
		{
			name: "all defaults", in: dockerInput(nil),
			spec:        `{"name":"p","type":"docker","v":1}`,
			fingerprint: "ff50f1af00185839374f4ff3bd71fc281b48ccb4a8c28869a06fcf1cf0253bba",
		},
		{
			name: "defaults spelled out are not in the spec",
			in: dockerInput(func(in *sandboxcore.ProfileInput) {
				in.Environment, in.Scope, in.IdleTimeout, in.Identity = new("managed"), new("per_session"), new(1800.0), new("agent")
				in.Policy = sandboxcore.PolicyInput{NetworkEgress: new("allow"), Timeout: new(120.0), Strict: new(true)}
				in.Blocks["docker"] = sandboxcore.Settings{"image": "python:3.12-slim", "pids_limit": 256.0, "init": false, "caps": []any{}, "hints": map[string]any{}}
			}),
			spec: `{"name":"p","type":"docker","v":1}`,
		},
		{
			name: "everything",
			in: dockerInput(func(in *sandboxcore.ProfileInput) {
				in.Scope, in.IdleTimeout = new("per_call"), new(0.5+1)
				in.Policy = sandboxcore.PolicyInput{
					NetworkEgress: new("deny"), FSAllowWrite: []string{"/workspace/", "/data", "/data"}, CPU: new(1.5), MemoryMB: new(int64(512)),
					Timeout: new(30.0), Strict: new(false), MinIsolation: new("container"),
				}
				in.Blocks["docker"] = sandboxcore.Settings{
					"image": "a<b>&", "pids_limit": 64.0, "factor": 1e21, "init": true, "caps": []any{"b", "a"}, "steps": []any{"b", "a"},
					"hints": map[string]any{"z": "1", "a": "2"}, "nested": map[string]any{"user": "bob"},
				}
			}),
			spec: `{"docker":{"caps":["a","b"],"factor":1000000000000000000000,"hints":{"a":"2","z":"1"},"image":"a\u003cb\u003e\u0026","init":true,"nested":{"user":"bob"},"pids_limit":64,"steps":["b","a"]},` +
				`"idle_timeout":1.5,"name":"p","policy":{"cpu":1.5,"fs_allow_write":["/data","/workspace"],"memory_mb":512,"min_isolation":"container","network_egress":"deny","strict":false,"timeout":30},` +
				`"scope":"per_call","type":"docker","v":1}`,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := mustResolve(t, reg, c.in)
			spec := mustSpec(t, p)
			if spec != c.spec {
				t.Fatalf("spec\n got %s\nwant %s", spec, c.spec)
			}
			if got := sandboxcore.Fingerprint(spec); c.fingerprint != "" && got != c.fingerprint {
				t.Errorf("fingerprint %s, want %s", got, c.fingerprint)
			}
			back, err := reg.ParseSpec(spec)
			if err != nil {
				t.Fatalf("parse: %v", err)
			}
			if again := mustSpec(t, back); again != spec {
				t.Errorf("round trip gave %s", again)
			}
		})
	}
}

func TestParseSpecRefuses(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, nil)
	cases := map[string]struct {
		spec string
		code sandboxcore.Code
		said string
	}{
		"empty":              {``, sandboxcore.CodeSpec, "not the JSON"},
		"not JSON":           {`hello`, sandboxcore.CodeSpec, "not the JSON"},
		"a list":             {`[]`, sandboxcore.CodeSpec, "not the JSON"},
		"null":               {`null`, sandboxcore.CodeSpec, "no version"},
		"no version":         {`{"name":"p","type":"docker"}`, sandboxcore.CodeSpec, "no version"},
		"version 0":          {`{"name":"p","type":"docker","v":0}`, sandboxcore.CodeSpec, "no spec version 0"},
		"newer":              {`{"name":"p","type":"docker","v":2}`, sandboxcore.CodeSpec, "a newer provider"},
		"newer with keys":    {`{"gpu":{"count":1},"name":{"first":"p"},"type":"quantum","v":7}`, sandboxcore.CodeSpec, "version 7"},
		"unknown key":        {`{"extra":1,"name":"p","type":"docker","v":1}`, sandboxcore.CodeSpec, "does not know"},
		"unknown policy key": {`{"name":"p","policy":{"gpu":1},"type":"docker","v":1}`, sandboxcore.CodeSpec, "does not know"},
		"unknown setting":    {`{"docker":{"gpu":true},"name":"p","type":"docker","v":1}`, sandboxcore.CodeSpec, "no profile can say"},
		"foreign block":      {`{"ec2_ssm":{},"name":"p","type":"docker","v":1}`, sandboxcore.CodeSpec, "no profile can say"},
		"unknown type":       {`{"name":"p","type":"xen","v":1}`, sandboxcore.CodeUnknownType, "no backend type"},
		"white space":        {`{"name": "p","type":"docker","v":1}`, sandboxcore.CodeSpec, "canonical"},
		"key order":          {`{"type":"docker","name":"p","v":1}`, sandboxcore.CodeSpec, "canonical"},
		"default present":    {`{"name":"p","scope":"per_session","type":"docker","v":1}`, sandboxcore.CodeSpec, "canonical"},
		"list order":         {`{"name":"p","policy":{"fs_allow_write":["/b","/a"]},"type":"docker","v":1}`, sandboxcore.CodeSpec, "canonical"},
		"duplicate key":      {`{"name":"q","name":"p","type":"docker","v":1}`, sandboxcore.CodeSpec, "canonical"},
		"wrong type":         {`{"name":5,"type":"docker","v":1}`, sandboxcore.CodeSpec, "does not know"},
		"out of range":       {`{"name":"p","policy":{"timeout":0},"type":"docker","v":1}`, sandboxcore.CodeSpec, "no profile can say"},
		"text behind":        {`{"name":"p","type":"docker","v":1}x`, sandboxcore.CodeSpec, "not the JSON"},
		"too long":           {`{"name":"` + strings.Repeat("p", sandboxcore.MaxSpecBytes) + `"}`, sandboxcore.CodeSpec, "more than"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := reg.ParseSpec(c.spec)
			if !sandboxcore.IsCode(err, c.code) || !strings.Contains(err.Error(), c.said) {
				t.Errorf("got %v, want %s with %q", err, c.code, c.said)
			}
		})
	}
}

func FuzzParseSpec(f *testing.F) {
	f.Add(`{"name":"p","type":"docker","v":1}`)
	f.Add(`{"docker":{"caps":["a"],"nested":{"user":"x"}},"name":"p","policy":{"cpu":1.5},"type":"docker","v":1}`)
	f.Fuzz(func(t *testing.T, s string) {
		reg := newRegistry(t, nil)
		p, err := reg.ParseSpec(s)
		if err != nil {
			return
		}
		if again := mustSpec(t, p); again != s {
			t.Fatalf("accepted %q, which is written as %q", s, again)
		}
	})
}

func TestDiffProfiles(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, nil)
	live := []string{"policy.cpu", "policy.memory_mb"}
	base := dockerInput(nil)
	cases := map[string]struct {
		change func(*sandboxcore.ProfileInput)
		want   sandboxcore.SpecChange
	}{
		"nothing":        {func(*sandboxcore.ProfileInput) {}, sandboxcore.SpecChange{}},
		"recorded":       {func(in *sandboxcore.ProfileInput) { in.Name = "q"; in.Policy.Timeout = new(5.0) }, sandboxcore.SpecChange{Recorded: []string{"name", "policy.timeout"}}},
		"live":           {func(in *sandboxcore.ProfileInput) { in.Policy.CPU = new(2.0) }, sandboxcore.SpecChange{Live: []string{"policy.cpu"}}},
		"recorded field": {func(in *sandboxcore.ProfileInput) { in.Blocks["docker"]["pull_policy"] = "never" }, sandboxcore.SpecChange{Recorded: []string{"docker.pull_policy"}}},
		"replace":        {func(in *sandboxcore.ProfileInput) { in.Policy.NetworkEgress = new("deny") }, sandboxcore.SpecChange{Replace: []string{"policy.network_egress"}}},
		"image":          {func(in *sandboxcore.ProfileInput) { in.Blocks["docker"]["image"] = "x" }, sandboxcore.SpecChange{Replace: []string{"docker.image"}}},
		"identity":       {func(in *sandboxcore.ProfileInput) { in.Identity = new("user") }, sandboxcore.SpecChange{Replace: []string{"identity.mode"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from := mustResolve(t, reg, base)
			got := reg.DiffProfiles(from, mustResolve(t, reg, dockerInput(c.change)), live)
			if strings.Join(got.Recorded, ",") != strings.Join(c.want.Recorded, ",") || strings.Join(got.Live, ",") != strings.Join(c.want.Live, ",") ||
				strings.Join(got.Replace, ",") != strings.Join(c.want.Replace, ",") {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// A spec that is canonical JSON but says the impossible is a malformed spec: what a profile would be told about it is the
// cause, and blames no attribute of whoever was given the spec.
func TestImpossibleSpecIsMalformed(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, nil)
	_, err := reg.ParseSpec(`{"name":"no name","type":"docker","v":1}`)
	all := sandboxcore.AllErrors(err, "")
	if len(all) != 1 || all[0].Code != sandboxcore.CodeSpec || len(all[0].Attribute) > 0 || !strings.Contains(all[0].Error(), "AK1003") {
		t.Errorf("got %v", err)
	}
	redacted := sandboxcore.AllErrors(sandboxcore.NewRedactor("no name").Error(err), "")
	if len(redacted) != 1 || redacted[0].Code != sandboxcore.CodeSpec || strings.Contains(redacted[0].Error(), "no name") {
		t.Errorf("redacted %v", redacted)
	}
}

// The advice of a refusal has to lead somewhere: a backend without user identity offers none.
func TestPrincipalAdvice(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, nil)
	user := sandboxcore.Principal{Mode: sandboxcore.IdentityUser, Subject: "bob"}
	_, err := reg.Decide(mustResolve(t, reg, dockerInput(nil)), &user, nil)
	if !sandboxcore.IsCode(err, sandboxcore.CodePrincipalMismatch) || strings.Contains(err.Error(), "identity = {") != backendtest.DefaultCaps().PrincipalUser {
		t.Errorf("got %v", err)
	}
}
