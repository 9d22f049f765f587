package event_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/event"
)

func open(t testing.TB, o event.Options) *event.Log {
	t.Helper()
	l, err := event.Open(o)
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// publish publishes n events, each of another sandbox, whose Reason is their
// number from first on.
func publish(l *event.Log, first, n int) {
	for i := range n {
		l.Publish(api.Event{Kind: api.EventCreated, Tenant: "local", Sandbox: fmt.Sprint("sb-", first+i), Reason: fmt.Sprint(first + i)})
	}
}

// read returns what there is now.
func read(t testing.TB, l *event.Log, o api.EventOptions) []api.Event {
	t.Helper()
	var out []api.Event
	must(t, l.Read(t.Context(), o, nil, func(e api.Event) error {
		out = append(out, e)
		return nil
	}))
	return out
}

// show is "cursor" or "cursor(missed)" of each event.
func show(events []api.Event) string {
	var s []string
	for _, e := range events {
		if e.Missed > 0 {
			s = append(s, fmt.Sprintf("%d(%d)", e.Cursor, e.Missed))
		} else {
			s = append(s, fmt.Sprint(e.Cursor))
		}
	}
	return strings.Join(s, " ")
}

func want(t testing.TB, l *event.Log, o api.EventOptions, want string) {
	t.Helper()
	if got := show(read(t, l, o)); got != want {
		t.Errorf("%+v: %s, want %s", o, got, want)
	}
}

func TestReadChooses(t *testing.T) {
	l := open(t, event.Options{})
	for _, e := range []api.Event{
		{Kind: api.EventCreated, Sandbox: "sb-1", Name: "one", Tenant: "a"},
		{Kind: api.EventCreated, Sandbox: "sb-2", Name: "two", Tenant: "b"},
		{Kind: api.EventProcessStarted, Sandbox: "sb-1", Name: "one", Tenant: "a"},
		{Kind: api.EventRefused, Tenant: "a"},
		{Kind: api.EventRemoved, Sandbox: "sb-2", Name: "two", Tenant: "b", Endpoint: "model"},
	} {
		l.Publish(e)
	}
	for _, c := range []struct {
		o    api.EventOptions
		want string
	}{
		{api.EventOptions{}, "1 2 3 4 5"},
		{api.EventOptions{After: 3}, "4 5"},
		{api.EventOptions{After: 5}, ""},
		{api.EventOptions{After: -1}, ""},
		{api.EventOptions{Sandbox: "sb-1"}, "1 3"},
		{api.EventOptions{Sandbox: "two"}, "2 5"},
		{api.EventOptions{Sandbox: "three"}, ""},
		{api.EventOptions{Endpoint: "model"}, "5"},
		{api.EventOptions{Endpoint: "mode"}, ""},
		{api.EventOptions{Kinds: []api.EventKind{api.EventRefused, api.EventRemoved}}, "4 5"},
		{api.EventOptions{Sandbox: "one", Kinds: []api.EventKind{api.EventCreated}, After: 1}, ""},
	} {
		want(t, l, c.o, c.want)
	}
	var seen []api.Event
	must(t, l.Read(t.Context(), api.EventOptions{}, func(e api.Event) bool { return e.Tenant == "b" }, func(e api.Event) error {
		seen = append(seen, e)
		return nil
	}))
	if got := show(seen); got != "2 5" {
		t.Errorf("tenant b sees %s: what others' events were is not missed", got)
	}
	err := l.Read(t.Context(), api.EventOptions{After: 6}, nil, nil)
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeInvalid || e.Field != "after" || e.Hint == "" {
		t.Errorf("a cursor that was never given: %v", err)
	}
	stop := errors.New("stop")
	if err := l.Read(t.Context(), api.EventOptions{}, nil, func(api.Event) error { return stop }); err != stop {
		t.Errorf("fn's error: %v", err)
	}
}

func TestMissed(t *testing.T) {
	l := open(t, event.Options{MaxEvents: 10})
	publish(l, 1, 100)
	want(t, l, api.EventOptions{}, "91 92 93 94 95 96 97 98 99 100")
	want(t, l, api.EventOptions{After: 90}, "91 92 93 94 95 96 97 98 99 100")
	want(t, l, api.EventOptions{After: 40}, "91(50) 92 93 94 95 96 97 98 99 100")
	l.Publish(api.Event{Kind: api.EventLost})
	// It is told on the first event that the reader gets, not on one it does not see.
	want(t, l, api.EventOptions{After: 1, Kinds: []api.EventKind{api.EventLost}}, "101(90)")
}

func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	o := event.Options{Path: path, MaxEvents: 10}
	total := 0
	var before []api.Event
	for i := range 30 {
		l := open(t, o)
		if i > 0 && !reflect.DeepEqual(before, read(t, l, api.EventOptions{})) {
			t.Fatalf("round %d: %v, want %v", i, read(t, l, api.EventOptions{}), before)
		}
		publish(l, total, i)
		total += i
		must(t, l.Err())
		before = read(t, l, api.EventOptions{})
		if n := len(before); n != min(total, 10) || n > 0 && before[n-1].Cursor != int64(total) {
			t.Fatalf("round %d: %s", i, show(before))
		}
		if i%2 == 0 { // otherwise as a kill leaves it
			must(t, l.Close())
			must(t, l.Close())
		}
	}
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	data, err := os.ReadFile(path)
	must(t, err)
	if lines := bytes.Count(data, []byte("\n")); lines > 2*o.MaxEvents+70 {
		t.Errorf("%d lines", lines)
	}
}

