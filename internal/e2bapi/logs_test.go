package e2bapi

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
)

// Logs has four lines of two processes, in pieces, and one without an end.
func (c *sandboxes) Logs(_ context.Context, _ core.Caller, _ string, o api.LogOptions, fn func(api.LogEntry) error) error {
	for i, e := range []api.LogEntry{
		{ExecID: "a", Stream: api.Stdout, Data: api.Bytes("one\nt")},
		{ExecID: "b", Stream: api.Stderr, Data: api.Bytes("failed\n")},
		{ExecID: "a", Stream: api.Stdout, Data: api.Bytes("wo\nthree\r\n\xff")},
	} {
		if e.Time = time.UnixMilli(int64(1000 * (i + 1))); e.Time.Before(o.SinceTime) {
			continue
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

func TestLogs(t *testing.T) {
	f := newFixture(t, hello)
	sb := f.create()
	for query, want := range map[string][]string{
		"":                                {"one", "two", "failed", "three", "\uFFFD"},
		"?limit=2":                        {"one", "failed"},
		"?limit=2&direction=backward":     {"three", "\uFFFD"},
		"?cursor=2000":                    {"failed", "wo", "three", "\uFFFD"},
		"?direction=backward&cursor=2000": {"one", "two"},
		"?level=error":                    {"failed"},
		"?search=ee":                      {"three"},
		"?limit=0":                        {},
	} {
		var got struct{ Logs []logEntry }
		f.want(http.StatusOK, http.MethodGet, "/v2/sandboxes/"+sb.SandboxID+"/logs"+query, "", &got)
		var lines []string
		for _, e := range got.Logs {
			lines = append(lines, e.Message)
		}
		if strconv.Quote(join(lines)) != strconv.Quote(join(want)) {
			t.Errorf("%s: %q, want %q", query, lines, want)
		}
	}
	var first struct {
		Logs       []logLine
		LogEntries []logEntry
	}
	f.want(http.StatusOK, http.MethodGet, "/sandboxes/"+sb.SandboxID+"/logs?start=0&limit=10", "", &first)
	if len(first.Logs) != 5 || first.Logs[2].Line != "failed" || first.LogEntries[2].Level != "error" || first.LogEntries[2].Fields["process"] != "b" {
		t.Errorf("%+v", first)
	}
	f.want(http.StatusBadRequest, http.MethodGet, "/v2/sandboxes/"+sb.SandboxID+"/logs?limit=1001", "", nil)
	f.want(http.StatusBadRequest, http.MethodGet, "/v2/sandboxes/"+sb.SandboxID+"/logs?cursor=x", "", nil)
	f.want(http.StatusNotFound, http.MethodGet, "/v2/sandboxes/inone/logs", "", nil)
}

func join(lines []string) (out string) {
	for _, l := range lines {
		out += l + "|"
	}
	return out
}
