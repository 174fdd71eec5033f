// The relay publishes an outbox by polling, as teams write it themselves: a transaction a second, which locks the oldest
// events, sends them one after another and marks each. It is there to be measured beside Pombo.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/twmb/franz-go/pkg/kgo"
)

type options struct {
	postgres, brokers, table, topic string
	interval                        time.Duration
	limit                           int
	again                           bool
}

func main() {
	var o options
	flag.StringVar(&o.postgres, "postgres", "", "DSN")
	flag.StringVar(&o.brokers, "brokers", "", "host:port, comma separated")
	flag.StringVar(&o.table, "table", "public.outbox_event", "outbox table, as schema.name")
	flag.StringVar(&o.topic, "topic", "", "topic that all events go to")
	flag.DurationVar(&o.interval, "interval", time.Second, "time from one poll to the next")
	flag.IntVar(&o.limit, "limit", 100, "events of a poll")
	flag.BoolVar(&o.again, "again", false, "poll again at once if there were as many events as the limit")
	flag.Parse()

	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	conn, err := pgx.Connect(ctx, o.postgres)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	producer, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(o.brokers, ",")...), kgo.DefaultProduceTopic(o.topic),
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	if err != nil {
		return fmt.Errorf("open producer: %w", err)
	}
	defer producer.Close()
	r := newRelay(conn, producer, o)
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	for {
		published, err := r.poll(context.WithoutCancel(ctx)) // what has been sent has to be marked
		if err != nil {
			return err
		}
		if o.again && published == o.limit && ctx.Err() == nil {
			continue
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// relay polls one table.
type relay struct {
	conn          *pgx.Conn
	producer      *kgo.Client
	limit         int
	unpublished   string // SQL
	markPublished string // SQL
}

func newRelay(conn *pgx.Conn, producer *kgo.Client, o options) *relay {
	table := pgx.Identifier(strings.Split(o.table, ".")).Sanitize()
	return &relay{
		conn: conn, producer: producer, limit: o.limit,
		unpublished: `SELECT id, aggregate_id, event_type, payload FROM ` + table +
			` WHERE published_at IS NULL ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED`,
		markPublished: `UPDATE ` + table + ` SET published_at = now() WHERE id = $1`,
	}
}

type event struct {
	ID                 pgtype.UUID
	Key, Kind, Payload string
}

// poll publishes the oldest events in one transaction and returns how many.
func (r *relay) poll(ctx context.Context) (published int, err error) {
	err = pgx.BeginFunc(ctx, r.conn, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, r.unpublished, r.limit) // its error comes with the rows
		events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[event])
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		for _, e := range events {
			if err := r.publish(ctx, tx, e); err != nil {
				return err
			}
		}
		published = len(events)
		return nil
	})
	return published, err
}

// publish sends an event, waits until all replicas have it, and marks it.
func (r *relay) publish(ctx context.Context, tx pgx.Tx, e event) error {
	record := &kgo.Record{
		Key: []byte(e.Key), Value: []byte(e.Payload),
		Headers: []kgo.RecordHeader{{Key: "eventId", Value: []byte(e.ID.String())}, {Key: "eventType", Value: []byte(e.Kind)}},
	}
	if err := r.producer.ProduceSync(ctx, record).FirstErr(); err != nil {
		return fmt.Errorf("send event %s: %w", e.ID, err)
	}
	if _, err := tx.Exec(ctx, r.markPublished, e.ID); err != nil {
		return fmt.Errorf("mark event %s: %w", e.ID, err)
	}
	return nil
}
