package stack

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/uuid"
)

// kafkaVersion is the Apache Kafka that is fetched.
const kafkaVersion = "4.3.1"

// kafkaProject is a Maven project whose dependencies are a broker.
const kafkaProject = `<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>pombo</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>%[1]s</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>%[1]s</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.4</version></dependency>
  </dependencies>
</project>
`

// kafkaLogging has the broker log what matters to standard output.
const kafkaLogging = `status = warn
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
`

// kafkaJars fetches the broker, once, and returns its class path.
func kafkaJars(ctx context.Context, log io.Writer) (string, error) {
	dir, err := cacheDir("kafka-" + kafkaVersion)
	if err != nil {
		return "", fmt.Errorf("fetch Kafka: %w", err)
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", fmt.Errorf("fetch Kafka: %w", err)
	}
	defer unlock()
	lib := filepath.Join(dir, "lib")
	classPath := filepath.Join(lib, "*")
	if _, err := os.Stat(lib); err == nil {
		return classPath, nil
	}
	tell(log, "fetching Apache Kafka %s, once", kafkaVersion)
	// It takes its place under its name only when it is whole.
	partial := lib + ".partial"
	err = errors.Join(
		os.RemoveAll(partial),
		os.WriteFile(filepath.Join(dir, "pom.xml"), fmt.Appendf(nil, kafkaProject, kafkaVersion), 0o600),
	)
	if err == nil {
		err = run(ctx, dir, "mvn", "--batch-mode", "--quiet", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+partial)
	}
	if err == nil {
		err = os.Rename(partial, lib)
	}
	if err != nil {
		return "", fmt.Errorf("fetch Kafka: %w", err)
	}
	return classPath, nil
}

// lock waits for the only place in a file, so that two processes do not fetch the same.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// nativeKafka runs one broker that is its own controller.
func nativeKafka(ctx context.Context, opts KafkaOptions) (*Kafka, error) {
	classPath, err := kafkaJars(ctx, opts.Log)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	controller, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pombo-kafka-")
	if err != nil {
		return nil, err
	}
	k := &Kafka{
		brokers: []string{fmt.Sprintf("127.0.0.1:%d", port)},
		origin:  "a process of this machine, Apache Kafka " + kafkaVersion,
		real:    true,
	}
	k.clean.add(func() error { return os.RemoveAll(dir) })
	properties := filepath.Join(dir, "server.properties")
	logging := filepath.Join(dir, "log4j2.properties")
	err = errors.Join(
		os.WriteFile(properties, kafkaProperties(dir, port, controller, opts.Settings), 0o600),
		os.WriteFile(logging, []byte(kafkaLogging), 0o600),
	)
	// A small heap and a serial collector: the broker shares the machine with what it serves.
	java := []string{"-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-Dlog4j2.configurationFile=" + logging, "-cp", classPath}
	if err == nil {
		err = run(ctx, dir, "java", append(java, "kafka.tools.StorageTool", "format", "--config", properties, "--cluster-id", clusterID(), "--standalone")...)
	}
	if err != nil {
		return nil, joinClose(err, &k.clean)
	}
	k.restart = func(ctx context.Context) (*process, error) {
		proc, err := start(spec{
			path: "/usr/bin/env", args: append(append([]string{"java"}, java...), "kafka.Kafka", properties),
			logFile: filepath.Join(dir, "log"), onDeath: syscall.SIGKILL,
		})
		if err != nil {
			return nil, err
		}
		return proc, proc.await(ctx, k.ready)
	}
	k.clean.add(func() error { return k.proc.quit(syscall.SIGKILL) })
	if k.proc, err = k.restart(ctx); err != nil {
		return nil, joinClose(err, &k.clean)
	}
	return k, nil
}

// clusterID is a new id in the form that Kafka wants: 16 bytes in URL-safe base64.
func clusterID() string {
	id := uuid.New()
	return base64.RawURLEncoding.EncodeToString(id[:])
}

func kafkaProperties(dir string, port, controller int, more map[string]string) []byte {
	all := map[string]string{
		"process.roles":                            "broker,controller",
		"node.id":                                  "1",
		"controller.quorum.bootstrap.servers":      fmt.Sprintf("127.0.0.1:%d", controller),
		"listeners":                                fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", port, controller),
		"advertised.listeners":                     fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", port),
		"controller.listener.names":                "CONTROLLER",
		"log.dirs":                                 filepath.Join(dir, "data"),
		"num.partitions":                           "4",
		"offsets.topic.replication.factor":         "1",
		"offsets.topic.num.partitions":             "1",
		"transaction.state.log.replication.factor": "1",
		"transaction.state.log.min.isr":            "1",
		"transaction.state.log.num.partitions":     "1",
		"group.initial.rebalance.delay.ms":         "0",
	}
	for name, value := range more {
		all[name] = value
	}
	var b strings.Builder
	for _, name := range sortedKeys(all) {
		fmt.Fprintf(&b, "%s=%s\n", name, all[name])
	}
	return []byte(b.String())
}
