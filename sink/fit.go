package sink

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/bits"

	"github.com/IBM/sarama"
	"github.com/dustin/go-humanize"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/pombo-cdc/pombo/decoder"
)

const (
	// batchOverhead is what a record batch has beside its records, in bytes: the header of version 2 of the message
	// format in the documentation of Kafka.
	batchOverhead = 61

	// requestOverhead bounds what a produce request has beside a single record batch, in bytes.
	requestOverhead = 1 << 10
)

// recordSize is the size of an event that is alone in a record batch, in bytes before compression.
func (a *assembler) recordSize(e decoder.Event) int {
	headers, n := 0, 0
	for _, h := range a.router.Headers() {
		if value := e.Column(h.Column); value != nil {
			headers += prefixed(h.Key) + prefixed(value)
			n++
		}
	}
	const attributesAndDeltas = 1 + 1 + 1
	body := attributesAndDeltas + prefixed(a.router.Key(e)) + prefixed(a.router.Value(e)) + varint(n) + headers
	return varint(body) + body
}

// prefixed is the size of bytes with their length before them.
func prefixed(b []byte) int { return varint(len(b)) + len(b) }

// varint is the size of a number in Kafka's zigzag encoding, which keeps 7 bits in a byte.
func varint(n int) int { return (bits.Len(uint(n)) + 1 + 6) / 7 }

// maxRecord is the size of a record, in bytes before compression, that goes into a request whatever its topic takes.
func maxRecord() int { return int(sarama.MaxRequestSize) - requestOverhead }

// fits reports whether a topic takes record batches as large as that of an event alone. limit is its max.message.bytes, or 0
// where that is not known. A compressed batch that is near the limit fits as far as can be told here.
func (a *assembler) fits(e decoder.Event, limit int) bool {
	size := batchOverhead + a.recordSize(e)
	switch {
	case size > maxRecord():
		return false
	case limit == 0 || size <= limit:
		return true
	case a.codec == sarama.CompressionNone:
		return false
	}
	return compressesTo(a.codec, a.router.Value(e), limit+limit/16)
}

// tooLarge says why an event does not fit.
func (a *assembler) tooLarge(e decoder.Event, limit int) error {
	size := humanize.Comma(int64(batchOverhead + a.recordSize(e)))
	if batchOverhead+a.recordSize(e) > maxRecord() {
		return fmt.Errorf("with %s bytes it is larger than a request to Kafka may be (%s bytes): make it smaller, or park it", size, humanize.Comma(int64(maxRecord())))
	}
	return fmt.Errorf("with %s bytes it is larger than the %s bytes of the topic's max.message.bytes: raise that", size, humanize.Comma(int64(limit)))
}

// compressesTo reports whether a value has no more than limit bytes once it is compressed. It takes no memory to speak of
// and ends when the limit is passed.
func compressesTo(codec sarama.CompressionCodec, value []byte, limit int) bool {
	rest := &allowance{limit}
	var w io.WriteCloser
	switch codec {
	case sarama.CompressionGZIP:
		w = gzip.NewWriter(rest)
	case sarama.CompressionSnappy:
		w = snappy.NewBufferedWriter(rest)
	case sarama.CompressionLZ4:
		w = lz4.NewWriter(rest)
	case sarama.CompressionZSTD:
		encoder, err := zstd.NewWriter(rest, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return true // the broker will tell
		}
		w = encoder
	}
	_, err := w.Write(value)
	return errors.Join(err, w.Close()) == nil
}

// allowance is a writer for so many bytes.
type allowance struct{ left int }

var errSpent = errors.New("more bytes than allowed")

// Write implements io.Writer.
func (a *allowance) Write(p []byte) (int, error) {
	if a.left -= len(p); a.left < 0 {
		return 0, errSpent
	}
	return len(p), nil
}
