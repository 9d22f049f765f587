package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// events is how many a stream has, a tenth of a second apart.
const events = 10

// target is the service that an endpoint leads to: the other end of the verbs.
type target struct {
	// thought is how long a model takes to answer.
	thought time.Duration
	// hung and raw count what is open: requests that get no end, and connections that
	// are not HTTP.
	hung, raw atomic.Int64
}

// serve answers on two ports of its own choice, which it prints, until ctx ends.
func (c *caller) serve(ctx context.Context, thought time.Duration) error {
	t := &target{thought: thought}
	var listen net.ListenConfig
	web, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	raw, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		web.Close()
		return err
	}
	srv := &http.Server{Handler: t.routes(), ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx }}
	var wg sync.WaitGroup
	wg.Go(func() { t.echoRaw(ctx, raw) })
	wg.Go(func() {
		<-ctx.Done()
		raw.Close()
		srv.Close()
	})
	fmt.Fprintf(c.out, "http=%s raw=%s\n", web.Addr(), raw.Addr())
	err = srv.Serve(web)
	wg.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (t *target) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(io.LimitReader(r.Body, 16<<20)); err == nil {
			_, _ = w.Write(body)
		}
	})
	mux.HandleFunc("/sum", sum)
	mux.HandleFunc("/bytes", someBytes)
	mux.HandleFunc("/socket", echoSocket)
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		_ = stream(r.Context(), w, events, 100*time.Millisecond) // who leaves is told nothing
	})
	mux.HandleFunc("/hang", t.hang)
	mux.HandleFunc("/open", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "hung=%d raw=%d\n", t.hung.Load(), t.raw.Load())
	})
	mux.HandleFunc("/v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		if stream(r.Context(), w, events, t.thought/events) == nil {
			fmt.Fprint(w, "data: [DONE]\n\n")
		}
	})
	mux.HandleFunc("/vf/tools/add", addTool)
	mux.HandleFunc("/vf/stop", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"done":false}`) })
	return mux
}

// sum says what a body came to, and what its trailer says that it should.
func sum(w http.ResponseWriter, r *http.Request) {
	h := sha256.New()
	if _, err := io.CopyBuffer(h, struct{ io.Reader }{r.Body}, make([]byte, 256<<10)); err != nil {
		return
	}
	fmt.Fprintln(w, hex.EncodeToString(h.Sum(nil)), r.Trailer.Get(sumTrailer))
}

// someBytes are as many as n says, without a length, with their sum after them.
func someBytes(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.FormValue("n"), 10, 64)
	if err != nil {
		http.Error(w, "n is no number", http.StatusBadRequest)
		return
	}
	w.Header().Set("Trailer", sumTrailer)
	body := noise(n)
	if _, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{body}, make([]byte, 256<<10)); err != nil {
		return
	}
	w.Header().Set(sumTrailer, body.hex())
}

func echoSocket(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer ws.CloseNow()
	ws.SetReadLimit(-1)
	for {
		kind, data, err := ws.Read(r.Context())
		if err != nil || ws.Write(r.Context(), kind, data) != nil {
			return
		}
	}
}

// stream sends n events; the first at once, the others each after a wait.
func stream(ctx context.Context, w http.ResponseWriter, n int, wait time.Duration) error {
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range n {
		if i > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"%d\"}}]}\n\n", i)
		if err := http.NewResponseController(w).Flush(); err != nil {
			return err
		}
	}
	return nil
}

// hang begins an answer, and waits until who asked has gone.
func (t *target) hang(w http.ResponseWriter, r *http.Request) {
	t.hung.Add(1)
	defer t.hung.Add(-1)
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, "data: begun\n\n")
	if http.NewResponseController(w).Flush() == nil {
		<-r.Context().Done()
	}
}

func addTool(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Arguments struct{ A, B int }
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, "no JSON", http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, `{"result":%d}`, q.Arguments.A+q.Arguments.B)
}

// echoRaw gives every connection back what it said when it has said all of it.
func (t *target) echoRaw(ctx context.Context, ln net.Listener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		t.raw.Add(1)
		wg.Go(func() {
			defer t.raw.Add(-1)
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			if all, err := io.ReadAll(io.LimitReader(conn, 16<<20)); err == nil {
				_, _ = conn.Write(all) // who does not read it does not get it
			}
		})
	}
}
