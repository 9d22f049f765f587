package retention

import (
	"slices"
	"testing"
	"time"
)

func TestSelect(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ended := func(minutes ...int) (all []Ended[int]) {
		for _, m := range minutes {
			all = append(all, Ended[int]{t0.Add(time.Duration(m) * time.Minute), m})
		}
		return all
	}
	for name, c := range map[string]struct {
		r    Rule
		all  []Ended[int]
		now  time.Duration
		gone []int
		next time.Duration // 0 is never
	}{
		"nothing":                  {Rule{time.Hour, 10}, nil, 0, nil, 0},
		"all are young":            {Rule{time.Hour, 10}, ended(3, 1, 2), 30 * time.Minute, nil, 61 * time.Minute},
		"the oldest are too old":   {Rule{time.Hour, 10}, ended(3, 1, 2), 62 * time.Minute, []int{1, 2}, 63 * time.Minute},
		"too many":                 {Rule{time.Hour, 1}, ended(3, 1, 2), 30 * time.Minute, []int{1, 2}, 63 * time.Minute},
		"too many, and too old":    {Rule{time.Hour, 2}, ended(3, 1, 2), 24 * time.Hour, []int{1, 2, 3}, 0},
		"kept for ever":            {Rule{-1, -1}, ended(3, 1, 2), 1e6 * time.Hour, nil, 0},
		"as many as one likes":     {Rule{time.Hour, -1}, ended(1, 2), 30 * time.Minute, nil, 61 * time.Minute},
		"however long, but only 1": {Rule{-1, 1}, ended(1, 2), 30 * time.Hour, []int{1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			gone, next := Select(c.r, c.all, t0.Add(c.now))
			var got []int
			for _, g := range gone {
				got = append(got, g.Thing)
			}
			var nextIn time.Duration
			if !next.IsZero() {
				nextIn = next.Sub(t0)
			}
			if !slices.Equal(got, c.gone) || nextIn != c.next {
				t.Errorf("gone %v and next at %s, want %v and %s", got, nextIn, c.gone, c.next)
			}
		})
	}
	if f := (Rule{}).Filled(); f.For != 24*time.Hour || f.Count != 1000 {
		t.Errorf("defaults %+v", f)
	}
}

func TestSuspended(t *testing.T) {
	begun := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	after := func(d time.Duration) time.Time { return begun.Add(d) }
	both := Suspended{CompressAfter: time.Minute, KeepFor: time.Hour}
	for name, c := range map[string]struct {
		rule       Suspended
		compressed bool
		at         time.Duration
		want       Action
		next       time.Time
	}{
		"no rule":           {Suspended{}, false, time.Hour, None, time.Time{}},
		"too early":         {both, false, time.Second, None, after(time.Minute)},
		"compress":          {both, false, time.Minute, Compress, after(time.Hour)},
		"compressed":        {both, true, 2 * time.Minute, None, after(time.Hour)},
		"kept long enough":  {both, false, time.Hour, Discard, time.Time{}},
		"only kept":         {Suspended{KeepFor: time.Hour}, false, time.Minute, None, after(time.Hour)},
		"only compressed":   {Suspended{CompressAfter: time.Hour}, false, time.Minute, None, after(time.Hour)},
		"discarded earlier": {Suspended{CompressAfter: time.Hour, KeepFor: time.Minute}, false, time.Second, None, after(time.Minute)},
	} {
		act, next := c.rule.Due(begun, c.compressed, after(c.at))
		if act != c.want || !next.Equal(c.next) {
			t.Errorf("%s: %v, %v", name, act, next)
		}
	}
}
