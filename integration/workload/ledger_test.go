package workload_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/workload"
)

func event(id, key string, seq int64) workload.Event {
	return workload.Event{ID: id, Topic: "t", Key: key, Seq: seq, Type: "Changed", Payload: []byte(id)}
}

func record(e workload.Event, partition int32) workload.Record {
	return workload.Record{
		Topic: e.Topic, Partition: partition, Key: []byte(e.Key), Value: e.Payload,
		Headers: map[string]string{"eventId": e.ID, "eventType": e.Type},
	}
}

func TestALedgerTellsEachKindOfDamage(t *testing.T) {
	first, second := event("1", "k", 1), event("2", "k", 2)
	changed := record(second, 0)
	changed.Value = []byte("other")
	for name, c := range map[string]struct {
		records []workload.Record
		want    workload.Report
		stale   []string
	}{
		"none":         {[]workload.Record{record(first, 0), record(second, 0)}, workload.Report{}, nil},
		"duplicate":    {[]workload.Record{record(first, 0), record(second, 0), record(first, 0), record(second, 0)}, workload.Report{Duplicates: 2}, nil},
		"lost":         {[]workload.Record{record(first, 0)}, workload.Report{Lost: 1}, []string{"t/k"}},
		"phantom":      {[]workload.Record{record(first, 0), record(event("3", "k", 3), 0), record(second, 0)}, workload.Report{Phantom: 1}, nil},
		"out of order": {[]workload.Record{record(second, 0), record(first, 0)}, workload.Report{OutOfOrder: 1}, []string{"t/k"}},
		"wrong bytes":  {[]workload.Record{record(first, 0), changed}, workload.Report{WrongBytes: 1}, nil},
		"moved":        {[]workload.Record{record(first, 0), record(second, 1)}, workload.Report{Moved: 1}, nil},
		"stale":        {[]workload.Record{record(first, 0), record(second, 0), record(first, 0)}, workload.Report{Duplicates: 1}, []string{"t/k"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := workload.NewLedger(nil)
			l.Intend(first, second)
			l.Committed(first, second)
			for _, r := range c.records {
				l.Observe(r)
			}
			c.want.Committed, c.want.Records = 2, len(c.records)
			require.Equal(t, c.want, l.Report())
			require.Equal(t, c.stale, l.Stale())
			harm := c.want.Lost + c.want.Phantom + c.want.OutOfOrder + c.want.WrongBytes + c.want.Moved
			require.Equal(t, harm > 0, l.Report().Err() != nil)
		})
	}
}

func TestEventsInDoubtAreNoDamageUntilTheirFateIsKnown(t *testing.T) {
	l := workload.NewLedger(nil)
	seen, missed := event("1", "k", 1), event("2", "k", 2)
	l.Intend(seen, missed)
	l.Observe(record(seen, 0))
	require.Equal(t, workload.Report{Records: 1}, l.Report())
	require.Equal(t, 2, l.Written())

	l.RolledBack(seen)
	l.Committed(missed)
	require.Equal(t, workload.Report{Committed: 1, Records: 1, Lost: 1, Phantom: 1}, l.Report())
	require.Equal(t, 1, l.Written())
}
