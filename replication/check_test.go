package replication

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bare is a role's least: pgoutput reads the table in the role's name without a privilege on it.
const bare = "REPLICATION"

func TestCheckNeedsOnlyReplication(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	reader := db.as(bare)
	health, err := Check(t.Context(), reader.Conn, reader.src)
	require.NoError(t, err)
	assert.Empty(t, health.Warnings)
	assert.False(t, health.MayRecord)
	slot := health.Slot
	assert.Equal(t, db.src.Slot, slot.Name)
	assert.NotZero(t, slot.ConfirmedFlush)
	assert.NotZero(t, slot.RestartLSN)
	assert.False(t, slot.Active)
	assert.Equal(t, "reserved", slot.WALStatus)
}

func TestCheckNamesWhatIsWrongAndTheWayOut(t *testing.T) {
	recreate := strings.Split(`DROP TABLE outbox_event; CREATE TABLE outbox_event (id uuid, aggregate_type text, aggregate_id text, event_type text, payload text)`, ";")
	const add = "ALTER PUBLICATION \"pombo\" ADD TABLE \"public\".\"outbox_event\"`; rows written before that are not in the stream"
	for name, test := range map[string]struct {
		sql  []string
		want []string // of the findings, one each
	}{
		"nothing":       {nil, nil},
		"table missing": {[]string{`DROP TABLE outbox_event`}, []string{`table "public"."outbox_event" does not exist in database`, add}},
		"table is a view": {
			[]string{`DROP TABLE outbox_event`, `CREATE VIEW outbox_event AS SELECT 1 AS id`},
			[]string{`"public"."outbox_event" is no table but a view`, add},
		},
		"columns missing": {
			[]string{`ALTER TABLE outbox_event DROP payload, DROP event_type`},
			[]string{`table "public"."outbox_event" has no column "event_type", "payload": add what is missing, or say which columns to take with --column`},
		},
		"column generated": {
			[]string{`ALTER TABLE outbox_event DROP payload, ADD payload text GENERATED ALWAYS AS (aggregate_id || 'x') STORED`},
			[]string{`table "public"."outbox_event" computes "payload", and generated columns are not replicated`},
		},
		"table made anew": {recreate, []string{`publication "pombo" lacks table "public"."outbox_event" and is empty: it was never added, or the table was dropped, renamed or made anew`}},
		"table swapped by renaming": {
			append([]string{`ALTER TABLE outbox_event RENAME TO old`}, recreate[1]),
			[]string{`lacks table "public"."outbox_event" (it has public.old)`},
		},
		"publication missing": {
			[]string{`DROP PUBLICATION pombo`},
			[]string{`publication "pombo" does not exist, and a new one would be younger than slot`},
		},
		"publication without insert": {
			[]string{`ALTER PUBLICATION pombo SET (publish = 'delete')`},
			[]string{`publication "pombo" does not publish inserts: run ` + "`ALTER PUBLICATION \"pombo\" SET (publish = 'insert')`"},
		},
		"publication of all tables": {[]string{`DROP PUBLICATION pombo`, `CREATE PUBLICATION pombo FOR ALL TABLES`}, nil},
		"publication of a schema, since 15": {
			[]string{`DO $$ BEGIN IF current_setting('server_version_num')::int >= 150000 THEN
				DROP PUBLICATION pombo; EXECUTE 'CREATE PUBLICATION pombo FOR TABLES IN SCHEMA public'; END IF; END $$`},
			nil,
		},
		"a partition": {
			[]string{`DROP PUBLICATION pombo`, `ALTER TABLE outbox_event RENAME TO leaf`, `CREATE TABLE root (LIKE leaf) PARTITION BY LIST (aggregate_type)`,
				`ALTER TABLE leaf RENAME TO outbox_event`, `ALTER TABLE root ATTACH PARTITION outbox_event DEFAULT`,
				`CREATE PUBLICATION pombo FOR ALL TABLES WITH (publish_via_partition_root = true)`},
			[]string{`table "public"."outbox_event" is a partition, and publication "pombo" publishes its rows under the name of the whole: name the partitioned table`},
		},
		"partitioned, under the root's name": {
			append(recreate[:1:1], strings.TrimSpace(recreate[1])+` PARTITION BY HASH (id)`, `ALTER PUBLICATION pombo ADD TABLE outbox_event`),
			nil,
		},
		"partitioned, under the leaves' names": {
			append(recreate[:1:1], strings.TrimSpace(recreate[1])+` PARTITION BY HASH (id)`,
				`ALTER PUBLICATION pombo ADD TABLE outbox_event`, `ALTER PUBLICATION pombo SET (publish_via_partition_root = false)`),
			[]string{`publishes rows of the partitioned table "public"."outbox_event" under the names of its partitions: run ` +
				"`ALTER PUBLICATION \"pombo\" SET (publish_via_partition_root = true)`"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			db.mustSetup(SetupOptions{CreateTable: true})
			db.exec(test.sql...)
			_, err := Check(t.Context(), db.Conn, db.src)
			if test.want == nil {
				require.NoError(t, err)
				return
			}
			got := findings(t, err)
			require.Len(t, got, len(test.want), "%v", err)
			for i := range test.want {
				assert.Contains(t, got[i], test.want[i])
			}
		})
	}
}

