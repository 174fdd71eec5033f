// The benchmark measures how fast Pombo drains a slot that waits, beside pg_recvlogical, which reads the same slot from the same
// position, decodes as much and writes to /dev/null. Both take turns in one run, on one machine with the
// servers beside them, so the ratio is what counts.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"golang.org/x/sync/errgroup"

	"github.com/pombo-cdc/pombo/integration/stack"
)

type options struct {
	events, payload, perTransaction, rounds int
	compression                             []string
	output                                  string
}

func main() {
	var o options
	var codecs string
	flag.IntVar(&o.events, "events", 500_000, "events to drain")
	flag.IntVar(&o.payload, "payload", 300, "bytes of an event's payload")
	flag.IntVar(&o.perTransaction, "per-transaction", 10, "events of a transaction")
	flag.IntVar(&o.rounds, "rounds", 3, "rounds, of which the median counts")
	flag.StringVar(&codecs, "compression", "lz4,none", "codecs to measure, comma separated")
	flag.StringVar(&o.output, "output", "bench/results/drain.json", "file for the figures as JSON")
	flag.Parse()
	o.compression = strings.Split(codecs, ",")

	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// result is everything that a run has measured.
type result struct {
	Machine  string  `json:"machine"`
	Postgres string  `json:"postgres"`
	Kafka    string  `json:"kafka"`
	Events   int     `json:"events"`
	Payload  int     `json:"payload_bytes"`
	Size     int     `json:"events_per_transaction"`
	Drains   []drain `json:"drains"`
}

// drain is one way to read the slot, with a figure a round.
type drain struct {
	Name   string    `json:"name"`
	Rates  []float64 `json:"events_per_second"`
	CPU    []float64 `json:"cpu_microseconds_per_event"`
	Memory []float64 `json:"peak_resident_mib"`
}

func run(ctx context.Context, o options) error {
	var servers bench
	defer servers.close()
	group, starting := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		servers.postgres, err = stack.StartPostgres(starting, stack.PostgresOptions{Log: os.Stderr, Settings: map[string]string{"max_wal_size": "8GB"}})
		return err
	})
	group.Go(func() (err error) {
		servers.kafka, err = stack.StartKafka(starting, stack.KafkaOptions{Log: os.Stderr, Optimize: true})
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "writing %d events of %d bytes, %d a transaction\n", o.events, o.payload, o.perTransaction)
	if err := servers.load(ctx, o); err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	r := result{
		Machine:  fmt.Sprintf("%d cores, %s/%s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH),
		Postgres: servers.postgres.Origin(), Kafka: servers.kafka.Origin(),
		Events: o.events, Payload: o.payload, Size: o.perTransaction,
		Drains: []drain{{Name: reference}},
	}
	for _, codec := range o.compression {
		r.Drains = append(r.Drains, drain{Name: "pombo, " + codec})
	}
	for round := range o.rounds + 1 {
		for i := range r.Drains {
			m, err := servers.measure(ctx, o, i, round)
			if err != nil {
				return fmt.Errorf("%s: %w", r.Drains[i].Name, err)
			}
			d := &r.Drains[i]
			if round == 0 { // warms caches up, and the broker's compiler
				fmt.Fprintf(os.Stderr, "warm-up  %-15s %8.0f events/s\n", d.Name, float64(o.events)/m.took.Seconds())
				continue
			}
			d.Rates = append(d.Rates, float64(o.events)/m.took.Seconds())
			d.CPU = append(d.CPU, m.cpu.Seconds()*1e6/float64(o.events))
			d.Memory = append(d.Memory, float64(m.memory)/(1<<20))
			fmt.Fprintf(os.Stderr, "round %d  %-15s %8.0f events/s\n", round, d.Name, d.Rates[round-1])
		}
	}
	r.print()
	return r.write(o.output)
}

func median(figures []float64) float64 {
	sorted := slices.Sorted(slices.Values(figures))
	return sorted[len(sorted)/2]
}

// ratios are those of each round, so that a machine that drifts does not count.
func (r *result) ratios(d drain) []float64 {
	all := make([]float64, len(d.Rates))
	for i := range d.Rates {
		all[i] = d.Rates[i] / r.Drains[0].Rates[i]
	}
	return all
}

func (r *result) print() {
	t := table.NewWriter()
	t.SetOutputMirror(os.Stdout)
	t.SetStyle(table.StyleLight)
	t.SetTitle("Drain of %d events of %d bytes, %d a transaction; medians of %d rounds\n%s; %s; %s",
		r.Events, r.Payload, r.Size, len(r.Drains[0].Rates), r.Machine, r.Postgres, r.Kafka)
	t.AppendHeader(table.Row{"", "events/s", "ratio", "ratio min–max", "CPU µs/event", "peak MiB"})
	for _, d := range r.Drains {
		ratios := r.ratios(d)
		t.AppendRow(table.Row{
			d.Name,
			fmt.Sprintf("%.0f", median(d.Rates)),
			fmt.Sprintf("%.2f", median(ratios)),
			fmt.Sprintf("%.2f–%.2f", slices.Min(ratios), slices.Max(ratios)),
			fmt.Sprintf("%.2f", median(d.CPU)),
			fmt.Sprintf("%.0f", median(d.Memory)),
		})
	}
	t.Render()
}

func (r *result) write(path string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o600)
}

// measurement is one drain.
type measurement struct {
	took   time.Duration
	cpu    time.Duration // of the process that reads, user and system
	memory int64         // peak resident, bytes
}
