package stack_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/stack"
)

// starterEnv makes the test binary a process that starts servers and waits to be killed.
const starterEnv = "POMBO_STACK_TEST_STARTER"

func TestMain(m *testing.M) {
	if os.Getenv(starterEnv) == "" {
		m.Run()
		return
	}
	if err := startAndWait(); err != nil {
		fmt.Println(err)
	}
}

// startAndWait says on standard output when the servers are there, and stays until standard input ends.
func startAndWait() error {
	ctx := context.Background()
	if _, err := stack.StartPostgres(ctx, stack.PostgresOptions{}); err != nil {
		return err
	}
	if _, err := stack.StartKafka(ctx, stack.KafkaOptions{}); err != nil {
		return err
	}
	fmt.Println("started")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func startPostgres(t *testing.T, settings map[string]string) *stack.Postgres {
	t.Helper()
	p, err := stack.StartPostgres(t.Context(), stack.PostgresOptions{Settings: settings, Log: t.Output()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func startKafka(t *testing.T) *stack.Kafka {
	t.Helper()
	k, err := stack.StartKafka(t.Context(), stack.KafkaOptions{Log: t.Output()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, k.Close()) })
	return k
}

// must fails the test on an error, but skips the rest of it where the server is of a kind that cannot do this.
func must(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
}

// ask opens a session of its own, as the server may have been away.
func ask(t *testing.T, dsn, sql string) (answer string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&answer))
	return answer
}

func TestPostgresKeepsItsDataOverStopsAndKills(t *testing.T) {
	p := startPostgres(t, map[string]string{"cluster_name": `it's a \ name`})
	dsn, err := p.CreateDatabase(t.Context(), `Odd "name"`)
	require.NoError(t, err)
	require.Equal(t, "logical", ask(t, dsn, "SHOW wal_level"))
	if p.LogFile() != "" {
		require.Equal(t, `it's a \ name`, ask(t, p.SocketDSN("postgres"), "SHOW cluster_name"))
		require.FileExists(t, filepath.Join(p.BinDir(), "pg_recvlogical"))
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "CREATE TABLE kept AS SELECT 'here' AS v")
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))

	for _, mode := range []stack.StopMode{stack.Smart, stack.Fast, stack.Immediate, stack.Kill} {
		must(t, p.Stop(t.Context(), mode))
		_, err := pgx.Connect(t.Context(), dsn)
		require.Error(t, err)
		require.NoError(t, p.Start(t.Context()))
		require.Equal(t, "here", ask(t, dsn, "SELECT v FROM kept"))
	}
	require.ErrorContains(t, p.Start(t.Context()), "runs already")
}

func TestPostgresThatCannotStartSaysWhy(t *testing.T) {
	_, err := stack.StartPostgres(t.Context(), stack.PostgresOptions{Settings: map[string]string{"max_connections": "few"}})
	if err == nil {
		t.Skip("the server was given")
	}
	require.ErrorContains(t, err, `"few"`)
}

// kafkaClient notices within a second that nobody answers, and asks so many times again for what is not there.
func kafkaClient(t *testing.T, k *stack.Kafka, retries int) sarama.Client {
	t.Helper()
	conf := sarama.NewConfig()
	conf.Net.DialTimeout, conf.Net.ReadTimeout, conf.Net.WriteTimeout = time.Second, time.Second, time.Second
	conf.Metadata.Retry.Max = retries
	conf.Producer.Return.Successes = true
	client, err := sarama.NewClient(k.Brokers(), conf)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// produce sends one record and returns its offset.
func produce(t *testing.T, k *stack.Kafka, topic string) int64 {
	t.Helper()
	const untilThereIsATopic = 100
	producer, err := sarama.NewSyncProducerFromClient(kafkaClient(t, k, untilThereIsATopic))
	require.NoError(t, err)
	defer func() { require.NoError(t, producer.Close()) }()
	_, offset, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("key"), Value: sarama.StringEncoder("value")})
	require.NoError(t, err)
	return offset
}

