package sink

import (
	"net"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
)

// A connection that is lost is replaced; its successor is not closed for it.
func TestLostConnectionIsReplacedOnce(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	defer cluster.Close()
	address := cluster.ListenAddrs()[0]
	conns := newConnections(sarama.NewConfig())
	defer conns.close()
	get := func(lost ...*sarama.Broker) *sarama.Broker {
		conns.begin(lost)
		conn, err := conns.get(address)
		require.NoError(t, err)
		connected, err := conn.Connected()
		require.NoError(t, err)
		require.True(t, connected)
		return conn
	}
	first := get()
	require.Same(t, first, get())
	second := get(first)
	require.NotSame(t, first, second)
	require.Same(t, second, get(first))
}

// A broker that does not let us connect is tried once a round, however many partitions it leads.
func TestBrokerIsTriedOnceARound(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	tries := make(chan bool, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			tries <- true
			_ = conn.Close()
		}
	}()
	conns := newConnections(sarama.NewConfig())
	for round := range 3 {
		conns.begin(nil)
		for range 10 {
			_, err := conns.get(listener.Addr().String())
			require.Error(t, err)
		}
		require.Len(t, tries, round+1)
	}
}

func TestRetryDelay(t *testing.T) {
	require.Zero(t, retryDelay(0))
	require.Zero(t, retryDelay(1), "the first retry comes at once")
	for failures := 2; failures < 100; failures++ {
		limit := min(firstRetry<<min(failures-2, 20), lastRetry)
		delay := retryDelay(failures)
		require.GreaterOrEqual(t, delay, limit/2)
		require.LessOrEqual(t, delay, limit)
	}
}
