package docker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// forward passes every connection of a listener on to the engine's socket.
func forward(t *testing.T, l net.Listener) {
	t.Helper()
	t.Cleanup(func() { l.Close() }) //nolint:errcheck // a test
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("unix", "/var/run/docker.sock")
				if err != nil {
					return
				}
				defer out.Close()
				go func() {
					io.Copy(out, in) //nolint:errcheck // a test
					out.Close()      //nolint:errcheck // a test
				}()
				io.Copy(in, out) //nolint:errcheck // a test
			}()
		}
	}()
}

// The same engine at another address is the same endpoint, and everything works there: over TCP and over TLS.
func TestSameEngineAtOtherAddresses(t *testing.T) {
	testenv.Require(t, "docker")
	if host := os.Getenv("DOCKER_HOST"); host != "" && host != "unix:///var/run/docker.sock" {
		testenv.Skip(t, testenv.Docker, "the engine is not at its default socket", "unset DOCKER_HOST")
	}
	here := engine(t)
	s := create(t, here, profile("python"))
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	forward(t, plain)
	ca := newAuthority(t)
	cert, key := ca.issue(t, "localhost")
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(ca.cert)
	secure, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	forward(t, secure)
	for name, provider := range map[string]sandboxcore.Settings{
		"tcp": {keyHost: "tcp://" + plain.Addr().String()},
		"tls": {keyHost: "tcp://" + secure.Addr().String(), keyCertPath: writeCerts(t, ca)},
	} {
		t.Run(name, func(t *testing.T) {
			e := dial(t, provider, getenvNone)
			m, err := e.Find(t.Context(), s.info.NativeID, true)
			if err != nil {
				t.Fatal(err)
			}
			if m.Info().Endpoint != s.info.Endpoint {
				t.Errorf("identity %s, over the socket %s", m.Info().Endpoint, s.info.Endpoint)
			}
			o := execute(t.Context(), m, sandboxcore.RunRequest{Argv: []string{"cat"}, Stdin: []byte(strings.Repeat("x", 1<<20))})
			if got := o.ok(t); len(got) != 1<<20 {
				t.Errorf("%d bytes", len(got))
			}
			ctx, cancel := context.WithCancel(t.Context())
			w := &signalWriter{first: make(chan struct{})}
			go func() { <-w.first; cancel() }()
			_, err = m.Run(ctx, sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: "python", Text: []byte(hardProlog + "print('up',flush=True)" + hardEpilog), Timeout: 60e9}, w, nil)
			refused(t, err, sandboxcore.CodeUnknownOutcome, "was cancelled")
			waitNone(t, m, 10e9)
		})
	}
}

// Another engine has another identity.
func TestAnotherEngine(t *testing.T) {
	e := engine(t)
	mine, err := e.Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f := newFake(t)
	f.on("GET", "/containers/.*", func(w http.ResponseWriter, _ *http.Request) { refuse(w, 404, "No such container") })
	other, err := f.endpoint(nil).Identity(t.Context())
	if err != nil || other == mine {
		t.Fatalf("%q %q %v", mine, other, err)
	}
}

func TestOffers(t *testing.T) {
	e := engine(t)
	o, err := e.Offers(t.Context())
	if err != nil || !o.Reachable || o.Reason != "" || !o.CPU || !o.Memory || !o.Network || !o.Pause || o.Endpoint == "" || o.Facts["engine version"] == "" || o.Facts["API version"] == "" {
		t.Fatalf("%+v %v", o, err)
	}
	if err := e.Admit(t.Context(), profile("python", memory(64), cpu(0.5)), sandboxcore.Operation{Name: "create"}); err != nil {
		t.Fatal(err)
	}
}
