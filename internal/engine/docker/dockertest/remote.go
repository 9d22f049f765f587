package dockertest

import (
	"io"
	"net"
	"strings"
	"sync"
)

// Remote makes the daemon one behind TCP, on loopback, and returns its address there. It
// is so until the daemon is closed. What it sees of files is what it saw before: that it
// shares them is not to be told from the address.
func (d *Daemon) Remote() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	f := &forwarder{to: strings.TrimPrefix(d.Host, "unix://"), ln: ln, open: map[net.Conn]bool{}}
	f.wg.Go(f.serve)
	d.remote = f
	return "tcp://" + ln.Addr().String(), nil
}

// forwarder carries connections to a unix socket.
type forwarder struct {
	to string
	ln net.Listener
	wg sync.WaitGroup

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]bool
}

func (f *forwarder) serve() {
	for {
		conn, err := f.ln.Accept()
		if err != nil {
			return
		}
		f.wg.Go(func() { f.forward(conn) })
	}
}

func (f *forwarder) forward(conn net.Conn) {
	defer f.drop(conn)
	to, err := net.Dial("unix", f.to)
	if err != nil {
		return
	}
	defer f.drop(to)
	if !f.keep(conn) || !f.keep(to) {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { half(to, conn) })
	half(conn, to)
	wg.Wait()
}

// half carries one direction to its end, and ends the other side's reading.
func half(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	if w, ok := to.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	}
}

// keep has close end a connection; false is that it has been called.
func (f *forwarder) keep(c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.open[c] = true
	}
	return !f.closed
}

func (f *forwarder) drop(c net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, c)
	_ = c.Close()
}

func (f *forwarder) close() {
	f.mu.Lock()
	f.closed = true
	_ = f.ln.Close()
	for c := range f.open {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}
