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

// I1, I2, I4: whatever the stream brings, wherever its transactions are cut, and however slow the sender is.
func TestOnlySafePositionsAreReported(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		inBubble(t, rt, func(t tester) {
			m := &model{session: receive(newFakePostgres(t), 500), end: slotPosition - 0x380, safe: map[pglogrepl.LSN]int{slotPosition: 0}}
			rt.Repeat(map[string]func(*rapid.T){
				"transaction": m.transaction,
				"keepalive":   m.keepalive,
				"take":        m.take,
				"release":     m.release,
				"wait":        m.wait,
				"":            m.check,
			})
			m.finish()
		})
	})
}

// inBubble runs one check of a property in a bubble of its own, so that rapid itself has the real time.
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

func (m *model) transaction(t *rapid.T) {
	m.end += 0x100
	messages := [][]byte{begin(m.end), outbox()}
	for _, size := range rapid.SliceOfN(rapid.IntRange(0, 700), 0, 30).Draw(t, "sizes") {
		messages = append(messages, event(strconv.Itoa(m.sent), size))
		m.sent++
	}
	if rapid.Bool().Draw(t, "with a keepalive inside") {
		messages = append(messages, keepalive(m.end-commitRecord, true))
	}
	messages = append(messages, commit(m.end))
	m.safe[m.end] = m.sent
	if rapid.Bool().Draw(t, "at once") {
		m.sendAtOnce(messages...)
		return
	}
	for _, msg := range messages {
		m.send(msg)
	}
}

func (m *model) keepalive(t *rapid.T) {
	m.end += 0x100
	m.safe[m.end] = m.sent
	m.send(keepalive(m.end, rapid.Bool().Draw(t, "reply")))
}

func (m *model) wait(t *rapid.T) {
	m.pass(time.Duration(rapid.Int64Range(0, int64(2*statusInterval)).Draw(t, "time")))
}

// take takes a batch from the Receiver. Events come in the order in which they were sent.
func (m *model) take(*rapid.T) {
	m.settle()
	if len(m.filled) > 0 {
		m.hold(<-m.filled)
	}
}

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

func (m *model) release(*rapid.T) {
	if len(m.held) > 0 {
		m.released += m.held[0].Len()
		m.session.release(m.held[0])
		m.held = m.held[1:]
	}
}

// check looks at what was reported, with the events that are released by now.
func (m *model) check(*rapid.T) {
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
		m.release(nil)
		m.check(nil)
	}
	for len(m.held) > 0 {
		m.release(nil)
	}
	m.pass(statusInterval)
	m.check(nil)
	require.Equal(m.t, max(slotPosition, m.end), m.last)
}
