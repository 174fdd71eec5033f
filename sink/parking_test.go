package sink

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/pombo-cdc/pombo/decoder"
)

// shelf is a Parking in memory.
type shelf struct {
	mu     sync.Mutex
	events []shelved
	before func() error // runs before events are stored
}

type shelved struct {
	id, topic, reason string
	lane              Lane
}

func (s *shelf) Lanes(context.Context) (lanes []Lane, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		lanes = append(lanes, e.lane)
	}
	return lanes, nil
}

func (s *shelf) Park(_ context.Context, events []ParkedEvent) ([]bool, error) {
	if s.before != nil {
		if err := s.before(); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	parked := make([]bool, len(events))
	for i, e := range events {
		blocked := slices.ContainsFunc(s.events, func(other shelved) bool { return other.lane == e.Lane || other.lane == e.TypeLane })
		if parked[i] = e.Reason != "" || blocked; parked[i] {
			s.events = append(s.events, shelved{string(e.Event.Column(decoder.ID)), e.Topic, e.Reason, e.Lane})
		}
	}
	return parked, nil
}

// take empties a lane, as a retry does, and returns the ids that were in it.
func (s *shelf) take(lane Lane) (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = slices.DeleteFunc(s.events, func(e shelved) bool {
		if e.lane == lane {
			ids = append(ids, e.id)
		}
		return e.lane == lane
	})
	return ids
}

func (s *shelf) ids() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		ids = append(ids, e.id)
	}
	return ids
}

func parkingConfig(cluster *kfake.Cluster, parking Parking) Config {
	cfg := config(cluster)
	cfg.Parking = parking
	return cfg
}

// A poisoned event is parked with all that follows in its lane, in order. Everything else is delivered, and nothing is held up.
func TestPoisonIsParkedWithWhatFollowsItsKey(t *testing.T) {
	for name, refused := range map[string]func(*kfake.Cluster, *row){
		"too large": func(_ *kfake.Cluster, bad *row) { bad[4] = strings.Repeat("x", smallLimit) },
		"too large, and the brokers do not tell the limit": func(cluster *kfake.Cluster, bad *row) {
			bad[4] = strings.Repeat("x", smallLimit)
			cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Err: kerr.TopicAuthorizationFailed, Count: -1})
		},
		"refused": func(cluster *kfake.Cluster, bad *row) {
			bad[0] = "poison"
			cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord, Count: -1, When: carriesPoison})
		},
		"without a topic": func(_ *kfake.Cluster, bad *row) { bad[1] = nil },
	} {
		t.Run(name, func(t *testing.T) {
			cluster, tap := newCluster(t, 1)
			require.NoError(t, cluster.CreateTopic("orders", 1, map[string]string{"max.message.bytes": fmt.Sprint(smallLimit)}))
			parking := new(shelf)
			s := run(t, parkingConfig(cluster, parking))
			s.awaitFlushed(s.commit(s.events("orders", "a", "b")...))
			tap.set(produceRequests, nil, nil)
			s.commit(s.events("orders", "a", "b")...)
			bad := s.events("orders", "a")[0]
			refused(cluster, &bad)
			s.commit(bad)
			later := s.events("orders", "a")[0]
			later[1] = bad[1]
			s.commit(later)
			s.commit(s.events("orders", "b", "c")...)
			eventually(t, "everything is queued", func() bool { return len(s.filled) == 0 })
			tap.set(nil, nil, nil)
			eventually(t, "both are parked", func() bool { return len(parking.ids()) == 2 })
			afterwards := s.events("orders", "a", "b")
			if bad[1] == nil {
				afterwards[0][1] = nil
			}
			s.awaitFlushed(s.commit(afterwards...))

			behind := []string{bad[0].(string), later[0].(string), afterwards[0][0].(string)}
			require.Equal(t, behind, parking.ids())
			require.NotEmpty(t, parking.events[0].reason)
			if bad[1] != nil {
				require.Equal(t, []string{"orders", "", ""}, []string{parking.events[2].topic, parking.events[1].reason, parking.events[2].reason})
			}
			close(s.filled)
			require.NoError(t, s.result())
			require.Equal(t, decoder.Batches, s.pool.Available())
			s.requireDelivered(cluster, slices.DeleteFunc(slices.Clone(s.rows), func(r row) bool { return slices.Contains(behind, r[0].(string)) }))
		})
	}
}

