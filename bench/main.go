// The benchmark measures Pombo beside what bounds it: the drain of a slot beside pg_recvlogical, the latency beside a
// producer that is called right after COMMIT, and each kind of event beside a base case. All that is compared takes turns in
// one run, on one machine with the servers beside it, so that the ratios are what counts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pombo-cdc/pombo/bench/rig"
)

// options are the sizes of the suites.
type options struct {
	rounds      int
	events      int           // of the main drain
	shapeEvents int           // of the drains in other transactions
	scaleEvents int           // of each case of scale
	latency     time.Duration // of each rate and round
	idle        time.Duration
}

// suite measures one thing.
type suite struct {
	name string
	run  func(context.Context, *rig.Servers, options) ([]*rig.Table, error)
}

var suites = []suite{{"drain", drain}, {"latency", latency}, {"scale", scale}, {"idle", idle}}

func main() {
	var o options
	var chosen []string
	for _, s := range suites {
		chosen = append(chosen, s.name)
	}
	names := flag.String("suite", strings.Join(chosen, ","), "suites to run")
	output := flag.String("output", "bench/results/bench.json", "file for all figures as JSON")
	flag.IntVar(&o.rounds, "rounds", 3, "rounds, of which the median counts")
	flag.IntVar(&o.events, "events", 500_000, "events to drain")
	flag.IntVar(&o.shapeEvents, "shape-events", 200_000, "events to drain in transactions of one and of 10,000")
	flag.IntVar(&o.scaleEvents, "scale-events", 100_000, "events of each case of scale")
	flag.DurationVar(&o.latency, "latency", 5*time.Second, "time to write at each rate in each round")
	flag.DurationVar(&o.idle, "idle", 21*time.Second, "time to be idle in all rounds")
	flag.Parse()

	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := bench(ctx, strings.Split(*names, ","), o, *output)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench reports what there is, also if a suite fails.
func bench(ctx context.Context, names []string, o options, output string) (err error) {
	if o.rounds < 1 {
		return errors.New("-rounds has to be 1 or more")
	}
	chosen, err := choose(names)
	if err != nil {
		return err
	}
	servers, err := rig.StartServers(ctx, os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	report := rig.Report{Origin: servers.Origin(), Rounds: o.rounds}
	err = measure(ctx, servers, chosen, o, &report)
	report.Print(os.Stdout)
	return errors.Join(err, report.Write(output))
}

func measure(ctx context.Context, servers *rig.Servers, chosen []suite, o options, report *rig.Report) error {
	for _, s := range chosen {
		began := time.Now()
		tables, err := s.run(ctx, servers, o)
		if ctx.Err() != nil {
			return context.Cause(ctx) // and not what could not be cleaned up any more
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		report.Tables = append(report.Tables, tables...)
		servers.Tell("%s took %v", s.name, time.Since(began).Round(time.Second))
	}
	return nil
}

func choose(names []string) (chosen []suite, err error) {
	for _, name := range names {
		i := slices.IndexFunc(suites, func(s suite) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no suite %q", name)
		}
		chosen = append(chosen, suites[i])
	}
	return chosen, nil
}
