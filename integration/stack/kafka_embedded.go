package stack

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/twmb/franz-go/pkg/kfake"
)

// runEmbedded runs a broker inside this process. It speaks the protocol and keeps records in memory, but it is not the
// server that any user has.
func (k *Kafka) runEmbedded(opts KafkaOptions) error {
	if os.Getenv("POMBO_TEST_REAL") == "1" {
		return errors.New("POMBO_TEST_REAL=1 refuses the embedded broker, and there is no Docker engine, nor Java and Maven")
	}
	settings := kafkaSettings(node{}, opts.Settings)
	partitions, err := strconv.Atoi(settings["num.partitions"])
	if err != nil {
		return fmt.Errorf("read num.partitions: %w", err)
	}
	options := []kfake.Opt{kfake.NumBrokers(1), kfake.DefaultNumPartitions(partitions), kfake.BrokerConfigs(opts.Settings)}
	if cmp.Or(settings["auto.create.topics.enable"], "true") == "true" {
		options = append(options, kfake.AllowAutoTopicCreation())
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		return err
	}
	k.instance.atClose(func() error { cluster.Close(); return nil })
	k.brokers, k.instance.origin, k.embedded = cluster.ListenAddrs(), "embedded, not a real Kafka", true
	return nil
}
