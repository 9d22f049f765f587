package metrics

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cloche-dev/cloche/api"
)

// text is what a scrape gets.
func text(t *testing.T, s *Set) string {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("%d %s", w.Code, w.Header())
	}
	return w.Body.String()
}

// full is a Set that has counted something of everything.
func full() *Set {
	used := time.Second
	s := New(Options{Version: "1.2", Tally: func() Tally {
		used += time.Second
		return Tally{
			Sandboxes: map[Placed]int{{api.StateRunning, "gvisor"}: 3, {api.StatePaused, "native"}: 1}, Starting: 2, Queued: 5,
			Active: map[string]int64{"model": 4}, ImageBytes: 7, SuspendedBytes: 11, Snapshots: 2, SnapshotBytes: 12, HomeBytes: 100, HomeFreeBytes: 50,
			Uses: map[string]Use{"sb-secret": {Engine: "gvisor", CPU: used, MemoryBytes: 1 << 20, InBytes: 5, OutBytes: 6}, "sb-other": {Engine: "gvisor", MemoryBytes: 1 << 20}},
		}
	}, Redact: func(s string) string { return strings.ReplaceAll(s, "hunter2", "***") }})
	for range 2 {
		s.Exchanged(api.Exchange{Endpoint: "model", Sandbox: "sb-secret", Path: "/v1/x", Outcome: "ok", Upstream: 200, BytesIn: 10, BytesOut: 3, FirstByteMS: 30})
	}
	s.Exchanged(api.Exchange{Endpoint: "hunter2", Outcome: "denied"})
	s.Created("gvisor", 30*time.Millisecond, nil)
	s.Created("", time.Second, errors.New("x"))
	zero, one := 0, 1
	for _, r := range []api.Result{{ExitCode: &zero, DurationMS: 40}, {ExitCode: &one}, {Signal: "KILL"}, {Signal: "KILL", OOM: true}, {TimedOut: true}, {SandboxLost: true}} {
		s.Ran("gvisor", r, nil)
	}
	s.Failed("create", api.CodeDenied)
	s.EgressRefused("gvisor", 4)
	s.AuditFailed()
	s.Answered("GET /v1/sandboxes/{ref}", 200, time.Millisecond)
	s.Answered("", 404, time.Millisecond)
	return s
}

