package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// retryInterval is how soon a topic that does not exist yet is looked for again.
const retryInterval = 100 * time.Millisecond

// Consumer reads every partition of some topics from the beginning, and goes on when brokers come back.
type Consumer struct {
	client sarama.Client
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// Consume starts to read the topics, which need not exist yet, and calls observe with each record, in the order
// of each partition, one call at a time for each partition.
func Consume(ctx context.Context, brokers, topics []string, observe func(Record)) (*Consumer, error) {
	conf := sarama.NewConfig()
	conf.ClientID = "workload"
	conf.Consumer.Return.Errors = false // a partition that fails is read again, for ever
	conf.Consumer.Retry.Backoff = retryInterval
	conf.Consumer.MaxWaitTime = 50 * time.Millisecond
	conf.Metadata.AllowAutoTopicCreation = false
	conf.Metadata.Full = false
	client, err := sarama.NewClient(brokers, conf)
	if err != nil {
		return nil, fmt.Errorf("open consumer: %w", err)
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open consumer: %w", err), client.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &Consumer{client: client, cancel: cancel}
	for _, topic := range topics {
		c.done.Go(func() { c.followTopic(ctx, consumer, topic, observe) })
	}
	return c, nil
}

// Close stops reading. observe is not called after it.
func (c *Consumer) Close() error {
	c.cancel()
	c.done.Wait()
	return c.client.Close()
}

// followTopic starts a reader for each partition, also for those that are added later.
func (c *Consumer) followTopic(ctx context.Context, consumer sarama.Consumer, topic string, observe func(Record)) {
	started := 0
	tick := time.NewTicker(retryInterval)
	defer tick.Stop()
	for {
		if err := c.client.RefreshMetadata(topic); err == nil {
			partitions, _ := c.client.Partitions(topic)
			for ; started < len(partitions); started++ {
				partition, err := consumer.ConsumePartition(topic, int32(started), sarama.OffsetOldest)
				if err != nil {
					break
				}
				c.done.Go(func() { follow(ctx, partition, observe) })
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func follow(ctx context.Context, partition sarama.PartitionConsumer, observe func(Record)) {
	defer partition.AsyncClose()
	for {
		select {
		case m, ok := <-partition.Messages():
			if !ok {
				return
			}
			r := Record{
				Topic: m.Topic, Partition: m.Partition, Offset: m.Offset,
				Key: m.Key, Value: m.Value,
				Headers:  make(map[string]string, len(m.Headers)),
				Received: time.Now(),
			}
			for _, h := range m.Headers {
				r.Headers[string(h.Key)] = string(h.Value)
			}
			observe(r)
		case <-ctx.Done():
			return
		}
	}
}
