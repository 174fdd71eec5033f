package router

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pombo-cdc/pombo/decoder"
)

// row has the values of the roles in their order; nil is SQL NULL.
type row [5]any

// event decodes an insert of the row, so that tests route what the connector would.
func event(t require.TestingT, values row) decoder.Event {
	layout := decoder.NewLayout("public", "outbox_event")
	relation := append([]byte("R"), 0, 0, 0, 1)
	relation = append(relation, "public\x00outbox_event\x00d"...)
	relation = binary.BigEndian.AppendUint16(relation, uint16(len(layout.Columns)))
	insert := append([]byte("I"), 0, 0, 0, 1, 'N')
	insert = binary.BigEndian.AppendUint16(insert, uint16(len(layout.Columns)))
	for i, name := range layout.Columns {
		relation = append(relation, 0)
		relation = append(relation, name...)
		relation = append(relation, 0, 0, 0, 0, 25, 0xff, 0xff, 0xff, 0xff) // text, no modifier
		if values[i] == nil {
			insert = append(insert, 'n')
			continue
		}
		value := values[i].(string)
		insert = append(insert, 't')
		insert = binary.BigEndian.AppendUint32(insert, uint32(len(value)))
		insert = append(insert, value...)
	}

	pool := decoder.NewPool(1<<20, layout)
	batch := <-pool.Free()
	require.True(t, pool.Prepare(batch, len(insert)))
	d := decoder.New(layout, 0)
	for _, message := range [][]byte{relation, append([]byte("B"), make([]byte, 20)...), insert} {
		_, err := d.Decode(message, batch)
		require.NoError(t, err)
	}
	return batch.Event(0)
}

// newRouter fills the Layout in.
func newRouter(t require.TestingT, cfg Config) *Router {
	cfg.Layout = decoder.NewLayout("public", "outbox_event")
	r, err := New(cfg)
	require.NoError(t, err)
	return r
}

func TestTopic(t *testing.T) {
	order := row{"6e0c", "OrderLine", "42", "LineAdded", "{}"}
	tests := []struct {
		name   string
		topic  string
		routes map[string]string
		row    row
		want   string
	}{
		{name: "the aggregate type by default", row: order, want: "OrderLine"},
		{name: "every field", topic: "{{.ID}}.{{.AggregateType}}.{{.AggregateID}}.{{.EventType}}", row: order, want: "6e0c.OrderLine.42.LineAdded"},
		{name: "lower", topic: "{{lower .AggregateType}}", row: order, want: "orderline"},
		{name: "upper", topic: "{{upper .AggregateType}}", row: order, want: "ORDERLINE"},
		{name: "kebab and plural", topic: "shop.{{.AggregateType | kebab | plural}}", row: order, want: "shop.order-lines"},
		{name: "snake", topic: "{{snake .AggregateType}}_v1", row: order, want: "order_line_v1"},
		{name: "condition", topic: `{{if eq .EventType "LineAdded" "LineRemoved"}}lines{{else if not .AggregateID}}none{{else}}others{{end}}`, row: order, want: "lines"},
		{name: "else", topic: `{{if and (ne .EventType "LineAdded") .ID}}others{{else}}lines{{end}}`, row: order, want: "lines"},
		{name: "comment and trimmed blanks", topic: "{{/* ours */ -}} \n{{.AggregateType}}\n {{- /* end */}}", row: order, want: "OrderLine"},
		{name: "route wins", routes: map[string]string{"OrderLine": "lines"}, row: order, want: "lines"},
		{name: "route of another type", routes: map[string]string{"Order": "orders"}, row: order, want: "OrderLine"},
		{name: "route of an illegal type", routes: map[string]string{"order/created": "orders"}, row: row{"1", "order/created", "1", "E", ""}, want: "orders"},
		{name: "NULL is empty", topic: "{{.AggregateType}}.{{.AggregateID}}", row: row{"1", "Order", nil, "E", ""}, want: "Order."},
		{name: "static without an aggregate type", topic: "events", row: row{"1", nil, "1", "E", ""}, want: "events"},
		{name: "longest", row: row{"1", strings.Repeat("x", 249), "1", "E", ""}, want: strings.Repeat("x", 249)},
		{name: "every legal character", row: row{"1", "abcxyzABCXYZ0189._-", "1", "E", ""}, want: "abcxyzABCXYZ0189._-"},
		{name: "two underscores are not internal as such", row: row{"1", "__orders", "1", "E", ""}, want: "__orders"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRouter(t, Config{Topic: test.topic, Routes: test.routes})
			for range 2 { // worked out, then remembered
				got, err := r.Topic(event(t, test.row))
				require.NoError(t, err)
				require.Equal(t, test.want, got)
			}
		})
	}
}

