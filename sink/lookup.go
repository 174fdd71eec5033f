package sink

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 2 * time.Second

	// refreshInterval is how soon new partitions of a topic are noticed.
	refreshInterval = time.Minute
)

// retryDelay is the jittered pause after so many failures in a row. After the first there is none: often
// a leader has moved or a connection was idle for too long.
func retryDelay(failures int) time.Duration {
	if failures <= 1 {
		return 0
	}
	delay := min(firstRetry<<min(failures-2, 10), lastRetry)
	return delay/2 + rand.N(delay/2+1)
}

// lookups decides when topics are looked up. The questions are put to the brokers by a goroutine
// of its own, one round at a time, because sarama blocks while it asks.
type lookups struct {
	wanted map[*topic]time.Time
	next   time.Time // the earliest of wanted
	timer  *time.Timer
	lost   []*sarama.Broker
	rounds chan round
	busy   bool
	asking sync.WaitGroup // the goroutine
}

// round is one set of questions: first the lost connections are closed, so that leaders are
// connected to anew.
type round struct {
	topics []*topic
	lost   []*sarama.Broker
}

// found is the answer about one topic.
type found struct {
	topic   *topic
	leaders []leader // by partition
	limit   int      // max.message.bytes; 0 where the brokers do not tell
	err     error
}

type leader struct {
	address string
	conn    *sarama.Broker
	err     error
}

func newLookups() *lookups {
	return &lookups{wanted: make(map[*topic]time.Time), timer: newTimer(), rounds: make(chan round, 1)}
}

// newTimer returns a timer that does not run.
func newTimer() *time.Timer {
	timer := time.NewTimer(0)
	timer.Stop()
	return timer
}

// schedule has a topic looked up after a delay, or earlier if that was asked for before.
func (l *lookups) schedule(t *topic, delay time.Duration) {
	at := time.Now().Add(delay)
	if before, ok := l.wanted[t]; ok && before.Before(at) {
		return
	}
	l.wanted[t] = at
	l.arm(at)
}

func (l *lookups) arm(at time.Time) {
	if l.next.IsZero() || at.Before(l.next) {
		l.next = at
		l.timer.Reset(time.Until(at))
	}
}

// giveUp closes a connection before the next round.
func (l *lookups) giveUp(conn *sarama.Broker) { l.lost = append(l.lost, conn) }

// due fires when a look-up should be made; it never does while a round is under way.
func (l *lookups) due() <-chan time.Time {
	if l.busy {
		return nil
	}
	return l.timer.C
}

// request starts a round with the topics that are due.
func (l *lookups) request() {
	now := time.Now()
	if l.busy || l.next.IsZero() || now.Before(l.next) {
		return
	}
	r := round{lost: l.lost}
	l.lost, l.next = nil, time.Time{}
	for t, at := range l.wanted {
		if now.Before(at) {
			l.arm(at)
			continue
		}
		r.topics = append(r.topics, t)
		delete(l.wanted, t)
	}
	l.busy = true
	l.rounds <- r
}

// start runs the goroutine that asks until the returned function is called.
func (l *lookups) start(ctx context.Context, k *Kafka) (stop func()) {
	l.asking.Go(func() {
		conns := newConnections(k.client.Config())
		defer conns.close()
		for r := range l.rounds {
			answers := k.ask(r, conns)
			select {
			case k.posts <- func() error { return k.found(answers) }:
			case <-ctx.Done():
			}
		}
	})
	return func() { close(l.rounds) }
}

// ask looks up topics and connects to their leaders. It runs on the goroutine of lookups and
// touches nothing but the client and the connections.
func (k *Kafka) ask(r round, conns *connections) []found {
	conns.begin(r.lost)
	names := make([]string, len(r.topics))
	for i, t := range r.topics {
		names[i] = t.name
	}
	err := k.client.RefreshMetadata(names...)
	answers := make([]found, len(r.topics))
	for i, t := range r.topics {
		if errors.Is(err, sarama.ErrOutOfBrokers) { // sarama would try them all again for each partition
			answers[i] = found{topic: t, err: err}
			continue
		}
		answers[i] = k.askTopic(t, conns) // another error may be that of another topic
	}
	for _, answer := range answers {
		for i := range answer.leaders {
			if l := &answer.leaders[i]; l.err == nil {
				l.conn, l.err = conns.get(l.address)
			}
		}
	}
	k.askLimits(answers)
	return answers
}

