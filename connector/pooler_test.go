package connector

import (
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// I04: a pooler that does not pass on replication is named as what it is, whichever parameter it is that it stumbles over first.
func TestAPoolerIsNamed(t *testing.T) {
	for _, parameter := range []string{"replication", "IntervalStyle"} {
		f := newFixture(t)
		f.cfg.Source.Postgres.Port = refusingPooler(t, "unsupported startup parameter: "+parameter)
		f.start()
		err := await(t, f.stopped, "the end of Run")
		require.True(t, NeedsOperator(err))
		require.ErrorContains(t, err, parameter)
		require.ErrorContains(t, err, "connect directly to Postgres")
	}
}

// refusingPooler answers every connection as PgBouncer does one with a parameter that it does not know, and returns its port.
func refusingPooler(t *testing.T, message string) uint16 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			backend := pgproto3.NewBackend(conn, conn)
			if _, err := backend.ReceiveStartupMessage(); err == nil {
				backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: message})
				_ = backend.Flush() // the client is gone otherwise
			}
			_ = conn.Close()
		}
	}()
	return uint16(listener.Addr().(*net.TCPAddr).Port)
}
