package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"

	"github.com/pombo-cdc/pombo/bench/rig"
)

// scaleBytes bound what large payloads take of the disk.
const scaleBytes = 400 << 20

// scale changes one dimension of the base case at a time.
func scale(ctx context.Context, s *rig.Servers, o options) (tables []*rig.Table, err error) {
	t := &rig.Table{
		Title: fmt.Sprintf("Drain of %s events, but of %d MiB at most, in cases that differ from the base case in one thing",
			humanize.Comma(int64(o.scaleEvents)), scaleBytes>>20),
		Notes:   []string{"Ratios are to the base case."},
		Columns: []rig.Column{{Name: rate}, {Name: ratio, Digits: 2, Spread: true}, {Name: cpu, Digits: 2}, {Name: cpuRatio, Digits: 2, Spread: true}, {Name: memory}},
	}
	if err := warmUp(ctx, s, []string{defaultCodec}, false); err != nil {
		return nil, err
	}
	s.Tell("%s", t.Title)
	var loaded []*rig.Outbox
	defer func() {
		for _, waiting := range loaded {
			err = errors.Join(err, s.Drop(ctx, waiting))
		}
	}()
	var entrants []entrant
	for _, c := range scaleCases() {
		shape := rig.Base
		shape.Events = o.scaleEvents
		c.change(&shape)
		shape.Events = min(shape.Events, scaleBytes/shape.Payload)
		waiting, err := s.Load(ctx, shape)
		if err != nil {
			return nil, err
		}
		loaded = append(loaded, waiting)
		entrants = append(entrants, entrant{t.Row(c.name), t.Rows[0], func(ctx context.Context) (rig.Measurement, error) {
			return s.Drain(ctx, rig.Pombo{}, waiting)
		}})
	}
	if err := turns(ctx, s, o.rounds, entrants); err != nil {
		return nil, err
	}
	for _, r := range t.Rows {
		r.Compare(cpuRatio, cpu, t.Rows[0])
	}
	return []*rig.Table{t}, nil
}

// cpuRatio is that of the processor time of an event.
const cpuRatio = "CPU ratio"

type scaleCase struct {
	name   string
	change func(*rig.Shape)
}

// scaleCases begin with the base case.
func scaleCases() []scaleCase {
	return []scaleCase{
		{"base: 1 topic, 4 partitions, 300 B, 10,000 keys", func(*rig.Shape) {}},
		{"16 topics of 4 partitions", func(s *rig.Shape) { s.Topics = 16 }},
		{"256 topics of 1 partition", func(s *rig.Shape) { s.Topics, s.Partitions = 256, 1 }},
		{"256 partitions", func(s *rig.Shape) { s.Partitions = 256 }},
		{"100 B", func(s *rig.Shape) { s.Payload = 100 }},
		{"1 KB", func(s *rig.Shape) { s.Payload = 1_000 }},
		{"100 KB", func(s *rig.Shape) { s.Payload = 100_000 }},
		{"10 keys", func(s *rig.Shape) { s.Keys = 10 }},
		{"a key for each event", func(s *rig.Shape) { s.Keys = s.Events }},
	}
}
