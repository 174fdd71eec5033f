package outbox

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/migrations"
	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/sink"
)

func TestEventsWaitBehindTheirLane(t *testing.T) {
	db := newDatabase(t)
	require.Equal(t, []bool{false, true, false, true}, db.park(db.commit(good("1", 7), bad("2", 7), good("3", 8), good("4", 7))...),
		"what comes before a refused event goes its way")
	require.Equal(t, []bool{true, false, true}, db.park(db.commit(good("5", 7), good("6", 8), bad("7", 9))...))
	require.Equal(t, []string{"2", "4", "5", "7"}, db.ids())
	lanes, err := db.parking().Lanes(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, []sink.Lane{7, 9}, lanes)
}

// A later event whose topic is known waits for one that had none.
func TestEventsWaitForThoseOfTheirTypeToo(t *testing.T) {
	db := newDatabase(t)
	events := db.commit(bad("1", 7), good("2", 8), good("3", 8), good("4", 9))
	events[1].TypeLane, events[2].TypeLane = 7, 6
	require.Equal(t, []bool{true, true, true, false}, db.park(events...), "3 is behind 2, in a lane of the same topic")
	later := db.commit(good("5", 10))
	later[0].TypeLane = 7
	require.Equal(t, []bool{true}, db.park(later...))
}

func TestEventsWithoutKeyWaitForNothing(t *testing.T) {
	db := newDatabase(t)
	require.Equal(t, []bool{true, false, true}, db.park(db.commit(bad("1", 0), good("2", 0), bad("3", 0))...))
	require.Equal(t, []bool{false}, db.park(db.commit(good("4", 0))...))
	lanes, err := db.parking().Lanes(t.Context())
	require.NoError(t, err)
	require.Empty(t, lanes)
}

func TestOtherSlotsHaveTheirOwnLanes(t *testing.T) {
	db := newDatabase(t)
	db.park(db.commit(bad("1", 7))...)
	other := NewParking(db.Config(), "other", db.holdSlot("other"), db.layout, db.parking().log)
	parked, err := other.Park(t.Context(), db.commit(good("2", 7)))
	require.NoError(t, err)
	require.Equal(t, []bool{false}, parked)
}

func TestParkingAgainAfterACrashAddsNothing(t *testing.T) {
	db := newDatabase(t)
	first := db.commit(bad("1", 7), good("2", 7), bad(nil, 8))
	require.Equal(t, []bool{true, true, true}, db.park(first...))
	behind := db.commit(good("3", 7))
	require.Equal(t, []bool{true, true, true, true}, db.park(append(first, behind...)...))
	require.Len(t, db.ids(), 4)

	db.exec(`DELETE FROM pombo.parked_event WHERE event_id IN ('1', '3')`)
	require.Equal(t, []bool{true}, db.park(first[1]), "it is parked, though nothing is in front of it any more")
}

// Why an event is parked goes to the log once, also if it comes again after a crash, and only so often in a minute.
func TestParkedEventsAreToldOnceAndNotTooOften(t *testing.T) {
	db := newDatabase(t)
	parking := db.parking()
	many := []event{bad("0", 7), good("behind", 7)}
	for i := range 50 {
		many = append(many, bad(fmt.Sprint(i+1), 8))
	}
	events := db.commit(many...)
	for range 2 {
		_, err := parking.Park(t.Context(), events[:2])
		require.NoError(t, err)
	}
	require.Len(t, db.log, 1)
	require.Contains(t, <-db.log, `"reason":"too large"`)
	_, err := parking.Park(t.Context(), events)
	require.NoError(t, err)
	require.LessOrEqual(t, len(db.log), 9)
}

func TestOnlyTheSameRowOfTheSameTransactionIsTheSameEvent(t *testing.T) {
	db := newDatabase(t)
	other := bad("1", 7)
	other.values[4] = "other"
	require.Equal(t, []bool{true, true, true, true}, db.park(db.commit(bad("1", 7), other, bad("1", 7), bad(nil, 7))...))
	require.Equal(t, []bool{true}, db.park(db.commit(bad("1", 7))...), "the same id inserted again")
	empty := bad(nil, 7)
	empty.values[0] = ""
	require.Equal(t, []bool{true}, db.park(db.commit(empty)...))
	require.Equal(t, []string{"1", "1", "without id (seq 3)", "1", ""}, db.ids())
}

func TestParkedRowsKeepEveryByte(t *testing.T) {
	db := newDatabase(t)
	db.layout.Columns[2] = db.layout.Columns[0] // two roles may share a column
	long := strings.Repeat("k", 10_000)
	for name, values := range map[string][5]any{
		"NULL":     {nil, nil, nil, nil, nil},
		"empty":    {"", "", "", "", ""},
		"bytea":    {"\x00\xff\x01", "a\x00b", "\xfe", "\n\\x", "\x00"},
		"text":     {"größe", "𝔘", "'", `"`, `\N`},
		"long key": {long, long, long, long, long},
	} {
		t.Run(name, func(t *testing.T) {
			db.exec(`TRUNCATE pombo.parked_event`)
			values[2] = values[0]
			e := event{values: values, lane: 1, reason: "no topic for \xff\x00"}
			events := db.commit(e)
			events[0].Topic = ""
			require.Equal(t, []bool{true}, db.park(events...))

			found := db.all()
			require.Len(t, found, 1)
			require.Equal(t, "no topic for ??", found[0].Reason)
			require.Empty(t, found[0].Topic)
			require.True(t, db.clock.Equal(found[0].CommittedAt))
			require.WithinDuration(t, time.Now(), found[0].ParkedAt, time.Hour)
			require.Equal(t, events[0].Event.Column(2), found[0].Key)
			columns, cells, err := ReadRow(t.Context(), db.Conn, found[0].Seq)
			require.NoError(t, err)
			require.Equal(t, []string{"id", "aggregate_type", "event_type", "payload"}, columns)
			for i, c := range []int{0, 1, 3, 4} {
				var want []byte
				if values[c] != nil {
					want = []byte(values[c].(string))
				}
				require.Equal(t, want, cells[i], "%s", columns[i])
			}
		})
	}
}

func (db *database) all() []Parked {
	db.t.Helper()
	var all []Parked
	require.NoError(db.t, ListParked(db.t.Context(), db.Conn, slot, true, func(p Parked) error {
		all = append(all, p)
		return nil
	}))
	return all
}

// What a role has set must neither change what a transaction sees nor how durable it is.
func TestSettingsOfTheRoleDoNotMatter(t *testing.T) {
	db := newDatabase(t)
	for name, setting := range map[string]string{
		"default_transaction_isolation": "serializable", "default_transaction_read_only": "on", "client_encoding": "LATIN1",
		"statement_timeout": "1", "DateStyle": "German", "bytea_output": "escape", "synchronous_commit": "off",
	} {
		db.exec(fmt.Sprintf(`ALTER DATABASE %s SET %s = '%s'`, db.Config().Database, name, setting))
	}
	waiting := db.commit(good("größe", 7))
	for _, kept := range []bool{true, false} {
		db.exec(`TRUNCATE pombo.parked_event`)
		db.park(db.commit(bad("1", 7))...)
		parked := db.parkDuring(waiting, func(tx pgx.Tx) {
			if !kept {
				_, err := tx.Exec(t.Context(), `DELETE FROM pombo.parked_event`)
				require.NoError(t, err)
			}
		})
		require.Equal(t, []bool{kept}, parked, "it saw what was there when it got the lock")
		if kept {
			require.Equal(t, []string{"1", "größe"}, db.ids())
		}
	}
}

// parkDuring parks events while another transaction has the slot's lock, which ends once they wait for it.
func (db *database) parkDuring(events []sink.ParkedEvent, do func(pgx.Tx)) []bool {
	db.t.Helper()
	return during(db, do, func(ctx context.Context) ([]bool, error) { return db.parking().Park(ctx, events) })
}

// during returns what wait does. It begins while another transaction has the slot's lock, which ends once wait waits for it.
func during[T any](db *database, do func(pgx.Tx), wait func(context.Context) (T, error)) T {
	db.t.Helper()
	ctx := db.t.Context()
	tx, err := db.Begin(ctx)
	require.NoError(db.t, err)
	require.NoError(db.t, lockSlot(ctx, tx, slot))
	result := make(chan T, 1)
	go func() {
		done, err := wait(ctx)
		assert.NoError(db.t, err)
		result <- done
	}()
	require.Eventually(db.t, func() bool {
		var waits bool
		require.NoError(db.t, tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`).Scan(&waits))
		return waits
	}, awaitLimit, 5*time.Millisecond)
	require.Empty(db.t, result)
	do(tx)
	require.NoError(db.t, tx.Commit(ctx))
	return await(db.t, result, "the end of what waits for the lock")
}

func TestParkingLeavesNoSession(t *testing.T) {
	db := newDatabase(t)
	db.park(db.commit(bad("1", 7))...)
	require.Eventually(t, func() bool {
		var sessions int
		require.NoError(t, db.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid NOT IN ($1, pg_backend_pid())`, db.walsender).Scan(&sessions))
		return sessions == 0
	}, awaitLimit, 10*time.Millisecond)
}

