package sink

import (
	"errors"
	"fmt"

	"github.com/IBM/sarama"
)

// verdict is what a partition does about the answer to its request.
type verdict uint8

const (
	acknowledged verdict = iota // the events are in the topic
	again                       // send the same batch again: the environment can cure it
	smaller                     // the brokers refuse the batch as it is: find the event that they refuse
	over                        // brokers and session no longer agree on the sequence: start a new session
)

func judge(err error) verdict {
	var encoding sarama.PacketEncodingError
	switch {
	case err == nil,
		errors.Is(err, sarama.ErrNoError),
		errors.Is(err, sarama.ErrDuplicateSequenceNumber): // an earlier try was written, only its answer was lost
		return acknowledged
	case errors.As(err, &encoding), // larger than a request may be
		errors.Is(err, sarama.ErrMessageSizeTooLarge),
		errors.Is(err, sarama.ErrMessageSetSizeTooLarge), // larger than a segment
		errors.Is(err, sarama.ErrInvalidRecord),          // such as no key in a compacted topic
		errors.Is(err, sarama.ErrInvalidTimestamp),
		errors.Is(err, sarama.ErrUnsupportedForMessageFormat):
		return smaller
	case errors.Is(err, sarama.ErrOutOfOrderSequenceNumber),
		errors.Is(err, sarama.ErrUnknownProducerID),
		errors.Is(err, sarama.ErrInvalidProducerEpoch), // another instance has taken over
		errors.Is(err, sarama.ErrProducerFenced),
		errors.Is(err, sarama.ErrInvalidProducerIDMapping):
		return over
	default: // lost connections, leaders that moved, too few replicas, missing topics, denied access
		return again
	}
}

// explain adds the way out to an error that an operator can do something about.
func explain(err error) error {
	switch {
	case errors.Is(err, sarama.ErrUnknownTopicOrPartition):
		return errors.New("the topic does not exist: create it, or run with --create-topics")
	case errors.Is(err, sarama.ErrInvalidTopic):
		return errors.New("the brokers refuse the topic's name (one that differs only in . and _ may exist)")
	case errors.Is(err, sarama.ErrTopicAuthorizationFailed):
		return errors.New("access is denied: grant Write and Describe on the topic")
	case errors.Is(err, sarama.ErrClusterAuthorizationFailed):
		return errors.New("access is denied: grant IdempotentWrite on the cluster, or Create to let topics be created")
	case errors.Is(err, sarama.ErrMessageSizeTooLarge):
		return errors.New("it is larger than the topic's max.message.bytes: raise that")
	case errors.Is(err, sarama.ErrMessageSetSizeTooLarge):
		return fmt.Errorf("%w: raise the topic's segment.bytes", err)
	case errors.Is(err, sarama.ErrInvalidRecord):
		return fmt.Errorf("%w: a compacted topic takes no record without a key; change the topic or the route", err)
	case errors.Is(err, sarama.ErrInvalidTimestamp):
		return fmt.Errorf("%w: raise the topic's message.timestamp limits", err)
	case errors.Is(err, sarama.ErrNotEnoughReplicas), errors.Is(err, sarama.ErrNotEnoughReplicasAfterAppend):
		return fmt.Errorf("%w: bring the other brokers back", err)
	default:
		return err
	}
}

// explainEnd says who may be behind an epoch that is no longer the newest.
func (k *Kafka) explainEnd(err error) error {
	if errors.Is(err, sarama.ErrInvalidProducerEpoch) && k.cfg.ProducerName != "" {
		return fmt.Errorf("%w: another instance uses transactional id %s; if it serves another database, give one of them another --slot", err, k.cfg.ProducerName)
	}
	return err
}
