//go:build unix

package ssmpeer

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

var authorization = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([a-z0-9-]+)/([a-z0-9]+)/aws4_request, SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})$`)

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

func hexSum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// authenticate checks the signature of a request as the documentation of Signature Version 4 describes it, and gives the
// credential and the ARN of whoever signed it.
func (p *Peer) authenticate(r *http.Request, body []byte, service string) (*credential, string, *apiError) {
	deny := func(code, message string) (*credential, string, *apiError) {
		return nil, "", &apiError{http.StatusForbidden, code, message}
	}
	m := authorization.FindStringSubmatch(r.Header.Get("Authorization"))
	if m == nil {
		return deny("MissingAuthenticationTokenException", "Missing Authentication Token")
	}
	key, day, region, scope, signed, signature := m[1], m[2], m[3], m[4], m[5], m[6]
	p.Lock()
	c := p.keys[key]
	now := p.Now()
	p.Unlock()
	if c == nil {
		return deny("UnrecognizedClientException", "The security token included in the request is invalid.")
	}
	if scope != service || region != p.Region {
		return deny("InvalidSignatureException", "Credential should be scoped to a valid region and service.")
	}
	date := r.Header.Get("X-Amz-Date")
	at, err := time.Parse("20060102T150405Z", date)
	if err != nil || !strings.HasPrefix(date, day) {
		return deny("IncompleteSignature", "Date must be in ISO-8601 'basic format'.")
	}
	// A clock of a test moves by itself; a real one may be five minutes off.
	if d := time.Since(at).Abs(); d > 5*time.Minute && at.Sub(now).Abs() > 5*time.Minute {
		return deny("InvalidSignatureException", "Signature expired: "+date)
	}
	digest := hexSum(body)
	names := strings.Split(signed, ";")
	for _, must := range []string{"host", "x-amz-date"} {
		if !slices.Contains(names, must) {
			return deny("IncompleteSignature", must+" is not signed")
		}
	}
	if !slices.IsSorted(names) {
		return deny("IncompleteSignature", "SignedHeaders is not sorted")
	}
	var headers strings.Builder
	for _, name := range names {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = r.Header.Get("Content-Length")
			if value == "" {
				value = itoa(r.ContentLength)
			}
		}
		headers.WriteString(name + ":" + strings.Join(strings.Fields(value), " ") + "\n")
	}
	path := canonicalPath(r.URL.Path)
	canonical := strings.Join([]string{r.Method, path, canonicalQuery(r.URL.Query()), headers.String(), signed, digest}, "\n")
	credentialScope := strings.Join([]string{day, region, scope, "aws4_request"}, "/")
	toSign := strings.Join([]string{"AWS4-HMAC-SHA256", date, credentialScope, hexSum([]byte(canonical))}, "\n")
	k := mac(mac(mac(mac([]byte("AWS4"+c.secret), day), region), scope), "aws4_request")
	if !hmac.Equal([]byte(hex.EncodeToString(mac(k, toSign))), []byte(signature)) {
		return deny("InvalidSignatureException", "The request signature we calculated does not match the signature you provided.")
	}
	if r.Header.Get("X-Amz-Security-Token") != c.token {
		return deny("UnrecognizedClientException", "The security token included in the request is invalid.")
	}
	if !c.expires.IsZero() && !now.Before(c.expires) {
		return nil, c.arn, &apiError{http.StatusBadRequest, "ExpiredTokenException", "The security token included in the request is expired"}
	}
	return c, c.arn, nil
}

// canonicalPath is the URI encoding of Signature Version 4: every byte but the unreserved characters and the slash, whatever
// the sender left as it is.
func canonicalPath(path string) string {
	if path == "" {
		return "/"
	}
	var out strings.Builder
	for _, b := range []byte(path) {
		if b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte("-._~/", b) >= 0 {
			out.WriteByte(b)
		} else {
			fmt.Fprintf(&out, "%%%02X", b)
		}
	}
	return out.String()
}

func canonicalQuery(q url.Values) string { return strings.ReplaceAll(q.Encode(), "+", "%20") }
