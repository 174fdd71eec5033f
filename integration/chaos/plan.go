package main

import (
	"math/rand/v2"
	"time"
)

// fault is one thing that goes wrong.
type fault struct {
	after  time.Duration // pause since the one before on the same track
	kind   *kind
	target int           // of several: taken modulo their number
	lasts  time.Duration // 0 where it does not last
}

// kind is what can go wrong, and how it is done.
type kind struct {
	name    string
	weight  int           // how often it comes, beside the others of its track
	longest time.Duration // how long it may last; 0 is none of its own
	inflict func(*act) error
}

// shortest is how long a fault lasts that lasts.
const shortest = 500 * time.Millisecond

// track is a sequence of faults that come one at a time. Tracks run side by side, so that faults of different tracks meet.
type track struct {
	name           string
	soonest, pause time.Duration // between two faults: so long at least, and up to so much longer
	kinds          []kind
}

// plan derives the faults of a track from the seed: enough for a run of that duration, should none of them take any time.
func (t *track) plan(seed uint64, number int, duration time.Duration) (faults []fault) {
	random := rand.New(rand.NewPCG(seed, uint64(number)))
	total := 0
	for _, k := range t.kinds {
		total += k.weight
	}
	for at := time.Duration(0); at < duration; {
		f := fault{after: t.soonest + time.Duration(random.Int64N(int64(t.pause)))}
		chosen := random.IntN(total)
		for i := range t.kinds {
			if f.kind = &t.kinds[i]; chosen < f.kind.weight {
				break
			}
			chosen -= f.kind.weight
		}
		f.target = random.IntN(1 << 16)
		length := random.Float64() // drawn for every kind, so that another limit of one kind does not change the rest
		if f.kind.longest > 0 {
			f.lasts = shortest + time.Duration(length*float64(f.kind.longest-shortest))
		}
		faults = append(faults, f)
		at += f.after
	}
	return faults
}
