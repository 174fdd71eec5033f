package sink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/cenkalti/backoff/v5"
)

const (
	dialTimeout  = 5 * time.Second
	writeTimeout = 10 * time.Second
	readTimeout  = 15 * time.Second // of a connection for produce requests

	// askTimeout is how long a broker may take to answer a question, the first one on each connection included. It is
	// short, because look-ups come one after the other: as long as a silent broker is waited for, no topic is looked up.
	askTimeout = 5 * time.Second

	// ackTimeoutMillis is how long a broker waits for its in-sync replicas. It must end before
	// readTimeout, which closes the connection.
	ackTimeoutMillis = 10_000

	// maxOpenRequests bounds the produce requests in flight to one broker. A broker works on the requests of a connection
	// one by one, so a second one keeps it busy, and more would only be smaller.
	maxOpenRequests = 2

	// produceVersion carries record batches of version 2 (headers, idempotence) and is spoken by
	// brokers from 2.1 to 4.x.
	produceVersion = 7

	// transactionTimeout is required with a transactional id, though no transaction is ever begun.
	transactionTimeout = time.Minute

	// coordinatorPatience is how long Open waits for a transaction coordinator that is still loading.
	coordinatorPatience = 30 * time.Second
)

// identity is what brokers recognise a producer by. Each InitProducerID under the same name
// raises the epoch, and a partition that has seen a higher epoch refuses a lower one.
type identity struct {
	id    int64
	epoch int16
}

// connect returns a client whose connections end with ctx. It does not reach out yet.
func connect(ctx context.Context, cfg Config) (sarama.Client, error) {
	conf := sarama.NewConfig()
	conf.ClientID = "pombo"
	conf.Version = sarama.MaxVersion // lowered to what the brokers speak
	conf.Metadata.Full = false
	conf.Metadata.RefreshFrequency = 0 // lookups decides when to refresh
	conf.Metadata.Retry.Max = 0        // and when to try again
	conf.Metadata.Timeout = 15 * time.Second
	conf.Net.DialTimeout = dialTimeout
	conf.Net.WriteTimeout = writeTimeout
	conf.Net.ReadTimeout = askTimeout
	conf.Net.MaxOpenRequests = maxOpenRequests + 1
	conf.Net.Proxy.Enable = true // sarama's way to take a dialer
	conf.Net.Proxy.Dialer = sessionDialer{ctx}
	client, err := sarama.NewClient(cfg.Brokers, conf)
	if err != nil {
		return nil, fmt.Errorf("configure Kafka client: %w", err)
	}
	return client, nil
}

// sessionDialer opens connections that end with its context, so that no read from and no write to a
// silent broker outlives the session.
type sessionDialer struct{ ctx context.Context }

func (d sessionDialer) Dial(network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(d.ctx, network, address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(d.ctx, func() { _ = conn.Close() })
	return &sessionConn{Conn: conn, stop: stop}, nil
}

type sessionConn struct {
	net.Conn
	stop     func() bool
	answered atomic.Bool
}

func (c *sessionConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// SetReadDeadline leaves no more than askTimeout for the first answer: a broker that is paused accepts connections.
func (c *sessionConn) SetReadDeadline(t time.Time) error {
	if first := time.Now().Add(askTimeout); !c.answered.Load() && t.After(first) {
		t = first
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *sessionConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.answered.Store(true)
	}
	return n, err
}

// initProducer asks for a producer id, with a new epoch when fencing is on.
func (k *Kafka) initProducer(ctx context.Context) (identity, error) {
	producer, err := backoff.Retry(ctx, func() (identity, error) {
		response, err := k.requestProducerID()
		switch {
		case err == nil && response.Err == sarama.ErrNoError:
			return identity{response.ProducerID, response.ProducerEpoch}, nil
		case err == nil:
			err = response.Err
		}
		if !coordinatorStarting(err) {
			err = backoff.Permanent(err)
		}
		return identity{}, err
	}, backoff.WithMaxElapsedTime(coordinatorPatience))
	switch {
	case err == nil:
		return producer, nil
	case errors.Is(err, sarama.ErrTransactionalIDAuthorizationFailed):
		return identity{}, fmt.Errorf("get producer id: %w: grant Write and Describe on TransactionalId %s, or run with --fencing off", err, k.cfg.ProducerName)
	case errors.Is(err, sarama.ErrClusterAuthorizationFailed):
		return identity{}, fmt.Errorf("get producer id: %w: grant IdempotentWrite on Cluster", err)
	default:
		return identity{}, fmt.Errorf("get producer id from Kafka at %s: %w", strings.Join(k.cfg.Brokers, ","), err)
	}
}

func (k *Kafka) requestProducerID() (*sarama.InitProducerIDResponse, error) {
	if k.cfg.ProducerName == "" {
		return k.client.InitProducerID()
	}
	if err := k.client.RefreshTransactionCoordinator(k.cfg.ProducerName); err != nil {
		return nil, err
	}
	coordinator, err := k.client.TransactionCoordinator(k.cfg.ProducerName)
	if err != nil {
		return nil, err
	}
	return coordinator.InitProducerID(&sarama.InitProducerIDRequest{
		Version:            1,
		TransactionalID:    &k.cfg.ProducerName,
		TransactionTimeout: transactionTimeout,
	})
}

// coordinatorStarting reports whether the transaction coordinator will be there in a moment: it
// loads its state after a start or a move, and its topic is made when it is first used.
func coordinatorStarting(err error) bool {
	return errors.Is(err, sarama.ErrOffsetsLoadInProgress) || // COORDINATOR_LOAD_IN_PROGRESS
		errors.Is(err, sarama.ErrConsumerCoordinatorNotAvailable) || // COORDINATOR_NOT_AVAILABLE
		errors.Is(err, sarama.ErrNotCoordinatorForConsumer) || // NOT_COORDINATOR
		errors.Is(err, sarama.ErrConcurrentTransactions)
}
