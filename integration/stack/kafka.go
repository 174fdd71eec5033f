package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kfake"
)

// KafkaOptions says what a test needs of Kafka.
type KafkaOptions struct {
	Settings map[string]string // of server.properties, beside what a single broker needs
	Log      io.Writer         // progress; nil for none
}

// Kafka is a cluster of one broker.
type Kafka struct {
	brokers []string
	origin  string
	real    bool
	proc    *process
	restart func(context.Context) (*process, error)
	clean   closer
}

// StartKafka starts or adopts a broker.
func StartKafka(ctx context.Context, opts KafkaOptions) (*Kafka, error) {
	k, err := startKafka(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("start Kafka: %w", err)
	}
	tell(opts.Log, "Kafka: %s", k.origin)
	return k, nil
}

func startKafka(ctx context.Context, opts KafkaOptions) (*Kafka, error) {
	if brokers := os.Getenv("POMBO_TEST_BROKERS"); brokers != "" {
		return &Kafka{brokers: strings.Split(brokers, ","), origin: "given by POMBO_TEST_BROKERS", real: true}, nil
	}
	if docker, ok := engine(); ok {
		return dockerKafka(ctx, docker, opts)
	}
	if haveJava() {
		return nativeKafka(ctx, opts)
	}
	if os.Getenv("POMBO_TEST_REAL") != "" {
		return nil, errors.New("POMBO_TEST_REAL is set, but there is no Docker engine, and no java and mvn in PATH")
	}
	return embeddedKafka()
}

func haveJava() bool {
	_, err := exec.LookPath("java")
	if err == nil {
		_, err = exec.LookPath("mvn")
	}
	return err == nil
}

// embeddedKafka is a broker inside this process. It speaks the protocol and keeps records in memory.
func embeddedKafka() (*Kafka, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DefaultNumPartitions(4), kfake.AllowAutoTopicCreation())
	if err != nil {
		return nil, err
	}
	k := &Kafka{brokers: cluster.ListenAddrs(), origin: "embedded (not a real Kafka)"}
	k.clean.add(func() error { cluster.Close(); return nil })
	return k, nil
}

// Brokers are the addresses to connect to.
func (k *Kafka) Brokers() []string { return k.brokers }

// Origin says where the broker came from.
func (k *Kafka) Origin() string { return k.origin }

// Real reports whether it is an Apache Kafka and not the embedded one.
func (k *Kafka) Real() bool { return k.real }

// Close ends the broker, if it was started here, and removes its data.
func (k *Kafka) Close() error { return k.clean.close() }

// Stop shuts the broker down in an orderly way and waits for its end.
func (k *Kafka) Stop(ctx context.Context) error {
	if k.proc == nil {
		return errUnsupported("stop Kafka", k.origin)
	}
	return k.proc.end(ctx, syscall.SIGTERM)
}

// Kill ends the broker as a crash does.
func (k *Kafka) Kill(ctx context.Context) error {
	if k.proc == nil {
		return errUnsupported("kill Kafka", k.origin)
	}
	return k.proc.end(ctx, syscall.SIGKILL)
}

// Pause makes the broker silent: connections stay, nothing is answered.
func (k *Kafka) Pause() error {
	if k.proc == nil {
		return errUnsupported("pause Kafka", k.origin)
	}
	return k.proc.signal(syscall.SIGSTOP)
}

// Resume ends a Pause.
func (k *Kafka) Resume() error {
	if k.proc == nil {
		return errUnsupported("resume Kafka", k.origin)
	}
	return k.proc.signal(syscall.SIGCONT)
}

// Start starts a stopped broker again, on the same port and with the same data.
func (k *Kafka) Start(ctx context.Context) (err error) {
	if k.proc == nil {
		return errUnsupported("start Kafka", k.origin)
	}
	if k.proc, err = k.restart(ctx); err != nil {
		return fmt.Errorf("start Kafka: %w", err)
	}
	return nil
}

// ready asks the broker for the cluster, which it knows once it can take requests.
func (k *Kafka) ready(context.Context) error {
	conf := sarama.NewConfig()
	conf.Metadata.Retry.Max = 0
	client, err := sarama.NewClient(k.brokers, conf)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	_, err = client.Controller()
	return err
}
