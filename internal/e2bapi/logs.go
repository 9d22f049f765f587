package e2bapi

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
)

const (
	// maxLogLines is the largest answer, in lines.
	maxLogLines = 1000
	// maxLogLine limits one line in bytes; the rest of it is dropped.
	maxLogLine = 16 << 10
)

// logEntry is one line that a program of a sandbox wrote.
type logEntry struct {
	Timestamp time.Time         `json:"timestamp"`
	Message   string            `json:"message"`
	Level     string            `json:"level"`
	Fields    map[string]string `json:"fields"`
}

// logLine is a line of the first version of the route.
type logLine struct {
	Timestamp time.Time `json:"timestamp"`
	Line      string    `json:"line"`
}

// logQuery selects lines.
type logQuery struct {
	from, to time.Time // to is zero without a bound
	limit    int
	newest   bool
	level    string
	search   string
}

// parseLogQuery reads the query of a version of the route: the name of its cursor in ms.
func parseLogQuery(q url.Values, cursor string) (logQuery, error) {
	out := logQuery{limit: maxLogLines, newest: q.Get("direction") == "backward", level: q.Get("level"), search: q.Get("search")}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > maxLogLines {
			return out, fail(http.StatusBadRequest, "limit is %q: it can be 0 to %d", clip(text), maxLogLines)
		}
		out.limit = n
	}
	if text := q.Get(cursor); text != "" {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil || ms < 0 {
			return out, fail(http.StatusBadRequest, "%s is %q: it is a time in ms", cursor, clip(text))
		}
		if at := time.UnixMilli(ms); out.newest {
			out.to = at
		} else {
			out.from = at
		}
	}
	return out, nil
}

// takes reports whether a line is selected.
func (q logQuery) takes(e logEntry) bool {
	// What programs write has two levels: output, and error output.
	wanted := q.level == "" || q.level == "debug" || q.level == e.Level || q.level != "error" && e.Level == "error"
	return wanted && !e.Timestamp.Before(q.from) && (q.to.IsZero() || e.Timestamp.Before(q.to)) && strings.Contains(e.Message, q.search)
}

// errFull ends a reading that has all its lines.
var errFull = errors.New("the answer is full")

// lines returns lines of the output of a sandbox's processes, oldest first.
func (s *Server) lines(r request, ref string, q logQuery) ([]logEntry, error) {
	out := []logEntry{}
	open := map[string]*logEntry{} // lines without an end, by process and stream
	add := func(e logEntry) error {
		if e.Message = clipLine(e.Message); !q.takes(e) {
			return nil
		}
		if out = append(out, e); len(out) > q.limit && q.newest {
			out = slices.Delete(out, 0, len(out)-q.limit)
		} else if len(out) >= q.limit && !q.newest {
			return errFull
		}
		return nil
	}
	err := s.core.Logs(r.Context(), r.caller, ref, api.LogOptions{SinceTime: q.from}, func(e api.LogEntry) error {
		level := "info"
		if e.Stream == api.Stderr {
			level = "error"
		}
		key := e.ExecID + "/" + level
		for text := string(e.Data); text != ""; {
			line, rest, ended := strings.Cut(text, "\n")
			now := open[key]
			if now == nil {
				now = &logEntry{Timestamp: e.Time, Level: level, Fields: map[string]string{"process": e.ExecID}}
				open[key] = now
			}
			if len(now.Message) <= maxLogLine {
				now.Message += line
			}
			if text = rest; ended {
				delete(open, key)
				if err := add(*now); err != nil {
					return err
				}
			}
		}
		return nil
	})
	for _, e := range open {
		if err == nil {
			err = add(*e)
		}
	}
	slices.SortStableFunc(out, func(a, b logEntry) int { return cmp.Compare(a.Timestamp.UnixNano(), b.Timestamp.UnixNano()) })
	if errors.Is(err, errFull) {
		err = nil
	}
	return out[:min(len(out), q.limit)], err
}

func clipLine(text string) string {
	return strings.ToValidUTF8(strings.TrimSuffix(text[:min(len(text), maxLogLine)], "\r"), "\uFFFD")
}

// logs serves the second version of the route.
func (s *Server) logs(w http.ResponseWriter, r request) error {
	_, sb, err := s.sandbox(r)
	if err != nil {
		return err
	}
	q, err := parseLogQuery(r.URL.Query(), "cursor")
	if err != nil {
		return err
	}
	entries, err := s.lines(r, sb.ID, q)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]any{"logs": entries})
	return nil
}

// logsV1 serves the first version of the route.
func (s *Server) logsV1(w http.ResponseWriter, r request) error {
	_, sb, err := s.sandbox(r)
	if err != nil {
		return err
	}
	q, err := parseLogQuery(r.URL.Query(), "start")
	if err != nil {
		return err
	}
	entries, err := s.lines(r, sb.ID, q)
	if err != nil {
		return err
	}
	lines := []logLine{}
	for _, e := range entries {
		lines = append(lines, logLine{e.Timestamp, e.Message})
	}
	writeJSON(w, http.StatusOK, map[string]any{"logs": lines, "logEntries": entries})
	return nil
}
