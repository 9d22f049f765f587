package httpapi

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/coder/websocket"
)

// endTime is how long to wait for the exit of a process that no longer accepts input.
const endTime = time.Second

func (s processes) attach(w http.ResponseWriter, r request) error {
	return s.stream(w, r, func(sk *socket, first api.ClientMessage) error {
		if err := asks(first, "attach", first.Attach != nil); err != nil {
			return err
		}
		sk.begin()
		a, err := s.core.Attach(sk.ctx, r.caller, r.ref(), r.process(), *first.Attach)
		if err != nil {
			return err
		}
		goesOn := func() bool {
			moment := api.WaitRequest{TimeoutMS: endTime.Milliseconds()}
			p, err := s.core.WaitProcess(sk.ctx, r.caller, r.ref(), r.process(), moment)
			return err == nil && !p.State.Ended()
		}
		leave, err := s.join(sk, attached{a, goesOn}, a.Started())
		defer leave()
		if err != nil {
			return nil
		}
		return sk.relay(a)
	})
}

// attached is an Attachment that acts as the program of a stream.
type attached struct {
	Attachment
	// goesOn reports whether the process still exists after a short wait.
	goesOn func() bool
}

func (a attached) Write(p []byte) (int, error) {
	if err := a.Attachment.Write(p); err != nil {
		return 0, a.refused(err)
	}
	return len(p), nil
}

func (a attached) CloseWrite() error { return a.refused(a.Attachment.CloseWrite()) }

// refused distinguishes input that was refused from input that came too late.
func (a attached) refused(err error) error {
	if code := api.CodeOf(err); (code == api.CodeState || code == api.CodeInvalid) && a.goesOn() {
		return refusedInput{err}
	}
	return err
}

// relay sends what an attach receives to the client, and the exit last. It disconnects a client
// that accepts no data for stallTimeout, so that nothing waits for it. The client can return for
// what it missed.
func (k *socket) relay(a Attachment) error {
	// One timer and one context watch serve all writes. Otherwise each of many followers would
	// need its own for every frame.
	hangUp := func() {
		k.cancel()
		k.conn.CloseNow()
	}
	defer context.AfterFunc(k.ctx, hangUp)()
	k.stall = time.AfterFunc(stallTimeout, hangUp)
	k.stall.Stop() // until something is written
	unwatched := context.WithoutCancel(k.ctx)
	var buf []byte
	for {
		ev, err := a.Recv()
		if k.ctx.Err() != nil {
			return nil // the socket ended first, and what comes now came of that
		}
		if errors.Is(err, io.EOF) {
			return api.Errorf(api.CodeInternal, "the attach ended without an exit")
		}
		if err != nil {
			return err
		}
		if len(ev.Data) == 0 {
			if err := k.say(unwatched, ev); err != nil || ev.Exit != nil {
				k.ended = err == nil
				return nil
			}
			continue
		}
		kind, at := frameKind(ev.Stream), ev.Position
		for data := ev.Data; len(data) > 0; {
			n := min(len(data), maxOutputFrame)
			buf = binary.BigEndian.AppendUint64(append(buf[:0], kind), uint64(at))
			buf = append(buf, data[:n]...)
			data, at = data[n:], at+int64(n)
			if k.write(unwatched, websocket.MessageBinary, buf) != nil {
				return nil
			}
		}
	}
}

// say sends what an attach said besides output.
func (k *socket) say(ctx context.Context, ev core.AttachEvent) error {
	data, err := json.Marshal(api.ServerMessage{Gap: ev.Gap, Process: ev.Process, Stdin: ev.Stdin, Exit: ev.Exit})
	if err != nil {
		return err
	}
	return k.write(ctx, websocket.MessageText, data)
}

// write is relay's: for a client that is not waited for.
func (k *socket) write(ctx context.Context, kind websocket.MessageType, data []byte) error {
	k.stall.Reset(stallTimeout)
	defer k.stall.Stop()
	return k.put(ctx, kind, data, false)
}
