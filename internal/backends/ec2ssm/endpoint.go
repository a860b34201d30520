package ec2ssm

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// endpoint is AWS with one credential. Which account and region it is depends on the profile and the principal.
type endpoint struct {
	config   awsConfig
	clock    clock
	newID    func() string
	timings  timings
	sessions *sessions

	mu      sync.Mutex
	base    *aws.Config
	account string
}

func newEndpoint(b *backend) *endpoint {
	return &endpoint{config: b.config, clock: b.clock, newID: b.newID, timings: b.timings, sessions: &sessions{clock: b.clock}}
}

// loaded gives the configuration of the AWS tools, read once.
func (e *endpoint) loaded(ctx context.Context) (aws.Config, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.base == nil {
		c, err := e.config.load(ctx)
		if err != nil {
			return aws.Config{}, err
		}
		e.base = &c
	}
	return *e.base, nil
}

func (e *endpoint) stsClient(c aws.Config) *sts.Client {
	return sts.NewFromConfig(c, func(o *sts.Options) {
		if e.config.sts != "" {
			o.BaseEndpoint = &e.config.sts
		}
	})
}

// client is the way to the machines of one region under one principal.
type client struct {
	ssm    *ssm.Client
	config aws.Config
	region string
}

func (e *endpoint) client(ctx context.Context, p *sandboxcore.Profile) (*client, error) {
	who, _ := sandboxcore.PrincipalOf(ctx)
	return e.clientOf(ctx, p, who)
}

func (e *endpoint) clientOf(ctx context.Context, p *sandboxcore.Profile, who sandboxcore.Principal) (*client, error) {
	base, err := e.loaded(ctx)
	if err != nil {
		return nil, err
	}
	if r := optionsOf(p).region; r != "" {
		base.Region = r
	}
	if base.Region == "" {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "AWS could not be asked", Object: p.Name, Said: "no region is named, neither in the profile nor in the provider configuration nor in the environment.",
			Next: "Set region in the provider's aws attribute or in the profile's ec2_ssm.", Attribute: []string{string(p.Type), keyRegion},
		}
	}
	c := base.Copy()
	if who.Mode == sandboxcore.IdentityUser {
		// A user's calls are never made with the provider's own credential.
		if who.EC2SSM == nil || !rolePattern.MatchString(who.EC2SSM.RoleARN) {
			return nil, &sandboxcore.Error{
				Code: sandboxcore.CodeIdentity, Attempted: "AWS could not be asked", Object: p.Name, Said: "a user's runs need the role that is assumed for them.",
				Next: "Set principal.ec2_ssm.role_arn.", Attribute: []string{"principal", "ec2_ssm", "role_arn"},
			}
		}
		c.Credentials = &assumed{e: e, base: base, who: who, region: base.Region}
	}
	return &client{config: c, region: c.Region, ssm: ssm.NewFromConfig(c, func(o *ssm.Options) {
		if e.config.ssm != "" {
			o.BaseEndpoint = &e.config.ssm
		}
	})}, nil
}

// Identity is that of the provider's own account and region.
func (e *endpoint) Identity(ctx context.Context) (string, error) {
	return e.IdentityFor(ctx, &sandboxcore.Profile{Name: "default", Type: sandboxcore.BackendEC2SSM, Settings: sandboxcore.Settings{}})
}

// IdentityFor is account and region: the account of the principal's role, or the provider's own.
func (e *endpoint) IdentityFor(ctx context.Context, p *sandboxcore.Profile) (string, error) {
	c, err := e.client(ctx, p)
	if err != nil {
		return "", err
	}
	if a, ok := c.config.Credentials.(*assumed); ok {
		return rolePattern.FindStringSubmatch(a.who.EC2SSM.RoleARN)[1] + "/" + c.region, nil
	}
	account, err := e.ownAccount(ctx, c.config)
	if err != nil {
		return "", err
	}
	return account + "/" + c.region, nil
}

