package rig

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMedianOfOddAndEvenRounds(t *testing.T) {
	require.InDelta(t, 2, Figures{3, 1, 2}.Median(), 0)
	require.InDelta(t, 2.5, Figures{4, 1, 3, 2}.Median(), 0)
	require.InDelta(t, 7, Figures{7}.Median(), 0)
}

func TestARatioIsThatOfTheSameRound(t *testing.T) {
	require.Equal(t, Figures{0.5, 0.5}, Figures{10, 1}.Ratio(Figures{20, 2}))
}

func TestAReportHasEveryRoundAndNoEmptyFigures(t *testing.T) {
	tab := &Table{Title: "Drain", Columns: []Column{{Name: "events/s"}, {Name: "ratio", Digits: 2, Spread: true}, {Name: "missing"}}}
	reference, row := tab.Row("reference"), tab.Row("pombo")
	for _, round := range []float64{100, 200, 400} {
		reference.Add("events/s", round)
		row.Add("events/s", round/2)
	}
	row.Compare("ratio", "events/s", reference)
	row.Compare("ratio of missing", "missing", reference)
	r := Report{Origin: "here", Rounds: 3, Tables: []*Table{tab}}

	var printed strings.Builder
	r.Print(&printed)
	require.Contains(t, printed.String(), "0.50 (0.50–0.50)")

	path := filepath.Join(t.TempDir(), "results", "bench.json")
	require.NoError(t, r.Write(path))
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	var read struct {
		Tables []struct {
			Rows []struct {
				Name    string
				Figures map[string]struct {
					Median, Min, Max float64
					Rounds           []float64
				}
			}
		}
	}
	require.NoError(t, json.Unmarshal(content, &read))
	pombo := read.Tables[0].Rows[1]
	require.Equal(t, []float64{50, 100, 200}, pombo.Figures["events/s"].Rounds)
	require.InDelta(t, 100, pombo.Figures["events/s"].Median, 0)
	require.Len(t, pombo.Figures, 2)
}
