package stack

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
)

const (
	defaultPostgresImage = "postgres:%d-alpine"
	defaultKafkaImage    = "apache/kafka:" + kafkaVersion
)

const (
	// pingTimeout is how long a Docker engine may take to show that it is there.
	pingTimeout = 2 * time.Second
	// containerLife ends a container whose starter was killed. No run takes that long.
	containerLife = time.Hour
)

// dockerEngine returns the Docker engine, if one answers.
func dockerEngine(ctx context.Context) (*dockertest.Pool, bool) {
	pool, err := dockertest.NewPool("")
	if err != nil {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	return pool, pool.Client.PingWithContext(ctx) == nil
}

// container is a server that runs under Docker. Its port on this machine stays the same over restarts.
type container struct {
	client   *docker.Client
	resource *dockertest.Resource
	gone     chan struct{} // of the last start
}

// image is what to run, and how.
type image struct {
	name    string
	port    int // of this machine
	serves  int // the port inside the container
	env     []string
	command []string
}

func runImage(pool *dockertest.Pool, i image) (*container, error) {
	repository, tag := docker.ParseRepositoryTag(i.name)
	serves := docker.Port(fmt.Sprintf("%d/tcp", i.serves))
	resource, err := pool.RunWithOptions(&dockertest.RunOptions{
		Repository: repository, Tag: tag, Env: i.env, Cmd: i.command,
		ExposedPorts: []string{string(serves)},
		PortBindings: map[docker.Port][]docker.PortBinding{serves: {{HostIP: "127.0.0.1", HostPort: strconv.Itoa(i.port)}}},
	})
	if err != nil {
		return nil, fmt.Errorf("run image %s: %w", i.name, err)
	}
	c := &container{client: pool.Client, resource: resource}
	c.watch()
	return c, nil
}

// watch follows a container that has just been started.
func (c *container) watch() {
	gone := make(chan struct{})
	c.gone = gone
	_ = c.resource.Expire(uint(containerLife.Seconds())) // asks in the background, and never fails
	go func() {
		_, _ = c.client.WaitContainer(c.resource.Container.ID) // an error: it has been removed
		close(gone)
	}()
}

func (c *container) start(ctx context.Context) error {
	if err := c.client.StartContainerWithContext(c.resource.Container.ID, nil, ctx); err != nil {
		return err
	}
	c.watch()
	return nil
}

func (c *container) signal(sig syscall.Signal) error {
	return c.client.KillContainer(docker.KillContainerOptions{ID: c.resource.Container.ID, Signal: docker.Signal(sig)})
}

func (c *container) exited() <-chan struct{} { return c.gone }

func (c *container) logTail() string {
	var out bytes.Buffer
	err := c.client.Logs(docker.LogsOptions{
		Container: c.resource.Container.ID, OutputStream: &out, ErrorStream: &out, Stdout: true, Stderr: true, Tail: "15",
	})
	if err != nil {
		return err.Error()
	}
	return out.String()
}

// adoptContainer makes a container the server of an instance, which removes it at its end.
func (i *instance) adoptContainer(ctx context.Context, c *container) error {
	i.server = c
	i.atClose(c.resource.Close)
	return i.await(ctx)
}

// runContainer runs an image of Postgres.
func (p *Postgres) runContainer(ctx context.Context, pool *dockertest.Pool, opts PostgresOptions) error {
	name := cmp.Or(os.Getenv("POMBO_TEST_POSTGRES_IMAGE"), fmt.Sprintf(defaultPostgresImage, cmp.Or(opts.Version, defaultArtefact)))
	port, err := freePort()
	if err != nil {
		return err
	}
	password := uuid.NewString()
	command := []string{"postgres"}
	settings := postgresSettings(opts.Settings)
	for _, setting := range slices.Sorted(maps.Keys(settings)) {
		command = append(command, "-c", setting+"="+settings[setting])
	}
	tell(opts.Log, "starting Postgres from image %s", name)
	c, err := runImage(pool, image{name: name, port: port, serves: 5432, env: []string{"POSTGRES_PASSWORD=" + password}, command: command})
	if err != nil {
		return err
	}
	p.base = &url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", password), Host: loopback(port), RawQuery: "sslmode=disable",
	}
	p.instance.origin = "docker " + name
	return p.instance.adoptContainer(ctx, c)
}

// kafkaVariables puts settings into the form that the image of Apache Kafka takes.
var kafkaVariables = strings.NewReplacer("-", "___", "_", "__", ".", "_")

// runContainer runs an image of Apache Kafka.
func (k *Kafka) runContainer(ctx context.Context, pool *dockertest.Pool, opts KafkaOptions) error {
	name := cmp.Or(os.Getenv("POMBO_TEST_KAFKA_IMAGE"), defaultKafkaImage)
	port, err := freePort()
	if err != nil {
		return err
	}
	var env []string
	alone := node{
		id: 1, client: 9092, controller: 9093, internal: 9094,
		advertised: loopback(port), voters: []string{"1@" + loopback(9093)}, dir: "/tmp/kraft-combined-logs",
	}
	for setting, value := range kafkaSettings(alone, opts.Settings) {
		env = append(env, "KAFKA_"+strings.ToUpper(kafkaVariables.Replace(setting))+"="+value)
	}
	tell(opts.Log, "starting Kafka from image %s", name)
	c, err := runImage(pool, image{name: name, port: port, serves: 9092, env: env})
	if err != nil {
		return err
	}
	k.brokers, k.instance.origin = []string{loopback(port)}, "docker "+name
	return k.instance.adoptContainer(ctx, c)
}
