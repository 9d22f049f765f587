package command

import (
	"testing"
	"time"
)

func TestParseSince(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	number := func(n int64) since { return since{Number: &n} }
	for in, want := range map[string]since{
		"0": number(0), "4096": number(4096), "-100": number(-100),
		"10m": {Time: now.Add(-10 * time.Minute)}, "1h30m": {Time: now.Add(-90 * time.Minute)}, "0s": {Time: now},
		"2026-11-21T09:30:00Z": {Time: now.Add(-150 * time.Minute)}, "2026-11-21T09:30:00+01:00": {Time: now.Add(-210 * time.Minute)},
		"2026-11-21T09:30": {Time: now.Add(-150 * time.Minute)}, "2026-11-21": {Time: now.Add(-12 * time.Hour)}, "2026-11-21 09:30:00": {Time: now.Add(-150 * time.Minute)},
	} {
		got, err := ParseSince(in, now)
		if err != nil || !got.Time.Equal(want.Time) || (got.Number == nil) != (want.Number == nil) || got.Number != nil && *got.Number != *want.Number {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "-10m", "yesterday", "1.5", "99999999999999999999", "10 m"} {
		if got, err := ParseSince(in, now); err == nil {
			t.Errorf("%q: %+v", in, got)
		}
	}
}