func TestCheckFindsRowsAndColumnsLeftOut(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	if db.version() < 150000 { // which knows neither filters nor column lists
		_, err := Check(t.Context(), db.Conn, db.src)
		require.NoError(t, err)
		return
	}
	db.exec(`ALTER PUBLICATION pombo SET TABLE outbox_event (id, aggregate_type, aggregate_id) WHERE (aggregate_type <> 'Audit')`)
	_, err := Check(t.Context(), db.Conn, db.src)
	got := findings(t, err)
	require.Len(t, got, 2)
	assert.Contains(t, got[0], `publication "pombo" leaves out rows of table "public"."outbox_event", by the filter ((aggregate_type)`)
	assert.Contains(t, got[1], `publication "pombo" leaves out column "event_type", "payload" of table "public"."outbox_event"`)

	db.exec(inBackticks(got[1])...)
	_, err = Check(t.Context(), db.Conn, db.src)
	require.NoError(t, err)
}

func TestCheckAcceptsAGeneratedColumnThatIsPublished(t *testing.T) {
	db := newDatabase(t)
	db.exec(`CREATE TABLE outbox_event (id int, aggregate_type text, aggregate_id text, event_type text, body text, payload text GENERATED ALWAYS AS (body || '!') STORED)`)
	if db.version() < 180000 {
		_, err := db.setup(SetupOptions{})
		assert.Contains(t, findings(t, err)[0], "generated columns are not replicated")
		return
	}
	db.exec(`CREATE PUBLICATION pombo FOR TABLE outbox_event WITH (publish_generated_columns = stored)`)
	db.mustSetup(SetupOptions{})
	_, err := Check(t.Context(), db.Conn, db.src)
	require.NoError(t, err)
}

func TestCheckRefusesAnUnloggedTable(t *testing.T) {
	db := newDatabase(t)
	db.exec(`CREATE UNLOGGED TABLE outbox_event (id int, aggregate_type text, aggregate_id text, event_type text, payload text)`,
		`CREATE PUBLICATION pombo FOR ALL TABLES`)
	_, err := db.setup(SetupOptions{})
	require.ErrorContains(t, err, "table \"public\".\"outbox_event\" is unlogged, so its rows are not in the WAL: run `ALTER TABLE \"public\".\"outbox_event\" SET LOGGED`")
}

