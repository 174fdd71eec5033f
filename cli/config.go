package cli

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"github.com/pombo-cdc/pombo/connector"
	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/router"
)

// maxName is how long a name may be in Postgres, in bytes. It cuts off what is longer.
const maxName = 63

// slotName is what Postgres takes as the name of a slot.
var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// source returns what to replicate from where, for a table with the columns of layout.
func (s *settings) source(layout *decoder.Layout) replication.Source {
	src := replication.Source{
		Postgres:    s.postgres(),
		Slot:        s.text("slot"),
		Publication: s.text("publication"),
		Schema:      layout.Schema,
		Table:       layout.Table,
	}
	if !slotName.MatchString(src.Slot) && s.has("slot") {
		s.refuse("slot", "%q is not a slot's name: use up to 63 of a-z, 0-9 and _", src.Slot)
	}
	if len(src.Publication) > maxName {
		s.refuse("publication", "a name has up to %d bytes, and this one %d", maxName, len(src.Publication))
	}
	for _, column := range layout.Columns { // two roles may share one
		if !slices.Contains(src.Columns, column) {
			src.Columns = append(src.Columns, column)
		}
	}
	return src
}

// layout returns the table with the columns that roles and headers name, and the headers.
func (s *settings) layout() (*decoder.Layout, []router.Header) {
	schema, table, err := parseTable(s.text("table"))
	if err != nil {
		s.refuse("table", "%w", err)
	}
	l := decoder.NewLayout(schema, table)
	var roles []string
	for _, role := range decoder.Roles() {
		roles = append(roles, role.Role())
	}
	for _, p := range s.pairs("column", "role=column") {
		if role := slices.Index(roles, p.key); role < 0 {
			s.refuse("column", "%q is no role: there are %s", p.key, strings.Join(roles, ", "))
		} else {
			l.Columns[role] = p.value
		}
	}
	if !s.has("header") {
		return l, router.DefaultHeaders()
	}
	var headers []router.Header
	for _, p := range s.pairs("header", "name=column") {
		headers = append(headers, router.Header{Name: p.key, Column: l.Column(p.value)})
	}
	return l, headers
}

// connector returns the Config of the stages up to the router.
func (s *settings) connector(log zerolog.Logger) connector.Config {
	layout, headers := s.layout()
	routes := make(map[string]string)
	for _, p := range s.pairs("route", "aggregate type=topic") {
		routes[p.key] = p.value
	}
	r, err := router.New(router.Config{Layout: layout, Topic: s.text("topic"), Routes: routes, Headers: headers})
	if err != nil {
		for _, line := range strings.Split(err.Error(), "\n") {
			s.mistake(errors.New(line))
		}
	}
	return connector.Config{
		Source: s.source(layout),
		Layout: layout,
		Router: r,
		Buffer: connector.DefaultBuffer,
		Grace:  connector.DefaultGrace,
		Log:    log,
	}
}