// What was parked before the start keeps its lane closed; once it is empty, events flow again, and the first of them in order.
func TestALaneOpensWhenItsParkedEventsAreGone(t *testing.T) {
	cluster, _ := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	lane := laneOf("orders", []byte("a"))
	parking := &shelf{events: []shelved{{id: "earlier", lane: lane}}}
	s := run(t, parkingConfig(cluster, parking))
	s.awaitFlushed(s.commit(s.events("orders", "a", "b", "a")...))
	require.Equal(t, []string{"earlier", "event-0", "event-2"}, parking.ids())
	parking.take(lane)
	flowing := s.events("orders", "a", "b", "a", "a")
	s.awaitFlushed(s.commit(flowing...))
	s.awaitFlushed(s.commit(s.events("orders", "a")...))
	require.Empty(t, parking.ids())
	s.requireDelivered(cluster, append([]row{s.rows[1]}, s.rows[3:]...))
}

// Events without a key have no order: one that is parked holds up no other.
func TestPoisonWithoutAKeyHoldsUpNothing(t *testing.T) {
	cluster, _ := newCluster(t, 1)
	require.NoError(t, cluster.CreateTopic("orders", 1, map[string]string{"max.message.bytes": fmt.Sprint(smallLimit)}))
	parking := new(shelf)
	s := run(t, parkingConfig(cluster, parking))
	rows := s.events("orders", "", "", "")
	for i := range rows {
		rows[i][2] = nil
	}
	rows[1][4] = strings.Repeat("x", smallLimit)
	s.awaitFlushed(s.commit(rows...))
	require.Equal(t, []string{"event-1"}, parking.ids())
	require.Equal(t, []string{"event-0", "event-2"}, recordIDs(t, cluster, "orders"))
}

func recordIDs(t *testing.T, cluster *kfake.Cluster, topic string) (ids []string) {
	for _, r := range consume(t, cluster, topic) {
		ids = append(ids, eventID(r))
	}
	return ids
}

// Where nothing can be parked, the session ends at the event, with both reasons, and nothing behind it is confirmed.
func TestWhatCannotBeParkedEndsTheSession(t *testing.T) {
	cluster, _ := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	parking := &shelf{before: func() error { return errors.New("the disk is on fire") }}
	s := run(t, parkingConfig(cluster, parking))
	first := s.commit(s.events("orders", "a")...)
	s.commit(row{"lost", "no/topic", "a", "Happened", "x"})
	s.commit(s.events("orders", "b")...)
	err := s.result()
	require.ErrorAs(t, err, new(*PoisonError))
	require.ErrorContains(t, err, "event lost cannot be routed")
	require.ErrorContains(t, err, "the disk is on fire")
	require.Equal(t, first, s.flushed.Load())
	require.Less(t, s.pool.Available(), decoder.Batches)
}

// A limit that was raised since the topic was looked up counts.
func TestALimitThatIsRaisedIsNoticedBeforeAnEventIsParked(t *testing.T) {
	cluster, _ := newCluster(t, 1)
	require.NoError(t, cluster.CreateTopic("orders", 1, map[string]string{"max.message.bytes": fmt.Sprint(smallLimit)}))
	parking := new(shelf)
	s := run(t, parkingConfig(cluster, parking))
	s.awaitFlushed(s.commit(s.events("orders", "a")...))
	admin, err := sarama.NewClusterAdmin(cluster.ListenAddrs(), nil)
	require.NoError(t, err)
	defer func() { _ = admin.Close() }()
	raised := "200000"
	require.NoError(t, admin.AlterConfig(sarama.TopicResource, "orders", map[string]*string{"max.message.bytes": &raised}, false))
	large := s.events("orders", "a")
	large[0][4] = strings.Repeat("x", 100_000)
	s.awaitFlushed(s.commit(large...))
	require.Empty(t, parking.ids())
	s.finish(cluster)
}

