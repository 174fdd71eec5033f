package sink

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pombo-cdc/pombo/checkpoint"
	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/router"
)

// Printer writes events to a terminal or a pipe, as they would be published.
type Printer struct {
	w      *bufio.Writer
	json   bool
	router *router.Router
}

// NewPrinter returns a Printer that writes a line an event to w: for people, or one JSON object each.
func NewPrinter(w io.Writer, json bool, r *router.Router) *Printer {
	return &Printer{w: bufio.NewWriter(w), json: json, router: r}
}

// Run prints the batches of filled until it is closed, and recycles each when it is written.
func (p *Printer) Run(ctx context.Context, filled <-chan *decoder.Batch, pool *decoder.Pool, flushed *checkpoint.Position) error {
	for {
		select {
		case b, ok := <-filled:
			if !ok {
				return nil
			}
			if err := p.print(b); err != nil {
				return fmt.Errorf("write events: %w", err)
			}
			flushed.Advance(b.LSN)
			pool.Recycle(b)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (p *Printer) print(b *decoder.Batch) error {
	for i := range b.Len() {
		r := p.record(b.Event(i))
		if p.json {
			line, err := json.Marshal(r)
			if err != nil {
				return err
			}
			fmt.Fprintf(p.w, "%s\n", line) // the error is kept for Flush
			continue
		}
		r.print(p.w)
	}
	return p.w.Flush()
}

// record is an event in the form of a Kafka record. A nil pointer is null.
type record struct {
	Topic    string   `json:"topic"`
	Key      *text    `json:"key"`
	Headers  []header `json:"headers"`
	Value    *text    `json:"value"`
	Time     string   `json:"timestamp"`
	Unrouted string   `json:"error,omitempty"` // why the event cannot be published
}

type header struct {
	Name  string `json:"name"`
	Value text   `json:"value"`
}

// text is bytes that are usually text: JSON has them as a string, or in base64 in an object
// {"base64": …} where they are not UTF-8.
type text []byte

// MarshalJSON implements json.Marshaler.
func (t text) MarshalJSON() ([]byte, error) {
	if !utf8.Valid(t) {
		return json.Marshal(map[string][]byte{"base64": t})
	}
	encoded, err := json.Marshal(string(t))
	return escapeControls(encoded), err
}

// escapeControls escapes the control characters that may stand in JSON as they are, DEL and those of C1:
// some terminals obey them.
func escapeControls(encoded []byte) []byte {
	if !bytes.ContainsFunc(encoded, unicode.IsControl) {
		return encoded
	}
	var escaped []byte
	for _, r := range string(encoded) {
		if unicode.IsControl(r) {
			escaped = fmt.Appendf(escaped, `\u%04x`, r)
			continue
		}
		escaped = utf8.AppendRune(escaped, r)
	}
	return escaped
}

func (p *Printer) record(e decoder.Event) record {
	r := record{
		Key:     nullable(p.router.Key(e)),
		Value:   nullable(p.router.Value(e)),
		Headers: []header{},
		Time:    e.CommitTime().UTC().Format("2006-01-02T15:04:05.000Z07:00"),
	}
	topic, err := p.router.Topic(e)
	if err != nil {
		r.Unrouted = err.Error()
	}
	r.Topic = topic
	for _, h := range p.router.Headers() {
		if value := e.Column(h.Column); value != nil {
			r.Headers = append(r.Headers, header{h.Name, value})
		}
	}
	return r
}

func nullable(b []byte) *text {
	if b == nil {
		return nil
	}
	t := text(b)
	return &t
}

func (r record) print(w *bufio.Writer) {
	topic := r.Topic
	if r.Unrouted != "" {
		topic = "(cannot be published: " + r.Unrouted + ")"
	}
	fmt.Fprintf(w, "%s  %s  key=%s", r.Time, topic, r.Key)
	for _, h := range r.Headers {
		fmt.Fprintf(w, "  %s=%s", h.Name, &h.Value)
	}
	fmt.Fprintf(w, "\n    %s\n", r.Value)
}

// String is the text for a terminal: quoted where a control character in it could do harm there.
func (t *text) String() string {
	if t == nil {
		return "null"
	}
	s := string(*t)
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return strconv.Quote(s)
	}
	return s
}
