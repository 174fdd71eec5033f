package stack_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/stack"
)

func TestAStandbyFollowsAndCanBePromoted(t *testing.T) {
	for _, version := range []int{14, 15, 18} { // the oldest, the first with other names of the backup functions, the newest
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			t.Setenv("POMBO_TEST_POSTGRES", "")
			p, err := stack.StartPostgres(t.Context(), stack.PostgresOptions{
				Version: version, Log: t.Output(), Settings: map[string]string{"fsync": "off", "max_wal_senders": "7"},
			})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, p.Close()) })
			run(t, p, "CREATE TABLE kept AS SELECT 'before' AS v")
			s, err := p.StartStandby(t.Context(), stack.PostgresOptions{Log: t.Output(), Settings: map[string]string{"work_mem": "1234kB"}})
			must(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			require.Equal(t, "true", ask(t, s.DSN("postgres"), "SELECT pg_is_in_recovery()::text"))
			require.Equal(t, "7", ask(t, s.DSN("postgres"), "SHOW max_wal_senders"))
			require.Equal(t, "1234kB", ask(t, s.DSN("postgres"), "SHOW work_mem"))
			require.Equal(t, "before", ask(t, s.DSN("postgres"), "SELECT v FROM kept"))

			run(t, p, "UPDATE kept SET v = 'after'")
			require.Eventually(t, func() bool {
				return ask(t, s.DSN("postgres"), "SELECT v FROM kept") == "after"
			}, time.Minute, 20*time.Millisecond)

			require.NoError(t, p.Stop(t.Context(), stack.Immediate))
			require.NoError(t, s.Stop(t.Context(), stack.Fast))
			require.NoError(t, s.Start(t.Context()))
			require.NoError(t, s.Promote(t.Context()))
			run(t, s, "UPDATE kept SET v = 'on its own'")
		})
	}
}

func run(t *testing.T, p *stack.Postgres, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), p.DSN("postgres"))
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), sql)
	require.NoError(t, err)
}
