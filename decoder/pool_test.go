package decoder

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// rowOf returns an insert whose row has n bytes, at least those of five empty values.
func rowOf(n int) []byte {
	fill := n - len(tupleData("", "", "", "", ""))
	return insertMessage(outboxID, "", "", "", "", strings.Repeat("x", fill))
}

// take returns a batch that is free now.
func take(t require.TestingT, pool *Pool) *Batch {
	require.NotZero(t, pool.Available())
	return <-pool.Free()
}

func TestFullBatchTellsWhatTheRowNeeds(t *testing.T) {
	d := started(t, outboxLayout(), outboxRelation())
	b := emptyBatch(outboxLayout(), 100)
	decodeRow(t, d, rowOf(60), b)
	decodeRow(t, d, rowOf(40), b)
	require.Equal(t, 100, b.Bytes())

	for _, batch := range []*Batch{b, nil} {
		outcome, err := d.Decode(rowOf(30), batch)
		require.NoError(t, err)
		require.Equal(t, Full, outcome)
		require.Equal(t, 30, d.Need())
	}
	require.Equal(t, 2, b.Len())
}

func TestArenaStaysWhereItIs(t *testing.T) {
	d := started(t, outboxLayout(), outboxRelation())
	b := emptyBatch(outboxLayout(), 1<<10)
	first := decodeRow(t, d, insertMessage(outboxID, "1", "Order", "42", "E", "{}"), b)
	memory := unsafe.SliceData(first.Column(ID))
	for {
		outcome, err := d.Decode(rowOf(30), b)
		require.NoError(t, err)
		if outcome == Full {
			break
		}
	}
	require.Same(t, memory, unsafe.SliceData(b.Event(0).Column(ID)))
	require.Equal(t, []any{"1", "Order", "42", "E", "{}"}, values(first))
}

func TestRowLargerThanTheArena(t *testing.T) {
	layout := outboxLayout()
	d := started(t, layout, outboxRelation())
	pool := NewPool(100*Batches, layout)
	b := take(t, pool)
	for range 3 {
		require.False(t, pool.Prepare(b, 301))
		b.Lend(take(t, pool))
	}
	require.True(t, pool.Prepare(b, 301), "four arenas pay for it")
	home := unsafe.SliceData(b.arena)
	e := decodeRow(t, d, rowOf(301), b)
	require.Equal(t, strings.Repeat("x", 301-len(tupleData("", "", "", "", ""))), string(e.Column(Payload)))
	outcome, err := d.Decode(rowOf(27), b)
	require.NoError(t, err)
	require.Equal(t, Full, outcome, "it travels alone")
	require.Equal(t, Batches-4, pool.Available())

	b.LSN = 7
	pool.Recycle(b)
	require.Equal(t, Batches, pool.Available())
	require.Same(t, home, unsafe.SliceData(b.arena), "the large memory is let go")
	require.Equal(t, 100, cap(b.arena))
	require.Zero(t, b.LSN)
	require.Zero(t, b.Len())
	require.Zero(t, b.Bytes())
	require.Empty(t, b.reserve)

	decodeRow(t, d, rowOf(69), b)
	e = decodeRow(t, d, insertMessage(outboxID, "1", "", "", "E", "{}"), b)
	require.Equal(t, 100, b.Bytes(), "and the batch is as before")
	require.Equal(t, []any{"1", "", "", "E", "{}"}, values(e))
}

func TestRowLargerThanTheBudget(t *testing.T) {
	layout := outboxLayout()
	d := started(t, layout, outboxRelation())
	pool := NewPool(100*Batches, layout)
	b := take(t, pool)
	for !pool.Prepare(b, 1<<20) {
		b.Lend(take(t, pool))
	}
	require.Zero(t, pool.Available(), "nothing else is under way")
	decodeRow(t, d, rowOf(1<<20), b)
	pool.Recycle(b)
	require.Equal(t, Batches, pool.Available())
	require.Equal(t, 100, cap(b.arena))
}

func TestMemoryIsTakenWhenABatchIsFirstUsed(t *testing.T) {
	pool := NewPool(100*Batches, outboxLayout())
	b := take(t, pool)
	require.Zero(t, cap(b.arena))
	require.True(t, pool.Prepare(b, 100))
	require.Equal(t, 100, cap(b.arena))
}

// circulation drives a pool as the receiving goroutine does, with a sender that releases batches
// in the order it got them.
type circulation struct {
	t       *rapid.T
	pool    *Pool
	decoder *Decoder
	batch   *Batch   // being filled
	filled  []*Batch // with the sender
}

// free takes a batch. The receiver may wait only if the sender has one to release.
func (c *circulation) free() *Batch {
	for {
		select {
		case b := <-c.pool.Free():
			return b
		default:
			if len(c.filled) == 0 {
				c.t.Fatal("deadlock: nothing is free and nothing will be")
			}
			c.release()
		}
	}
}

func (c *circulation) release() {
	if len(c.filled) > 0 {
		c.pool.Recycle(c.filled[0])
		c.filled = c.filled[1:]
	}
}

func (c *circulation) handOver() {
	if c.batch != nil {
		c.filled, c.batch = append(c.filled, c.batch), nil
	}
}

func (c *circulation) add(row []byte) {
	outcome, err := c.decoder.Decode(row, c.batch)
	require.NoError(c.t, err)
	if outcome == Full {
		c.handOver()
		b := c.free()
		for !c.pool.Prepare(b, c.decoder.Need()) {
			b.Lend(c.free())
		}
		c.batch = b
		outcome, err = c.decoder.Decode(row, b)
		require.NoError(c.t, err)
	}
	require.Equal(c.t, Row, outcome)
}

// check holds the memory of the rows against the budget. A single batch may exceed it.
func (c *circulation) check(budget int) {
	under := c.filled
	if c.batch != nil {
		under = append(under[:len(under):len(under)], c.batch)
	}
	memory, batches := 0, c.pool.Available()
	for _, b := range under {
		memory += cap(b.arena)
		batches += 1 + len(b.reserve)
	}
	require.Equal(c.t, Batches, batches, "no batch is lost or doubled")
	if len(under) > 1 {
		require.LessOrEqual(c.t, memory, budget)
	}
}

func TestBudgetHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.IntRange(1, 100*Batches).Draw(t, "budget")
		layout := outboxLayout()
		c := &circulation{t: t, pool: NewPool(budget, layout), decoder: started(t, layout, outboxRelation())}
		least := len(tupleData("", "", "", "", ""))
		size := rapid.OneOf(rapid.IntRange(least, 200), rapid.IntRange(least, 2_000), rapid.IntRange(least, 2*100*Batches))
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				c.handOver()
			case 1, 2:
				c.release()
			default:
				c.add(rowOf(size.Draw(t, "size")))
			}
			c.check(budget)
		}
		c.handOver()
		for len(c.filled) > 0 {
			c.release()
		}
		require.Equal(t, Batches, c.pool.Available())
	})
}

func TestLSNBeforeIsTheEndOfTheLastCompleteTransaction(t *testing.T) {
	b := &Batch{commits: make([]int64, 0, 10)}
	require.Zero(t, b.LSNBefore(0))
	b.EndTransaction(0x100) // its rows are in the batch before
	b.commits = b.commits[:2]
	b.EndTransaction(0x200)
	b.commits = b.commits[:5]
	b.EndTransaction(0x300)
	for n, want := range []pglogrepl.LSN{0x100, 0x100, 0x200, 0x200, 0x200, 0x300, 0x300} {
		require.Equal(t, want, b.LSNBefore(n))
	}
	b.reset()
	require.Zero(t, b.LSNBefore(9))
}
