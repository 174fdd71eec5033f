package outbox

import (
	"cmp"
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/sink"
)

func TestListShowsWhatIsInFrontAndHowManyWait(t *testing.T) {
	db := newDatabase(t)
	db.park(db.commit(bad("1", 7), good("2", 7), good("3", 7), bad("4", 7), bad("5", 0), bad("6", 0), bad("7", 8), good("8", 8))...)
	list := func() map[string]int64 {
		waiting := make(map[string]int64)
		require.NoError(t, ListParked(t.Context(), db.Conn, slot, false, func(p Parked) error {
			waiting[p.Name()] = p.Waiting
			return nil
		}))
		return waiting
	}
	require.Equal(t, map[string]int64{"1": 3, "4": 0, "5": 0, "6": 0, "7": 1}, list())
	db.exec(`DELETE FROM pombo.parked_event WHERE event_id = '1'`)
	require.Equal(t, map[string]int64{"2": 2, "4": 0, "5": 0, "6": 0, "7": 1}, list(), "nothing is in front of 2 any more")
	require.Equal(t, []string{"2", "3", "4", "5", "6", "7", "8"}, db.ids())
}

func TestFindNamesExactlyOne(t *testing.T) {
	db := newDatabase(t)
	db.park(db.commit(bad("1", 7), good("2", 7), bad(nil, 7))...)
	db.park(db.commit(bad("1", 7))...)
	find := func(which Which) (Parked, error) { return FindParked(t.Context(), db.Conn, slot, which) }
	all := db.all()

	p, err := find(Which{ID: "2"})
	require.NoError(t, err)
	require.Equal(t, all[1], p)
	p, err = find(Which{Seq: all[2].Seq})
	require.NoError(t, err)
	require.Equal(t, all[2], p)

	_, err = find(Which{ID: "1"})
	require.ErrorContains(t, err, `2 parked events have id "1", the first with --seq 1: `)
	_, err = find(Which{ID: "3"})
	require.ErrorContains(t, err, `no parked event of slot pombo has id "3": `)
	_, err = find(Which{Seq: 99})
	require.ErrorContains(t, err, "has seq 99")
}

func TestScopesAreReadInOrderAndInParts(t *testing.T) {
	db := newDatabase(t)
	odd := bad("3", 7)
	odd.values = [5]any{nil, "", "\x00\xff", nil, "a larger payload than the others"}
	db.park(db.commit(bad("1", 7), bad("2", 8), odd, bad("4", 8))...)
	read := func(s Scope, part Part) (seqs []int64) {
		if part.But == nil {
			part.But = []sink.Lane{}
		}
		part.Count, part.Size = cmp.Or(part.Count, 10), cmp.Or(part.Size, 1000)
		require.NoError(t, ReadParked(t.Context(), db.Conn, slot, s, part, func(r ParkedRow) error {
			seqs = append(seqs, r.Seq)
			if r.Seq == 3 {
				require.Equal(t, [][]byte{nil, {}, {0, 0xff}, nil, []byte("a larger payload than the others")}, r.Cells)
				require.Equal(t, db.layout.Columns, r.Columns)
				require.True(t, db.clock.Equal(r.CommittedAt))
			}
			return nil
		}))
		return seqs
	}
	require.Equal(t, []int64{1, 2, 3, 4}, read(Scope{}, Part{}))
	require.Equal(t, []int64{1, 2}, read(Scope{}, Part{Count: 2}))
	require.Equal(t, []int64{1, 2, 3}, read(Scope{}, Part{Size: 50}), "the row that goes beyond the size is the last")
	require.Equal(t, []int64{1}, read(Scope{}, Part{Size: 1}))
	require.Equal(t, []int64{3, 4}, read(Scope{}, Part{After: 2}))
	require.Equal(t, []int64{2, 4}, read(Scope{}, Part{But: []sink.Lane{7}}))
	require.Empty(t, read(Scope{}, Part{But: []sink.Lane{7, 8}}))

	for seq, want := range map[int64][]int64{2: {2, 4}, 3: {3}, 1: {1}} {
		p, err := FindParked(t.Context(), db.Conn, slot, Which{Seq: seq})
		require.NoError(t, err)
		require.Equal(t, want, read(ScopeOf(p), Part{}))
		n, err := CountScope(t.Context(), db.Conn, slot, ScopeOf(p))
		require.NoError(t, err)
		require.EqualValues(t, len(want), n)
	}
	p := Parked{Seq: 2} // without a key
	require.Equal(t, []int64{2}, read(ScopeOf(p), Part{}))
}

