package rig

import "context"

// Job is what a contender has to do: publish the events of an outbox table to one topic.
type Job struct {
	Postgres    string   // DSN
	Brokers     []string // host:port
	Slot        string   // logical, waits at the first event; its plugin is pgoutput
	Publication string   // of the outbox table, inserts only
	Table       string   // schema.name
	Topic       string   // exists
}

// Contender moves events from an outbox table to Kafka.
type Contender interface {
	Name() string
	// Start runs it as a process of its own. It returns at once, before the first event is published.
	Start(ctx context.Context, job Job) (*Process, error)
}
