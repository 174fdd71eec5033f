package router

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever stands in a template, it is refused at the start, or the topic of every event is a legal one or an error that is
// kept for that event. A topic that goes out twice is the same.
func FuzzTopicTemplate(f *testing.F) {
	for _, text := range []string{
		"", "events", "{{.AggregateType}}", "{{lower .AggregateType}}.v1", "{{.AggregateType | kebab | plural}}",
		`{{if eq .EventType "a"}}a{{else}}{{snake .AggregateID}}{{end}}`, `{{if and .ID (not .EventType)}}x{{end}}y`,
		"{{", "{{end}}", "{{range .}}{{end}}", `{{define "a"}}{{end}}`, "{{$x := .ID}}{{$x}}", "{{/* c */}}a", "{{- .ID -}}",
	} {
		f.Add(text, "6e0c", "OrderLine", "42", "LineAdded")
		f.Add(text, "", "", "", "")
	}
	f.Fuzz(func(t *testing.T, text, id, aggregateType, aggregateID, eventType string) {
		parsed, err := parseTemplate(text)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		topic, err := parsed.execute(fields{id, aggregateType, aggregateID, eventType})
		require.LessOrEqual(t, len(topic), maxTopic)
		again, errAgain := parsed.execute(fields{id, aggregateType, aggregateID, eventType})
		require.Equal(t, topic, again)
		require.Equal(t, err == nil, errAgain == nil)

		r := newRouter(t, Config{Topic: text})
		routed, err := r.Topic(event(t, row{id, aggregateType, aggregateID, eventType, "{}"}))
		if err != nil {
			var refused *TopicError
			require.True(t, errors.As(err, &refused), err)
			return
		}
		require.NoError(t, checkTopic(routed))
	})
}
