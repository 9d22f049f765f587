package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// lineWriter is an answer of JSON lines, each sent when it is written. It is
// safe for concurrent use.
type lineWriter struct {
	mu    sync.Mutex
	w     http.ResponseWriter
	rc    *http.ResponseController
	code  int
	begun bool
}

func newLineWriter(w http.ResponseWriter, code int) *lineWriter {
	return &lineWriter{w: w, rc: http.NewResponseController(w), code: code}
}

// lines answers with the lines that feed writes. One that follows goes on for as long
// as its caller is there.
func (s *Server) lines(w http.ResponseWriter, r request, follow bool, feed func(context.Context, *lineWriter) error) error {
	ctx, cancel := s.lasting(r)
	defer cancel()
	out := newLineWriter(w, http.StatusOK)
	defer out.close()
	stop := func() {}
	if follow {
		stop = s.keepAlive(r, cancel, out.beat)
	}
	err := feed(ctx, out)
	stop()
	if err != nil {
		return out.fail(cut(ctx, err), r)
	}
	return out.begin()
}

// begin sends the header, for an answer that may have no lines.
func (l *lineWriter) begin() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.beginLocked()
}

func (l *lineWriter) beginLocked() error {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", ndjson)
		l.w.WriteHeader(l.code)
	}
	if err := l.rc.SetWriteDeadline(time.Now().Add(stallTimeout)); err != nil {
		return fmt.Errorf("limit the time for a line: %w", err)
	}
	return nil
}

func (l *lineWriter) write(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a line: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.beginLocked(); err != nil {
		return err
	}
	if _, err := l.w.Write(append(data, '\n')); err != nil {
		return fmt.Errorf("write a line: %w", err)
	}
	if err := l.rc.Flush(); err != nil {
		return fmt.Errorf("write a line: %w", err)
	}
	return nil
}

// beat sends an empty line, which means nothing to a reader of JSON lines and
// shows that both ends are still there. A line on its way shows it too.
func (l *lineWriter) beat() error {
	if !l.mu.TryLock() {
		return nil
	}
	defer l.mu.Unlock()
	if err := l.beginLocked(); err != nil {
		return err
	}
	if _, err := l.w.Write([]byte("\n")); err != nil {
		return fmt.Errorf("write a line: %w", err)
	}
	return l.rc.Flush()
}

// fail ends the answer with an error: as its last line when lines were sent,
// and otherwise as the edge answers it.
func (l *lineWriter) fail(err error, r request) error {
	l.mu.Lock()
	begun := l.begun
	l.mu.Unlock()
	if !begun {
		return err
	}
	return l.write(errorBody{toWire(err, r)})
}

// close ends the writing before the handler returns, after which nothing may
// touch the answer. The deadline must not reach the connection's next request.
func (l *lineWriter) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.rc.SetWriteDeadline(time.Time{})
}

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
