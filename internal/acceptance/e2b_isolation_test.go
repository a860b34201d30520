//go:build linux

package acceptance

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/ssmpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

type attrs = protocoltest.Config

// witness records everything that the hosts of a test were sent.
type witness struct {
	mu   sync.Mutex
	seen map[string][]testimony
}

// testimony is one request: all of its text, and the names in the client's certificate.
type testimony struct{ text, certificate string }

// of stands in front of a host and writes down each request before it is answered.
func (w *witness) of(host string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		var text bytes.Buffer
		fmt.Fprintf(&text, "%s %s\nHost: %s\n", r.Method, r.URL, r.Host)
		_ = r.Header.Write(&text)
		text.Write(body)
		t := testimony{text: text.String()}
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			t.certificate = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		w.mu.Lock()
		w.seen[host] = append(w.seen[host], t)
		w.mu.Unlock()
		next.ServeHTTP(rw, r)
	})
}

// relay is a host that passes everything on to another one.
func (w *witness) relay(t *testing.T, host, to string) string {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	// The Host stays as it came: signatures are over it. Streams are passed on as they come.
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(u)
		r.Out.Host = r.In.Host
	}}
	return w.serve(t, host, proxy)
}

func (w *witness) serve(t *testing.T, host string, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(w.of(host, h))
	t.Cleanup(s.Close)
	return s.URL
}

func (w *witness) serveTLS(t *testing.T, host string, cert tls.Certificate, clients *x509.CertPool, h http.Handler) string {
	t.Helper()
	s := httptest.NewUnstartedServer(w.of(host, h))
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, ClientCAs: clients}
	s.TLS.ClientAuth = tls.RequestClientCert // whatever is shown, it is written down
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

// authority makes a certificate authority and what it signs.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	a.pem = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

// sign gives certificate and key, as TLS and as PEM.
func (a *authority) sign(t *testing.T, name string) (tls.Certificate, string, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return pair, string(certPEM), string(keyPEM)
}

