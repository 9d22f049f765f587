package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
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
	// stepTimeout bounds the sending of a step, which must not hold up a create.
	stepTimeout = 5 * time.Second
)

// stream serves one WebSocket from its handshake to its end. serve gets the
// first message; its error is the last one.
func (s *Server) stream(w http.ResponseWriter, r request, serve func(sk *socket, first api.ClientMessage) error) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := wantsSocket(w, r); err != nil {
		return err
	}
	if err := s.beginStream(); err != nil {
		return err
	}
	defer s.streams.Done()
	conn, err := accept(w, r)
	if err != nil {
		return nil // the library has answered
	}
	// From here on net/http no longer watches the connection.
	ctx, cancel := context.WithCancel(core.WithRequestID(s.live, r.id))
	sk := &socket{conn: conn, peer: s.peerOf(r), ctx: ctx, cancel: cancel, ready: make(chan struct{}), in: make(chan input, inputFrames)}
	defer sk.end()
	defer r.untilBarred(func() { sk.bar(toWire(context.Cause(r.live), r)) })()
	first, err := s.firstMessage(ctx, conn)
	if err == nil {
		err = serve(sk, first)
	}
	if err != nil {
		sk.fail(toWire(err, r))
	}
	return nil
}

// wantsSocket refuses a plain request for a path that is a WebSocket.
func wantsSocket(w http.ResponseWriter, r request) error {
	if r.Header.Get("Upgrade") != "" {
		return nil
	}
	w.Header().Set("Upgrade", "websocket")
	return api.Invalid("upgrade", "this path is a WebSocket, and the request asks for none").
		WithHint("use a WebSocket client")
}

func accept(w http.ResponseWriter, r request) (*websocket.Conn, error) {
	// The edge has checked the origin, against a list that does not hold this
	// server's own name; the library's check would be a second opinion.
	return websocket.Accept(w, r.Request, &websocket.AcceptOptions{InsecureSkipVerify: true})
}

// asks wants the first message of a stream to ask for one thing, the one that
// this stream is for.
func asks(m api.ClientMessage, want string, has bool) error {
	n := 0
	for _, set := range []bool{m.Exec != nil, m.Run != nil, m.Attach != nil, m.Hold != nil} {
		if set {
			n++
		}
	}
	if !has || n != 1 {
		return api.Invalid(want, "the first message of the stream has no %s, or more than that", want).WithHint(`send {"%s": …}`, want)
	}
	if m.Signal != "" || m.Resize != nil || m.CloseStdin {
		return api.Invalid("body", "the first message of the stream asks for two things").
			WithHint("send signal, resize and close_stdin after it")
	}
	return nil
}

func (s *Server) firstMessage(ctx context.Context, conn *websocket.Conn) (api.ClientMessage, error) {
	var m api.ClientMessage
	// The library would close a socket whose message is over its limit without a
	// word, so that the limit of this one is ours.
	conn.SetReadLimit(-1)
	ctx, cancel := context.WithTimeout(ctx, firstTimeout)
	defer cancel()
	gone := func(err error) error { return api.Errorf(api.CodeCanceled, "the caller went away: %w", err) }
	kind, body, err := conn.Reader(ctx)
	if err != nil {
		return m, gone(err)
	}
	if kind != websocket.MessageText {
		return m, api.Invalid("body", "the first message of the stream is binary").WithHint("send JSON in a text frame")
	}
	data, err := io.ReadAll(io.LimitReader(body, s.maxBody+1))
	if err != nil {
		return m, gone(err)
	}
	if int64(len(data)) > s.maxBody {
		return m, api.Errorf(api.CodeTooLarge, "the first message of the stream is over %d bytes", s.maxBody)
	}
	conn.SetReadLimit(maxFrame)
	return m, decodeJSON(data, &m)
}

// begin begins to read, so that a create whose caller dies is given up.
func (k *socket) begin() {
	k.wg.Go(k.readAll)
	k.wg.Go(func() { k.ping(readsAtWill) })
}

// program is what the messages of a client are for.
type program interface {
	Write(p []byte) (int, error)
	CloseWrite() error
	Resize(rows, cols uint16) error
	Signal(name string) error
	Close() error
}

// join tells the client that its program runs, and hands over what it sends.
// leave closes the program, and so does whatever ends the socket, for a call
// that waits in it.
func (s *Server) join(sk *socket, p program, started api.Started) (leave func(), err error) {
	closeIt := sync.OnceFunc(func() {
		if err := p.Close(); err != nil {
			s.log.Warn("close a stream", "exec", started.ExecID, "error", err)
		}
	})
	stop := context.AfterFunc(sk.ctx, closeIt)
	leave = func() {
		stop()
		closeIt()
	}
	if err := sk.send(sk.ctx, api.ServerMessage{Started: &started}); err != nil {
		return leave, err
	}
	sk.program = p
	close(sk.ready)
	sk.wg.Go(sk.feed)
	return leave, nil
}

// socket is one WebSocket with the goroutines that serve it.
type socket struct {
	conn    *websocket.Conn
	peer    peer
	ctx     context.Context
	cancel  context.CancelFunc
	program program       // set before ready is closed
	ready   chan struct{} // closed when the program runs
	in      chan input
	wg      sync.WaitGroup
	ended   bool // the last message was sent
	// stall is relay's: it ends the socket when a write takes too long.
	stall *time.Timer

	writing sync.Mutex // held for each message
	told    bool       // an error was sent: nothing follows it
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
			if in.end, err = control(k.program, data); err != nil {
				// A client that breaks the protocol is told so, and left.
				_ = k.send(k.ctx, api.ServerMessage{Error: toWire(err, request{})})
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

// refusedInput is input that a program that goes on will not take.
type refusedInput struct{ error }

func (e refusedInput) Unwrap() error { return e.error }

// feed carries stdin to the program. A program that has ended takes none, which
// is no error: its exit is on the way.
func (k *socket) feed() {
	for {
		select {
		case in := <-k.in:
			var err error
			if in.end {
				err = k.program.CloseWrite()
			} else {
				_, err = k.program.Write(in.data)
			}
			if err, ok := errors.AsType[refusedInput](err); ok {
				_ = k.send(k.ctx, api.ServerMessage{Error: toWire(err, request{})})
				k.cancel()
				return
			}
		case <-k.ctx.Done():
			return
		}
	}
}

// control does what one text message requests, and reports whether it closes stdin. The only error
// is an invalid message: a request that a program refuses because it is ending is not an error.
func control(st program, data []byte) (endStdin bool, err error) {
	var m api.ClientMessage
	if err := decodeJSON(data, &m); err != nil {
		return false, err
	}
	if m.Exec != nil || m.Run != nil || m.Attach != nil || m.Hold != nil {
		return false, api.Invalid("body", "a stream runs one program, and this one runs already")
	}
	if m.Resize != nil {
		if err := st.Resize(m.Resize.Rows, m.Resize.Cols); errors.Is(err, api.ErrInvalid) {
			return false, err
		}
	}
	if m.Signal != "" {
		if api.SignalNumber(m.Signal) == 0 {
			return false, api.Invalid("signal", "%q is no signal", clip(m.Signal, 40)).WithHint(`want a name such as "TERM"`)
		}
		if err := st.Signal(m.Signal); errors.Is(err, api.ErrInvalid) {
			return false, err
		}
	}
	return m.CloseStdin, nil
}

// step reports progress of a create. A dead client shows elsewhere.
func (k *socket) step(step string) {
	ctx, cancel := context.WithTimeout(k.ctx, stepTimeout)
	defer cancel()
	_ = k.send(ctx, api.ServerMessage{Step: step})
}

// send writes one message. A socket that cannot be written to is at its end.
func (k *socket) send(ctx context.Context, m api.ServerMessage) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return k.put(ctx, websocket.MessageText, data, m.Error != nil)
}

// errTold is for what would follow an error.
var errTold = errors.New("the stream has ended with an error")

// put writes one frame; nothing follows the last.
func (k *socket) put(ctx context.Context, kind websocket.MessageType, data []byte, last bool) error {
	k.writing.Lock()
	defer k.writing.Unlock()
	if k.told {
		return errTold
	}
	k.told = last
	err := k.conn.Write(ctx, kind, data)
	if err != nil {
		k.cancel()
	}
	return err
}

// bar ends a socket whose caller may no longer be here, and says why where that can
// be said soon.
func (k *socket) bar(e *api.Error) {
	defer k.cancel()
	late := time.AfterFunc(stepTimeout, k.cancel)
	defer late.Stop()
	_ = k.send(k.ctx, api.ServerMessage{Error: e})
}

// fail sends an error as the last message, if the client is still connected.
func (k *socket) fail(e *api.Error) {
	ctx, cancel := context.WithTimeout(k.ctx, stepTimeout)
	defer cancel()
	k.ended = k.send(ctx, api.ServerMessage{Error: e}) == nil
}
