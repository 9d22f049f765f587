package cli

import (
	"testing"
	"time"
)

func TestParseSince(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	number := func(n int64) since { return since{number: &n} }
	for in, want := range map[string]since{
		"0": number(0), "4096": number(4096), "-100": number(-100),
		"10m": {time: now.Add(-10 * time.Minute)}, "1h30m": {time: now.Add(-90 * time.Minute)}, "0s": {time: now},
		"2026-11-21T09:30:00Z": {time: now.Add(-150 * time.Minute)}, "2026-11-21T09:30:00+01:00": {time: now.Add(-210 * time.Minute)},
		"2026-11-21T09:30": {time: now.Add(-150 * time.Minute)}, "2026-11-21": {time: now.Add(-12 * time.Hour)}, "2026-11-21 09:30:00": {time: now.Add(-150 * time.Minute)},
	} {
		got, err := parseSince(in, now)
		if err != nil || !got.time.Equal(want.time) || (got.number == nil) != (want.number == nil) || got.number != nil && *got.number != *want.number {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "-10m", "yesterday", "1.5", "99999999999999999999", "10 m"} {
		if got, err := parseSince(in, now); err == nil {
			t.Errorf("%q: %+v", in, got)
		}
	}
}
