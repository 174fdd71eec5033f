package rig

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// metadataAge is how old the client's idea of topics may be, which are new in every round.
	metadataAge = 20 * time.Millisecond
	// countInterval is how often records are counted. More often would slow down who shares the processor.
	countInterval = 20 * time.Millisecond
	// topicLimit is how long Kafka may take to make topics.
	topicLimit = time.Minute
)

// topics are those of one drain, or the one of a delivery.
type topics struct {
	template   string // what Job.Topic has
	names      []string
	partitions int32
}

// createTopics makes the topics that the events of a shape go to, and waits until they take records.
func (s *Servers) createTopics(ctx context.Context, shape Shape) (topics, error) {
	t := topics{template: s.name("topic"), partitions: int32(shape.Partitions)}
	t.names = []string{t.template}
	if shape.Topics > 1 {
		t.template += "_{{.AggregateType}}"
		t.names = nil
		for i := range shape.Topics {
			t.names = append(t.names, strings.Replace(t.template, "{{.AggregateType}}", aggregateType(i, shape.Topics), 1))
		}
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	for _, name := range t.names {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, t.partitions, 1
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(ctx, s.client)
	if err != nil {
		return t, fmt.Errorf("create topics: %w", err)
	}
	for _, topic := range resp.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil {
			return t, fmt.Errorf("create topic %s: %w", topic.Topic, err)
		}
	}
	ready, cancel := context.WithTimeoutCause(ctx, topicLimit, fmt.Errorf("new topics take no records within %v", topicLimit))
	defer cancel()
	return t, await(ready, nil, func() bool {
		_, err := s.count(ready, t)
		return err == nil
	})
}

// deleteTopics gives the disk back to later rounds.
func (s *Servers) deleteTopics(ctx context.Context, t topics) error {
	req := kmsg.NewPtrDeleteTopicsRequest()
	for _, name := range t.names {
		topic := kmsg.NewDeleteTopicsRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		req.Topics, req.TopicNames = append(req.Topics, topic), append(req.TopicNames, name)
	}
	if _, err := req.RequestWith(ctx, s.client); err != nil {
		return fmt.Errorf("delete topics: %w", err)
	}
	return nil
}

// count is the number of records in all partitions.
func (s *Servers) count(ctx context.Context, t topics) (records int64, err error) {
	const latest = -1
	req := kmsg.NewPtrListOffsetsRequest()
	for _, name := range t.names {
		topic := kmsg.NewListOffsetsRequestTopic()
		topic.Topic = name
		for p := range t.partitions {
			partition := kmsg.NewListOffsetsRequestTopicPartition()
			partition.Partition, partition.Timestamp = p, latest
			topic.Partitions = append(topic.Partitions, partition)
		}
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(ctx, s.client)
	if err != nil {
		return 0, fmt.Errorf("count records: %w", err)
	}
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return 0, fmt.Errorf("count records of %s: %w", topic.Topic, err)
			}
			records += p.Offset
		}
	}
	return records, nil
}

// awaitRecords waits until there are n records, and returns how many there are by then.
func (s *Servers) awaitRecords(ctx context.Context, p *Process, t topics, n int) (int, error) {
	var records int64
	err := await(ctx, p.Exited(), func() bool {
		counted, err := s.count(ctx, t)
		if err == nil { // else the broker is asked again
			records = counted
		}
		return records >= int64(n)
	})
	if err != nil {
		return 0, fmt.Errorf("await %d records, of which there are %d: %w", n, records, err)
	}
	return int(records), nil
}

// await looks at a condition again and again until it is true. It is an error if ctx or the process, which closes exited,
// ends before.
func await(ctx context.Context, exited <-chan struct{}, done func() bool) error {
	tick := time.NewTicker(countInterval)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-exited:
			return errEnded
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
