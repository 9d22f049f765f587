package httpapi

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/coder/websocket"
)

// Limits of a stream.
const (
	// firstTimeout is how long the first message may take to arrive.
	firstTimeout = 30 * time.Second
	// maxFrame bounds a message from the client after the first.
	maxFrame = 256 << 10
	// inputFrames of input wait for the program. Signals and sizes overtake them.
	// When more comes the client is held up, signals behind it included.
	inputFrames = 16
	// maxOutputFrame is how much output is in one frame.
	maxOutputFrame = 256 << 10
	// pingEvery is how soon a client that died is noticed while neither side has
	// anything to say, and keeps proxies from closing a quiet stream.
	pingEvery = 10 * time.Second
	// stepTimeout bounds the sending of a step, which must not hold up a create.
	stepTimeout = 5 * time.Second
)

func (s *Server) execStream(w http.ResponseWriter, r request) error {
	return s.stream(w, r, func(ctx context.Context, sk *socket, first cloche.ClientMessage) (Stream, error) {
		if first.Exec == nil || first.Run != nil {
			return nil, cloche.Invalid("exec", "the first message of the stream has no exec").WithHint(`send {"exec": …}`)
		}
		return s.core.ExecStream(ctx, r.caller, r.ref(), *first.Exec)
	})
}

func (s *Server) runStream(w http.ResponseWriter, r request) error {
	return s.stream(w, r, func(ctx context.Context, sk *socket, first cloche.ClientMessage) (Stream, error) {
		if first.Run == nil || first.Exec != nil {
			return nil, cloche.Invalid("run", "the first message of the stream has no run").WithHint(`send {"run": …}`)
		}
		sb, st, err := s.core.RunStream(ctx, r.caller, *first.Run, func(step string) {
			ctx, cancel := context.WithTimeout(ctx, stepTimeout)
			defer cancel()
			_ = sk.send(ctx, cloche.ServerMessage{Step: step}) // a dead client shows elsewhere
		})
		if err != nil {
			return nil, err
		}
		_ = sk.send(ctx, cloche.ServerMessage{Sandbox: &sb})
		return st, nil
	})
}

// opener asks core for the stream that the first message asks for.
type opener func(ctx context.Context, sk *socket, first cloche.ClientMessage) (Stream, error)

// stream serves one WebSocket from its handshake to its end.
func (s *Server) stream(w http.ResponseWriter, r request, open opener) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if r.Header.Get("Upgrade") == "" {
		w.Header().Set("Upgrade", "websocket")
		return cloche.Invalid("upgrade", "this path is a WebSocket, and the request asks for none").
			WithHint("use a WebSocket client")
	}
	if err := s.beginStream(); err != nil {
		return err
	}
	defer s.streams.Done()
	// The edge has checked the origin, against a list that does not hold this
	// server's own name; the library's check would be a second opinion.
	conn, err := websocket.Accept(w, r.Request, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return nil // the library has answered
	}
	// From here on net/http no longer watches the connection.
	ctx, cancel := context.WithCancel(core.WithRequestID(s.live, r.id))
	sk := &socket{conn: conn, ctx: ctx, cancel: cancel, ready: make(chan struct{}), in: make(chan input, inputFrames)}
	defer sk.end()
	first, err := s.firstMessage(ctx, conn)
	if err == nil {
		err = s.converse(sk, first, open)
	}
	if err != nil {
		sk.fail(toWire(err, r.id, r.caller))
	}
	return nil
}

func (s *Server) firstMessage(ctx context.Context, conn *websocket.Conn) (cloche.ClientMessage, error) {
	var m cloche.ClientMessage
	// The library would close a socket whose message is over its limit without a
	// word, so that the limit of this one is ours.
	conn.SetReadLimit(-1)
	ctx, cancel := context.WithTimeout(ctx, firstTimeout)
	defer cancel()
	gone := func(err error) error { return cloche.Errorf(cloche.CodeCanceled, "the caller went away: %w", err) }
	kind, body, err := conn.Reader(ctx)
	if err != nil {
		return m, gone(err)
	}
	if kind != websocket.MessageText {
		return m, cloche.Invalid("body", "the first message of the stream is binary").WithHint("send JSON in a text frame")
	}
	data, err := io.ReadAll(io.LimitReader(body, s.maxBody+1))
	if err != nil {
		return m, gone(err)
	}
	if int64(len(data)) > s.maxBody {
		return m, cloche.Errorf(cloche.CodeTooLarge, "the first message of the stream is over %d bytes", s.maxBody)
	}
	conn.SetReadLimit(maxFrame)
	return m, decodeJSON(data, &m)
}

// converse opens the stream and carries it to its end. The Stream is closed when
// it returns: that detaches from an exec and tears a run down.
func (s *Server) converse(sk *socket, first cloche.ClientMessage, open opener) error {
	if first.Signal != "" || first.Resize != nil || first.CloseStdin {
		return cloche.Invalid("body", "the first message of the stream asks for two things").
			WithHint("send signal, resize and close_stdin after it")
	}
	// Reading begins at once, so that a create whose caller dies is given up.
	sk.wg.Go(sk.readAll)
	sk.wg.Go(sk.ping)
	st, err := open(sk.ctx, sk, first)
	if err != nil {
		return err
	}
	closeStream := sync.OnceFunc(func() {
		if err := st.Close(); err != nil {
			s.log.Warn("close a stream", "exec", st.ExecID(), "error", err)
		}
	})
	defer closeStream()
	// Whatever ends the socket ends the Stream, and with it any call that waits.
	stop := context.AfterFunc(sk.ctx, closeStream)
	defer stop()
	if err := sk.send(sk.ctx, cloche.ServerMessage{Started: &cloche.Started{ExecID: st.ExecID()}}); err != nil {
		return nil
	}
	sk.stream = st
	close(sk.ready)
	sk.wg.Go(sk.feed)
	return sk.output(st)
}

