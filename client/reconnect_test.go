//go:build linux

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/httpapi"
	"github.com/cloche-dev/cloche/test/mockcore"
)

// wire carries connections inside this process, and cuts them after a random
// number of bytes.
type wire struct {
	conns chan net.Conn
	done  chan struct{}
	close func()

	mu   sync.Mutex
	rng  *rand.Rand
	most int // bytes of a connection; 0 cuts none
	cut  int // how many were
	down bool
	live []net.Conn
}

func newWire(seed uint64) *wire {
	w := &wire{conns: make(chan net.Conn), done: make(chan struct{}), rng: rand.New(rand.NewPCG(seed, 0))}
	w.close = sync.OnceFunc(func() { close(w.done) })
	return w
}

func (w *wire) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.done:
		return nil, net.ErrClosed
	}
}

func (w *wire) Close() error {
	w.close()
	return nil
}

func (w *wire) Addr() net.Addr { return &net.UnixAddr{Name: "wire", Net: "unix"} }

func (w *wire) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	w.mu.Lock()
	left, down := 1<<62, w.down
	if w.most > 0 {
		left = 1000 + w.rng.IntN(w.most) // enough for a handshake
	}
	w.mu.Unlock()
	if down {
		return nil, errors.New("the wire is down")
	}
	ours, theirs := net.Pipe()
	select {
	case w.conns <- theirs:
		w.mu.Lock()
		w.live = append(w.live, ours)
		w.mu.Unlock()
		return &frail{Conn: ours, w: w, left: left}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.done:
		return nil, net.ErrClosed
	}
}

func (w *wire) set(most int, down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most, w.down = most, down
}

// sever breaks every connection, as the death of a daemon does.
func (w *wire) sever() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.live {
		c.Close()
	}
	w.live = nil
}

func (w *wire) cuts() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut
}

// frail is a connection that breaks in the middle of what it carries.
type frail struct {
	net.Conn
	w    *wire
	mu   sync.Mutex
	left int
}

func (f *frail) take(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left <= 0 {
		return 0
	}
	n = min(n, f.left)
	if f.left -= n; f.left == 0 {
		f.w.mu.Lock()
		f.w.cut++
		f.w.mu.Unlock()
	}
	return n
}

func (f *frail) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if ok := f.take(n); ok < n {
		f.Conn.Close()
		return ok, io.ErrUnexpectedEOF
	}
	return n, err
}

func (f *frail) Write(p []byte) (int, error) {
	ok := f.take(len(p))
	n, err := f.Conn.Write(p[:ok])
	if err == nil && ok < len(p) {
		f.Conn.Close()
		err = io.ErrClosedPipe
	}
	return n, err
}

// bubble runs fn with a client of a core, over a wire, in time that passes when
// nothing happens. It fails when a goroutine is left.
func bubble(t *testing.T, seed uint64, o client.Options, fn func(t *testing.T, c *client.Client, w *wire, core *mockcore.Core)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fake := mockcore.New()
		server, err := httpapi.New(httpapi.Options{Core: fake})
		if err != nil {
			t.Fatal(err)
		}
		w := newWire(seed)
		served := make(chan error, 1)
		go func() { served <- server.ServeAs(w, core.Caller{Tenant: "t", UID: -1}) }()
		o.Host, o.Dial = "http://cloche", w.dial
		c, err := client.New(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Create(t.Context(), api.SandboxSpec{Name: "box"}); err != nil {
			t.Fatal(err)
		}
		fn(t, c, w, fake)
		w.set(0, false)
		c.Close()
		if err := c.Remove(context.Background(), "box"); err != nil {
			t.Error(err)
		}
		c.Close()
		if err := server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// TestAttachOverABadWire: a process gets every byte of its input once, and its
// attach every byte of its output, while connections break at random.
func TestAttachOverABadWire(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, seed, client.Options{}, func(t *testing.T, c *client.Client, w *wire, _ *mockcore.Core) {
				ctx := t.Context()
				if _, err := c.StartProcess(ctx, "box", api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: "cat", Argv: []string{"cat"}}, OpenStdin: true}); err != nil {
					t.Fatal(err)
				}
				w.set(400_000, false)
				c.Close()
				a, err := c.Attach(ctx, "box", "cat", api.AttachRequest{Exclusive: true})
				if err != nil {
					t.Fatal(err)
				}
				in := randomBytes(rand.New(rand.NewPCG(seed, 9)), 2<<20)
				wrote := make(chan error, 1)
				go func() {
					for n := 0; n < len(in); {
						m, err := a.Write(in[n:min(len(in), n+100_000)])
						n += m
						// Without a connection a call fails at once, and may be made again.
						if e, ok := errors.AsType[*api.Error](err); ok && e.Retryable {
							time.Sleep(time.Second)
						} else if err != nil {
							wrote <- err
							return
						}
					}
					wrote <- a.CloseWrite()
				}()
				var out bytes.Buffer
				next := int64(0)
				for {
					ev, err := a.Recv()
					if err != nil {
						t.Fatalf("after %d bytes and %d cuts: %v", out.Len(), w.cuts(), err)
					}
					if ev.Exit != nil {
						if !ev.Exit.OK() {
							t.Errorf("%+v", ev.Exit)
						}
						break
					}
					if ev.Gap != nil || len(ev.Data) > 0 && ev.Position != next {
						t.Fatalf("position %d, want %d; gap %v", ev.Position, next, ev.Gap)
					}
					out.Write(ev.Data)
					next += int64(len(ev.Data))
				}
				if err := <-wrote; err != nil {
					t.Error(err)
				}
				if !bytes.Equal(out.Bytes(), in) {
					t.Errorf("%d bytes came back of %d, or others", out.Len(), len(in))
				}
				if w.cuts() < 3 {
					t.Errorf("%d connections were cut, which proves little", w.cuts())
				}
				if _, err := a.Recv(); !errors.Is(err, io.EOF) {
					t.Errorf("after the exit: %v", err)
				}
				if _, err := a.Write([]byte("x")); err == nil {
					t.Error("a write after the exit was taken")
				}
				a.Close()
			})
		})
	}
}