// TestRewrite keeps the file within its bounds in one run too.
func TestRewrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	l := open(t, event.Options{Path: path, MaxEvents: 100})
	for i := range 50 {
		publish(l, 100*i, 100)
		must(t, l.Err())
		data, err := os.ReadFile(path)
		must(t, err)
		if lines := bytes.Count(data, []byte("\n")); lines > 202 {
			t.Fatalf("%d lines", lines)
		}
		for line := range bytes.Lines(data) {
			if !json.Valid(line) {
				t.Fatalf("not JSON: %s", line)
			}
		}
	}
	l2 := open(t, event.Options{Path: path, MaxEvents: 100}) // as a kill leaves it
	if got := read(t, l2, api.EventOptions{}); len(got) != 100 || got[0].Cursor != 4901 || got[99].Reason != "4999" {
		t.Errorf("%s", show(got))
	}
}

// TestReboot: what was not synced may be gone, but no cursor is used twice.
func TestReboot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	l := open(t, event.Options{Path: path})
	publish(l, 1, 3)
	data, err := os.ReadFile(path)
	must(t, err)
	lines := bytes.SplitAfter(data, []byte("\n"))
	if len(lines) < 3 || !bytes.Contains(lines[0], []byte(`"reserved"`)) {
		t.Fatalf("%q", lines)
	}
	must(t, l.Close())
	// The machine stopped after the first event had reached the disk.
	other := bytes.Replace(lines[0], []byte(`"boot":"`), []byte(`"boot":"another-`), 1)
	must(t, os.WriteFile(path, slices.Concat(other, lines[1]), 0o600))
	l = open(t, event.Options{Path: path})
	publish(l, 4, 1)
	got := read(t, l, api.EventOptions{})
	if len(got) != 2 || got[0].Cursor != 1 || got[1].Cursor <= 3 || got[1].Missed != got[1].Cursor-2 {
		t.Errorf("%s", show(got))
	}
	must(t, l.Close())
	// In an orderly end nothing is reserved any more, whatever boot comes next.
	data, err = os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, bytes.ReplaceAll(data, []byte(`"boot":"`), []byte(`"boot":"third-`)), 0o600))
	l = open(t, event.Options{Path: path})
	publish(l, 5, 1)
	after := read(t, l, api.EventOptions{})
	if after[len(after)-1].Cursor != got[1].Cursor+1 {
		t.Errorf("%s after %s", show(after), show(got))
	}
}

func TestTornAndDamagedLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	l := open(t, event.Options{Path: path})
	publish(l, 1, 5)
	must(t, l.Close())
	data, err := os.ReadFile(path)
	must(t, err)
	lines := bytes.SplitAfter(data, []byte("\n")) // a marker, five events, a marker, nothing
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"torn":             {slices.Concat(slices.Concat(lines[:5]...), lines[5][:20]), "1 2 3 4"},
		"torn, long":       {slices.Concat(slices.Concat(lines[:5]...), bytes.Repeat([]byte("x"), 200_000)), "1 2 3 4"},
		"damaged":          {slices.Concat(lines[0], lines[1], []byte("{\"cursor\":\n"), lines[3]), "1 3(1)"},
		"a line too long":  {slices.Concat(lines[0], lines[1], bytes.Repeat([]byte("x"), 200_000), []byte("\n"), lines[4]), "1 4(2)"},
		"twice":            {slices.Concat(lines[0], lines[1], lines[2], lines[1], lines[2], lines[3]), "1 2 3"},
		"negative":         {slices.Concat(lines[1], []byte("{\"cursor\":-4}\n{}\nnull\n[]\n")), "1"},
		"foreign":          {[]byte("hello\n\x00\xff\n"), ""},
		"empty":            {nil, ""},
		"only a long line": {bytes.Repeat([]byte("x"), 1<<20), ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "events")
			must(t, os.WriteFile(path, c.file, 0o600))
			l := open(t, event.Options{Path: path})
			want(t, l, api.EventOptions{}, c.want)
			publish(l, 0, 1)
			must(t, l.Err())
			all := read(t, l, api.EventOptions{})
			must(t, l.Close())
			l = open(t, event.Options{Path: path})
			if got := read(t, l, api.EventOptions{}); !reflect.DeepEqual(got, all) {
				t.Errorf("%s, want %s", show(got), show(all))
			}
		})
	}
}

func TestAge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	synctest.Test(t, func(t *testing.T) {
		o := event.Options{Path: path, MaxAge: time.Hour}
		l := open(t, o)
		publish(l, 1, 3)
		time.Sleep(40 * time.Minute)
		publish(l, 4, 2)
		want(t, l, api.EventOptions{}, "1 2 3 4 5")
		time.Sleep(20 * time.Minute)
		want(t, l, api.EventOptions{}, "4 5")
		want(t, l, api.EventOptions{After: 1}, "4(2) 5")
		time.Sleep(time.Hour)
		want(t, l, api.EventOptions{}, "")
		want(t, l, api.EventOptions{After: 2}, "")
		must(t, l.Close())
		l = open(t, o)
		want(t, l, api.EventOptions{}, "")
		publish(l, 6, 1)
		want(t, l, api.EventOptions{}, "6")
		want(t, l, api.EventOptions{After: 2}, "6(3)")
		must(t, l.Close())
	})
}

// TestCursorOutlivesEvents ages everything out and rewrites the file.
func TestCursorOutlivesEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	synctest.Test(t, func(t *testing.T) {
		for i := range int64(4) {
			l := open(t, event.Options{Path: path, MaxAge: time.Hour})
			publish(l, 0, 100)
			if got := read(t, l, api.EventOptions{}); len(got) != 100 || got[99].Cursor != 100*(i+1) {
				t.Errorf("round %d: %s", i, show(got))
			}
			must(t, l.Close())
			data, err := os.ReadFile(path)
			must(t, err)
			if n := bytes.Count(data, []byte("\n")); n > 110 {
				t.Errorf("%d lines: what has aged out is still there", n)
			}
			time.Sleep(2 * time.Hour)
		}
	})
}

// TestFollow proves when a follower gets what, and how it ends.
func TestFollow(t *testing.T) {
	why := errors.New("the caller left")
	for name, c := range map[string]struct {
		end  func(*event.Log, context.CancelCauseFunc)
		want error
	}{
		"cancel": {func(_ *event.Log, cancel context.CancelCauseFunc) { cancel(why) }, why},
		"close":  {func(l *event.Log, _ context.CancelCauseFunc) { _ = l.Close() }, fs.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := open(t, event.Options{})
				publish(l, 1, 2)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				var got []api.Event
				var ended error
				var at time.Time
				go func() {
					ended = l.Read(ctx, api.EventOptions{After: 1, Follow: true}, nil, func(e api.Event) error {
						got = append(got, e)
						return nil
					})
					at = time.Now()
				}()
				synctest.Wait()
				if show(got) != "2" {
					t.Fatalf("%s", show(got))
				}
				time.Sleep(time.Minute)
				publish(l, 3, 1)
				synctest.Wait()
				if show(got) != "2 3" || ended != nil {
					t.Fatalf("%s, %v", show(got), ended)
				}
				time.Sleep(time.Minute)
				now := time.Now()
				c.end(l, cancel)
				synctest.Wait()
				if !errors.Is(ended, c.want) || !at.Equal(now) {
					t.Errorf("ended with %v after %s", ended, at.Sub(now))
				}
			})
		})
	}
}