func TestText(t *testing.T) {
	s := full()
	text(t, s)
	got := text(t, s)
	for _, want := range []string{
		`cloche_bridge_requests_total{endpoint="model",outcome="ok"} 2`,
		`cloche_bridge_requests_total{endpoint="***",outcome="denied"} 1`,
		`cloche_bridge_bytes_total{direction="request",endpoint="model"} 20`,
		`cloche_bridge_bytes_total{direction="response",endpoint="model"} 6`,
		`cloche_bridge_first_byte_seconds_bucket{endpoint="model",le="0.025"} 0`,
		`cloche_bridge_first_byte_seconds_bucket{endpoint="model",le="0.05"} 2`,
		`cloche_bridge_active{endpoint="model"} 4`,
		`cloche_sandboxes{engine="gvisor",state="running"} 3`, `cloche_sandboxes{engine="native",state="paused"} 1`,
		`cloche_sandboxes_starting 2`, `cloche_sandboxes_queued 5`, `cloche_build_info{version="1.2"} 1`,
		`cloche_create_seconds_bucket{engine="gvisor",outcome="ok",le="0.05"} 1`, `cloche_create_seconds_count{engine="none",outcome="failed"} 1`,
		`cloche_exec_seconds_count{engine="gvisor",outcome="ok"} 1`, `cloche_exec_seconds_count{engine="gvisor",outcome="oom"} 1`,
		`cloche_failures_total{code="denied",verb="create"} 1`, `cloche_egress_refusals_total{engine="gvisor"} 5`, `cloche_audit_failures_total 1`,
		`cloche_http_request_seconds_count{route="GET /v1/sandboxes/{ref}",status="200"} 1`, `cloche_http_request_seconds_count{route="none",status="404"} 1`,
		`cloche_sandboxes_memory_bytes{engine="gvisor"} 2.097152e+06`, `cloche_sandboxes_cpu_seconds_total{engine="gvisor"} 3`,
		`cloche_sandboxes_network_bytes_total{direction="out",engine="gvisor"} 6`, `cloche_images_bytes 7`, `cloche_home_free_bytes 50`,
		`cloche_suspended_bytes 11`, `cloche_snapshots 2`, `cloche_snapshots_bytes 12`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	for _, name := range []string{"go_goroutines ", "process_open_fds "} {
		if !strings.Contains(got, "\n"+name) {
			t.Errorf("no %s", name)
		}
	}
	if strings.Contains(got, "sb-secret") || strings.Contains(got, "/v1/x") || strings.Contains(got, "hunter2") {
		t.Errorf("names a sandbox, a path or a secret:\n%s", got)
	}
}

// TestCountersDoNotFall: a sandbox that ends, or does not answer for once, neither makes a
// counter fall nor is counted twice.
func TestCountersDoNotFall(t *testing.T) {
	m := newMoment(&Set{})
	for i, step := range []struct {
		now  map[string]Use
		want time.Duration
	}{
		{map[string]Use{"a": {Engine: "e", CPU: 10}, "b": {Engine: "e", CPU: 5}}, 15},
		{map[string]Use{"a": {Engine: "e"}, "b": {Engine: "e", CPU: 6}}, 16},
		{map[string]Use{"a": {Engine: "e", CPU: 12}, "b": {Engine: "e", CPU: 6}}, 18},
		{map[string]Use{"b": {Engine: "e", CPU: 7}}, 19},
		{nil, 19},
	} {
		if got := m.counters(step.now)["e"].CPU; got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
	}
}

// TestLint: names, units and help are as Prometheus wants them, by its own rules and, where
// it is installed, by promtool.
func TestLint(t *testing.T) {
	s := full()
	problems, err := testutil.GatherAndLint(s.gatherer())
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	t.Run("promtool", func(t *testing.T) {
		promtool, err := exec.LookPath("promtool")
		if err != nil {
			t.Skip("needs promtool: package prometheus")
		}
		check := exec.CommandContext(t.Context(), promtool, "check", "metrics")
		check.Stdin = strings.NewReader(text(t, s))
		if out, err := check.CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// TestPageHasTheMetrics compares the page for operators with what is registered, both ways.
func TestPageHasTheMetrics(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operating.md"))
	if err != nil {
		t.Fatal(err)
	}
	described := make(chan *prometheus.Desc, 100)
	for _, c := range full().collectors() {
		c.Describe(described)
	}
	close(described)
	var have []string
	form := regexp.MustCompile(`^Desc\{fqName: "(\w+)", help: ".+", constLabels: \{\}, variableLabels: \{(.*)\}\}$`)
	for d := range described {
		m := form.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("what is %s", d)
		}
		labels := strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' })
		slices.Sort(labels)
		have = append(have, m[1]+" "+strings.Join(labels, " "))
	}
	var told []string
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.HasPrefix(cells[1], " `cloche_") {
			continue
		}
		words := func(s string) []string { return regexp.MustCompile(`\w+`).FindAllString(s, -1) }
		labels := words(cells[2])
		slices.Sort(labels)
		for _, name := range words(cells[1]) {
			told = append(told, name+" "+strings.Join(labels, " "))
		}
	}
	slices.Sort(have)
	slices.Sort(told)
	if !slices.Equal(have, told) {
		t.Errorf("docs/operating.md has\n%s\nregistered are\n%s", strings.Join(told, "\n"), strings.Join(have, "\n"))
	}
}

// TestManyNames: callers choose names, and the memory is the operator's.
func TestManyNames(t *testing.T) {
	s := New(Options{Tally: func() Tally { return Tally{Active: map[string]int64{"late": 1, "later": 2}} }})
	for i := range maxNames + 50 {
		s.Exchanged(api.Exchange{Endpoint: fmt.Sprint("e", i), Outcome: "ok"})
	}
	got := text(t, s)
	if n := strings.Count(got, "cloche_bridge_requests_total{"); n != maxNames+1 {
		t.Errorf("%d names", n)
	}
	for _, want := range []string{`requests_total{endpoint="(others)",outcome="ok"} 50`, `active{endpoint="(others)"} 3`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
}
