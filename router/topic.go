package router

import (
	"errors"
	"fmt"
)

// maxTopic is how long a topic's name may be, in bytes.
const maxTopic = 249

// TopicError says that an event has no topic that Kafka takes. Nothing but a change of the
// configuration or the row can cure it.
type TopicError struct {
	AggregateType string // empty if the row's is NULL or empty
	Topic         string // the name that was refused; cut off if it is too long, empty if there is none
	Reason        error
}

func (e *TopicError) Error() string {
	if e.AggregateType == "" {
		return fmt.Sprintf("no topic: %v", e.Reason)
	}
	return fmt.Sprintf("no topic for aggregate type %.*q: %v", maxTopic, e.AggregateType, e.Reason)
}

func (e *TopicError) Unwrap() error { return e.Reason }

var errLongTopic = fmt.Errorf("the name is longer than %d bytes", maxTopic)

// checkTopic says why Kafka would refuse a name. The rules are those of its class
// org.apache.kafka.common.internals.Topic.
func checkTopic(name string) error {
	switch name {
	case "":
		return errors.New("the name is empty")
	case ".", "..":
		return fmt.Errorf("the name %q is reserved", name)
	case "__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata":
		return fmt.Errorf("topic %s is internal to Kafka", name)
	}
	if len(name) > maxTopic {
		return errLongTopic
	}
	return checkCharacters(name)
}

func checkCharacters(name string) error {
	for _, c := range name {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return fmt.Errorf("%q has %q, but Kafka takes only a-z, A-Z, 0-9, '.', '_' and '-'", name, c)
		}
	}
	return nil
}
