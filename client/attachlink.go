package client

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/coder/websocket"
)

// attachLink is one connection of an Attachment.
type attachLink struct {
	conn    *websocket.Conn
	stop    func() bool // stops watching the Attachment's context
	started api.Started
	silent  *time.Timer // runs during a read, and ends a silent connection
	buf     []byte
}

func (l *attachLink) close() {
	l.stop()
	l.silent.Stop()
	l.conn.CloseNow()
}

// hangUp answers the daemon's close frame, which follows its last message.
func (l *attachLink) hangUp() {
	l.stop()
	l.silent.Stop()
	l.conn.Close(websocket.StatusNormalClosure, "")
}

// read returns the next message. Its bytes are valid until the next call.
func (l *attachLink) read(ctx context.Context) (websocket.MessageType, []byte, error) {
	l.silent.Reset(silence)
	defer l.silent.Stop()
	kind, r, err := l.conn.Reader(ctx)
	if err != nil {
		return 0, nil, err
	}
	l.buf = l.buf[:0]
	for {
		if len(l.buf) == cap(l.buf) {
			l.buf = append(l.buf, make([]byte, max(16<<10, len(l.buf)))...)[:len(l.buf)]
		}
		n, err := r.Read(l.buf[len(l.buf):cap(l.buf)])
		l.buf = l.buf[:len(l.buf)+n]
		if err == io.EOF {
			return kind, l.buf, nil
		}
		if err != nil {
			return 0, nil, err
		}
	}
}

// connect opens a connection and attaches on it.
func (a *Attachment) connect() (*attachLink, error) {
	ctx, cancel := context.WithTimeout(a.ctx, socketTimeout)
	defer cancel()
	l := &attachLink{silent: time.NewTimer(silence)}
	l.silent.Stop()
	conn, err := a.c.dialSocket(ctx, a.path, func() { l.silent.Reset(silence) })
	if err != nil {
		return nil, a.late(err)
	}
	l.conn = conn
	// One context watch serves all reads, so each read does not need its own.
	l.stop = context.AfterFunc(a.ctx, func() { conn.CloseNow() })
	l.silent = time.AfterFunc(silence, func() { conn.CloseNow() })
	a.mu.Lock()
	req := a.req
	a.mu.Unlock()
	if err := a.c.sendMessage(ctx, conn, api.ClientMessage{Attach: &req}); err != nil {
		l.close()
		return nil, a.late(err)
	}
	for {
		kind, data, err := l.read(ctx)
		if err != nil {
			l.close()
			return nil, a.late(a.c.socketFailed(ctx, err))
		}
		m := &api.ServerMessage{}
		if kind != websocket.MessageText {
			err = brokenAnswer("the daemon sent output before it said that the attach is made")
		} else if m, err = decodeMessage(data); err == nil && m.Error != nil {
			err = m.Error
		}
		if err != nil {
			l.close()
			return nil, err
		}
		if m.Started != nil {
			l.started = *m.Started
			return l, nil
		}
	}
}

// late distinguishes the deadline of a handshake from the one of the caller's context.
func (a *Attachment) late(err error) error {
	if api.CodeOf(err) == api.CodeTimeout && a.ctx.Err() == nil {
		e := api.Errorf(api.CodeUnavailable, "the daemon at %s did not answer within %v", a.c.host, socketTimeout)
		e.Retryable = true
		return e
	}
	return err
}

// reconnect waits and connects until it succeeds or a retry cannot help.
func (a *Attachment) reconnect() error {
	for {
		if err := a.c.await(a.ctx, &a.wait, a.why); err != nil {
			return err
		}
		a.mu.Lock()
		next, base := a.next, a.in.base
		a.req.Since = &next
		if a.req.Write {
			a.req.StdinOffset = &base
		}
		a.mu.Unlock()
		again, err := a.closeAgain()
		var l *attachLink
		if err == nil {
			l, err = a.connect()
		}
		if err == nil {
			a.resume(l, again)
			return nil
		}
		if !passing(err) {
			return err
		}
		a.why = err
	}
}

// closeAgain reports whether the end of the input must be sent on the next connection too. For a
// terminal the end is a key press, which must not be repeated. For other input a second end has no
// effect.
func (a *Attachment) closeAgain() (bool, error) {
	a.mu.Lock()
	told := a.in.told
	a.mu.Unlock()
	if !told {
		return true, nil
	}
	var p api.Process
	err := a.c.call(a.ctx, http.MethodGet, strings.TrimSuffix(a.path, "/attach"), nil, nil, &p)
	return !p.TTY, err
}

// resume continues with a new connection.
func (a *Attachment) resume(l *attachLink, closeAgain bool) {
	a.wait.reset()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.end != nil {
		l.close()
		return
	}
	a.in.rewind(closeAgain)
	a.link = l
	a.wakeLocked()
}

// feed sends input while there is a connection.
func (a *Attachment) feed() {
	for {
		a.mu.Lock()
		l, end, changed := a.link, a.end, a.changed
		var data []byte
		var eof bool
		if l != nil {
			data, eof = a.in.next()
		}
		a.mu.Unlock()
		// If the connection accepts no more data, Recv detects it and reconnects: the daemon's
		// last message may still be unread. What is sent in the meantime is lost with the
		// connection and sent again.
		switch {
		case end != nil:
			return
		case len(data) > 0:
			_ = l.conn.Write(a.ctx, websocket.MessageBinary, data)
			continue
		case eof:
			_ = a.c.sendMessage(a.ctx, l.conn, api.ClientMessage{CloseStdin: true})
			continue
		}
		select {
		case <-changed:
		case <-a.ctx.Done():
			return
		}
	}
}

// read handles one message. It returns nothing for a message that is not for the caller.
func (a *Attachment) read(l *attachLink) (*AttachEvent, error) {
	kind, data, err := l.read(context.WithoutCancel(a.ctx))
	if err != nil {
		return nil, a.c.socketFailed(a.ctx, err)
	}
	if kind != websocket.MessageText {
		ev, err := decodeFrame(data)
		if err != nil {
			return nil, err
		}
		return a.output(ev)
	}
	m, err := decodeMessage(data)
	if err != nil {
		return nil, err
	}
	switch {
	case m.Error != nil:
		return nil, m.Error
	case m.Exit != nil:
		return &AttachEvent{Exit: m.Exit}, nil
	case m.Process != nil:
		return &AttachEvent{Process: m.Process}, nil
	case m.Stdin != nil:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.in.ack(m.Stdin.Offset)
		a.wakeLocked()
	case m.Gap != nil && m.Gap.Position > a.next:
		a.next = m.Gap.Position
		return &AttachEvent{Gap: m.Gap}, nil
	}
	return nil, nil
}

// output handles a frame of output. It cuts off what an earlier connection already delivered, and
// reports what is missing.
func (a *Attachment) output(f *Event) (*AttachEvent, error) {
	at := int64(f.Seq)
	if at < 0 || at+int64(len(f.Data)) < 0 {
		return nil, brokenAnswer("the daemon sent output at position %d", f.Seq)
	}
	if cut := a.next - at; cut > 0 {
		if cut >= int64(len(f.Data)) {
			return nil, nil
		}
		at, f.Data = a.next, f.Data[cut:]
	}
	ev := AttachEvent{Stream: f.Stream, Position: at, Data: f.Data}
	missing := at - a.next
	a.next = at + int64(len(f.Data))
	if missing > 0 {
		a.unread = append(a.unread, ev)
		return &AttachEvent{Gap: &api.Gap{Position: at, Bytes: missing}}, nil
	}
	return &ev, nil
}
