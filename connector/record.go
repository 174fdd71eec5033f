package connector

import (
	"context"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/pombo-cdc/pombo/replication"
)

// recordTimeout is how long a session may be held up, at its start and at its end, by the record of it.
const recordTimeout = time.Second

// beginRecord returns the record and what it says. That it cannot be written is no reason not to stream; the watch tries again.
func beginRecord(ctx context.Context, cfg Config, control *pgx.Conn, stream *replication.Stream) (*replication.Record, pglogrepl.LSN) {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	record, err := replication.NewRecord(ctx, control, cfg.Source, stream.Confirmed())
	if err != nil {
		cfg.Log.Warn().Err(err).Msg("the session is not recorded yet, and without that the next start may take the slot for one that was moved")
		return record, 0
	}
	return record, stream.Confirmed()
}

// ending is the end of a session that is to be recorded: now, or by the next session if Postgres is away now.
type ending struct {
	record *replication.Record // nil: there is nothing to do
	lsn    pglogrepl.LSN       // that the session cannot have confirmed more than
}

// tryWrite records it if Postgres answers.
func (e *ending) tryWrite(cfg Config) {
	if e.record == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	conn, err := connect(ctx, cfg)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	e.write(ctx, conn)
}

// write tries once where Postgres answers: a record that cannot be written keeps nobody from streaming.
func (e *ending) write(ctx context.Context, conn *pgx.Conn) {
	if e.record == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	_ = e.record.End(ctx, conn, e.lsn)
	*e = ending{}
}