func TestKafkaComesBack(t *testing.T) {
	k := startKafka(t)
	t.Run("to its clients after a pause", func(t *testing.T) {
		client := kafkaClient(t, k, 0)
		must(t, k.Pause())
		require.Error(t, client.RefreshMetadata())
		require.NoError(t, k.Resume())
		require.NoError(t, client.RefreshMetadata())
	})
	t.Run("with its records after a stop and a kill", func(t *testing.T) {
		topic := fmt.Sprintf("kept-%d", time.Now().UnixNano())
		require.EqualValues(t, 0, produce(t, k, topic))
		for i, end := range []func(context.Context) error{k.Stop, k.Kill} {
			must(t, end(t.Context()))
			_, err := sarama.NewClient(k.Brokers(), nil)
			require.Error(t, err)
			require.NoError(t, k.Start(t.Context()))
			require.EqualValues(t, i+1, produce(t, k, topic))
		}
	})
}

func TestGivenServersAreAdoptedIfTheyFit(t *testing.T) {
	own := startPostgres(t, nil)
	t.Setenv("POMBO_TEST_POSTGRES", own.DSN("postgres"))
	t.Setenv("POMBO_TEST_POSTGRES_VERSION", "")
	given := startPostgres(t, nil)
	require.Equal(t, own.Addr(), given.Addr())
	require.ErrorIs(t, given.Stop(t.Context(), stack.Fast), errors.ErrUnsupported)
	_, err := stack.StartPostgres(t.Context(), stack.PostgresOptions{Version: 9})
	require.ErrorContains(t, err, "not 9")

	t.Setenv("POMBO_TEST_KAFKA", "embedded")
	t.Setenv("POMBO_TEST_REAL", "")
	brokers := startKafka(t).Brokers()
	t.Setenv("POMBO_TEST_KAFKA", "")
	t.Setenv("POMBO_TEST_BROKERS", strings.Join(brokers, ","))
	require.Equal(t, brokers, startKafka(t).Brokers())
}

func TestTheEmbeddedBrokerIsRefusedWhereARealOneIsDemanded(t *testing.T) {
	t.Setenv("POMBO_TEST_KAFKA", "embedded")
	t.Setenv("POMBO_TEST_REAL", "1")
	_, err := stack.StartKafka(t.Context(), stack.KafkaOptions{})
	require.ErrorContains(t, err, "POMBO_TEST_REAL=1 refuses")

	t.Setenv("POMBO_TEST_REAL", "")
	k := startKafka(t)
	require.False(t, k.Real())
	require.EqualValues(t, 0, produce(t, k, "topic"))
	require.ErrorIs(t, k.Kill(t.Context()), errors.ErrUnsupported)
}

func TestServersEndWithAKilledStarter(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells a child that its parent died")
	}
	dir, err := os.MkdirTemp("", "pombo-test-") // of a short name, for the sockets in it
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755)) // for the account that runs Postgres
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })

	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), starterEnv+"=1", "TMPDIR="+dir, "POMBO_TEST_KAFKA=native", "POMBO_TEST_POSTGRES=", "DOCKER_HOST=unix:///nowhere")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer func() { _ = stdin.Close() }()
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "started\n", line)
	require.Greater(t, len(processesIn(t, dir)), 2, "a postmaster, its children and a broker")

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	require.Eventually(t, func() bool { return len(processesIn(t, dir)) == 0 }, 30*time.Second, 20*time.Millisecond)
}

// processesIn are the living processes that work in a folder, which all that is started here do.
func processesIn(t *testing.T, dir string) (links []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cwd")
	require.NoError(t, err)
	for _, link := range all {
		if cwd, err := os.Readlink(link); err == nil && strings.HasPrefix(cwd, dir) {
			links = append(links, link)
		}
	}
	return links
}