func TestTopicRefused(t *testing.T) {
	const characters = "but Kafka takes only a-z, A-Z, 0-9, '.', '_' and '-'"
	long := strings.Repeat("x", 250)
	tests := []struct {
		name          string
		topic         string
		aggregateType any
		want          TopicError
		message       string
	}{
		{name: "NULL", aggregateType: nil,
			message: "no topic: column aggregate_type is NULL or empty"},
		{name: "empty", aggregateType: "",
			message: "no topic: column aggregate_type is NULL or empty"},
		{name: "NULL beside literal text", topic: "shop.{{.AggregateType}}", aggregateType: nil,
			message: "no topic: column aggregate_type is NULL or empty"},
		{name: "slash", aggregateType: "order/created", want: TopicError{AggregateType: "order/created", Topic: "order/created"},
			message: `no topic for aggregate type "order/created": "order/created" has '/', ` + characters},
		{name: "blank", aggregateType: "Order ", want: TopicError{AggregateType: "Order ", Topic: "Order "},
			message: `no topic for aggregate type "Order ": "Order " has ' ', ` + characters},
		{name: "other alphabet", aggregateType: "заказ", want: TopicError{AggregateType: "заказ", Topic: "заказ"},
			message: `no topic for aggregate type "заказ": "заказ" has 'з', ` + characters},
		{name: "not UTF-8", aggregateType: "a\xff", want: TopicError{AggregateType: "a\xff", Topic: "a\xff"},
			message: `no topic for aggregate type "a\xff": "a\xff" has '�', ` + characters},
		{name: "dot", aggregateType: ".", want: TopicError{AggregateType: ".", Topic: "."},
			message: `no topic for aggregate type ".": the name "." is reserved`},
		{name: "two dots", aggregateType: "..", want: TopicError{AggregateType: "..", Topic: ".."},
			message: `no topic for aggregate type "..": the name ".." is reserved`},
		{name: "too long", aggregateType: long, want: TopicError{AggregateType: long, Topic: long[1:]},
			message: `no topic for aggregate type "` + long[1:] + `": the name is longer than 249 bytes`},
		{name: "too long with its prefix", topic: "shop.{{.AggregateType}}", aggregateType: long[:245], want: TopicError{AggregateType: long[:245], Topic: "shop." + long[:244]},
			message: `no topic for aggregate type "` + long[:245] + `": the name is longer than 249 bytes`},
		{name: "internal", aggregateType: "__consumer_offsets", want: TopicError{AggregateType: "__consumer_offsets", Topic: "__consumer_offsets"},
			message: `no topic for aggregate type "__consumer_offsets": topic __consumer_offsets is internal to Kafka`},
		{name: "internal by a template", topic: "__{{.AggregateType}}", aggregateType: "transaction_state", want: TopicError{AggregateType: "transaction_state", Topic: "__transaction_state"},
			message: `no topic for aggregate type "transaction_state": topic __transaction_state is internal to Kafka`},
		{name: "nothing left", topic: "{{.EventType}}", aggregateType: "Order", want: TopicError{AggregateType: "Order"},
			message: `no topic for aggregate type "Order": the name is empty`},
		{name: "arguments that are wrong for some events", topic: `{{if eq .AggregateType "Invoice"}}{{lower}}{{end}}`, aggregateType: "Invoice", want: TopicError{AggregateType: "Invoice"},
			message: `no topic for aggregate type "Invoice": at <lower>: wrong number of args for lower: want 1 got 0`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRouter(t, Config{Topic: test.topic})
			for range 2 { // worked out, then remembered
				topic, err := r.Topic(event(t, row{"1", test.aggregateType, "1", nil, ""}))
				require.Empty(t, topic)
				var got *TopicError
				require.ErrorAs(t, err, &got)
				require.Equal(t, test.message, err.Error())
				require.ErrorIs(t, err, got.Reason)
				require.Equal(t, test.want.AggregateType, got.AggregateType)
				require.Equal(t, test.want.Topic, got.Topic)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		want string
	}{
		{"header without a name", Config{Headers: []Header{{Name: "eventId"}, {Name: ""}}}, "header 2 lacks a name"},
		{"header given twice", Config{Headers: append(DefaultHeaders(), Header{Name: "eventId", Column: decoder.AggregateID})}, `header "eventId" is given twice`},
		{"route to an illegal topic", Config{Routes: map[string]string{"Order": "or ders"}},
			`route of aggregate type "Order": "or ders" has ' ', but Kafka takes only a-z, A-Z, 0-9, '.', '_' and '-'`},
		{"route to nothing", Config{Routes: map[string]string{"Order": ""}}, `route of aggregate type "Order": the name is empty`},
		{"route to an internal topic", Config{Routes: map[string]string{"Order": "__share_group_state"}},
			`route of aggregate type "Order": topic __share_group_state is internal to Kafka`},
		{"route to a long name", Config{Routes: map[string]string{"Order": strings.Repeat("x", 250)}},
			`route of aggregate type "Order": the name is longer than 249 bytes`},
		{"route of nothing", Config{Routes: map[string]string{"": "orders"}}, `route to topic "orders" lacks an aggregate type`},
		{"everything at once", Config{Topic: "a b", Routes: map[string]string{"B": "..", "A": "."}, Headers: []Header{{}}},
			`topic template "a b": "a b" has ' ', but Kafka takes only a-z, A-Z, 0-9, '.', '_' and '-'` + "\n" +
				`route of aggregate type "A": the name "." is reserved` + "\n" +
				`route of aggregate type "B": the name ".." is reserved` + "\n" +
				"header 1 lacks a name"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := New(test.cfg)
			require.EqualError(t, err, test.want)
		})
	}
}

func TestConfigMayBeUsedAgain(t *testing.T) {
	cfg := Config{Routes: map[string]string{"Order": "orders"}, Headers: DefaultHeaders()}
	r := newRouter(t, cfg)
	cfg.Routes["Order"], cfg.Headers[0].Name = "changed", "changed"

	topic, err := r.Topic(event(t, row{"1", "Order", "1", "E", ""}))
	require.NoError(t, err)
	require.Equal(t, "orders", topic)
	require.Equal(t, "eventId", r.Headers()[0].Name)
	require.Nil(t, cfg.Headers[0].Key)
}

func TestKeyAndValueTellNullFromEmpty(t *testing.T) {
	r := newRouter(t, Config{})
	null := event(t, row{"1", "Order", nil, nil, nil})
	require.Nil(t, r.Key(null))
	require.Nil(t, r.Value(null))

	empty := event(t, row{"1", "Order", "", "", ""})
	require.Equal(t, []byte{}, r.Key(empty))
	require.Equal(t, []byte{}, r.Value(empty))

	full := event(t, row{"1", "Order", "42", "E", "{\r\n\"a\": \"😀\"}"})
	require.Equal(t, []byte("42"), r.Key(full))
	require.Equal(t, []byte("{\r\n\"a\": \"😀\"}"), r.Value(full))
}

func TestHeaders(t *testing.T) {
	r := newRouter(t, Config{Headers: append(DefaultHeaders(), Header{Name: "aggregate", Column: decoder.AggregateID})})
	require.Equal(t, []Header{
		{Name: "eventId", Column: decoder.ID, Key: []byte("eventId")},
		{Name: "eventType", Column: decoder.EventType, Key: []byte("eventType")},
		{Name: "aggregate", Column: decoder.AggregateID, Key: []byte("aggregate")},
	}, r.Headers())
}

// A Router that has seen other events must answer as one that has not.
func TestTopicsDoNotMix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{
			Topic: rapid.SampledFrom([]string{
				"{{.AggregateType}}",
				"{{.AggregateType}}{{.AggregateID}}",
				"{{.ID}}{{.EventType}}",
				"{{if .EventType}}{{.AggregateID}}{{else}}{{.AggregateType}}{{end}}",
				"events",
			}).Draw(t, "topic"),
			Routes: rapid.SampledFrom([]map[string]string{nil, {"a": "b"}}).Draw(t, "routes"),
		}
		used := newRouter(t, cfg)
		value := rapid.SampledFrom([]any{nil, "", "a", "b", "aa", "ab", "\x01a", "\x01"})
		for range 20 {
			e := event(t, row{
				value.Draw(t, "id"),
				value.Draw(t, "aggregate type"),
				value.Draw(t, "aggregate id"),
				value.Draw(t, "event type"),
				"",
			})
			got, gotErr := used.Topic(e)
			want, wantErr := newRouter(t, cfg).Topic(e)
			require.Equal(t, want, got)
			require.Equal(t, wantErr, gotErr)
		}
	})
}

