package docker

import (
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/docker/cli/cli/connhelper"
	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// newClient is the only place that makes a client of an engine, so that no path can ignore the configured address, its
// TLS or its redirect rule. It does not connect.
func newClient(t target, more ...client.Opt) (*client.Client, error) {
	dialer := &net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second}
	transport := &http.Transport{
		TLSClientConfig:     t.tls,
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: 15 * time.Second,
		// Terraform works on ten objects at once; each connection that is not kept is made again.
		MaxIdleConns:        32,
		MaxIdleConnsPerHost: 32,
		IdleConnTimeout:     30 * time.Second,
	}
	opts := []client.Opt{
		// The engine never redirects; a redirect must not carry registry credentials or code to somebody else.
		client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}),
		client.WithUserAgent("terraform-provider-agentkernel"),
	}
	if strings.HasPrefix(t.host, "ssh://") {
		// Without a terminal nobody could answer a question of ssh, so it must fail instead of asking.
		helper, err := connhelper.GetConnectionHelperWithSSHOpts(t.host, []string{"-o BatchMode=yes", "-o ConnectTimeout=15"})
		if err != nil {
			return nil, &sandboxcore.Error{
				Code: sandboxcore.CodeValue, Attempted: "the ssh address of the Docker engine was refused", Object: t.host,
				Next: "Use ssh://user@host:port, with an IPv6 address in brackets.", Err: err,
			}
		}
		opts = append(opts, client.WithHost(helper.Host), client.WithDialContext(helper.Dialer))
	} else {
		opts = append(opts, client.WithHost(t.host))
	}
	if t.apiVersion != "" {
		opts = append(opts, client.WithAPIVersion(t.apiVersion))
	}
	cli, err := client.New(append(opts, more...)...)
	if err != nil {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the address of the Docker engine was refused", Object: t.host,
			Next: "It comes from " + t.origin + ".", Err: err,
		}
	}
	return cli, nil
}

// withDeadline bounds one call. The caller's own deadline stays if it is earlier.
func withDeadline(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, errNoAnswer)
}
