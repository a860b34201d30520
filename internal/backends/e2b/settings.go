package e2b

import (
	"math"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Keys of the provider attribute.
const (
	keyAPIKey         = "api_key"
	keyDomain         = "domain"
	keyAPIURL         = "api_url"
	keySandboxURL     = "sandbox_url"
	keyCACertificate  = "ca_certificate"
	keyAPIVersion     = "api_version"
	keyAuth           = "auth"
	keyAllowedDomains = "allowed_domains"
	keyAllowHTTP      = "allow_http"
)

// Values of api_version.
const (
	versionAuto = "auto"
	version1    = "v1"
	version2    = "v2"
)

// Values of auth.
const (
	authHeader = "header"
	authBearer = "bearer"
)

// Keys of the profile attribute.
const (
	keyTemplate           = "template"
	keyUser               = "user"
	keySecure             = "secure"
	keyAllowPublicTraffic = "allow_public_traffic"
	keyAutoPause          = "auto_pause"
	keyAutoResume         = "auto_resume"
	keyRenewOnRefresh     = "renew_on_refresh"
	keyMetadata           = "metadata"
	keyAllowHostMount     = "allow_host_mount"
	keyCodeRunner         = "code_runner"
)

// Defaults of spec version 1. They never change.
const (
	defaultTemplate = "base"
	defaultUser     = "user"
)

// defaultDomain is E2B's own (its SDKs, variable E2B_DOMAIN).
const defaultDomain = "e2b.app"

// hostMountKey is the metadata key by which CubeSandbox mounts directories of its host into a sandbox.
const hostMountKey = "host-mount"

func providerSettings() []sandboxcore.Setting {
	const domainPattern = `^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`
	return []sandboxcore.Setting{
		{
			Name: keyAPIKey, Kind: sandboxcore.KindString, Sensitive: true,
			Description: "API key. Defaults to `E2B_API_KEY`, but only while the server comes from the environment too or is E2B's own: " +
				"with `domain`, `api_url` or `sandbox_url` set here, the key has to stand here as well.",
		},
		{
			Name: keyDomain, Kind: sandboxcore.KindString, Pattern: domainPattern, PatternHint: "a domain such as e2b.example.org",
			Description: "Domain of the server: the API is at `https://api.<domain>`, sandboxes are below it. Defaults to `E2B_DOMAIN`, then `e2b.app`.",
		},
		{
			Name: keyAPIURL, Kind: sandboxcore.KindString, Pattern: `^https?://[^\s@]+$`, PatternHint: "an https:// address without user and password",
			Description: "Address of the API, where it is not `https://api.<domain>`. Defaults to `E2B_API_URL`.",
		},
		{
			Name: keySandboxURL, Kind: sandboxcore.KindString, Pattern: `^https?://[^\s@]+$`, PatternHint: "an https:// address without user and password",
			Description: "Address that leads to all sandboxes, for servers that route by header or by path: `{sandbox_id}` and `{port}` in it are " +
				"replaced; without them the headers `E2b-Sandbox-Id` and `E2b-Sandbox-Port` say which sandbox is meant. Defaults to `E2B_SANDBOX_URL`, " +
				"then `https://sandbox.<domain>` on E2B's own domains and `https://<port>-<id>.<domain>` elsewhere.",
		},
		{
			Name: keyCACertificate, Kind: sandboxcore.KindString,
			Description: "PEM text of the certificate authorities to trust for this server, instead of those of the system.",
		},
		{
			Name: keyAPIVersion, Kind: sandboxcore.KindString, Default: versionAuto, OneOf: []string{versionAuto, version1, version2},
			Description: "Version of the call that creates sandboxes: `v1`, `v2` (which always makes secure ones), or `auto` (the default): `v2` first on " +
				"E2B's own domains, `v1` first elsewhere, and the other one where the first does not exist.",
		},
		{
			Name: keyAuth, Kind: sandboxcore.KindString, Default: authHeader, OneOf: []string{authHeader, authBearer},
			Description: "How the key is sent: `header` (the default, `X-API-Key`) or `bearer` (`Authorization: Bearer`).",
		},
		{
			Name: keyAllowedDomains, Kind: sandboxcore.KindStringList, Pattern: domainPattern, PatternHint: "a domain such as sandboxes.example.org",
			Description: "Further domains that the server may name as the place of a sandbox. Without an entry only `domain` and what is below it: " +
				"the access token of a sandbox is sent to no other host.",
		},
		{
			Name: keyAllowHTTP, Kind: sandboxcore.KindBool, Default: false,
			Description: "Whether `api_url` and `sandbox_url` may be `http://` addresses of other machines, over which keys and tokens can be read. " +
				"Defaults to false; loopback addresses may always.",
		},
	}
}

func profileSettings() []sandboxcore.Setting {
	return []sandboxcore.Setting{
		{
			Name: keyTemplate, Kind: sandboxcore.KindString, Default: defaultTemplate, Pattern: `^\S{1,256}$`, PatternHint: "a template's id, name, team/name or name:tag",
			Description: "Template of the sandbox: an id, a name, `team/name` or `name:tag`. Defaults to `base`. It has to have `sh` and `grep`, and `python3` for Python code.",
		},
		{
			Name: keyUser, Kind: sandboxcore.KindString, Default: defaultUser, Pattern: `^[a-z_][a-z0-9_-]{0,31}$`, PatternHint: "the name of a user of the template",
			Description: "User that code runs as. Defaults to `user`, which E2B's templates have; it can become root there. What is left of a run is ended by a helper that runs as `root`.",
		},
		{
			Name: keySecure, Kind: sandboxcore.KindBool, Default: true,
			Description: "Whether the sandbox's daemon asks for an access token. Defaults to true: a server that then hands out no token gets the sandbox destroyed again. " +
				"With false anybody who knows the id of the sandbox can run code in it.",
		},
		{
			Name: keyAllowPublicTraffic, Kind: sandboxcore.KindBool, Default: false,
			Description: "Whether ports of the sandbox can be reached by anybody who knows its address. Defaults to false, E2B's own default is true. Has to be true " +
				"with `secure = false` and for servers that know no traffic tokens.",
		},
		{
			Name: keyAutoPause, Kind: sandboxcore.KindBool, Default: true,
			Description: "What happens at the end of the sandbox's time (`idle_timeout` of the profile, counted from its start and renewed by each run): true, the default, " +
				"pauses it with memory and files, and the next run wakes it; false ends it for good.",
		},
		{
			Name: keyAutoResume, Kind: sandboxcore.KindBool, Default: false,
			Description: "Whether traffic to a port of a sandbox that its time has paused wakes it. Needs `auto_pause`. Defaults to false.",
		},
		{
			Name: keyRenewOnRefresh, Kind: sandboxcore.KindBool, Default: false,
			Description: "Whether each refresh by Terraform renews the time of a running sandbox, as each run does. Defaults to false.",
		},
		{
			Name: keyMetadata, Kind: sandboxcore.KindStringMap,
			Description: "Metadata of the sandbox beside this provider's own, which has the prefix `agentkernel.io/`.",
		},
		{
			Name: keyAllowHostMount, Kind: sandboxcore.KindBool, Default: false,
			Description: "Whether `metadata` may have the key `host-mount`, by which CubeSandbox mounts directories of its host into the sandbox. Defaults to false.",
		},
		{
			Name: keyCodeRunner, Kind: sandboxcore.KindString, Default: runnerCommand, OneOf: []string{runnerCommand, runnerInterpreter},
			Description: "What `code` is run by: `command` (the default), an interpreter of its own for each run, or `code_interpreter`, the one of the template, " +
				"which keeps its variables from run to run and runs as `root`. That one has no exit status: 0 without an error, the number of `SystemExit` or of a shell, " +
				"1 for anything else. `command` and `script` are never run by it.",
		},
	}
}

// options are the profile settings with their defaults.
type options struct {
	template       string
	user           string
	secure         bool
	publicTraffic  bool
	autoPause      bool
	autoResume     bool
	renewOnRefresh bool
	metadata       map[string]string
	hostMount      bool
	interpreter    bool
	idle           time.Duration
}

func optionsOf(p *sandboxcore.Profile) options {
	return optionsFrom(p.Settings, p.IdleTimeout)
}

func optionsFrom(s sandboxcore.Settings, idle float64) options {
	return options{
		template:       s.String(keyTemplate, defaultTemplate),
		user:           s.String(keyUser, defaultUser),
		secure:         s.Bool(keySecure, true),
		publicTraffic:  s.Bool(keyAllowPublicTraffic, false),
		autoPause:      s.Bool(keyAutoPause, true),
		autoResume:     s.Bool(keyAutoResume, false),
		renewOnRefresh: s.Bool(keyRenewOnRefresh, false),
		metadata:       s.StringMap(keyMetadata),
		hostMount:      s.Bool(keyAllowHostMount, false),
		interpreter:    s.String(keyCodeRunner, runnerCommand) == runnerInterpreter,
		idle:           time.Duration(idle * float64(time.Second)),
	}
}

// wholeSeconds rounds up: the API counts in whole seconds, and a time that is too short is the worse error.
func wholeSeconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }
