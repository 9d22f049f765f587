package client

import (
	"context"
	"encoding/binary"
	"io"
	"slices"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/coder/websocket"
)

// Event is one message of a streamed exec: output, or its end.
type Event struct {
	// Stream is the stream that Data belongs to. It is empty with Exit.
	Stream api.Stream
	// Seq counts the output events of both streams together from 0, in the order in which the
	// output was read from the program.
	Seq  uint64
	Data []byte
	// Exit is the result without the streamed output. It comes last.
	Exit *api.Result
}

// Stream is a running program with streamed input and output. Only one goroutine at a time can call
// Recv. The other methods can be called from any goroutine. If the output is not received, the
// program blocks: output is not buffered without limit.
//
// A stream ends when the context that it was created with ends. When it is closed or breaks early,
// an exec continues and its output goes to the logs. A run is ended, and its sandbox is removed.
type Stream struct {
	c       *Client
	conn    *websocket.Conn
	ctx     context.Context
	cancel  context.CancelFunc
	execID  string
	sandbox *api.Sandbox
	next    uint64
	end     error // the final error of Recv
	close   func()
}

// Maximum size of a message, and of the stdin in one message.
const (
	maxMessage = 16 << 20
	stdinFrame = 64 << 10
)

// ExecStream starts a program in a sandbox and returns when it has been
// executed.
func (c *Client) ExecStream(ctx context.Context, ref string, req api.ExecRequest) (*Stream, error) {
	p, err := sandboxPath(ref, "/exec/stream")
	if err != nil {
		return nil, err
	}
	if err := checkExec("", req); err != nil {
		return nil, err
	}
	return c.openStream(ctx, p, api.ClientMessage{Exec: &req}, nil)
}

// RunStream creates a sandbox, starts a program in it and returns when the program has been
// executed. The daemon removes the sandbox when the program or the stream ends, unless the request
// sets Keep. If step is not nil, it is called with the name of each step of the create, from the
// calling goroutine.
func (c *Client) RunStream(ctx context.Context, req api.RunRequest, step func(string)) (*Stream, error) {
	if err := checkRun(req); err != nil {
		return nil, err
	}
	return c.openStream(ctx, "/run/stream", api.ClientMessage{Run: &req}, step)
}

