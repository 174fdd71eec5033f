package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"syscall"

	"github.com/IBM/sarama"
)

// KafkaOptions says what is needed of Kafka.
type KafkaOptions struct {
	// Settings are those of server.properties, beside what a small single broker needs. A broker that was not started
	// here keeps its own.
	Settings map[string]string
	// Optimize has Java compile a native broker as in production: slower to start, but faster. It is for benchmarks.
	Optimize bool
	// Log gets lines of progress. It may be nil.
	Log io.Writer
}

// Kafka is a cluster of one broker. Its methods, but for Brokers, Origin and Real, are not safe for concurrent use.
type Kafka struct {
	instance instance
	brokers  []string
	logFile  string
	embedded bool
}

// StartKafka starts or adopts a broker.
func StartKafka(ctx context.Context, opts KafkaOptions) (*Kafka, error) {
	k := &Kafka{instance: instance{name: "Kafka"}}
	k.instance.ready = k.ready
	if err := k.open(ctx, opts); err != nil {
		return nil, fmt.Errorf("start Kafka: %w", errors.Join(err, k.Close()))
	}
	tell(opts.Log, "Kafka: %s", k.Origin())
	return k, nil
}

func (k *Kafka) open(ctx context.Context, opts KafkaOptions) error {
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
		return k.runNative(ctx, opts)
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
		return k.runNative(ctx, opts)
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

// ready asks the broker for the cluster and all topics, which is an error until every partition has a leader.
func (k *Kafka) ready(context.Context) error {
	conf := sarama.NewConfig()
	conf.Net.DialTimeout, conf.Net.ReadTimeout, conf.Net.WriteTimeout = attemptTimeout, attemptTimeout, attemptTimeout
	conf.Metadata.Retry.Max = 0
	client, err := sarama.NewClient(k.brokers, conf)
	if err != nil {
		return err
	}
	return errors.Join(client.RefreshMetadata(), client.Close())
}

// kafkaSettings are those of a node that is broker and controller and is started here, whatever it runs as.
// It binds to host (empty: all), and clients reach it at advertised.
func kafkaSettings(host string, broker, controller int, advertised, dir string, more map[string]string) map[string]string {
	all := map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        "1",
		"controller.quorum.voters":       fmt.Sprintf("1@127.0.0.1:%d", controller),
		"controller.listener.names":      "CONTROLLER",
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"listeners":                      fmt.Sprintf("PLAINTEXT://%s:%d,CONTROLLER://%s:%d", host, broker, host, controller),
		"advertised.listeners":           "PLAINTEXT://" + advertised,
		"log.dirs":                       dir,

		// One broker has one replica, and few partitions are enough.
		"num.partitions":                                   "4",
		"offsets.topic.num.partitions":                     "4",
		"offsets.topic.replication.factor":                 "1",
		"transaction.state.log.num.partitions":             "4",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"share.coordinator.state.topic.min.isr":            "1",
		"share.coordinator.state.topic.replication.factor": "1",

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
