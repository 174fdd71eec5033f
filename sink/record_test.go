package sink

import (
	"fmt"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pombo-cdc/pombo/router"
)

// Key, value and headers are the columns byte for byte: NULL is null or, of a header, absent, and the empty
// string is empty.
func TestRecordIsTheRow(t *testing.T) {
	cluster, _ := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	s := run(t, config(cluster))
	odd := "é🕊\x00\r\n\"'\xff"
	s.commit(
		row{"1", "orders", "key", "Created", "value"},
		row{"2", "orders", nil, nil, nil},
		row{"3", "orders", "", "", ""},
		row{odd, "orders", odd, odd, odd},
		row{"5", "orders", "large", "Created", strings.Repeat("x", 900_000)},
	)
	s.awaitFlushed(s.committed)
	header := func(name, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: name, Value: []byte(value)} }
	want := []struct {
		key, value []byte
		headers    []kgo.RecordHeader
	}{
		{[]byte("key"), []byte("value"), []kgo.RecordHeader{header("eventId", "1"), header("eventType", "Created")}},
		{nil, nil, []kgo.RecordHeader{header("eventId", "2")}},
		{[]byte{}, []byte{}, []kgo.RecordHeader{header("eventId", "3"), header("eventType", "")}},
		{[]byte(odd), []byte(odd), []kgo.RecordHeader{header("eventId", odd), header("eventType", odd)}},
		{[]byte("large"), []byte(strings.Repeat("x", 900_000)), []kgo.RecordHeader{header("eventId", "5"), header("eventType", "Created")}},
	}
	records := consume(t, cluster, "orders")
	require.Len(t, records, len(want))
	for i, record := range records {
		require.Equal(t, want[i].key, record.Key)
		require.Equal(t, want[i].value, record.Value)
		require.Equal(t, want[i].headers, record.Headers)
	}
}

// Headers stand in the order of the configuration.
func TestHeaderOrder(t *testing.T) {
	cluster, _ := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	s := newSource(t)
	headers := []router.Header{
		{Name: "z", Column: s.layout.Column("event_type")},
		{Name: "a", Column: s.layout.Column("id")},
		{Name: "m", Column: s.layout.Column("aggregate_type")},
	}
	r, err := router.New(router.Config{Layout: s.layout, Headers: headers})
	require.NoError(t, err)
	kafka, err := Open(t.Context(), config(cluster), r, s.pool, s.flushed, nopLog)
	require.NoError(t, err)
	s.commit(row{"1", "orders", "key", "Created", "value"})
	close(s.filled)
	require.NoError(t, kafka.Run(t.Context(), s.filled))
	require.NoError(t, kafka.Close())
	require.Equal(t, []kgo.RecordHeader{
		{Key: "z", Value: []byte("Created")}, {Key: "a", Value: []byte("1")}, {Key: "m", Value: []byte("orders")},
	}, consume(t, cluster, "orders")[0].Headers)
}

// The timestamp is the commit time of the transaction, in milliseconds.
func TestTimestampIsTheCommitTime(t *testing.T) {
	cluster, tap := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	s := run(t, config(cluster))
	tap.set(produceRequests, nil, nil)
	var want []int64
	for range 4 { // the last three share a batch
		s.commit(s.events("orders", "a", "a")...)
		want = append(want, s.time.UnixMilli(), s.time.UnixMilli())
		eventually(t, "a request", func() bool { return len(tap.all()) == 1 })
	}
	tap.set(nil, nil, nil)
	s.finish(cluster)
	var got []int64
	for _, record := range consume(t, cluster, "orders") {
		got = append(got, record.Timestamp.UnixMilli())
	}
	require.Equal(t, want, got)
	batches := tap.batches("orders")
	last := batches[len(batches)-1]
	require.Equal(t, want[len(want)-1], last.MaxTimestamp)
	require.Equal(t, want[2], last.FirstTimestamp)
}

func TestEveryCompression(t *testing.T) {
	for codec := sarama.CompressionNone; codec <= sarama.CompressionZSTD; codec++ {
		t.Run(codec.String(), func(t *testing.T) {
			cluster, tap := newCluster(t, 1, kfake.SeedTopics(2, "orders"))
			cfg := config(cluster)
			cfg.Compression = codec
			s := run(t, cfg)
			for range 20 {
				s.commit(s.events("orders", "a", "b", "c", "d", "e", "f")...)
			}
			s.finish(cluster)
			for _, b := range tap.batches("orders") {
				require.EqualValues(t, codec, b.Attributes&7)
			}
			for _, record := range consume(t, cluster, "orders") {
				require.Equal(t, "payload of "+eventID(record), string(record.Value))
			}
		})
	}
}

// A key is in the partition where a Java producer puts it. The hashes are those of UtilsTest.testMurmur2 in Kafka.
func TestPartitionOfAKey(t *testing.T) {
	const partitions = 12
	cluster, _ := newCluster(t, 1, kfake.SeedTopics(partitions, "orders"))
	s := run(t, config(cluster))
	hashes := map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	}
	for key := range hashes {
		s.commit(s.events("orders", key)...)
	}
	s.awaitFlushed(s.committed)
	records := consume(t, cluster, "orders")
	require.Len(t, records, len(hashes))
	for _, record := range records {
		positive := hashes[string(record.Key)] & 0x7fffffff
		require.Equal(t, positive%partitions, record.Partition, "key %s", record.Key)
	}
}

// Events without a key are spread evenly.
func TestNullKeysAreSpread(t *testing.T) {
	const partitions, each = 6, 50
	cluster, _ := newCluster(t, 1, kfake.SeedTopics(partitions, "orders"))
	s := run(t, config(cluster))
	for i := range each {
		var rows []row
		for j := range partitions {
			rows = append(rows, row{fmt.Sprint(i, ".", j), "orders", nil, "Happened", "x"})
		}
		s.commit(rows...)
	}
	s.awaitFlushed(s.committed)
	for _, info := range cluster.PartitionInfos("orders") {
		require.EqualValues(t, each, info.HighWatermark)
	}
}
