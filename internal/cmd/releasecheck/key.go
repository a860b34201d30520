package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// signingKey is a key in a key ring of its own, which lives as long as the check.
type signingKey struct {
	home, fingerprint string
	env               []string
}

// newSigningKey makes a key of the kind that Terraform's registry takes, which knows RSA only.
func newSigningKey(ctx context.Context, home string) (*signingKey, error) {
	if err := os.Mkdir(home, 0o700); err != nil {
		return nil, err
	}
	k := &signingKey{home: home, env: append(clean(os.Environ(), "GNUPGHOME", "GPG_AGENT_INFO"), "GNUPGHOME="+home)}
	if _, err := k.gpg(ctx, "--pinentry-mode", "loopback", "--passphrase", "", "--quick-generate-key", "release-check <release-check@localhost>", "rsa2048", "sign", "1d"); err != nil {
		k.close(ctx)
		return nil, fmt.Errorf("make a signing key (is gpg installed?): %w", err)
	}
	list, err := k.gpg(ctx, "--with-colons", "--list-secret-keys")
	if err != nil {
		k.close(ctx)
		return nil, err
	}
	for line := range strings.Lines(list) {
		if fields := strings.Split(line, ":"); fields[0] == "fpr" {
			k.fingerprint = fields[9]
			return k, nil
		}
	}
	k.close(ctx)
	return nil, errors.New("gpg made a key and does not list it")
}

func (k *signingKey) gpg(ctx context.Context, arguments ...string) (string, error) {
	return output(ctx, k.home, k.env, "gpg", append([]string{"--batch", "--quiet"}, arguments...)...)
}

// close ends the agent that gpg started for the key ring, also after an interrupt.
func (k *signingKey) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	_, _ = output(ctx, ".", k.env, "gpgconf", "--kill", "all")
}

// checkSignature wants a detached, binary signature that this key made of these bytes and of no others.
func (k *signingKey) checkSignature(ctx context.Context, file string) error {
	signature, err := os.ReadFile(file + ".sig") // #nosec G304 -- a file of the release
	if err != nil {
		return err
	}
	if bytes.HasPrefix(signature, []byte("-----")) {
		return errors.New("the signature is armored, and the registry wants it binary")
	}
	status, err := k.gpg(ctx, "--status-fd", "1", "--verify", file+".sig", file)
	if err != nil {
		return fmt.Errorf("the signature does not hold: %w", err)
	}
	if !strings.Contains(status, "VALIDSIG "+k.fingerprint) {
		return fmt.Errorf("the signature is not of the key %s:\n%s", k.fingerprint, status)
	}
	text, err := os.ReadFile(file) // #nosec G304 -- a file of the release
	if err != nil {
		return err
	}
	other := filepath.Join(k.home, "other")
	if err := os.WriteFile(other, append(text, '\n'), 0o600); err != nil {
		return err
	}
	if _, err := k.gpg(ctx, "--verify", file+".sig", other); err == nil {
		return errors.New("the signature holds for other bytes as well")
	}
	return nil
}
