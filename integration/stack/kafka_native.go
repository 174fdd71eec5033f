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
)

// kafkaVersion is the Apache Kafka that is fetched.
const kafkaVersion = "4.3.1"

// kafkaProject is a Maven project whose dependencies are a broker. Log4j is of the version that this Kafka is built with.
const kafkaProject = `<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>pombo</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>` + kafkaVersion + `</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>` + kafkaVersion + `</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.4</version></dependency>
  </dependencies>
</project>
`

// copyDependencies is the goal that puts a project's dependencies into a folder.
const copyDependencies = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

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

// runNative runs one broker that is its own controller, on a new data folder.
func (k *Kafka) runNative(ctx context.Context, opts KafkaOptions) error {
	java, err := exec.LookPath("java")
	if err != nil {
		return err
	}
	jars, err := kafkaJars(ctx, opts.Log)
	if err != nil {
		return err
	}
	broker, err := freePort()
	if err != nil {
		return err
	}
	controller, err := freePort()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "pombo-kafka-")
	if err != nil {
		return fmt.Errorf("make data folder: %w", err)
	}
	k.instance.atClose(func() error { return os.RemoveAll(dir) })
	k.brokers, k.logFile = []string{loopback(broker)}, filepath.Join(dir, "kafka.log")
	k.instance.origin = "native Apache Kafka " + kafkaVersion

	files := kafkaFiles{dir: dir, jars: jars}
	settings := kafkaSettings("127.0.0.1", broker, controller, loopback(broker), filepath.Join(dir, "data"), opts.Settings)
	if err := files.write(settings); err != nil {
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

// kafkaJars fetches the broker, once, and returns the folder of its jars.
func kafkaJars(ctx context.Context, log io.Writer) (string, error) {
	return cached(ctx, log, "kafka-"+kafkaVersion, func(dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "pom.xml"), []byte(kafkaProject), 0o600); err != nil {
			return err
		}
		_, err := output(ctx, nil, dir, "mvn", "--batch-mode", "--quiet", copyDependencies, "-DincludeScope=runtime", "-DoutputDirectory="+dir)
		return err
	})
}

// kafkaFiles are the files of one broker.
type kafkaFiles struct{ dir, jars string }

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
	id := uuid.New() // 16 bytes in URL-safe base64: what Kafka wants
	return slices.Concat(quickStart, f.java(),
		[]string{"kafka.tools.StorageTool", "format", "--config", f.properties(), "--cluster-id", base64.RawURLEncoding.EncodeToString(id[:])})
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
	return []string{"-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-Dlog4j2.configurationFile=" + f.logging(), "-cp", filepath.Join(f.jars, "*")}
}