// TestLogsOverABadWire: a follower gets every byte once.
func TestLogsOverABadWire(t *testing.T) {
	for _, one := range []string{"cat", ""} {
		t.Run("of "+one, func(t *testing.T) {
			bubble(t, 5, client.Options{}, func(t *testing.T, c *client.Client, w *wire, _ *mockcore.Core) {
				ctx := t.Context()
				in := randomBytes(rand.New(rand.NewPCG(7, 7)), 400_000)
				for _, id := range []string{"cat", "dog"} {
					spec := api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: id, Argv: []string{"cat"}}, OpenStdin: true}
					if _, err := c.StartProcess(ctx, "box", spec); err != nil {
						t.Fatal(err)
					}
				}
				got := map[string][]byte{}
				followed := make(chan error, 1)
				w.set(300_000, false)
				c.Close()
				go func() {
					followed <- c.Logs(ctx, "box", api.LogOptions{ExecID: one, Follow: true}, func(e api.LogEntry) error {
						if e.End == "" && (e.Gap != 0 || e.Position != int64(len(got[e.ExecID]))) {
							return fmt.Errorf("position %d of %s, want %d; gap %d", e.Position, e.ExecID, len(got[e.ExecID]), e.Gap)
						}
						got[e.ExecID] = append(got[e.ExecID], e.Data...)
						return nil
					})
				}()
				feeder, err := client.New(client.Options{Host: "http://cloche", Dial: sound(w)})
				if err != nil {
					t.Fatal(err)
				}
				defer feeder.Close()
				for n := 0; n < len(in); n += 20_000 {
					for _, id := range []string{"dog", "cat"} {
						chunk := in[n:min(len(in), n+20_000)]
						if _, err := feeder.WriteStdin(ctx, "box", id, nil, bytes.NewReader(chunk), n+20_000 >= len(in)); err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(time.Second)
				}
				if one == "" {
					time.Sleep(10 * time.Minute) // of the bubble: the follower comes back
					w.set(0, false)
					if _, err := feeder.Stop(ctx, "box", api.StopOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				if err := <-followed; err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got["cat"], in) || one == "" && !bytes.Equal(got["dog"], in) {
					t.Errorf("%d and %d bytes of %d", len(got["cat"]), len(got["dog"]), len(in))
				}
				if w.cuts() < 2 {
					t.Errorf("%d connections were cut, which proves little", w.cuts())
				}
			})
		})
	}
}

// sound dials w without ever being cut.
func sound(w *wire) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := w.dial(ctx, network, addr)
		if f, ok := conn.(*frail); ok {
			return f.Conn, err
		}
		return conn, err
	}
}

// TestEventsOverABadWire: every event comes once, in order, and a reader that
// wants none of the past misses nothing that happens while it is away.
func TestEventsOverABadWire(t *testing.T) {
	bubble(t, 3, client.Options{}, func(t *testing.T, c *client.Client, w *wire, _ *mockcore.Core) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w.set(1500, false)
		c.Close()
		const n = 200
		began := make(chan struct{})
		var got []int64
		read := make(chan error, 1)
		go func() {
			close(began)
			read <- c.Events(ctx, api.EventOptions{After: -1, Follow: true, Sandbox: "box"}, func(e api.Event) error {
				got = append(got, e.Cursor)
				if len(got) == 2*n {
					cancel()
				}
				return nil
			})
		}()
		<-began
		synctest.Wait() // it follows
		feeder, err := client.New(client.Options{Host: "http://cloche", Dial: sound(w)})
		if err != nil {
			t.Fatal(err)
		}
		defer feeder.Close()
		// Cut it before it has seen anything, and let things happen meanwhile.
		w.set(1500, true)
		for range n {
			if _, err := feederPauses(ctx, feeder, w); err != nil {
				t.Fatal(err)
			}
		}
		w.set(1500, false)
		if err := <-read; api.CodeOf(err) != api.CodeCanceled {
			t.Fatalf("%v after %d events", err, len(got))
		}
		for i, cursor := range got {
			if cursor != int64(i+2) { // 1 was the create
				t.Fatalf("event %d has cursor %d", i, cursor)
			}
		}
		if w.cuts() < 3 {
			t.Errorf("%d connections were cut, which proves little", w.cuts())
		}
	})
}