func TestTopicIsWorkedOutOncePerCombination(t *testing.T) {
	r := newRouter(t, Config{Topic: "{{.AggregateType}}.{{.EventType}}"})
	for i := range 100 {
		aggregateType, eventType := fmt.Sprint("T", i%3), fmt.Sprint("E", i%2)
		topic, err := r.Topic(event(t, row{fmt.Sprint(i), aggregateType, fmt.Sprint(i), eventType, fmt.Sprint(i)}))
		require.NoError(t, err)
		require.Equal(t, aggregateType+"."+eventType, topic)
	}
	require.Len(t, r.known, 3*2)
}

func TestRememberedTopicsAreBounded(t *testing.T) {
	r := newRouter(t, Config{Topic: "{{.AggregateID}}"})
	for i := range 2*maxKnown + 1 {
		id := fmt.Sprint(i)
		topic, err := r.Topic(event(t, row{"1", "Order", id, "E", ""}))
		require.NoError(t, err)
		require.Equal(t, id, topic)
		require.LessOrEqual(t, len(r.known), maxKnown)
	}
	require.Len(t, r.known, 1)
}

func TestLargeValuesAreNotRemembered(t *testing.T) {
	r := newRouter(t, Config{Topic: `{{if eq .EventType "x"}}x{{else}}{{.AggregateType}}{{end}}`})
	for i := range 3 {
		large := strings.Repeat("e", maxKey) + fmt.Sprint(i)
		topic, err := r.Topic(event(t, row{"1", "Order", "1", large, ""}))
		require.NoError(t, err)
		require.Equal(t, "Order", topic)
	}
	require.Empty(t, r.known)
	require.LessOrEqual(t, cap(r.key), 2*maxKey)
}

