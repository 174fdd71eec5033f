package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/IBM/sarama"
)

// KafkaOptions says what is needed of Kafka.
type KafkaOptions struct {
	// Settings are those of server.properties, beside what small brokers need. A broker that was not started
	// here keeps its own.
	Settings map[string]string
	// Optimize has Java compile a native broker as in production: slower to start, but faster. It is for benchmarks.
	Optimize bool
	// Proxied puts a Proxy before each broker, which advertises the proxy's address. Only native brokers can have one.
	Proxied bool
	// Log gets lines of progress. It may be nil.
	Log io.Writer
}

// Kafka is a broker: a cluster of its own, or a node of a KafkaCluster. Its methods, but for Brokers, Proxy, Origin and
// Real, are not safe for concurrent use.
type Kafka struct {
	instance instance
	brokers  []string
	probe    []string // where to ask whether it answers, if not at brokers
	proxy    *Proxy
	logFile  string
	embedded bool
}

// StartKafka starts or adopts a broker.
func StartKafka(ctx context.Context, opts KafkaOptions) (*Kafka, error) {
	k := newKafka("Kafka")
	if err := k.open(ctx, opts); err != nil {
		return nil, fmt.Errorf("start Kafka: %w", errors.Join(err, k.Close()))
	}
	tell(opts.Log, "Kafka: %s", k.Origin())
	return k, nil
}

func newKafka(name string) *Kafka {
	k := &Kafka{instance: instance{name: name}}
	k.instance.ready = k.ready
	return k
}

func (k *Kafka) open(ctx context.Context, opts KafkaOptions) error {
	if opts.Proxied {
		if err := nativeOnly("a broker behind a proxy"); err != nil {
			return err
		}
		return runNative(ctx, opts, k)
	}
	switch way := os.Getenv("POMBO_TEST_KAFKA"); way {
	case "":
		return k.openFirst(ctx, opts)
	case "docker":
		pool, ok := dockerEngine(ctx)
		if !ok {
			return errors.New("POMBO_TEST_KAFKA=docker, but no engine answers")
		}
		return k.runContainer(ctx, pool, opts)
	case "native":
		return runNative(ctx, opts, k)
	case "embedded":
		return k.runEmbedded(opts)
	default:
		return fmt.Errorf("POMBO_TEST_KAFKA has to be docker, native or embedded, not %q", way)
	}
}

// openFirst takes the first way that is there.
func (k *Kafka) openFirst(ctx context.Context, opts KafkaOptions) error {
	if brokers := os.Getenv("POMBO_TEST_BROKERS"); brokers != "" {
		return k.adopt(ctx, brokers)
	}
	if pool, ok := dockerEngine(ctx); ok {
		return k.runContainer(ctx, pool, opts)
	}
	if canRunKafka() {
		return runNative(ctx, opts, k)
	}
	return k.runEmbedded(opts)
}

// adopt takes a cluster that somebody else started, if it answers.
func (k *Kafka) adopt(ctx context.Context, brokers string) error {
	k.brokers, k.instance.origin = strings.Split(brokers, ","), "given by POMBO_TEST_BROKERS"
	if err := k.ready(ctx); err != nil {
		return fmt.Errorf("connect to POMBO_TEST_BROKERS: %w", err)
	}
	return nil
}

// nativeOnly returns an error where what cannot be had, because it is made for native brokers alone.
func nativeOnly(what string) error {
	way := os.Getenv("POMBO_TEST_KAFKA")
	switch {
	case way != "" && way != "native":
		return fmt.Errorf("%s: %w with POMBO_TEST_KAFKA=%s", what, errors.ErrUnsupported, way)
	case way == "" && os.Getenv("POMBO_TEST_BROKERS") != "":
		return fmt.Errorf("%s: %w with POMBO_TEST_BROKERS", what, errors.ErrUnsupported)
	case !canRunKafka():
		return fmt.Errorf("%s: %w without Java and Maven", what, errors.ErrUnsupported)
	}
	return nil
}

// ready asks the broker for the cluster and all topics, which is an error until every partition has a leader.
func (k *Kafka) ready(context.Context) error {
	client, err := k.ask()
	if err != nil {
		return err
	}
	return errors.Join(client.RefreshMetadata(), client.Close())
}