// TestFollowOverAge: a follower whose events all aged out waits, and is then
// told what it missed.
func TestFollowOverAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, event.Options{MaxAge: time.Hour})
		publish(l, 1, 5)
		time.Sleep(2 * time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		var got []api.Event
		go func() {
			_ = l.Read(ctx, api.EventOptions{After: 2, Follow: true}, nil, func(e api.Event) error {
				got = append(got, e)
				return nil
			})
		}()
		synctest.Wait()
		publish(l, 6, 1)
		synctest.Wait()
		if show(got) != "6(3)" {
			t.Errorf("%s", show(got))
		}
		cancel()
	})
}

// TestSlowReader holds a reader in fn: no other reader notices, and it is told what
// it missed.
func TestSlowReader(t *testing.T) {
	l := open(t, event.Options{MaxEvents: 500})
	publish(l, 1, 1)
	inside, leave := make(chan struct{}), make(chan struct{})
	var got []api.Event
	stop := errors.New("enough")
	done := make(chan error)
	go func() {
		done <- l.Read(t.Context(), api.EventOptions{Follow: true}, nil, func(e api.Event) error {
			if got = append(got, e); len(got) == 1 {
				close(inside)
				<-leave
			}
			if e.Cursor == 2000 {
				return stop
			}
			return nil
		})
	}()
	<-inside
	publish(l, 2, 1999)
	if n := len(read(t, l, api.EventOptions{})); n != 500 {
		t.Errorf("another reader gets %d", n)
	}
	close(leave)
	if err := <-done; err != stop {
		t.Error(err)
	}
	if len(got) != 501 || got[1].Cursor != 1501 || got[1].Missed != 1499 {
		t.Errorf("%d events, the second %+v", len(got), got[1])
	}
}

// TestConcurrent publishes and follows from many goroutines: every follower
// gets every cursor once and in order, or is told of it.
func TestConcurrent(t *testing.T) {
	l := open(t, event.Options{Path: filepath.Join(t.TempDir(), "events"), MaxEvents: 200})
	const publishers, each = 4, 500
	last := errors.New("last")
	var readers, writers sync.WaitGroup
	var delivered atomic.Int64
	for i := range 20 {
		readers.Go(func() {
			var sum, prev int64
			err := l.Read(t.Context(), api.EventOptions{Follow: true, Kinds: []api.EventKind{api.EventCreated}}, nil, func(e api.Event) error {
				if prev > 0 && e.Cursor != prev+e.Missed+1 {
					return fmt.Errorf("reader %d: %d after %d, missed %d", i, e.Cursor, prev, e.Missed)
				}
				prev = e.Cursor
				sum += 1 + e.Missed
				delivered.Add(1)
				if e.Cursor == publishers*each {
					return last
				}
				return nil
			})
			if err != last {
				t.Error(err)
			}
		})
	}
	for i := range publishers {
		writers.Go(func() { publish(l, i*each, each) })
	}
	writers.Wait()
	readers.Wait()
	must(t, l.Err())
	if delivered.Load() < 20 {
		t.Errorf("%d deliveries", delivered.Load())
	}
}

func TestEventsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	l := open(t, event.Options{Path: path})
	huge := strings.Repeat("\x00ü", 100_000)
	far := time.Date(20_000, 1, 1, 0, 0, 0, 0, time.FixedZone("x", 3600))
	code := 7
	p := &api.Process{
		ExecID: huge, Name: huge, Argv: append(slices.Repeat([]string{""}, 50_000), huge), State: api.ProcessState(huge), Signal: huge,
		Reason: huge, LastStderr: "\xff\xfe" + huge, StartedAt: far, ReadyAt: &far, EndedAt: &far, ExitCode: &code,
	}
	l.Publish(api.Event{
		Kind: api.EventKind(huge), Tenant: huge, Sandbox: huge, Name: huge, Process: p, Reason: huge, ExpiresAt: &far, Verb: huge, Rule: huge,
		Cursor: 99, Missed: 99, Time: far,
	})
	must(t, l.Err())
	// What its publisher does with it afterwards changes nothing.
	code, p.Argv[0] = 8, "changed"
	first := read(t, l, api.EventOptions{})
	e := first[0]
	if e.Cursor != 1 || e.Missed != 0 || e.Time.IsZero() || time.Since(e.Time) > time.Minute || *e.Process.ExitCode != 7 || e.Process.Argv[0] != "" {
		t.Errorf("%+v %+v", e, e.Process)
	}
	if len(e.Process.LastStderr) > 256 || len(e.Reason) > 1024 || !strings.HasSuffix(e.Reason, "…") {
		t.Errorf("%d %d", len(e.Process.LastStderr), len(e.Reason))
	}
	info, err := os.Stat(path)
	must(t, err)
	if info.Size() > 64<<10 {
		t.Errorf("a file of %d bytes", info.Size())
	}
	must(t, l.Close())
	if again := read(t, open(t, event.Options{Path: path}), api.EventOptions{}); !reflect.DeepEqual(again, first) {
		t.Errorf("read again it is\n%+v, was\n%+v", again, first)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	for name, o := range map[string]event.Options{
		"no directory": {Path: filepath.Join(dir, "none", "events")},
		"directory":    {Path: dir},
		"symlink":      {Path: filepath.Join(dir, "link")},
		"negative":     {MaxEvents: -1},
		"age":          {MaxAge: -1},
	} {
		if l, err := event.Open(o); err == nil {
			t.Errorf("%s: opened", name)
			_ = l.Close()
		}
	}
}

func TestAfterClose(t *testing.T) {
	l := open(t, event.Options{Path: filepath.Join(t.TempDir(), "events")})
	publish(l, 1, 1)
	must(t, l.Close())
	publish(l, 2, 1)
	if err := l.Read(t.Context(), api.EventOptions{After: 1}, nil, nil); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Read: %v", err)
	}
}

// fuzzAge is so long that hardly an event ages out: 250 years.
const fuzzAge = 250 * 365 * 24 * time.Hour

// FuzzOpen opens foreign bytes as a list: nothing panics, cursors grow, and what
// is published after it is found again.
func FuzzOpen(f *testing.F) {
	f.Add([]byte(`{"high":0,"reserved":1024,"boot":"x"}` + "\n" + `{"cursor":1,"time":"2026-01-02T03:04:05Z","kind":"sandbox.created","tenant":"local"}` + "\n"))
	f.Add([]byte(`{"cursor":3,"time":"2026-01-02T03:04:05Z","process":{"argv":["a"],"exit_code":0}}` + "\n" + `{"cursor":2}` + "\n{"))
	f.Add([]byte(`{"cursor":9007199254740992}` + "\n" + `{"high":-1,"reserved":9}` + "\n"))
	f.Add([]byte("\n\n\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "events")
		must(t, os.WriteFile(path, b, 0o600))
		l := open(t, event.Options{Path: path, MaxEvents: 5, MaxAge: fuzzAge})
		before := read(t, l, api.EventOptions{})
		if len(before) > 5 {
			t.Fatalf("%d events", len(before))
		}
		var last int64
		for _, e := range before {
			if e.Cursor <= last {
				t.Fatalf("%s", show(before))
			}
			last = e.Cursor
		}
		publish(l, 0, 1)
		must(t, l.Err())
		after := read(t, l, api.EventOptions{})
		if n := len(after); n == 0 || after[n-1].Cursor <= last {
			t.Fatalf("%s after %s", show(after), show(before))
		}
		must(t, l.Close())
		if after[len(after)-1].Cursor > 1<<53 {
			return // no home gets there
		}
		if again := read(t, open(t, event.Options{Path: path, MaxEvents: 5, MaxAge: fuzzAge}), api.EventOptions{}); !reflect.DeepEqual(again, after) {
			t.Fatalf("read again:\n%+v, was\n%+v", again, after)
		}
	})
}

func BenchmarkPublish(b *testing.B) {
	l := open(b, event.Options{Path: filepath.Join(b.TempDir(), "events")})
	e := api.Event{Kind: api.EventProcessExited, Tenant: "local", Sandbox: "sb-4k2mwd7e3x9qv0ha", Name: "x", Process: &api.Process{ExecID: "p-1", Argv: []string{"true"}}}
	for b.Loop() {
		l.Publish(e)
	}
	must(b, l.Err())
}
