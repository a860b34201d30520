package e2b

import (
	"strings"
	"time"
)

// Messages of the control plane, as E2B's OpenAPI description has them. Only what is used here is named; everything
// else in an answer is ignored.

// newSandbox is the body of POST /sandboxes and POST /v2/sandboxes (schema NewSandbox). AllowInternetAccess is the one
// key in snake case.
type newSandbox struct {
	TemplateID          string            `json:"templateID"`
	Timeout             int               `json:"timeout"`
	AutoPause           bool              `json:"autoPause"`
	AutoResume          *autoResume       `json:"autoResume,omitempty"`
	Secure              *bool             `json:"secure,omitempty"` // v1 only
	AllowInternetAccess *bool             `json:"allow_internet_access,omitempty"`
	Network             *network          `json:"network,omitempty"`
	Metadata            map[string]string `json:"metadata,omitempty"`
	EnvVars             map[string]string `json:"envVars,omitempty"`
}

type autoResume struct {
	Enabled bool `json:"enabled"`
}

// network is the egress of a sandbox (schema SandboxNetworkConfig).
type network struct {
	AllowPublicTraffic *bool    `json:"allowPublicTraffic,omitempty"`
	AllowOut           []string `json:"allowOut,omitempty"`
	DenyOut            []string `json:"denyOut,omitempty"`
}

// networkUpdate is the body of PUT /sandboxes/{id}/network. What is left out is cleared, so that everything is sent.
type networkUpdate struct {
	AllowInternetAccess bool     `json:"allow_internet_access"`
	AllowOut            []string `json:"allowOut"`
	DenyOut             []string `json:"denyOut"`
}

// sandboxAnswer is what create and connect answer with (schema Sandbox). EnvdURL is an extension of servers of the
// "e2b-rest/1" protocol.
type sandboxAnswer struct {
	SandboxID          string  `json:"sandboxID"`
	EnvdVersion        string  `json:"envdVersion"`
	EnvdAccessToken    *string `json:"envdAccessToken"`
	TrafficAccessToken *string `json:"trafficAccessToken"`
	Domain             *string `json:"domain"`
	EnvdURL            *string `json:"envdUrl"`
}

// sandboxDetail is the answer of GET /sandboxes/{id} (schema SandboxDetail) and one element of a list (ListedSandbox).
type sandboxDetail struct {
	sandboxAnswer
	TemplateID          string            `json:"templateID"`
	StartedAt           wireTime          `json:"startedAt"`
	EndAt               wireTime          `json:"endAt"`
	State               string            `json:"state"`
	Metadata            map[string]string `json:"metadata"`
	AllowInternetAccess *bool             `json:"allowInternetAccess"`
	Network             *network          `json:"network"`

	// seen is when the server said so, by its own clock.
	seen time.Time
}

// Sandbox states of the API; one that is pausing is told as paused, one that is being killed as 404.
const (
	stateRunning = "running"
	statePaused  = "paused"
)

// wireTime is a time that a compatible server may leave out or write in a form that is not understood: both are no time.
type wireTime struct{ time.Time }

// UnmarshalJSON reads RFC 3339.
func (t *wireTime) UnmarshalJSON(text []byte) error {
	if v, err := time.Parse(time.RFC3339Nano, strings.Trim(string(text), `"`)); err == nil {
		t.Time = v
	}
	return nil
}

type connectBody struct {
	Timeout int `json:"timeout"`
}

type timeoutBody struct {
	Timeout int `json:"timeout"`
}

// apiError is the body of an error: code is the HTTP status, message is for people. Branching goes by status, not text.
// The proxy in front of the sandboxes adds sandboxId, and port when it is only the port that is closed. Connect's own
// errors have a text as code.
type apiError struct {
	Code      any    `json:"code"`
	Message   string `json:"message"`
	ErrorCode string `json:"error_code"`
	SandboxID string `json:"sandboxId"`
	Port      any    `json:"port"`
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
