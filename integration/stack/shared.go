package stack

import (
	"context"
	"os"
	"sync"
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

// Close ends the server, if it was started.
func (s *SharedPostgres) Close() error {
	if s.server == nil {
		return nil
	}
	return s.server.Close()
}
