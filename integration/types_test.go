package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/workload"
)

// D18: other types than text go out as Postgres prints them, and bytea as raw bytes.
func TestPayloadsOfEveryTypeKeepTheirText(t *testing.T) {
	for kind, c := range map[string]struct{ literal, value string }{
		"jsonb":   {`{"b":1, "a":2, "a":3}`, `{"a": 3, "b": 1}`},
		"json":    {`{"b":1, "a":2, "a":3}`, `{"b":1, "a":2, "a":3}`},
		"xml":     {`<a b="1">ü &amp; x</a>`, `<a b="1">ü &amp; x</a>`},
		"bytea":   {`\x5c7800ff`, "\\x\x00\xff"},
		"numeric": {`1.500`, `1.500`},
		"text[]":  {`{a,"b c",NULL}`, `{a,"b c",NULL}`},
	} {
		t.Run(kind, func(t *testing.T) {
			o := newDatabase(t)
			o.exec(`CREATE TABLE outbox_event (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, payload ` + kind + `)`)
			o.setup()
			o.exec(`INSERT INTO outbox_event VALUES (gen_random_uuid(), 'Order', 'k', 't', '` + c.literal + `')`)
			o.streaming()
			require.Equal(t, c.value, string(o.read("Order", 1)[0].Value))
		})
	}
}

// D19: when a row says it was created does not matter, nor how the role prints dates.
func TestDatesAreOfNoConcernHoweverTheyArePrinted(t *testing.T) {
	o := newDatabase(t)
	o.exec(`CREATE TABLE outbox_event (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, payload timestamptz, created_at timestamp)`)
	o.setup()
	o.exec(`ALTER DATABASE ` + o.name + ` SET DateStyle = 'German, DMY'`)
	o.exec(`ALTER DATABASE ` + o.name + ` SET TimeZone = 'Asia/Kolkata'`)
	for _, created := range []any{"infinity", "-infinity", "0044-03-15 BC", nil, "294276-12-31 23:59:59.999999"} {
		o.exec(`INSERT INTO outbox_event VALUES (gen_random_uuid(), 'Order', 'k', 't', '2024-03-05 01:02:03.004+01', $1::text::timestamp)`, created)
	}
	o.streaming()
	for _, r := range o.read("Order", 5) {
		require.Equal(t, "2024-03-05 00:02:03.004+00", string(r.Value))
	}
}

// D21: keys and ids of every type have their text form; nothing is trimmed in silence.
func TestKeysOfEveryTypeHaveTheirTextForm(t *testing.T) {
	for kind, c := range map[string]struct{ literal, key string }{
		"bigint":   {`-9223372036854775808`, `-9223372036854775808`},
		"uuid":     {`5A0E3C4D-0000-4000-8000-00000000000A`, `5a0e3c4d-0000-4000-8000-00000000000a`},
		"char(6)":  {`ab`, `ab    `},
		"citext":   {`AbC`, `AbC`},
		"smallint": {`7`, `7`},
	} {
		t.Run(kind, func(t *testing.T) {
			o := newDatabase(t)
			o.exec(`CREATE EXTENSION citext`)
			o.exec(`CREATE TABLE outbox_event (id char(26) PRIMARY KEY, aggregate_type text, aggregate_id ` + kind + `, event_type text, payload text)`)
			o.setup()
			o.exec(`INSERT INTO outbox_event VALUES ('01ARZ3NDEKTSV4RRFFQ69G5FAV', 'Order', '` + c.literal + `', 't', 'v')`)
			o.streaming()
			r := o.read("Order", 1)[0]
			require.Equal(t, workload.Record{Key: []byte(c.key), Value: []byte("v")}, content(r))
			require.Equal(t, "01ARZ3NDEKTSV4RRFFQ69G5FAV", r.Headers["eventId"])
		})
	}
}

// D21: blanks behind an aggregate type are no legal topic. The event is parked, and names its type as it is.
func TestAPaddedAggregateTypeIsParkedAndNotTrimmed(t *testing.T) {
	o := newDatabase(t)
	o.exec(`CREATE TABLE outbox_event (id uuid PRIMARY KEY, aggregate_type char(20), aggregate_id text, event_type text, payload text)`)
	o.setup()
	o.insertRow("order", "k", "t", "v")
	p := o.streaming()
	o.awaitConfirmed(o.walEnd())
	require.Equal(t, 1, o.parked())
	require.Contains(t, p.out.String(), "order               ")
	o.retry(0, "--topic", o.prefix+"{{if eq .AggregateType \"order               \"}}orders{{end}}")
	require.Len(t, o.read("orders", 1), 1)
}

// Names with other letters than those of ASCII are the same for setup, run and status, whatever encoding sessions have.
func TestNamesAreUTF8WhateverTheDatabaseSays(t *testing.T) {
	o := newDatabase(t)
	o.exec(`ALTER DATABASE ` + o.name + ` SET client_encoding = 'LATIN1'`)
	o.setup("--create-table", "--table", "public.bücher")
	p := o.streaming("--table", "public.bücher")
	o.exec(`INSERT INTO U&"b\00FCcher" (id, aggregate_type, aggregate_id, event_type, payload, created_at) VALUES (gen_random_uuid(), 'Order', 'k', 't', '{}', now())`)
	o.awaitRecords("Order", 1)
	code, _ := p.stop()
	require.Zero(t, code)
}
