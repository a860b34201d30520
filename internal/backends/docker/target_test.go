package docker

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

func contextHash(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

func discardLog() *log.Logger { return log.New(io.Discard, "", 0) }

func environment(kv ...string) func(string) string {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return func(k string) string { return m[k] }
}

// dockerConfig makes a Docker configuration with contexts.
func dockerConfig(t *testing.T, current string, contexts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("config.json", `{"currentContext":"`+current+`","auths":{"registry.example.com":{"auth":"dXNlcjpwYXNz"}}}`)
	for name, host := range contexts {
		write("contexts/meta/"+contextHash(name)+"/meta.json", `{"Name":"`+name+`","Metadata":{},"Endpoints":{"docker":{"Host":"`+host+`","SkipTLSVerify":false}}}`)
	}
	return dir
}

// Which engine is meant: the configuration before the environment, and a credential only with its own address.
func TestWhichEngine(t *testing.T) {
	dir := dockerConfig(t, "current", map[string]string{"current": "unix:///current", "named": "tcp://named:2375", "remote": "ssh://me@[::1]:2222"})
	certs := writeCerts(t, newAuthority(t))
	tests := map[string]struct {
		provider sandboxcore.Settings
		env      []string
		host     string
		tls      bool
		auth     bool // registry credentials may be used
	}{
		"nothing at all":                        {host: client.DefaultDockerHost, auth: true},
		"host":                                  {provider: sandboxcore.Settings{keyHost: "unix:///h"}, env: []string{"DOCKER_HOST", "unix:///e", "DOCKER_CONTEXT", "named"}, host: "unix:///h"},
		"host with a configuration":             {provider: sandboxcore.Settings{keyHost: "unix:///h", keyConfigDir: dir}, host: "unix:///h", auth: true},
		"context":                               {provider: sandboxcore.Settings{keyContext: "named"}, env: []string{"DOCKER_HOST", "unix:///e", "DOCKER_CONFIG", dir}, host: "tcp://named:2375", auth: true},
		"context over ssh":                      {provider: sandboxcore.Settings{keyContext: "remote", keyConfigDir: dir}, host: "ssh://me@[::1]:2222", auth: true},
		"DOCKER_HOST":                           {env: []string{"DOCKER_HOST", "unix:///e", "DOCKER_CONTEXT", "named", "DOCKER_CONFIG", dir}, host: "unix:///e", auth: true},
		"DOCKER_CONTEXT":                        {env: []string{"DOCKER_CONTEXT", "named", "DOCKER_CONFIG", dir}, host: "tcp://named:2375", auth: true},
		"DOCKER_CONTEXT=default":                {env: []string{"DOCKER_CONTEXT", "default", "DOCKER_CONFIG", dir}, host: client.DefaultDockerHost, auth: true},
		"current context":                       {env: []string{"DOCKER_CONFIG", dir}, host: "unix:///current", auth: true},
		"DOCKER_HOST with TLS":                  {env: []string{"DOCKER_HOST", "tcp://e:2376", "DOCKER_TLS_VERIFY", "1", "DOCKER_CERT_PATH", certs}, host: "tcp://e:2376", tls: true, auth: true},
		"certificates without VERIFY":           {env: []string{"DOCKER_HOST", "tcp://e:2376", "DOCKER_CERT_PATH", certs}, host: "tcp://e:2376", tls: true, auth: true},
		"host, certificates of the environment": {provider: sandboxcore.Settings{keyHost: "tcp://h:2376"}, env: []string{"DOCKER_TLS_VERIFY", "1", "DOCKER_CERT_PATH", certs}, host: "tcp://h:2376"},
		"host with its certificates":            {provider: sandboxcore.Settings{keyHost: "tcp://h:2376", keyCertPath: certs}, host: "tcp://h:2376", tls: true},
		"host IPv6":                             {provider: sandboxcore.Settings{keyHost: "tcp://[::1]:2375"}, host: "tcp://[::1]:2375"},
		"npipe":                                 {provider: sandboxcore.Settings{keyHost: "npipe:////./pipe/docker_engine"}, host: "npipe:////./pipe/docker_engine"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := readEngineConfig(test.provider, environment(append(test.env, "HOME", t.TempDir())...))
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.resolve()
			if err != nil {
				t.Fatal(err)
			}
			if got.host != test.host || (got.tls != nil) != test.tls || (got.registryAuth != nil) != test.auth {
				t.Errorf("host %s, TLS %t, registry credentials %t", got.host, got.tls != nil, got.registryAuth != nil)
			}
			if got.tls != nil && got.tls.InsecureSkipVerify {
				t.Error("TLS is not verified")
			}
		})
	}
}

