package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pombo-cdc/pombo/bench/rig"
	"github.com/pombo-cdc/pombo/integration/stack"
)

const (
	debeziumVersion = "3.6.1.Final"
	connectVersion  = "4.3.1"
)

// workerTuning is what a worker of Kafka Connect gets beside what it needs to run at all: what Pombo does too. Larger batches and
// queues did not make it faster.
var workerTuning = map[string]string{
	"producer.acks":             "all",
	"producer.compression.type": "lz4",
}

// jvmTuning is that of Kafka's own start script, but for the largest heap, which is what this work needs.
var jvmTuning = []string{"-Xms256m", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"}

// debezium is Debezium's connector for Postgres, with its outbox event router, in Kafka Connect that stands alone.
type debezium struct {
	*connect
	poll time.Duration // 0: the default
}

// connect is what all runs of Kafka Connect share.
type connect struct {
	jars string // folder of Kafka Connect itself
	dir  string // temporary: a folder plugins, and one for each run
}

// fetchConnect fetches Kafka Connect and the connector. The caller closes it.
func fetchConnect(ctx context.Context, log io.Writer) (*connect, error) {
	for _, program := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("make bench-peers runs Debezium, which needs Java and Maven: %w", err)
		}
	}
	jars, err := stack.Jars(ctx, log, "connect-runtime-"+connectVersion,
		"org.apache.kafka:connect-runtime:"+connectVersion,
		"org.apache.kafka:connect-json:"+connectVersion,
		"org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")
	if err != nil {
		return nil, err
	}
	plugin, err := stack.Jars(ctx, log, "debezium-connector-postgres-"+debeziumVersion, "io.debezium:debezium-connector-postgres:"+debeziumVersion)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pombo-peers-")
	if err != nil {
		return nil, fmt.Errorf("make folder for Kafka Connect: %w", err)
	}
	c := &connect{jars: jars, dir: dir}
	if err := errors.Join(os.Mkdir(c.plugins(), 0o700), os.Symlink(plugin, filepath.Join(c.plugins(), "debezium"))); err != nil {
		return nil, errors.Join(fmt.Errorf("install plugin: %w", err), c.close())
	}
	return c, nil
}

func (c *connect) close() error { return os.RemoveAll(c.dir) }

func (c *connect) plugins() string { return filepath.Join(c.dir, "plugins") }

// Name implements rig.Contender.
func (d debezium) Name() string {
	if d.poll == 0 {
		return "debezium"
	}
	return fmt.Sprintf("debezium, poll.interval.ms=%d", d.poll.Milliseconds())
}

// debeziumSettings are those that are worth telling.
func debeziumSettings() string {
	var told []string
	for _, name := range slices.Sorted(maps.Keys(workerTuning)) {
		told = append(told, name+"="+workerTuning[name])
	}
	return fmt.Sprintf("Debezium: %s in Kafka Connect %s, java %s, outbox event router, string converters, %s; the defaults of all else, where the name does not tell it.",
		debeziumVersion, connectVersion, strings.Join(jvmTuning, " "), strings.Join(told, ", "))
}

// Start implements rig.Contender.
func (d debezium) Start(ctx context.Context, job rig.Job) (*rig.Process, error) {
	dir, err := os.MkdirTemp(d.dir, "run-")
	if err != nil {
		return nil, fmt.Errorf("make folder for Kafka Connect: %w", err)
	}
	connector, err := d.connector(job)
	if err != nil {
		return nil, err
	}
	workerFile, connectorFile := filepath.Join(dir, "worker.properties"), filepath.Join(dir, "connector.properties")
	if err := errors.Join(writeProperties(workerFile, d.worker(job, dir)), writeProperties(connectorFile, connector)); err != nil {
		return nil, fmt.Errorf("configure Kafka Connect: %w", err)
	}
	command := append(slices.Clone(jvmTuning), "-Dlog4j2.level=WARN",
		"-cp", filepath.Join(d.jars, "*"), "org.apache.kafka.connect.cli.ConnectStandalone", workerFile, connectorFile)
	return rig.StartProcess(exec.CommandContext(ctx, "java", command...))
}

// worker are the settings of Kafka Connect.
func (d debezium) worker(job rig.Job, dir string) map[string]string {
	settings := map[string]string{
		"bootstrap.servers":            strings.Join(job.Brokers, ","),
		"listeners":                    "http://127.0.0.1:0",
		"key.converter":                "org.apache.kafka.connect.storage.StringConverter",
		"value.converter":              "org.apache.kafka.connect.storage.StringConverter",
		"offset.storage.file.filename": filepath.Join(dir, "offsets"),
		"plugin.path":                  d.plugins(),
		"plugin.discovery":             "service_load", // looks at no other class, which saves seconds
	}
	maps.Copy(settings, workerTuning)
	return settings
}

// connector are the settings of Debezium. Its event router has the columns, the key and the headers of Pombo.
func (d debezium) connector(job rig.Job) (map[string]string, error) {
	postgres, err := pgx.ParseConfig(job.Postgres)
	if err != nil {
		return nil, fmt.Errorf("read DSN: %w", err)
	}
	settings := map[string]string{
		"name":                        "outbox",
		"connector.class":             "io.debezium.connector.postgresql.PostgresConnector",
		"tasks.max":                   "1",
		"topic.prefix":                "outbox",
		"database.hostname":           postgres.Host,
		"database.port":               strconv.Itoa(int(postgres.Port)),
		"database.user":               postgres.User,
		"database.password":           postgres.Password,
		"database.dbname":             postgres.Database,
		"plugin.name":                 "pgoutput",
		"slot.name":                   job.Slot,
		"publication.name":            job.Publication,
		"publication.autocreate.mode": "disabled",
		"table.include.list":          job.Table,
		"snapshot.mode":               "no_data",
		"tombstones.on.delete":        "false",

		"transforms":                                          "outbox",
		"transforms.outbox.type":                              "io.debezium.transforms.outbox.EventRouter",
		"transforms.outbox.table.field.event.id":              "id",
		"transforms.outbox.table.field.event.key":             "aggregate_id",
		"transforms.outbox.table.field.event.payload":         "payload",
		"transforms.outbox.table.fields.additional.placement": "event_type:header:eventType",
		"transforms.outbox.route.by.field":                    "aggregate_type",
		"transforms.outbox.route.topic.replacement":           job.Topic,
	}
	if d.poll > 0 {
		settings["poll.interval.ms"] = strconv.FormatInt(d.poll.Milliseconds(), 10)
	}
	return settings, nil
}

func writeProperties(path string, settings map[string]string) error {
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&lines, "%s=%s\n", name, strings.ReplaceAll(settings[name], `\`, `\\`))
	}
	return os.WriteFile(path, []byte(lines.String()), 0o600)
}
