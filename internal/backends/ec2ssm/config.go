package ec2ssm

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/logging"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// awsConfig is what the provider configuration says about AWS, before any file is read.
type awsConfig struct {
	region, profile             string
	accessKey, secretKey, token string
	ssm, sts, s3                string
	plainHTTP                   bool
}

func readConfig(s sandboxcore.Settings) (awsConfig, error) {
	e := s.Object(keyEndpoints)
	c := awsConfig{
		region: s.String(keyRegion, ""), profile: s.String(keyProfile, ""), accessKey: s.String(keyAccessKey, ""), secretKey: s.String(keySecretKey, ""),
		token: s.String(keyToken, ""), plainHTTP: s.Bool(keyAllowHTTP, false), ssm: e.String(keySSM, ""), sts: e.String(keySTS, ""), s3: e.String(keyS3, ""),
	}
	refuse := func(said, next string, key string) (awsConfig, error) {
		return c, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the aws settings of the provider configuration were refused", Said: said, Next: next, Attribute: []string{providerKey, key},
		}
	}
	switch {
	case (c.accessKey == "") != (c.secretKey == ""):
		return refuse("access_key and secret_key belong together, and one of them is missing.", "Set both, or neither.", keyAccessKey)
	case c.token != "" && c.accessKey == "":
		return refuse("token belongs to an access_key, which is missing.", "Set access_key and secret_key, or remove token.", keyToken)
	case c.accessKey != "" && c.profile != "":
		return refuse("both access_key and profile are set.", "Keep one of them.", keyProfile)
	case c.endpoints() && c.accessKey == "" && c.profile == "":
		// A credential of the environment was not given to whoever is at that address.
		return refuse("an endpoint is set, but no credential for it.", "Set access_key and secret_key, or profile, beside endpoints.", keyEndpoints)
	}
	for _, own := range []struct{ key, address string }{{keySSM, c.ssm}, {keySTS, c.sts}, {keyS3, c.s3}} {
		if err := c.encrypted(own.address, "", providerKey, keyEndpoints, own.key); err != nil {
			return c, err
		}
	}
	return c, nil
}

// encrypted refuses an address over which others could read what is said. STS answers with whole credentials, and a request
// to Systems Manager is the code. from says where the address was found when it is none of the configuration.
func (c awsConfig) encrypted(address, from string, attribute ...string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" || c.plainHTTP || u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback() {
		return nil //nolint:nilerr // what is no address is refused by its pattern, or by who calls it
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeValue, Attempted: "an address of AWS was refused", Object: sandboxcore.Printable(u.Redacted()), Said: "it is not encrypted, so that code, session tokens and assumed credentials could be read on the way." + from,
		Next: "Use https, or set allow_http = true in the provider's aws attribute if the network in between is yours.", Attribute: attribute,
	}
}

// found is the address of a service that is not in the configuration; an error when it is not encrypted.
func (c awsConfig) found(ctx context.Context, tools aws.Config, service string) (string, error) {
	address := addressOf(ctx, tools, service)
	return address, c.encrypted(address, " It is where the AWS tools look (AWS_ENDPOINT_URL and the like, or the shared configuration).", providerKey, keyAllowHTTP)
}

func (c awsConfig) endpoints() bool { return c.ssm != "" || c.sts != "" || c.s3 != "" }

