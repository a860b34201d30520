package e2b

import (
	"net/http"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// What a backend of another kind, for servers of the same shape, builds on.

// ProfileSettings are the keys of a profile that such a server understands.
func ProfileSettings() []sandboxcore.Setting { return profileSettings() }

// Capabilities are those of a profile on a server that has everything.
func Capabilities(p *sandboxcore.Profile) sandboxcore.Capabilities {
	return (&backend{}).Capabilities(p)
}

// Validate gives the refusals of a profile of the given kind.
func Validate(kind sandboxcore.BackendType, p *sandboxcore.Profile) []*sandboxcore.Error {
	return newBackend(&Place{Kind: kind}).Validate(p)
}

// Connect gives the endpoint of a place. guard sees every request before it leaves, to the API as to sandboxes; its error
// is what the caller gets. It speaks to nobody.
func Connect(place *Place, guard func(*http.Request) error) sandboxcore.Endpoint {
	b := newBackend(place)
	b.transport = guardedTransport{guard, newTransport(place)}
	return b.connect()
}

type guardedTransport struct {
	guard func(*http.Request) error
	next  http.RoundTripper
}

func (t guardedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.guard(r); err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	return t.next.RoundTrip(r)
}
