package decoder

import "slices"

// Column is the index of a column in the Layout and in the events decoded with it.
type Column int

// The roles that every outbox table fills. Further columns of a Layout follow them.
const (
	ID            Column = iota // identifies the event
	AggregateType               // chooses the topic
	AggregateID                 // becomes the key
	EventType                   // says what happened
	Payload                     // becomes the value
	roles         = iota
)

// Role is the name of a role as configuration spells it.
func (c Column) Role() string {
	return [...]string{"id", "aggregate_type", "aggregate_id", "event_type", "payload"}[c]
}

// Roles lists the columns that every Layout has, in their order.
func Roles() []Column { return []Column{ID, AggregateType, AggregateID, EventType, Payload} }

// Layout says which table holds the events and which of its columns an Event carries.
type Layout struct {
	Schema, Table string
	Columns       []string // names in the table, indexed by Column
}

// NewLayout returns the layout of a table whose columns have the names of their roles.
func NewLayout(schema, table string) *Layout {
	l := &Layout{Schema: schema, Table: table}
	for _, role := range Roles() {
		l.Columns = append(l.Columns, role.Role())
	}
	return l
}

// Column returns the index of the column called name, added if the layout lacks it.
func (l *Layout) Column(name string) Column {
	if i := slices.Index(l.Columns, name); i >= 0 {
		return Column(i)
	}
	l.Columns = append(l.Columns, name)
	return Column(len(l.Columns) - 1)
}
