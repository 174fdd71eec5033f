package connector

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/outbox"
)

// What is refused again stays, with what is behind it and why; everything else goes.
func TestWhatARetryCannotPublishStaysParked(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.kafka.CreateTopic("small", 1, map[string]string{"max.message.bytes": "1000"}))
	f.cfg.Router = f.route(map[string]string{"orders": "small"})
	large := strings.Repeat("x", 2000)
	f.park(parkedAs{"1", 7, "{}"}, parkedAs{"2", 7, large}, parkedAs{"3", 7, "{}"}, parkedAs{"4", 8, "{}"}, parkedAs{"5", 0, large}, parkedAs{"6", 0, "{}"})
	var refused []outbox.Refusal
	opts := RetryOptions{Refused: func(r outbox.Refusal) { refused = append(refused, r) }}
	result, err := Retry(t.Context(), f.cfg, opts)
	require.NoError(t, err)
	require.Equal(t, RetryResult{Published: 3, Refused: 2, Left: 3}, result)
	require.Equal(t, []string{"2", "3", "5"}, f.left())
	require.Equal(t, []string{"2", "5"}, []string{refused[0].Name, refused[1].Name})
	require.Contains(t, refused[0].Reason, "max.message.bytes")
	require.NoError(t, outbox.ListParked(t.Context(), f.db, f.cfg.Source.Slot, true, func(p outbox.Parked) error {
		require.Equal(t, "small", p.Topic, "where it would go by now")
		require.NotContains(t, p.Reason, map[bool]string{true: "max.message.bytes", false: "the test says so"}[p.Name() == "3"])
		return nil
	}))

	f.cfg.Router = f.route(nil)
	result, err = Retry(t.Context(), f.cfg, opts)
	require.NoError(t, err)
	require.Equal(t, RetryResult{Published: 3}, result)
	require.Equal(t, []string{"2", "3", "5"}, f.consume(3))
}

// A lane whose first event is refused may be long, and grow: it is left alone.
func TestRetryDoesNotReadOnInALaneThatIsBlocked(t *testing.T) {
	f := newFixture(t)
	f.cfg.Router = f.route(nil)
	events := []parkedAs{{"large", 7, strings.Repeat("x", 2<<20)}}
	for i := range 2 * retryEvents {
		events = append(events, parkedAs{fmt.Sprint(i), 7, "{}"})
	}
	f.park(events...)
	var read int64
	result, err := Retry(t.Context(), f.cfg, RetryOptions{Progress: func(done, _ int64) { read = done }})
	require.NoError(t, err)
	require.Equal(t, RetryResult{Refused: 1, Left: 2*retryEvents + 1}, result)
	require.EqualValues(t, retryEvents, read)
}

// With another route, an event that had no topic gets one.
func TestRetryRoutesAnew(t *testing.T) {
	f := newFixture(t)
	f.cfg.Router = f.route(nil)
	f.park(parkedAs{"1", 7, "{}"})
	_, err := f.db.Exec(t.Context(), `UPDATE pombo.parked_event SET topic = NULL, cells[2] = 'Any thing'`)
	require.NoError(t, err)
	result, err := Retry(t.Context(), f.cfg, RetryOptions{})
	require.NoError(t, err)
	require.Equal(t, RetryResult{Refused: 1, Left: 1}, result)
	f.cfg.Router = f.route(map[string]string{"Any thing": "orders"})
	result, err = Retry(t.Context(), f.cfg, RetryOptions{})
	require.NoError(t, err)
	require.Equal(t, RetryResult{Published: 1}, result)
	require.Equal(t, []string{"1"}, f.consume(1))
}
