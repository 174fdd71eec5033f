package replication

import (
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// streamed is what a session leaves that has confirmed all there is.
func (db *database) streamed() {
	db.t.Helper()
	r := db.begun()
	db.advance()
	require.NoError(db.t, r.End(db.t.Context(), db.Conn, db.confirmed()))
}

func (db *database) begun() *Record {
	db.t.Helper()
	r, err := NewRecord(db.t.Context(), db.Conn, db.src, db.confirmed())
	require.NoError(db.t, err)
	return r
}

// advance moves the slot past all there is.
func (db *database) advance() {
	db.t.Helper()
	db.exec(`CREATE TABLE IF NOT EXISTS filler (n int)`, `INSERT INTO filler VALUES (1)`,
		`SELECT pg_replication_slot_advance('`+db.src.Slot+`', pg_current_wal_insert_lsn())`)
}

func (db *database) confirmed() pglogrepl.LSN {
	db.t.Helper()
	s, err := ReadStatus(db.t.Context(), db.Conn, db.src)
	require.NoError(db.t, err)
	return s.ConfirmedLSN
}

func TestASlotThatIsWhereItWasLeftIsInOrder(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	for range 2 {
		db.streamed()
		health, err := Check(t.Context(), db.Conn, db.src)
		require.NoError(t, err)
		assert.Empty(t, health.Warnings)
		assert.True(t, health.MayRecord)
		assert.Contains(t, db.mustSetup(SetupOptions{AcceptGap: true}), db.named("record of slot SLOT in pombo.slot exists"))
	}
}

func TestASlotThatSomebodyElseMovedIsRefusedUntilTheGapIsAccepted(t *testing.T) {
	recreate := func(db *database) {
		db.exec(`SELECT pg_drop_replication_slot('`+db.src.Slot+`')`, `SELECT pg_create_logical_replication_slot('`+db.src.Slot+`', 'pgoutput')`)
	}
	elsewhere := func(change string) func(*database) {
		return func(db *database) { db.exec(`UPDATE pombo.slot SET ` + change) }
	}
	const moved = `^slot "SLOT" is at [0-9A-F/]+, but Pombo left it at [0-9A-F/]+: somebody moved it or made it anew, and events committed in between are not in the stream: ` +
		"publish those from the table, and run `pombo setup --accept-gap` to go on with the slot as it is$"
	for name, test := range map[string]struct {
		before func(db *database)
		change func(db *database)
		want   string
	}{
		"advanced before the first session": {func(*database) {}, (*database).advance, moved},
		"advanced":                          {(*database).streamed, (*database).advance, moved},
		"made anew":                         {(*database).streamed, recreate, moved},
		"another server":                    {(*database).streamed, elsewhere(`system_identifier = 1`), `was made in another database or server`},
		"another database":                  {(*database).streamed, elsewhere(`database_oid = 1`), `was made in another database or server`},
	} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			db.mustSetup(SetupOptions{CreateTable: true})
			test.before(db)
			test.change(db)
			_, err := Check(t.Context(), db.Conn, db.src)
			got := findings(t, err)
			require.Len(t, got, 1)
			assert.Regexp(t, db.named(test.want), got[0])
			before := db.confirmed()
			_, err = db.setup(SetupOptions{})
			assert.Equal(t, got, findings(t, err), "setup says the same")

			assert.Contains(t, db.mustSetup(SetupOptions{AcceptGap: true}), db.named("slot SLOT exists\ncreated record of slot SLOT"))
			_, err = Check(t.Context(), db.Conn, db.src)
			require.NoError(t, err)
			assert.Equal(t, before, db.confirmed(), "the slot is taken as it is")
		})
	}
}

// A failover takes the slot along on 17 and later, and never further than it was.
func TestAnotherTimelineIsInOrder(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	db.streamed()
	db.exec(`UPDATE pombo.slot SET timeline = timeline + 1`)
	_, err := Check(t.Context(), db.Conn, db.src)
	require.NoError(t, err)
}

