package decoder

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cutRow cuts a row of stride columns out of data: before each value stands a byte with its length, of which 255 is SQL NULL.
func cutRow(data []byte, stride int) (values [][]byte, rest []byte) {
	for range stride {
		if len(data) == 0 || data[0] == 255 {
			values, data = append(values, nil), data[min(1, len(data)):]
			continue
		}
		n := min(int(data[0]), len(data)-1)
		values, data = append(values, data[1:1+n:1+n]), data[1+n:]
	}
	return values, data
}

// Whatever rows are appended, the events stay what they were, and a full batch is as it was before.
func FuzzAppend(f *testing.F) {
	row := []byte("\x02id\x05Order\x00\xff\x07payload")
	f.Add(row)
	f.Add(bytes.Repeat(row, 9))
	f.Add(append(bytes.Repeat([]byte("\xfe"), 255), row...))
	f.Fuzz(func(t *testing.T, stream []byte) {
		layout := NewLayout("public", "outbox_event")
		pool := NewPool(Batches*64, layout)
		b := <-pool.Free()
		require.True(t, pool.Prepare(b, 0))
		commit := time.UnixMicro(1_700_000_000_000_000)
		var want [][][]byte
		for len(stream) > 0 {
			var values [][]byte
			values, stream = cutRow(stream, len(layout.Columns))
			before := b.Bytes()
			if b.Append(commit, values) {
				want = append(want, values)
				continue
			}
			require.NotZero(t, b.Len(), "an empty batch takes any row")
			require.Equal(t, before, b.Bytes())
		}
		require.Equal(t, len(want), b.Len())
		for i, values := range want {
			for c, value := range values {
				got := b.Event(i).Column(Column(c))
				require.Equal(t, value == nil, got == nil, "nil and empty differ")
				require.Equal(t, string(value), string(got))
			}
			require.True(t, commit.Equal(b.Event(i).CommitTime()))
		}
		pool.Recycle(b)
		require.Equal(t, Batches, pool.Available())
	})
}