// socket is one WebSocket with the goroutines that serve it.
type socket struct {
	conn   *websocket.Conn
	ctx    context.Context
	cancel context.CancelFunc
	stream Stream        // set before ready is closed
	ready  chan struct{} // closed when the program runs
	in     chan input
	wg     sync.WaitGroup
	ended  bool // the last message was sent
}

// input is a piece of stdin, or its end.
type input struct {
	data []byte
	end  bool
}

// end closes the socket and waits for its goroutines. When the last message was
// sent, the client gets the time to read it.
func (k *socket) end() {
	if k.ended {
		k.conn.Close(websocket.StatusNormalClosure, "")
	}
	k.cancel()
	k.conn.CloseNow()
	k.wg.Wait()
}

// readAll takes in what the client sends until it leaves. Stdin waits for the
// program in a queue; a signal must not, for it may be about a program that
// does not read.
func (k *socket) readAll() {
	defer k.cancel()
	for {
		kind, data, err := k.conn.Read(k.ctx)
		if err != nil {
			return
		}
		in := input{data: data}
		if kind == websocket.MessageText {
			select {
			case <-k.ready:
			case <-k.ctx.Done():
				return
			}
			if in.end, err = control(k.stream, data); err != nil {
				// A client that breaks the protocol is told so, and left.
				_ = k.send(k.ctx, cloche.ServerMessage{Error: toWire(err, "", core.Caller{})})
				return
			}
			if in.data = nil; !in.end {
				continue
			}
		}
		select {
		case k.in <- in:
		case <-k.ctx.Done():
			return
		}
	}
}

// ping writes to the socket now and then: to one whose other end is gone it
// cannot. That an answer is late means nothing, for a client reads when it likes.
func (k *socket) ping() {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-t.C:
		}
		ctx, cancel := context.WithTimeout(k.ctx, pingEvery)
		err := k.conn.Ping(ctx)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			k.cancel()
			return
		}
	}
}

// feed carries stdin to the program. A program that has ended takes none, which
// is no error: its exit is on the way.
func (k *socket) feed() {
	for {
		select {
		case in := <-k.in:
			if in.end {
				_ = k.stream.CloseWrite()
			} else {
				_, _ = k.stream.Write(in.data)
			}
		case <-k.ctx.Done():
			return
		}
	}
}

// control does what one text message asks for, and reports whether it ends
// stdin. The only error is that the message is wrong: what a program that is
// ending refuses is nobody's fault.
func control(st Stream, data []byte) (endStdin bool, err error) {
	var m cloche.ClientMessage
	if err := decodeJSON(data, &m); err != nil {
		return false, err
	}
	if m.Exec != nil || m.Run != nil {
		return false, cloche.Invalid("body", "a stream runs one program, and this one runs already")
	}
	if m.Resize != nil {
		if err := st.Resize(m.Resize.Rows, m.Resize.Cols); errors.Is(err, cloche.ErrInvalid) {
			return false, err
		}
	}
	if m.Signal != "" {
		if cloche.SignalNumber(m.Signal) == 0 {
			return false, cloche.Invalid("signal", "%q is no signal", clip(m.Signal, 40)).WithHint(`want a name such as "TERM"`)
		}
		if err := st.Signal(m.Signal); errors.Is(err, cloche.ErrInvalid) {
			return false, err
		}
	}
	return m.CloseStdin, nil
}

// output carries the program's output to the client, at the client's pace, and
// its exit last. It numbers the frames itself: what a sandbox counts is not
// trusted.
func (k *socket) output(st Stream) error {
	var seq uint64
	var buf []byte
	for {
		ev, err := st.Recv()
		if k.ctx.Err() != nil {
			return nil // the socket ended first, and what comes now came of that
		}
		if errors.Is(err, io.EOF) {
			return cloche.Errorf(cloche.CodeInternal, "the stream ended without an exit")
		}
		if err != nil {
			return err
		}
		if ev.Exit != nil {
			k.ended = k.send(k.ctx, cloche.ServerMessage{Exit: ev.Exit}) == nil
			return nil
		}
		kind := cloche.FrameStdout
		if ev.Stream == cloche.Stderr {
			kind = cloche.FrameStderr
		}
		for data := ev.Data; len(data) > 0; seq++ {
			n := min(len(data), maxOutputFrame)
			buf = binary.BigEndian.AppendUint64(append(buf[:0], kind), seq)
			buf = append(buf, data[:n]...)
			data = data[n:]
			if err := k.conn.Write(k.ctx, websocket.MessageBinary, buf); err != nil {
				k.cancel()
				return nil
			}
		}
	}
}

// send writes one message. A socket that cannot be written to is at its end.
func (k *socket) send(ctx context.Context, m cloche.ServerMessage) error {
	data, err := json.Marshal(m)
	if err == nil {
		err = k.conn.Write(ctx, websocket.MessageText, data)
	}
	if err != nil {
		k.cancel()
	}
	return err
}

// fail sends an error as the last message, where somebody is there to read it.
func (k *socket) fail(e *cloche.Error) {
	ctx, cancel := context.WithTimeout(k.ctx, stepTimeout)
	defer cancel()
	k.ended = k.send(ctx, cloche.ServerMessage{Error: e}) == nil
}
