package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"

	"github.com/pombo-cdc/pombo/integration/stack"
)

const (
	reference  = "pg_recvlogical"
	binary     = "bin/pombo"
	database   = "bench"
	baseSlot   = "bench_base" // is where every drain starts; never read
	slot       = "bench"
	partitions = 4
)

// bench is the pair of servers that is drained.
type bench struct {
	postgres *stack.Postgres
	kafka    *stack.Kafka
	dsn      string
	end      string // LSN after the last event
}

func (b *bench) close() {
	if b.kafka != nil {
		_ = b.kafka.Close()
	}
	if b.postgres != nil {
		_ = b.postgres.Close()
	}
}

// load writes the events behind a slot that waits.
func (b *bench) load(ctx context.Context, o options) (err error) {
	if b.dsn, err = b.postgres.CreateDatabase(ctx, database); err != nil {
		return err
	}
	setup := exec.CommandContext(ctx, binary, "setup", "--create-table", "--slot", baseSlot, "--postgres", b.dsn)
	if out, err := setup.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	const procedure = `CREATE PROCEDURE write_events(events int, size int, per_transaction int) LANGUAGE plpgsql AS $$
		BEGIN
			FOR t IN 0 .. events / per_transaction - 1 LOOP
				INSERT INTO outbox_event (id, aggregate_type, aggregate_id, event_type, payload, created_at)
				SELECT gen_random_uuid(), 'Order', 'order-' || (t * per_transaction + i) % 10000, 'OrderChanged',
					rpad('{"order":' || i || ',"note":"' || md5((t * per_transaction + i)::text), size, md5(t::text)), now()
				FROM generate_series(1, per_transaction) i;
				COMMIT;
			END LOOP;
		END $$`
	return b.query(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, procedure); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, `CALL write_events($1, $2, $3)`, o.events, o.payload, o.perTransaction); err != nil {
			return err
		}
		return conn.QueryRow(ctx, `SELECT pg_current_wal_lsn()::text`).Scan(&b.end)
	})
}

func (b *bench) query(ctx context.Context, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, b.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return do(conn)
}

// freshSlot makes a slot at the position before the first event.
func (b *bench) freshSlot(ctx context.Context) error {
	return b.query(ctx, func(conn *pgx.Conn) error {
		const drop = `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`
		if _, err := conn.Exec(ctx, drop, slot); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, `SELECT pg_copy_logical_replication_slot($1::name, $2::name)`, baseSlot, slot)
		return err
	})
}

// measure drains a fresh slot in the i-th way.
func (b *bench) measure(ctx context.Context, o options, i, round int) (measurement, error) {
	if err := b.freshSlot(ctx); err != nil {
		return measurement{}, err
	}
	if i == 0 {
		return b.receive(ctx)
	}
	return b.publish(ctx, o, o.compression[i-1], fmt.Sprintf("drain-%d-%d", i, round))
}

// receive is the reference: the same options, the same protocol, and nothing done with the result.
func (b *bench) receive(ctx context.Context) (measurement, error) {
	tool := reference
	if dir := b.postgres.BinDir(); dir != "" {
		tool = filepath.Join(dir, tool)
	}
	cmd := exec.CommandContext(ctx, tool, "--dbname", b.dsn, "--slot", slot, "--start", "--endpos", b.end, "--file", "/dev/null",
		"--option", "proto_version=1", "--option", "publication_names=pombo")
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return measurement{}, fmt.Errorf("%w: %s", err, out)
	}
	return usage(cmd, time.Since(began)), nil
}

// publish runs pombo from its start until the last event is in the topic.
func (b *bench) publish(ctx context.Context, o options, codec, topic string) (measurement, error) {
	client, err := sarama.NewClient(b.kafka.Brokers(), nil)
	if err != nil {
		return measurement{}, err
	}
	defer func() { _ = client.Close() }()
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return measurement{}, err
	}
	if err := admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false); err != nil {
		return measurement{}, err
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, "run", "--postgres", b.dsn, "--brokers", strings.Join(b.kafka.Brokers(), ","),
		"--slot", slot, "--route", "Order="+topic, "--compression", codec)
	cmd.Stderr = &log
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return measurement{}, err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the exit code is read from ProcessState
		close(exited)
	}()
	took, err := awaitRecords(ctx, client, topic, o.events, began, exited)
	_ = cmd.Process.Signal(syscall.SIGTERM)
	<-exited
	if err != nil {
		return measurement{}, fmt.Errorf("%w: %s", err, log.String())
	}
	return usage(cmd, took), nil
}

// awaitRecords returns how long it took until a topic had n records.
func awaitRecords(ctx context.Context, client sarama.Client, topic string, n int, began time.Time, exited <-chan struct{}) (time.Duration, error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var total int64
		for partition := range int32(partitions) {
			if end, err := client.GetOffset(topic, partition, sarama.OffsetNewest); err == nil { // else the topic is being made
				total += end
			}
		}
		if total >= int64(n) {
			return time.Since(began), nil
		}
		select {
		case <-tick.C:
		case <-exited:
			return 0, fmt.Errorf("it ended with %d of %d events published", total, n)
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func usage(cmd *exec.Cmd, took time.Duration) measurement {
	rusage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return measurement{
		took:   took,
		cpu:    cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(),
		memory: rusage.Maxrss << 10,
	}
}
