package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/mattn/go-isatty"

	"github.com/pombo-cdc/pombo/integration/workload"
)

// record is what is left of a run.
type record struct {
	Seed     uint64  `json:"seed"`
	Seconds  float64 `json:"seconds"` // of writing
	Postgres string  `json:"postgres"`
	Kafka    string  `json:"kafka"`
	Machine  string  `json:"machine"`

	Faults []inflicted    `json:"faults"`
	Counts map[string]int `json:"counts"` // of faults by kind

	Retries       int `json:"parked_retries"`
	RetriesCutOff int `json:"parked_retries_cut_off"`
	Parked        int `json:"parked"` // events that a retry has published

	PomboStarts int       `json:"pombo_starts"`
	PeakMemory  int       `json:"peak_memory_bytes"` // of the larger of both instances
	Sessions    []session `json:"sessions"`

	Report     workload.Report `json:"report"`
	Stale      []string        `json:"stale"` // keys whose last record is not their last event
	Repeatable int             `json:"duplicates_bound"`
	Failure    string          `json:"failure,omitempty"`

	duration time.Duration
	began    time.Time
	mu       sync.Mutex // of Faults and Counts
}

// inflicted is a fault that happened.
type inflicted struct {
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"` // until it was over, with what it took to recover
	Kind    string    `json:"kind"`
	Where   string    `json:"where,omitempty"`
}

func newRecord(seed uint64, duration time.Duration, s *stage) *record {
	return &record{
		Seed: seed, Seconds: duration.Seconds(), duration: duration, began: time.Now(),
		Postgres: s.postgres.Origin(), Kafka: fmt.Sprintf("%d brokers, %s", brokers, s.kafka.Nodes()[0].Origin()),
		Machine: fmt.Sprintf("%s/%s, %d CPUs, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version()),
		Counts:  make(map[string]int),
	}
}

func (r *record) inflicted(a *act, began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Counts[a.kind.name]++
	r.Faults = append(r.Faults, inflicted{
		At: stamp(began), Seconds: float64(time.Since(began).Milliseconds()) / 1000, Kind: a.kind.name, Where: a.where,
	})
}

// stamp is a time as the logs of pombo have it.
func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// faults is the number of faults so far.
func (r *record) faults() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.Faults)
}

// finish completes the record and prints it.
func (r *record) finish(s *stage, played error) error {
	r.Report, r.Stale = s.ledger.Report(), append([]string{}, s.ledger.Stale()...) // never null in JSON
	r.Sessions = s.sessions.begun()
	for _, each := range r.Sessions {
		r.Repeatable += each.Unconfirmed
	}
	r.Retries, r.RetriesCutOff, r.Parked = s.operator.retries, s.operator.cutOff, s.operator.published
	r.Repeatable += retryPart * r.RetriesCutOff
	for _, i := range s.instances {
		r.PomboStarts += i.starts
		r.PeakMemory = max(r.PeakMemory, int(i.peak))
	}
	if err := r.verdict(played); err != nil {
		r.Failure = err.Error()
	}
	r.printTable()
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(r)
}

// verdict says which promise was broken.
func (r *record) verdict(played error) error {
	err := errors.Join(played, r.Report.Err())
	if len(r.Stale) > 0 {
		err = errors.Join(err, fmt.Errorf("the last record of %v is not its last event", r.Stale))
	}
	if r.Report.Duplicates > r.Repeatable {
		err = errors.Join(err, fmt.Errorf("%d duplicates, where sessions that ended explain %d at most", r.Report.Duplicates, r.Repeatable))
	}
	if err != nil {
		return fmt.Errorf("seed %d: %w", r.Seed, err)
	}
	return nil
}

func (r *record) printTable() {
	t := table.NewWriter()
	t.SetOutputMirror(os.Stderr)
	t.SetStyle(table.StyleLight)
	t.AppendRows([]table.Row{
		{"events committed", r.Report.Committed},
		{"records received", r.Report.Records},
		{"faults", len(r.Faults)},
		{"starts of pombo", r.PomboStarts},
		{"sessions", len(r.Sessions)},
		{"events parked, and published by a retry", r.Parked},
		{"peak memory of pombo", fmt.Sprintf("%.1f MiB", float64(r.PeakMemory)/(1<<20))},
	})
	t.AppendSeparator()
	t.AppendRows([]table.Row{
		{"lost", r.Report.Lost},
		{"phantoms", r.Report.Phantom},
		{"out of order", r.Report.OutOfOrder},
		{"wrong bytes", r.Report.WrongBytes},
		{"keys that moved", r.Report.Moved},
		{"keys left with an old event", len(r.Stale)},
		{"duplicates", fmt.Sprintf("%d of at most %d", r.Report.Duplicates, r.Repeatable)},
	})
	fmt.Fprintln(os.Stderr)
	t.Render()
}

// showProgress keeps a line up to date on a terminal, and writes one every few seconds elsewhere. It also watches memory.
func (s *stage) showProgress(ctx context.Context, rec *record) (stop func()) {
	const interval = 500 * time.Millisecond
	terminal := isatty.IsTerminal(os.Stderr.Fd())
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for n := 1; ; n++ {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			for _, i := range s.instances {
				i.measure()
			}
			if terminal {
				fmt.Fprintf(os.Stderr, "%s\x1b[K\r", s.progress(rec))
			} else if n%10 == 0 {
				fmt.Fprintln(os.Stderr, s.progress(rec))
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func (s *stage) progress(rec *record) string {
	r := s.ledger.Report()
	return fmt.Sprintf("%5.0f s   faults %3d   sessions %3d   committed %6d   on their way %5d   duplicates %5d   out of order %d   phantoms %d",
		time.Since(rec.began).Seconds(), rec.faults(), len(s.sessions.begun()), r.Committed, r.Lost, r.Duplicates, r.OutOfOrder, r.Phantom)
}
