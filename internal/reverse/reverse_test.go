package reverse_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/cloche-dev/cloche/internal/reverse"
)

func pair(t *testing.T) (*reverse.Session, *reverse.Listener) {
	t.Helper()
	near, far := net.Pipe()
	s, err := reverse.Open(near)
	if err != nil {
		t.Fatal(err)
	}
	l, err := reverse.Listen(far)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		l.Close()
	})
	return s, l
}

// TestEnds: each direction has an end of its own, and a reset is not an end.
func TestEnds(t *testing.T) {
	s, l := pair(t)
	open := func() (near, far *reverse.Conn) {
		c, err := s.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		a, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 5)
		if _, err := io.ReadFull(a, b); err != nil || string(b) != "hello" {
			t.Fatalf("%q, %v", b, err)
		}
		return c.(*reverse.Conn), a.(*reverse.Conn)
	}
	near, far := open()
	big := bytes.Repeat([]byte("0123456789"), 100_000)
	var wg sync.WaitGroup
	wg.Go(func() {
		near.Write(big)
		near.CloseWrite()
	})
	if got, err := io.ReadAll(far); err != nil || !bytes.Equal(got, big) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	wg.Wait()
	far.Write([]byte("answer"))
	far.Close()
	if got, err := io.ReadAll(near); err != nil || string(got) != "answer" {
		t.Fatalf("%q, %v", got, err)
	}
	near, far = open()
	near.Reset()
	if _, err := io.ReadAll(far); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a reset: %v", err)
	}
	far.Close()
	near, _ = open()
	l.Close()
	if _, err := io.ReadAll(near); err == nil {
		t.Error("a client that goes ends a stream well")
	}
	<-s.Done()
	if _, err := s.Open(t.Context()); err == nil {
		t.Error("a stream to nobody")
	}
}

// TestServesHTTP: the listener is one that net/http can use.
func TestServesHTTP(t *testing.T) {
	s, l := pair(t)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })}
	go srv.Serve(l)
	defer srv.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return s.Open(ctx) }}}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			resp, err := client.Post("http://x/", "text/plain", bytes.NewReader(make([]byte, 300_000)))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if b, err := io.ReadAll(resp.Body); err != nil || len(b) != 300_000 {
				t.Errorf("%d bytes, %v", len(b), err)
			}
		})
	}
	wg.Wait()
}
