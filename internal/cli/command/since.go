package command

import (
	"strconv"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// since is where a log or a list of events begins: at a number, or at a time.
// A field that is not set is nil or zero.
type since struct {
	Number *int64
	Time   time.Time
}

// Before returns the time that is older before now. older is the value of --older.
func Before(older time.Duration, now time.Time) (time.Time, error) {
	if older < 0 {
		return time.Time{}, api.Invalid("older", "--older %s is a negative duration", older).WithHint("24h is a day ago")
	}
	return now.Add(-older), nil
}

// ParseSince reads a number, a duration before now, or a time. A number is an
// offset or a cursor, so seconds need their unit.
func ParseSince(s string, now time.Time) (since, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return since{Number: &n}, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		if d < 0 {
			return since{}, api.Invalid("since", "--since %q is a negative duration", terminal.Clip(s)).WithHint("10m is ten minutes ago")
		}
		return since{Time: now.Add(-d)}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04", time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return since{Time: t}, nil
		}
	}
	return since{}, api.Invalid("since", "--since %q is neither a number nor a time nor a duration", terminal.Clip(s)).
		WithHint("write a number, a time such as 2026-11-21T09:30:00Z, or a duration such as 10m")
}
