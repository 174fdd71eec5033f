package rig

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// Figures are those of one quantity, one a round.
type Figures []float64

// Median is the middle one, or the mean of the two in the middle.
func (f Figures) Median() float64 {
	sorted := slices.Sorted(slices.Values(f))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Ratio is that of each round, so that a machine that drifts does not count.
func (f Figures) Ratio(to Figures) Figures {
	ratios := make(Figures, min(len(f), len(to)))
	for i := range ratios {
		ratios[i] = f[i] / to[i]
	}
	return ratios
}

// MarshalJSON adds what a reader looks for first.
func (f Figures) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Median float64   `json:"median"`
		Min    float64   `json:"min"`
		Max    float64   `json:"max"`
		Rounds []float64 `json:"rounds"`
	}{f.Median(), slices.Min(f), slices.Max(f), f})
}

// Column is a quantity, and how it is printed.
type Column struct {
	Name   string
	Digits int  // behind the point
	Spread bool // with the least and the largest
}

func (c Column) format(f Figures) string {
	if len(f) == 0 {
		return ""
	}
	if !c.Spread {
		return fmt.Sprintf("%.*f", c.Digits, f.Median())
	}
	return fmt.Sprintf("%.*f (%.*f–%.*f)", c.Digits, f.Median(), c.Digits, slices.Min(f), c.Digits, slices.Max(f))
}

// Row is what was measured of one case, by the name of the column.
type Row struct {
	Name    string             `json:"name"`
	Figures map[string]Figures `json:"figures"`
}

// Add adds the figure of one more round.
func (r *Row) Add(column string, figure float64) {
	r.Figures[column] = append(r.Figures[column], figure)
}

// Compare fills a column with the ratios of another one to that of a reference, if both have figures.
func (r *Row) Compare(ratio, column string, reference *Row) {
	if ratios := r.Figures[column].Ratio(reference.Figures[column]); len(ratios) > 0 {
		r.Figures[ratio] = ratios
	}
}

// Table is a table of the report.
type Table struct {
	Title   string   `json:"title"`
	Notes   []string `json:"notes,omitempty"`
	Columns []Column `json:"-"`
	Rows    []*Row   `json:"rows"`
}

// Row adds an empty row.
func (t *Table) Row(name string) *Row {
	r := &Row{Name: name, Figures: make(map[string]Figures)}
	t.Rows = append(t.Rows, r)
	return r
}

func (t *Table) print(w io.Writer) {
	out := table.NewWriter()
	out.SetOutputMirror(w)
	out.SetStyle(table.StyleLight)
	out.Style().Format.Header = text.FormatDefault // "µs" has no capitals
	out.SetTitle("%s", t.Title)
	header := table.Row{""}
	var right []table.ColumnConfig
	for i, c := range t.Columns {
		header = append(header, c.Name)
		right = append(right, table.ColumnConfig{Number: i + 2, Align: text.AlignRight})
	}
	out.SetColumnConfigs(right)
	out.AppendHeader(header)
	for _, r := range t.Rows {
		cells := table.Row{r.Name}
		for _, c := range t.Columns {
			cells = append(cells, c.format(r.Figures[c.Name]))
		}
		out.AppendRow(cells)
	}
	out.Render()
	for _, note := range t.Notes {
		fmt.Fprintln(w, note)
	}
	fmt.Fprintln(w)
}

// Report is everything that a run has measured.
type Report struct {
	Origin string   `json:"origin"`
	Rounds int      `json:"rounds"`
	Tables []*Table `json:"tables"`
}

// Print writes the tables.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "%s\nMedians of %d rounds, which take turns, with the least and the largest in brackets. A ratio is the median of the ratios of the rounds.\n\n", r.Origin, r.Rounds)
	for _, t := range r.Tables {
		t.print(w)
	}
}

// Write writes all figures as JSON.
func (r *Report) Write(path string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := os.WriteFile(path, append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