// askLimits asks for max.message.bytes of the topics that are found. Without an answer, as where the ACLs do not allow the
// question (DescribeConfigs), the brokers tell when they refuse a batch.
func (k *Kafka) askLimits(answers []found) {
	limits := make(map[string]*int)
	request := &sarama.DescribeConfigsRequest{Version: 1}
	for i := range answers {
		if f := &answers[i]; f.err == nil {
			limits[f.topic.name] = &f.limit
			request.Resources = append(request.Resources, &sarama.ConfigResource{
				Type: sarama.TopicResource, Name: f.topic.name, ConfigNames: []string{maxMessageBytes},
			})
		}
	}
	if len(limits) == 0 {
		return
	}
	broker := k.client.LeastLoadedBroker()
	if broker == nil {
		return
	}
	response, err := broker.DescribeConfigs(request)
	if err != nil {
		return
	}
	for _, resource := range response.Resources {
		for _, entry := range resource.Configs {
			if limit, err := strconv.Atoi(entry.Value); err == nil && entry.Name == maxMessageBytes && limits[resource.Name] != nil {
				*limits[resource.Name] = limit
			}
		}
	}
}

// maxMessageBytes is a topic's configuration: the largest record batch that it takes, in bytes as it is stored.
const maxMessageBytes = "max.message.bytes"

// askTopic finds the leaders of a topic and begins to connect to them.
func (k *Kafka) askTopic(t *topic, conns *connections) found {
	ids, err := k.client.Partitions(t.name)
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) && k.cfg.CreateTopics {
		err = k.createTopic(t.name)
	}
	if err != nil {
		return found{topic: t, err: err}
	}
	f := found{topic: t, leaders: make([]leader, len(ids))}
	for i, id := range ids {
		if int(id) != i {
			return found{topic: t, err: fmt.Errorf("partition %d is missing from the metadata", i)}
		}
		broker, err := k.client.Leader(t.name, id)
		if err != nil {
			f.leaders[i].err = err
			continue
		}
		conns.dial(broker.Addr())
		f.leaders[i].address = broker.Addr()
	}
	return f
}

// createTopic creates a topic with the brokers' defaults. It reports the topic as missing even
// when that went well: the next look-up finds it.
func (k *Kafka) createTopic(name string) error {
	admin, err := sarama.NewClusterAdminFromClient(k.client)
	if err != nil {
		return fmt.Errorf("create topic: %w", err)
	}
	err = admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: -1, ReplicationFactor: -1}, false)
	if err != nil && !errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return fmt.Errorf("create topic: %w", err)
	}
	return sarama.ErrLeaderNotAvailable
}

// found takes in the answers of a round.
func (k *Kafka) found(answers []found) error {
	k.lookup.busy = false
	for _, f := range answers {
		t := f.topic
		if f.err == nil && len(f.leaders) < len(t.partitions) {
			return fmt.Errorf("topic %s has %d partitions where it had %d: it was created anew", t.name, len(f.leaders), len(t.partitions))
		}
		if f.limit > 0 {
			t.limit = f.limit
		}
		if f.err == nil {
			f.err = k.lead(t, f.leaders)
		}
		if f.err != nil {
			t.failures++
			k.blocked(t, t.failures, f.err)
			continue
		}
		t.failures = 0
		k.lookup.schedule(t, refreshInterval)
	}
	return nil
}

// lead gives the partitions of a topic their leaders and returns an error of one that has none.
func (k *Kafka) lead(t *topic, leaders []leader) (err error) {
	// New partitions change where keys go: first everything sent to the old ones is settled.
	t.resize = 0
	if len(leaders) > len(t.partitions) {
		if t.settled() {
			for id := len(t.partitions); id < len(leaders); id++ {
				t.partitions = append(t.partitions, &partition{topic: t, id: int32(id), state: waiting})
			}
		} else {
			t.resize = len(leaders)
		}
	}
	for i, p := range t.partitions {
		if leaders[i].err != nil {
			err = fmt.Errorf("leader of partition %d: %w", p.id, leaders[i].err)
			continue
		}
		k.follow(p, k.broker(leaders[i].conn))
	}
	k.admit(t)
	return err
}

// follow has a partition send to a leader. What is in flight is awaited from the one before.
func (k *Kafka) follow(p *partition, leader *broker) {
	if p.listed && p.leader != leader {
		p.leader.ready = slices.DeleteFunc(p.leader.ready, func(other *partition) bool { return other == p })
		p.listed = false
	}
	p.leader = leader
	if p.state == waiting {
		p.state = idle
	}
	k.ready(p)
}

func (k *Kafka) broker(conn *sarama.Broker) *broker {
	br := k.brokers[conn]
	if br == nil {
		br = &broker{conn: conn}
		k.brokers[conn] = br
	}
	return br
}
