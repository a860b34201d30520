package ec2ssm

import "github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"

// providerKey is the provider attribute: it serves every backend on AWS.
const providerKey = "aws"

// Keys of the provider attribute.
const (
	keyRegion    = "region"
	keyProfile   = "profile"
	keyAccessKey = "access_key"
	keySecretKey = "secret_key"
	keyToken     = "token"
	keyEndpoints = "endpoints"
	keySSM       = "ssm"
	keySTS       = "sts"
	keyS3        = "s3"
	keyAllowHTTP = "allow_http"
)

// Keys of the profile attribute.
const (
	keyAttachTo     = "attach_to"
	keyDocument     = "document"
	keyOutputS3     = "output_s3"
	keyBucket       = "bucket"
	keyPrefix       = "prefix"
	keyAllowSecrets = "allow_secrets_in_command_history"
)

// defaultDocument is a public document of AWS. Frozen for spec version 1.
const defaultDocument = "AWS-RunShellScript"

const (
	regionPattern = `^[a-z]{2}(-[a-z]+)+-[0-9]{1,2}$`
	regionHint    = "a region such as eu-west-1"
	// targetPattern is that of the API (type InstanceId and ManagedInstanceId), in the digits that ids really have.
	targetPattern = `^(i-([0-9a-f]{8}|[0-9a-f]{17})|mi-[0-9a-f]{17})$`
	urlPattern    = `^https?://[^/?#@]+/?$`
	urlHint       = "http:// or https:// followed by host and port"
)

func providerSettings() []sandboxcore.Setting {
	endpoint := func(name, what string) sandboxcore.Setting {
		return sandboxcore.Setting{
			Name: name, Kind: sandboxcore.KindString, Pattern: urlPattern, PatternHint: urlHint,
			Description: "Address of " + what + " instead of the one of the region.",
		}
	}
	return []sandboxcore.Setting{
		{
			Name: keyRegion, Kind: sandboxcore.KindString, Pattern: regionPattern, PatternHint: regionHint,
			Description: "Region, unless the profile names one. Defaults to `AWS_REGION`, `AWS_DEFAULT_REGION` and the shared configuration of the AWS tools.",
		},
		{
			Name: keyProfile, Kind: sandboxcore.KindString,
			Description: "Profile of the shared configuration and credentials files of the AWS tools. Defaults to `AWS_PROFILE`. Conflicts with `access_key`.",
		},
		{
			Name: keyAccessKey, Kind: sandboxcore.KindString, Sensitive: true,
			Description: "Access key id; only together with `secret_key`. Without it the default chain of the AWS tools is used: environment, shared files, container and instance roles.",
		},
		{Name: keySecretKey, Kind: sandboxcore.KindString, Sensitive: true, Description: "Secret access key."},
		{Name: keyToken, Kind: sandboxcore.KindString, Sensitive: true, Description: "Session token that belongs to a temporary `access_key`."},
		{
			Name: keyEndpoints, Kind: sandboxcore.KindObject,
			Description: "Other addresses of AWS services. An address given here needs a credential given here: `access_key`, or a `profile` that holds or fetches its own and does not take that of the machine, its container or its environment (`credential_source`, or no credential at all). Services without an address here are looked for where the AWS tools look (`AWS_ENDPOINT_URL_SSM` and the like, the shared configuration, the region).",
			Fields:      []sandboxcore.Setting{endpoint(keySSM, "Systems Manager"), endpoint(keySTS, "the Security Token Service"), endpoint(keyS3, "S3")},
		},
		{
			Name: keyAllowHTTP, Kind: sandboxcore.KindBool, Default: false,
			Description: "Whether addresses of AWS services, here or from where the AWS tools look, may be `http://` addresses of other machines. A signature does not show the secret key, but code, output, session tokens and the credentials of assumed roles can be read on the way. Defaults to false; loopback addresses may always.",
		},
	}
}

func profileSettings() []sandboxcore.Setting {
	return []sandboxcore.Setting{
		{
			Name: keyRegion, Kind: sandboxcore.KindString, Pattern: regionPattern, PatternHint: regionHint,
			Description: "Region of the machine. Defaults to that of the provider.",
		},
		{
			Name: keyAttachTo, Kind: sandboxcore.KindString, Pattern: targetPattern, PatternHint: "an instance id (i-…) or the id of a managed node (mi-…)",
			Description: "The machine: id of an EC2 instance (`i-…`), or of a hybrid machine that is registered with Systems Manager (`mi-…`). Required.",
		},
		{
			Name: keyDocument, Kind: sandboxcore.KindString, Default: defaultDocument, Pattern: `^[a-zA-Z0-9_.:/-]{3,128}$`, PatternHint: "the name or ARN of a command document",
			Description: "Command document. Defaults to `AWS-RunShellScript`. Another one needs the parameters `commands` and `executionTimeout` with the same meaning.",
		},
		{
			Name: keyOutputS3, Kind: sandboxcore.KindObject,
			Description: "Bucket through which output comes back, up to 40 MiB of both streams together. The machine needs `s3:PutObject` there, the provider `s3:GetObject`. Without it, output beyond what Systems Manager keeps (24,000 characters) is fetched by further commands up to 480 KiB per stream, and what is beyond that is left out and counted. Objects in the bucket hold the output as it is, secrets included, and are never removed: give the bucket a lifecycle rule.",
			Fields: []sandboxcore.Setting{
				{Name: keyBucket, Kind: sandboxcore.KindString, Pattern: `^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`, PatternHint: "the name of a bucket", Description: "Bucket. Required."},
				{Name: keyPrefix, Kind: sandboxcore.KindString, Pattern: `^[\w!.*'()/-]{1,500}$`, PatternHint: "1 to 500 characters that need no escaping in a key", Description: "Prefix of the keys."},
				{Name: keyRegion, Kind: sandboxcore.KindString, Pattern: regionPattern, PatternHint: regionHint, Description: "Region of the bucket. Defaults to that of the machine."},
			},
		},
		{
			Name: keyAllowSecrets, Kind: sandboxcore.KindBool, Default: false,
			Description: "Whether runs may be given `secret_env` and `env_wo`, and files `content_wo`. Systems Manager keeps the parameters of every command for 30 days, where whoever may call `ssm:ListCommands` or `ssm:GetCommandInvocation` can read them. Defaults to false: they are refused.",
		},
	}
}

// options are the profile settings with their defaults.
type options struct {
	region, target, document string
	s3                       *s3Output
	allowSecrets             bool
}

// s3Output is where a command puts its complete output.
type s3Output struct{ bucket, prefix, region string }

func optionsOf(p *sandboxcore.Profile) options {
	s := p.Settings
	o := options{
		region: s.String(keyRegion, ""), target: s.String(keyAttachTo, ""), document: s.String(keyDocument, defaultDocument),
		allowSecrets: s.Bool(keyAllowSecrets, false),
	}
	if b := s.Object(keyOutputS3); b != nil {
		o.s3 = &s3Output{bucket: b.String(keyBucket, ""), prefix: b.String(keyPrefix, ""), region: b.String(keyRegion, "")}
	}
	return o
}
