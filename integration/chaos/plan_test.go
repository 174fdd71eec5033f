package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// planned is a fault without what cannot be compared.
type planned struct {
	after, lasts time.Duration
	kind         string
	target       int
}

func plan(t *track, seed uint64, number int) (all []planned) {
	for _, f := range t.plan(seed, number, 10*time.Minute) {
		all = append(all, planned{f.after, f.lasts, f.kind.name, f.target})
	}
	return all
}

func TestThePlanFollowsFromTheSeedAlone(t *testing.T) {
	for number, track := range tracks() {
		first := plan(&track, 1, number)
		require.Equal(t, first, plan(&track, 1, number))
		require.NotEqual(t, first, plan(&track, 2, number))

		seen := make(map[string]bool)
		total := time.Duration(0)
		for _, f := range first {
			seen[f.kind] = true
			total += f.after
			require.GreaterOrEqual(t, f.after, track.soonest)
		}
		require.GreaterOrEqual(t, total, 10*time.Minute, "there are enough for the whole run")
		require.Len(t, seen, len(track.kinds), "ten minutes have a fault of every kind")
	}
}