func startPeer(t *testing.T, opt e2bpeer.Options) *e2bpeer.Peer {
	t.Helper()
	p, err := e2bpeer.Start(context.WithoutCancel(t.Context()), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// TestKeyIsolation: with every backend that speaks to a host configured at once, and other keys in the environment, each
// host is sent its own credential and no other, whatever is done with any of them.
func TestKeyIsolation(t *testing.T) {
	testenv.Require(t, testenv.Local)
	w := &witness{seen: map[string][]testimony{}}
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}

	e2b := startPeer(t, e2bpeer.Options{Key: "own-key-of-e2b"})
	plugin := startPeer(t, e2bpeer.Options{Key: "own-key-of-plugin", Bearer: true})
	aws := ssmpeer.New()
	t.Cleanup(aws.Close)
	user := aws.AddUser("terraform")
	aws.AddMachine(ssmpeer.Machine{ID: "i-0123456789abcdef0"})
	clusterCA, engineCA := newAuthority(t, "cluster"), newAuthority(t, "engine")
	clusterCert, _, _ := clusterCA.sign(t, "cluster server")
	engineCert, _, _ := engineCA.sign(t, "engine server")
	_, clientCert, clientKey := engineCA.sign(t, "own-certificate-of-docker")
	put("ca.pem", engineCA.pem)
	put("cert.pem", clientCert)
	put("key.pem", clientKey)
	e2bAPI, e2bBoxes := w.relay(t, "e2b", e2b.APIURL()), w.relay(t, "e2b sandboxes", e2b.SandboxURL())
	// A plugin's sandboxes are where its answers say: at the peer's own address, which keeps a record, too.
	pluginAPI := w.relay(t, "plugin", plugin.APIURL())
	plugin.Tamper(func(d map[string]any) {
		if id, ok := d["sandboxID"].(string); ok {
			d["envdUrl"] = plugin.SandboxURL() + "/sandbox/" + id + "/49983"
		}
	})
	ssm := w.relay(t, "aws", aws.URL)
	cluster := w.serveTLS(t, "kubernetes", clusterCert, nil, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/namespaces/kube-system") {
			_, _ = io.WriteString(rw, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"11111111-2222-3333-4444-555555555555"}}`)
			return
		}
		rw.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(rw, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no","code":403}`)
	}))
	engine := w.serveTLS(t, "docker", engineCert, nil, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Set("Api-Version", "1.51")
		switch {
		case strings.HasSuffix(r.URL.Path, "/_ping"):
			_, _ = io.WriteString(rw, "OK")
		case strings.HasSuffix(r.URL.Path, "/json"):
			_, _ = io.WriteString(rw, "[]")
		default:
			_, _ = io.WriteString(rw, `{"ID":"engine","ApiVersion":"1.51","MinAPIVersion":"1.40","OSType":"linux","Os":"linux"}`)
		}
	}))
	manifest := put("abx-provider.toml", `manifest_version = 1
[provider]
id = "acme-boxes"
name = "Acme Boxes"
version = "1.0.0"
[compat]
protocol = "e2b-rest/1"
[runtime]
kind = "rest"
[endpoint]
base_url = "`+pluginAPI+`"
[endpoint.auth]
scheme = "bearer"
[features]
supported = ["sandbox.lifecycle", "sandbox.timeout", "sandbox.pause", "exec.run", "exec.stream", "process.manage", "files.rw"]
[security]
network = ["127.0.0.1"]
[core]
inherit = ["e2b"]
`)

	// Whatever a tool of one of them would read: none of it belongs to a host that the configuration names.
	decoys := map[string]string{
		"E2B_API_KEY": "decoy-of-e2b", "ABX_ACME_BOXES_API_KEY": "decoy-of-plugin", "AWS_ACCESS_KEY_ID": "AKIADECOYOFAWS", "AWS_SECRET_ACCESS_KEY": "decoy-secret-of-aws",
		"AWS_SESSION_TOKEN": "decoy-token-of-aws", "DOCKER_AUTH_CONFIG": "decoy-of-docker", "AWS_EC2_METADATA_DISABLED": "true",
	}
	for k, v := range decoys {
		t.Setenv(k, v)
	}
	secret := "own-value-for-code"
	s := protocoltest.New(t, provider.New("test", backends.Registry(), provider.WithGetenv(os.Getenv)))
	if d := s.Configure(attrs{
		"secrets":    attrs{"code": secret},
		"e2b":        attrs{"api_key": e2b.Key(), "api_url": e2bAPI, "sandbox_url": e2bBoxes},
		"plugin":     attrs{"manifest": manifest, "api_key": plugin.Key()},
		"aws":        attrs{"region": aws.Region, "access_key": user.AccessKey, "secret_key": user.SecretKey, "endpoints": attrs{"ssm": ssm, "sts": ssm, "s3": ssm}},
		"kubernetes": attrs{"host": cluster, "token": "own-token-of-kubernetes", "cluster_ca_certificate": clusterCA.pem},
		"docker":     attrs{"host": "tcp://" + strings.TrimPrefix(engine, "https://"), "cert_path": dir},
	}); d.HasError() {
		t.Fatalf("configure: %s", d)
	}

	// All of them are asked, listed and, where there is something behind, used.
	for _, data := range []struct {
		name string
		cfg  attrs
	}{{"agentkernel_backends", attrs{"probe": true}}, {"agentkernel_sandboxes", attrs{}}} {
		s.ReadData(data.name, data.cfg) // some of the hosts have nothing to say
	}
	for name, block := range map[string]attrs{"e2b": {"metadata": attrs{"a": "b"}}, "plugin": {"manifest": manifest, "allow_public_traffic": true}} {
		p := s.MustApply("agentkernel_profile", protocoltest.State{}, attrs{"name": "p", "type": name, name: block})
		box := s.MustApply("agentkernel_sandbox", protocoltest.State{}, attrs{"profile": p.Get("spec")})
		run := s.MustApply("agentkernel_exec", protocoltest.State{}, attrs{"binding": box.Get("binding"), "script": `printf '%s' "${#V}" | tee f`, "secret_env": attrs{"V": "code"}, "output_files": []string{"f"}})
		if run.Get("stdout") != fmt.Sprint(len(secret)) {
			t.Errorf("%s: %s", name, run.JSON())
		}
		if _, d := s.Apply(s.PlanDestroy(box)); d.HasError() {
			t.Errorf("%s: %s", name, d)
		}
	}
	p, d := s.ReadData("agentkernel_profile", attrs{"name": "p", "type": "ec2_ssm", "environment": "attached", "ec2_ssm": attrs{"attach_to": "i-0123456789abcdef0"}})
	if d.HasError() {
		t.Fatal(d)
	}
	bound, d := s.ReadData("agentkernel_attached_environment", attrs{"profile": p.Get("spec")})
	if d.HasError() {
		t.Fatal(d)
	}
	s.MustApply("agentkernel_exec", protocoltest.State{}, attrs{"binding": bound.Get("binding"), "script": "true"})

	for _, r := range plugin.Requests() {
		if r.Plane == "sandbox" {
			var text bytes.Buffer
			fmt.Fprintf(&text, "%s %s?%s\nHost: %s\n", r.Method, r.Path, r.Query, r.Host)
			_ = r.Header.Write(&text)
			w.seen["plugin sandboxes"] = append(w.seen["plugin sandboxes"], testimony{text: text.String()})
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	own := map[string]string{
		"e2b": e2b.Key(), "plugin": plugin.Key(), "aws": user.AccessKey, "kubernetes": "own-token-of-kubernetes", "docker": "own-certificate-of-docker",
		"e2b sandboxes": "X-Access-Token: ", "plugin sandboxes": "X-Access-Token: ",
	}
	foreign := []string{e2b.Key(), plugin.Key(), user.AccessKey, "own-token-of-kubernetes", "own-certificate-of-docker", "decoy", "DECOY"}
	for host, credential := range own {
		if len(w.seen[host]) == 0 {
			t.Errorf("%s was sent nothing", host)
		}
		for _, r := range w.seen[host] {
			all := r.text + r.certificate
			if !strings.Contains(all, credential) {
				t.Errorf("%s was sent a request without its credential:\n%.300s", host, r.text)
			}
			for _, f := range foreign {
				if f != credential && strings.Contains(all, f) {
					t.Errorf("%s was sent %q:\n%.600s", host, f, all)
				}
			}
			if strings.Contains(all, user.SecretKey) || strings.Contains(all, "PRIVATE KEY") {
				t.Errorf("%s was sent a secret key", host)
			}
			// Tokens of sandboxes go to sandboxes, and what code is given goes there alone.
			if host != "e2b sandboxes" && host != "plugin sandboxes" && (strings.Contains(all, "X-Access-Token") || strings.Contains(all, secret)) {
				t.Errorf("%s was sent what belongs to a sandbox:\n%.600s", host, all)
			}
			head, _, _ := strings.Cut(r.text, "\n")
			if strings.Contains(head, credential) {
				t.Errorf("%s: a credential in an address: %s", host, head)
			}
		}
	}
	for host := range w.seen {
		if _, known := own[host]; !known {
			t.Errorf("who is %s?", host)
		}
	}
}