// A crash leaves the slot beyond its record, which is no gap.
func TestAfterACrashASlotThatIsFarAheadIsOnlyDoubted(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	r := db.begun()
	db.advance()
	require.NoError(t, r.Follow(t.Context(), db.Conn, db.confirmed()))
	db.advance()
	require.Empty(t, db.warnings(), "the WAL from the record on is still kept")

	require.Eventually(t, func() bool {
		db.exec(`CHECKPOINT`)
		db.advance()
		return len(db.warnings()) > 0
	}, awaitLimit, 1)
	assert.Regexp(t, db.named(`slot "SLOT" was last seen at [0-9A-F/]+ and now needs WAL from [0-9A-F/]+ only`), db.warnings()[0])
	assert.Contains(t, db.mustSetup(SetupOptions{}), db.named("record of slot SLOT in pombo.slot exists"))
}

func (db *database) warnings() []string {
	db.t.Helper()
	health, err := Check(db.t.Context(), db.Conn, db.src)
	require.NoError(db.t, err)
	return health.Warnings
}

func TestASlotThatIsReadMoves(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	db.advance()
	db.hold()
	require.Empty(t, db.warnings())
}

// A session that notes its end late must not speak for the one that has the slot by then.
func TestALateRecordChangesNothing(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	old := db.begun()
	at := db.confirmed()
	db.begun()
	require.NoError(t, old.Follow(t.Context(), db.Conn, 1))
	require.NoError(t, old.End(t.Context(), db.Conn, 1))
	db.advance()
	_, err := Check(t.Context(), db.Conn, db.src)
	require.NoError(t, err)
	var lsn pglogrepl.LSN
	require.NoError(t, db.QueryRow(t.Context(), `SELECT lsn::text FROM pombo.slot`).Scan(&lsn))
	assert.Equal(t, at, lsn)
}

// Nobody has kept the record of such a slot, so nothing follows from it.
func TestARecordThatTheRoleMayNotKeepProvesNothing(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	app := db.as(bare)
	db.exec(`GRANT USAGE ON SCHEMA pombo TO `+app.Config().User, `GRANT SELECT ON pombo.slot TO `+app.Config().User)
	db.advance()
	health, err := Check(t.Context(), app.Conn, app.src)
	require.NoError(t, err)
	assert.False(t, health.MayRecord)
	db.exec(`GRANT UPDATE ON pombo.slot TO ` + app.Config().User)
	_, err = Check(t.Context(), app.Conn, app.src)
	require.ErrorContains(t, err, "somebody moved it")
}

func TestAStateOfAnEarlierVersionProvesNothing(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	db.exec(`ALTER TABLE pombo.slot DROP session`)
	db.advance()
	health, err := Check(t.Context(), db.Conn, db.src)
	require.NoError(t, err)
	assert.False(t, health.MayRecord)

	db.exec(`DELETE FROM pombo.migration WHERE version_id = 3`)
	assert.Contains(t, db.mustSetup(SetupOptions{}), db.named("created state in schema pombo\npublication pombo exists\nslot SLOT exists\nrecord of slot SLOT in pombo.slot exists"))
	health, err = Check(t.Context(), db.Conn, db.src)
	require.NoError(t, err)
	assert.True(t, health.MayRecord)
}

func TestAStateOfAnEarlierVersionRemembersThatThereWasASlot(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	db.exec(`ALTER TABLE pombo.slot DROP session`, `SELECT pg_drop_replication_slot('`+db.src.Slot+`')`)
	_, err := Check(t.Context(), db.Conn, db.src)
	require.ErrorContains(t, err, "is gone")
}

// Setup can come when a session has the slot already, which then keeps no record.
func TestTheRecordOfASlotThatIsReadProvesNothing(t *testing.T) {
	db := newDatabase(t)
	db.createTable()
	db.exec(`CREATE PUBLICATION pombo FOR TABLE outbox_event WITH (publish = 'insert')`,
		`SELECT pg_create_logical_replication_slot('`+db.src.Slot+`', 'pgoutput')`)
	pid := db.hold()
	db.mustSetup(SetupOptions{})
	_, err := db.Exec(t.Context(), `SELECT pg_terminate_backend($1, 5000)`, pid)
	require.NoError(t, err)
	db.advance()
	_, err = Check(t.Context(), db.Conn, db.src)
	require.NoError(t, err)
}
