package connector

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/pombo-cdc/pombo/decoder"
	"github.com/pombo-cdc/pombo/outbox"
	"github.com/pombo-cdc/pombo/replication"
	"github.com/pombo-cdc/pombo/router"
	"github.com/pombo-cdc/pombo/sink"
)

// parkedAs is an event that is parked: its id, lane and payload.
type parkedAs struct {
	id      string
	lane    sink.Lane
	payload string
}

// park parks events, each as if it were refused.
func (f *fixture) park(events ...parkedAs) {
	f.t.Helper()
	walsender := f.walsender()
	if walsender == 0 { // no connector runs
		stream, err := replication.Open(f.t.Context(), f.cfg.Source, f.db)
		require.NoError(f.t, err)
		walsender = int(stream.Walsender())
		defer func() {
			require.NoError(f.t, stream.Close())
			require.Eventually(f.t, func() bool { return f.walsender() == 0 }, awaitLimit, 10*time.Millisecond)
		}()
	}
	parking := outbox.NewParking(f.db.Config(), f.cfg.Source.Slot, uint32(walsender), f.cfg.Layout, f.cfg.Log)
	all := make([]sink.ParkedEvent, len(events))
	for i, e := range events {
		pool := decoder.NewPool(1<<20, f.cfg.Layout)
		b := <-pool.Free()
		require.True(f.t, pool.Prepare(b, 1))
		key := []byte(fmt.Sprint(e.lane))
		if e.lane == 0 {
			key = nil
		}
		require.True(f.t, b.Append(time.UnixMicro(1_700_000_000_000_000), [][]byte{
			[]byte(e.id), []byte("orders"), key, []byte("created"), []byte(e.payload),
		}))
		all[i] = sink.ParkedEvent{Event: b.Event(0), Topic: "orders", Lane: e.lane, Reason: "the test says so"}
	}
	_, err := parking.Park(f.t.Context(), all)
	require.NoError(f.t, err)
}

// route returns the router with other routes.
func (f *fixture) route(routes map[string]string) *router.Router {
	r, err := router.New(router.Config{Layout: f.cfg.Layout, Routes: routes, Headers: router.DefaultHeaders()})
	require.NoError(f.t, err)
	return r
}

// left lists the ids of what is parked.
func (f *fixture) left() []string {
	f.t.Helper()
	ids := []string{}
	require.NoError(f.t, outbox.ListParked(f.t.Context(), f.db, f.cfg.Source.Slot, true, func(p outbox.Parked) error {
		ids = append(ids, p.Name())
		return nil
	}))
	return ids
}

// consume returns the ids of the first n records of topic orders.
func (f *fixture) consume(n int) []string {
	f.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(f.kafka.ListenAddrs()...), kgo.ConsumeTopics("orders"), kgo.FetchMaxBytes(1<<30), kgo.BrokerMaxReadBytes(1<<30))
	require.NoError(f.t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(f.t.Context(), awaitLimit)
	defer cancel()
	var ids []string
	for len(ids) < n {
		fetches := client.PollFetches(ctx)
		require.NoError(f.t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) { ids = append(ids, string(r.Headers[0].Value)) })
	}
	return ids
}

func TestRetryPublishesInOrderAndOpensTheLanes(t *testing.T) {
	f := newFixture(t)
	var events []parkedAs
	var want []string
	for i := range 2*retryEvents + 10 {
		id := fmt.Sprint(i)
		events, want = append(events, parkedAs{id, sink.Lane(i % 7), "{}"}), append(want, id)
	}
	f.park(events...)
	var progress [][2]int64
	result, err := Retry(t.Context(), f.cfg, RetryOptions{Progress: func(done, total int64) { progress = append(progress, [2]int64{done, total}) }})
	require.NoError(t, err)
	require.Equal(t, RetryResult{Published: 2010}, result)
	require.Equal(t, [][2]int64{{1000, 2010}, {2000, 2010}, {2010, 2010}}, progress)
	require.Empty(t, f.left())
	require.Equal(t, want, f.consume(len(want)))
}