func (c *Client) openStream(ctx context.Context, path string, first api.ClientMessage, step func(string)) (*Stream, error) {
	conn, err := c.dialSocket(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	s := &Stream{c: c, conn: conn}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.close = sync.OnceFunc(func() {
		conn.CloseNow()
		s.cancel()
	})
	if err := s.begin(first, step); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// begin sends the request and waits until the program has been executed.
func (s *Stream) begin(first api.ClientMessage, step func(string)) error {
	if err := s.send(first); err != nil {
		return err
	}
	for {
		m, ev, err := s.read()
		switch {
		case err != nil:
			return err
		case ev != nil:
			return brokenAnswer("the daemon sent output before it said that the program has started")
		case m.Error != nil:
			return m.Error
		case m.Sandbox != nil:
			s.sandbox = m.Sandbox
		case m.Started != nil:
			s.execID = m.Started.ExecID
			return nil
		case m.Exit != nil:
			return brokenAnswer("the daemon sent an exit before it said that the program has started")
		case m.Step != "" && step != nil:
			step(m.Step)
		default:
			tellPull(s.ctx, m.Pull)
		}
	}
}

// ExecID returns the ID of the process, which the logs use too.
func (s *Stream) ExecID() string { return s.execID }

// Sandbox returns the record of a run's sandbox. It is nil for an exec.
func (s *Stream) Sandbox() *api.Sandbox { return s.sandbox }

// Recv waits for the next event. After the event with Exit it returns io.EOF.
func (s *Stream) Recv() (Event, error) {
	for s.end == nil {
		m, ev, err := s.read()
		switch {
		case err != nil:
			s.end = err
		case ev != nil:
			return *ev, nil
		case m.Error != nil:
			s.end = m.Error
		case m.Exit != nil:
			s.end = io.EOF
			// The daemon closes after this message, so the closing handshake is short.
			s.conn.Close(websocket.StatusNormalClosure, "")
			s.close()
			return Event{Exit: m.Exit}, nil
		}
	}
	s.close()
	return Event{}, s.end
}

// Copy writes all output to stdout and stderr, either of which can be nil, and returns the result.
func (s *Stream) Copy(stdout, stderr io.Writer) (*api.Result, error) {
	for {
		ev, err := s.Recv()
		if err != nil {
			return nil, err
		}
		if ev.Exit != nil {
			return ev.Exit, nil
		}
		if _, err := outputOf(ev.Stream, stdout, stderr).Write(ev.Data); err != nil {
			return nil, err
		}
	}
}

// outputOf returns the writer of one of the two streams.
func outputOf(s api.Stream, stdout, stderr io.Writer) io.Writer {
	w := stdout
	if s == api.Stderr {
		w = stderr
	}
	if w == nil {
		return io.Discard
	}
	return w
}

// Write sends p to the program's stdin. It blocks while the program does not
// read.
func (s *Stream) Write(p []byte) (int, error) {
	n := 0
	for chunk := range slices.Chunk(p, stdinFrame) {
		if err := s.conn.Write(s.ctx, websocket.MessageBinary, chunk); err != nil {
			return n, s.broken(err)
		}
		n += len(chunk)
	}
	return n, nil
}

// CloseWrite closes the program's stdin.
func (s *Stream) CloseWrite() error { return s.send(api.ClientMessage{CloseStdin: true}) }

// Resize changes the size of the program's terminal.
func (s *Stream) Resize(rows, cols uint16) error {
	return s.send(resizeMessage(rows, cols))
}

func resizeMessage(rows, cols uint16) api.ClientMessage {
	return api.ClientMessage{Resize: &api.Size{Rows: rows, Cols: cols}}
}

// Signal sends a signal to the program's process group. name is as in Result.Signal.
func (s *Stream) Signal(name string) error {
	m, err := signalMessage(name)
	if err != nil {
		return err
	}
	return s.send(m)
}

// signalMessage returns the message that requests a signal.
func signalMessage(name string) (m api.ClientMessage, err error) {
	if api.SignalNumber(name) == 0 {
		return m, api.Invalid("signal", "%q is no signal", name).WithHint(`give a name such as "TERM"`)
	}
	return api.ClientMessage{Signal: name}, nil
}

// Close closes the stream. See Stream for what happens to the program. Close is idempotent.
func (s *Stream) Close() error {
	s.close()
	return nil
}

func (s *Stream) send(m api.ClientMessage) error { return s.c.sendMessage(s.ctx, s.conn, m) }

// read returns the next message. One of the two results is set.
func (s *Stream) read() (*api.ServerMessage, *Event, error) {
	kind, data, err := s.conn.Read(s.ctx)
	if err != nil {
		return nil, nil, s.broken(err)
	}
	if kind == websocket.MessageText {
		m, err := decodeMessage(data)
		return m, nil, err
	}
	ev, err := decodeFrame(data)
	if err != nil {
		return nil, nil, err
	}
	if ev.Seq != s.next {
		return nil, nil, brokenAnswer("output %d came where %d was due", ev.Seq, s.next)
	}
	s.next++
	return nil, ev, nil
}

func (s *Stream) broken(err error) error { return s.c.socketFailed(s.ctx, err) }

// decodeMessage decodes a text frame from the daemon.
func decodeMessage(data []byte) (*api.ServerMessage, error) {
	var m api.ServerMessage
	if err := decode(data, &m); err != nil {
		return nil, err
	}
	return &m, nil
}

// decodeFrame decodes a binary frame from the daemon. The event shares data.
func decodeFrame(data []byte) (*Event, error) {
	if len(data) < api.FrameHeaderLen {
		return nil, brokenAnswer("the daemon sent an output frame of %d bytes", len(data))
	}
	ev := &Event{Seq: binary.BigEndian.Uint64(data[1:api.FrameHeaderLen]), Data: data[api.FrameHeaderLen:]}
	switch data[0] {
	case api.FrameStdout:
		ev.Stream = api.Stdout
	case api.FrameStderr:
		ev.Stream = api.Stderr
	default:
		return nil, brokenAnswer("the daemon sent output of stream %d", data[0])
	}
	return ev, nil
}
