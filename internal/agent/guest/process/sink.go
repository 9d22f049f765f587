//go:build linux

package process

import (
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

var (
	outputKinds   = [2]wire.Kind{wire.KindStdout, wire.KindStderr}
	outputStreams = [2]api.Stream{api.Stdout, api.Stderr}
)

// sink sends output to the attached caller. When a suspend closes the connection of the caller, output waits until the
// caller reattaches or is given up.
type sink struct {
	sending sync.Mutex // held while output is sent or waits

	mu  sync.Mutex
	w   *wire.Writer // of the caller; nil means no caller
	seq uint64       // frames that the caller has
	// sent counts the bytes of each stream that the caller has.
	sent [2]int64
	// pending bytes of the stream pendingOf are being sent. The caller has the skip bytes before them.
	pendingOf     int
	pending, skip int64
	// dropped: there was output without a caller.
	dropped bool
	// reattached is closed when the caller has reattached or was given up. It is nil while a caller does not have to.
	reattached chan struct{}
}

// send blocks while the reader is slow, and while the caller has to reattach. A caller that is gone is detached.
func (s *sink) send(stream int, p []byte) {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.pend(stream, len(p))
	defer s.pend(0, 0)
	for {
		w, seq, skip, wait := s.target()
		p = p[skip:]
		switch {
		case len(p) == 0:
			return
		case w == nil && wait == nil:
			s.drop()
			return
		}
		if wait != nil {
			<-wait
			continue
		}
		if err := w.Output(outputKinds[stream], seq, p); err != nil {
			s.detach(w)
		} else if s.count(w, stream, len(p)) {
			return
		}
	}
}

func (s *sink) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped = true
}

func (s *sink) pend(stream, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pendingOf, s.pending, s.skip = stream, int64(n), 0
}

// target returns where output is sent, or what is waited for before, and how many of the pending bytes the caller turned out
// to have since the last call.
func (s *sink) target() (w *wire.Writer, seq uint64, skip int64, wait <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	skip, s.skip = s.skip, 0
	return s.w, s.seq, skip, s.reattached
}

// count counts what was sent to w. It reports false if the connection was closed meanwhile, so that the caller may not have it.
func (s *sink) count(w *wire.Writer, stream, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w != w {
		return false
	}
	s.sent[stream] += int64(n)
	s.pending = 0
	s.seq++
	return true
}

// detach ends the attachment of the caller that w writes to. It reports whether no caller is left, nor expected.
func (s *sink) detach(w *wire.Writer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == w {
		s.w = nil
	}
	return s.w == nil && s.reattached == nil
}

// attached reports whether w writes to the caller.
func (s *sink) attached(w *wire.Writer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w == w
}

// hold has output wait for the caller to reattach. It returns nil if no caller is attached, or what is closed in the end.
func (s *sink) hold() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil {
		return nil
	}
	s.w, s.reattached = nil, make(chan struct{})
	return s.reattached
}

// release gives up a caller that has not reattached. It reports whether there was one.
func (s *sink) release() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reattached == nil {
		return false
	}
	close(s.reattached)
	s.reattached = nil
	return true
}

// errNotReattached is the answer to a caller that was given up, or never had to reattach.
var errNotReattached = api.Errorf(api.CodeState, "the exec does not wait for a caller: its output can't be continued")

// reattach continues with the caller at w, which has have. After the end of the process nothing waits for it.
func (s *sink) reattach(w *wire.Writer, have wire.Reattach, ended bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped || s.reattached == nil && (!ended || s.w != nil) {
		return errNotReattached
	}
	got := [2]int64{have.Stdout, have.Stderr}
	for stream, n := range got {
		most := s.sent[stream]
		if stream == s.pendingOf {
			most += s.pending
		}
		if n < s.sent[stream] || n > most {
			return api.Errorf(api.CodeState, "the output of the exec can't be continued: of %s the caller has %d bytes, %d to %d were sent", outputStreams[stream], n, s.sent[stream], most)
		}
	}
	more := got[s.pendingOf] - s.sent[s.pendingOf]
	s.skip += more
	s.pending -= more
	s.w, s.seq, s.sent = w, have.Events, got
	if s.reattached != nil {
		close(s.reattached)
		s.reattached = nil
	}
	return nil
}