// What may not be deleted is not published, or each try would publish it again.
func TestARetryPublishesNothingThatItMayNotDelete(t *testing.T) {
	f := newFixture(t)
	f.park(parkedAs{"1", 7, ""})
	held := f.holdProduce()
	role := f.cfg.Source.Slot
	_, err := f.db.Exec(t.Context(), `CREATE ROLE `+role+` LOGIN PASSWORD 'secret'; GRANT USAGE ON SCHEMA pombo TO `+role+`; GRANT SELECT, INSERT ON pombo.parked_event TO `+role,
		pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := f.db.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role, pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
	})
	f.cfg.Source.Postgres.User, f.cfg.Source.Postgres.Password = role, "secret"
	_, err = Retry(t.Context(), f.cfg, RetryOptions{})
	require.True(t, NeedsOperator(err), err)
	require.ErrorContains(t, err, "GRANT")
	require.Empty(t, held)
}

func TestRetryOfNothing(t *testing.T) {
	f := newFixture(t)
	f.cfg.Kafka.Brokers = []string{"127.0.0.1:1"}
	result, err := Retry(t.Context(), f.cfg, RetryOptions{})
	require.NoError(t, err)
	require.Zero(t, result)
}

func TestRetryOfOneEventTakesItsKeyAlong(t *testing.T) {
	f := newFixture(t)
	f.park(parkedAs{"1", 7, ""}, parkedAs{"2", 8, ""}, parkedAs{"3", 7, ""}, parkedAs{"4", 0, ""}, parkedAs{"5", 0, ""})
	for id, want := range map[string]int64{"3": 2, "4": 1} {
		result, err := Retry(t.Context(), f.cfg, RetryOptions{Which: &outbox.Which{ID: id}})
		require.NoError(t, err)
		require.Equal(t, RetryResult{Published: want}, result)
	}
	require.Equal(t, []string{"2", "5"}, f.left())
	_, err := Retry(t.Context(), f.cfg, RetryOptions{Which: &outbox.Which{ID: "3"}})
	require.ErrorContains(t, err, `has id "3"`)
}

// What the connector parks while a retry is under way is retried too, or its lane would stay blocked.
func TestRetryGoesOnUntilItsLanesAreOpen(t *testing.T) {
	f := newFixture(t)
	f.park(parkedAs{"1", 7, ""})
	held := f.holdProduce()
	retried := f.retry(RetryOptions{})
	first := await(t, held, "a produce request")
	f.park(parkedAs{"2", 7, ""}, parkedAs{"3", 8, ""})
	_, err := Retry(t.Context(), f.cfg, RetryOptions{})
	require.ErrorContains(t, err, "another `pombo parked retry` or discard of slot "+f.cfg.Source.Slot+" is under way")
	first()
	second := await(t, held, "a produce request")
	f.park(parkedAs{"4", 7, ""})
	second()
	await(t, held, "a produce request")()
	require.Equal(t, RetryResult{Published: 4}, await(t, retried, "the end of Retry"))
	require.Empty(t, f.left())
	require.Equal(t, []string{"1", "2", "3", "4"}, f.consume(4))
}

// A batch that a retry was cut off with may reach the brokers late, when the next retry has opened the lane and newer events have
// been published. It is refused.
func TestALateBatchOfARetryThatWasCutOffIsRefused(t *testing.T) {
	f := newFixture(t)
	f.park(parkedAs{"1", 7, ""})
	held := f.holdProduce()
	late := f.cutOffRetry(held)
	second := f.retry(RetryOptions{})
	await(t, held, "a produce request")()
	await(t, second, "the end of Retry")
	late()
	f.park(parkedAs{"2", 7, ""})
	third := f.retry(RetryOptions{})
	await(t, held, "a produce request")()
	require.Equal(t, RetryResult{Published: 1}, await(t, third, "the end of Retry"))
	require.Equal(t, []string{"1", "2"}, f.consume(2))
}

// cutOffRetry cancels a Retry whose first request is held, and returns the function that lets the broker have that.
func (f *fixture) cutOffRetry(held <-chan func()) (late func()) {
	f.t.Helper()
	ctx, cutOff := context.WithCancel(f.t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := Retry(ctx, f.cfg, RetryOptions{})
		ended <- err
	}()
	late = await(f.t, held, "a produce request")
	cutOff()
	require.ErrorIs(f.t, await(f.t, ended, "the end of Retry"), context.Canceled)
	return late
}

