package event_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/event"
)

// What is older than MaxAge is let go of with the next event, in memory and when the file is
// written anew; it does not count for its owner any more.
func TestAgedEventsAreLetGo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	synctest.Test(t, func(t *testing.T) {
		l := open(t, event.Options{Path: path, MaxAge: time.Hour, MaxEvents: 100, MaxEach: 16})
		publish(l, 1, 50)
		for range 16 {
			l.Publish(api.Event{Kind: api.EventRefused, Tenant: "noisy"})
		}
		time.Sleep(30 * time.Minute)
		publish(l, 100, 1)
		if n := event.Len(l); n != 67 {
			t.Errorf("%d events are held, want 67: none is too old", n)
		}
		time.Sleep(30*time.Minute + time.Second)
		publish(l, 101, 1)
		if n := event.Len(l); n != 2 {
			t.Errorf("%d events are held, want 2: the others are too old", n)
		}
		for range 16 {
			l.Publish(api.Event{Kind: api.EventRefused, Tenant: "noisy"})
		}
		if n := event.Len(l); n != 18 {
			t.Errorf("%d events are held, want 18: those of before are not counted for their owner", n)
		}
		publish(l, 200, 150) // the file is written anew
		data, err := os.ReadFile(path)
		must(t, err)
		if bytes.Contains(data, []byte(`"cursor":1,`)) || bytes.Contains(data, []byte(`"reason":"50"`)) {
			t.Error("the file has what is too old")
		}
		time.Sleep(2 * time.Hour)
		must(t, l.Close())
		l = open(t, event.Options{Path: path, MaxAge: time.Hour, MaxEvents: 100, MaxEach: 16})
		if n := event.Len(l); n != 0 {
			t.Errorf("%d events are held after an open, want 0", n)
		}
	})
}

// A file that cannot be written anew is said to be behind, leaves nothing beside it, and is
// whole again as soon as it can be.
func TestRewriteFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "events")
	synctest.Test(t, func(t *testing.T) {
		l := open(t, event.Options{Path: path, MaxEvents: 10})
		publish(l, 1, 10)
		must(t, l.Err())
		must(t, os.Remove(path))
		must(t, os.MkdirAll(filepath.Join(path, "in-the-way"), 0o700))
		publish(l, 11, 20)
		if l.Err() == nil {
			t.Error("a file that could not be written anew is as it should be")
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("beside the file: %v, %v", left, err)
		}
		must(t, os.RemoveAll(path))
		publish(l, 31, 1)
		if l.Err() == nil {
			t.Error("it was tried again at once")
		}
		time.Sleep(2 * time.Second)
		publish(l, 32, 1)
		must(t, l.Err())
		must(t, l.Close())
		l = open(t, event.Options{Path: path, MaxEvents: 10})
		if n := event.Len(l); n != 10 {
			t.Errorf("%d events are in the file, want 10", n)
		}
	})
}

// What would be no line that is read again is not written as one.
func TestLines(t *testing.T) {
	for n, fits := range map[int]bool{1: true, event.MaxLine - 3: true, event.MaxLine - 2: false, 2 * event.MaxLine: false} {
		line, err := event.Line(strings.Repeat("x", n))
		if (err == nil) != fits || fits && (len(line) != n+3 || line[n+2] != '\n') {
			t.Errorf("%d bytes: a line of %d, %v", n, len(line), err)
		}
	}
	if line, err := event.Line("a\nb"); err != nil || bytes.Count(line, []byte("\n")) != 1 {
		t.Errorf("%q, %v", line, err)
	}
	if line, err := event.Line(make(chan int)); err == nil {
		t.Errorf("what has no text is %q", line)
	}
}