// feederPauses makes two events, over a wire that is up for this call only.
func feederPauses(ctx context.Context, c *client.Client, w *wire) (api.Sandbox, error) {
	w.set(1500, false)
	defer w.set(1500, true)
	sb, err := c.Pause(ctx, "box")
	if err != nil {
		return sb, err
	}
	return c.Resume(ctx, "box")
}

// TestCallsWhileAway: while there is no connection, calls on an attach fail at
// once and say Retryable; and where reconnecting is off, the attach ends.
func TestCallsWhileAway(t *testing.T) {
	for _, off := range []bool{false, true} {
		t.Run(fmt.Sprintf("off=%v", off), func(t *testing.T) {
			away := make(chan struct{}, 100)
			o := client.Options{NoReconnect: off, OnReconnect: func(error, time.Duration) { away <- struct{}{} }}
			bubble(t, 1, o, func(t *testing.T, c *client.Client, w *wire, _ *mockcore.Core) {
				ctx := t.Context()
				if _, err := c.StartProcess(ctx, "box", api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: "p", Argv: []string{"sleep"}}, OpenStdin: true}); err != nil {
					t.Fatal(err)
				}
				w.set(1, false) // 1000 bytes
				c.Close()
				a, err := c.Attach(ctx, "box", "p", api.AttachRequest{Write: true})
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				w.set(1, true)
				got := make(chan error, 1)
				go func() {
					_, err := a.Recv()
					got <- err
				}()
				if _, err := a.Write(make([]byte, 10_000)); err != nil {
					t.Fatalf("what fits the buffer is taken: %v", err)
				}
				if off {
					if err := <-got; api.CodeOf(err) != api.CodeUnavailable {
						t.Errorf("recv: %v", err)
					}
					return
				}
				<-away
				for name, err := range map[string]error{"signal": a.Signal("TERM"), "resize": a.Resize(1, 1)} {
					if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeUnavailable || !e.Retryable {
						t.Errorf("%s: %v", name, err)
					}
				}
				n, err := a.Write(make([]byte, 2<<20))
				if e, ok := errors.AsType[*api.Error](err); !ok || !e.Retryable || n != 1<<20-10_000 {
					t.Errorf("write: %d bytes, %v", n, err)
				}
				if _, err := c.Process(ctx, "box", "p"); api.CodeOf(err) != api.CodeUnavailable {
					t.Errorf("a call: %v", err)
				}
				a.Close()
				if err := <-got; api.CodeOf(err) != api.CodeCanceled {
					t.Errorf("recv after close: %v", err)
				}
			})
		})
	}
}

// TestKeyedCalls: a call whose connection breaks is made a second time where the
// caller named what it makes, and never else.
func TestKeyedCalls(t *testing.T) {
	for _, tc := range []struct {
		id    string
		dials int
	}{{"mine", 2}, {"", 1}} {
		t.Run("id "+tc.id, func(t *testing.T) {
			dials := 0
			c, err := client.New(client.Options{Host: "http://cloche", Dial: func(context.Context, string, string) (net.Conn, error) {
				dials++
				ours, theirs := net.Pipe()
				go func() {
					theirs.Read(make([]byte, 4096))
					theirs.Close()
				}()
				return ours, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			req := api.ExecRequest{ExecID: tc.id, Argv: []string{"true"}}
			_, err = c.StartProcess(t.Context(), "box", api.ProcessSpec{ExecRequest: req})
			if api.CodeOf(err) != api.CodeUnavailable || dials != tc.dials {
				t.Errorf("start: %v after %d connections, want %d", err, dials, tc.dials)
			}
			dials = 0
			if _, err = c.Exec(t.Context(), "box", req); api.CodeOf(err) != api.CodeUnavailable || dials != tc.dials {
				t.Errorf("exec: %v after %d connections, want %d", err, dials, tc.dials)
			}
			dials = 0
			if _, err = c.Create(t.Context(), api.SandboxSpec{Name: "box"}); err == nil || dials != 1 {
				t.Errorf("create: %v after %d connections", err, dials)
			}
		})
	}
}
