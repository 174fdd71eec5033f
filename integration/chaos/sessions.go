package main

import (
	"context"
	"slices"
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
//
// What is confirmed is what the slot says. Postgres does not write it to disk at once, so a crash, and up to version 16
// any restart, takes the slot back to an older position.
type sessions struct {
	ledger *workload.Ledger

	mu      sync.Mutex
	samples []sample
	all     []session
}

// session is how one of them began.
type session struct {
	At          time.Time `json:"at"`
	Instance    string    `json:"instance"`
	Confirmed   string    `json:"confirmed"`   // position
	Unconfirmed int       `json:"unconfirmed"` // events, at most
}

// sample says that so many events are committed before a position.
type sample struct {
	lsn       pglogrepl.LSN
	committed int
}

const sampleInterval = 200 * time.Millisecond

// began notes the begin of a session.
func (s *sessions) began(instance string, confirmed pglogrepl.LSN) {
	written := s.ledger.Written()
	s.mu.Lock()
	defer s.mu.Unlock()
	settled := 0
	for _, each := range s.samples {
		if each.lsn <= confirmed {
			settled = max(settled, each.committed)
		}
	}
	s.all = append(s.all, session{stamp(time.Now()), instance, confirmed.String(), written - settled})
}

// begun are the sessions so far.
func (s *sessions) begun() []session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
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
