package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pombo-cdc/pombo/integration/stack"
	"github.com/pombo-cdc/pombo/integration/workload"
)

const (
	brokers    = 3
	partitions = 4
	buffer     = "4MiB" // small, so that an outage fills it
)

// aggregateTypes and the topics that the template makes of them.
var aggregateTypes = map[string]string{"Order": "orders", "Payment": "payments", "Shipment": "shipments", "Customer": "customers"}

const topicTemplate = "{{.AggregateType | lower | plural}}"

// stage is everything that a run needs: the servers, the proxies before them, and two instances of pombo.
type stage struct {
	dir       string // logs of the instances
	postgres  *stack.Postgres
	kafka     *stack.KafkaCluster
	dsn       string // past the proxies
	instances []*instance
	ledger    *workload.Ledger
	sessions  *sessions
	operator  operator
}

// openStage starts the servers and sets pombo up. The instances do not run yet.
func openStage(ctx context.Context) (s *stage, err error) {
	s = &stage{ledger: workload.NewLedger(nil)}
	s.sessions = &sessions{ledger: s.ledger}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(false))
		}
	}()
	if s.dir, err = os.MkdirTemp("", "pombo-chaos-"); err != nil {
		return s, err
	}
	if err := s.startServers(ctx); err != nil {
		return s, err
	}
	if s.dsn, err = s.postgres.CreateDatabase(ctx, "chaos"); err != nil {
		return s, err
	}
	if err := s.createTopics(); err != nil {
		return s, err
	}
	if err := s.setUp(ctx); err != nil {
		return s, err
	}
	for _, name := range []string{"a", "b"} {
		if err := s.addInstance(name); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *stage) startServers(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		s.postgres, err = stack.StartPostgres(ctx, stack.PostgresOptions{Log: os.Stderr, Settings: map[string]string{
			"fsync":              "off", // processes crash here, the machine does not
			"wal_sender_timeout": walSenderTimeout.String(),
		}})
		return err
	})
	group.Go(func() (err error) {
		s.kafka, err = stack.StartKafkaCluster(ctx, stack.KafkaOptions{Log: os.Stderr, Proxied: true, Settings: map[string]string{
			"leader.imbalance.check.interval.seconds": "5", // or one broker soon leads everything
		}}, brokers)
		return err
	})
	return group.Wait()
}

func (s *stage) createTopics() error {
	admin, err := sarama.NewClusterAdmin(s.kafka.Direct(), nil)
	if err != nil {
		return fmt.Errorf("create topics: %w", err)
	}
	defer func() { _ = admin.Close() }()
	for _, topic := range aggregateTypes {
		err := admin.CreateTopic(topic, &sarama.TopicDetail{
			NumPartitions: partitions, ReplicationFactor: brokers,
			ConfigEntries: map[string]*string{"max.message.bytes": new(strconv.Itoa(lowLimit))},
		}, false)
		if err != nil {
			return fmt.Errorf("create topic %s: %w", topic, err)
		}
	}
	return nil
}

// setUp makes the tables, the publication and the slot.
func (s *stage) setUp(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, workload.Schema); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, binary, "setup", "--postgres", s.dsn, "--create-table").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s setup: %w: %s (make chaos builds it)", binary, err, out)
	}
	return nil
}

// addInstance prepares an instance with a way of its own to Postgres.
func (s *stage) addInstance(name string) error {
	proxy, err := stack.NewProxy(s.postgres.Addr())
	if err != nil {
		return err
	}
	dsn, err := url.Parse(s.dsn)
	if err != nil {
		return err
	}
	dsn.Host = proxy.Addr()
	log, err := os.Create(filepath.Join(s.dir, name+".log"))
	if err != nil {
		return err
	}
	s.instances = append(s.instances, &instance{
		name: "pombo " + name, proxy: proxy, log: log, sessions: s.sessions,
		args: []string{
			"run", "--postgres", dsn.String(), "--brokers", strings.Join(s.kafka.Brokers(), ","), "--topic", topicTemplate,
			"--buffer", buffer, "--log-format", "json",
		},
		done: make(chan struct{}), stopping: make(chan struct{}),
	})
	return nil
}

// active is the instance that has the slot, as far as it has said: the one whose session is the youngest.
func (s *stage) active() *instance {
	a, b := s.instances[0], s.instances[1]
	if b.streamingSince().After(a.streamingSince()) {
		return b
	}
	return a
}

func (s *stage) standby() *instance {
	if s.active() == s.instances[0] {
		return s.instances[1]
	}
	return s.instances[0]
}

// heal ends all faults of the network.
func (s *stage) heal() error {
	var err error
	for _, k := range s.kafka.Nodes() {
		err = errors.Join(err, k.Proxy().Heal())
	}
	for _, i := range s.instances {
		err = errors.Join(err, i.proxy.Heal())
	}
	return err
}

// close ends the servers. The logs of the instances are kept if they are needed.
func (s *stage) close(keepLogs bool) error {
	var err error
	for _, i := range s.instances {
		err = errors.Join(err, i.proxy.Close(), i.log.Close())
	}
	if s.kafka != nil {
		err = errors.Join(err, s.kafka.Close())
	}
	if s.postgres != nil {
		err = errors.Join(err, s.postgres.Close())
	}
	if keepLogs {
		fmt.Fprintln(os.Stderr, "The logs of both instances are in", s.dir)
		return err
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}
