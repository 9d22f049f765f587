package httpapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/coder/websocket"
)

const (
	// dialTimeout bounds how long a port inside may take to accept.
	dialTimeout = 30 * time.Second
	// portBuffer is how much of a port's bytes is in one frame.
	portBuffer = 64 << 10
)

// port carries the bytes of a TCP connection to a port inside, as binary frames
// of a WebSocket; an empty frame ends its direction. The port is dialled before
// the handshake, so that a refusal is an ordinary answer.
func (s processes) port(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	port, err := portOf(r)
	if err != nil {
		return err
	}
	if err := wantsSocket(w, r); err != nil {
		return err
	}
	if err := s.beginStream(); err != nil {
		return err
	}
	defer s.streams.Done()
	ctx, cancel := context.WithCancel(core.WithRequestID(s.live, r.id))
	defer cancel()
	defer r.untilBarred(cancel)()
	conn, err := s.dialPort(ctx, cancel, r, port)
	if err != nil {
		return err
	}
	defer conn.Close()
	ws, err := accept(w, r)
	if err != nil {
		return nil // the library has answered
	}
	defer ws.CloseNow()
	tunnel(&socket{conn: ws, peer: s.peerOf(r), ctx: ctx, cancel: cancel}, conn)
	return nil
}

// portOf is the port in the path.
func portOf(r request) (int, error) {
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port == 0 {
		return 0, api.Invalid("port", "%q is no port", clip(r.PathValue("port"), 40)).WithHint("give a number from 1 to 65535")
	}
	return int(port), nil
}

func (s processes) openPort(w http.ResponseWriter, r request) error {
	var spec api.PortSpec
	if err := queryOf(r).end(); err != nil {
		return err
	}
	if err := s.readJSON(w, r, &spec); err != nil {
		return err
	}
	opened, err := s.core.OpenPort(context.WithoutCancel(r.Context()), r.caller, r.ref(), spec)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, opened)
	return nil
}

func (s processes) openPorts(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	list, err := s.core.OpenPorts(r.Context(), r.caller, r.ref())
	if err != nil {
		return err
	}
	list.Ports = nonNil(list.Ports)
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (s processes) closePort(w http.ResponseWriter, r request) error {
	if err := queryOf(r).end(); err != nil {
		return err
	}
	port, err := portOf(r)
	if err != nil {
		return err
	}
	if err := s.core.ClosePort(context.WithoutCancel(r.Context()), r.caller, r.ref(), port); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// dialPort gives up when it takes too long, or its caller leaves. The connection
// outlives the request, which ends at the handshake in the eyes of net/http.
func (s processes) dialPort(ctx context.Context, cancel context.CancelFunc, r request, port int) (net.Conn, error) {
	t := time.AfterFunc(dialTimeout, cancel)
	stop := context.AfterFunc(r.Context(), cancel)
	conn, err := s.core.DialPort(ctx, r.caller, r.ref(), port)
	stop()
	if late := !t.Stop(); late && err != nil {
		return nil, api.Errorf(api.CodeTimeout, "port %d did not accept within %v", port, dialTimeout)
	}
	return conn, err
}

// tunnel copies both ways until both have ended, or either cannot go on.
func tunnel(sk *socket, conn net.Conn) {
	ctx, cancel, ws := sk.ctx, sk.cancel, sk.conn
	ws.SetReadLimit(-1) // a frame is copied piece by piece
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	sk.wg.Go(func() { sk.ping(readsAtWill) })
	var both sync.WaitGroup
	both.Go(func() {
		if fromSocket(ctx, ws, conn) != nil {
			cancel()
			return
		}
		// A goroutine must read on, so that pings are answered and a client that leaves is
		// noticed.
		sk.wg.Go(func() {
			_, _, _ = ws.Reader(ctx)
			cancel()
		})
	})
	both.Go(func() {
		if toSocket(ctx, ws, conn) != nil {
			cancel()
		}
	})
	both.Wait()
	if ctx.Err() == nil {
		ws.Close(websocket.StatusNormalClosure, "")
	}
	cancel()
	ws.CloseNow()
	sk.wg.Wait()
}

// fromSocket copies what the client sends, up to its end.
func fromSocket(ctx context.Context, ws *websocket.Conn, conn net.Conn) error {
	buf := make([]byte, portBuffer)
	for {
		kind, r, err := ws.Reader(ctx)
		if err != nil {
			return err
		}
		if kind != websocket.MessageBinary {
			return errors.New("text where a port's bytes were due")
		}
		n, err := io.CopyBuffer(onlyWriter{conn}, r, buf)
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			err = half.CloseWrite()
		}
		return err
	}
}

// toSocket copies what the port sends, up to its end.
func toSocket(ctx context.Context, ws *websocket.Conn, conn net.Conn) error {
	buf := make([]byte, portBuffer)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if werr := ws.Write(ctx, websocket.MessageBinary, buf[:n]); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			return ws.Write(ctx, websocket.MessageBinary, nil)
		}
		if err != nil {
			return err
		}
	}
}

// onlyWriter hides a ReadFrom, which would not use the buffer.
type onlyWriter struct{ io.Writer }
