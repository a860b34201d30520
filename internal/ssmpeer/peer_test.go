//go:build linux

package ssmpeer_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	smithy "github.com/aws/smithy-go"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/ssmpeer"
)

const machine = "i-0123456789abcdef0"

func clients(t *testing.T, key ssmpeer.Key) (*ssmpeer.Peer, *ssm.Client, *sts.Client) {
	t.Helper()
	p := ssmpeer.New()
	t.Cleanup(p.Close)
	p.AddMachine(ssmpeer.Machine{ID: machine})
	user := p.AddUser("u")
	if key.AccessKey == "" {
		key.AccessKey = user.AccessKey
	}
	if key.SecretKey == "" {
		key.SecretKey = user.SecretKey
	}
	h := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(h.CloseIdleConnections)
	c := aws.Config{
		Region: p.Region, BaseEndpoint: &p.URL, HTTPClient: h, Credentials: credentials.NewStaticCredentialsProvider(key.AccessKey, key.SecretKey, ""),
		Retryer: func() aws.Retryer { return aws.NopRetryer{} },
	}
	return p, ssm.NewFromConfig(c), sts.NewFromConfig(c)
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var api smithy.APIError
	if !errors.As(err, &api) || api.ErrorCode() != code {
		t.Errorf("want %s: %v", code, err)
	}
}

// TestSignatures: the official SDK's are taken, everybody else's are not.
func TestSignatures(t *testing.T) {
	_, _, ok := clients(t, ssmpeer.Key{})
	if out, err := ok.GetCallerIdentity(t.Context(), nil); err != nil || aws.ToString(out.Account) != ssmpeer.Account {
		t.Errorf("%v %v", out, err)
	}
	_, s, forged := clients(t, ssmpeer.Key{SecretKey: "wrong"})
	_, err := forged.GetCallerIdentity(t.Context(), nil)
	wantCode(t, err, "InvalidSignatureException")
	_, err = s.DescribeInstanceInformation(t.Context(), nil)
	wantCode(t, err, "InvalidSignatureException")
	_, _, unknown := clients(t, ssmpeer.Key{AccessKey: "AKIAUNKNOWN"})
	_, err = unknown.GetCallerIdentity(t.Context(), nil)
	wantCode(t, err, "UnrecognizedClientException")
	p, _, _ := clients(t, ssmpeer.Key{})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL, strings.NewReader("Action=GetCallerIdentity&Version=2011-06-15"))
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := h.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusForbidden {
		t.Errorf("an unsigned request: %s %v", resp.Status, err)
	}
}

// TestRefusals: what the API reference does not allow.
func TestRefusals(t *testing.T) {
	_, s, _ := clients(t, ssmpeer.Key{})
	good := func() *ssm.SendCommandInput {
		return &ssm.SendCommandInput{DocumentName: aws.String("AWS-RunShellScript"), InstanceIds: []string{machine}, Parameters: map[string][]string{"commands": {"true"}}}
	}
	for name, test := range map[string]struct {
		change func(*ssm.SendCommandInput)
		code   string
	}{
		"instance id":        {func(i *ssm.SendCommandInput) { i.InstanceIds = []string{"i-1"} }, "ValidationException"},
		"twice":              {func(i *ssm.SendCommandInput) { i.InstanceIds = []string{machine, machine} }, "DuplicateInstanceId"},
		"unknown":            {func(i *ssm.SendCommandInput) { i.InstanceIds = []string{"i-00000000000000000"} }, "InvalidInstanceId"},
		"delivery too short": {func(i *ssm.SendCommandInput) { i.TimeoutSeconds = aws.Int32(29) }, "ValidationException"},
		"delivery too long":  {func(i *ssm.SendCommandInput) { i.TimeoutSeconds = aws.Int32(2_592_001) }, "ValidationException"},
		"comment":            {func(i *ssm.SendCommandInput) { i.Comment = aws.String(strings.Repeat("x", 101)) }, "ValidationException"},
		"document":           {func(i *ssm.SendCommandInput) { i.DocumentName = aws.String("AWS-Nothing") }, "InvalidDocument"},
		"parameter":          {func(i *ssm.SendCommandInput) { i.Parameters["stdin"] = []string{"x"} }, "InvalidParameters"},
		"execution":          {func(i *ssm.SendCommandInput) { i.Parameters["executionTimeout"] = []string{"172801"} }, "InvalidParameters"},
		"execution words":    {func(i *ssm.SendCommandInput) { i.Parameters["executionTimeout"] = []string{"1h"} }, "InvalidParameters"},
		"reference":          {func(i *ssm.SendCommandInput) { i.Parameters["commands"] = []string{"echo {{ssm:x}}"} }, "InvalidParameters"},
		"no commands":        {func(i *ssm.SendCommandInput) { i.Parameters = nil }, "InvalidParameters"},
		"size":               {func(i *ssm.SendCommandInput) { i.Parameters["commands"] = []string{strings.Repeat("x", 64<<10)} }, "MaxDocumentSizeExceeded"},
		"bucket":             {func(i *ssm.SendCommandInput) { i.OutputS3BucketName = aws.String("No_Bucket") }, "InvalidOutputFolder"},
	} {
		t.Run(name, func(t *testing.T) {
			in := good()
			test.change(in)
			_, err := s.SendCommand(t.Context(), in)
			wantCode(t, err, test.code)
		})
	}
	_, err := s.GetCommandInvocation(t.Context(), &ssm.GetCommandInvocationInput{CommandId: aws.String("00000000-0000-0000-0000-000000000000"), InstanceId: aws.String(machine)})
	wantCode(t, err, "InvocationDoesNotExist")
	_, err = s.CancelCommand(t.Context(), &ssm.CancelCommandInput{CommandId: aws.String("00000000-0000-0000-0000-000000000000")})
	wantCode(t, err, "InvalidCommandId")
}

// TestHabits: not found at first, no output before the end, cut at 24,000 and 8,000 characters, and the exit status.
func TestHabits(t *testing.T) {
	p, s, _ := clients(t, ssmpeer.Key{})
	sent, err := s.SendCommand(t.Context(), &ssm.SendCommandInput{
		DocumentName: aws.String("AWS-RunShellScript"), InstanceIds: []string{machine},
		Parameters: map[string][]string{"commands": {"head -c 30000 /dev/zero | tr '\\0' o", "head -c 9000 /dev/zero | tr '\\0' e >&2", "exit 7"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	in := &ssm.GetCommandInvocationInput{CommandId: sent.Command.CommandId, InstanceId: aws.String(machine)}
	_, err = s.GetCommandInvocation(t.Context(), in)
	wantCode(t, err, "InvocationDoesNotExist")
	for {
		out, err := s.GetCommandInvocation(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		if out.Status != types.CommandInvocationStatusFailed {
			if aws.ToString(out.StandardOutputContent) != "" || out.ResponseCode != -1 {
				t.Errorf("before the end: %d %q", out.ResponseCode, aws.ToString(out.StandardOutputContent))
			}
			continue
		}
		if out.ResponseCode != 7 || aws.ToString(out.StandardOutputContent) != strings.Repeat("o", 24_000) || aws.ToString(out.StandardErrorContent) != strings.Repeat("e", 8_000) {
			t.Errorf("%d, %d and %d characters", out.ResponseCode, len(aws.ToString(out.StandardOutputContent)), len(aws.ToString(out.StandardErrorContent)))
		}
		break
	}
	if p.Count("ssm:SendCommand") != 1 || p.Journal()[0].Caller != "arn:aws:iam::"+ssmpeer.Account+":user/u" {
		t.Errorf("%+v", p.Journal()[0])
	}
}
