package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// TestBackoff: 3 s doubling to 60 s, each a fifth more or less at most, and from
// the beginning after a success.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backoff
		strayed := false
		for range 50 {
			for _, want := range []time.Duration{3, 6, 12, 24, 48, 60, 60, 60} {
				want *= time.Second
				began := time.Now()
				if err := pause(t.Context(), b.next(0)); err != nil {
					t.Fatal(err)
				}
				got := time.Since(began)
				if got < want*8/10 || got > want*12/10 {
					t.Fatalf("waited %v, want %v ± 20 %%", got, want)
				}
				strayed = strayed || got < want*85/100 || got > want*115/100
			}
			b.reset()
		}
		if !strayed {
			t.Error("no wait strayed")
		}
		if got := b.next(time.Hour); got != time.Hour {
			t.Errorf("waited %v, want as long as the daemon asked for", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := pause(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// TestFollow: one loop, which fails at once at first, comes back for what
// passes, begins its waits again after a success, and gives up for what does not
// pass.
func TestFollow(t *testing.T) {
	passes := api.Errorf(api.CodeUnavailable, "gone")
	final := api.Errorf(api.CodeNotFound, "no such thing")
	busy := api.Errorf(api.CodeNoCapacity, "full")
	busy.Retryable, busy.RetryAfterMS = true, 90_000
	mine := errors.New("the caller's own")
	type step struct {
		connects bool
		err      error
	}
	for name, tc := range map[string]struct {
		steps []step
		off   bool
		err   error
		waits []time.Duration // in seconds, before the jitter
	}{
		"first":     {[]step{{false, passes}}, false, passes, nil},
		"over":      {[]step{{true, passes}, {true, nil}}, false, nil, []time.Duration{3}},
		"off":       {[]step{{true, passes}}, true, passes, nil},
		"doubling":  {[]step{{true, passes}, {false, passes}, {false, passes}, {true, passes}, {true, final}}, false, final, []time.Duration{3, 6, 12, 3}},
		"final":     {[]step{{true, final}}, false, final, nil},
		"busy":      {[]step{{true, busy}, {true, nil}}, false, nil, []time.Duration{90}},
		"callers":   {[]step{{true, passes}, {true, &callerError{mine}}}, false, mine, []time.Duration{3}},
		"not typed": {[]step{{true, mine}}, false, mine, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var waits []time.Duration
				c := &Client{noReconnect: tc.off, onReconnect: func(_ error, d time.Duration) { waits = append(waits, d) }}
				n := 0
				began := time.Now()
				err := c.follow(t.Context(), func(connected func()) error {
					s := tc.steps[n]
					n++
					if s.connects {
						connected()
					}
					return s.err
				})
				if !errors.Is(err, tc.err) || n != len(tc.steps) || len(waits) != len(tc.waits) {
					t.Fatalf("%v after %d of %d attempts, waits %v", err, n, len(tc.steps), waits)
				}
				var sum time.Duration
				for i, w := range tc.waits {
					w *= time.Second
					if waits[i] < w*8/10 || waits[i] > w*12/10 {
						t.Errorf("wait %d was %v, want %v ± 20 %%", i, waits[i], w)
					}
					sum += waits[i]
				}
				if got := time.Since(began); got != sum {
					t.Errorf("it took %v, and the waits are %v", got, sum)
				}
			})
		})
	}
}

// TestPending holds the queue against a process that takes input by offset while
// connections come and go at random.
func TestPending(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var q pending
		in := make([]byte, rng.IntN(200_000))
		for i := range in {
			in[i] = byte(rng.Uint32())
		}
		var got []byte
		added, ended := 0, false
		at, acked := int64(0), int64(0) // where the connection is, and what it has said
		for len(got) < len(in) || !ended {
			switch rng.IntN(5) {
			case 0:
				added += q.add(in[added:min(len(in), added+rng.IntN(50_000))])
				if len(q.kept) > maxPending {
					t.Fatal("it keeps more than it may")
				}
				q.closed = added == len(in)
			case 1, 2:
				data, end := q.next()
				if n := int64(len(data)); n > 0 {
					if at > int64(len(got)) {
						t.Fatalf("bytes are missing: sent at %d, the process has %d", at, len(got))
					}
					if fresh := at + n - int64(len(got)); fresh > 0 {
						got = append(got, data[n-fresh:]...)
					}
					at += n
				}
				ended = ended || end
				if end && len(got) != len(in) {
					t.Fatal("the end came before the input")
				}
			case 3:
				acked = max(acked, min(int64(len(got)), acked+int64(rng.IntN(70_000))))
				q.ack(acked)
			case 4:
				q.rewind(true)
				at = q.base
			}
		}
		if string(got) != string(in) {
			t.Fatal("the process got something else")
		}
	}
	var q pending
	q.add([]byte("mine"))
	q.next()
	q.ack(100) // the input of another writer came before
	if q.add([]byte("next")); q.base != 100 || string(q.kept) != "next" {
		t.Errorf("%+v", q)
	}
	q = pending{closed: true}
	if _, end := q.next(); !end {
		t.Error("the end was not said")
	}
	q.rewind(false)
	if _, end := q.next(); end {
		t.Error("the end was said twice to a terminal")
	}
}

// TestLogFollower: what was given stays given, over connections that begin at
// the beginning again.
func TestLogFollower(t *testing.T) {
	at := func(sec int) time.Time { return time.Unix(int64(sec), 0) }
	entry := func(id string, pos int64, sec int, data string) api.LogEntry {
		return api.LogEntry{ExecID: id, Stream: api.Stdout, Position: pos, Offset: pos, Time: at(sec), Data: []byte(data)}
	}
	l := newLogFollower(api.LogOptions{Follow: true, Tail: 2})
	if o := l.options(); o.Tail != 2 {
		t.Errorf("%+v", o)
	}
	take := func(e api.LogEntry, want string) {
		t.Helper()
		got, ok := l.take(e)
		if ok != (want != "") || ok && (string(got.Data) != want || got.Position != e.Position+int64(len(e.Data)-len(want))) {
			t.Errorf("%q at %d became %v %q at %d, want %q", e.Data, e.Position, ok, got.Data, got.Position, want)
		}
	}
	take(entry("b", 4, 20, "four"), "four")
	if o := l.options(); o.Tail != 0 || o.Since != nil || !o.Follow {
		t.Errorf("%+v", o)
	}
	take(entry("a", 0, 10, "cut off by the tail"), "")
	take(entry("b", 0, 15, "zero"), "")
	take(entry("b", 4, 20, "fourfive"), "five")
	take(entry("c", 0, 30, "new"), "new")
	take(entry("a", 19, 31, "later"), "later")
	gap := api.LogEntry{ExecID: "b", Position: 20, Gap: 20}
	if got, ok := l.take(gap); !ok || got.Gap != 8 {
		t.Errorf("%v %+v, want a gap of what is missing since the last byte", ok, got)
	}
	one := newLogFollower(api.LogOptions{Follow: true, ExecID: "x", Stream: api.Stderr, SinceTime: at(1), WaitMS: 5})
	one.take(api.LogEntry{ExecID: "x", Stream: api.Stderr, Offset: 7, Position: 70, Data: []byte("abc")})
	if o := one.options(); o.Since == nil || *o.Since != 10 || !o.SinceTime.IsZero() || o.WaitMS != 0 {
		t.Errorf("%+v", o)
	}
}
