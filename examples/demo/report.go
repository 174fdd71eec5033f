package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/mattn/go-isatty"
)

// showProgress keeps a line up to date on a terminal, and writes one every few seconds elsewhere.
func (s *shop) showProgress(ctx context.Context) (stop func()) {
	interval, end := 2*time.Second, "\n"
	terminal := isatty.IsTerminal(os.Stdout.Fd())
	if terminal {
		interval, end = 100*time.Millisecond, "\r"
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r := s.ledger.Report()
				fmt.Printf("  committed %5d   rolled back %4d   received %5d   on their way %3d %s",
					s.orders.Load(), s.rolledBack.Load(), r.Records, r.Lost, end)
			case <-ctx.Done():
				if terminal {
					fmt.Println()
				}
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func (s *shop) print(w io.Writer) {
	r := s.ledger.Report()
	quantile := func(q float64) string {
		return (time.Duration(s.latency.ValueAtQuantile(q)) * time.Microsecond).Round(100 * time.Microsecond).String()
	}
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.AppendRows([]table.Row{
		{"orders committed", s.orders.Load()},
		{"transactions rolled back", s.rolledBack.Load()},
		{"records received", r.Records},
		{"changes applied by the consumer", s.applied.Load()},
	})
	t.AppendSeparator()
	t.AppendRows([]table.Row{
		{"duplicates", r.Duplicates},
		{"lost", r.Lost},
		{"phantoms", r.Phantom},
		{"out of order", r.OutOfOrder},
		{"wrong bytes", r.WrongBytes},
	})
	t.AppendSeparator()
	t.AppendRows([]table.Row{
		{"COMMIT to consumer, p50", quantile(50)},
		{"COMMIT to consumer, p99", quantile(99)},
	})
	fmt.Fprintln(w)
	t.Render()
}

// err says whether a promise was broken.
func (s *shop) err() error {
	r := s.ledger.Report()
	if err := r.Err(); err != nil {
		return fmt.Errorf("a promise was broken: %w", err)
	}
	if applied := s.applied.Load(); applied != s.orders.Load() {
		return fmt.Errorf("the consumer applied %d changes for %d orders", applied, s.orders.Load())
	}
	return nil
}
