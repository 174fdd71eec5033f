package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// lockTime is how long a transaction waits for another that adds or removes parked events.
	lockTime = 10 * time.Second

	// closeTime is how long Postgres gets to hear that a statement is not wanted any more.
	closeTime = 2 * time.Second
)

// errNoAnswer ends a transaction.
var errNoAnswer = errors.New("Postgres does not answer") //nolint:staticcheck // a proper name

// inTransaction runs do in a transaction of a session of its own, for limit at most. The server ends it after limit too, should
// we be gone.
func (p *Parking) inTransaction(ctx context.Context, limit time.Duration, do func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errNoAnswer)
	defer cancel()
	cfg := p.postgres.Copy()
	cfg.RuntimeParams["client_encoding"] = "UTF8" // whatever the role or PGCLIENTENCODING says
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer closeSession(ctx, conn)
	return transact(ctx, conn, limit, func(tx pgx.Tx) error { return do(ctx, tx) })
}

func closeSession(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	_ = conn.Close(ctx)
	select {
	case <-conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
}

// transact runs do in a transaction that is durable once it is committed and sees what others have committed when the slot's
// lock is taken, whatever the role's settings say.
func transact(ctx context.Context, conn *pgx.Conn, limit time.Duration, do func(pgx.Tx) error) error {
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
	return pgx.BeginTxFunc(ctx, conn, options, func(tx pgx.Tx) error {
		settings := fmt.Sprintf(`
SET LOCAL lock_timeout = %d;
SET LOCAL statement_timeout = %d;
SET LOCAL idle_in_transaction_session_timeout = %d;
SET LOCAL synchronous_commit = on`, lockTime.Milliseconds(), limit.Milliseconds(), limit.Milliseconds())
		if _, err := tx.Exec(ctx, settings, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		return do(tx)
	})
}
