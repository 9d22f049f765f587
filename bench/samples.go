//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// series are the samples of one subject, in the order of the rounds.
type series struct {
	Subject string `json:"subject"`
	How     string `json:"how"`
	// FirstMS is the time to the first output, TotalMS the time until all is
	// done and taken down.
	FirstMS []float64 `json:"first_ms,omitempty"`
	TotalMS []float64 `json:"total_ms,omitempty"`
}

func (s *series) add(m measure) {
	ms := func(d time.Duration) float64 { return math.Round(float64(d.Microseconds())) / 1000 }
	if m.First > 0 {
		s.FirstMS = append(s.FirstMS, ms(m.First))
	}
	if m.Total > 0 {
		s.TotalMS = append(s.TotalMS, ms(m.Total))
	}
}

// metric is which of a subject's times is meant.
type metric string

const (
	first metric = "first output"
	total metric = "total"
)

func (s series) of(m metric) []float64 {
	if m == first {
		return s.FirstMS
	}
	return s.TotalMS
}

// quantile is the value below which the share q of the samples lies: the
// nearest rank, so that it is a sample that was measured.
func quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	rank := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

func median(samples []float64) float64 { return quantile(samples, 0.5) }

// report is everything that a run found: what is written as JSON.
type report struct {
	Machine machine       `json:"machine"`
	Rounds  int           `json:"rounds"`
	Series  []series      `json:"series"`
	Goals   []verdict     `json:"goals"`
	Memory  []memoryRow   `json:"memory,omitempty"`
	Counted []counted     `json:"counted,omitempty"`
	Field   []fieldRow    `json:"field,omitempty"`
	Build   *buildFacts   `json:"build,omitempty"`
	Steps   []stepsOfPart `json:"steps,omitempty"`
	NotRun  []notRun      `json:"not_run,omitempty"`
}

type notRun struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// counted is what was measured once, and is no time.
type counted struct {
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Goal is the most that it may be; 0 means no goal.
	Goal float64 `json:"goal,omitempty"`
}

// once notes what was measured once, or that it could not be.
func (b *bench) once(name string, run func() ([]counted, error)) {
	got, err := run()
	if err != nil {
		b.missing(name, err)
	}
	b.report.Counted = append(b.report.Counted, got...)
}

// stepsOfPart are the medians of the steps of a create.
type stepsOfPart struct {
	Part  string     `json:"part"`
	Steps []stepTime `json:"steps"`
}

type stepTime struct {
	Step string  `json:"step"`
	MS   float64 `json:"ms"`
}

func (r *report) find(subject string) (series, bool) {
	i := slices.IndexFunc(r.Series, func(s series) bool { return s.Subject == subject })
	if i < 0 {
		return series{}, false
	}
	return r.Series[i], true
}

// save writes the raw samples and the table.
func (r *report) save(dir, name, table string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("encode results: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "results"), 0o755); err != nil {
		return fmt.Errorf("make results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "results", name+".json"), append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "RESULTS.md"), []byte(table), 0o644); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}
