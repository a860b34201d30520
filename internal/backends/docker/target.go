package docker

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	clicontext "github.com/docker/cli/cli/context"
	dockercontext "github.com/docker/cli/cli/context/docker"
	"github.com/docker/cli/cli/context/store"
	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// engineConfig is what the provider configuration and the environment say about the engine, before any file is read.
type engineConfig struct {
	host, context, certPath, configDir, apiVersion string
	env                                            engineEnv
}

// engineEnv is what the environment says, in the variables of Docker's own tools.
type engineEnv struct {
	host, context, certPath, tlsVerify, configDir, apiVersion, home string
}

// target is one engine to speak to.
type target struct {
	// host is the address as it is shown in messages. It never holds a credential.
	host string
	// origin says in words where the address comes from.
	origin     string
	tls        *tls.Config
	apiVersion string
	// apiOrigin names who fixed apiVersion.
	apiOrigin string
	// registryAuth opens the docker configuration whose registry credentials may be handed to this engine; nil for none.
	registryAuth func() (*configfile.ConfigFile, error)
}

func readEngineConfig(s sandboxcore.Settings, getenv func(string) string) (engineConfig, error) {
	c := engineConfig{
		host: s.String(keyHost, ""), context: s.String(keyContext, ""), certPath: s.String(keyCertPath, ""),
		configDir: s.String(keyConfigDir, ""), apiVersion: s.String(keyAPIVersion, ""),
		env: engineEnv{
			host: getenv("DOCKER_HOST"), context: getenv("DOCKER_CONTEXT"), certPath: getenv("DOCKER_CERT_PATH"),
			tlsVerify: getenv("DOCKER_TLS_VERIFY"), configDir: getenv("DOCKER_CONFIG"), apiVersion: getenv("DOCKER_API_VERSION"),
			home: getenv("HOME"),
		},
	}
	refuse := func(key, said, next string) error {
		return &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the Docker engine of the provider configuration was refused",
			Said: said, Next: next, Attribute: []string{"docker", key},
		}
	}
	if c.host != "" && c.context != "" {
		return c, refuse(keyContext, "Both host and context are set.", "Keep one of them: a context holds an address of its own.")
	}
	if c.host != "" {
		if problem := checkHost(c.host); problem != "" {
			return c, refuse(keyHost, problem, "Use unix:///path, npipe:////./pipe/name, tcp://host:port or ssh://user@host:port.")
		}
	}
	if c.certPath != "" && !strings.HasPrefix(c.host, "tcp://") {
		return c, refuse(keyCertPath, "TLS material goes with a tcp:// address in host.", "Set host as well, or remove cert_path.")
	}
	return c, nil
}

// checkHost says why a text is no address of an engine; empty if it is one.
func checkHost(host string) (problem string) {
	u, err := url.Parse(host)
	if err != nil {
		// The parser's own text repeats the address, which may hold a password.
		return "The address cannot be parsed."
	}
	if _, has := u.User.Password(); has {
		return "The address holds a password."
	}
	switch u.Scheme {
	case "unix", "npipe":
		if strings.TrimPrefix(host, u.Scheme+"://") == "" {
			return "The address names no socket."
		}
	case "tcp", "ssh":
		if u.Hostname() == "" {
			return "The address names no host."
		}
	default:
		return fmt.Sprintf("The scheme %q is none of unix, npipe, tcp and ssh.", u.Scheme)
	}
	return ""
}

// dir is the directory of the Docker configuration.
func (c engineConfig) dir() string {
	switch {
	case c.configDir != "":
		return c.configDir
	case c.env.configDir != "":
		return c.env.configDir
	case c.env.home != "":
		return filepath.Join(c.env.home, ".docker")
	}
	return config.Dir()
}

// resolve decides which engine is meant: host, context, DOCKER_HOST, DOCKER_CONTEXT, the current context, the default
// socket, in this order. It reads files and speaks to nobody.
func (c engineConfig) resolve() (target, error) {
	t := target{apiVersion: c.apiVersion, apiOrigin: "api_version in the provider configuration"}
	if t.apiVersion == "" {
		t.apiVersion, t.apiOrigin = strings.TrimPrefix(c.env.apiVersion, "v"), "DOCKER_API_VERSION"
	}
	// Registry credentials go to the engine. An engine that the configuration names gets only what it names as well.
	if c.host == "" || c.configDir != "" {
		t.registryAuth = func() (*configfile.ConfigFile, error) { return config.Load(c.dir()) }
	}
	switch {
	case c.host != "":
		t.host, t.origin = c.host, "host in the provider configuration"
		if c.certPath != "" {
			var err error
			if t.tls, err = tlsFromDir(c.certPath); err != nil {
				return t, tlsError(t, err, "Check the files in cert_path.")
			}
		}
		return t, nil
	case c.context != "":
		return c.fromContext(t, c.context, "context in the provider configuration")
	case c.env.host != "":
		return c.fromEnvironment(t)
	case c.env.context != "" && c.env.context != "default":
		return c.fromContext(t, c.env.context, "DOCKER_CONTEXT")
	case c.env.context == "":
		file, err := config.Load(c.dir())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return t, &sandboxcore.Error{
				Code: sandboxcore.CodeUnreachable, Attempted: "the Docker configuration could not be read", Object: c.dir(),
				Next: "Repair its config.json, or name the engine with host in the provider's docker attribute.", Err: err,
			}
		}
		if file != nil && file.CurrentContext != "" && file.CurrentContext != "default" {
			return c.fromContext(t, file.CurrentContext, "the current context of the Docker configuration")
		}
	}
	t.host, t.origin = client.DefaultDockerHost, "the default socket, because neither the provider configuration nor the environment names an engine"
	return t, nil
}