func TestALargeEventIsNotCopied(t *testing.T) {
	db := newDatabase(t)
	const size = 200 << 20
	e := bad("large", 7)
	e.values[4] = strings.Repeat("0123456789abcdef", size/16)
	events := db.commit(e)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.Equal(t, []bool{true}, db.park(events...))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))

	var same bool
	require.NoError(t, db.QueryRow(t.Context(), `SELECT size > $1 AND cells[5] = convert_to(repeat('0123456789abcdef', $1::int / 16), 'UTF8')
		FROM pombo.parked_event`, size).Scan(&same))
	require.True(t, same)
}

func TestWhatAnOperatorHasToCureEndsParkingAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		break_ string
		want   string
	}{
		"no schema":      {`DROP SCHEMA pombo CASCADE`, "does not exist: run `pombo setup`"},
		"no table":       {`DROP TABLE pombo.parked_event`, "does not exist: run `pombo setup`"},
		"no column":      {`ALTER TABLE pombo.parked_event DROP COLUMN digest`, "is of another version: column e.digest does not exist: run `pombo setup`"},
		"cannot be kept": {`ALTER TABLE pombo.parked_event ADD CHECK (size > 100)`, "cannot take the event: "},
	} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			db.exec(test.break_)
			_, err := db.parking().Park(t.Context(), db.commit(bad("1", 7)))
			require.ErrorContains(t, err, test.want)
			require.ErrorAs(t, err, new(*replication.ActionError))
		})
	}
}

func TestTheMissingGrantIsNamed(t *testing.T) {
	db := newDatabase(t)
	cfg := db.as("")
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	for _, grant := range []string{"", `GRANT USAGE ON SCHEMA pombo TO ` + cfg.User, `GRANT SELECT ON pombo.parked_event TO ` + cfg.User} {
		db.exec(grant)
		check := CheckParking(t.Context(), conn)
		_, err := db.parkingOf(cfg).Park(t.Context(), db.commit(bad("1", 7)))
		for _, err := range []error{check, err} {
			require.ErrorContains(t, err, "lacks SELECT, INSERT on table pombo.parked_event: run `GRANT")
			require.ErrorAs(t, err, new(*replication.ActionError))
		}
	}
	db.exec(strings.Split(CheckParking(t.Context(), conn).Error(), "`")[1])
	require.NoError(t, CheckParking(t.Context(), conn))
	_, err = db.parkingOf(cfg).Park(t.Context(), db.commit(bad("1", 7)))
	require.NoError(t, err)
	_, err = db.parkingOf(cfg).Lanes(t.Context())
	require.NoError(t, err)

	err = Settle(t.Context(), conn, slot, []int64{1}, nil)
	require.ErrorContains(t, err, "lacks SELECT, UPDATE, DELETE on table pombo.parked_event: run `GRANT")
	db.exec(strings.Split(err.Error(), "`")[1])
	require.NoError(t, Settle(t.Context(), conn, slot, []int64{1}, []Refusal{{Seq: 2, Lane: 1}}))

	db.exec(`DROP SCHEMA pombo CASCADE`)
	require.ErrorContains(t, CheckParking(t.Context(), conn), "run `pombo setup`")
}

// A schema that setup made before there was the table gets it from the next setup.
func TestAnOlderSchemaGetsTheTable(t *testing.T) {
	db := newDatabase(t)
	db.exec(`DROP TABLE pombo.parked_event`, `ALTER TABLE pombo.slot DROP COLUMN session`, `DELETE FROM pombo.migration WHERE version_id > 1`)
	require.ErrorContains(t, CheckParking(t.Context(), db.Conn), "run `pombo setup`")
	steps := stdlib.OpenDB(*db.Config())
	defer func() { _ = steps.Close() }()
	state, err := migrations.NewState(steps)
	require.NoError(t, err)
	pending, err := state.Pending(t.Context())
	require.NoError(t, err)
	require.Contains(t, pending, "CREATE TABLE pombo.parked_event")
	require.NotContains(t, pending, "CREATE TABLE pombo.slot")
	require.NoError(t, state.Up(t.Context()))
	require.NoError(t, CheckParking(t.Context(), db.Conn))
}

