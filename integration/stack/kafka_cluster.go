package stack

import (
	"context"
	"errors"
	"fmt"
)

// KafkaCluster is several brokers with replication: of three, each partition has three replicas, of which two have to
// be in sync, so that one broker can be away.
type KafkaCluster struct {
	nodes []*Kafka
}

// StartKafkaCluster starts n brokers as native processes. Where that is not possible, or the environment names other
// servers, the error is errors.ErrUnsupported.
func StartKafkaCluster(ctx context.Context, opts KafkaOptions, n int) (*KafkaCluster, error) {
	if err := nativeOnly("a cluster"); err != nil {
		return nil, fmt.Errorf("start Kafka: %w", err)
	}
	c := &KafkaCluster{}
	for i := range n {
		c.nodes = append(c.nodes, newKafka(fmt.Sprintf("Kafka broker %d", i+1)))
	}
	if err := runNative(ctx, opts, c.nodes...); err != nil {
		return nil, fmt.Errorf("start Kafka: %w", errors.Join(err, c.Close()))
	}
	tell(opts.Log, "Kafka: %d brokers, %s", n, c.nodes[0].Origin())
	return c, nil
}

// Nodes are the brokers. Each can be stopped, killed, paused and started again by itself, and has its Proxy.
func (c *KafkaCluster) Nodes() []*Kafka { return c.nodes }

// Brokers are the addresses to connect to.
func (c *KafkaCluster) Brokers() (addrs []string) {
	for _, k := range c.nodes {
		addrs = append(addrs, k.Brokers()...)
	}
	return addrs
}

// Direct are the addresses to connect to the brokers past their proxies.
func (c *KafkaCluster) Direct() (addrs []string) {
	for _, k := range c.nodes {
		addrs = append(addrs, k.Direct()...)
	}
	return addrs
}

// AwaitInSync waits until every replica of every partition is in sync, so that another broker can go away. All brokers
// have to run.
func (c *KafkaCluster) AwaitInSync(ctx context.Context) error {
	var err error
	if poll(ctx, nil, func() bool { err = c.inSync(); return err == nil }) {
		return nil
	}
	return fmt.Errorf("await all replicas in sync: %w: %w", context.Cause(ctx), err)
}

// inSync returns an error that names a partition of which not every replica is in sync.
func (c *KafkaCluster) inSync() (err error) {
	client, err := c.nodes[0].ask()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	if err := client.RefreshMetadata(); err != nil {
		return err
	}
	topics, err := client.Topics()
	if err != nil {
		return err
	}
	for _, topic := range topics {
		partitions, err := client.Partitions(topic)
		if err != nil {
			return err
		}
		for _, p := range partitions {
			replicas, err := client.Replicas(topic, p)
			if err != nil {
				return err
			}
			synced, err := client.InSyncReplicas(topic, p)
			switch {
			case err != nil:
				return err
			case len(synced) < len(replicas):
				return fmt.Errorf("topic %s, partition %d has %d of %d replicas in sync", topic, p, len(synced), len(replicas))
			}
		}
	}
	return nil
}

// Close ends the brokers and removes their data.
func (c *KafkaCluster) Close() error {
	var err error
	for _, k := range c.nodes {
		err = errors.Join(err, k.Close())
	}
	return err
}