func TestSettleDeletesWhatIsDeliveredAndSaysWhyOthersStay(t *testing.T) {
	db := newDatabase(t)
	db.park(db.commit(bad("1", 7), bad("2", 7), good("3", 7))...)
	again := bad("2", 9)
	again.reason = "no topic for \xff\x00"
	refusal := NewRefusal(2, db.commit(again)[0])
	require.Equal(t, Refusal{Seq: 2, Name: "2", Topic: "orders", Lane: 9, Reason: "no topic for ??"}, refusal)
	refusal.Topic = "payments"
	require.NoError(t, Settle(t.Context(), db.Conn, slot, []int64{1}, []Refusal{refusal, {Seq: 3, Lane: 9}}))
	all := db.all()
	require.Len(t, all, 2)
	require.Equal(t, []any{"payments", "no topic for ??", sink.Lane(9)}, []any{all[0].Topic, all[0].Reason, all[0].Lane})
	require.Equal(t, []any{"", "", sink.Lane(9)}, []any{all[1].Topic, all[1].Reason, all[1].Lane})

	require.NoError(t, Settle(t.Context(), db.Conn, slot, nil, []Refusal{{Seq: 2, Topic: "payments", Lane: 9}}))
	require.Equal(t, "no topic for ??", db.all()[0].Reason, "that it waits for now does not make it good")
	require.NoError(t, Settle(t.Context(), db.Conn, "other", []int64{2, 3}, nil))
	require.Len(t, db.all(), 2, "those of another slot stay")
}

func TestDiscardDropsOneAndSaysHowManyAreLeft(t *testing.T) {
	db := newDatabase(t)
	db.park(db.commit(bad("1", 7), good("2", 7), good("3", 7), bad("4", 0), bad("5", 0))...)
	all := db.all()
	for i, want := range map[int]int64{1: 2, 3: 0} {
		left, err := Discard(t.Context(), db.Conn, slot, all[i])
		require.NoError(t, err)
		require.Equal(t, want, left)
	}
	require.Equal(t, []string{"1", "3", "5"}, db.ids())
	_, err := Discard(t.Context(), db.Conn, slot, all[1])
	require.EqualError(t, err, "discard parked event: event 2 is not parked any more")
}

func TestOnlyOneManagesASlotAtATime(t *testing.T) {
	db := newDatabase(t)
	second, err := pgx.ConnectConfig(t.Context(), db.Config())
	require.NoError(t, err)
	defer func() { _ = second.Close(context.Background()) }()
	unlock, err := LockManagement(t.Context(), db.Conn, slot)
	require.NoError(t, err)
	_, err = LockManagement(t.Context(), second, slot)
	require.ErrorContains(t, err, "is under way: wait until it has ended")
	_, err = LockManagement(t.Context(), second, "other")
	require.NoError(t, err)
	unlock()
	_, err = LockManagement(t.Context(), second, slot)
	require.NoError(t, err)
}

func TestCountIsNotKnownWithoutTheTable(t *testing.T) {
	db := newDatabase(t)
	db.park(db.commit(bad("1", 7), bad("2", 7))...)
	n, err := CountParked(t.Context(), db.Conn, slot)
	require.NoError(t, err)
	require.EqualValues(t, 2, *n)

	guest, err := pgx.ConnectConfig(t.Context(), db.as(""))
	require.NoError(t, err)
	defer func() { _ = guest.Close(context.Background()) }()
	n, err = CountParked(t.Context(), guest, slot)
	require.NoError(t, err)
	require.Nil(t, n)

	for _, cut := range []string{`DROP TABLE pombo.parked_event`, `DROP SCHEMA pombo CASCADE`} {
		db.exec(cut)
		n, err = CountParked(t.Context(), db.Conn, slot)
		require.NoError(t, err)
		require.Nil(t, n)
	}
}
