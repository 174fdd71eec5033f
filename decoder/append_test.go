package decoder

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAppendedEventIsAsADecodedOne(t *testing.T) {
	layout := NewLayout("public", "outbox_event")
	pool := NewPool(1<<20, layout)
	b := <-pool.Free()
	require.True(t, pool.Prepare(b, 100))
	commit := time.UnixMicro(1_700_000_000_123_456)
	values := [][]byte{[]byte("id-1"), nil, []byte(""), []byte("created"), []byte("\x00\xff")}
	require.True(t, b.Append(commit, values))
	require.True(t, b.Append(commit.Add(time.Microsecond), [][]byte{nil, nil, nil, nil, nil}))

	require.Equal(t, 2, b.Len())
	first, second := b.Event(0), b.Event(1)
	for c, value := range values {
		require.Equal(t, value, first.Column(Column(c)), "nil and empty differ")
		require.Nil(t, second.Column(Column(c)))
	}
	require.True(t, commit.Equal(first.CommitTime()))
	require.True(t, commit.Add(time.Microsecond).Equal(second.CommitTime()))

	copy(values[0], "xxxx")
	require.Equal(t, "id-1", string(first.Column(ID)), "it has a copy")
}

func TestAppendKeepsToTheRoomOfTheArena(t *testing.T) {
	layout := NewLayout("public", "outbox_event")
	pool := NewPool(Batches*1000, layout)
	row := func(size int) [][]byte { return [][]byte{nil, nil, nil, nil, bytes.Repeat([]byte("x"), size)} }
	b := <-pool.Free()
	require.True(t, pool.Prepare(b, 600))
	require.True(t, b.Append(time.Now(), row(600)))
	require.False(t, b.Append(time.Now(), row(401)))
	require.Equal(t, 1, b.Len(), "nothing of it was added")
	require.True(t, b.Append(time.Now(), row(400)))
	pool.Recycle(b)

	large := <-pool.Free()
	for !pool.Prepare(large, 2500) {
		large.Lend(<-pool.Free())
	}
	require.True(t, large.Append(time.Now(), row(2500)), "an empty batch takes any row")
	require.Equal(t, Batches-3, pool.Available())
	pool.Recycle(large)
	require.Equal(t, Batches, pool.Available())
}
