//go:build linux

package netstack

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/internal/egress"
	"golang.org/x/sys/unix"
)

// Link is our end of the network of one sandbox. While nothing comes it is a
// descriptor in the gateway's poller; with the first packet it gets a stack, and
// loses it again when nothing has come for a while and no connection is left.
type Link struct {
	gateway *Gateway
	id      int32
	file    *os.File
	gate    *egress.Gate
	journal *Journal // may be nil
	done    chan struct{}

	mu     sync.Mutex
	awake  bool
	closed bool
	gone   bool // done is closed
	wg     sync.WaitGroup
}

// Gate is what the packets of the link come to.
func (l *Link) Gate() *egress.Gate { return l.gate }

// Done is closed when the other end is gone, or the link was closed.
func (l *Link) Done() <-chan struct{} { return l.done }

// Awake is true while the link has a stack.
func (l *Link) Awake() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.awake
}

// Close ends the link and its gate, and waits for both. It is idempotent.
func (l *Link) Close() error {
	l.mu.Lock()
	was := l.closed
	l.closed = true
	l.mu.Unlock()
	if !was {
		l.gateway.forget(l)
	}
	err := l.file.SetReadDeadline(time.Unix(1, 0)) // ends run
	l.gate.Close()
	l.wg.Wait()
	l.end()
	if was {
		return nil
	}
	if err = errors.Join(err, l.file.Close(), l.journal.Close()); err != nil {
		return fmt.Errorf("close link: %w", err)
	}
	return nil
}

// end closes done once.
func (l *Link) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.gone {
		l.gone = true
		close(l.done)
	}
}

// wake is called by the poller: a frame is there, or the other end is gone.
func (l *Link) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.awake {
		return
	}
	l.awake = true
	l.wg.Go(l.run)
}

// run serves the link from its first frame until it is idle or over.
func (l *Link) run() {
	err := l.serve()
	l.mu.Lock()
	l.awake = false
	closed := l.closed
	l.mu.Unlock()
	if err == nil && !closed {
		err = l.gateway.arm(l, unix.EPOLL_CTL_MOD)
	}
	switch {
	case err == nil || closed:
		return
	case !errors.Is(err, errGone):
		l.gateway.log.LogAttrs(l.gateway.ctx, slog.LevelError, "a link failed, its sandbox has no network", slog.Any("error", err))
	}
	l.end()
}

// serve makes a stack and feeds it. It returns nil when the link is idle or is
// being closed.
func (l *Link) serve() error {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return err
	}
	var over bool
	if err := raw.Control(func(fd uintptr) { over = hungUp(int(fd)) }); err != nil {
		return err
	}
	if over {
		return errGone
	}
	ep := newEndpoint(l.gateway.plan, raw)
	w, err := newWire(l.gateway.plan, ep, l.gate, l.journal)
	if err != nil {
		return err
	}
	defer w.close()
	buf := l.gateway.buffer()
	defer l.gateway.release(buf)
	for frames := 0; ; {
		// Not for each frame: to set a deadline costs as much as to read one.
		if frames == 0 {
			if !l.patience() {
				return nil
			}
		}
		switch err := ep.receive(*buf); {
		case err == nil:
			frames++
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case l.over(frames):
			return nil
		default:
			frames = 0
		}
	}
}

// patience sets how long to wait for frames; false when the link is being closed.
func (l *Link) patience() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.closed && l.file.SetReadDeadline(time.Now().Add(l.gateway.idle)) == nil
}

// over is true when the link can go to sleep, or is being closed.
func (l *Link) over(frames int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed || frames == 0 && l.gate.Flows() == 0
}

// Duplicate is another descriptor of our end of the link, which is the caller's. Who
// reads from it takes frames away from the Link.
func (l *Link) Duplicate() (*os.File, error) {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("duplicate link: %w", err)
	}
	var fd int
	var derr error
	err = raw.Control(func(from uintptr) { fd, derr = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 3) })
	if err := errors.Join(err, derr); err != nil {
		return nil, fmt.Errorf("duplicate link: %w", err)
	}
	return os.NewFile(uintptr(fd), "link"), nil
}
