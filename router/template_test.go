package router

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/decoder"
)

func TestTemplateRefused(t *testing.T) {
	const functions = "kebab, lower, plural, snake, upper, eq, ne, and, or, not"
	const characters = "but Kafka takes only a-z, A-Z, 0-9, '.', '_' and '-'"
	tests := []struct{ name, template, want string }{
		{"unclosed action", "{{", "unclosed action"},
		{"unclosed if", "{{if .ID}}a", "unexpected EOF"},
		{"end of nothing", "{{end}}", "unexpected {{end}}"},
		{"unknown field", "{{.Type}}", "an event has no field .Type, only .ID, .AggregateType, .AggregateID and .EventType"},
		{"the payload", "{{.Payload}}", "an event has no field .Payload, only .ID, .AggregateType, .AggregateID and .EventType"},
		{"field of a field", "{{.ID.Version}}", "an event has no field .ID.Version, only .ID, .AggregateType, .AggregateID and .EventType"},
		{"unknown field in a branch", "{{if .ID}}a{{else}}{{.Type}}{{end}}", "an event has no field .Type, only .ID, .AggregateType, .AggregateID and .EventType"},
		{"unknown function", "{{camel .ID}}", "function camel is not offered, only " + functions},
		{"function that repeats", `{{printf "%999999d" .ID}}`, "function printf is not offered, only " + functions},
		{"function that doubles", "{{.ID | js | js | js}}", "function js is not offered, only " + functions},
		{"no argument", "{{lower}}", "at <lower>: wrong number of args for lower: want 1 got 0"},
		{"no argument in a branch", "{{if .EventType}}a{{else}}{{lower}}{{end}}", "at <lower>: wrong number of args for lower: want 1 got 0"},
		{"two arguments", "{{lower .ID .ID}}", "at <lower>: wrong number of args for lower: want 1 got 2"},
		{"wrong argument", "{{lower (not .ID)}}", "at <.ID>: wrong type for value; expected string; got bool"},
		{"text as a function", `{{"x" .ID}}`, `at <"x">: can't give argument to non-function "x"`},
		{"whole event", "{{.}}", `"." is not offered`},
		{"variable", "{{$x := .ID}}{{$x}}", "variable $x is not offered"},
		{"root variable", "{{$.ID}}", `"$.ID" is not offered`},
		{"number", "{{eq .ID 1}}", `"1" is not offered`},
		{"loop without an end", "{{range 1000000000}}{{end}}", `"{{range 1000000000}}{{end}}" is not offered`},
		{"with", "{{with .ID}}{{.}}{{end}}", `"{{with .ID}}{{.}}{{end}}" is not offered`},
		{"definition", `{{define "a"}}{{template "a"}}{{end}}{{.ID}}`, "define is not offered"},
		{"call of a template", `{{template "topic" .}}`, `"{{template \"topic\" .}}" is not offered`},
		{"long and of several lines", "{{range .ID}}\n" + strings.Repeat("x", 100) + "{{end}}", `"{{range .ID}}\nxxxxxxxxxxxxxxxxxxxxxxxxxx" is not offered`},
		{"literal blank", "{{.ID}} events", `" events" has ' ', ` + characters},
		{"line end of a file", "{{.ID}}\n", `"\n" has '\n', ` + characters},
		{"literal blank in a branch", "{{if .ID}}a{{else}} {{end}}", `" " has ' ', ` + characters},
		{"nothing", "{{/* a comment */}}", "the name is empty"},
		{"static illegal name", `{{"a b"}}`, `"a b" has ' ', ` + characters},
		{"static internal topic", "__consumer_offsets", "topic __consumer_offsets is internal to Kafka"},
		{"too long for every event", strings.Repeat("x", 250), "the name is longer than 249 bytes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := New(Config{Topic: test.template})
			require.ErrorContains(t, err, "topic template ")
			require.ErrorContains(t, err, `": `+test.want)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestTemplateColumns(t *testing.T) {
	tests := []struct {
		template string
		want     []decoder.Column
	}{
		{"events", nil},
		{"{{.AggregateType}}", []decoder.Column{decoder.AggregateType}},
		{"{{.AggregateType}}.{{.AggregateType | lower}}", []decoder.Column{decoder.AggregateType}},
		{"{{if eq .EventType .ID}}a{{else if (not .AggregateID)}}b{{else}}{{lower (upper .AggregateType)}}{{end}}",
			[]decoder.Column{decoder.EventType, decoder.ID, decoder.AggregateID, decoder.AggregateType}},
	}
	for _, test := range tests {
		t.Run(test.template, func(t *testing.T) {
			parsed, err := parseTemplate(test.template)
			require.NoError(t, err)
			require.Equal(t, test.want, parsed.columns)
		})
	}
}

// Whatever the template, New refuses it with one line or the Router gives each event a legal
// topic or a TopicError.
func FuzzTemplate(f *testing.F) {
	for _, template := range []string{
		DefaultTopic,
		"shop.{{.AggregateType | kebab | plural}}-{{lower .EventType}}",
		`{{if and (eq .EventType "a" "b") (ne .ID "")}}a{{else if or .AggregateID .ID}}b{{else}}{{upper (snake .AggregateType)}}{{end}}`,
		"{{- /* comment */ -}} x {{- .ID -}} ",
		"{{range 1000000000}}{{end}}",
		`{{define "a"}}{{template "a"}}{{template "a"}}{{end}}{{template "a"}}`,
		`{{$x := printf "%999999d" 1}}{{$x | js | printf "%q%q" $x}}`,
		"{{lower}}{{lower .ID .ID}}{{((.ID).ID)}}{{nil}}{{.}}{{1i}}",
		"{{", "}}", "{{if}}", "{{end}}", "{{`", "{{\"", "{{/*", "{{block \"a\" .}}{{end}}",
	} {
		f.Add(template, "OrderLine", "42", "LineAdded")
	}
	f.Add(DefaultTopic, "__consumer_offsets", "", "\xff")
	legal := regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)
	f.Fuzz(func(t *testing.T, template, aggregateType, aggregateID, eventType string) {
		r, err := New(Config{Layout: decoder.NewLayout("public", "outbox_event"), Topic: template})
		if err != nil {
			require.NotEmpty(t, err.Error())
			require.NotContains(t, err.Error(), "\n")
			return
		}
		topic, err := r.Topic(event(t, row{"1", aggregateType, aggregateID, eventType, ""}))
		if err != nil {
			var topicErr *TopicError
			require.True(t, errors.As(err, &topicErr))
			require.LessOrEqual(t, len(topicErr.Topic), maxTopic)
			return
		}
		require.Regexp(t, legal, topic)
	})
}
