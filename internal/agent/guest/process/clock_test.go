//go:build linux

package process

import (
	"bytes"
	"regexp"
	"testing"
	"testing/synctest"
	"time"
)

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		began := time.Now()
		go func() {
			time.Sleep(30 * time.Second)
			c.hold(true)
			c.hold(true)
			time.Sleep(time.Hour)
			c.hold(false)
		}()
		if !c.wait(time.Minute, nil) || time.Since(began) != time.Hour+time.Minute {
			t.Fatalf("waited for %v", time.Since(began))
		}
		c.hold(true)
		late := c.timer(time.Minute) // made while held
		defer late.stop()
		time.Sleep(time.Hour)
		c.hold(false)
		began = time.Now()
		<-late.C
		if time.Since(began) != time.Minute {
			t.Fatalf("waited for %v", time.Since(began))
		}
		quit := make(chan struct{})
		close(quit)
		if c.wait(time.Minute, quit) {
			t.Fatal("did not quit")
		}
		if len(c.timers) != 0 {
			t.Fatalf("%d timers are left", len(c.timers))
		}
	})
}

func FuzzMatcher(f *testing.F) {
	f.Add([]byte("starting\r\nlistening on 80\n"), 4)
	f.Add([]byte("\n\nx\n"), 1)
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		if step <= 0 || len(in) > 10_000 {
			return
		}
		re := regexp.MustCompile(`^(listening on \d+|x)$`)
		m := &matcher{re: re, timer: time.NewTimer(time.Hour)}
		m.timer.Stop()
		for rest := in; len(rest) > 0; {
			n := min(step, len(rest))
			m.look(0, rest[:n])
			rest = rest[n:]
		}
		m.timer.Stop()
		want := false
		lines := bytes.Split(in, []byte("\n"))
		for _, line := range lines[:len(lines)-1] {
			want = want || re.Match(bytes.TrimSuffix(line, []byte("\r")))
		}
		if m.seen != want {
			t.Fatalf("seen is %v", m.seen)
		}
	})
}

func FuzzStatus(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\n"))
	f.Add([]byte("HTTP/1.0 404\n"))
	f.Add([]byte("HTTP/1."))
	f.Fuzz(func(t *testing.T, line []byte) {
		if n, ok := parseStatus(line); ok && (n < 0 || n > 999) {
			t.Fatal(n)
		}
	})
}
