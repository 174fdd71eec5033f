package stack

import (
	"context"
	"errors"
	"os"
	"sync"

	"go.uber.org/goleak"
)

// SharedPostgres is a server that the tests of a package share. It starts when it is first asked for; the zero value is ready.
type SharedPostgres struct {
	once   sync.Once
	server *Postgres
	err    error
}

// Get returns the server.
func (s *SharedPostgres) Get() (*Postgres, error) {
	s.once.Do(func() {
		s.server, s.err = StartPostgres(context.Background(), PostgresOptions{Log: os.Stderr})
	})
	return s.server, s.err
}

// Run runs the tests, a *testing.M, and ends the server, if one was started. It panics if they have left a goroutine behind,
// but for two that have no end: that of all meters of sarama, and the one that starts servers, which live as long as its thread.
func (s *SharedPostgres) Run(tests interface{ Run() int }) {
	tests.Run()
	var err error
	if s.server != nil {
		err = s.server.Close()
	}
	err = errors.Join(err, goleak.Find(
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
		goleak.IgnoreTopFunction("github.com/pombo-cdc/pombo/integration/stack.forkForEver")))
	if err != nil {
		panic(err)
	}
}
