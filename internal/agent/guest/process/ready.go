//go:build linux

package process

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
)

const (
	// probeTime bounds one try of a probe.
	probeTime = 5 * time.Second
	// maxStatusLine bounds what is read of an answer.
	maxStatusLine = 4 << 10
	// maxLine is how much of a line is looked at.
	maxLine = 64 << 10
	// promptTime is how long a line that has not ended must be left alone before
	// it is looked at as it is.
	promptTime = 20 * time.Millisecond
)

// becomeReady enters that the run is ready, unless it is over.
func (p *process) becomeReady(r *run) {
	select {
	case <-r.over:
		return
	default:
	}
	now := time.Now()
	p.set(func() {
		if p.run == r && p.readyAt == nil && !p.known {
			p.state, p.readyAt, p.reason = api.ProcessReady, &now, ""
		}
	})
}

// probe watches for the readiness of a run, without holding anything up, and
// reports when it takes too long.
func (ps *Manager) probe(p *process, r *run) {
	d := p.managed
	if d.ready == nil {
		return
	}
	ps.wg.Go(func() {
		if !ps.clock.wait(d.timeout, r.over) {
			return
		}
		p.set(func() {
			if p.run == r && p.readyAt == nil && !p.known {
				p.reason = fmt.Sprintf("not ready after %v", d.timeout)
			}
		})
	})
	if d.line != nil {
		d.whenFound(func() { p.becomeReady(r) })
		return
	}
	ps.wg.Go(func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ps.wg.Go(func() {
			select {
			case <-r.over:
			case <-ctx.Done():
			}
			cancel()
		})
		for {
			if d.try(ctx) {
				p.becomeReady(r)
				return
			}
			if !ps.clock.wait(d.interval, ctx.Done()) {
				return
			}
		}
	})
}

// try makes one try.
func (d *managed) try(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	port := d.ready.Port
	if d.ready.HTTP != nil {
		port = d.ready.HTTP.Port
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil { // some servers listen on the other address of "localhost"
		conn, err = dialer.DialContext(ctx, "tcp6", net.JoinHostPort("::1", strconv.Itoa(port)))
	}
	if err != nil {
		return false
	}
	defer conn.Close()
	if d.ready.HTTP == nil {
		return true
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	path := d.ready.HTTP.Path
	if path == "" {
		path = "/"
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: cloche\r\nAccept: */*\r\nConnection: close\r\n\r\n", path, port); err != nil {
		return false
	}
	line, err := bufio.NewReader(io.LimitReader(conn, maxStatusLine)).ReadSlice('\n')
	status, ok := parseStatus(line)
	return err == nil && ok && status >= 200 && status < 400
}

// parseStatus reads the status from the first line of an HTTP answer.
func parseStatus(line []byte) (int, bool) {
	rest, ok := bytes.CutPrefix(line, []byte("HTTP/1."))
	if !ok || len(rest) < 5 || rest[1] != ' ' {
		return 0, false
	}
	status := 0
	for _, c := range rest[2:5] {
		if c < '0' || c > '9' {
			return 0, false
		}
		status = 10*status + int(c-'0')
	}
	if len(rest) > 5 && rest[5] != ' ' && rest[5] != '\r' && rest[5] != '\n' {
		return 0, false
	}
	return status, true
}

// matcher looks for a line in the output of one run.
type matcher struct {
	re *regexp.Regexp

	mu     sync.Mutex
	lines  [2][]byte // what each stream has written since its last newline, cut
	seen   bool
	over   bool
	notify func() // nil until the run is on record; called with mu held
	timer  *time.Timer
}

// lookAgain begins to look for the line, of a run that is about to begin.
func (d *managed) lookAgain() {
	if d.line == nil {
		return
	}
	m := &matcher{re: d.line}
	m.timer = time.AfterFunc(time.Hour, m.prompt)
	m.timer.Stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.matcher = m
}

// lookNoMore ends the looking.
func (d *managed) lookNoMore() {
	d.mu.Lock()
	m := d.matcher
	d.matcher = nil
	d.mu.Unlock()
	if m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.over = true
		m.timer.Stop()
	}
}

// whenFound has fn called once the line was seen.
func (d *managed) whenFound(fn func()) {
	d.mu.Lock()
	m := d.matcher
	d.mu.Unlock()
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.notify = fn; m.seen {
		fn()
	}
}

// look looks at output.
func (d *managed) look(stream int, data []byte) {
	d.mu.Lock()
	m := d.matcher
	d.mu.Unlock()
	if m != nil {
		m.look(stream, data)
	}
}

func (m *matcher) look(stream int, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	line := &m.lines[stream]
	for !m.seen && !m.over {
		nl := bytes.IndexByte(data, '\n')
		part := data
		if nl >= 0 {
			part = data[:nl]
		}
		whole := part
		if len(*line) > 0 || nl < 0 {
			*line = append(*line, part[:min(len(part), maxLine-len(*line))]...)
			whole = *line
		}
		if nl < 0 {
			if len(whole) > 0 {
				m.timer.Reset(promptTime)
			}
			break
		}
		if m.re.Match(bytes.TrimSuffix(whole[:min(len(whole), maxLine)], []byte("\r"))) {
			m.sawLocked()
		}
		*line, data = (*line)[:0], data[nl+1:]
	}
}

func (m *matcher) sawLocked() {
	m.seen = true
	m.lines = [2][]byte{}
	if m.notify != nil {
		m.notify()
	}
}

// prompt looks at lines that have not ended.
func (m *matcher) prompt() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, line := range m.lines {
		if len(line) > 0 && !m.seen && !m.over && m.re.Match(line) {
			m.sawLocked()
		}
	}
}
