package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/pombo-cdc/pombo/integration/stack"
)

// Servers are the Postgres and the Kafka that contenders work on.
type Servers struct {
	postgres *stack.Postgres
	kafka    *stack.Kafka
	client   *kgo.Client
	log      io.Writer
	made     int // databases and topics, for their names
}

// postgresSettings keep the server from work of its own while something is measured.
var postgresSettings = map[string]string{
	"max_wal_size": "8GB",
	"autovacuum":   "off",
}

// kafkaSettings give the disk of a deleted topic back at once; a minute later is the default.
var kafkaSettings = map[string]string{"log.segment.delete.delay.ms": "1000"}

// StartServers starts a throw-away stack. Lines of progress go to log.
func StartServers(ctx context.Context, log io.Writer) (*Servers, error) {
	s := &Servers{log: log}
	group, starting := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		s.postgres, err = stack.StartPostgres(starting, stack.PostgresOptions{Log: log, Settings: postgresSettings})
		return err
	})
	group.Go(func() (err error) {
		s.kafka, err = stack.StartKafka(starting, stack.KafkaOptions{Log: log, Optimize: true, Settings: kafkaSettings})
		return err
	})
	err := group.Wait()
	if err == nil {
		s.client, err = kgo.NewClient(kgo.SeedBrokers(s.kafka.Brokers()...), kgo.MetadataMinAge(metadataAge))
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close ends the servers and removes their data.
func (s *Servers) Close() (err error) {
	if s.client != nil {
		s.client.Close()
	}
	if s.kafka != nil {
		err = s.kafka.Close()
	}
	if s.postgres != nil {
		err = errors.Join(err, s.postgres.Close())
	}
	return err
}

// Origin says what is measured on.
func (s *Servers) Origin() string {
	return fmt.Sprintf("%d cores, %s/%s; %s; %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, s.postgres.Origin(), s.kafka.Origin())
}

// Tell writes a line of progress.
func (s *Servers) Tell(format string, args ...any) { fmt.Fprintf(s.log, format+"\n", args...) }

// name makes a name that no database, slot or topic has yet.
func (s *Servers) name(kind string) string {
	s.made++
	return fmt.Sprintf("%s_%d", kind, s.made)
}

// session calls do with a connection of its own.
func session(ctx context.Context, dsn string, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return do(conn)
}
