package ec2ssm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	smithy "github.com/aws/smithy-go"
	"github.com/aws/smithy-go/encoding/httpbinding"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// maxS3Output bounds what is read of a command's output in S3: wholeBytes as base64, with a frame.
const maxS3Output = 64 << 20

// bucketTime is how long reading a command's output out of a bucket may take, repeated attempts included.
const bucketTime = 5 * time.Minute

// report gives the report of a run: out of SSM's own answer when it is whole there (24,000 characters at most), else out
// of the bucket.
func (m *machine) report(ctx context.Context, id string, e *ended, s sending) (*report, error) {
	r, err := parseReport(id, aws.ToString(e.out.StandardOutputContent))
	if err == nil || s.s3 == nil || aws.ToString(e.out.StandardOutputUrl) == "" {
		return r, err
	}
	text, err := m.fromBucket(ctx, aws.ToString(e.out.StandardOutputUrl), s.s3)
	if err == nil {
		if r, err = parseReport(id, text); err == nil {
			return r, nil
		}
	}
	// How the run ended stands in what SSM keeps itself.
	if r, herr := parseHead(id, aws.ToString(e.out.StandardOutputContent), err); herr == nil {
		return r, nil
	}
	return nil, err
}

// fromBucket reads one object. Only the key is taken from the URL that SSM names, so that a wrong one cannot lead the
// signed request anywhere else.
func (m *machine) fromBucket(ctx context.Context, from string, where *s3Output) (string, error) {
	u, err := url.Parse(from)
	if err != nil {
		return "", fmt.Errorf("the URL of the output cannot be read: %w", err)
	}
	key, ok := strings.CutPrefix(u.Path, "/"+where.bucket+"/")
	if !ok {
		key = strings.TrimPrefix(u.Path, "/")
		if host, _, _ := strings.Cut(u.Hostname(), "."); host != where.bucket {
			return "", errors.New("the URL of the output is not one of the bucket")
		}
	}
	region := where.region
	if region == "" {
		region = m.client.region
	}
	base := m.e.config.s3
	if base == "" {
		if base, err = m.e.config.found(ctx, m.client.config, "S3"); err != nil {
			return "", err
		}
	}
	if base == "" {
		base = "https://s3." + region + "." + domainOf(region)
	}
	base = strings.TrimSuffix(base, "/")
	// S3 signs over a path in which all but letters, digits and -._~ is escaped, so it has to be sent that way.
	key = httpbinding.EscapePath(key, false)
	// Tens of megabytes take longer than a call has.
	ctx, cancel := context.WithTimeout(ctx, bucketTime)
	defer cancel()
	var text string
	err = m.client.renewing(ctx, func(ctx context.Context) error {
		return m.e.again(ctx, func(ctx context.Context) (err error) {
			text, err = m.get(ctx, base+"/"+where.bucket+"/"+key, region)
			return err
		})
	})
	if err != nil {
		return "", m.e.failure(ctx, err, "the output of the run could not be read from S3", where.bucket)
	}
	return text, nil
}

// domainOf is the domain of the services of a region (the partitions of AWS, as in the endpoints of its SDKs).
func domainOf(region string) string {
	for prefix, domain := range map[string]string{
		"cn-": "amazonaws.com.cn", "us-iso-": "c2s.ic.gov", "us-isob-": "sc2s.sgov.gov", "us-isof-": "csp.hci.ic.gov", "eu-isoe-": "cloud.adc-e.uk", "eusc-": "amazonaws.eu",
	} {
		if strings.HasPrefix(region, prefix) {
			return domain
		}
	}
	return "amazonaws.com"
}

// get is GetObject: a GET with a signature over the empty body.
func (m *machine) get(ctx context.Context, address, region string) (string, error) {
	creds, err := m.client.config.Credentials.Retrieve(ctx)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	empty := sha256.Sum256(nil)
	digest := hex.EncodeToString(empty[:])
	req.Header.Set("X-Amz-Content-Sha256", digest)
	sign := func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }
	if err := v4.NewSigner().SignHTTP(ctx, creds, req, digest, "s3", region, m.e.clock.Now(), sign); err != nil {
		return "", err
	}
	resp, err := m.client.config.HTTPClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxS3Output+1))
	refuse := func(code sandboxcore.Code, said, next string) error {
		return &sandboxcore.Error{Code: code, Attempted: "the output of the run could not be read from S3", Object: m.options.s3.bucket, Said: said, Next: next}
	}
	// An error has a code, <Error><Code>…</Code>…</Error> (Amazon S3 API reference, error responses); the status alone says
	// too little: 400 is a bucket in another region, or a session that has ended.
	var said struct{ Code string }
	if err == nil && resp.StatusCode != http.StatusOK && xml.Unmarshal(body[:min(len(body), 64<<10)], &said) != nil {
		said.Code = ""
	}
	switch {
	case err != nil:
		return "", err
	case slices.Contains(codesExpired, said.Code):
		return "", &smithy.GenericAPIError{Code: said.Code, Message: "S3 does not take it any more"}
	case resp.StatusCode == http.StatusForbidden && said.Code != "" && said.Code != "AccessDenied":
		return "", refuse(sandboxcore.CodeIdentity, "AWS refused the caller ("+sandboxcore.Printable(said.Code)+").", "Check the credential, and the clock of this machine.")
	case resp.StatusCode == http.StatusForbidden:
		return "", refuse(sandboxcore.CodeIdentity, "AWS refused the caller, or the machine has put nothing there: who may not list a bucket is not told which.",
			"Allow s3:GetObject on the objects of this bucket and prefix to the caller, and s3:PutObject to the machine's role.")
	case resp.StatusCode == http.StatusNotFound:
		return "", refuse(sandboxcore.CodeValue, "the bucket does not exist, or the machine has put nothing there.", "Check bucket, and that the machine's role allows s3:PutObject there.")
	case resp.StatusCode/100 == 3 || resp.StatusCode == http.StatusBadRequest:
		return "", refuse(sandboxcore.CodeValue, "S3 answered "+resp.Status+": the bucket is in another region.", "Set region in output_s3.")
	case resp.StatusCode != http.StatusOK:
		return "", &bucketError{resp.StatusCode}
	case len(body) > maxS3Output:
		return "", refuse(sandboxcore.CodeValue, fmt.Sprintf("it is larger than %d bytes.", maxS3Output), "Let the run print less.")
	}
	return string(body), nil
}

