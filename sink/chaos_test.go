package sink

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Whatever brokers refuse, whichever answers and connections are lost and wherever leaders move, every event is in
// its topic once, the keys in order, and nothing is flushed too early (I1).
func TestTroubleLosesAndReordersNothing(t *testing.T) {
	const brokers, partitions, rounds = 3, 4, 100
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	topics := []string{"orders", "payments"}
	cluster, tap := newCluster(t, brokers, kfake.SeedTopics(partitions, topics...))
	s := run(t, config(cluster))

	muted, losing := make([]bool, brokers), make([]bool, brokers) // guarded by tap
	tap.set(nil,
		func(r *produceRequest) bool { return muted[r.node] },
		func(r *produceRequest) (lose bool) {
			lose, losing[r.node] = losing[r.node], false
			return lose
		})
	trouble := []func(){
		func() { tap.cut(random.IntN(brokers)) },
		func() { tap.change(func() { losing[random.IntN(brokers)] = true }) },
		func() { tap.change(func() { muted[random.IntN(brokers)] = true }) },
		func() { tap.change(func() { clear(muted) }) },
		func() {
			topic, p := topics[random.IntN(len(topics))], random.Int32N(partitions)
			require.NoError(t, cluster.MoveTopicPartition(topic, p, random.Int32N(brokers)))
		},
		func() {
			refusals := []*kerr.Error{kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.RequestTimedOut, kerr.NotLeaderForPartition}
			cluster.Fault(kfake.Fault{
				Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{random.Int32N(partitions)}, Err: refusals[random.IntN(len(refusals))],
			})
		},
	}
	ends := map[int64]int{0: 0} // rows up to each transaction
	for range rounds {
		for range random.IntN(10) {
			var rows []row
			for range 1 + random.IntN(3) {
				topic, key := topics[random.IntN(len(topics))], fmt.Sprint("key", random.IntN(20))
				rows = append(rows, row{fmtID(len(s.rows) + len(rows)), topic, key, "Happened", ""})
			}
			tap.unmuteIfStuck(s, muted)
			ends[int64(s.commit(rows...))] = len(s.rows)
		}
		trouble[random.IntN(len(trouble))]()
		flushed := s.flushed.Load()
		require.True(t, flushed == 0 || ends[int64(flushed)] > 0, "%s is no stamp", flushed)
		acknowledged := tap.acknowledged(t)
		for _, r := range s.rows[:ends[int64(flushed)]] {
			require.True(t, acknowledged[r[0]], "%v is not acknowledged, but flushed is %s", r[0], flushed)
		}
	}
	tap.set(nil, nil, nil)
	s.finish(cluster)
}

// unmuteIfStuck lets all answers through where the next transaction would find no free batch.
func (w *wiretap) unmuteIfStuck(s *session, muted []bool) {
	if s.pool.Available() == 0 {
		w.change(func() { clear(muted) })
	}
}

// acknowledged returns the ids of the events whose acknowledgement is on its way or has arrived.
func (w *wiretap) acknowledged(t tester) map[any]bool {
	ids := make(map[any]bool)
	for _, r := range w.all() {
		for _, b := range r.batches {
			if !r.answered || b.code != 0 {
				continue
			}
			records, err := kfake.BatchRecords(b.RecordBatch)
			require.NoError(t, err)
			for _, record := range records {
				ids[string(record.Headers[0].Value)] = true
			}
		}
	}
	return ids
}
