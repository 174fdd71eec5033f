package main

import (
	"context"
	"errors"
	"time"

	"github.com/pombo-cdc/pombo/bench/rig"
)

const share = "CPU % of a core"

// idle measures what Pombo takes while nothing is to be published.
func idle(ctx context.Context, s *rig.Servers, o options) (tables []*rig.Table, err error) {
	t := &rig.Table{Title: "Pombo without events", Columns: []rig.Column{{Name: share, Digits: 2, Spread: true}}}
	s.Tell("%s", t.Title)
	waiting, err := s.Load(ctx, rig.Base)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Drop(ctx, waiting)) }()
	for _, c := range []struct {
		name string
		pace rig.Pace
	}{
		{"nothing is written", rig.Pace{Duration: o.idle / time.Duration(o.rounds)}},
		{"1,000 transactions/s on another table", rig.Pace{Duration: o.idle / time.Duration(2*o.rounds), Rate: 1000, Payload: rig.Base.Payload}},
	} {
		shares, err := s.Idle(ctx, rig.Pombo{}, waiting, o.rounds, c.pace)
		if err != nil {
			return nil, err
		}
		row := t.Row(c.name)
		for _, part := range shares {
			row.Add(share, 100*part)
		}
	}
	return []*rig.Table{t}, nil
}
