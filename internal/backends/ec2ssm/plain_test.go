//go:build linux

package ec2ssm

import (
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// TestPlainHTTP: an address of another machine that is not encrypted is refused before anything is sent there, whether the
// configuration names it or the AWS tools would look there; allow_http lets it be, and loopback needs no leave.
func TestPlainHTTP(t *testing.T) {
	hermetic(t)
	made := func(change func(sandboxcore.Settings)) (*backend, error) {
		s := sandboxcore.Settings{keyRegion: "eu-west-1", keyAccessKey: "AKIAEXAMPLE", keySecretKey: "canary-secret", keyToken: "canary-token"}
		change(s)
		b, err := newBackend(s, nil)
		bb, _ := b.(*backend)
		return bb, err
	}
	for address, refuses := range map[string]bool{
		"http://ssm.example.test": true, "http://10.0.0.1:4566": true, "http://[2001:db8::1]": true, "http://localhost.example.test": true, "http://127.0.0.1.example.test": true,
		"https://ssm.example.test": false, "http://127.0.0.1:4566": false, "http://127.9.9.9": false, "http://[::1]:1/": false, "http://localhost:4566": false,
	} {
		for _, key := range []string{keySSM, keySTS, keyS3} {
			_, err := made(func(s sandboxcore.Settings) { s[keyEndpoints] = map[string]any{key: address} })
			if refuses {
				refused(t, err, sandboxcore.CodeValue, "not encrypted", address)
				if at := sandboxcore.AllErrors(err, "")[0].Attribute; strings.Join(at, ".") != "aws.endpoints."+key {
					t.Errorf("it blames %v", at)
				}
			} else if err != nil {
				t.Error(err)
			}
			if _, err := made(func(s sandboxcore.Settings) { s[keyEndpoints], s[keyAllowHTTP] = map[string]any{key: address}, true }); err != nil {
				t.Error(err)
			}
		}
		for _, name := range []string{"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SSM", "AWS_ENDPOINT_URL_STS"} {
			t.Run(name+"="+address, func(t *testing.T) {
				t.Setenv(name, address)
				for _, allowed := range []bool{false, true} {
					b, err := made(func(s sandboxcore.Settings) { s[keyAllowHTTP] = allowed })
					if err != nil {
						t.Fatal(err)
					}
					_, err = b.config.load(t.Context())
					if refuses && !allowed {
						refused(t, err, sandboxcore.CodeValue, "not encrypted", address, "AWS_ENDPOINT_URL")
					} else if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// TestPlainHTTPOfABucket: only a run that reads its output there minds, and how it ended is told all the same.
func TestPlainHTTPOfABucket(t *testing.T) {
	p := newPlace(t)
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://s3.example.test")
	s := settings(p.peer, p.key)
	s[keyEndpoints] = map[string]any{keySSM: p.peer.URL, keySTS: p.peer.URL}
	b, err := newBackend(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	bb, _ := b.(*backend)
	bb.timings, bb.newID = quickTimings(), testID
	t.Cleanup(bb.close)
	if o := attachWith(t.Context(), t, bb).try(t.Context(), script("echo hi")); o.err != nil || o.stdout != "hi\n" {
		t.Errorf("%v %q", o.err, o.stdout)
	}
	o := attachWith(t.Context(), t, bb, with(keyOutputS3, map[string]any{keyBucket: "outputs"})).try(t.Context(), script("head -c 100000 /dev/zero; exit 3"))
	if o.err != nil || o.ExitCode != 3 || o.StdoutLost == 0 || !strings.Contains(o.Notice, "not encrypted") {
		t.Errorf("%v, exit %d, %d lost, %q", o.err, o.ExitCode, o.StdoutLost, o.Notice)
	}
	nothingLeft(t)
}
