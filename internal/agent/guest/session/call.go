//go:build linux

package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// Call is one stream of a session: a request and its answers.
type Call struct {
	*wire.Reader
	*wire.Writer
	Stream  *yamux.Stream
	Session *Session
}

// Done answers a request whose answer carries no data.
func (p *Call) Done(err error) error {
	if err != nil {
		return err
	}
	return p.JSON(wire.KindReply, wire.Empty{})
}

// Attend reads what the caller still sends and gives each frame to heard, which may be nil. The
// context ends when the caller is gone, and a write that waits for the caller fails then.
func (p *Call) Attend(heard func(wire.Kind, []byte)) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	p.Go(func() {
		defer cancel()
		for {
			kind, payload, err := p.Next()
			if err != nil {
				_ = p.Stream.SetWriteDeadline(time.Unix(1, 0))
				return
			}
			if heard != nil {
				heard(kind, payload)
			}
		}
	})
	return ctx
}

// Data returns the bytes that follow the request.
func (p *Call) Data() *Data { return NewData(p.Next) }

// Go runs fn, which ends with the stream at the latest. The session waits for it.
func (p *Call) Go(fn func()) { p.Session.wg.Go(fn) }

// Data is the bytes that follow a request, up to the end mark. A stream that ends without the mark
// fails with [ErrGivenUp].
type Data struct {
	next func() (wire.Kind, []byte, error)
	rest []byte
	done bool
}

// NewData returns the bytes in the frames that next returns.
func NewData(next func() (wire.Kind, []byte, error)) *Data { return &Data{next: next} }

// Read reads the next bytes; io.EOF is the end mark.
func (d *Data) Read(b []byte) (int, error) {
	for len(d.rest) == 0 {
		if d.done {
			return 0, io.EOF
		}
		kind, payload, err := d.next()
		switch {
		case err != nil:
			return 0, fmt.Errorf("%w: %w", ErrGivenUp, err)
		case kind == wire.KindEnd:
			d.done = true
		case kind != wire.KindData:
			return 0, api.Errorf(api.CodeInvalid, "kind %q stands among the bytes of a file", byte(kind))
		default:
			d.rest = payload
		}
	}
	n := copy(b, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// ErrGivenUp says that the caller ended a transfer before its end mark.
var ErrGivenUp = errors.New("the transfer was given up")
