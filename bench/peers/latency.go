package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/pombo-cdc/pombo/bench/rig"
)

// The columns of the latency.
const (
	p50    = "p50 ms"
	p99    = "p99 ms"
	behind = "latest start ms"
)

const (
	// fast is in transactions a second, which all but the relay keep up with.
	fast = 1000
	// slow is the most that the relay can do.
	slow = 100
)

// trial is a contender, or the floor, at one pace.
type trial struct {
	row  *rig.Row
	pace rig.Pace
	run  func(context.Context, rig.Pace) (rig.Delivery, error)
}

// latency measures how long events take to a consumer.
func latency(ctx context.Context, s *rig.Servers, java *connect, o options) (t *rig.Table, err error) {
	t = &rig.Table{
		Title: "Latency from just before COMMIT to the consumer",
		Notes: append([]string{
			"The floor is a producer that the writer calls right after COMMIT. The latest start is how late a writer was at most.",
			fmt.Sprintf("Debezium gets %v of transactions to warm up, the others %v.", o.warmUp, rig.Lead),
		}, settings()...),
		Columns: []rig.Column{{Name: p50, Digits: 2, Spread: true}, {Name: p99, Digits: 2, Spread: true}, {Name: behind, Digits: 1}},
	}
	s.Tell("%s", t.Title)
	var outboxes [2]*rig.Outbox // the relay would publish what the others leave unmarked
	for i := range outboxes {
		if outboxes[i], err = s.Load(ctx, rig.Base); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.Drop(ctx, outboxes[i])) }()
	}
	add := func(rate int, lead time.Duration, name string, run func(context.Context, rig.Pace) (rig.Delivery, error)) trial {
		row := t.Row(fmt.Sprintf("%s transactions/s, %s", humanize.Comma(int64(rate)), name))
		return trial{row, rig.Pace{Rate: rate, Lead: lead, Duration: o.latency, Payload: rig.Base.Payload}, run}
	}
	of := func(rate int, lead time.Duration, c rig.Contender, outbox *rig.Outbox) trial {
		return add(rate, lead, c.Name(), func(ctx context.Context, p rig.Pace) (rig.Delivery, error) { return s.Latency(ctx, c, outbox, p) })
	}
	floor := func(ctx context.Context, p rig.Pace) (rig.Delivery, error) { return s.Floor(ctx, outboxes[0], p) }
	return t, deliver(ctx, s, o.rounds, []trial{
		add(fast, rig.Lead, "floor", floor),
		of(fast, rig.Lead, rig.Pombo{}, outboxes[0]),
		of(fast, o.warmUp, debezium{connect: java}, outboxes[0]),
		of(fast, o.warmUp, debezium{connect: java, poll: 10 * time.Millisecond}, outboxes[0]),
		add(slow, rig.Lead, "floor", floor),
		of(slow, rig.Lead, rig.Pombo{}, outboxes[0]),
		of(slow, rig.Lead, relay{}, outboxes[1]),
	})
}

// deliver lets the trials take turns.
func deliver(ctx context.Context, s *rig.Servers, rounds int, trials []trial) error {
	for round := range rounds {
		for _, way := range trials {
			d, err := way.run(ctx, way.pace)
			if err != nil {
				return fmt.Errorf("%s: %w", way.row.Name, err)
			}
			way.row.Add(p50, rig.Milliseconds(d.Latency.ValueAtQuantile(50)))
			way.row.Add(p99, rig.Milliseconds(d.Latency.ValueAtQuantile(99)))
			way.row.Add(behind, rig.Milliseconds(d.Behind.Microseconds()))
			s.Tell("round %d  %-52s p50 %8.2f ms", round+1, way.row.Name, rig.Milliseconds(d.Latency.ValueAtQuantile(50)))
		}
	}
	return nil
}
