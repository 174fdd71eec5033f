// The benchmark of the peers measures Pombo beside what else moves an outbox to Kafka: Debezium, and the polling relay that
// teams write themselves. All take turns in one run, on one machine with the servers beside them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pombo-cdc/pombo/bench/rig"
)

// options are the sizes of what is measured.
type options struct {
	rounds      int
	events      int           // to drain
	relayEvents int           // for the relay to drain
	latency     time.Duration // of each contender and round
	warmUp      time.Duration // of Debezium before its latency counts
}

func main() {
	var o options
	output := flag.String("output", "bench/results/peers.json", "file for all figures as JSON")
	flag.IntVar(&o.rounds, "rounds", 3, "rounds, of which the median counts")
	flag.IntVar(&o.events, "events", 500_000, "events to drain")
	flag.IntVar(&o.relayEvents, "relay-events", 1_500, "events for the relay to drain, which takes a second for a hundred")
	flag.DurationVar(&o.latency, "latency", 8*time.Second, "time to write for each contender in each round")
	flag.DurationVar(&o.warmUp, "warm-up", 20*time.Second, "time to write before the latency of Debezium counts, while Java compiles")
	flag.Parse()

	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := bench(ctx, o, *output)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-peers:", err)
		os.Exit(1)
	}
}

// bench reports what there is, also if something fails.
func bench(ctx context.Context, o options, output string) (err error) {
	if o.rounds < 1 {
		return errors.New("-rounds has to be 1 or more")
	}
	runtime, err := fetchConnect(ctx, os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, runtime.close()) }()
	servers, err := rig.StartServers(ctx, os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	report := rig.Report{Origin: servers.Origin(), Rounds: o.rounds}
	for _, measure := range []func(context.Context, *rig.Servers, *connect, options) (*rig.Table, error){drain, latency} {
		t, failed := measure(ctx, servers, runtime, o)
		if err = failed; err != nil {
			break
		}
		report.Tables = append(report.Tables, t)
	}
	report.Print(os.Stdout)
	return errors.Join(err, report.Write(output))
}

// settings are what each contender got.
func settings() []string {
	return []string{"Pombo: its defaults.", debeziumSettings(), relaySettings}
}
