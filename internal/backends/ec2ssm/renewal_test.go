//go:build linux

package ec2ssm

import (
	"context"
	"strings"
	"testing"
	"time"

	smithy "github.com/aws/smithy-go"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/ssmpeer"
)

// TestRenewalOfOthers: who learns that a session has ended after somebody else has renewed it takes the new one, and does not
// throw it away.
func TestRenewalOfOthers(t *testing.T) {
	p := newPlace(t)
	who := sandboxcore.Principal{Mode: sandboxcore.IdentityUser, Subject: "alice", EC2SSM: &sandboxcore.EC2SSMPrincipal{RoleARN: p.peer.AddRole("runner", ssmpeer.Role{})}}
	b, err := newBackend(settings(p.peer, p.key), nil)
	if err != nil {
		t.Fatal(err)
	}
	bb, _ := b.(*backend)
	bb.timings = quickTimings()
	t.Cleanup(bb.close)
	at, err := bb.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e, _ := at.(*endpoint)
	call := func(first func()) {
		t.Helper()
		c, err := e.clientOf(t.Context(), profile(userMode), who)
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		if err := c.retry(t.Context(), e, func(ctx context.Context) error {
			if _, err := c.config.Credentials.Retrieve(ctx); err != nil {
				return err
			}
			if calls++; calls == 1 {
				first()
				return &smithy.GenericAPIError{Code: "ExpiredTokenException"}
			}
			return nil
		}); err != nil || calls != 2 {
			t.Errorf("%d calls, %v", calls, err)
		}
	}
	// The first call is on its way while the second one renews the session.
	call(func() { call(func() {}) })
	if n := p.peer.Count("sts:AssumeRole"); n != 2 {
		t.Errorf("the role was assumed %d times, want once and once anew", n)
	}
}

// TestBucketAndExpiredSession: S3 says so with the status that it also has for a bucket in another region.
func TestBucketAndExpiredSession(t *testing.T) {
	for _, code := range []string{"ExpiredToken", "TokenRefreshRequired"} {
		for _, mode := range []sandboxcore.IdentityMode{sandboxcore.IdentityUser, sandboxcore.IdentityAgent} {
			p := newPlace(t)
			p.peer.Fault = func(action string, n int) *ssmpeer.Fault {
				if action == "s3:GetObject" && n == 1 {
					return &ssmpeer.Fault{Code: code, Status: 400}
				}
				return nil
			}
			who, identity := sandboxcore.DefaultPrincipal(), func(*sandboxcore.Profile) {}
			if mode == sandboxcore.IdentityUser {
				who = sandboxcore.Principal{Mode: mode, Subject: "alice", EC2SSM: &sandboxcore.EC2SSMPrincipal{RoleARN: p.peer.AddRole("runner", ssmpeer.Role{})}}
				identity = userMode
			}
			binding := p.bind(p.spec(identity, with(keyOutputS3, map[string]any{keyBucket: "outputs"})), who)
			res, err := p.engine.Exec(t.Context(), sandboxcore.ExecRequest{
				Binding: &binding, Kind: sandboxcore.RunScript, Text: []byte("head -c 100000 /dev/zero"), Principal: who, Timeout: 30 * time.Second, MaxOutputBytes: 200_000,
			})
			if err != nil {
				t.Fatal(err)
			}
			if mode == sandboxcore.IdentityUser {
				if n := p.peer.Count("sts:AssumeRole"); res.Stdout.Bytes != 100_000 || res.Notice != "" || n != 2 {
					t.Errorf("%s: %d bytes, %q, assumed %d times", code, res.Stdout.Bytes, res.Notice, n)
				}
			} else {
				if !strings.Contains(res.Notice, "expired") {
					t.Errorf("%q", res.Notice)
				}
				if n := p.peer.Count("s3:GetObject"); n != 1 {
					t.Errorf("asked %d times", n)
				}
			}
		}
	}
}
