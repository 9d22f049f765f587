package httpapi

import (
	"sync"
	"time"
)

const (
	// firstBeat is when a caller is shown that its request is being served, where
	// nothing else was to say. A refusal comes before.
	firstBeat = time.Second
	// beatEvery is how soon a caller that died is noticed while nothing happens,
	// and keeps proxies from closing a quiet answer.
	beatEvery = 15 * time.Second
)

// keepAlive calls beat now and then until stop is called, which waits for it. A
// beat that fails is the last, and gives the answer up; so does a caller that has
// vanished.
func (s *Server) keepAlive(r request, giveUp func(), beat func() error) (stop func()) {
	to := s.peerOf(r)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTimer(firstBeat)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
			}
			if beat() != nil || to.gone() {
				giveUp()
				return
			}
			t.Reset(beatEvery)
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}
