// Chaos runs Pombo while everything around it fails at random, and checks what it promises: sixteen writers on fifty aggregates,
// two instances of pombo of which one stands by, a Postgres, three brokers, and a network between them that each get
// their share of faults. It ends with a table on standard error, the run's record as JSON on standard output, and exit
// code 1 if a promise was broken.
//
// Which faults come, in which order and after which pause is derived from the seed alone (see plan), so a failure can be
// looked for again. How threads and packets meet them is not.
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
)

func main() {
	duration := flag.Duration("duration", 10*time.Minute, "how long to write")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the faults")
	rate := flag.Int("rate", 100, "transactions a second; one has three events on average")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *seed, *duration, *rate)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// run reports on a run that came to its end, and otherwise says why it did not.
func run(ctx context.Context, seed uint64, duration time.Duration, rate int) (err error) {
	s, err := openStage(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(err != nil)) }()
	rec := newRecord(seed, duration, s)
	stopProgress := s.showProgress(ctx, rec)
	played := s.play(ctx, rec, rate)
	stopProgress()
	if err := rec.finish(s, played); err != nil {
		return err
	}
	return rec.verdict(played)
}
