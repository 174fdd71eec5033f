package cli

import (
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/connector"
	"github.com/pombo-cdc/pombo/decoder"
)

func TestDefaults(t *testing.T) {
	isolate(t)
	cfg, err := configure(t, minimal()...)
	require.NoError(t, err)
	assert.Equal(t, "pombo", cfg.Source.Slot)
	assert.Equal(t, "pombo", cfg.Source.Publication)
	assert.Equal(t, "public", cfg.Source.Schema)
	assert.Equal(t, "outbox_event", cfg.Source.Table)
	assert.Equal(t, []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload"}, cfg.Source.Columns)
	assert.Equal(t, decoder.NewLayout("public", "outbox_event"), cfg.Layout)
	assert.Equal(t, []string{"k1:9092"}, cfg.Kafka.Brokers)
	assert.Equal(t, sarama.CompressionLZ4, cfg.Kafka.Compression)
	assert.False(t, cfg.Kafka.CreateTopics)
	assert.Equal(t, "pombo-shop-pombo", cfg.Kafka.ProducerName)
	assert.Equal(t, connector.DefaultBuffer, cfg.Buffer)
	assert.Equal(t, connector.DefaultGrace, cfg.Grace)
	assert.True(t, cfg.Park)

	cfg, err = configure(t, minimal("--fencing", "off")...)
	require.NoError(t, err)
	assert.Empty(t, cfg.Kafka.ProducerName)

	cfg, err = configure(t, minimal("--on-poison", "halt")...)
	require.NoError(t, err)
	assert.False(t, cfg.Park)
}

func TestColumnsAndHeaders(t *testing.T) {
	isolate(t)
	cfg, err := configure(t, minimal("--column", "payload=body", "--column", "event_type=kind")...)
	require.NoError(t, err)
	assert.Equal(t, []string{"id", "aggregate_type", "aggregate_id", "kind", "body"}, cfg.Source.Columns)
	assert.Equal(t, []string{"eventId=id", "eventType=kind"}, headers(cfg))

	cfg, err = configure(t, minimal("--header", "tenant=tenant", "--header", "key=aggregate_id,id=id", "--column", "id=aggregate_id")...)
	require.NoError(t, err)
	assert.Equal(t, []string{"tenant=tenant", "key=aggregate_id", "id=id"}, headers(cfg))
	assert.Equal(t, []string{"aggregate_id", "aggregate_type", "event_type", "payload", "tenant", "id"}, cfg.Source.Columns, "each once")
}

func headers(cfg connector.Config) []string {
	var all []string
	for _, h := range cfg.Router.Headers() {
		all = append(all, h.Name+"="+cfg.Layout.Columns[h.Column])
	}
	return all
}

func TestTableIsReadAsSQLDoes(t *testing.T) {
	for text, want := range map[string][2]string{
		"public.outbox_event":          {"public", "outbox_event"},
		"outbox_event":                 {"public", "outbox_event"},
		"App.Outbox_Event":             {"app", "outbox_event"},
		`"My-App"."Outbox_Event"`:      {"My-App", "Outbox_Event"},
		`"a.b"."say ""hi"""`:           {"a.b", `say "hi"`},
		`app."Outbox Event"`:           {"app", "Outbox Event"},
		"größe.ereignis$1":             {"größe", "ereignis$1"},
		strings.Repeat("x", 63) + ".y": {strings.Repeat("x", 63), "y"},
	} {
		schema, table, err := parseTable(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, [2]string{schema, table}, text)
	}
	for text, want := range map[string]string{
		"":                      "is not schema.table",
		"a.":                    "is not schema.table",
		".b":                    "is not schema.table",
		"a..b":                  "is not schema.table",
		"a.b.c":                 "has 3 parts",
		"my-app.outbox":         "put a name that SQL would not take as it is in double quotes",
		`"a".b c`:               "is not schema.table",
		`"a`:                    "lacks a closing double quote",
		`"".b`:                  "is not schema.table",
		strings.Repeat("x", 64): "a name has up to 63 bytes",
	} {
		_, _, err := parseTable(text)
		require.ErrorContains(t, err, want, text)
	}
}

func TestBrokers(t *testing.T) {
	isolate(t)
	for text, want := range map[string][]string{
		"k1:9093":                       {"k1:9093"},
		"k1:1 , k2, ,":                  {"k1:1", "k2:9092"},
		"k1,k1:9092,k1":                 {"k1:9092"},
		"[::1]:9093,[::1],::1,10.0.0.1": {"[::1]:9093", "[::1]:9092", "10.0.0.1:9092"},
	} {
		cfg, err := configure(t, "--postgres", "postgres://db", "--brokers", text)
		require.NoError(t, err, text)
		assert.Equal(t, want, cfg.Kafka.Brokers)
	}
	for text, want := range map[string]string{
		"kafka://k1:9092":     "broker 1 is not host:port: leave out scheme, user and path",
		"k1,user:canary@k2:1": "broker 2 is not host:port",
		"k1:0":                "broker 1 has no port between 1 and 65535",
		"k1:-1":               "broker 1 has no port between 1 and 65535",
		"k1:99999":            "broker 1 has no port between 1 and 65535",
		"k1:kafka":            "broker 1 has no port between 1 and 65535",
		":9092":               "broker 1 lacks a host",
		"a:b:c":               "broker 1 is not host:port",
		", ,":                 "--brokers is empty",
	} {
		_, err := configure(t, "--postgres", "postgres://db", "--brokers", text)
		require.ErrorContains(t, err, want, text)
		assert.NotContains(t, err.Error(), "canary")
	}
}

func TestBuffer(t *testing.T) {
	isolate(t)
	for text, want := range map[string]int{"16MiB": 16 << 20, "1 GiB": 1 << 30, "2000000": 2e6, "1MiB": 1 << 20} {
		cfg, err := configure(t, minimal("--buffer", text)...)
		require.NoError(t, err)
		assert.Equal(t, want, cfg.Buffer)
	}
	for text, want := range map[string]string{
		"-16MiB": `--buffer: "-16MiB" is not a size such as 16MiB`, "many": `"many" is not a size`,
		"0": "0 is not between 1.0 MiB and 128 GiB", "1KiB": "1KiB is not between", "9EiB": "9EiB is not between",
		"99999999999999999999EiB": "is not",
	} {
		_, err := configure(t, minimal("--buffer", text)...)
		require.ErrorContains(t, err, want, text)
	}
}

func TestNamesThatPostgresWouldNotTake(t *testing.T) {
	isolate(t)
	for _, slot := range []string{"Pombo", "a-b", "a b", strings.Repeat("x", 64), "é"} {
		_, err := configure(t, minimal("--slot", slot)...)
		require.ErrorContains(t, err, "is not a slot's name: use up to 63 of a-z, 0-9 and _")
	}
	_, err := configure(t, minimal("--publication", strings.Repeat("é", 32))...)
	require.ErrorContains(t, err, "a name has up to 63 bytes, and this one 64")
	_, err = configure(t, minimal("--publication", `Any "name" will do`)...)
	require.NoError(t, err)
}

func TestRoutesAndTopicReachTheRouter(t *testing.T) {
	isolate(t)
	_, err := configure(t, minimal("--route", "Order=orders, Item=my items", "--topic", "{{upper")...)
	require.ErrorContains(t, err, `topic template "{{upper"`)
	require.ErrorContains(t, err, `route of aggregate type "Item"`)
	assert.NotContains(t, err.Error(), "Order")
}
