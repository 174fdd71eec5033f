// Package workload writes events and checks what became of them. Tests, the demo and the benchmarks
// share it, so that they all mean the same by lost and out of order.
package workload

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Event is an event as its writer knows it.
type Event struct {
	ID      string
	Topic   string // where it has to arrive
	Key     string
	Seq     int64  // its place among the events of Topic and Key, in commit order
	Type    string // header eventType
	Payload []byte
}

// Record is an event as a consumer received it.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Key       []byte
	Value     []byte
	Headers   map[string]string
	Received  time.Time
}

// Report is the outcome of comparing what was committed with what was received. Everything but
// Committed, Records and Duplicates has to be zero.
type Report struct {
	Committed  int `json:"committed"`
	Records    int `json:"records"`
	Lost       int `json:"lost"`         // committed, never received
	Phantom    int `json:"phantom"`      // received, never committed
	Duplicates int `json:"duplicates"`   // received again
	OutOfOrder int `json:"out_of_order"` // first received after a later event of the same topic and key
	WrongBytes int `json:"wrong_bytes"`  // other topic, key, value or headers than were written
	Moved      int `json:"moved"`        // keys that are in more than one partition
}

// Complete reports whether nothing is missing.
func (r Report) Complete() bool { return r.Lost == 0 }

// Err returns an error unless every event arrived, in order and as it was written. Duplicates are none.
func (r Report) Err() error {
	if r.Lost+r.Phantom+r.OutOfOrder+r.WrongBytes+r.Moved == 0 {
		return nil
	}
	return fmt.Errorf("%+v", r)
}

type fate uint8

const (
	inDoubt fate = iota // the writer does not know: it may be received, it need not
	committed
	rolledBack
)

type entry struct {
	topic, key, kind string
	seq              int64
	sum              [sha256.Size]byte
	fate             fate
	at               time.Time // when the writer began to commit
	seen             int
}

type lane struct{ topic, key string }

type progress struct {
	seq       int64 // the highest that was received
	last      int64 // of the last record
	partition int32
	moved     bool
}

// Ledger remembers every event on both sides. It is safe for concurrent use.
type Ledger struct {
	mu       sync.Mutex
	events   map[string]*entry
	lanes    map[lane]*progress
	report   Report
	written  int // events that are committed or in doubt
	doubtful int // records of events in doubt
	changed  chan struct{}
	onFirst  func(Record, time.Duration)
}

// NewLedger returns an empty Ledger. onFirst, if not nil, is called with the first record of each event and
// the time from just before its COMMIT to its arrival.
func NewLedger(onFirst func(Record, time.Duration)) *Ledger {
	return &Ledger{
		events:  make(map[string]*entry),
		lanes:   make(map[lane]*progress),
		changed: make(chan struct{}),
		onFirst: onFirst,
	}
}

// Intend notes events before their COMMIT or ROLLBACK is sent.
func (l *Ledger) Intend(events ...Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.written += len(events)
	for _, e := range events {
		l.events[e.ID] = &entry{topic: e.Topic, key: e.Key, kind: e.Type, seq: e.Seq, sum: sha256.Sum256(e.Payload), at: now}
	}
}

// Committed notes that the COMMIT of intended events succeeded.
func (l *Ledger) Committed(events ...Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		known := l.events[e.ID]
		known.fate = committed
		l.report.Committed++
		if known.seen == 0 {
			l.report.Lost++
		} else {
			l.doubtful -= known.seen
		}
	}
	l.wake()
}

// RolledBack notes that intended events were rolled back.
func (l *Ledger) RolledBack(events ...Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written -= len(events)
	for _, e := range events {
		known := l.events[e.ID]
		known.fate = rolledBack
		l.doubtful -= known.seen
		l.report.Phantom += known.seen
	}
}

// Observe notes a received record. Records of one partition have to come in their order.
func (l *Ledger) Observe(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wake()
	l.report.Records++
	e := l.events[r.Headers["eventId"]]
	if e == nil {
		l.report.Phantom++
		return
	}
	switch e.fate {
	case inDoubt:
		l.doubtful++
	case rolledBack:
		l.report.Phantom++
	}
	if r.Topic != e.topic || string(r.Key) != e.key || r.Headers["eventType"] != e.kind ||
		len(r.Headers) != 2 || sha256.Sum256(r.Value) != e.sum {
		l.report.WrongBytes++
	}
	e.seen++
	p := l.progress(e, r)
	p.last = e.seq
	if e.seen > 1 {
		l.report.Duplicates++
		return
	}
	if e.fate == committed {
		l.report.Lost--
	}
	l.order(p, e, r)
	if l.onFirst != nil {
		l.onFirst(r, r.Received.Sub(e.at))
	}
}

// progress returns what is known of the place that a record has been received at.
func (l *Ledger) progress(e *entry, r Record) *progress {
	at := lane{r.Topic, string(r.Key)}
	p := l.lanes[at]
	if p == nil {
		p = &progress{seq: e.seq - 1, partition: r.Partition}
		l.lanes[at] = p
	}
	return p
}

func (l *Ledger) order(p *progress, e *entry, r Record) {
	if e.seq <= p.seq {
		l.report.OutOfOrder++
	}
	p.seq = max(p.seq, e.seq)
	if p.partition != r.Partition && !p.moved {
		p.moved = true
		l.report.Moved++
	}
}

// Written is the number of events that are committed or in doubt.
func (l *Ledger) Written() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written
}

// Stale names the keys, as topic/key, whose last record is not the last event that was committed: a consumer that keeps
// the latest value would be left with an old one. It is only true once everything has arrived and nothing more is sent.
func (l *Ledger) Stale() (keys []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	latest := make(map[lane]int64)
	for _, e := range l.events {
		if at := (lane{e.topic, e.key}); e.fate == committed {
			latest[at] = max(latest[at], e.seq)
		}
	}
	for at, seq := range latest {
		if p := l.lanes[at]; p == nil || p.last != seq {
			keys = append(keys, at.topic+"/"+at.key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Report returns the outcome so far. Events whose fate is in doubt may be received or not: they count neither
// as phantom nor as lost.
func (l *Ledger) Report() Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.report
}

// Await returns the report once it satisfies done, or an error with the last one when ctx ends first.
func (l *Ledger) Await(ctx context.Context, done func(Report) bool) (Report, error) {
	for {
		l.mu.Lock()
		r, changed := l.report, l.changed
		l.mu.Unlock()
		if done(r) {
			return r, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return r, fmt.Errorf("%w: %+v", context.Cause(ctx), r)
		}
	}
}

func (l *Ledger) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}
