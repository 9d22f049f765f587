package metrics

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche"
)

func text(t *testing.T, s *Set) string {
	t.Helper()
	b, err := s.Text()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestText(t *testing.T) {
	s := New("1.2", func() Tally {
		return Tally{
			Sandboxes: map[cloche.State]int{cloche.StateRunning: 3, cloche.StatePaused: 1}, Starting: 2, Queued: 5,
			Active: map[string]int64{"model": 4},
		}
	})
	for range 2 {
		s.Exchanged(cloche.Exchange{Endpoint: "model", Sandbox: "sb-secret", Path: "/v1/x", Outcome: "ok", Upstream: 200, BytesIn: 10, BytesOut: 3, FirstByteMS: 30})
	}
	s.Exchanged(cloche.Exchange{Endpoint: "model", Outcome: "denied"})
	got := text(t, s)
	for _, want := range []string{
		`cloche_bridge_requests_total{endpoint="model",outcome="ok"} 2`,
		`cloche_bridge_requests_total{endpoint="model",outcome="denied"} 1`,
		`cloche_bridge_bytes_total{direction="request",endpoint="model"} 20`,
		`cloche_bridge_bytes_total{direction="response",endpoint="model"} 6`,
		`cloche_bridge_first_byte_seconds_bucket{endpoint="model",le="0.025"} 0`,
		`cloche_bridge_first_byte_seconds_bucket{endpoint="model",le="0.05"} 2`,
		`cloche_bridge_active{endpoint="model"} 4`,
		`cloche_sandboxes{state="running"} 3`, `cloche_sandboxes{state="paused"} 1`,
		`cloche_sandboxes_starting 2`, `cloche_sandboxes_queued 5`, `cloche_build_info{version="1.2"} 1`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if strings.Contains(got, "sb-secret") || strings.Contains(got, "/v1/x") {
		t.Errorf("names a sandbox or a path:\n%s", got)
	}
}

// TestManyNames: callers choose names, and the memory is the operator's.
func TestManyNames(t *testing.T) {
	s := New("", func() Tally { return Tally{Active: map[string]int64{"late": 1, "later": 2}} })
	for i := range maxNames + 50 {
		s.Exchanged(cloche.Exchange{Endpoint: fmt.Sprint("e", i), Outcome: "ok"})
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
