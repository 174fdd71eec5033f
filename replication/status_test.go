package replication

import (
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestStatusMeasuresTheLag(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	before, err := ReadStatus(t.Context(), db.Conn, db.src)
	require.NoError(t, err)
	assert.Equal(t, db.src.Slot, before.Slot)
	assert.False(t, before.Active)
	assert.Equal(t, "reserved", before.WALStatus)
	assert.GreaterOrEqual(t, before.RetainedBytes, before.LagBytes)
	assert.Nil(t, before.SafeWALBytes, "max_slot_wal_keep_size has no limit by default")

	db.exec(`CREATE TABLE filler (t text)`, `ALTER TABLE filler ALTER t SET STORAGE EXTERNAL`, `INSERT INTO filler VALUES (repeat('x', 1000000))`)
	pid := db.hold()
	after, err := ReadStatus(t.Context(), db.Conn, db.src)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, after.LagBytes, before.LagBytes+1000000)
	assert.True(t, after.Active)
	assert.Equal(t, pid, after.ActivePID)
}

func TestStatusAsJSON(t *testing.T) {
	limit := int64(7)
	text, err := json.Marshal(Status{
		Slot: "pombo", Database: "shop", Active: true, ActivePID: 42, WALStatus: "extended",
		ConfirmedLSN: pglogrepl.LSN(0x1_00000002), RestartLSN: 1, LagBytes: 3, RetainedBytes: 4, SafeWALBytes: &limit,
	})
	require.NoError(t, err)
	assert.JSONEq(t, `{"slot": "pombo", "database": "shop", "active": true, "active_pid": 42, "wal_status": "extended",
		"invalidation_reason": "", "confirmed_lsn": "1/2", "restart_lsn": "0/1", "lag_bytes": 3, "retained_wal_bytes": 4, "safe_wal_bytes": 7}`, string(text))
}

func TestStatusOfASlotThatIsMissing(t *testing.T) {
	db := newDatabase(t)
	_, err := ReadStatus(t.Context(), db.Conn, db.src)
	var action *ActionError
	require.ErrorAs(t, err, &action)
	assert.Contains(t, action.Cure, "pombo setup")
}

func TestTeardownLeavesTheTables(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	teardown := func() string {
		var out strings.Builder
		require.NoError(t, Teardown(t.Context(), db.Conn, db.src, &out))
		return out.String()
	}
	assert.Equal(t, db.named("dropped slot SLOT\ndropped publication pombo\ndeleted record of slot SLOT from pombo.slot\n"), teardown())
	assert.Equal(t, db.named("slot SLOT does not exist\npublication pombo does not exist\n"), teardown())
	assert.Contains(t, db.mustSetup(SetupOptions{}), "table public.outbox_event exists", "and setup begins anew, with nothing remembered")
}

func TestTeardownRefusesASlotInUse(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	before := db.state()
	pid := db.hold()
	var out strings.Builder
	err := Teardown(t.Context(), db.Conn, db.src, &out)
	got := findings(t, err)
	require.Len(t, got, 1)
	assert.Contains(t, got[0], "is active, read by the session of pid "+strconv.Itoa(int(pid)))
	assert.Equal(t, before, db.state())
	assert.Empty(t, out.String())
}

func TestTeardownRefusesWhatIsNotPombos(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	app := db.as("REPLICATION")
	got := findings(t, Teardown(t.Context(), app.Conn, app.src, io.Discard))
	require.Len(t, got, 2)
	assert.Contains(t, got[0], `does not own publication "pombo"`)
	assert.Contains(t, got[1], "lacks privileges on schema pombo")

	db.exec(`SELECT pg_drop_replication_slot('`+db.src.Slot+`')`, `SELECT pg_create_logical_replication_slot('`+db.src.Slot+`', 'test_decoding')`)
	got = findings(t, Teardown(t.Context(), db.Conn, db.src, io.Discard))
	require.Len(t, got, 1)
	assert.Contains(t, got[0], "was made with plugin test_decoding")
}

func TestTeardownKeepsAPublicationThatAnotherSlotUses(t *testing.T) {
	db := newDatabase(t)
	db.mustSetup(SetupOptions{CreateTable: true})
	second := *db
	second.src.Slot += "_b"
	second.mustSetup(SetupOptions{})
	var out strings.Builder
	require.NoError(t, Teardown(t.Context(), second.Conn, second.src, &out))
	assert.Equal(t, db.named("dropped slot SLOT_b\npublication pombo stays: slot SLOT uses it too\ndeleted record of slot SLOT_b from pombo.slot\n"), out.String())
	_, err := Check(t.Context(), db.Conn, db.src)
	require.NoError(t, err)
}
