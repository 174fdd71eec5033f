// Package stack starts the servers that tests, the demo and the benchmarks need, and says which way it took.
//
// Postgres and Kafka each come from the first of these that is there:
//
//  1. servers that POMBO_TEST_POSTGRES (the URL of a superuser) and POMBO_TEST_BROKERS (host:port, comma separated) name;
//  2. Docker, where an engine answers; POMBO_TEST_POSTGRES_IMAGE and POMBO_TEST_KAFKA_IMAGE choose the images;
//  3. processes of this machine: an installed Postgres, or else one from a Maven artefact; Apache Kafka from Maven
//     artefacts, where there are Java and Maven. What is fetched is kept in a cache folder;
//  4. for Kafka only, a broker inside this process that is not Apache Kafka. POMBO_TEST_REAL=1 refuses it.
//
// A KafkaCluster, a broker behind a Proxy and a standby of Postgres are only to be had in the third way.
//
// POMBO_TEST_POSTGRES_VERSION is the major version to take of Postgres, instead of the newest that is installed.
// POMBO_TEST_KAFKA forces the way to a broker: docker, native or embedded.
//
// Whatever was started listens on loopback, on free ports, and ends with the process that started it, even if that is
// killed (a container: after an hour). Its temporary folder goes with Close.
package stack

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"
)

// tell writes a line of progress, if anybody wants to know.
func tell(w io.Writer, format string, args ...any) {
	if w != nil {
		fmt.Fprintf(w, format+"\n", args...)
	}
}

// Ports for servers come from below the range that the kernel gives to outgoing connections. In that range a client that
// calls a server which is down can take the server's port, even by connecting to itself, and the server cannot come back.
const (
	lowestPort  = 15000
	highestPort = 32000
)

// freePort returns a loopback port that was free a moment ago.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		var l net.Listener
		if l, err = net.Listen("tcp", loopback(port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}

// loopback is the address of a port for this machine only.
func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// pollInterval is how often a condition is looked at that nobody announces.
const pollInterval = 50 * time.Millisecond

// poll calls done until it is true, ctx ends or gone is closed, and reports whether it became true.
func poll(ctx context.Context, gone <-chan struct{}, done func() bool) bool {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if done() {
			return true
		}
		select {
		case <-gone:
			return false
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}
