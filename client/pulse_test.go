package client_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

// TestSilence: a call ends when the daemon answers nothing any more, and goes on as long
// as it likes while the daemon gives a sign of life.
func TestSilence(t *testing.T) {
	const silence = 1500 * time.Millisecond
	for name, call := range map[string]func(context.Context, *client.Client) error{
		"call": func(ctx context.Context, c *client.Client) error { _, err := c.Get(ctx, "box"); return err },
		"exec with an id": func(ctx context.Context, c *client.Client) error {
			_, err := c.Exec(ctx, "box", api.ExecRequest{ExecID: "one", Argv: []string{"true"}})
			return err
		},
		"answer that has begun": func(ctx context.Context, c *client.Client) error {
			return c.Events(ctx, api.EventOptions{Follow: true}, func(api.Event) error { return nil })
		},
		"socket": func(ctx context.Context, c *client.Client) error {
			_, err := c.ExecStream(ctx, "box", api.ExecRequest{Argv: []string{"true"}})
			return err
		},
		"handshake": func(ctx context.Context, c *client.Client) error { _, err := c.DialPort(ctx, "box", 80); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stopped, probed atomic.Bool
			dir, err := os.MkdirTemp("", "cl") // a unix socket's path is short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			socket := filepath.Join(dir, "s")
			ln, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			over := make(chan struct{})
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/healthz" && !stopped.Load():
					probed.Store(true)
					w.WriteHeader(http.StatusNotFound) // an older daemon's
					return
				case strings.HasSuffix(r.URL.Path, "/events"):
					w.WriteHeader(http.StatusOK)
					_ = http.NewResponseController(w).Flush()
				case strings.HasSuffix(r.URL.Path, "/stream"):
					conn, err := websocket.Accept(w, r, nil)
					if err != nil {
						return
					}
					defer conn.CloseNow()
					_, _, _ = conn.Read(r.Context())
				}
				<-over
			})}
			go server.Serve(ln)
			t.Cleanup(func() {
				close(over)
				server.Close()
			})
			c, err := client.New(client.Options{Host: "unix://" + socket, Silence: silence, NoReconnect: true})
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			begun := time.Now()
			go func() { ended <- call(t.Context(), c) }()
			select {
			case err := <-ended:
				t.Fatalf("a daemon that is there was given up after %s: %v", time.Since(begun), err)
			case <-time.After(2 * silence):
			}
			if !probed.Load() {
				t.Error("the daemon was not asked")
			}
			stopped.Store(true)
			err = <-ended
			if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeUnavailable || !strings.Contains(e.Message, "has answered nothing for 1.5s") {
				t.Errorf("%v", err)
			}
		})
	}
}
