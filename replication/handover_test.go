package replication

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/decoder"
)

// handedOver are the events of the batches that wait for the sender, a slice each.
func (s *session) handedOver() [][]string {
	s.settle()
	var all [][]string
	for len(s.filled) > 0 {
		all = append(all, ids(<-s.filled))
	}
	return all
}

func TestATransactionIsHandedOverAtItsCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		sent := time.Now()
		s.send(begin(0x6000), outbox(), event("a", 0), event("b", 0))
		require.Empty(t, s.handedOver())
		s.send(commit(0x6000))
		require.Equal(t, [][]string{{"a", "b"}}, s.handedOver())
		require.Equal(t, sent, time.Now())
	})
}

// A walsender that has no more to send says so at once, so the keepalive often comes together with the commit.
func TestAKeepaliveBehindTheCommitDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.settle()
		s.sendAtOnce(append(transaction(0x6000, "a"), keepalive(0x6100, false))...)
		require.Equal(t, [][]string{{"a"}}, s.handedOver())
	})
}

// Transactions that are here already cost the sender no wait.
func TestTransactionsThatArriveTogetherShareABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.settle()
		s.sendAtOnce(append(transaction(0x6000, "a"), transaction(0x7000, "b")...)...)
		b := s.batch()
		require.Equal(t, []string{"a", "b"}, ids(b))
		require.Equal(t, pglogrepl.LSN(0x7000), b.LSN)
	})
}

func TestABatchGrowsWhileTheSenderIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.send(transaction(0x6000, "a")...)
		s.settle()
		require.Len(t, s.filled, 1, "the sender does not take it")
		s.send(transaction(0x7000, "b")...)
		s.send(transaction(0x8000, "c")...)
		s.pass(linger - 1)
		require.Equal(t, [][]string{{"a"}}, s.handedOver())
		s.pass(1)
		require.Equal(t, [][]string{{"b", "c"}}, s.handedOver(), "after the linger it has to take what there is")
	})
}

// What is late already loses nothing by waiting, and large batches make up for it.
func TestABatchGrowsWhileTheStreamIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.send(sentLate(lateness, transaction(0x6000, "in time"))...)
		require.Equal(t, [][]string{{"in time"}}, s.handedOver())
		s.send(sentLate(lateness+time.Millisecond, transaction(0x7000, "a"))...)
		s.pass(lateLinger / 2)
		s.send(sentLate(lateness+time.Millisecond, transaction(0x8000, "b"))...)
		require.Empty(t, s.handedOver())
		s.pass(lateLinger)
		require.Equal(t, [][]string{{"a", "b"}}, s.handedOver())
		s.send(transaction(0x9000, "in time again")...)
		s.pass(tcpFillTime)
		require.Equal(t, [][]string{{"in time again"}}, s.handedOver())
	})
}

// Half empty batches would use up the budget while Kafka is slow.
func TestABatchWaitsTheLongerTheFewerAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		for i := range decoder.Batches - 4 {
			s.send(transaction(0x6000+pglogrepl.LSN(i), fmt.Sprint(i))...)
			s.pass(statusInterval)
			s.batch()
		}
		s.send(transaction(0x7000, "a")...)
		s.pass(10 * linger)
		s.send(transaction(0x8000, "b")...)
		require.Empty(t, s.handedOver())
		s.pass(statusInterval)
		require.Equal(t, [][]string{{"a", "b"}}, s.handedOver())
	})
}

func TestABatchGrowsWhileMostOfTheBudgetIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		var inFlight []*decoder.Batch
		for i := range decoder.Batches / 2 {
			s.send(transaction(0x6000+pglogrepl.LSN(i), fmt.Sprint(i))...)
			inFlight = append(inFlight, s.batch())
		}
		s.send(transaction(0x7000, "a")...)
		s.send(transaction(0x7100, "b")...)
		require.Empty(t, s.handedOver())
		s.release(inFlight[0])
		s.send(transaction(0x7200, "c")...)
		require.Equal(t, [][]string{{"a", "b", "c"}}, s.handedOver())
	})
}

func TestAnOpenTransactionIsHandedOverAfterTheLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.send(begin(0x6000), outbox(), event("a", 0))
		s.pass(linger - 1)
		require.Empty(t, s.filled)
		s.pass(1)
		require.Equal(t, [][]string{{"a"}}, s.handedOver())
	})
}

func TestTheLingerEndsInABusyStreamToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), largeArena)
		s.send(begin(0x6000), outbox())
		var total int
		for started := time.Now(); time.Since(started) < 20*linger; {
			s.send(event("a", 0))
			s.pass(linger / 10)
			for _, batch := range s.handedOver() {
				require.LessOrEqual(t, len(batch), 20)
				total += len(batch)
			}
		}
		require.Greater(t, total, 150)
	})
}

func TestAFullBatchIsHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := receive(newFakePostgres(t), 1000)
		s.send(begin(0x6000), outbox(), event("a", 300), event("b", 300), event("c", 600), event("d", 0))
		require.Equal(t, [][]string{{"a", "b"}}, s.handedOver())
		s.send(commit(0x6000))
		require.Equal(t, [][]string{{"c", "d"}}, s.handedOver())
	})
}

func TestAHugeRowTakesItsShareOfTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const arena = 1000
		s := receive(newFakePostgres(t), arena)
		s.send(begin(0x6000), outbox(), event("huge", 10*arena), commit(0x6000))
		b := s.batch()
		require.Len(t, b.Event(0).Column(decoder.Payload), 10*arena)
		s.settle()
		require.Equal(t, decoder.Batches-11, s.pool.Available(), "what it has beside the payload takes one more")
		s.release(b)
		require.Equal(t, decoder.Batches, s.pool.Available())
	})
}

func TestARowLargerThanTheBudgetPassesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const arena = 1000
		s := receive(newFakePostgres(t), arena)
		s.send(transaction(0x6000, "before")...)
		before := s.batch()
		s.send(begin(0x7000), outbox(), event("huge", 2*decoder.Batches*arena), event("after", 0), commit(0x7000))
		s.pass(time.Minute)
		require.Empty(t, s.filled, "it waits for the whole budget")
		s.release(before)
		huge := s.batch()
		require.Equal(t, []string{"huge"}, ids(huge))
		s.pass(time.Minute)
		require.Empty(t, s.filled, "and nothing else is received meanwhile")
		s.release(huge)
		require.Equal(t, []string{"after"}, ids(s.batch()))
	})
}
