package replication

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pombo-cdc/pombo/decoder"
)

// action is one thing that happens to a session.
type action struct {
	Do        string
	Sizes     []int         // of the payloads of a transaction
	Cut       time.Duration // between its rows and its commit
	Keepalive bool          // inside it
	Reply     bool          // is requested by a keepalive
	Wait      time.Duration
}

func drawAction(t *rapid.T) action {
	interval := rapid.Int64Range(0, int64(2*statusInterval))
	s := action{Do: rapid.SampledFrom([]string{"transaction", "keepalive", "take", "release", "wait"}).Draw(t, "do")}
	switch s.Do {
	case "transaction":
		s.Sizes = rapid.SliceOfN(rapid.IntRange(0, 700), 0, 30).Draw(t, "sizes")
		if rapid.Bool().Draw(t, "whether cut") {
			s.Cut = time.Duration(interval.Draw(t, "cut"))
			s.Keepalive = rapid.Bool().Draw(t, "keepalive")
		}
	case "keepalive":
		s.Reply = rapid.Bool().Draw(t, "reply")
	case "wait":
		s.Wait = time.Duration(interval.Draw(t, "wait"))
	}
	return s
}

// I1, I2, I4: whatever the stream brings, wherever its transactions are cut, and however slow the sender is.
func TestOnlySafePositionsAreReported(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		actions := rapid.SliceOf(rapid.Custom(drawAction)).Draw(rt, "actions")
		inBubble(t, rt, func(t tester) {
			f := newFakePostgres(t)
			f.senderTimeout = time.Hour // it may be silent for long
			m := &model{session: receive(f, 500), end: slotPosition - 0x380, safe: map[pglogrepl.LSN]int{slotPosition: 0}}
			for _, a := range actions {
				m.do(a)
				m.check()
			}
			m.finish()
		})
	})
}

// inBubble runs one check of a property in a bubble of its own, so that rapid itself has the real time. All is drawn before.
func inBubble(t *testing.T, rt *rapid.T, property func(tester)) {
	var failure any
	synctest.Test(t, func(t *testing.T) {
		defer func() { failure = recover() }()
		property(bubbled{rt, t})
	})
	if failure != nil {
		panic(failure) // how rapid learns of it
	}
}

// bubbled is a rapid.T whose clean-up happens in the bubble.
type bubbled struct {
	*rapid.T
	bubble *testing.T
}

func (b bubbled) Cleanup(f func())         { b.bubble.Cleanup(f) }
func (b bubbled) Context() context.Context { return b.bubble.Context() }

// model is what a test knows of a session: the positions that were sent, and how many events lie before each.
type model struct {
	*session
	end      pglogrepl.LSN
	safe     map[pglogrepl.LSN]int // the number of events that have to be released before it is reported
	sent     int                   // events
	taken    int                   // by the sender
	released int
	held     []*decoder.Batch
	last     pglogrepl.LSN // that was reported
}

func (m *model) do(s action) {
	switch s.Do {
	case "transaction":
		m.transaction(s)
	case "keepalive":
		m.end += 0x100
		m.safe[m.end] = m.sent
		m.send(keepalive(m.end, s.Reply))
	case "take":
		if len(m.filled) > 0 {
			m.hold(<-m.filled)
		}
	case "release":
		m.releaseOldest()
	case "wait":
		m.pass(s.Wait)
	}
}

func (m *model) transaction(s action) {
	m.end += 0x100
	messages := [][]byte{begin(m.end), outbox()}
	for _, size := range s.Sizes {
		messages = append(messages, event(strconv.Itoa(m.sent), size))
		m.sent++
	}
	if s.Cut > 0 {
		m.send(messages...)
		if messages = nil; s.Keepalive {
			m.send(keepalive(m.end-commitRecord, true))
		}
		m.pass(s.Cut)
		m.check()
	}
	m.safe[m.end] = m.sent
	m.sendAtOnce(append(messages, commit(m.end))...)
}

// hold takes a batch. Events come in the order in which they were sent.
func (m *model) hold(b *decoder.Batch) {
	for _, id := range ids(b) {
		require.Equal(m.t, strconv.Itoa(m.taken), id)
		m.taken++
	}
	if b.LSN != 0 {
		m.requireSafe(b.LSN, m.taken)
	}
	m.held = append(m.held, b)
}

func (m *model) releaseOldest() {
	if len(m.held) > 0 {
		m.released += m.held[0].Len()
		m.release(m.held[0])
		m.held = m.held[1:]
	}
}

// check looks at what was reported, with the events that are released by now.
func (m *model) check() {
	m.settle()
	for _, r := range m.newReports() {
		m.requireSafe(r.lsn, m.released)
		m.last = r.lsn
	}
}

func (m *model) requireSafe(lsn pglogrepl.LSN, released int) {
	needed, known := m.safe[lsn]
	require.True(m.t, known, "position %s was made up", lsn)
	require.LessOrEqual(m.t, needed, released, "position %s is after events that are not released", lsn)
}

// finish lets everything arrive, be released and be reported.
func (m *model) finish() {
	for m.taken < m.sent {
		m.hold(m.batch())
		m.releaseOldest()
		m.check()
	}
	for len(m.held) > 0 {
		m.releaseOldest()
	}
	m.pass(statusInterval)
	m.check()
	require.Equal(m.t, max(slotPosition, m.end), m.last)
}
