package router

import "encoding/binary"

// Partition returns the partition, 0 to partitions-1, that a Java producer puts the key in: it
// is that of the Kafka client's BuiltInPartitioner, so keys stay where they are when a Java
// relay is replaced. partitions must be positive. The partition of a record without a key is
// not a matter of hashing: the caller spreads those.
func Partition(key []byte, partitions int32) int32 {
	return int32(murmur2(key)&0x7fffffff) % partitions
}

// murmur2 is the 32-bit MurmurHash2 with the seed and byte order of the Java class
// org.apache.kafka.common.utils.Utils.
func murmur2(data []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := binary.LittleEndian.Uint32(data)
		k *= m
		k ^= k >> r
		k *= m
		h *= m
		h ^= k
	}
	if len(data) > 0 {
		for i, b := range data {
			h ^= uint32(b) << (8 * i)
		}
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}
