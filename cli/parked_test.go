package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/outbox"
	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/sink"
)

// parkEvent parks an event as the connector does, in a transaction of its own.
func parkEvent(t *testing.T, db *pgx.Conn, e sink.ParkedEvent, values ...[]byte) {
	t.Helper()
	layout := decoder.NewLayout("public", "outbox_event")
	pool := decoder.NewPool(1<<20, layout)
	b := <-pool.Free()
	require.True(t, pool.Prepare(b, 1))
	require.True(t, b.Append(time.Date(2026, 5, 4, 3, 2, 1, 123_456_000, time.UTC), values))
	e.Event = b.Event(0)
	slot := db.Config().Database
	stream, err := replication.Open(t.Context(), replication.Source{Postgres: db.Config(), Slot: slot, Publication: "pombo"}, db)
	require.NoError(t, err)
	defer func() { require.NoError(t, stream.Close()) }()
	parking := outbox.NewParking(db.Config(), slot, stream.Walsender(), layout, zerolog.Nop())
	parked, err := parking.Park(t.Context(), []sink.ParkedEvent{e})
	require.NoError(t, err)
	require.Equal(t, []bool{true}, parked)
}

// The life of a parked event, as an operator sees it.
func TestParkedListShowDiscardRetry(t *testing.T) {
	db := useDatabase(t, "pombo_parked")
	run := func(args ...string) string {
		t.Helper()
		code, stdout, stderr := execute(t, args...)
		require.Equal(t, exitStopped, code, stderr)
		return stdout
	}
	code, _, stderr := execute(t, "parked", "list")
	assert.Equal(t, exitOperator, code)
	assert.Equal(t, "pombo: table pombo.parked_event, where events that cannot be published are kept, does not exist: run `pombo setup`\n", stderr)

	run("setup", "--create-table")
	assert.Equal(t, "no parked events\n", run("parked", "list"))
	assert.Contains(t, run("status"), "parked        no events\n")
	assert.Contains(t, run("status", "--json"), `"parked_events": 0`)

	bytes := func(text string) []byte { return []byte(text) }
	refused := sink.ParkedEvent{Topic: "orders", Lane: 7, Reason: "it is larger than the topic's max.message.bytes"}
	parkEvent(t, db, refused, bytes("e1"), bytes("orders"), bytes("42"), bytes("created"), bytes(`{"n": 1}`))
	parkEvent(t, db, sink.ParkedEvent{Topic: "orders", Lane: 7}, bytes("e2"), bytes("orders"), bytes("42"), nil, bytes("\x00\xff"))
	parkEvent(t, db, sink.ParkedEvent{Reason: "no \x1b[31mtopic"}, nil, nil, nil, bytes(""), nil)

	assert.Equal(t, strings.Join([]string{
		"SEQ  ID    TOPIC   KEY   SIZE  COMMITTED            WAITING  REASON",
		"1    e1    orders  42    25 B  2026-05-04 03:02:01  1        it is larger than the topic's max.message.bytes",
		`3    NULL  (none)  NULL  0 B   2026-05-04 03:02:01  0        "no \x1b[31mtopic"`,
	}, "\n")+"\n", run("parked", "list"))
	assert.Contains(t, run("parked", "list", "--all"), "2    e2    orders  42    12 B  2026-05-04 03:02:01  0        waits behind another of its topic and key\n")
	assert.Contains(t, run("status"), "parked        3 events: `pombo parked list` says why\n")

	line, _, _ := strings.Cut(run("parked", "list", "--json"), "\n")
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(line), &fields))
	assert.NotEmpty(t, fields["parked_at"])
	delete(fields, "parked_at")
	assert.Equal(t, map[string]any{
		"seq": 1.0, "id": "e1", "topic": "orders", "key": "42", "reason": refused.Reason, "size_bytes": 25.0,
		"committed_at": "2026-05-04T03:02:01.123456Z", "waiting_behind": 1.0,
	}, fields)

	shown := run("parked", "show", "--id", "e1")
	assert.Contains(t, shown, "committed  2026-05-04T03:02:01.123456Z\n")
	assert.Contains(t, shown, "waiting    1 event of its topic and key behind it\n")
	assert.Contains(t, shown, "\npayload: {\"n\": 1}\n")
	shown = run("parked", "show", "--seq", "2")
	assert.Contains(t, shown, "\nevent_type: NULL\npayload: (2 bytes, --only payload prints them)\n")
	assert.Equal(t, "\x00\xff", run("parked", "show", "--id", "e2", "--only", "payload"))
	require.NoError(t, json.Unmarshal([]byte(run("parked", "show", "--id", "e2", "--json")), &fields))
	assert.Equal(t, map[string]any{
		"id": "e2", "aggregate_type": "orders", "aggregate_id": "42", "event_type": nil, "payload": `\x00ff`,
	}, fields["row"])
	code, _, stderr = execute(t, "parked", "show", "--id", "e2", "--only", "body")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr, `the event has no column "body", only id, aggregate_type`)

	assert.Equal(t, "discarded event e1\n1 event of its topic and key is still parked: `pombo parked retry` publishes what can be published\n",
		run("parked", "discard", "--id", "e1", "--yes"))
	assert.Equal(t, "discarded event without id (seq 3)\n", run("parked", "discard", "--seq", "3", "--yes"))

	kafka, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	require.NoError(t, err)
	t.Cleanup(kafka.Close)
	t.Setenv("POMBO_BROKERS", strings.Join(kafka.ListenAddrs(), ","))
	assert.Equal(t, "published 1 event\n", run("parked", "retry"))
	assert.Equal(t, "published 0 events\n", run("parked", "retry"))
	code, _, stderr = execute(t, "parked", "retry", "--id", "e2")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr, `pombo: no parked event of slot pombo_parked has id "e2"`)
	assert.Equal(t, "no parked events\n", run("parked", "list"))
}
