package sink

import "github.com/IBM/sarama"

// Config says how to reach Kafka and how to write to it.
type Config struct {
	Brokers      []string // host:port
	Compression  sarama.CompressionCodec
	CreateTopics bool   // create a missing topic with the brokers' default partitions and replication
	ProducerName string // the transactional id under which older instances are fenced; empty turns fencing off

	// Parking takes what cannot be published. Without one the first such event ends the session.
	Parking Parking
	Halt    bool // end the session at such an event all the same; Parking only takes what follows those that are parked already
}
