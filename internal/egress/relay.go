package egress

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// bufSize is for the readers of first bytes and of HTTP heads.
	bufSize = 16 << 10
	// A flow that is idle holds smallBuf for each direction, a busy one largeBuf.
	smallBuf = 4 << 10
	largeBuf = 128 << 10
)

// meter passes on what leaves or comes back, counts it, and ends the flow when a
// budget is used up.
type meter struct {
	w     io.Writer
	f     *flow
	flow  *atomic.Int64
	total *atomic.Int64
	limit func(*Usage) int64 // 0 is unlimited
	verb  string
}

func (f *flow) outward(w io.Writer) *meter {
	return &meter{w, f, &f.out, &f.gate.bytesOut, func(u *Usage) int64 { return u.BytesOut }, "sent"}
}

func (f *flow) inward(w io.Writer) *meter {
	return &meter{w, f, &f.in, &f.gate.bytesIn, func(u *Usage) int64 { return u.BytesIn }, "received"}
}

// Write implements io.Writer. Bytes are taken from the budget before they are
// written, so that no two flows get the same ones.
func (m *meter) Write(b []byte) (int, error) {
	m.f.moved.Store(time.Now().UnixNano())
	excess, limit := 0, m.limit(m.f.gate.budget.Load())
	if after := m.total.Add(int64(len(b))); limit > 0 && after > limit {
		excess = int(min(after-limit, int64(len(b))))
		m.total.Add(int64(-excess))
	}
	n, err := m.w.Write(b[:len(b)-excess])
	m.flow.Add(int64(n))
	if err == nil && excess > 0 {
		ref := usedUp(m.verb)
		m.f.tell(StageFlow, ref)
		m.f.cancel(ref)
		return n, ref
	}
	return n, err
}

// relay moves bytes both ways at once until both sides have ended, which is nil,
// or something goes wrong. An end on one side is passed on and leaves the other
// direction open. What the client sends is read from r.
func (f *flow) relay(client Conn, r io.Reader, server net.Conn) error {
	var wg sync.WaitGroup
	var outErr error
	wg.Go(func() {
		if outErr = pump(f.outward(server), r); outErr == nil {
			outErr = closeWrite(server)
		}
		if outErr != nil {
			f.cancel(fmt.Errorf("send: %w", outErr))
		}
	})
	err := pump(f.inward(client), server)
	if err == nil {
		err = client.CloseWrite()
	}
	if err != nil {
		f.cancel(fmt.Errorf("receive: %w", err))
	}
	wg.Wait()
	return errors.Join(outErr, err)
}

// closeWrite passes an end on. A connection that cannot end by halves is left
// open: the other side sees the end when all is over.
func closeWrite(c net.Conn) error {
	half, ok := c.(interface{ CloseWrite() error })
	if !ok {
		return nil
	}
	if err := half.CloseWrite(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// pump copies until r ends. It begins with a small buffer, and has a large one
// only as long as there is much to move.
func pump(w io.Writer, r io.Reader) error {
	small := make([]byte, smallBuf)
	var large []byte
	for {
		buf := small
		if large != nil {
			buf = large
		}
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case n == len(small) && large == nil:
			large = make([]byte, largeBuf)
		case n < smallBuf:
			large = nil
		}
	}
}
