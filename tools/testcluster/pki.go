package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// authority is the cluster's own certificate authority. It lives as long as one cluster.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func template(name string, organizations []string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: organizations},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}
}

func newAuthority() (*authority, error) {
	key, _, err := newKey()
	if err != nil {
		return nil, err
	}
	t := template("agentkernel-testcluster", nil)
	t.IsCA, t.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// issue makes a certificate for a server (with names) or a client (without), and its key.
func (a *authority) issue(name string, organizations []string, hosts ...string) (cert, key []byte, err error) {
	private, key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	t := template(name, organizations)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, h := range hosts {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, private.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key, nil
}

// makePKI writes every certificate, key and kubeconfig.
func (c *cluster) makePKI() error {
	a, err := newAuthority()
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.path("pki", "ca.crt"), a.pem, 0o644); err != nil {
		return err
	}
	save := func(name, subject string, organizations []string, hosts ...string) error {
		cert, key, err := a.issue(subject, organizations, hosts...)
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.path("pki", name+".crt"), cert, 0o644); err != nil {
			return err
		}
		return os.WriteFile(c.path("pki", name+".key"), key, 0o600)
	}
	if err := save("apiserver", "kube-apiserver", nil, "127.0.0.1", nodeAddress, firstService, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"); err != nil {
		return err
	}
	if err := save("kubelet-client", "kube-apiserver-kubelet-client", []string{"system:masters"}); err != nil {
		return err
	}
	if err := save("kubelet", "system:node:"+nodeName, []string{"system:nodes"}, nodeAddress, nodeName); err != nil {
		return err
	}
	_, key, err := newKey()
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.path("pki", "sa.key"), key, 0o600); err != nil {
		return err
	}
	for file, who := range map[string]struct{ user, group string }{
		c.path("kubeconfig"):                       {"test-admin", "system:masters"},
		c.path("pki", "controller-manager.config"): {"system:kube-controller-manager", ""},
		c.path("pki", "scheduler.config"):          {"system:kube-scheduler", ""},
		c.path("pki", "kubelet.config"):            {"system:node:" + nodeName, "system:nodes"},
		c.path("pki", "kube-router.config"):        {"kube-router", "system:masters"},
	} {
		var groups []string
		if who.group != "" {
			groups = []string{who.group}
		}
		cert, key, err := a.issue(who.user, groups)
		if err != nil {
			return err
		}
		b64 := base64.StdEncoding.EncodeToString
		text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: testcluster
  cluster: {server: "https://127.0.0.1:%d", certificate-authority-data: %s}
users:
- name: %s
  user: {client-certificate-data: %s, client-key-data: %s}
contexts:
- name: testcluster
  context: {cluster: testcluster, user: %s}
current-context: testcluster
`, apiPort, b64(a.pem), who.user, b64(cert), b64(key), who.user)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}
