package stack_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/stack"
)

// childEnv makes the test binary start servers and wait to be killed.
const childEnv = "POMBO_STACK_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	m.Run()
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestPostgresKeepsItsDataOverStopsAndCrashes(t *testing.T) {
	ctx := testContext(t)
	p, err := stack.StartPostgres(ctx, stack.PostgresOptions{Settings: map[string]string{"work_mem": "5MB"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	dsn, err := p.CreateDatabase(ctx, `Odd "name"`)
	require.NoError(t, err)

	query := func(sql string) (result string) {
		conn, err := pgx.Connect(ctx, dsn)
		require.NoError(t, err)
		defer func() { _ = conn.Close(ctx) }()
		require.NoError(t, conn.QueryRow(ctx, sql).Scan(&result))
		return result
	}
	require.Equal(t, "logical", query("SHOW wal_level"))
	require.Equal(t, "5MB", query("SHOW work_mem"))
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	_, err = conn.Exec(ctx, "CREATE TABLE kept AS SELECT 'here'::text AS v")
	require.NoError(t, err)
	require.NoError(t, conn.Close(ctx))
	for _, mode := range []stack.StopMode{stack.Fast, stack.Smart, stack.Immediate} {
		err := p.Stop(ctx, mode)
		if errors.Is(err, errors.ErrUnsupported) {
			return // a server that was given: nothing more to prove here
		}
		require.NoError(t, err)
		require.NoError(t, p.Start(ctx))
		require.Equal(t, "here", query("SELECT v FROM kept"))
	}
}

func TestKafkaKeepsItsRecordsOverStopsAndCrashes(t *testing.T) {
	ctx := testContext(t)
	k, err := stack.StartKafka(ctx, stack.KafkaOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, k.Close()) })

	conf := sarama.NewConfig()
	conf.Producer.Return.Successes = true
	client, err := sarama.NewClient(k.Brokers(), conf)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	producer, err := sarama.NewSyncProducerFromClient(client)
	require.NoError(t, err)
	t.Cleanup(func() { _ = producer.Close() })

	produce := func() {
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: "kept", Partition: 0, Value: sarama.StringEncoder("v")})
		require.NoError(t, err)
	}
	records := func() (n int64) {
		partitions, err := client.Partitions("kept")
		require.NoError(t, err)
		for _, id := range partitions {
			end, err := client.GetOffset("kept", id, sarama.OffsetNewest)
			require.NoError(t, err)
			n += end
		}
		return n
	}
	produce()
	require.EqualValues(t, 1, records())
	for i, end := range []func(context.Context) error{k.Stop, k.Kill} {
		err := end(ctx)
		if errors.Is(err, errors.ErrUnsupported) {
			return // a broker that cannot be stopped: nothing more to prove here
		}
		require.NoError(t, err)
		require.NoError(t, k.Start(ctx))
		produce()
		require.EqualValues(t, i+2, records())
	}
}

func TestTheEmbeddedBrokerIsRefusedWhereARealOneIsDemanded(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // no java
	t.Setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
	t.Setenv("POMBO_TEST_BROKERS", "")

	t.Setenv("POMBO_TEST_REAL", "1")
	_, err := stack.StartKafka(t.Context(), stack.KafkaOptions{})
	require.ErrorContains(t, err, "POMBO_TEST_REAL")

	t.Setenv("POMBO_TEST_REAL", "")
	k, err := stack.StartKafka(t.Context(), stack.KafkaOptions{})
	require.NoError(t, err)
	require.False(t, k.Real())
	require.NoError(t, k.Close())
}

func TestServersEndWithAKilledStarter(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1", "POMBO_TEST_POSTGRES=", "DOCKER_HOST=tcp://127.0.0.1:1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()

	require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || zombie(pid) },
		30*time.Second, 20*time.Millisecond, "the server outlives the process that started it")
}

func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// child prints the process id of a server and waits for its end.
func child() {
	p, err := stack.StartPostgres(context.Background(), stack.PostgresOptions{})
	if err != nil {
		panic(err)
	}
	pidFile := filepath.Join(filepath.Dir(p.LogFile()), "data", "postmaster.pid")
	content, err := os.ReadFile(pidFile)
	if err != nil {
		panic(err)
	}
	pid, _, _ := strings.Cut(string(content), "\n")
	fmt.Println(pid)
	select {}
}