func TestParkingIsTriedAgain(t *testing.T) {
	db := newDatabase(t)
	cfg := db.as("SUPERUSER CONNECTION LIMIT 0")
	db.exec(`ALTER ROLE ` + cfg.User + ` NOSUPERUSER; GRANT USAGE ON SCHEMA pombo TO ` + cfg.User + `; GRANT SELECT, INSERT ON pombo.parked_event TO ` + cfg.User)
	dial := cfg.DialFunc
	var dials atomic.Int32
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials.Add(1) == 1 {
			return nil, net.UnknownNetworkError("the test says so")
		}
		return dial(ctx, network, address)
	}
	parked := make(chan []bool, 1)
	go func() {
		done, err := db.parkingOf(cfg).Park(t.Context(), db.commit(bad("1", 7)))
		assert.NoError(t, err)
		parked <- done
	}()
	require.Contains(t, await(t, db.log, "a line of the log"), "the test says so")
	require.Contains(t, await(t, db.log, "a line of the log"), "too many connections")
	db.exec(`ALTER ROLE ` + cfg.User + ` CONNECTION LIMIT 10`)
	require.Equal(t, []bool{true}, await(t, parked, "the end of Park"))
}

func TestParkingEndsWhenItIsTold(t *testing.T) {
	db := newDatabase(t)
	cfg := db.Config()
	ctx, cancel := context.WithCancel(t.Context())
	cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		cancel()
		return nil, net.UnknownNetworkError("the test says so")
	}
	_, err := db.parkingOf(cfg).Park(ctx, db.commit(bad("1", 7)))
	require.ErrorIs(t, err, context.Canceled)
}

// A session that was paused and wakes up, when another has the slot, parks nothing: the other may have published the event by now.
func TestASessionThatHasLostTheSlotParksNothing(t *testing.T) {
	db := newDatabase(t)
	db.park(db.commit(bad("1", 7))...)
	zombie := NewParking(db.Config(), slot, db.PgConn().PID(), db.layout, zerolog.New(db.log))
	_, err := zombie.Park(t.Context(), db.commit(bad("2", 8)))
	require.ErrorIs(t, err, sink.ErrFenced)
	require.Equal(t, []string{"1"}, db.ids())
	_, err = zombie.Lanes(t.Context())
	require.ErrorIs(t, err, sink.ErrFenced)
}

// What a session is still writing when it loses the slot is written before the next one reads which lanes are blocked.
func TestTheNextSessionWaitsForWhatIsBeingParked(t *testing.T) {
	db := newDatabase(t)
	lanes := during(db, func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), `INSERT INTO pombo.parked_event (slot, event_id, topic, key, lane, committed_at, digest, reason, columns, cells, size)
			VALUES ($1, '1', 'orders', '', 7, now(), '', 'too large', '{}', '{}', 0)`, slot)
		require.NoError(t, err)
	}, db.parking().Lanes)
	require.Equal(t, []sink.Lane{7}, lanes)
}

// A session that begins holds nothing that is worth waiting for, and a Postgres that shuts down would wait for it.
func TestALookForLanesIsNotTriedAgain(t *testing.T) {
	db := newDatabase(t)
	cfg := db.Config()
	cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		return nil, net.UnknownNetworkError("the test says so")
	}
	_, err := db.parkingOf(cfg).Lanes(t.Context())
	require.ErrorContains(t, err, "the test says so")
}

func TestWhichErrorsPass(t *testing.T) {
	for code, want := range map[string]bool{
		"08006": true, "57P01": true, "57P03": true, "53300": true, "53100": true, "53200": true, "40001": true, "40P01": true,
		"55P03": true, "57014": true, "28P01": true, "25006": true, "58030": true, "23505": true, "0A000": true,
		"42P01": false, "3F000": false, "42501": false, "42703": false, "54000": false, "22P05": false, "23514": false,
	} {
		require.Equal(t, want, passes(fmt.Errorf("step: %w", &pgconn.PgError{Code: code})), code)
	}
	require.True(t, passes(context.DeadlineExceeded))
	require.False(t, passes(sink.ErrFenced))
}