func (c engineConfig) fromEnvironment(t target) (target, error) {
	t.host, t.origin = c.env.host, "DOCKER_HOST"
	if problem := checkHost(t.host); problem != "" {
		return t, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the Docker engine of DOCKER_HOST was refused", Said: problem,
			Next: "Use unix:///path, npipe:////./pipe/name, tcp://host:port or ssh://user@host:port.",
		}
	}
	if !strings.HasPrefix(t.host, "tcp://") || (c.env.tlsVerify == "" && c.env.certPath == "") {
		return t, nil
	}
	// Docker's tools take a certificate path without DOCKER_TLS_VERIFY as TLS without verification. Here TLS is always
	// verified: a run carries secrets.
	dir := c.env.certPath
	if dir == "" {
		dir = c.dir()
	}
	var err error
	if t.tls, err = tlsFromDir(dir); err != nil {
		return t, tlsError(t, err, "Check the files in DOCKER_CERT_PATH.")
	}
	return t, nil
}

func (c engineConfig) fromContext(t target, name, origin string) (target, error) {
	t.origin = fmt.Sprintf("%s (%q)", origin, name)
	if name == "default" {
		t.host = client.DefaultDockerHost
		return t, nil
	}
	refuse := func(said string, err error) (target, error) {
		return t, &sandboxcore.Error{
			Code: sandboxcore.CodeUnreachable, Attempted: "the Docker context could not be used", Object: name, Said: said,
			Next: "See docker context ls for the contexts of this configuration, or name the engine with host in the provider's docker attribute.", Err: err,
		}
	}
	contexts := store.New(filepath.Join(c.dir(), "contexts"), store.NewConfig(
		func() any { return &map[string]any{} },
		store.EndpointTypeGetter(dockercontext.DockerEndpoint, func() any { return &dockercontext.EndpointMeta{} }),
	))
	meta, err := contexts.GetMetadata(name)
	if err != nil {
		return refuse(fmt.Sprintf("%s has no such context, or one that cannot be read.", c.dir()), err)
	}
	endpoint, err := dockercontext.EndpointFromContext(meta)
	if err != nil {
		return refuse("It names no Docker engine.", err)
	}
	t.host = endpoint.Host
	if t.host == "" {
		t.host = client.DefaultDockerHost
	}
	if problem := checkHost(t.host); problem != "" {
		return refuse(problem, nil)
	}
	if !strings.HasPrefix(t.host, "tcp://") {
		return t, nil
	}
	material, err := clicontext.LoadTLSData(contexts, name, dockercontext.DockerEndpoint)
	if err != nil {
		return refuse("Its TLS material cannot be read.", err)
	}
	if material == nil && !endpoint.SkipTLSVerify {
		return t, nil
	}
	if material == nil {
		material = &clicontext.TLSData{}
	}
	t.tls, err = tlsConfig(material.CA, material.Cert, material.Key)
	if err != nil {
		return refuse("Its TLS material is not valid.", err)
	}
	// The operator wrote this into the context with docker context create; nothing else here turns verification off.
	t.tls.InsecureSkipVerify = endpoint.SkipTLSVerify
	return t, nil
}

// tlsFromDir reads ca.pem, cert.pem and key.pem, each of which may be absent (a certificate and its key only together).
func tlsFromDir(dir string) (*tls.Config, error) {
	read := func(name string) ([]byte, error) {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return content, err
	}
	ca, err := read("ca.pem")
	if err != nil {
		return nil, err
	}
	cert, err := read("cert.pem")
	if err != nil {
		return nil, err
	}
	key, err := read("key.pem")
	if err != nil {
		return nil, err
	}
	if ca == nil && cert == nil && key == nil {
		return nil, fmt.Errorf("%s has none of ca.pem, cert.pem and key.pem", dir)
	}
	return tlsConfig(ca, cert, key)
}

func tlsConfig(ca, cert, key []byte) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != nil {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("ca.pem holds no certificate")
		}
	}
	if (cert == nil) != (key == nil) {
		return nil, errors.New("cert.pem and key.pem belong together, and one of them is missing")
	}
	if cert != nil {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("cert.pem and key.pem: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

func tlsError(t target, err error, next string) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeUnreachable, Attempted: "the TLS material for the Docker engine could not be used",
		Object: t.host, Next: next, Err: err,
	}
}
