package provider

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Bounds of what an action shows. Terraform prints a prefix before each message, and every message raw.
const (
	// progressInterval is between two messages.
	progressInterval = 300 * time.Millisecond
	// progressBatchBytes is the most that one message shows; the lines beyond are counted.
	progressBatchBytes = 16 << 10
	// progressLineBytes is the most that is shown of one line.
	progressLineBytes = 1000
)

// progress shows the output of a run while it runs. Whoever prints never waits for it: lines beyond the bound are counted
// and dropped.
//
// One goroutine alone sends, and none once the context has ended: the first message after a cancellation makes Terraform
// give the whole action up, and the provider is stopped in the middle of its cleanup. A message that is just being sent
// then may find that nobody reads any more and never return; nothing waits for it.
type progress struct {
	mu      sync.Mutex
	partial [2][]byte // the unfinished line of each stream
	cut     [2]bool   // the rest of this line is not shown
	lines   []string
	size    int
	dropped int

	finished chan struct{}
	ended    chan struct{}
}

// startProgress starts to show what is written.
func startProgress(ctx context.Context, send func(message string)) *progress {
	p := &progress{finished: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		p.report(ctx, send)
	}()
	return p
}

func (p *progress) report(ctx context.Context, send func(string)) {
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	var sent time.Time
	for {
		last := false
		select {
		case <-ctx.Done():
			return
		case <-p.finished:
			last = true
			if wait := progressInterval - time.Since(sent); wait > 0 {
				select {
				case <-ctx.Done():
				case <-time.After(wait):
				}
			}
		case <-ticker.C:
		}
		// When both have happened, select picks either.
		if ctx.Err() != nil {
			return
		}
		if batch := p.take(last); batch != "" {
			send(batch)
			sent = time.Now()
		}
		if last {
			return
		}
	}
}

// finish shows what is left and then note, and returns when that is done or ctx has ended.
func (p *progress) finish(ctx context.Context, note string) {
	p.mu.Lock()
	for stream := range p.partial {
		p.endLine(stream)
	}
	if note != "" {
		p.lines = append(p.lines, note)
	}
	p.mu.Unlock()
	close(p.finished)
	select {
	case <-p.ended:
	case <-ctx.Done():
	}
}

// write takes what a run prints. It never blocks.
func (p *progress) write(stderr bool, b []byte) {
	stream := 0
	if stderr {
		stream = 1
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte("\n"))
		if room := progressLineBytes - len(p.partial[stream]); len(line) > room {
			line, p.cut[stream] = line[:room], true
		}
		p.partial[stream] = append(p.partial[stream], line...)
		if ended {
			p.endLine(stream)
		}
		b = rest
	}
}

func (p *progress) endLine(stream int) {
	line := strings.ToValidUTF8(strings.TrimRight(string(p.partial[stream]), "\r"), "\uFFFD")
	if p.cut[stream] {
		line += " …"
	}
	p.partial[stream], p.cut[stream] = p.partial[stream][:0], false
	if line == "" {
		return
	}
	line = sandboxcore.Clean(line)
	if p.size+len(line) > progressBatchBytes {
		p.dropped++
		return
	}
	p.size += len(line) + 1
	p.lines = append(p.lines, line)
}

// take gives one message, or nothing.
func (p *progress) take(last bool) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dropped > 0 {
		note := fmt.Sprintf("… %d lines left out …", p.dropped)
		if at := len(p.lines) - 1; last && at >= 0 {
			p.lines = append(p.lines[:at], note, p.lines[at]) // before the note of the end
		} else {
			p.lines = append(p.lines, note)
		}
	}
	batch := strings.Join(p.lines, "\n")
	p.lines, p.size, p.dropped = nil, 0, 0
	return batch
}
