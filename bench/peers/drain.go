package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"

	"github.com/pombo-cdc/pombo/bench/rig"
)

// The columns of the drain.
const (
	rate        = "events/s"
	ratio       = "of Pombo's"
	cpu         = "CPU µs/event"
	databaseCPU = "database CPU µs/event"
	memory      = "peak MiB"
	startTime   = "start s"
)

// entrant is what takes its turn in every round.
type entrant struct {
	row *rig.Row
	run func(context.Context) (rig.Measurement, error)
}

// drain measures how fast each contender publishes events that wait.
func drain(ctx context.Context, s *rig.Servers, java *connect, o options) (t *rig.Table, err error) {
	t = &rig.Table{
		Title: fmt.Sprintf("Drain of %s events of %d bytes, %d a transaction; of %s events for the relay",
			humanize.Comma(int64(o.events)), rig.Base.Payload, rig.Base.PerTransaction, humanize.Comma(int64(o.relayEvents))),
		Notes: append([]string{
			"The start of a process lasts until its first record is in the topic, and counts in no other column.",
			"The database's CPU is that of the walsender, or of the backend that is polled. The relay's first poll comes without a pause.",
		}, settings()...),
		Columns: []rig.Column{{Name: rate}, {Name: ratio, Digits: 4, Spread: true}, {Name: cpu, Digits: 2}, {Name: databaseCPU, Digits: 2}, {Name: memory}, {Name: startTime, Digits: 1}},
	}
	s.Tell("%s", t.Title)
	shape := rig.Base
	shape.Events = o.events
	waiting, err := s.Load(ctx, shape)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Drop(ctx, waiting)) }()
	shape.Events = o.relayEvents
	onWaiting := func(c rig.Contender) entrant {
		return entrant{t.Row(c.Name()), func(ctx context.Context) (rig.Measurement, error) { return s.Drain(ctx, c, waiting) }}
	}
	onFew := func(c rig.Contender) entrant {
		return entrant{t.Row(c.Name()), func(ctx context.Context) (rig.Measurement, error) { return drainOnce(ctx, s, c, shape) }}
	}
	pombo := onWaiting(rig.Pombo{})
	if _, err := pombo.run(ctx); err != nil { // has the broker's compiler work
		return nil, fmt.Errorf("warm-up: %w", err)
	}
	entrants := []entrant{pombo, onWaiting(debezium{connect: java}), onFew(relay{}), onFew(relay{again: true})}
	return t, turns(ctx, s, o.rounds, entrants)
}

// drainOnce drains an outbox of its own, because a relay marks what it has published.
func drainOnce(ctx context.Context, s *rig.Servers, c rig.Contender, shape rig.Shape) (m rig.Measurement, err error) {
	o, err := s.Load(ctx, shape)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, s.Drop(ctx, o)) }()
	return s.Drain(ctx, c, o)
}

// turns lets the entrants take turns. Ratios are to the first.
func turns(ctx context.Context, s *rig.Servers, rounds int, entrants []entrant) error {
	for round := range rounds {
		for _, e := range entrants {
			m, err := e.run(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", e.row.Name, err)
			}
			running := m.Running()
			if running.Events <= 0 {
				return fmt.Errorf("%s: all events were published at once: give it more", e.row.Name)
			}
			s.Tell("round %d  %-24s %9s events/s", round+1, e.row.Name, humanize.Comma(int64(running.Rate())))
			e.row.Add(rate, running.Rate())
			e.row.Add(cpu, running.CPU())
			e.row.Add(memory, m.Memory())
			e.row.Add(startTime, m.First.Took.Seconds())
			if m.Sender > 0 {
				e.row.Add(databaseCPU, m.SenderCPU())
			}
		}
	}
	for _, e := range entrants {
		e.row.Compare(ratio, rate, entrants[0].row)
	}
	return nil
}
