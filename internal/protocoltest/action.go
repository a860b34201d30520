package protocoltest

import (
	"sync"
	"time"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
)

// Progress is one message of an action.
type Progress struct {
	Message string
	At      time.Time
	// AfterStop: it came when the provider had been told to stop. Terraform gives up an action that sends such a message.
	AfterStop bool
}

// Invocation is an action that runs.
type Invocation struct {
	done chan struct{}
	mu   sync.Mutex
	sent []Progress
	end  Diags
}

func (s *Server) actions() tfprotov6.ProviderServerWithActions { //nolint:staticcheck // the interface of this version of the protocol
	s.tb.Helper()
	server, ok := s.server.(tfprotov6.ProviderServerWithActions) //nolint:staticcheck // as above
	if !ok {
		s.tb.Fatal("the provider has no actions")
	}
	return server
}

func (s *Server) packAction(name string, config Config) *tfprotov6.DynamicValue {
	s.tb.Helper()
	schema, ok := s.schema.ActionSchemas[name]
	if !ok {
		s.tb.Fatalf("the provider has no action %s", name)
	}
	return s.pack(schema.Schema, s.value(schema.Schema, config))
}

// PlanAction validates and plans an action.
func (s *Server) PlanAction(name string, config Config) Diags {
	s.tb.Helper()
	packed := s.packAction(name, config)
	validated, err := s.actions().ValidateActionConfig(s.context(), &tfprotov6.ValidateActionConfigRequest{ActionType: name, Config: packed})
	s.must("validate the action "+name, err)
	if d := Diags(validated.Diagnostics); d.HasError() {
		return d
	}
	resp, err := s.actions().PlanAction(s.context(), &tfprotov6.PlanActionRequest{ActionType: name, Config: packed})
	s.must("plan the action "+name, err)
	return append(Diags(validated.Diagnostics), resp.Diagnostics...)
}

// Invoke starts an action. It reads all of its events, also those that Terraform would not wait for.
func (s *Server) Invoke(name string, config Config) *Invocation {
	s.tb.Helper()
	stream, err := s.actions().InvokeAction(s.context(), &tfprotov6.InvokeActionRequest{ActionType: name, Config: s.packAction(name, config)})
	s.must("invoke the action "+name, err)
	inv := &Invocation{done: make(chan struct{})}
	go func() {
		defer close(inv.done)
		for event := range stream.Events {
			inv.mu.Lock()
			switch e := event.Type.(type) {
			case tfprotov6.ProgressInvokeActionEventType:
				inv.sent = append(inv.sent, Progress{Message: e.Message, At: time.Now(), AfterStop: s.stopped.Load()})
			case tfprotov6.CompletedInvokeActionEventType:
				inv.end = e.Diagnostics
			}
			inv.mu.Unlock()
		}
	}()
	return inv
}

// Done is closed when the action has ended.
func (i *Invocation) Done() <-chan struct{} { return i.done }

// Wait waits for the end of the action and gives its diagnostics.
func (i *Invocation) Wait() Diags {
	<-i.done
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.end
}

// Progress gives the messages so far.
func (i *Invocation) Progress() []Progress {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]Progress(nil), i.sent...)
}