func TestRefusedEngines(t *testing.T) {
	dir := dockerConfig(t, "gone", nil)
	tests := map[string]struct {
		provider sandboxcore.Settings
		env      []string
		code     sandboxcore.Code
		parts    []string
	}{
		"host and context":          {provider: sandboxcore.Settings{keyHost: "unix:///x", keyContext: "y"}, code: sandboxcore.CodeValue, parts: []string{"Both"}},
		"scheme":                    {provider: sandboxcore.Settings{keyHost: "https://x"}, code: sandboxcore.CodeValue, parts: []string{"https"}},
		"no scheme":                 {provider: sandboxcore.Settings{keyHost: "localhost:2375"}, code: sandboxcore.CodeValue},
		"password":                  {provider: sandboxcore.Settings{keyHost: "ssh://me:canary@host"}, code: sandboxcore.CodeValue, parts: []string{"password"}},
		"unparsable":                {provider: sandboxcore.Settings{keyHost: "tcp://canary:%zz@"}, code: sandboxcore.CodeValue},
		"no host":                   {provider: sandboxcore.Settings{keyHost: "tcp://"}, code: sandboxcore.CodeValue},
		"certificates without host": {provider: sandboxcore.Settings{keyCertPath: "/x"}, code: sandboxcore.CodeValue, parts: []string{"host"}},
		"DOCKER_HOST":               {env: []string{"DOCKER_HOST", "ftp://x"}, code: sandboxcore.CodeValue, parts: []string{"DOCKER_HOST"}},
		"unknown context":           {provider: sandboxcore.Settings{keyContext: "nope", keyConfigDir: dir}, code: sandboxcore.CodeUnreachable, parts: []string{"nope", "docker context ls"}},
		"current context":           {env: []string{"DOCKER_CONFIG", dir}, code: sandboxcore.CodeUnreachable, parts: []string{"gone"}},
		"no certificates":           {provider: sandboxcore.Settings{keyHost: "tcp://x:1", keyCertPath: t.TempDir()}, code: sandboxcore.CodeUnreachable, parts: []string{"ca.pem"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := readEngineConfig(test.provider, environment(append(test.env, "HOME", t.TempDir())...))
			if err == nil {
				_, err = c.resolve()
			}
			refused(t, err, test.code, test.parts...)
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("it repeats a credential: %v", err)
			}
		})
	}
}

