// Package router decides what becomes of an event in Kafka: its topic, partition, key, value
// and headers. It knows nothing of connections.
package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pombo-cdc/pombo/decoder"
)

// DefaultTopic is the template that names the topic after the aggregate type as it is.
const DefaultTopic = "{{.AggregateType}}"

// DefaultHeaders returns the headers that a consumer needs to tell events apart.
func DefaultHeaders() []Header {
	return []Header{
		{Name: "eventId", Column: decoder.ID},
		{Name: "eventType", Column: decoder.EventType},
	}
}

// Config says how events are routed.
type Config struct {
	Layout *decoder.Layout

	// Topic is a text/template that names the topic; empty means DefaultTopic. It has the fields
	// .ID, .AggregateType, .AggregateID and .EventType, in which SQL NULL is empty, the functions
	// lower, upper, kebab, snake and plural, and if and else with eq, ne, and, or and not.
	Topic string

	Routes  map[string]string // aggregate type to topic; wins over Topic
	Headers []Header
}

// Header is a record header that carries a column. An event whose column is NULL lacks it.
type Header struct {
	Name   string
	Column decoder.Column
	Key    []byte // Name in the form that a record takes, set by New
}

// Router routes the events of one layout. It belongs to one goroutine: Topic keeps what it has
// worked out.
type Router struct {
	layout  *decoder.Layout
	topic   *template
	routes  map[string]string
	headers []Header

	columns []decoder.Column // that the topic depends on
	key     []byte           // their values in one piece, used again for each event
	known   map[string]resolved
}

// resolved is a topic, or why there is none.
type resolved struct {
	topic string
	err   error
}

const (
	// maxKnown bounds the topics that are remembered: a template over the aggregate id has no
	// end of them.
	maxKnown = 4096

	// maxKey bounds the values that a topic is remembered for, in bytes.
	maxKey = 1024
)

// New returns a Router. Its error joins one sentence for each mistake in cfg.
func New(cfg Config) (*Router, error) {
	if cfg.Topic == "" {
		cfg.Topic = DefaultTopic
	}
	topic, err := parseTemplate(cfg.Topic)
	if err := errors.Join(err, checkRoutes(cfg.Routes), checkHeaders(cfg.Headers)); err != nil {
		return nil, err
	}
	r := &Router{
		layout:  cfg.Layout,
		topic:   topic,
		routes:  maps.Clone(cfg.Routes),
		headers: slices.Clone(cfg.Headers),
		columns: slices.Clone(topic.columns),
		known:   make(map[string]resolved),
	}
	if !topic.reads(decoder.AggregateType) {
		r.columns = append(r.columns, decoder.AggregateType) // routes and errors depend on it
	}
	for i := range r.headers {
		r.headers[i].Key = []byte(r.headers[i].Name)
	}
	return r, nil
}

func checkRoutes(routes map[string]string) error {
	var mistakes []error
	for _, aggregateType := range slices.Sorted(maps.Keys(routes)) {
		if aggregateType == "" {
			mistakes = append(mistakes, fmt.Errorf("route to topic %q lacks an aggregate type", routes[aggregateType]))
		}
		if err := checkTopic(routes[aggregateType]); err != nil {
			mistakes = append(mistakes, fmt.Errorf("route of aggregate type %q: %w", aggregateType, err))
		}
	}
	return errors.Join(mistakes...)
}

func checkHeaders(headers []Header) error {
	var mistakes []error
	seen := make(map[string]bool)
	for i, h := range headers {
		switch {
		case h.Name == "":
			mistakes = append(mistakes, fmt.Errorf("header %d lacks a name", i+1))
		case seen[h.Name]:
			mistakes = append(mistakes, fmt.Errorf("header %q is given twice", h.Name))
		}
		seen[h.Name] = true
	}
	return errors.Join(mistakes...)
}

// Topic returns the topic of an event. Its error is a *TopicError: the event can never be
// published as it is. A topic that is known already costs no allocation.
func (r *Router) Topic(e decoder.Event) (string, error) {
	r.key = r.key[:0]
	for _, c := range r.columns {
		value := e.Column(c)
		if len(r.key)+len(value) > maxKey {
			return r.resolve(e)
		}
		r.key = binary.AppendUvarint(r.key, uint64(len(value)))
		r.key = append(r.key, value...)
	}
	if found, ok := r.known[string(r.key)]; ok {
		return found.topic, found.err
	}
	if len(r.known) == maxKnown {
		clear(r.known)
	}
	var found resolved
	found.topic, found.err = r.resolve(e)
	r.known[string(r.key)] = found
	return found.topic, found.err
}

// resolve works a topic out.
func (r *Router) resolve(e decoder.Event) (string, error) {
	aggregateType := e.Column(decoder.AggregateType)
	if topic, ok := r.routes[string(aggregateType)]; ok {
		return topic, nil
	}
	if len(aggregateType) == 0 && r.topic.reads(decoder.AggregateType) {
		return "", &TopicError{Reason: fmt.Errorf("column %s is NULL or empty", r.layout.Columns[decoder.AggregateType])}
	}
	topic, err := r.topic.execute(eventFields(e))
	if err == nil {
		err = checkTopic(topic)
	}
	if err != nil {
		return "", &TopicError{AggregateType: string(aggregateType), Topic: topic, Reason: err}
	}
	return topic, nil
}

// Key lends the record key, the aggregate id: nil for NULL, empty but not nil for the empty string.
func (r *Router) Key(e decoder.Event) []byte { return e.Column(decoder.AggregateID) }

// Value lends the record value, the payload: nil for NULL, which Kafka calls a tombstone.
func (r *Router) Value(e decoder.Event) []byte { return e.Column(decoder.Payload) }

// Headers lends the headers of every record. Their values are the event's columns.
func (r *Router) Headers() []Header { return r.headers }
