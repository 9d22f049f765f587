//go:build linux

package fdstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options are what a Client works with.
type Options struct {
	// Dir is the owner's directory, 0700, in which the socket is.
	Dir string
	// Program plays the fd store when it is started as Argv0; empty is the running
	// executable.
	Program string
	// Again is told, by a goroutine of the Client's, that an fd store has ended: by itself,
	// for it held nothing, or it died and the links that it had are to be put again. It may
	// be nil.
	Again func()
	// Logger receives errors that no caller waits for; nil discards them.
	Logger *slog.Logger
}

// callTimeout bounds one question to the fd store.
const callTimeout = 5 * time.Second

// Client is the daemon's side of an fd store, which it finds or starts when it is first
// needed. It is safe for concurrent use.
type Client struct {
	opts Options
	log  *slog.Logger

	mu     sync.Mutex
	conn   int // -1 is closed
	closed bool
	wg     sync.WaitGroup // the watch over the fd store
	watch  int            // a second connection, which ends when the fd store does
}

// NewClient makes a Client. It does nothing yet.
func NewClient(o Options) *Client {
	if o.Program == "" {
		o.Program = "/proc/self/exe"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Client{opts: o, log: o.Logger, conn: -1, watch: -1}
}

// Put gives the fd store a duplicate of a link, in the place of any that it has under
// that id.
func (c *Client) Put(ctx context.Context, id string, link *os.File) error {
	words, _, err := c.call(ctx, true, link, verbPut, id)
	return said("put", words, err)
}

// Take is a duplicate of a link that the fd store goes on holding. ErrNone says that it
// has none, or that there is no fd store.
func (c *Client) Take(ctx context.Context, id string) (*os.File, error) {
	words, file, err := c.call(ctx, false, nil, verbTake, id)
	if err = said("take", words, err); err == nil && file == nil {
		err = errors.New("take link from holder: none came")
	}
	if err != nil && file != nil {
		_ = file.Close()
		file = nil
	}
	return file, err
}

// Drop lets the fd store forget links.
func (c *Client) Drop(ctx context.Context, ids ...string) error {
	for some := range slices.Chunk(ids, 200) {
		words, _, err := c.call(ctx, false, nil, append([]string{verbDrop}, some...)...)
		if err = said("drop", words, err); err != nil && !errors.Is(err, ErrNone) {
			return err
		}
	}
	return nil
}

// Keep lets the fd store forget all links but those.
func (c *Client) Keep(ctx context.Context, ids []string) error {
	held, err := c.List(ctx)
	if err != nil {
		return err
	}
	held = slices.DeleteFunc(held, func(id string) bool { return slices.Contains(ids, id) })
	return c.Drop(ctx, held...)
}

// List is the ids of what the fd store has. Without an fd store it has nothing.
func (c *Client) List(ctx context.Context) ([]string, error) {
	var all []string
	for {
		ask := []string{verbList}
		if len(all) > 0 {
			ask = append(ask, all[len(all)-1])
		}
		words, _, err := c.call(ctx, false, nil, ask...)
		if errors.Is(err, ErrNone) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, words[1:]...)
		if words[0] != wordMore || len(words) == 1 {
			return all, said("list", words[:1], nil)
		}
	}
}

// said makes an error of an answer that reports a failure.
func said(what string, words []string, err error) error {
	switch {
	case err != nil:
		return err
	case words[0] == wordOK:
		return nil
	case words[0] == wordNone:
		return ErrNone
	}
	return fmt.Errorf("%s link: the holder said: %.100q", what, words[0])
}

// call asks once, and again when the fd store that was known is no more. Without a
// fd store it starts one, or is ErrNone.
func (c *Client) call(ctx context.Context, start bool, file *os.File, words ...string) ([]string, *os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for again := false; ; again = true {
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		if c.closed {
			return nil, nil, fmt.Errorf("ask holder: %w", os.ErrClosed)
		}
		if c.conn < 0 {
			if err := c.connect(start); err != nil {
				return nil, nil, err
			}
		}
		err := send(c.conn, encode(words...), file)
		if err == nil {
			var answer []string
			var got *os.File
			if answer, got, err = receive(c.conn); err == nil {
				return answer, got, nil
			}
		}
		c.hangUp()
		if again {
			return nil, nil, fmt.Errorf("ask holder: %w", err)
		}
	}
}

func (c *Client) hangUp() {
	if c.conn >= 0 {
		_ = unix.Close(c.conn)
		c.conn = -1
	}
}

// connect finds the fd store, or starts one where start says so. The caller holds c.mu.
func (c *Client) connect(start bool) error {
	dir, err := os.Open(c.opts.Dir)
	if err != nil {
		return fmt.Errorf("find holder: %w", err)
	}
	defer dir.Close()
	// Through the descriptor the path is short, however deep the directory is.
	path := "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + socketName
	var child *exec.Cmd
	conn, err := dial(path)
	if err != nil && start {
		if child, err = c.start(path); err == nil {
			conn, err = dial(path)
		}
	} else if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return ErrNone
	}
	if err != nil {
		return fmt.Errorf("find holder: %w", err)
	}
	c.conn = conn
	return c.look(path, child)
}

func dial(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	tv := unix.NsecToTimeval(int64(callTimeout))
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
	if err == nil {
		err = retry(func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) })
	}
	if err == nil && !sameUser(fd) {
		err = errors.New("the holder is another user's")
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// start makes the socket anew and starts an fd store that listens at it.
func (c *Client) start(path string) (*exec.Cmd, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	listener := os.NewFile(uintptr(fd), "links")
	defer listener.Close()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, maxConns); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	// The fd store must not keep the descriptors open that this process has inherited: it
	// gets none of them.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) // before Linux 5.11 it does
	cmd := &exec.Cmd{
		Path: c.opts.Program, Args: []string{Argv0}, Env: []string{"GOMAXPROCS=1"}, Dir: "/", ExtraFiles: []*os.File{listener},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	return cmd, nil
}

// look opens the connection by which the end of the fd store is seen. The caller holds
// c.mu.
func (c *Client) look(path string, child *exec.Cmd) error {
	if c.watch >= 0 {
		return nil // the goroutine that has it sees to the rest
	}
	fd, err := dial(path)
	if err != nil {
		return fmt.Errorf("find holder: %w", err)
	}
	var none unix.Timeval
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &none); err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("find holder: %w", err)
	}
	c.watch = fd
	c.wg.Go(func() { c.mourn(fd, child) })
	return nil
}

// mourn waits for the end of the fd store, or of the Client.
func (c *Client) mourn(fd int, child *exec.Cmd) {
	_, _, _ = receive(fd) // nothing is ever said on it
	c.mu.Lock()
	_ = unix.Close(fd)
	c.watch = -1
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return
	}
	if child != nil {
		_ = child.Wait() // it has ended, or is about to
	}
	c.log.Info("the holder of network links has ended")
	if c.opts.Again != nil {
		c.opts.Again()
	}
}

// Close ends the Client. The fd store goes on with what it has, or ends soon when it
// has nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.hangUp()
	if c.watch >= 0 {
		_ = unix.Shutdown(c.watch, unix.SHUT_RDWR) // wakes who waits on it
	}
	c.mu.Unlock()
	c.wg.Wait()
	return nil
}
