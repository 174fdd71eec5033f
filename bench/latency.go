package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/dustin/go-humanize"

	"github.com/pombo-cdc/pombo/bench/rig"
)

// quantiles are those that are told, each with the ratio to the floor.
var quantiles = []float64{50, 99, 99.9}

const (
	// beyond is how many samples have to be beyond a quantile, or else it is an accident.
	beyond = 5
	behind = "latest start ms"
)

func quantileName(q float64) string { return fmt.Sprintf("p%v ms", q) }
func ratioName(q float64) string    { return fmt.Sprintf("ratio p%v", q) }

// latency measures Pombo and the floor in turns, at three rates.
func latency(ctx context.Context, s *rig.Servers, o options) (tables []*rig.Table, err error) {
	arrival := &rig.Table{
		Title: "Latency from just before COMMIT to the consumer",
		Notes: []string{"The floor is a producer that the writer calls right after COMMIT, without Pombo; ratios are to the floor.",
			fmt.Sprintf("A quantile has to have %d samples beyond it in each round. The latest start is how late a writer was at most.", beyond)},
	}
	commit := &rig.Table{
		Title:   "Duration of COMMIT, with Pombo running and with the floor",
		Columns: []rig.Column{{Name: quantileName(50), Digits: 2}, {Name: ratioName(50), Digits: 2, Spread: true}, {Name: quantileName(99), Digits: 2}, {Name: ratioName(99), Digits: 2, Spread: true}},
	}
	for _, q := range quantiles {
		arrival.Columns = append(arrival.Columns, rig.Column{Name: quantileName(q), Digits: 2}, rig.Column{Name: ratioName(q), Digits: 2, Spread: true})
	}
	arrival.Columns = append(arrival.Columns, rig.Column{Name: behind, Digits: 1})
	s.Tell("%s", arrival.Title)
	waiting, err := s.Load(ctx, rig.Base)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Drop(ctx, waiting)) }()
	trials := []trial{
		{"floor", func(p rig.Pace) (rig.Delivery, error) { return s.Floor(ctx, waiting, p) }},
		{"pombo", func(p rig.Pace) (rig.Delivery, error) { return s.Latency(ctx, rig.Pombo{}, waiting, p) }},
	}
	warm := rig.Pace{Rate: 1000, Lead: rig.Lead, Duration: o.latency, Payload: rig.Base.Payload}
	for _, way := range trials {
		if _, err := way.run(warm); err != nil {
			return nil, fmt.Errorf("warm-up of %s: %w", way.name, err)
		}
	}
	for _, perSecond := range []int{100, 1000, 2000} {
		pace := rig.Pace{Rate: perSecond, Lead: rig.Lead, Duration: o.latency, Payload: rig.Base.Payload}
		if err := latencyAt(s, o.rounds, pace, trials, arrival, commit); err != nil {
			return nil, err
		}
	}
	return []*rig.Table{arrival, commit}, nil
}

// trial is the floor or a contender.
type trial struct {
	name string
	run  func(rig.Pace) (rig.Delivery, error)
}

// latencyAt adds a rate's rows to both tables, the floor's first.
func latencyAt(s *rig.Servers, rounds int, pace rig.Pace, trials []trial, arrival, commit *rig.Table) error {
	var arrivals, commits []*rig.Row
	for _, way := range trials {
		name := fmt.Sprintf("%s transactions/s, %s", humanize.Comma(int64(pace.Rate)), way.name)
		arrivals, commits = append(arrivals, arrival.Row(name)), append(commits, commit.Row(name))
	}
	for round := range rounds {
		for i, way := range trials {
			d, err := way.run(pace)
			if err != nil {
				return fmt.Errorf("%s: %w", arrivals[i].Name, err)
			}
			addQuantiles(arrivals[i], d.Latency)
			addQuantiles(commits[i], d.Commit)
			arrivals[i].Add(behind, rig.Milliseconds(d.Behind.Microseconds()))
			s.Tell("round %d  %-32s p50 %6.2f ms", round+1, arrivals[i].Name, rig.Milliseconds(d.Latency.ValueAtQuantile(50)))
		}
	}
	for i := range trials {
		for _, q := range quantiles {
			arrivals[i].Compare(ratioName(q), quantileName(q), arrivals[0])
			commits[i].Compare(ratioName(q), quantileName(q), commits[0])
		}
	}
	return nil
}

func addQuantiles(r *rig.Row, h *hdrhistogram.Histogram) {
	for _, q := range quantiles {
		if float64(h.TotalCount())*(100-q)/100 >= beyond {
			r.Add(quantileName(q), rig.Milliseconds(h.ValueAtQuantile(q)))
		}
	}
}