func TestCheckRefusesASlotThatIsNotItsOwn(t *testing.T) {
	other := newDatabase(t)
	for name, test := range map[string]struct {
		create func(db *database)
		want   string
	}{
		"another plugin": {
			func(db *database) {
				db.exec(`SELECT pg_create_logical_replication_slot('` + db.src.Slot + `', 'test_decoding')`)
			},
			"was made with plugin test_decoding, and pgoutput is needed: name another slot with --slot",
		},
		"physical": {
			func(db *database) {
				db.exec(`SELECT pg_create_physical_replication_slot('` + db.src.Slot + `')`)
				db.t.Cleanup(func() { other.exec(`SELECT pg_drop_replication_slot('` + db.src.Slot + `')`) })
			},
			"is a physical one",
		},
		"temporary": {
			func(db *database) {
				db.exec(`SELECT pg_create_logical_replication_slot('` + db.src.Slot + `', 'pgoutput', true)`)
			},
			"is temporary",
		},
		"another database": {
			func(db *database) {
				other.exec(`SELECT pg_create_logical_replication_slot('` + db.src.Slot + `', 'pgoutput')`)
			},
			`belongs to database "` + other.src.Slot + `"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			db.mustSetup(SetupOptions{CreateTable: true})
			db.exec(`SELECT pg_drop_replication_slot('` + db.src.Slot + `')`)
			test.create(db)
			_, err := Check(t.Context(), db.Conn, db.src)
			got := findings(t, err)
			require.Len(t, got, 1)
			assert.Contains(t, got[0], test.want)
		})
	}
}

func TestCheckSaysThatALostSlotIsLost(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	db.exec(`ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'`, `SELECT pg_reload_conf()`)
	t.Cleanup(func() { db.exec(`ALTER SYSTEM RESET max_slot_wal_keep_size`, `SELECT pg_reload_conf()`) })
	db.exec(`CREATE TABLE filler (n int)`)
	require.Eventually(t, func() bool {
		db.exec(`INSERT INTO filler VALUES (1)`, `SELECT pg_switch_wal()`, `CHECKPOINT`)
		s, err := ReadStatus(t.Context(), db.Conn, db.src)
		require.NoError(t, err)
		return s.WALStatus == "lost"
	}, 20*time.Second, time.Millisecond)

	_, err := Check(t.Context(), db.Conn, db.src)
	got := findings(t, err)
	require.Len(t, got, 1)
	assert.Regexp(t, `slot "\w+" is lost \(.*\): what it had not confirmed at [0-9A-F/]+ can no longer be read from it: .*pombo teardown.*pombo setup`, got[0])

	_, err = db.setup(SetupOptions{AcceptGap: true})
	require.ErrorContains(t, err, "is lost", "a lost slot is dropped by teardown only")
	require.NoError(t, Teardown(t.Context(), db.Conn, db.src, io.Discard))
	db.mustSetup(SetupOptions{})
}

// D10: rows of a child are its own.
func TestCheckWarnsOfChildren(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	db.exec(`CREATE TABLE child () INHERITS (outbox_event)`)
	require.Equal(t, []string{`table "public"."outbox_event" has children by inheritance (child), whose rows are not published: ` +
		`write to the table itself, or partition it`}, db.warnings())
	db.exec(`ALTER TABLE child NO INHERIT outbox_event`)
	require.Empty(t, db.warnings())
}

// E16: from 17 on Postgres says why a slot was lost.
func TestTheReasonWhyASlotIsLostIsNamed(t *testing.T) {
	for reason, want := range map[string]string{
		"":             "is lost (it fell behind by more than max_slot_wal_keep_size)",
		"idle_timeout": "is lost (idle_timeout)",
	} {
		c := &catalog{Slot: &Slot{Name: "orders", Type: "logical", Plugin: "pgoutput", WALStatus: "lost", InvalidationReason: reason}}
		err := errors.Join(c.checkSlot(Source{Slot: "orders"})...)
		require.Contains(t, findings(t, err)[0], want)
	}
}

// A slot that is held is no mistake: who finds it held is a standby.
func TestCheckSaysWhoHoldsTheSlot(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	pid := db.hold()
	health, err := Check(t.Context(), db.Conn, db.src)
	require.NoError(t, err)
	assert.True(t, health.Slot.Active)
	assert.Equal(t, pid, health.Slot.ActivePID)
}

func TestCheckNamesEverythingAtOnce(t *testing.T) {
	db := newDatabase(t)
	db.exec(`CREATE TABLE outbox_event (id uuid, aggregate_type text, aggregate_id text, event_type text)`)
	reader := db.as("")
	_, err := Check(t.Context(), reader.Conn, reader.src)
	got := findings(t, err)
	require.Len(t, got, 4)
	assert.Contains(t, got[0], "lacks REPLICATION: run `ALTER ROLE ")
	assert.Contains(t, got[1], `has no column "payload"`)
	assert.Contains(t, got[2], `publication "pombo" does not exist`)
	assert.Regexp(t, "slot \"\\w+\" does not exist: run `pombo setup`", got[3])
}

func TestCheckNeedsLogicalWAL(t *testing.T) {
	c := &catalog{Server: server{WALLevel: "replica"}}
	err := errors.Join(c.checkWALLevel()...)
	assert.Equal(t, []string{"wal_level is replica, and replication of rows needs logical: " +
		"run `ALTER SYSTEM SET wal_level = logical` and restart Postgres (on Amazon RDS set rds.logical_replication = 1)"}, findings(t, err))
}

func TestNamesMayBeAnything(t *testing.T) {
	db := newDatabase(t)
	db.src.Schema, db.src.Table, db.src.Publication = `My "App".x`, "Outbox\n\rEv'ent;--", `Pub "x" 'y'`
	db.exec(`CREATE SCHEMA "My ""App"".x"`)
	sql := db.mustSetup(SetupOptions{CreateTable: true, DryRun: true})
	db.mustSetup(SetupOptions{CreateTable: true})
	_, err := Check(t.Context(), db.Conn, db.src)
	require.NoError(t, err)

	require.NoError(t, Teardown(t.Context(), db.Conn, db.src, io.Discard))
	db.exec(`DROP SCHEMA "My ""App"".x" CASCADE`, `CREATE SCHEMA "My ""App"".x"`, `DROP SCHEMA pombo CASCADE`)
	db.exec(statements(sql)...)
	_, err = Check(t.Context(), db.Conn, db.src)
	require.NoError(t, err)
}