func TestRoutingAnEventDoesNotAllocate(t *testing.T) {
	r := newRouter(t, Config{Topic: "{{.AggregateType | kebab | plural}}.{{.EventType}}", Headers: DefaultHeaders()})
	good := event(t, row{"1", "OrderLine", "42", "E", "{}"})
	bad := event(t, row{"1", "Order Line", "42", "/", "{}"})
	allocated := testing.AllocsPerRun(100, func() {
		if _, err := r.Topic(good); err != nil {
			t.Error(err)
		}
		if _, err := r.Topic(bad); err == nil {
			t.Error("an illegal topic was taken")
		}
		if p := Partition(r.Key(good), 12); p < 0 || p > 11 {
			t.Error("no partition of the topic", p)
		}
		if r.Value(good) == nil || len(r.Headers()) != 2 {
			t.Error("value or headers are lost")
		}
	})
	require.Zero(t, allocated)
}

func BenchmarkTopic(b *testing.B) {
	for _, bench := range []struct{ name, topic string }{
		{"aggregate type", DefaultTopic},
		{"two fields", "{{.AggregateType | kebab | plural}}.{{.EventType}}"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			r := newRouter(b, Config{Topic: bench.topic})
			e := event(b, row{"6e0c2d1e-8f0c-4a55-9a55-3f2f6f4f9b11", "OrderLine", "42", "LineAdded", "{}"})
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Topic(e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkTopicUnknown is a template over the aggregate id, which is never the same.
func BenchmarkTopicUnknown(b *testing.B) {
	r := newRouter(b, Config{Topic: "{{.AggregateID}}"})
	events := make([]decoder.Event, 2*maxKnown)
	for i := range events {
		events[i] = event(b, row{"1", "Order", fmt.Sprint(i), "E", ""})
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := r.Topic(events[i%len(events)]); err != nil {
			b.Fatal(err)
		}
	}
}