// retry runs Retry, which has to succeed.
func (f *fixture) retry(opts RetryOptions) <-chan RetryResult {
	retried := make(chan RetryResult, 1)
	go func() {
		result, err := Retry(f.t.Context(), f.cfg, opts)
		assert.NoError(f.t, err)
		retried <- result
	}()
	return retried
}

func TestWhatAnInterruptedRetryHasNotSettledStaysParked(t *testing.T) {
	f := newFixture(t)
	f.park(parkedAs{"1", 7, ""})
	f.cutOffRetry(f.holdProduce())
	require.Equal(t, []string{"1"}, f.left())
}

func TestRetryDoesNotFenceTheConnector(t *testing.T) {
	f := newFixture(t)
	named := make(chan *string, 16)
	f.kafka.ControlKey(int16(kmsg.InitProducerID), func(request kmsg.Request) (kmsg.Response, error, bool) {
		f.kafka.KeepControl()
		named <- request.(*kmsg.InitProducerIDRequest).TransactionalID
		return nil, nil, false
	})
	f.park(parkedAs{"1", 7, ""}, parkedAs{"2", 8, ""})
	_, err := Retry(t.Context(), f.cfg, RetryOptions{Which: &outbox.Which{ID: "1"}})
	require.NoError(t, err)
	require.Equal(t, f.cfg.Kafka.ProducerName+"-retry", *await(t, named, "a producer id"))
	f.cfg.Kafka.ProducerName = ""
	_, err = Retry(t.Context(), f.cfg, RetryOptions{})
	require.NoError(t, err)
	require.Nil(t, await(t, named, "a producer id"))
}

func TestRetryOfEventsLargerThanTheBuffer(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.kafka.CreateTopic("large", 1, map[string]string{"max.message.bytes": "100000000"}))
	f.cfg.Buffer = 1 << 20
	f.cfg.Router = f.route(map[string]string{"orders": "large"})
	f.park(parkedAs{"1", 7, strings.Repeat("x", 3<<20)}, parkedAs{"2", 7, ""}, parkedAs{"3", 7, strings.Repeat("x", 300<<10)})
	result, err := Retry(t.Context(), f.cfg, RetryOptions{})
	require.NoError(t, err)
	require.Equal(t, RetryResult{Published: 3}, result)
}

func TestRetryNamesAColumnThatAParkedRowLacks(t *testing.T) {
	f := newFixture(t)
	f.park(parkedAs{"1", 7, ""})
	layout := *f.cfg.Layout
	layout.Columns = append(layout.Columns, "tenant")
	f.cfg.Layout = &layout
	_, err := Retry(t.Context(), f.cfg, RetryOptions{})
	var action *replication.ActionError
	require.ErrorAs(t, err, &action)
	require.Equal(t, `parked event seq 1 lacks column "tenant": it has id, aggregate_type, aggregate_id, event_type, payload`, action.Problem)
	require.Equal(t, []string{"1"}, f.left())
}

func TestLeftoversKeepLanesInOrder(t *testing.T) {
	layout := decoder.NewLayout("public", "outbox_event")
	seq := layout.Column("seq")
	pool := decoder.NewPool(1<<20, layout)
	b := <-pool.Free()
	require.True(t, pool.Prepare(b, 1))
	event := func(n byte, lane sink.Lane, reason string) sink.ParkedEvent {
		require.True(t, b.Append(time.Now(), [][]byte{nil, nil, nil, nil, nil, {0, 0, 0, 0, 0, 0, 0, n}}))
		return sink.ParkedEvent{Event: b.Event(b.Len() - 1), Lane: lane, Reason: reason}
	}
	l := &leftovers{seq: seq, blocked: make(map[sink.Lane]bool)}
	parked, err := l.Park(t.Context(), []sink.ParkedEvent{event(1, 7, ""), event(2, 7, "bad"), event(3, 7, ""), event(4, 0, "bad"), event(5, 0, "")})
	require.NoError(t, err)
	require.Equal(t, []bool{false, true, true, true, false}, parked)
	require.Equal(t, []int64{2, 3, 4}, []int64{l.refused[0].Seq, l.refused[1].Seq, l.refused[2].Seq})
	lanes, err := l.Lanes(t.Context())
	require.NoError(t, err)
	require.Equal(t, []sink.Lane{7}, lanes)
}