// Every way that an address can be wrong has its own next step, over real sockets where there can be one.
func TestUnreachableClasses(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() }) //nolint:errcheck // a test
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close() //nolint:errcheck // it must be closed
	nonsense, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nonsense.Close() }) //nolint:errcheck // a test
	go func() {
		for {
			c, err := nonsense.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 1024))            //nolint:errcheck // a test
			c.Write([]byte("220 mail ready\r\n")) //nolint:errcheck // a test
			c.Close()                             //nolint:errcheck // a test
		}
	}()
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	ca, other := newAuthority(t), newAuthority(t)
	good, strange := writeCerts(t, ca), writeCerts(t, other)
	wants := tlsEngine(t, ca, true)
	tests := map[string]struct {
		provider sandboxcore.Settings
		parts    []string
	}{
		"dns":                   {sandboxcore.Settings{keyHost: "tcp://no-such-host.invalid:2375"}, []string{"no-such-host.invalid", "resolved"}},
		"refused":               {sandboxcore.Settings{keyHost: "tcp://" + closed.Addr().String()}, []string{"refused"}},
		"no socket":             {sandboxcore.Settings{keyHost: "unix:///no/such/socket"}, []string{"no such socket", "DOCKER_HOST"}},
		"silent":                {sandboxcore.Settings{keyHost: "tcp://" + silent.Addr().String()}, []string{"did not answer in time"}},
		"nonsense":              {sandboxcore.Settings{keyHost: "tcp://" + nonsense.Addr().String()}, []string{"protocol"}},
		"TLS to plain":          {sandboxcore.Settings{keyHost: "tcp://" + plain.Listener.Addr().String(), keyCertPath: good}, []string{"does not speak TLS"}},
		"plain to TLS":          {sandboxcore.Settings{keyHost: "tcp://" + wants}, []string{"TLS"}},
		"strange engine":        {sandboxcore.Settings{keyHost: "tcp://" + wants, keyCertPath: strange}, []string{"certificate was refused", "ca.pem"}},
		"wrong name":            {sandboxcore.Settings{keyHost: "tcp://" + strings.Replace(wants, "127.0.0.1", "localhost.localdomain", 1), keyCertPath: good}, nil},
		"no client certificate": {sandboxcore.Settings{keyHost: "tcp://" + wants, keyCertPath: onlyCA(t, ca)}, []string{"client certificate"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := dial(t, test.provider, environment("HOME", t.TempDir()))
			e.timings.connect = time.Second
			begin := time.Now()
			_, err := e.Identity(t.Context())
			refused(t, err, sandboxcore.CodeUnreachable, append(test.parts, test.provider.String(keyHost, ""))...)
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
	t.Run("TLS that is right", func(t *testing.T) {
		e := dial(t, sandboxcore.Settings{keyHost: "tcp://" + wants, keyCertPath: good}, getenvNone)
		if id, err := e.Identity(t.Context()); err != nil || id != "FAKE:ENGINE" {
			t.Fatal(id, err)
		}
	})
}

func TestSocketWithoutPermission(t *testing.T) {
	if os.Getuid() == 0 {
		// root may use any socket: the class is recognised from the error.
		e := &sandboxcore.Error{}
		if !(target{host: "unix:///x"}).fillNetwork(e, os.ErrPermission) || !strings.Contains(e.Next, "group") {
			t.Fatalf("%+v", e)
		}
		return
	}
	f := newFake(t)
	if err := os.Chmod(strings.TrimPrefix(f.host, "unix://"), 0); err != nil {
		t.Fatal(err)
	}
	_, err := f.endpoint(nil).Identity(t.Context())
	refused(t, err, sandboxcore.CodeUnreachable, "may not use the socket")
}

// An ssh program that says what ssh says. The classes are read from its words.
func TestSSHClasses(t *testing.T) {
	dir := t.TempDir()
	script := `#!/bin/sh
cat "$(dirname "$0")/says" >&2
echo "$@" >"$(dirname "$0")/args"
exit 255
`
	if err := os.WriteFile(filepath.Join(dir, "ssh"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	path := os.Getenv("PATH")
	t.Setenv("PATH", dir+":"+path)
	for says, want := range map[string]string{
		"Host key verification failed.":                                      "host key",
		"me@host: Permission denied (publickey).":                            "did not accept the ssh login",
		"ssh: Could not resolve hostname nowhere: Name or service not known": "cannot resolve",
		"ssh: connect to host h port 22: Connection refused":                 "refused the ssh connection",
		"sh: 1: docker: not found":                                           "no docker program",
		"Cannot connect to the Docker daemon at unix:///var/run/docker.sock": "no engine runs",
		"something else": "something else",
	} {
		if err := os.WriteFile(filepath.Join(dir, "says"), []byte(says+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		e := dial(t, sandboxcore.Settings{keyHost: "ssh://me@[::1]:2222"}, getenvNone)
		_, err := e.Identity(t.Context())
		refused(t, err, sandboxcore.CodeUnreachable, want, "ssh://me@[::1]:2222")
	}
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	if err != nil || !strings.Contains(string(args), "BatchMode=yes") || !strings.Contains(string(args), "-p 2222") || !strings.Contains(string(args), "::1") {
		t.Errorf("ssh was called with %s (%v)", args, err)
	}
	t.Setenv("PATH", t.TempDir())
	e := dial(t, sandboxcore.Settings{keyHost: "ssh://me@host"}, getenvNone)
	_, err = e.Identity(t.Context())
	refused(t, err, sandboxcore.CodeUnreachable, "no ssh program")
}

// There is one place that makes clients: every other one would be a path that ignores the configured engine.
func TestOneClientFactory(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	makes := regexp.MustCompile(`client\.(New|NewClientWithOpts|FromEnv)\b|http\.(DefaultClient|Get|Post)\b|os\.Getenv`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(makes.FindAll(content, -1)); (file == "client.go" && n != 1) || (file != "client.go" && n != 0) {
			t.Errorf("%s makes clients or reads the environment by itself (%d times)", file, n)
		}
	}
}

func TestRegistryCredentials(t *testing.T) {
	dir := dockerConfig(t, "", nil)
	e := dial(t, sandboxcore.Settings{keyConfigDir: dir}, getenvNone)
	for image, want := range map[string]bool{"registry.example.com/x:1": true, "python:3": false, "other.example.com/x": false} {
		auth, err := e.registryAuth(image)
		if err != nil || (auth != "") != want {
			t.Errorf("%s: %q %v", image, auth, err)
		}
	}
	e = dial(t, sandboxcore.Settings{keyHost: "unix:///x"}, environment("DOCKER_CONFIG", dir))
	if auth, err := e.registryAuth("registry.example.com/x:1"); err != nil || auth != "" {
		t.Errorf("a credential of the environment goes to an engine of the configuration: %q %v", auth, err)
	}
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a authority) issue(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name}, IPAddresses: []net.IP{net.ParseIP("127.0.0.1")},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &k.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

func writeCerts(t *testing.T, a authority) string {
	t.Helper()
	dir := onlyCA(t, a)
	cert, key := a.issue(t, "localhost")
	for file, content := range map[string][]byte{"cert.pem": cert, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func onlyCA(t *testing.T, a authority) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), a.pem, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// tlsEngine is a small engine behind TLS that asks for a client certificate.
func tlsEngine(t *testing.T, a authority, clientCerts bool) string {
	t.Helper()
	cert, key := a.issue(t, "localhost")
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	f := newFake(t)
	s := httptest.NewUnstartedServer(http.HandlerFunc(f.serve))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if clientCerts {
		s.TLS.ClientCAs, s.TLS.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		s.TLS.ClientCAs.AddCert(a.cert)
	}
	s.Config.ErrorLog = discardLog()
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}
