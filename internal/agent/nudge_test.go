package agent

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pings counts nudges, each of which is answered, as heard.
type pings struct {
	n     atomic.Int64
	ended chan struct{}
	heard *Hearing
}

func (p *pings) Ping() (time.Duration, error) {
	p.n.Add(1)
	p.heard.reads.Add(1)
	return 0, nil
}

func (p *pings) CloseChan() <-chan struct{} { return p.ended }

// TestNudger: a nudge follows each message soon, and others less and less often in a long
// silence. Without a waiting call there is no nudge, and a message in a long silence
// is followed by one as soon.
func TestNudger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pings{ended: make(chan struct{}), heard: &Hearing{}}
		n := NewNudger(p, p.heard)
		during := func(d time.Duration) int64 {
			synctest.Wait()
			before := p.n.Load()
			<-time.After(d)
			synctest.Wait()
			return p.n.Load() - before
		}
		if got := during(time.Minute); got != 0 {
			t.Errorf("%d nudges while nobody waits", got)
		}
		n.BeginIdle()
		if got := during(nudgeMin + time.Millisecond); got != 1 {
			t.Errorf("%d nudges right after who waits has begun, want 1", got)
		}
		if got := during(5 * time.Minute); got < 30 || got > 45 {
			t.Errorf("%d nudges in five minutes of silence, want one each %s", got, idleNudgeMax)
		}
		// In the middle of a pause of ten seconds.
		during(3 * time.Second)
		n.Touch()
		if got := during(nudgeMin + time.Millisecond); got != 1 {
			t.Errorf("%d nudges after something was sent, want 1", got)
		}
		// Who sends all the time needs none.
		before := p.n.Load()
		for range 1000 {
			n.Touch()
			<-time.After(time.Millisecond)
		}
		if got := p.n.Load() - before; got > 1 {
			t.Errorf("%d nudges while something is sent each millisecond", got)
		}
		n.begin()
		if got := during(10 * nudgeMax); got < 10 || got > 16 {
			t.Errorf("%d nudges in a silence that a call waits in, want one each %s", got, nudgeMax)
		}
		n.end()
		n.EndIdle()
		during(time.Minute)
		if got := during(time.Minute); got != 0 {
			t.Errorf("%d nudges after all have their answers", got)
		}
		close(p.ended)
		n.Wait()
	})
	var none *Nudger
	none.BeginIdle()
	none.Touch()
	none.EndIdle()
	none.Wait()
}