// What compresses to less than the topic takes is sent, what does not is parked without a try.
func TestTheSizeThatCountsIsThatOfTheCompressedBatch(t *testing.T) {
	noise := make([]byte, 6*smallLimit)
	rng := rand.NewChaCha8([32]byte{})
	_, _ = rng.Read(noise)
	for i := range noise {
		noise[i] = ' ' + noise[i]%95
	}
	for _, codec := range []sarama.CompressionCodec{sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD} {
		t.Run(codec.String(), func(t *testing.T) {
			cluster, tap := newCluster(t, 1)
			require.NoError(t, cluster.CreateTopic("orders", 1, map[string]string{"max.message.bytes": fmt.Sprint(smallLimit)}))
			parking := new(shelf)
			cfg := parkingConfig(cluster, parking)
			cfg.Compression = codec
			s := run(t, cfg)
			rows := s.events("orders", "a", "b", "c")
			rows[0][4], rows[1][4] = strings.Repeat("x", 6*smallLimit), string(noise)
			s.awaitFlushed(s.commit(rows...))
			require.Equal(t, []string{"event-1"}, parking.ids())
			require.Equal(t, []string{"event-0", "event-2"}, recordIDs(t, cluster, "orders"))
			for _, b := range tap.batches("orders") {
				require.Zero(t, b.code, "a batch was refused")
			}
		})
	}
}

// The size that is worked out before sending is that on the wire, so that an event of exactly the limit is sent.
func TestRecordSizeIsThatOfTheWire(t *testing.T) {
	cluster, tap := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	s := run(t, config(cluster))
	for _, size := range []int{0, 1, 40, 63, 64, 100, 127, 128, 8000, 8191, 8192, 70_000, 1_000_000} {
		r := s.events("orders", strings.Repeat("k", size%300))
		r[0][4] = strings.Repeat("x", size)
		s.awaitFlushed(s.commit(r...))
	}
	unknown := row{"e", "orders", nil, nil, nil}
	s.awaitFlushed(s.commit(unknown))

	again := newSource(t)
	again.commit(s.rows...)
	build := assembler{router: again.router()}
	batches := tap.batches("orders")
	for b := again.batchOf(); b != nil; b = again.batchOf() {
		for i := range b.Len() {
			require.Len(t, batches[0].raw, batchOverhead+build.recordSize(b.Event(i)))
			batches = batches[1:]
		}
	}
	require.Empty(t, batches)
}

// batchOf returns the next batch that is filled, or nil.
func (s *source) batchOf() *decoder.Batch {
	select {
	case b := <-s.filled:
		return b
	default:
		return nil
	}
}

// However parking, retries and new events meet, each key stays in order: nothing is published while an earlier event of
// its key is parked, and what is parked comes out as it went in.
func TestLanesStayInOrderWhateverHappens(t *testing.T) {
	cluster, _ := newCluster(t, 1)
	require.NoError(t, cluster.CreateTopic("orders", 2, map[string]string{"max.message.bytes": fmt.Sprint(smallLimit)}))
	parking := new(shelf)
	rng := rand.New(rand.NewPCG(1, 2))
	lanes := make(map[Lane]string)
	for _, key := range []string{"a", "b", "c"} {
		lanes[laneOf("orders", []byte(key))] = key
	}
	retried := make(map[string][]string)
	var random sync.Mutex
	parking.before = func() error { // a retry comes in between
		random.Lock()
		defer random.Unlock()
		if rng.IntN(3) == 0 {
			for lane, key := range lanes {
				retried[key] = append(retried[key], parking.take(lane)...)
			}
		}
		return nil
	}
	s := run(t, parkingConfig(cluster, parking))
	for range 500 {
		rows := s.events("orders", "a", "b", "c")
		random.Lock()
		if rng.IntN(10) == 0 {
			rows[rng.IntN(3)][4] = strings.Repeat("x", smallLimit)
		}
		random.Unlock()
		s.commit(rows...)
	}
	close(s.filled)
	require.NoError(t, s.result())
	require.Equal(t, s.committed, s.flushed.Load())

	published := make(map[string][]string)
	for _, r := range consume(t, cluster, "orders") {
		published[string(r.Key)] = append(published[string(r.Key)], eventID(r))
	}
	for lane, key := range lanes {
		require.True(t, slices.IsSortedFunc(published[key], byNumber), key)
		require.NotEmpty(t, retried[key])
		left := parking.take(lane)
		require.True(t, slices.IsSortedFunc(append(retried[key], left...), byNumber), "%s: %v", key, append(retried[key], left...))
		if len(left) > 0 {
			require.Negative(t, byNumber(published[key][len(published[key])-1], left[0]), "published past a parked event")
		}
		require.Len(t, append(append(published[key], retried[key]...), left...), 500)
	}
}

