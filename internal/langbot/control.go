package langbot

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// goingAway is what a client is told at the end.
const goingAway = "Box runtime shutting down"

// begin counts what the server waits for at its end; false after that has begun.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return false
	}
	s.wg.Add(1)
	return true
}

// wsConn is one control connection over WebSocket.
type wsConn struct{ conn *websocket.Conn }

// goAway tells the client that the runtime ends.
func (c *wsConn) goAway() { _ = c.conn.Close(websocket.StatusGoingAway, goingAway) }

// serveControl serves one control connection.
func (s *Server) serveControl(w http.ResponseWriter, r *http.Request) {
	who, err := s.enter(r, r.Header.Get("Upgrade") != "")
	if err != nil {
		s.turnAway(w, r, err)
		return
	}
	if !s.begin() {
		http.Error(w, goingAway, http.StatusServiceUnavailable)
		return
	}
	defer s.wg.Done()
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled, InsecureSkipVerify: true}) // enter refuses web pages
	if err != nil {
		return
	}
	defer conn.CloseNow()
	conn.SetReadLimit(maxFrame)
	me := &wsConn{conn}
	s.mu.Lock()
	s.control[me] = struct{}{}
	late := s.done
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.control, me)
		s.mu.Unlock()
	}()
	if late {
		me.goAway()
		return
	}
	var writing sync.Mutex
	p := s.newPeer(s.live, who, func(message []byte) error {
		writing.Lock()
		defer writing.Unlock()
		within, cancel := context.WithTimeout(s.live, relayWrite)
		defer cancel()
		return conn.Write(within, websocket.MessageText, message)
	})
	defer p.close()
	for {
		kind, data, err := conn.Read(s.live)
		if err != nil {
			return
		}
		if kind != websocket.MessageText {
			_ = conn.Close(websocket.StatusUnsupportedData, "text messages only")
			return
		}
		p.take(data)
	}
}

// ServeStdio serves the one control connection of a pipe, until it or ctx
// ends. The pipe is the trusted instance's.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	if s.pin.trusted() == "" {
		return failed(classValidation, "stdio needs the instance that is trusted: set LANGBOT_BOX_TRUSTED_INSTANCE_UUID")
	}
	if !s.begin() {
		return nil
	}
	defer s.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.live, cancel)()
	var writing sync.Mutex
	p := s.newPeer(ctx, identity{instance: s.pin.trusted()}, func(message []byte) error {
		writing.Lock()
		defer writing.Unlock()
		return writeLines(out, message)
	})
	p.operator = true // it started this process
	defer p.close()
	r := newLineReader(in)
	messages := make(chan []byte)
	ended := make(chan error, 1)
	go func() { // ends with the pipe, which nothing else can interrupt: it is the process's own input
		for {
			m, err := r.next()
			if err != nil {
				ended <- err
				return
			}
			select {
			case messages <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case m := <-messages:
			p.take(m)
		}
	}
}

// peer is one control connection: what it has under way, and its uploads.
type peer struct {
	s       *Server
	who     identity
	send    func([]byte) error
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	active  atomic.Int64
	uploads *uploads
	// operator: what it configures is granted, and not only narrowed.
	operator bool
}

func (s *Server) newPeer(ctx context.Context, who identity, send func([]byte) error) *peer {
	p := &peer{s: s, who: who, send: send, uploads: newUploads(s.fileDir(), s.settings().limits.FileBytes)}
	p.ctx, p.cancel = context.WithCancel(ctx)
	return p
}

// close cancels what is under way, waits for it, and removes what was uploaded.
func (p *peer) close() {
	p.cancel()
	p.wg.Wait()
	p.uploads.close()
}

// take begins what one frame asks for. It does not wait for it, except for short
// requests: those are done in their order.
func (p *peer) take(frame []byte) {
	req, err := parseRequest(bytes.Clone(frame))
	if errors.Is(err, errIgnored) {
		return
	}
	if err != nil {
		p.reply(refusedWith(req.id, err))
		return
	}
	if req.action == "__ping" || req.action == "__file_chunk" {
		data, err := p.s.do(p.ctx, p, req)
		p.answer(req, data, err)
		return
	}
	if p.active.Add(1) > maxActions {
		p.active.Add(-1)
		p.reply(response{req.id, 1, "Runtime connection is busy (max 128 concurrent actions)", struct{}{}, "continue"})
		return
	}
	p.wg.Go(func() {
		began := time.Now()
		data, err := p.within(req, func() { p.active.Add(-1) })
		if err != nil {
			p.s.log.Info("box action failed", "action", clipped(req.action), "error", err, "took", time.Since(began))
		}
		p.answer(req, data, err)
	})
}

func (p *peer) answer(req request, data any, err error) {
	if err != nil {
		p.reply(refusedWith(req.id, p.s.clean(err)))
		return
	}
	p.reply(succeeded(req.id, data))
}

func (p *peer) reply(r response) {
	message, err := r.encode()
	if err == nil && len(message) > maxFrame {
		r = refusedWith(r.SeqID, failed(classBox, "the answer has %d bytes, and %d are the most", len(message), maxFrame))
		message, err = r.encode()
	}
	if err != nil {
		p.s.log.Error("encode an answer", "error", err)
		return
	}
	if err := p.send(message); err != nil && p.ctx.Err() == nil {
		p.cancel()
	}
}
