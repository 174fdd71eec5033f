package decoder

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// orderMessage is an event of 300 bytes of payload.
func orderMessage() []byte {
	return insertMessage(outboxID, "6e0c2d1e-8f0c-4a55-9a55-3f2f6f4f9b11", "Order", "42", "OrderCreated", strings.Repeat("x", 300))
}

func TestDecodingDoesNotAllocate(t *testing.T) {
	layout := outboxLayout()
	d := started(t, layout, outboxRelation())
	pool := NewPool(16<<20, layout)
	begin, insert, commit := beginMessage(), orderMessage(), commitMessage(0x2000)
	_, err := d.Decode(commit, nil)
	require.NoError(t, err)

	transaction := func() {
		b := acquire(pool)
		for _, msg := range [][]byte{begin, insert, insert, insert, commit} {
			if _, err := d.Decode(msg, b); err != nil {
				t.Error(err)
			}
		}
		if string(b.Event(2).Column(AggregateID)) != "42" || b.Event(2).CommitMillis() == 0 {
			t.Error("the event is lost")
		}
		pool.Recycle(b)
	}
	for range Batches {
		transaction() // the first time each batch takes its memory
	}
	require.Zero(t, testing.AllocsPerRun(10*Batches, transaction))
}

// acquire takes a free batch for a small row.
func acquire(pool *Pool) *Batch {
	b := <-pool.Free()
	pool.Prepare(b, 0)
	return b
}

func BenchmarkDecode(b *testing.B) {
	layout := outboxLayout()
	d := started(b, layout, outboxRelation())
	pool := NewPool(16<<20, layout)
	msg := orderMessage()
	batch := acquire(pool)
	b.SetBytes(int64(len(msg)))
	b.ReportAllocs()
	for b.Loop() {
		outcome, err := d.Decode(msg, batch)
		if outcome == Full {
			pool.Recycle(batch)
			batch = acquire(pool)
			outcome, err = d.Decode(msg, batch)
		}
		if outcome != Row || err != nil {
			b.Fatal(outcome, err)
		}
	}
}
