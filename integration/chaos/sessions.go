package main

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/pombo-cdc/pombo/integration/workload"
)

// sessions counts the sessions of all instances, and how many events they may send again.
//
// A session begins at the position that the slot has confirmed, which the instance logs, and is sent every event whose
// transaction ended after it. Of these it sends again what an earlier session has sent. So the events that were written
// when it began, less those that are certainly confirmed, are a bound on what it can send again; the sum over all
// sessions is one on the duplicates of the run, as nothing is sent twice within a session. Whether an event that is not
// confirmed had been sent is not known here: the longer the backlog that an outage leaves, the looser the bound. It does
// not excuse what must never be: sending a confirmed event again, or one twice without a new session.
type sessions struct {
	ledger *workload.Ledger

	mu         sync.Mutex
	samples    []sample
	begun      int
	lost       int
	repeatable int
}

// sample says that so many events are committed before a position.
type sample struct {
	lsn       pglogrepl.LSN
	committed int
}

const sampleInterval = 200 * time.Millisecond

// began notes the begin of a session.
func (s *sessions) began(confirmed pglogrepl.LSN) {
	written := s.ledger.Written()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun++
	settled := 0
	for _, each := range s.samples {
		if each.lsn <= confirmed {
			settled = max(settled, each.committed)
		}
	}
	s.repeatable += written - settled
}

// ended notes that an instance has lost its session.
func (s *sessions) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost++
}

func (s *sessions) counts() (begun, lost, repeatable int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun, s.lost, s.repeatable
}

// sample looks at how the log grows until ctx ends. While Postgres is away there is nothing to see.
func (s *sessions) sample(ctx context.Context, dsn string) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if conn == nil || conn.IsClosed() {
			conn, _ = pgx.Connect(ctx, dsn)
			continue
		}
		committed := s.ledger.Report().Committed // before the position is asked for, so that these are before it
		var text string
		if conn.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&text) != nil {
			continue
		}
		if lsn, err := pglogrepl.ParseLSN(text); err == nil {
			s.mu.Lock()
			s.samples = append(s.samples, sample{lsn, committed})
			s.mu.Unlock()
		}
	}
}
