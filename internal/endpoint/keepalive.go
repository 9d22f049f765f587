package endpoint

import (
	"bytes"
	"mime"
	"net/http"
	"sync"
	"time"
)

// keepAlive is a comment in a stream of events, which no reader takes for one.
const keepAlive = ": keep-alive\n\n"

// pulse writes comments into a stream of events while the target sends nothing, so that
// no proxy in between closes the stream. It never comes between the parts of an
// event.
type pulse struct {
	every time.Duration
	w     http.ResponseWriter
	// timer begins with the response, and ends with it.
	timer *time.Timer

	mu   sync.Mutex // of the stream
	tail [2]byte    // its last two bytes without carriage returns
	some bool       // an event was sent
	over bool
}

// startPulse begins one where the endpoint wants it and the response is a stream of
// events that may be added to.
func (x *exchange) startPulse(res *http.Response) {
	if x.up.spec.HTTP == nil || x.up.spec.HTTP.EventKeepAliveMS <= 0 || res.StatusCode != http.StatusOK || res.ContentLength >= 0 {
		return
	}
	if typ, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || typ != "text/event-stream" || len(res.Header["Content-Encoding"]) > 0 {
		return
	}
	p := &pulse{every: ms(x.up.spec.HTTP.EventKeepAliveMS), w: x.w.ResponseWriter}
	p.timer = time.AfterFunc(p.every, p.beat)
	x.w.pulse = p
}

// beat runs when nothing was said for a while.
func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	if p.some && p.tail == [2]byte{'\n', '\n'} {
		if _, err := p.w.Write([]byte(keepAlive)); err != nil {
			return // the reader has gone, which others notice
		}
		if http.NewResponseController(p.w).Flush() != nil {
			return
		}
	}
	p.timer.Reset(p.every)
}

// write is what the target said.
func (p *pulse) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.w.Write(b)
	for _, c := range b[max(0, n-8):n] {
		if c != '\r' {
			p.tail = [2]byte{p.tail[1], c}
		}
	}
	p.some = p.some || bytes.ContainsFunc(b[:n], func(c rune) bool { return c != '\r' && c != '\n' })
	if !p.over {
		p.timer.Reset(p.every)
	}
	return n, err
}

// end has it say nothing more; when it returns nothing is on the way.
func (p *pulse) end() {
	if p == nil {
		return
	}
	p.timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
}
