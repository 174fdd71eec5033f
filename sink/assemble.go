package sink

import (
	"time"

	"github.com/IBM/sarama"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/router"
)

const (
	// maxBatchBytes closes a record batch, measured before compression. It stays well under
	// the 1 MiB that a topic takes by default; a single larger event goes alone.
	maxBatchBytes = 512 << 10

	// maxRequestBytes closes a request to further partitions, measured before compression.
	maxRequestBytes = 1 << 20

	// deltaOverhead bounds what a record takes more that is not the first of its batch, in bytes: it says how far it is from that.
	deltaOverhead = 16
)

// assembler builds record batches from queued events. Records and headers live in slabs that are
// used again for the next request: sarama encodes a request before AsyncProduce returns and does
// not look at the records again.
type assembler struct {
	router *router.Router
	codec  sarama.CompressionCodec

	records     []sarama.Record
	recordRefs  []*sarama.Record
	headerSlab  []sarama.RecordHeader
	headersRefs []*sarama.RecordHeader
}

// reset makes the slabs free for the next request.
func (a *assembler) reset() {
	clear(a.records)
	clear(a.headerSlab)
	a.records, a.recordRefs = a.records[:0], a.recordRefs[:0]
	a.headerSlab, a.headersRefs = a.headerSlab[:0], a.headersRefs[:0]
}

// batch encodes the head of the partition's queue: the same events with the same sequence
// numbers each time, until they are settled, because a broker that has them already knows them by their
// first and last number. It returns the batch, its records and about how many bytes they have.
func (a *assembler) batch(p *partition, producer identity) (b *sarama.RecordBatch, n, size int) {
	base := p.queue.at(0).event().CommitMillis()
	latest := base
	first := len(a.recordRefs)
	end := p.queue.len()
	switch {
	case p.sent > 0:
		end = p.sent
	case p.most > 0:
		end = min(end, p.most)
	}
	limit := maxBatchBytes
	if p.topic.limit > 0 {
		limit = min(limit, p.topic.limit-batchOverhead)
	}
	for n < end {
		e := p.queue.at(n).event()
		bytes := a.size(e)
		if n > 0 && size+bytes > limit && p.sent == 0 {
			break
		}
		size += bytes
		commit := e.CommitMillis()
		latest = max(latest, commit)
		a.records = append(a.records, sarama.Record{
			TimestampDelta: time.Duration(commit-base) * time.Millisecond,
			OffsetDelta:    int64(n),
			Key:            a.router.Key(e),
			Value:          a.router.Value(e),
			Headers:        a.eventHeaders(e),
		})
		a.recordRefs = append(a.recordRefs, &a.records[len(a.records)-1])
		n++
	}
	return &sarama.RecordBatch{
		Version:              2,
		Codec:                a.codec,
		CompressionLevel:     sarama.CompressionLevelDefault,
		PartitionLeaderEpoch: -1,
		LastOffsetDelta:      int32(n - 1),
		FirstTimestamp:       time.UnixMilli(base),
		MaxTimestamp:         time.UnixMilli(latest),
		ProducerID:           producer.id,
		ProducerEpoch:        producer.epoch,
		FirstSequence:        p.sequence,
		Records:              a.recordRefs[first:len(a.recordRefs):len(a.recordRefs)],
	}, n, size
}

// size is what an event takes in a record batch before compression at most, in bytes.
func (a *assembler) size(e decoder.Event) int { return a.recordSize(e) + deltaOverhead }

// eventHeaders returns the headers of an event; one whose column is NULL is left out.
func (a *assembler) eventHeaders(e decoder.Event) []*sarama.RecordHeader {
	first := len(a.headersRefs)
	for _, h := range a.router.Headers() {
		value := e.Column(h.Column)
		if value == nil {
			continue
		}
		a.headerSlab = append(a.headerSlab, sarama.RecordHeader{Key: h.Key, Value: value})
		a.headersRefs = append(a.headersRefs, &a.headerSlab[len(a.headerSlab)-1])
	}
	return a.headersRefs[first:len(a.headersRefs):len(a.headersRefs)]
}
