package main

import (
	"fmt"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"

	"github.com/pombo-cdc/pombo/integration/workload"
)

func TestASessionMaySendAgainWhatIsWrittenAndNotConfirmed(t *testing.T) {
	ledger := workload.NewLedger(nil)
	s := &sessions{ledger: ledger, samples: []sample{{lsn: 100, committed: 3}, {lsn: 200, committed: 5}}}
	for i := range 10 {
		ledger.Intend(workload.Event{ID: fmt.Sprint(i)})
	}
	for _, confirmed := range []int{99, 100, 199, 200, 1000} {
		s.began("pombo a", pglogrepl.LSN(confirmed))
	}
	unconfirmed := make([]int, 0)
	for _, each := range s.begun() {
		unconfirmed = append(unconfirmed, each.Unconfirmed)
	}
	require.Equal(t, []int{10, 7, 7, 5, 5}, unconfirmed)
}
