package sink

import (
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/pombo-cdc/pombo/decoder"
)

// benchRows are events of about 340 bytes on every partition of a topic orders.
func benchRows(n, partitions int) []row {
	rows := make([]row, n)
	each := keys(partitions)
	for i := range rows {
		rows[i] = row{"0b6f2f0e-6a39-4c67-9d3c-2f6f3a1f5b11", "orders", each[i%partitions], "OrderCreated", strings.Repeat("x", 270)}
	}
	return rows
}

// loaded returns a partition with n events queued, and what assembles its batches.
func loaded(t tester, n int) (*partition, *assembler) {
	s := newSource(t)
	s.commit(benchRows(n, 1)...)
	close(s.filled)
	p := &partition{topic: new(topic)}
	for batch := range s.filled {
		for i := range batch.Len() {
			p.queue.push(item{batch: batch, index: i})
		}
	}
	return p, &assembler{router: s.router()}
}

// However many events a batch has, only the batch itself is allocated.
func TestAssembleAllocatesNothingPerEvent(t *testing.T) {
	p, a := loaded(t, 1000)
	events := 0
	allocations := testing.AllocsPerRun(100, func() {
		_, events, _ = a.batch(p, identity{})
		a.reset()
	})
	require.Equal(t, 1000, events)
	require.LessOrEqual(t, allocations, 1.0)
}

// BenchmarkAssemble builds one record batch of 1,000 events.
func BenchmarkAssemble(b *testing.B) {
	p, a := loaded(b, 1000)
	_, n, size := a.batch(p, identity{})
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		a.batch(p, identity{})
		a.reset()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*b.N), "ns/event")
}

// BenchmarkQueue takes an event through a queue that is always 100 long.
func BenchmarkQueue(b *testing.B) {
	var q queue[item]
	for range 100 {
		q.push(item{batch: new(decoder.Batch)})
	}
	b.ReportAllocs()
	for b.Loop() {
		q.push(q.at(0))
		q.pop(1)
	}
}

// BenchmarkRun publishes transactions of ten events to a fake broker that keeps nothing. It includes decoding them.
func BenchmarkRun(b *testing.B) {
	for _, codec := range []sarama.CompressionCodec{sarama.CompressionNone, sarama.CompressionLZ4} {
		b.Run(codec.String(), func(b *testing.B) {
			const perTransaction, partitions = 10, 4
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, "orders"), kfake.BlackholeProduce())
			require.NoError(b, err)
			b.Cleanup(cluster.Close)
			cfg := config(cluster)
			cfg.Compression = codec
			s := run(b, cfg)
			rows := benchRows(perTransaction, partitions)
			s.commit(rows...)
			s.awaitFlushed(s.committed)
			b.ReportAllocs()
			for b.Loop() {
				s.commit(rows...)
				s.rows = s.rows[:0]
			}
			s.awaitFlushed(s.committed)
			b.ReportMetric(float64(b.N*perTransaction)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