// ownCredential refuses a profile that does not hold or fetch a credential itself, but takes whatever the machine, its
// container or its environment has: that was not given to whoever is at a configured address. The SDK does so for a profile
// with a credential_source, and for one that says nothing of a credential at all (resolveCredsFromProfile of its package
// config).
func ownCredential(sources []any) error {
	profile := (*config.SharedConfig)(nil)
	for _, s := range sources {
		switch s := s.(type) {
		case config.SharedConfig:
			profile = &s
		case *config.SharedConfig:
			profile = s
		}
	}
	said := "no profile was read."
	for ; profile != nil; profile = profile.Source {
		switch {
		case profile.Source != nil:
			continue
		case profile.Credentials.HasKeys():
			return nil
		case profile.CredentialSource != "":
			said = fmt.Sprintf("the credential of profile %s comes from %s, which the profile does not hold.", sandboxcore.Quoted(profile.Profile), sandboxcore.Quoted(profile.CredentialSource))
		case profile.WebIdentityTokenFile != "", profile.SSOSession != nil, profile.SSOStartURL != "", profile.LoginSession != "", profile.CredentialProcess != "":
			return nil
		default:
			said = fmt.Sprintf("the profile %s names no credential, so that one of the machine or its container would be taken.", sandboxcore.Quoted(profile.Profile))
		}
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeValue, Attempted: "the aws settings of the provider configuration were refused", Said: "an endpoint is set, and " + said,
		Next: "Set access_key and secret_key beside endpoints, or name a profile with a credential of its own.", Attribute: []string{providerKey, keyProfile},
	}
}

// addressOf is where the AWS tools are told to look for a service, by its SDK id; empty: at the address of the region.
func addressOf(ctx context.Context, c aws.Config, service string) string {
	if ignore, found, err := config.GetIgnoreConfiguredEndpoints(ctx, c.ConfigSources); err == nil && found && ignore {
		return ""
	}
	for _, s := range c.ConfigSources {
		if source, ok := s.(interface {
			GetServiceBaseEndpoint(ctx context.Context, sdkID string) (string, bool, error)
		}); ok {
			if address, found, err := source.GetServiceBaseEndpoint(ctx, service); err == nil && found {
				return address
			}
		}
	}
	return aws.ToString(c.BaseEndpoint)
}

// load reads the configuration of the AWS tools as far as the provider configuration leaves something to it.
func (c awsConfig) load(ctx context.Context) (aws.Config, error) {
	// Every call has a deadline of its own; the longest is that of a bucket.
	client := awshttp.NewBuildableClient().WithTimeout(bucketTime)
	options := []func(*config.LoadOptions) error{
		config.WithHTTPClient(client),
		// The SDK's own warnings would go to standard error, past Terraform's log.
		config.WithLogger(logging.Nop{}),
		// Retries are ours: a SendCommand that was not answered may have started something, and is never sent twice.
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
	}
	if c.region != "" {
		options = append(options, config.WithRegion(c.region))
	}
	if c.profile != "" {
		options = append(options, config.WithSharedConfigProfile(c.profile))
	}
	if c.accessKey != "" {
		options = append(options, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(c.accessKey, c.secretKey, c.token)))
	}
	out, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return out, &sandboxcore.Error{
			Code: sandboxcore.CodeUnreachable, Attempted: "the configuration of the AWS tools could not be read", Object: providerKey,
			Next: "Repair the shared configuration files, or set region and credential in the provider's aws attribute.", Err: err,
		}
	}
	for _, own := range []struct{ service, address string }{{ssm.ServiceID, c.ssm}, {sts.ServiceID, c.sts}} {
		if own.address == "" {
			if _, err := c.found(ctx, out, own.service); err != nil {
				return out, err
			}
		}
	}
	if c.endpoints() && c.accessKey == "" {
		if err := ownCredential(out.ConfigSources); err != nil {
			return out, err
		}
	}
	built, ok := out.HTTPClient.(*awshttp.BuildableClient)
	if !ok {
		built = client
	}
	out.HTTPClient = &http.Client{
		Transport: transport{built.GetTransport()}, Timeout: built.GetTimeout(),
		// A request is signed for one host, and what it carries is meant for that host only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return out, nil
}

// transport hides the method WriteTo of request bodies. The SDK closes a body as soon as the answer has come, and WriteTo of
// a closed one (smithy-go, transport/http/internal/io, safeWriteToReadCloser) gives io.EOF as an error. When net/http has
// not quite finished with the request by then, it takes that for a failed write and closes the connection, in the middle of
// the answer. Read of a closed body just ends.
type transport struct{ *http.Transport }

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil && req.Body != http.NoBody {
		plain := *req
		plain.Body = struct{ io.ReadCloser }{req.Body}
		req = &plain
	}
	return t.Transport.RoundTrip(req)
}
