//go:build linux

package netstack

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/egress/resolver"
)

// BenchmarkIdleLinks makes 1,000 links, each with a gate and a table, and says
// what they take: never used, and after each was woken once and fell asleep.
func BenchmarkIdleLinks(b *testing.B) {
	const n = 1000
	rules := compile(b, "pypi.org", "*.example.com")
	for b.Loop() {
		before := resident(b)
		g, err := New(b.Context(), Options{Idle: 50 * time.Millisecond})
		if err != nil {
			b.Fatal(err)
		}
		var links []*Link
		var ends []*os.File
		for range n {
			ours, theirs, err := Pair()
			if err != nil {
				b.Fatal(err)
			}
			table, err := resolver.NewTable(nil, nil)
			if err != nil {
				b.Fatal(err)
			}
			l, err := g.Open(ours, egress.New(b.Context(), egress.Options{Rules: rules, Table: table}), nil)
			if err != nil {
				b.Fatal(err)
			}
			links, ends = append(links, l), append(ends, theirs)
		}
		goroutines := runtime.NumGoroutine()
		fresh := resident(b) - before
		frame := question(b)
		for i, l := range links {
			ends[i].Write(frame)
			for !l.Awake() {
				runtime.Gosched()
			}
			if i%50 == 49 { // not all awake at once: this is about those that sleep
				for _, l := range links[:i+1] {
					for l.Awake() {
						<-time.After(time.Millisecond)
					}
				}
			}
		}
		used := resident(b) - before
		b.ReportMetric(float64(fresh)/(1<<20), "MB-fresh")
		b.ReportMetric(float64(used)/(1<<20), "MB-used-once")
		b.ReportMetric(float64(goroutines), "goroutines")
		for _, f := range ends {
			f.Close()
		}
		if err := g.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// question is a frame with a DNS question for pypi.org.
func question(b *testing.B) []byte {
	b.Helper()
	tap := &tap{t: b}
	h := build(b, fixtureOptions{rules: []string{"pypi.org"}, tap: tap.between})
	if _, err := h.lookup("pypi.org"); err != nil {
		b.Fatal(err)
	}
	h.end()
	h.gateway.Close()
	tap.wait()
	for _, f := range tap.toUs {
		if bytes.Contains(f, []byte("pypi")) {
			return f
		}
	}
	b.Fatal("no question was seen")
	return nil
}

// resident is the memory of this process, after everything that can be given
// back was.
func resident(b *testing.B) int64 {
	b.Helper()
	debug.FreeOSMemory()
	s, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Fatal(err)
	}
	pages, err := strconv.ParseInt(string(bytes.Fields(s)[1]), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// BenchmarkThroughput moves bytes between a sandbox's stack and a server on
// loopback, as opaque flow and as plain HTTP.
func BenchmarkThroughput(b *testing.B) {
	const size = 64 << 20
	chunk := make([]byte, 1<<20)
	down := func(c net.Conn) {
		for range size / len(chunk) {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	}
	for _, bench := range []struct {
		name, rule string
		port       uint16
		server     func(net.Conn)
		client     func(net.Conn) (int64, error)
	}{
		{"down", "a.example.com:9", 9, down, func(c net.Conn) (int64, error) { return io.CopyBuffer(io.Discard, bare{c}, make([]byte, 256<<10)) }},
		{"up", "a.example.com:9", 9, func(c net.Conn) {
			io.CopyBuffer(io.Discard, bare{c}, make([]byte, 256<<10))
		}, func(c net.Conn) (int64, error) {
			down(c)
			c.(interface{ CloseWrite() error }).CloseWrite()
			_, err := io.Copy(io.Discard, c)
			return size, err
		}},
		{"http", "a.example.com", 80, func(c net.Conn) {
			c.Read(make([]byte, 4096))
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size)
			down(c)
		}, func(c net.Conn) (int64, error) {
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n")
			return io.CopyBuffer(io.Discard, bare{c}, make([]byte, 256<<10))
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			h := build(b, fixtureOptions{rules: []string{bench.rule}})
			h.serve("a.example.com", bench.port, bench.server)
			b.SetBytes(size)
			for b.Loop() {
				c, err := h.dialName("a.example.com", bench.port)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := bench.client(c); err != nil || n < size {
					b.Fatal(n, err)
				}
				c.Close()
			}
		})
	}
}

// bare is a connection that can only be read.
type bare struct{ io.Reader }

// BenchmarkConnect is from connect to the first byte of a server that speaks
// first: over the link, and without it.
func BenchmarkConnect(b *testing.B) {
	h := build(b, fixtureOptions{rules: []string{"a.example.com:9"}})
	h.serve("a.example.com", 9, func(c net.Conn) { c.Write([]byte{1}) })
	addr, err := h.lookup("a.example.com")
	if err != nil {
		b.Fatal(err)
	}
	first := func(b *testing.B, c net.Conn, err error) {
		if err == nil {
			_, err = io.ReadFull(c, make([]byte, 1))
		}
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
	b.Run("link", func(b *testing.B) {
		for b.Loop() {
			c, err := h.dial(netip.AddrPortFrom(addr, 9))
			first(b, c, err)
		}
	})
	b.Run("loopback", func(b *testing.B) {
		for b.Loop() {
			c, err := net.Dial("tcp", h.ports.to["93.184.215.1:9"])
			first(b, c, err)
		}
	})
	b.Run("lookup", func(b *testing.B) {
		for b.Loop() {
			if _, err := h.lookup("a.example.com"); err != nil {
				b.Fatal(err)
			}
		}
	})
}
