package httpapi_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/httpapi"
	"github.com/cloche-dev/cloche/test/mockcore"
)

// BenchmarkListener measures what API server and client add, over a core that does nothing.
func BenchmarkListener(b *testing.B) {
	dir, err := os.MkdirTemp("", "cl")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := httpapi.New(httpapi.Options{Core: mockcore.New()})
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	defer func() {
		if err := s.Shutdown(context.Background()); err != nil {
			b.Error(err)
		}
		<-served
	}()
	c, err := client.New(client.Options{Host: "unix://" + filepath.Join(dir, "s")})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	ctx := b.Context()
	if _, err := c.Create(ctx, api.SandboxSpec{Name: "box"}); err != nil {
		b.Fatal(err)
	}
	b.Run("status", func(b *testing.B) {
		for b.Loop() {
			if _, err := c.Status(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("stream", func(b *testing.B) {
		for b.Loop() {
			st, err := c.ExecStream(ctx, "box", api.ExecRequest{Argv: []string{"true"}})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := st.Copy(nil, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	data := bytes.Repeat([]byte("0123456789abcdef"), 2<<20) // 32 MiB
	b.Run("upload", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := c.WriteFileFrom(ctx, "box", "/workspace/f", bytes.NewReader(data), 0); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("download", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			r, _, err := c.OpenFile(ctx, "box", "/workspace/f", 0, -1)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, r); err != nil {
				b.Fatal(err)
			}
			r.Close()
		}
	})
}