// bucketError is an answer of S3 that may pass.
type bucketError struct{ status int }

func (e *bucketError) Error() string { return fmt.Sprintf("S3 answered with status %d", e.status) }

// output writes what the report holds of both streams, and brings back more of them by further commands up to a limit.
// What is left out is counted, never hidden. A further command that fails takes nothing away from what is known of the end
// of the run.
func (m *machine) output(ctx context.Context, k errand, r *report, res *sandboxcore.RunResult, stdout, stderr io.Writer) error {
	type stream struct {
		name  string
		w     io.Writer
		lost  *int64
		total int64
		have  int64
	}
	streams := []*stream{
		{name: "out", w: stdout, lost: &res.StdoutLost, total: r.number["out"]},
		{name: "err", w: stderr, lost: &res.StderrLost, total: r.number["err"]},
	}
	pages := 0
	for _, s := range streams {
		part := r.parts[s.name]
		if int64(len(part)) != r.number["here "+s.name] || int64(len(part)) > s.total {
			return m.unknown("the output of the run could not be brought back", "the report of the machine does not fit its sizes.", nil)
		}
		if err := writeAll(s.w, part); err != nil {
			return err
		}
		s.have = int64(len(part))
		pages += int((min(s.total, mostPaged) - min(s.have, mostPaged) + pageBytes - 1) / pageBytes)
	}
	// The machine keeps the files only as long as something of them is missing here.
	left := streams[0].have < streams[0].total || streams[1].have < streams[1].total
	failed := r.cut
	for _, s := range streams {
		for failed == nil && s.have < min(s.total, mostPaged) {
			n := min(pageBytes, min(s.total, mostPaged)-s.have)
			pages--
			part, err := m.page(ctx, k, s.name, s.have, n, pages == 0)
			if err != nil {
				failed = err
				break
			}
			if err := writeAll(s.w, part); err != nil {
				return err
			}
			s.have += int64(len(part))
			left = left && (pages > 0)
		}
		*s.lost = s.total - s.have
	}
	if failed != nil {
		said := failed.Error()
		if own, ok := errors.AsType[*sandboxcore.Error](failed); ok {
			said = strings.TrimSpace(own.Said + " " + own.Next)
		}
		res.Notice = joinNotices(res.Notice, "Output could not be brought back whole: "+said)
	}
	for _, s := range streams {
		if *s.lost == 0 {
			continue
		}
		why := "."
		switch {
		case failed != nil:
		case m.options.s3 == nil:
			why = ": Systems Manager keeps little of a command's output. Set output_s3 for all of it."
		default:
			why = fmt.Sprintf(": at most %d MiB of both streams go through a bucket.", wholeBytes>>20)
		}
		res.Notice = joinNotices(res.Notice, fmt.Sprintf("%d of %d bytes of std%s were not brought back%s", *s.lost, s.total, s.name, why))
	}
	if left {
		m.cleanPage(ctx, k)
	}
	return nil
}

// cleanPage removes what a run that has ended left on the machine, and touches no process: what was to run on does.
func (m *machine) cleanPage(ctx context.Context, k errand) {
	_ = sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		_, err := m.page(ctx, k, "out", 0, 0, true)
		return err
	})
}

// page brings back one part of a stream.
func (m *machine) page(ctx context.Context, k errand, name string, from, n int64, last bool) ([]byte, error) {
	const attempted = "the output of the run could not be brought back"
	r, err := m.exchange(ctx, k.id, sending{attempted: attempted, lines: pageLines(k, name, from, n, last), execution: overhead})
	if err != nil {
		return nil, err
	}
	if len(r.fail) > 0 || r.word != "page" || int64(len(r.parts[name])) != n {
		return nil, m.unknown(attempted, "the machine does not have it any more.", nil)
	}
	return r.parts[name], nil
}

func writeAll(w io.Writer, b []byte) error {
	if len(b) == 0 || w == nil {
		return nil
	}
	_, err := w.Write(b)
	return err
}