// ask opens a client that asks the broker itself, whatever is wrong with its proxy, and soon gives up.
func (k *Kafka) ask() (sarama.Client, error) {
	conf := sarama.NewConfig()
	conf.Net.DialTimeout, conf.Net.ReadTimeout, conf.Net.WriteTimeout = attemptTimeout, attemptTimeout, attemptTimeout
	conf.Metadata.Retry.Max = 0
	addrs := k.probe
	if addrs == nil {
		addrs = k.brokers
	}
	return sarama.NewClient(addrs, conf)
}

// node is a broker's place in its cluster. Clients, other brokers and other controllers each reach it at a port of their own.
type node struct {
	id                           int
	host                         string // to bind to; empty: all
	client, internal, controller int
	advertised                   string   // host:port, for clients
	voters                       []string // id@host:port of all controllers
	dir                          string
}

// kafkaSettings are those of a node that is broker and controller and is started here, whatever it runs as.
func kafkaSettings(n node, more map[string]string) map[string]string {
	replicas := min(len(n.voters), 3)
	inSync := max(1, replicas-1) // so many that one can be away
	all := map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        strconv.Itoa(n.id),
		"controller.quorum.voters":       strings.Join(n.voters, ","),
		"controller.listener.names":      "CONTROLLER",
		"inter.broker.listener.name":     "INTERNAL",
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"listeners":                      fmt.Sprintf("PLAINTEXT://%[1]s:%[2]d,INTERNAL://%[1]s:%[3]d,CONTROLLER://%[1]s:%[4]d", n.host, n.client, n.internal, n.controller),
		"advertised.listeners":           fmt.Sprintf("PLAINTEXT://%s,INTERNAL://%s", n.advertised, loopback(n.internal)),
		"log.dirs":                       n.dir,

		"default.replication.factor":                       strconv.Itoa(replicas),
		"min.insync.replicas":                              strconv.Itoa(inSync),
		"offsets.topic.replication.factor":                 strconv.Itoa(replicas),
		"transaction.state.log.replication.factor":         strconv.Itoa(replicas),
		"transaction.state.log.min.isr":                    strconv.Itoa(inSync),
		"share.coordinator.state.topic.replication.factor": strconv.Itoa(replicas),
		"share.coordinator.state.topic.min.isr":            strconv.Itoa(inSync),

		"num.partitions":                       "4", // few are enough
		"offsets.topic.num.partitions":         "4",
		"transaction.state.log.num.partitions": "4",

		"group.initial.rebalance.delay.ms": "0",    // nobody else joins
		"broker.session.timeout.ms":        "3000", // a killed broker may not come back before
		"broker.heartbeat.interval.ms":     "500",
		"log.cleaner.dedupe.buffer.size":   "4194304", // 128 MiB otherwise
	}
	maps.Copy(all, more)
	return all
}

// Brokers are the addresses to connect to.
func (k *Kafka) Brokers() []string { return k.brokers }

// Direct are the addresses to connect to the broker past its proxy, for those who watch a test and take no part in it.
func (k *Kafka) Direct() []string {
	if k.proxy == nil {
		return k.brokers
	}
	return k.probe
}

// Proxy is what stands before the broker of a test that asked for it with Proxied, and otherwise nil.
func (k *Kafka) Proxy() *Proxy { return k.proxy }

// Origin says where the broker came from.
func (k *Kafka) Origin() string { return k.instance.origin }

// Real reports whether it is an Apache Kafka (or a server that was given), and not the embedded broker.
func (k *Kafka) Real() bool { return !k.embedded }

// LogFile is the broker's log, or empty if that is not at hand.
func (k *Kafka) LogFile() string { return k.logFile }

// Stop shuts the broker down in an orderly way and waits for its end.
func (k *Kafka) Stop(ctx context.Context) error { return k.instance.stop(ctx, syscall.SIGTERM) }

// Kill ends the broker as a crash does, and waits for its end.
func (k *Kafka) Kill(ctx context.Context) error { return k.instance.stop(ctx, syscall.SIGKILL) }

// Start starts a stopped broker again, on the same port and with the same data, and waits until it answers.
func (k *Kafka) Start(ctx context.Context) error { return k.instance.start(ctx) }

// Pause makes the broker silent: connections stay, nothing is answered.
func (k *Kafka) Pause() error {
	return k.instance.signal("pause", syscall.SIGSTOP)
}

// Resume ends a Pause.
func (k *Kafka) Resume() error {
	return k.instance.signal("resume", syscall.SIGCONT)
}

// Close ends the broker, if it was started here, and removes its data.
func (k *Kafka) Close() error { return k.instance.close() }
