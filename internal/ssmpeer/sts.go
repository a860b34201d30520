//go:build unix

package ssmpeer

import (
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Role is a role that can be assumed.
type Role struct {
	// Trusts are the ARNs that may assume it; empty: everybody.
	Trusts []string
	// ExternalID is what its trust policy asks for.
	ExternalID string
	// MaxDuration is its longest session.
	MaxDuration time.Duration
}

// AddRole makes a role and gives its ARN.
func (p *Peer) AddRole(name string, r Role) string {
	p.Lock()
	defer p.Unlock()
	if r.MaxDuration == 0 {
		r.MaxDuration = time.Hour
	}
	p.roles["arn:aws:iam::"+Account+":role/"+name] = &r
	return "arn:aws:iam::" + Account + ":role/" + name
}

// Patterns of the API reference of AssumeRole.
var (
	sessionName    = regexp.MustCompile(`^[\w+=,.@-]{2,64}$`)
	sourceIdentity = regexp.MustCompile(`^[\w+=,.@-]{2,64}$`)
	externalID     = regexp.MustCompile(`^[\w+=,.@:/-]*$`)
	tagText        = regexp.MustCompile(`^[\p{L}\p{Z}\p{N}_.:/=+\-@]*$`)
)

type callerIdentity struct {
	Result struct {
		Arn     string
		UserID  string `xml:"UserId"`
		Account string
	} `xml:"GetCallerIdentityResult"`
}

type assumedRole struct {
	Result struct {
		Credentials struct {
			AccessKeyID     string `xml:"AccessKeyId"`
			SecretAccessKey string
			SessionToken    string
			Expiration      string
		}
		AssumedRoleUser struct {
			AssumedRoleID string `xml:"AssumedRoleId"`
			Arn           string
		}
		SourceIdentity string `xml:",omitempty"`
	} `xml:"AssumeRoleResult"`
}

func (p *Peer) sts(caller *credential, action string, form url.Values) (any, *apiError) {
	if form.Get("Version") != "2011-06-15" {
		return nil, refuse("InvalidAction", "no such version")
	}
	switch action {
	case "GetCallerIdentity":
		var out callerIdentity
		out.Result.Arn, out.Result.UserID, out.Result.Account = caller.arn, "AIDA"+Account, Account
		return out, nil
	case "AssumeRole":
		return p.assume(caller, form)
	}
	return nil, refuse("InvalidAction", "Could not find operation %s", action)
}

func (p *Peer) assume(caller *credential, form url.Values) (any, *apiError) {
	arn, name := form.Get("RoleArn"), form.Get("RoleSessionName")
	invalid := func(what string) (any, *apiError) {
		return nil, refuse("ValidationError", "Value at '%s' failed to satisfy constraint", what)
	}
	duration := 3600
	if d := form.Get("DurationSeconds"); d != "" {
		var err error
		if duration, err = strconv.Atoi(d); err != nil || duration < 900 || duration > 43_200 {
			return invalid("durationSeconds")
		}
	}
	switch {
	case len(arn) < 20 || len(arn) > 2048:
		return invalid("roleArn")
	case !sessionName.MatchString(name):
		return invalid("roleSessionName")
	case form.Has("ExternalId") && (!externalID.MatchString(form.Get("ExternalId")) || len(form.Get("ExternalId")) < 2 || len(form.Get("ExternalId")) > 1224):
		return invalid("externalId")
	case form.Has("SourceIdentity") && (!sourceIdentity.MatchString(form.Get("SourceIdentity")) || strings.HasPrefix(form.Get("SourceIdentity"), "aws:")):
		return invalid("sourceIdentity")
	}
	seen := map[string]bool{}
	for i := 1; form.Has("Tags.member." + strconv.Itoa(i) + ".Key"); i++ {
		k, v := form.Get("Tags.member."+strconv.Itoa(i)+".Key"), form.Get("Tags.member."+strconv.Itoa(i)+".Value")
		if i > 50 || k == "" || len([]rune(k)) > 128 || len([]rune(v)) > 256 || !tagText.MatchString(k) || !tagText.MatchString(v) {
			return invalid("tags")
		}
		if lower := strings.ToLower(k); seen[lower] || strings.HasPrefix(lower, "aws:") {
			return nil, refuse("InvalidParameterValue", "Duplicate or reserved tag key: %s", k)
		}
		seen[strings.ToLower(k)] = true
	}
	p.Lock()
	defer p.Unlock()
	role := p.roles[arn]
	denied := &apiError{http.StatusForbidden, "AccessDenied", "User: " + caller.arn + " is not authorized to perform: sts:AssumeRole on resource: " + arn}
	if role == nil || role.ExternalID != "" && role.ExternalID != form.Get("ExternalId") {
		return nil, denied
	}
	trusted := len(role.Trusts) == 0
	for _, t := range role.Trusts {
		trusted = trusted || t == caller.arn
	}
	if !trusted {
		return nil, denied
	}
	if time.Duration(duration)*time.Second > role.MaxDuration {
		return nil, refuse("ValidationError", "The requested DurationSeconds exceeds the MaxSessionDuration set for this role.")
	}
	_, short, _ := strings.Cut(arn, ":role/")
	expires := p.Now().Add(time.Duration(duration) * time.Second).UTC().Truncate(time.Second)
	c := &credential{secret: randomHex(20), token: randomHex(64), arn: "arn:aws:sts::" + Account + ":assumed-role/" + short + "/" + name, expires: expires}
	key := "ASIA" + strings.ToUpper(randomHex(8))
	p.keys[key] = c
	var out assumedRole
	out.Result.Credentials.AccessKeyID, out.Result.Credentials.SecretAccessKey = key, c.secret
	out.Result.Credentials.SessionToken, out.Result.Credentials.Expiration = c.token, expires.Format(time.RFC3339)
	out.Result.AssumedRoleUser.AssumedRoleID, out.Result.AssumedRoleUser.Arn = "AROA:"+name, c.arn
	out.Result.SourceIdentity = form.Get("SourceIdentity")
	return out, nil
}
