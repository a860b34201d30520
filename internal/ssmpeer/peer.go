//go:build unix

package ssmpeer

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"
)

// Account is the account that everything here belongs to.
const Account = "123456789012"

// Call is one entry of the journal.
type Call struct {
	// Action is "ssm:SendCommand", "sts:AssumeRole", "s3:GetObject", "s3:PutObject" (by a machine) and the like.
	Action string
	// Caller is the ARN of whose credential signed it.
	Caller string
	// Params are the parameters as they came (JSON values for SSM, form values for STS).
	Params map[string]any
	// Refused is the error code of the answer, empty for success.
	Refused string
}

// Fault replaces the answer to a call.
type Fault struct {
	// Code and Message are an error of the service; Status is its HTTP status (400 if 0).
	Code, Message string
	Status        int
	// Drop cuts the connection: before the call has an effect, or after it (DropAfter).
	Drop, DropAfter bool
}

// Peer is the peer. Set the exported fields before the first call, or hold them with Lock.
type Peer struct {
	// URL is the endpoint of all services.
	URL string
	// Region of the machines.
	Region string
	// Now is the clock of credentials that expire.
	Now func() time.Time
	// Unseen is how many questions about a new command are answered with InvocationDoesNotExist.
	Unseen int
	// Fault is asked before each call; n counts the calls of this action from 1.
	Fault func(action string, n int) *Fault
	// Before is called before each call takes effect, and may make it wait.
	Before func(action string)

	sync.Mutex
	server   *httptest.Server
	keys     map[string]*credential
	roles    map[string]*Role
	machines map[string]*Machine
	commands map[string]*command
	objects  map[string][]byte
	journal  []Call
	counts   map[string]int
	running  sync.WaitGroup
	closing  chan struct{}
	closed   bool
	mark     string
	houses   []*house
}

type credential struct {
	secret, token, arn string
	expires            time.Time // zero: never
}

// Key is a credential of a user.
type Key struct{ AccessKey, SecretKey string }

// New starts a peer. Close ends it with everything that it runs.
func New() *Peer {
	p := &Peer{
		Region: "eu-west-1", Now: time.Now, Unseen: 1, keys: map[string]*credential{}, roles: map[string]*Role{}, machines: map[string]*Machine{},
		commands: map[string]*command{}, objects: map[string][]byte{}, counts: map[string]int{}, closing: make(chan struct{}), mark: "AGENTKERNEL_PEER=" + randomHex(8),
	}
	p.server = httptest.NewServer(http.HandlerFunc(p.serve))
	p.URL = p.server.URL
	return p
}

// Close ends every process that a machine runs, and the server.
func (p *Peer) Close() {
	p.Lock()
	if p.closed {
		p.Unlock()
		return
	}
	p.closed = true
	p.Unlock()
	close(p.closing)
	p.server.CloseClientConnections()
	p.server.Close()
	p.running.Wait()
	killMarked(p.mark)
	for _, h := range p.houses {
		h.close()
	}
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// AddUser makes a user and an access key for it.
func (p *Peer) AddUser(name string) Key {
	p.Lock()
	defer p.Unlock()
	k := Key{AccessKey: "AKIA" + strings.ToUpper(randomHex(8)), SecretKey: randomHex(20)}
	p.keys[k.AccessKey] = &credential{secret: k.SecretKey, arn: "arn:aws:iam::" + Account + ":user/" + name}
	return k
}

// Revoke makes every session of a role expire now.
func (p *Peer) Revoke(role string) {
	p.Lock()
	defer p.Unlock()
	for _, c := range p.keys {
		if strings.Contains(c.arn, ":assumed-role/"+role+"/") {
			c.expires = p.Now()
		}
	}
}

// Journal gives the calls so far.
func (p *Peer) Journal() []Call {
	p.Lock()
	defer p.Unlock()
	return slices.Clone(p.journal)
}

// Actions gives the different actions of the journal, sorted.
func (p *Peer) Actions() []string {
	var out []string
	for _, c := range p.Journal() {
		out = append(out, c.Action)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Count gives how often an action was called.
func (p *Peer) Count(action string) int {
	n := 0
	for _, c := range p.Journal() {
		if c.Action == action {
			n++
		}
	}
	return n
}

// ForgetJournal empties the journal.
func (p *Peer) ForgetJournal() {
	p.Lock()
	defer p.Unlock()
	p.journal, p.counts = nil, map[string]int{}
}

// apiError is an answer that is an error.
type apiError struct {
	status        int
	code, message string
}

func refuse(code, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, code: code, message: fmt.Sprintf(format, args...)}
}

// serve tells the services apart as their protocols do: awsJson 1.1 by the header X-Amz-Target, awsQuery by a form, S3 by
// the rest.
func (p *Peer) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 4<<20))
	if err != nil {
		return
	}
	target, isJSON := strings.CutPrefix(r.Header.Get("X-Amz-Target"), "AmazonSSM.")
	switch {
	case isJSON:
		p.handle(w, r, body, "ssm", target, p.ssm)
	case r.Method == http.MethodPost:
		form, action := readForm(body)
		p.handle(w, r, body, "sts", action, func(caller *credential, action string, _ []byte) (any, map[string]any, *apiError) {
			out, e := p.sts(caller, action, form)
			params := map[string]any{}
			for k, v := range form {
				params[k] = v
			}
			return out, params, e
		})
	default:
		p.handle(w, r, body, "s3", "GetObject", func(*credential, string, []byte) (any, map[string]any, *apiError) {
			out, e := p.s3Get(r.Method, r.URL.Path)
			return out, map[string]any{"Path": r.URL.Path}, e
		})
	}
}

type handler func(caller *credential, action string, body []byte) (answer any, params map[string]any, e *apiError)

func (p *Peer) handle(w http.ResponseWriter, r *http.Request, body []byte, service, action string, h handler) {
	caller, arn, e := p.authenticate(r, body, service)
	full := service + ":" + action
	p.Lock()
	p.counts[full]++
	fault := (*Fault)(nil)
	if p.Fault != nil {
		fault = p.Fault(full, p.counts[full])
	}
	before := p.Before
	p.Unlock()
	if before != nil {
		before(full)
	}
	var answer any
	var params map[string]any
	switch {
	case e != nil:
	case fault != nil && fault.Drop:
		panic(http.ErrAbortHandler)
	case fault != nil && fault.Code != "":
		e = &apiError{status: fault.Status, code: fault.Code, message: fault.Message}
		if e.status == 0 {
			e.status = http.StatusBadRequest
		}
	default:
		answer, params, e = h(caller, action, body)
	}
	call := Call{Action: full, Caller: arn, Params: params}
	if e != nil {
		call.Refused = e.code
	}
	p.Lock()
	p.journal = append(p.journal, call)
	p.Unlock()
	if fault != nil && fault.DropAfter {
		panic(http.ErrAbortHandler)
	}
	write(w, service, action, answer, e)
}

// object gives what a machine put into a bucket.
func (p *Peer) s3Get(method, path string) (any, *apiError) {
	if method != http.MethodGet {
		return nil, &apiError{http.StatusMethodNotAllowed, "MethodNotAllowed", "only GET"}
	}
	p.Lock()
	defer p.Unlock()
	b, ok := p.objects[strings.TrimPrefix(path, "/")]
	if !ok {
		return nil, &apiError{http.StatusNotFound, "NoSuchKey", "The specified key does not exist."}
	}
	return bytes.Clone(b), nil
}
