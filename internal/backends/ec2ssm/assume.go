package ec2ssm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/aws-sdk-go-v2/service/sts/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const (
	// sessionPrefix marks our sessions in CloudTrail.
	sessionPrefix = "agentkernel-"
	// maxSession is the longest RoleSessionName of STS.
	maxSession = 64
	digestLen  = 12
	// refreshBefore is how long before its end a session is replaced.
	refreshBefore = 5 * time.Minute
)

var (
	sessionForeign = regexp.MustCompile(`[^A-Za-z0-9_+=,.@-]`)
	digestSuffix   = regexp.MustCompile(`-[0-9a-f]{12}$`)
)

// sessionName is the RoleSessionName of a subject: characters that STS takes, at most 64. Where that changes the subject, a
// digest of it tells two apart that would look alike; a subject that looks as if it had one already gets one, too.
func sessionName(subject string) string {
	name := sessionForeign.ReplaceAllString(subject, "_")
	if name == subject && len(sessionPrefix)+len(name) <= maxSession && !digestSuffix.MatchString(name) {
		return sessionPrefix + name
	}
	sum := sha256.Sum256([]byte(subject))
	most := maxSession - len(sessionPrefix) - 1 - digestLen
	name = strings.TrimRight(name[:min(len(name), most)], "-")
	return sessionPrefix + name + "-" + hex.EncodeToString(sum[:])[:digestLen]
}

// sessions are the assumed roles of this process, by everything that goes into them.
type sessions struct {
	clock clock
	mu    sync.Mutex
	byKey map[string]*session
}

// session is one assumed role. It is held while the role is assumed, so that everybody who waits gets the one result.
type session struct {
	held  chan struct{} // of one element: whoever could put one in holds it
	creds aws.Credentials
}

// hold waits for the session, and gives the error of ctx if that ends first.
func (s *session) hold(ctx context.Context) error {
	select {
	case s.held <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *session) release() { <-s.held }

func (s *sessions) of(key string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey == nil {
		s.byKey = map[string]*session{}
	}
	if s.byKey[key] == nil {
		s.byKey[key] = &session{held: make(chan struct{}, 1)}
	}
	return s.byKey[key]
}

// assumed gives credentials of a principal's role. It is an aws.CredentialsProvider.
type assumed struct {
	e      *endpoint
	base   aws.Config
	who    sandboxcore.Principal
	region string
}

// signedWith is, in the context of a call, where Retrieve leaves the access key that the call is signed with.
type signedWith struct{}

// Retrieve gives the session's credentials, and assumes the role when there are none or they end soon.
func (a *assumed) Retrieve(ctx context.Context) (aws.Credentials, error) {
	creds, err := a.current(ctx)
	if key, ok := ctx.Value(signedWith{}).(*string); ok {
		*key = creds.AccessKeyID
	}
	return creds, err
}

func (a *assumed) current(ctx context.Context) (aws.Credentials, error) {
	base, err := a.base.Credentials.Retrieve(ctx)
	if err != nil {
		return aws.Credentials{}, err
	}
	s, err := a.session(base)
	if err != nil {
		return aws.Credentials{}, err
	}
	if err := s.hold(ctx); err != nil {
		return aws.Credentials{}, a.e.failure(ctx, err, "the role of the principal could not be assumed", a.who.EC2SSM.RoleARN)
	}
	defer s.release()
	if s.creds.HasKeys() && a.e.clock.Now().Before(s.creds.Expires.Add(-refreshBefore)) {
		return s.creds, nil
	}
	creds, err := a.assume(ctx)
	if err != nil {
		// A session that is still good is used to its end.
		if s.creds.HasKeys() && a.e.clock.Now().Before(s.creds.Expires) {
			return s.creds, nil
		}
		return aws.Credentials{}, err
	}
	s.creds = creds
	return creds, nil
}

func (a *assumed) session(base aws.Credentials) (*session, error) {
	key, err := json.Marshal([]any{a.who.EC2SSM.RoleARN, a.who.EC2SSM.ExternalID, a.who.EC2SSM.SessionTags, a.who.EC2SSM.SourceIdentity, a.who.Subject, base.AccessKeyID, a.region})
	if err != nil {
		return nil, err
	}
	return a.e.sessions.of(string(key)), nil
}

// drop forgets the session with this access key. One that somebody else has assumed since then stays.
func (a *assumed) drop(ctx context.Context, key string) error {
	base, err := a.base.Credentials.Retrieve(ctx)
	if err != nil {
		return err
	}
	s, err := a.session(base)
	if err != nil {
		return err
	}
	if err := s.hold(ctx); err != nil {
		return err
	}
	defer s.release()
	if key == "" || s.creds.AccessKeyID == key {
		s.creds = aws.Credentials{}
	}
	return nil
}

func (a *assumed) assume(ctx context.Context) (aws.Credentials, error) {
	ec2 := a.who.EC2SSM
	in := &sts.AssumeRoleInput{RoleArn: &ec2.RoleARN, RoleSessionName: aws.String(sessionName(a.who.Subject))}
	if ec2.ExternalID != "" {
		in.ExternalId = &ec2.ExternalID
	}
	if ec2.SourceIdentity != "" {
		in.SourceIdentity = &ec2.SourceIdentity
	}
	for k, v := range ec2.SessionTags {
		in.Tags = append(in.Tags, types.Tag{Key: aws.String(k), Value: aws.String(v)})
	}
	client := a.e.stsClient(a.base)
	var out *sts.AssumeRoleOutput
	err := a.e.retry(ctx, func(ctx context.Context) (err error) {
		out, err = client.AssumeRole(ctx, in)
		return err
	})
	if err != nil {
		return aws.Credentials{}, a.e.failure(ctx, err, "the role of the principal could not be assumed", ec2.RoleARN)
	}
	c := out.Credentials
	if c == nil || c.AccessKeyId == nil || c.SecretAccessKey == nil || c.SessionToken == nil || c.Expiration == nil {
		return aws.Credentials{}, &sandboxcore.Error{
			Code: sandboxcore.CodeIdentity, Attempted: "the role of the principal could not be assumed", Object: ec2.RoleARN,
			Said: "the answer of STS holds no complete credential.", Next: "Check the address of STS.",
		}
	}
	return aws.Credentials{
		AccessKeyID: *c.AccessKeyId, SecretAccessKey: *c.SecretAccessKey, SessionToken: *c.SessionToken, CanExpire: true, Expires: *c.Expiration, Source: "AssumeRole",
	}, nil
}
