package stack

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

// kafkaVersion is the Apache Kafka that is fetched.
const kafkaVersion = "4.3.1"

// kafkaLogging has the broker log to standard output what matters.
const kafkaLogging = `status = warn
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
`

// canRunKafka reports whether this machine has what runNative needs.
func canRunKafka() bool {
	_, java := exec.LookPath("java")
	_, maven := exec.LookPath("mvn")
	return java == nil && maven == nil
}

// runNative runs brokers that are their own controllers, on new data folders, as one cluster. They start at the same
// time: none of them answers before most of them are there.
func runNative(ctx context.Context, opts KafkaOptions, brokers ...*Kafka) error {
	java, err := exec.LookPath("java")
	if err != nil {
		return err
	}
	jars, err := kafkaJars(ctx, opts.Log)
	if err != nil {
		return err
	}
	nodes, err := planNodes(len(brokers))
	if err != nil {
		return err
	}
	id := uuid.New()
	group, ctx := errgroup.WithContext(ctx)
	for i, k := range brokers {
		files := kafkaFiles{jars: jars, heap: heapOf(len(brokers)), clusterID: id}
		group.Go(func() error { return k.runNode(ctx, opts, java, files, nodes[i]) })
	}
	return group.Wait()
}

// planNodes gives the nodes of a cluster their ports.
func planNodes(n int) ([]node, error) {
	nodes := make([]node, n)
	voters := make([]string, n)
	for i := range nodes {
		nodes[i] = node{id: i + 1, host: "127.0.0.1", voters: voters}
		for _, port := range []*int{&nodes[i].client, &nodes[i].internal, &nodes[i].controller} {
			var err error
			if *port, err = freePort(); err != nil {
				return nil, err
			}
		}
		voters[i] = fmt.Sprintf("%d@%s", nodes[i].id, loopback(nodes[i].controller))
	}
	return nodes, nil
}

// runNode runs one of the brokers and waits until it answers.
func (k *Kafka) runNode(ctx context.Context, opts KafkaOptions, java string, files kafkaFiles, n node) error {
	dir, err := os.MkdirTemp("", "pombo-kafka-")
	if err != nil {
		return fmt.Errorf("make data folder: %w", err)
	}
	k.instance.atClose(func() error { return os.RemoveAll(dir) })
	files.dir, n.dir, n.advertised = dir, filepath.Join(dir, "data"), loopback(n.client)
	k.logFile, k.probe = filepath.Join(dir, "kafka.log"), []string{loopback(n.internal)}
	k.instance.origin = "native Apache Kafka " + kafkaVersion
	if opts.Proxied {
		if k.proxy, err = NewProxy(loopback(n.client)); err != nil {
			return err
		}
		k.instance.atClose(k.proxy.Close)
		n.advertised = k.proxy.Addr()
	}
	k.brokers = []string{n.advertised}

	if err := files.write(kafkaSettings(n, opts.Settings)); err != nil {
		return err
	}
	if _, err := output(ctx, nil, dir, java, files.formatCommand()...); err != nil {
		return fmt.Errorf("format storage: %w", err)
	}
	proc, err := startProcess(spec{
		path: java, args: files.brokerCommand(opts.Optimize), dir: dir, logFile: k.logFile, onDeath: syscall.SIGKILL,
	})
	if err != nil {
		return err
	}
	k.instance.server = proc
	k.instance.atClose(func() error { return k.instance.quit(syscall.SIGKILL) })
	return k.instance.await(ctx)
}

// kafkaJars fetches the broker, once, and returns the folder of its jars. Log4j is of the version that this Kafka is built with.
func kafkaJars(ctx context.Context, log io.Writer) (string, error) {
	return Jars(ctx, log, "kafka-"+kafkaVersion,
		"org.apache.kafka:kafka_2.13:"+kafkaVersion,
		"org.apache.kafka:kafka-tools:"+kafkaVersion,
		"org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")
}

// kafkaFiles are the files of one broker, and how Java is run on them.
type kafkaFiles struct {
	dir, jars string
	heap      string
	clusterID uuid.UUID
}

// heapOf is the largest heap of a broker. Those of a cluster share the machine.
func heapOf(brokers int) string {
	if brokers > 1 {
		return "256m"
	}
	return "512m"
}

func (f kafkaFiles) properties() string { return filepath.Join(f.dir, "server.properties") }
func (f kafkaFiles) logging() string    { return filepath.Join(f.dir, "log4j2.properties") }

func (f kafkaFiles) write(settings map[string]string) error {
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&lines, "%s=%s\n", name, strings.ReplaceAll(settings[name], `\`, `\\`))
	}
	err := errors.Join(
		os.WriteFile(f.properties(), []byte(lines.String()), 0o600),
		os.WriteFile(f.logging(), []byte(kafkaLogging), 0o600),
	)
	if err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	return nil
}

// quickStart are Java's flags for a start with half the work: code is compiled, but not optimised.
var quickStart = []string{"-XX:TieredStopAtLevel=1", "-Xshare:auto"}

func (f kafkaFiles) formatCommand() []string {
	id := base64.RawURLEncoding.EncodeToString(f.clusterID[:]) // what Kafka wants, which may begin with a dash
	return slices.Concat(quickStart, f.java(),
		[]string{"kafka.tools.StorageTool", "format", "--config", f.properties(), "--cluster-id=" + id})
}

func (f kafkaFiles) brokerCommand(optimize bool) []string {
	command := append(f.java(), "kafka.Kafka", f.properties())
	if optimize {
		return command
	}
	return slices.Concat(quickStart, command)
}

// java is how both programs start. The broker shares the machine with what it serves: a small heap, one collector thread.
func (f kafkaFiles) java() []string {
	return []string{"-Xms128m", "-Xmx" + f.heap, "-XX:+UseSerialGC", "-Dlog4j2.configurationFile=" + f.logging(), "-cp", filepath.Join(f.jars, "*")}
}
