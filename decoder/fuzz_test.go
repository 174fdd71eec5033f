package decoder

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// frame puts an Int16 length before each message, so that the fuzzer can change how many there are.
func frame(messages ...[]byte) []byte {
	var stream []byte
	for _, msg := range messages {
		stream = binary.BigEndian.AppendUint16(stream, uint16(len(msg)))
		stream = append(stream, msg...)
	}
	return stream
}

// unframe splits what frame has put together. The last message may be cut off.
func unframe(stream []byte) [][]byte {
	var messages [][]byte
	for len(stream) >= 2 {
		n := min(int(binary.BigEndian.Uint16(stream)), len(stream)-2)
		messages = append(messages, stream[2:2+n])
		stream = stream[2+n:]
	}
	return messages
}

// Whatever bytes come, Decode ends with an error of its two kinds, or the events stay what they
// were when they were decoded.
func FuzzDecode(f *testing.F) {
	f.Add(frame(capturedStream(f)...))
	f.Fuzz(func(t *testing.T, stream []byte) {
		layout := outboxLayout()
		d := New(layout, 0)
		var batches []*Batch
		var want [][]any
		b := emptyBatch(layout, 64)
		for _, msg := range unframe(stream) {
			before, inside := b.Len(), d.InTransaction()
			outcome, err := d.Decode(msg, b)
			if err != nil {
				var missing *MissingColumnsError
				require.True(t, errors.Is(err, ErrProtocol) || errors.As(err, &missing), err)
				break
			}
			if outcome == Full {
				require.NotZero(t, before)
				batches = append(batches, b)
				b = emptyBatch(layout, 64)
				before = 0
				if outcome, err = d.Decode(msg, b); err != nil {
					require.ErrorIs(t, err, ErrProtocol)
					break
				}
			}
			switch outcome {
			case Row:
				require.True(t, inside)
				require.Equal(t, before+1, b.Len())
				want = append(want, values(b.Event(before)))
			case Commit:
				require.True(t, inside)
				require.False(t, d.InTransaction())
			default:
				require.Equal(t, None, outcome)
				require.Equal(t, before, b.Len())
			}
		}
		var got [][]any
		for _, b := range append(batches, b) {
			for i := range b.Len() {
				got = append(got, values(b.Event(i)))
			}
		}
		require.Equal(t, want, got)
	})
}
