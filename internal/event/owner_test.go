package event_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/event"
)

// One sandbox that has much to tell, or one tenant that is refused over and over,
// does not push the events of others out, and keeps its own newest.
func TestOneOwnerDoesNotPushOutOthers(t *testing.T) {
	o := event.Options{Path: filepath.Join(t.TempDir(), "events"), MaxEvents: 200, MaxEach: 16}
	l := open(t, o)
	publish(l, 1, 100)
	for range 2000 {
		l.Publish(api.Event{Kind: api.EventProcessRestarted, Tenant: "local", Sandbox: "loop"})
		l.Publish(api.Event{Kind: api.EventRefused, Tenant: "noisy"})
	}
	check := func(l *event.Log) {
		t.Helper()
		var others, loop, refused []int64
		for _, e := range read(t, l, api.EventOptions{}) {
			switch {
			case e.Sandbox == "loop":
				loop = append(loop, e.Cursor)
			case e.Kind == api.EventRefused:
				refused = append(refused, e.Cursor)
			default:
				others = append(others, e.Cursor)
			}
		}
		if len(others) != 100 {
			t.Errorf("%d of 100 events of others are left", len(others))
		}
		for _, kept := range [][]int64{loop, refused} {
			if len(kept) < 16 || len(kept) > 18 || kept[len(kept)-1] < 4099 {
				t.Errorf("of one owner are kept: %v, want the last 16", kept)
			}
		}
		want(t, l, api.EventOptions{After: 4099}, "4100")
	}
	check(l)
	must(t, l.Close())
	l = open(t, o)
	check(l)
	// Whose many events are gone is no longer counted for them.
	for range 300 {
		publish(l, 1, 1)
	}
	if got := read(t, l, api.EventOptions{Sandbox: "sb-1"}); len(got) > 18 {
		t.Errorf("%d events of one sandbox", len(got))
	}
}

// What the daemon tells of itself has the whole list, not the share of one sandbox.
func TestEventsOfNobodyHaveTheWholeList(t *testing.T) {
	o := event.Options{Path: filepath.Join(t.TempDir(), "events"), MaxEvents: 200, MaxEach: 16}
	l := open(t, o)
	for range 150 {
		l.Publish(api.Event{Kind: api.EventAuditFailing})
	}
	if n := len(read(t, l, api.EventOptions{})); n != 150 {
		t.Errorf("%d events are kept", n)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(read(t, open(t, o), api.EventOptions{})); n != 150 {
		t.Errorf("%d events are kept after a start", n)
	}
}

// What is secret is taken out before an event is cut, stored and told.
func TestEventsAreCleaned(t *testing.T) {
	const value = "canary-0123456789"
	o := event.Options{Path: filepath.Join(t.TempDir(), "events"), Clean: func(e api.Event) api.Event {
		e.Reason = strings.ReplaceAll(e.Reason, value, "[redacted]")
		return e
	}}
	l := open(t, o)
	l.Publish(api.Event{Kind: api.EventRefused, Reason: strings.Repeat("x", 1015) + value})
	if got := read(t, l, api.EventOptions{}); len(got) != 1 || strings.Contains(got[0].Reason, "canary") {
		t.Errorf("told %+v", got)
	}
	if data, err := os.ReadFile(o.Path); err != nil || strings.Contains(string(data), "canary") {
		t.Errorf("stored %s, %v", data, err)
	}
}
