//go:build linux

package netstack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/internal/egress"
	"golang.org/x/sys/unix"
)

// Options are what a Gateway is made of.
type Options struct {
	// Idle is how long a link keeps its stack when nothing comes; 0 is 10 seconds.
	Idle time.Duration
	// Log is for failures that no caller waits for; it may be nil.
	Log *slog.Logger
}

const defaultIdle = 10 * time.Second

// Gateway holds the links of all sandboxes: one poller, in which each idle link
// is one descriptor.
type Gateway struct {
	plan Plan
	idle time.Duration
	log  *slog.Logger
	ctx  context.Context // of log lines
	bufs sync.Pool       // *[]byte, one for each link that is awake
	poll int             // the epoll descriptor
	stop int             // an eventfd that ends the poller
	wg   sync.WaitGroup

	mu     sync.Mutex
	links  map[int32]*Link
	last   int32
	closed bool
}

// New makes a Gateway and starts its poller. Close ends it; of ctx it keeps the
// values.
func New(ctx context.Context, o Options) (*Gateway, error) {
	g := &Gateway{plan: DefaultPlan(), idle: o.Idle, log: o.Log, ctx: context.WithoutCancel(ctx), links: map[int32]*Link{}}
	if g.idle == 0 {
		g.idle = defaultIdle
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	// One byte more than a frame may have shows a longer one for what it is.
	g.bufs.New = func() any { b := make([]byte, etherHeader+g.plan.MTU+1); return &b }
	var err error
	if g.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make poller of links: %w", err)
	}
	if g.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("make poller of links: %w", err), unix.Close(g.poll))
	}
	// Links have ids from 1, so 0 is the one that ends it.
	if err := unix.EpollCtl(g.poll, unix.EPOLL_CTL_ADD, g.stop, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
		return nil, errors.Join(fmt.Errorf("make poller of links: %w", err), unix.Close(g.poll), unix.Close(g.stop))
	}
	g.wg.Go(g.watch)
	return g, nil
}

// Plan is what links look like from inside, for engines.
func (g *Gateway) Plan() Plan { return g.plan }

// Open takes over ours, one end of a pair, gate, which gets what comes through it, and
// journal, which may be nil; connections that it has of an earlier life are reset. On
// an error all are still the caller's.
func (g *Gateway) Open(ours *os.File, gate *egress.Gate, journal *Journal) (*Link, error) {
	l := &Link{gateway: g, file: ours, gate: gate, journal: journal, done: make(chan struct{})}
	if journal != nil {
		if err := l.resetLeft(journal.left()); err != nil {
			return nil, fmt.Errorf("open link: %w", err)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, fmt.Errorf("open link: %w", os.ErrClosed)
	}
	for l.id = g.last + 1; l.id <= 0 || g.links[l.id] != nil; {
		l.id = max(l.id+1, 1)
	}
	g.last = l.id
	g.links[l.id] = l
	if err := g.arm(l, unix.EPOLL_CTL_ADD); err != nil {
		delete(g.links, l.id)
		return nil, fmt.Errorf("open link: %w", err)
	}
	return l, nil
}

// arm lets the poller wake l once.
func (g *Gateway) arm(l *Link, op int) error {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return err
	}
	ctl := raw.Control(func(fd uintptr) {
		err = unix.EpollCtl(g.poll, op, int(fd), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: l.id})
	})
	return errors.Join(ctl, os.NewSyscallError("epoll_ctl", err))
}

// forget takes l out. The kernel does the same for its descriptor when it is
// closed.
func (g *Gateway) forget(l *Link) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.links, l.id)
}

// watch wakes links until the gateway is closed.
func (g *Gateway) watch() {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(g.poll, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			g.log.LogAttrs(g.ctx, slog.LevelError, "the poller of links failed, sandboxes have no network", slog.Any("error", err))
			return
		}
		for _, e := range events[:n] {
			if e.Fd == 0 {
				return
			}
			g.mu.Lock()
			l := g.links[e.Fd]
			g.mu.Unlock()
			if l != nil {
				l.wake()
			}
		}
	}
}

func (g *Gateway) buffer() *[]byte   { return g.bufs.Get().(*[]byte) }
func (g *Gateway) release(b *[]byte) { g.bufs.Put(b) }

// Close closes all links and ends the poller. It is idempotent.
func (g *Gateway) Close() error {
	g.mu.Lock()
	was := g.closed
	g.closed = true
	links := make([]*Link, 0, len(g.links))
	for _, l := range g.links {
		links = append(links, l)
	}
	g.mu.Unlock()
	if was {
		return nil
	}
	errs := make([]error, len(links))
	var closing sync.WaitGroup
	for i, l := range links {
		closing.Go(func() { errs[i] = l.Close() })
	}
	closing.Wait()
	_, err := unix.Write(g.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	g.wg.Wait()
	if err = errors.Join(append(errs, err, unix.Close(g.poll), unix.Close(g.stop))...); err != nil {
		return fmt.Errorf("close gateway: %w", err)
	}
	return nil
}
