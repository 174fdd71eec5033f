package workload

import (
	"context"
	"fmt"
	"strings"
	"sync"
)

// Transcript keeps what a process prints, and lets others wait for a text in it. It is an io.Writer and safe for
// concurrent use.
type Transcript struct {
	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{}
}

// NewTranscript returns an empty Transcript.
func NewTranscript() *Transcript { return &Transcript{changed: make(chan struct{})} }

// Write implements io.Writer.
func (t *Transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.changed)
	t.changed = make(chan struct{})
	return t.text.Write(p)
}

func (t *Transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// Await waits until a text has been printed. It is an error if the process, which closes exited, or ctx ends first.
func (t *Transcript) Await(ctx context.Context, text string, exited <-chan struct{}) error {
	for over := false; ; {
		t.mu.Lock()
		found, changed := strings.Contains(t.text.String(), text), t.changed
		t.mu.Unlock()
		switch {
		case found:
			return nil
		case over:
			return fmt.Errorf("the process ended without printing %q, but:\n%s", text, t)
		}
		select {
		case <-changed:
		case <-exited:
			over = true // it may have printed the text just before
		case <-ctx.Done():
			return fmt.Errorf("the process does not print %q, but:\n%s", text, t)
		}
	}
}
