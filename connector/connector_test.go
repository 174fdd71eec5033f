package connector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/sink"
)

func TestOnlyWhatNoRetryCuresEndsTheConnector(t *testing.T) {
	type verdict struct{ permanent, operator bool }
	for name, c := range map[string]struct {
		err  error
		want verdict
	}{
		"slot missing":           {&replication.ActionError{Problem: "slot is missing", Cure: "run setup"}, verdict{true, true}},
		"columns missing":        {&decoder.MissingColumnsError{Table: "public.outbox_event"}, verdict{true, true}},
		"poison":                 {&sink.PoisonError{EventID: "1", Reason: errTest}, verdict{true, true}},
		"unknown protocol":       {decoder.ErrProtocol, verdict{true, false}},
		"slot in use":            {replication.ErrSlotInUse, verdict{}},
		"shutdown":               {&pgconn.PgError{Code: "57P01"}, verdict{}},
		"starting up":            {&pgconn.PgError{Code: "57P03"}, verdict{}},
		"too many connections":   {&pgconn.PgError{Code: "53300"}, verdict{}},
		"password refused":       {&pgconn.PgError{Code: "28P01"}, verdict{}},
		"connection lost":        {io.ErrUnexpectedEOF, verdict{}},
		"no answer":              {context.DeadlineExceeded, verdict{}},
		"brokers out of reach":   {sarama.ErrOutOfBrokers, verdict{}},
		"another epoch":          {sarama.ErrInvalidProducerEpoch, verdict{}},
		"the end of the session": {context.Canceled, verdict{}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, err := range []error{c.err, fmt.Errorf("step: %w", c.err), errors.Join(c.err, errTest), errors.Join(errTest, c.err)} {
				require.Equal(t, c.want, verdict{permanent(err), NeedsOperator(err)}, err)
			}
		})
	}
}

var errTest = errors.New("the test says so")

// attempts runs a connector for period whose sessions fail after lasting, and returns when they began.
func attempts(t *testing.T, period, lasting time.Duration, log io.Writer) []time.Time {
	t.Helper()
	cfg, err := pgx.ParseConfig("host=127.0.0.1 sslmode=disable")
	require.NoError(t, err)
	var all []time.Time
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		all = append(all, time.Now())
		sleep(context.WithoutCancel(ctx), lasting)
		return nil, errTest
	}
	ctx, cancel := context.WithTimeout(t.Context(), period)
	defer cancel()
	started := time.Now()
	require.NoError(t, Run(ctx, Config{Source: replication.Source{Postgres: cfg}, Log: zerolog.New(log)}))
	require.LessOrEqual(t, time.Since(started), period+lasting, "it ends when it is told to")
	return all
}

func TestRetriesSlowDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := attempts(t, time.Hour, 0, io.Discard)
		require.Less(t, all[1].Sub(all[0]), 2*firstRetry, "the first one comes soon")
		require.Less(t, len(all), int(2*time.Hour/lastRetry)+20)
		lengths := make(map[time.Duration]bool)
		for i := range all[1:] {
			pause := all[i+1].Sub(all[i])
			require.LessOrEqual(t, pause, 3*lastRetry/2)
			require.GreaterOrEqual(t, pause, firstRetry/2)
			lengths[pause] = true
		}
		require.Greater(t, len(lengths), len(all)/2, "instances that fail together do not come back together")
	})
}

func TestASteadySessionMakesTheNextFailureAFirstOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := attempts(t, time.Hour, steady+time.Second, io.Discard)
		for i := range all[1:] {
			require.Less(t, all[i+1].Sub(all[i]), steady+time.Second+2*firstRetry)
		}
		require.Greater(t, len(all), 100)
	})
}

func TestACauseThatGoesOnIsLoggedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := minutes{t: t, lines: make(map[time.Time]int)}
		attempts(t, time.Hour, 0, log)
		require.Len(t, log.lines, 60, "every minute")
		for _, lines := range log.lines {
			require.LessOrEqual(t, lines, 10)
		}
	})
}

// minutes counts the lines of each minute of a log.
type minutes struct {
	t     *testing.T
	lines map[time.Time]int
}

func (m minutes) Write(line []byte) (int, error) {
	m.lines[time.Now().Truncate(time.Minute)]++
	var fields struct {
		Error   string
		RetryIn string `json:"retry_in"`
	}
	require.NoError(m.t, json.Unmarshal(line, &fields))
	require.Contains(m.t, fields.Error, "connect to Postgres")
	require.Contains(m.t, fields.Error, errTest.Error())
	delay, err := time.ParseDuration(fields.RetryIn)
	require.NoError(m.t, err)
	require.Positive(m.t, delay)
	return len(line), nil
}

// A connection that is accepted and never answered would otherwise hold up a connector for ever.
func TestAPostgresThatSaysNothingIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, err := pgx.ParseConfig("host=127.0.0.1 sslmode=disable")
		require.NoError(t, err)
		var connections int
		cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) {
			connections++
			client, server := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, server) }()
			return client, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*queryTimeout)
		defer cancel()
		require.NoError(t, Run(ctx, Config{Source: replication.Source{Postgres: cfg}, Log: zerolog.Nop()}))
		require.Greater(t, connections, 5)
	})
}