// A batch may have been written although its answer was lost. If it is refused when it is tried again, its sequence numbers must not
// be used for others: the brokers would say that they have those, and they would be lost. The session ends.
func TestARefusalAfterALostAnswerLosesNothing(t *testing.T) {
	cluster, tap := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	parking := new(shelf)
	s := run(t, parkingConfig(cluster, parking))
	first := s.commit(s.events("orders", "z")...)
	s.awaitFlushed(first)
	tap.set(nil, nil, func(*produceRequest) bool { return true })
	s.commit(row{"poison", "orders", "a", "Happened", "x"})
	eventually(t, "a first try", func() bool { return len(tap.batches("orders")) >= 2 })
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord, Count: -1, When: carriesPoison})
	tap.set(nil, nil, nil)
	require.ErrorContains(t, s.result(), "may have written")
	require.Equal(t, first, s.flushed.Load())
	require.Empty(t, parking.ids())
}

// What came before an event without a topic is not parked behind it, though it waits for its own topic to be looked up.
func TestWhatIsBeforeAnEventWithoutATopicIsNotParkedBehindIt(t *testing.T) {
	cluster, _ := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	parking := new(shelf)
	s := runTo(t, parkingConfig(cluster, parking), "{{.EventType}}")
	s.awaitFlushed(s.commit(
		row{"before", "T", "a", "orders", "x"}, row{"poison", "T", "a", "no/topic", "x"}, row{"behind", "T", "a", "orders", "x"}))
	require.Equal(t, []string{"poison", "behind"}, parking.ids())
	require.Equal(t, []string{"before"}, recordIDs(t, cluster, "orders"))
}

// slowShelf is a Parking that does not come to an end.
type slowShelf struct {
	shelf
	asked chan struct{}
}

func (s *slowShelf) Park(ctx context.Context, _ []ParkedEvent) ([]bool, error) {
	close(s.asked)
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// A session that ends by itself does not wait for its Parking.
func TestASessionEndsWhileItParks(t *testing.T) {
	cluster, _ := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	parking := &slowShelf{asked: make(chan struct{})}
	s := run(t, parkingConfig(cluster, parking))
	s.commit(row{"poison", "no/topic", "a", "Happened", "x"})
	<-parking.asked
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidProducerEpoch, Count: -1})
	s.commit(s.events("orders", "b")...)
	require.ErrorIs(t, s.result(), sarama.ErrInvalidProducerEpoch)
	closed := make(chan struct{})
	go func() {
		s.close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		s.cancel(nil)
		require.Fail(t, "Close waits for the Parking")
	}
}

// A session that has lost the slot ends, and does not take that for the fault of an event.
func TestASessionThatCannotParkBecauseItLostTheSlotEnds(t *testing.T) {
	cluster, _ := newCluster(t, 1, kfake.SeedTopics(1, "orders"))
	s := run(t, parkingConfig(cluster, &shelf{before: func() error { return fmt.Errorf("park events: %w", ErrFenced) }}))
	s.commit(row{"poison", "no/topic", "a", "Happened", "x"})
	err := s.result()
	require.ErrorIs(t, err, ErrFenced)
	require.False(t, errors.As(err, new(*PoisonError)), err)
}

// Poison that was the last event for the old partitions of a topic lets the new ones come.
func TestPoisonDoesNotHoldUpNewPartitions(t *testing.T) {
	cluster, _ := newCluster(t, 1)
	require.NoError(t, cluster.CreateTopic("orders", 1, map[string]string{"max.message.bytes": fmt.Sprint(smallLimit)}))
	parking := new(shelf)
	s := run(t, parkingConfig(cluster, parking))
	s.awaitFlushed(s.commit(s.events("orders", "a")...))
	addPartitions(t, cluster, "orders", 2)
	large := s.events("orders", "a")
	large[0][4] = strings.Repeat("x", smallLimit)
	s.awaitFlushed(s.commit(large...))
	s.awaitFlushed(s.commit(s.events("orders", "b")...)) // sooner than topics are looked up anyway
}

func byNumber(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}
