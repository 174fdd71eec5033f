package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"

	"github.com/pombo-cdc/pombo/bench/rig"
)

const (
	defaultCodec = "lz4"
	warmUpEvents = 100_000
)

// The columns of a drain.
const (
	rate      = "events/s"
	ratio     = "ratio"
	cpu       = "CPU µs/event"
	senderCPU = "walsender CPU µs/event"
	memory    = "peak MiB"
)

// entrant is what takes its turn in every round.
type entrant struct {
	row       *rig.Row
	reference *rig.Row
	run       func(context.Context) (rig.Measurement, error)
}

// turns lets the entrants take turns.
func turns(ctx context.Context, s *rig.Servers, rounds int, entrants []entrant) error {
	for round := range rounds {
		for _, e := range entrants {
			m, err := e.run(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", e.row.Name, err)
			}
			s.Tell("round %d  %-48s %9s events/s", round+1, e.row.Name, humanize.Comma(int64(m.Rate())))
			e.row.Add(rate, m.Rate())
			e.row.Add(cpu, m.CPU())
			e.row.Add(memory, m.Memory())
			if m.Sender > 0 {
				e.row.Add(senderCPU, m.SenderCPU())
			}
		}
	}
	for _, e := range entrants {
		e.row.Compare(ratio, rate, e.reference)
	}
	return nil
}

// drain measures transactions of three sizes.
func drain(ctx context.Context, s *rig.Servers, o options) (tables []*rig.Table, err error) {
	all, two := []string{defaultCodec, "none", "snappy", "zstd"}, []string{defaultCodec, "none"}
	if err := warmUp(ctx, s, all, true); err != nil {
		return nil, err
	}
	for _, d := range []struct {
		events, perTransaction int
		codecs                 []string
		socket                 bool
	}{
		{o.events, rig.Base.PerTransaction, all, true},
		{o.shapeEvents, 1, two, false},
		{o.shapeEvents, 10_000, two, false},
	} {
		shape := rig.Base
		shape.Events, shape.PerTransaction = d.events, d.perTransaction
		t, err := drainShape(ctx, s, o.rounds, shape, d.codecs, d.socket)
		if err != nil {
			return nil, err
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// warmUp fills caches and has the broker's compiler work. Its table is thrown away.
func warmUp(ctx context.Context, s *rig.Servers, codecs []string, socket bool) error {
	shape := rig.Base
	shape.Events = warmUpEvents
	s.Tell("Warm-up, which does not count:")
	_, err := drainShape(ctx, s, 1, shape, codecs, socket)
	return err
}

func drainShape(ctx context.Context, s *rig.Servers, rounds int, shape rig.Shape, codecs []string, socket bool) (t *rig.Table, err error) {
	t = &rig.Table{
		Title: fmt.Sprintf("Drain of %s events of %d bytes, %s a transaction",
			humanize.Comma(int64(shape.Events)), shape.Payload, humanize.Comma(int64(shape.PerTransaction))),
		Notes:   []string{"The ratio is that of events/s to pg_recvlogical."},
		Columns: []rig.Column{{Name: rate}, {Name: ratio, Digits: 2, Spread: true}, {Name: cpu, Digits: 2}, {Name: senderCPU, Digits: 2}, {Name: memory}},
	}
	s.Tell("%s", t.Title)
	waiting, err := s.Load(ctx, shape)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Drop(ctx, waiting)) }()
	entrants := beside(t, s, waiting, "", codecs)
	if socket {
		local, ok := s.OverSocket(waiting)
		if ok {
			entrants = append(entrants, beside(t, s, local, ", Unix socket", []string{defaultCodec})...)
		} else {
			t.Notes = append(t.Notes, "The Unix socket of this Postgres cannot be reached, and is left out.")
		}
	}
	return t, turns(ctx, s, rounds, entrants)
}

// beside has Pombo with each codec drain an outbox beside the reference.
func beside(t *rig.Table, s *rig.Servers, waiting *rig.Outbox, way string, codecs []string) []entrant {
	reference := t.Row("pg_recvlogical" + way)
	entrants := []entrant{{reference, reference, func(ctx context.Context) (rig.Measurement, error) { return s.Receive(ctx, waiting) }}}
	for _, codec := range codecs {
		c := rig.Pombo{Compression: codec}
		entrants = append(entrants, entrant{t.Row(c.Name() + way), reference, func(ctx context.Context) (rig.Measurement, error) { return s.Drain(ctx, c, waiting) }})
	}
	return entrants
}
