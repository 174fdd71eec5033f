// The demo runs Pombo's main job on a throw-away stack: an order service commits orders with their events, some of its
// transactions roll back, pombo publishes, and an idempotent consumer reads. It ends by itself with a table,
// and with exit code 1 if an event was lost or came out of order.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pombo-cdc/pombo/integration/stack"
	"github.com/pombo-cdc/pombo/integration/workload"
)

const (
	binary      = "bin/pombo"
	duration    = 10 * time.Second // of the orders
	perSecond   = 400              // transactions
	aggregates  = 200
	drainLimit  = 30 * time.Second
	stopLimit   = 15 * time.Second
	consumerDDL = `CREATE TABLE IF NOT EXISTS received_order (id text PRIMARY KEY, version bigint NOT NULL)`
	serviceDDL  = `CREATE TABLE purchase_order (id text PRIMARY KEY, version bigint NOT NULL, total_cents bigint NOT NULL)`
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := demo(ctx)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context) error {
	servers, err := startServers(ctx)
	if err != nil {
		return err
	}
	defer servers.close()

	dsn, err := servers.postgres.CreateDatabase(ctx, "shop")
	if err != nil {
		return err
	}
	if err := execute(ctx, dsn, serviceDDL, consumerDDL); err != nil {
		return err
	}
	connector, err := startConnector(ctx, dsn, servers.kafka.Brokers())
	if err != nil {
		return err
	}
	defer connector.kill()
	fmt.Printf("\n%d orders a second for %s, one transaction in ten rolls back:\n\n", perSecond, duration)

	result, err := trade(ctx, dsn, servers.kafka.Brokers(), connector)
	if err != nil {
		return err
	}
	if err := connector.stop(); err != nil {
		return err
	}
	result.print(os.Stdout)
	return result.err()
}

// throwAway spares the disk: nobody will want this database back after a power cut.
var throwAway = map[string]string{"fsync": "off"}

// servers are the throw-away Postgres and Kafka.
type servers struct {
	postgres *stack.Postgres
	kafka    *stack.Kafka
}

func startServers(ctx context.Context) (*servers, error) {
	fmt.Println("Starting a throw-away Postgres and Kafka …")
	s := &servers{}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		s.postgres, err = stack.StartPostgres(ctx, stack.PostgresOptions{Log: os.Stdout, Settings: throwAway})
		return err
	})
	group.Go(func() (err error) {
		s.kafka, err = stack.StartKafka(ctx, stack.KafkaOptions{Log: os.Stdout})
		return err
	})
	if err := group.Wait(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *servers) close() {
	if s.kafka != nil {
		_ = s.kafka.Close()
	}
	if s.postgres != nil {
		_ = s.postgres.Close()
	}
}

func execute(ctx context.Context, dsn string, statements ...string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// connector is the running `pombo run`.
type connector struct {
	cmd    *exec.Cmd
	log    *workload.Transcript // shown only if something goes wrong
	exited chan struct{}
}

// startConnector runs `pombo run --setup`, as somebody would on the first day.
func startConnector(ctx context.Context, dsn string, brokers []string) (*connector, error) {
	c := &connector{log: workload.NewTranscript(), exited: make(chan struct{})}
	c.cmd = exec.Command(binary, "run", "--setup", "--create-table", "--create-topics",
		"--brokers", strings.Join(brokers, ","), "--route", "Order=orders", "--log-format", "console")
	c.cmd.Env = append(os.Environ(), "POMBO_POSTGRES="+dsn)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w (run it with `make demo`, which builds it)", binary, err)
	}
	fmt.Println("pombo run --setup --create-table --create-topics --route Order=orders")
	go func() {
		_ = c.cmd.Wait() // the exit code is read from ProcessState
		close(c.exited)
	}()
	return c, c.log.Await(ctx, "streaming", c.exited)
}

// stop asks the connector to stop, which confirms everything that it has sent.
func (c *connector) stop() error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.exited:
	case <-time.After(stopLimit):
		return c.failed("does not stop")
	}
	if c.cmd.ProcessState.ExitCode() != 0 {
		return c.failed("failed")
	}
	return nil
}

func (c *connector) kill() {
	_ = c.cmd.Process.Kill()
	<-c.exited
}

func (c *connector) failed(how string) error {
	return errors.New("pombo " + how + "; it logged:\n" + c.log.String())
}