// ownAccount asks once whose credential the provider has. GetCallerIdentity needs no permission.
func (e *endpoint) ownAccount(ctx context.Context, c aws.Config) (string, error) {
	e.mu.Lock()
	known := e.account
	e.mu.Unlock()
	if known != "" {
		return known, nil
	}
	var out *sts.GetCallerIdentityOutput
	client := e.stsClient(c)
	err := e.retry(ctx, func(ctx context.Context) (err error) {
		out, err = client.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
		return err
	})
	if err == nil && (out.Account == nil || *out.Account == "") {
		err = fmt.Errorf("the answer names no account")
	}
	if err != nil {
		return "", e.failure(ctx, err, "AWS could not be asked whose the credential is", "region "+c.Region)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.account = *out.Account
	return e.account, nil
}

// Offers says whether AWS answers.
func (e *endpoint) Offers(ctx context.Context) (sandboxcore.Offer, error) {
	id, err := e.Identity(ctx)
	if err != nil {
		return sandboxcore.Offer{Reason: err.Error()}, nil //nolint:nilerr // unreachable is an answer
	}
	account, region, _ := strings.Cut(id, "/")
	return sandboxcore.Offer{
		Endpoint: id, Reachable: true, Languages: []string{"python"}, Facts: map[string]string{"account": account, "region": region},
	}, nil
}

// Admit has nothing to refuse beyond what Validate knows: whether a machine can run something is asked when it has to, and
// a machine that is away at the plan may be back by the apply.
func (e *endpoint) Admit(context.Context, *sandboxcore.Profile, sandboxcore.Operation) error {
	return nil
}

func (e *endpoint) attachesOnly(object string) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeEnvironmentMode, Attempted: "the operation was refused", Object: object, Said: "machines are attached to; this provider neither makes nor keeps them.",
		Next: "Use data.agentkernel_attached_environment.",
	}
}

// Create is refused: the gate lets no managed profile through.
func (e *endpoint) Create(_ context.Context, req sandboxcore.CreateRequest, _ func(sandboxcore.SandboxInfo)) (sandboxcore.ManagedSandbox, error) {
	return nil, e.attachesOnly(req.Profile.Name)
}

// Find is refused: there is no managed machine.
func (e *endpoint) Find(_ context.Context, nativeID string, _ bool) (sandboxcore.ManagedSandbox, error) {
	return nil, e.attachesOnly(sandboxcore.Printable(nativeID))
}

// List finds nothing: there is no managed machine.
func (e *endpoint) List(context.Context) ([]sandboxcore.SandboxInfo, error) { return nil, nil }

// Attach looks the machine up among those that Systems Manager manages (DescribeInstanceInformation, filter InstanceIds).
// An absent one has no agent, no role, no way to the service, or does not exist: SSM does not tell which.
func (e *endpoint) Attach(ctx context.Context, p *sandboxcore.Profile) (sandboxcore.AttachedEnvironment, error) {
	o := optionsOf(p)
	c, err := e.client(ctx, p)
	if err != nil {
		return nil, err
	}
	object := sandboxcore.SandboxID(p.Type, o.target)
	in := &ssm.DescribeInstanceInformationInput{
		Filters: []types.InstanceInformationStringFilter{{Key: aws.String("InstanceIds"), Values: []string{o.target}}},
	}
	// A page may be empty and still not be the last one.
	for range 20 {
		var out *ssm.DescribeInstanceInformationOutput
		err = c.retry(ctx, e, func(ctx context.Context) (err error) {
			out, err = c.ssm.DescribeInstanceInformation(ctx, in)
			return err
		})
		if err != nil {
			return nil, e.failure(ctx, err, "the machine could not be looked up", object)
		}
		for _, info := range out.InstanceInformationList {
			if aws.ToString(info.InstanceId) == o.target {
				return &machine{e: e, client: c, options: o, object: object, info: info}, nil
			}
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			break
		}
	}
	return nil, &sandboxcore.Error{
		Code: sandboxcore.CodeGone, Attempted: "the machine could not be bound", Object: object,
		Said:      fmt.Sprintf("Systems Manager manages no machine %s in %s.", o.target, c.region),
		Next:      "Check that it exists in this region, that its SSM agent runs and reaches the service, and that its instance role (AmazonSSMManagedInstanceCore) or its registration is valid.",
		Attribute: []string{string(p.Type), keyAttachTo},
	}
}

// retry is that of the endpoint, and once more with a new session when AWS says that the one of the principal has ended.
func (c *client) retry(ctx context.Context, e *endpoint, call func(context.Context) error) error {
	return c.renewing(ctx, func(ctx context.Context) error { return e.retry(ctx, call) })
}

// renewing makes a call that may be repeated, and repeats it when the session of the principal had ended.
func (c *client) renewing(ctx context.Context, call func(context.Context) error) error {
	key := new(string)
	err := call(context.WithValue(ctx, signedWith{}, key))
	if isExpired(err) && c.forget(ctx, *key) {
		err = call(ctx)
	}
	return err
}

// forget drops the assumed session with this access key, which AWS no longer takes, so that the next call assumes the role
// anew. It is false when there is none: the provider's own credential cannot be renewed here.
func (c *client) forget(ctx context.Context, key string) bool {
	a, ok := c.config.Credentials.(*assumed)
	if !ok {
		return false
	}
	return a.drop(ctx, key) == nil
}
