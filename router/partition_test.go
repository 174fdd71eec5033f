package router

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The hashes are those of the Kafka client's own test, UtilsTest.testMurmur2.
func TestMurmur2IsThatOfTheJavaClient(t *testing.T) {
	tests := []struct {
		key  string
		want int32
	}{
		{"21", -973932308},
		{"foobar", -790332482},
		{"a-little-bit-long-string", -985981536},
		{"a-little-bit-longer-string", -1486304829},
		{"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971},
		{"abc", 479470107},
	}
	for _, test := range tests {
		require.Equal(t, test.want, int32(murmur2([]byte(test.key))), test.key)
	}
}

func TestPartitionIsThatOfSarama(t *testing.T) {
	oracle := sarama.NewMurmur2Partitioner("topic")
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOf(rapid.Byte()).Draw(t, "key")
		partitions := rapid.Int32Range(1, 100_000).Draw(t, "partitions")
		want, err := oracle.Partition(&sarama.ProducerMessage{Key: sarama.ByteEncoder(key)}, partitions)
		require.NoError(t, err)
		require.Equal(t, want, Partition(key, partitions))
	})
}

func BenchmarkPartition(b *testing.B) {
	key := []byte("6e0c2d1e-8f0c-4a55-9a55-3f2f6f4f9b11")
	b.ReportAllocs()
	for b.Loop() {
		Partition(key, 12)
	}
}
