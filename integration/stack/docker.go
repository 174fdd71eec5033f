package stack

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/google/uuid"
	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
)

const (
	defaultPostgresImage = "postgres:17-alpine"
	defaultKafkaImage    = "apache/kafka:" + kafkaVersion
)

// engine returns the Docker engine, if one answers.
func engine() (*dockertest.Pool, bool) {
	pool, err := dockertest.NewPool("")
	if err != nil || pool.Client.Ping() != nil {
		return nil, false
	}
	pool.MaxWait = startTimeout
	return pool, true
}

// runImage starts a container that removes itself, on loopback only.
func runImage(pool *dockertest.Pool, image string, options *dockertest.RunOptions) (*dockertest.Resource, error) {
	repository, tag, _ := strings.Cut(image, ":")
	options.Repository, options.Tag = repository, cmp.Or(tag, "latest")
	container, err := pool.RunWithOptions(options, func(c *docker.HostConfig) { c.AutoRemove = true })
	if err != nil {
		return nil, fmt.Errorf("run image %s: %w", image, err)
	}
	return container, nil
}

func dockerPostgres(ctx context.Context, pool *dockertest.Pool, opts PostgresOptions) (*Postgres, error) {
	image := cmp.Or(os.Getenv("POMBO_TEST_POSTGRES_IMAGE"), defaultPostgresImage)
	tell(opts.Log, "starting Postgres from image %s", image)
	command := []string{"postgres"}
	all := settings(opts)
	for _, name := range sortedKeys(all) {
		command = append(command, "-c", name+"="+all[name])
	}
	password := uuid.NewString()
	container, err := runImage(pool, image, &dockertest.RunOptions{
		Env:          []string{"POSTGRES_PASSWORD=" + password},
		Cmd:          command,
		PortBindings: map[docker.Port][]docker.PortBinding{"5432/tcp": {{HostIP: "127.0.0.1"}}},
	})
	if err != nil {
		return nil, err
	}
	p := &Postgres{
		base: &url.URL{
			Scheme: "postgres", User: url.UserPassword("postgres", password),
			Host: container.GetHostPort("5432/tcp"), RawQuery: "sslmode=disable",
		},
		origin: "Docker image " + image,
	}
	p.clean.add(container.Close)
	if err := pool.Retry(func() error { return p.ready(ctx) }); err != nil {
		return nil, joinClose(err, &p.clean)
	}
	return p, nil
}

// dockerKafka gives the broker the address that it advertises before it starts, so the port is chosen here.
func dockerKafka(ctx context.Context, pool *dockertest.Pool, opts KafkaOptions) (*Kafka, error) {
	image := cmp.Or(os.Getenv("POMBO_TEST_KAFKA_IMAGE"), defaultKafkaImage)
	tell(opts.Log, "starting Kafka from image %s", image)
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	all := map[string]string{
		"process.roles":                            "broker,controller",
		"node.id":                                  "1",
		"controller.quorum.voters":                 "1@localhost:9093",
		"listeners":                                "PLAINTEXT://:9092,CONTROLLER://:9093",
		"advertised.listeners":                     fmt.Sprintf("PLAINTEXT://127.0.0.1:%d", port),
		"controller.listener.names":                "CONTROLLER",
		"listener.security.protocol.map":           "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"num.partitions":                           "4",
		"offsets.topic.replication.factor":         "1",
		"transaction.state.log.replication.factor": "1",
		"transaction.state.log.min.isr":            "1",
		"group.initial.rebalance.delay.ms":         "0",
	}
	for name, value := range opts.Settings {
		all[name] = value
	}
	var env []string
	for _, name := range sortedKeys(all) {
		env = append(env, "KAFKA_"+strings.ToUpper(strings.ReplaceAll(name, ".", "_"))+"="+all[name])
	}
	container, err := runImage(pool, image, &dockertest.RunOptions{
		Env: env,
		PortBindings: map[docker.Port][]docker.PortBinding{
			"9092/tcp": {{HostIP: "127.0.0.1", HostPort: fmt.Sprint(port)}},
		},
		ExposedPorts: []string{"9092/tcp"},
	})
	if err != nil {
		return nil, err
	}
	k := &Kafka{brokers: []string{fmt.Sprintf("127.0.0.1:%d", port)}, origin: "Docker image " + image, real: true}
	k.clean.add(container.Close)
	if err := pool.Retry(func() error { return k.ready(ctx) }); err != nil {
		return nil, joinClose(err, &k.clean)
	}
	return k, nil
}
