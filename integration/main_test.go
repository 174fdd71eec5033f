// Package integration proves what Pombo promises with the built binary, a real Postgres and a real Kafka. Each test
// is named after the guarantee it proves; ids such as A01 in comments are those of docs/reliability.md.
package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/pombo-cdc/pombo/integration/stack"
)

// The servers and the binary that most tests share. Each test has its own database, slot and topics.
var (
	postgres *stack.Postgres
	kafka    *stack.Kafka
	binary   string
)

func TestMain(m *testing.M) {
	code, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // the way of TestMain
}

func runAll(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "pombo-bin-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "pombo")

	group, ctx := errgroup.WithContext(context.Background())
	group.Go(func() (err error) {
		postgres, err = stack.StartPostgres(ctx, stack.PostgresOptions{Settings: map[string]string{"fsync": "off"}}) // processes crash here, the machine does not
		return err
	})
	group.Go(func() (err error) {
		kafka, err = stack.StartKafka(ctx, stack.KafkaOptions{})
		return err
	})
	group.Go(func() error {
		build := exec.CommandContext(ctx, "go", append(append([]string{"build"}, raceFlags...), "-o", binary, "..")...)
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build: %w: %s", err, out)
		}
		return nil
	})
	defer func() {
		if postgres != nil {
			_ = postgres.Close()
		}
		if kafka != nil {
			_ = kafka.Close()
		}
		fragile.close()
	}()
	if err := group.Wait(); err != nil {
		return 1, err
	}
	code = m.Run()
	fmt.Printf("Postgres: %s; Kafka: %s\n", postgres.Origin(), kafka.Origin())
	return code, nil
}

// fragile is a second broker, for the tests that break it. It creates no topics by itself.
var fragile lazyKafka

type lazyKafka struct {
	once  sync.Once
	kafka *stack.Kafka
	err   error
}

func (l *lazyKafka) get(t *testing.T) *stack.Kafka {
	t.Helper()
	l.once.Do(func() {
		l.kafka, l.err = stack.StartKafka(context.Background(), stack.KafkaOptions{
			Settings: map[string]string{"auto.create.topics.enable": "false"},
		})
	})
	if l.err != nil {
		t.Fatal(l.err)
	}
	return l.kafka
}

func (l *lazyKafka) close() {
	if l.kafka != nil {
		_ = l.kafka.Close()
	}
}
