package sink

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A queue does what a slice does.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue[*int]
		var want []*int
		t.Repeat(map[string]func(*rapid.T){
			"push": func(*rapid.T) {
				v := new(int)
				q.push(v)
				want = append(want, v)
			},
			"pop": func(t *rapid.T) {
				n := rapid.IntRange(0, len(want)).Draw(t, "n")
				q.pop(n)
				want = want[n:]
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(want), q.len())
				for i, v := range want {
					require.Same(t, v, q.at(i))
				}
				for _, v := range append(q.items[:q.head:q.head], q.items[len(q.items):cap(q.items)]...) {
					require.Nil(t, v, "what has been popped can be collected")
				}
			},
		})
	})
}

// A queue in steady use keeps the memory it has.
func TestQueueDoesNotGrow(t *testing.T) {
	var q queue[int]
	for range 8 {
		q.push(1)
	}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		q.pop(3)
		for range 3 {
			q.push(1)
		}
	}))
}
