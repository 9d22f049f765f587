package httpapi_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

func TestFilesThroughTheClient(t *testing.T) {
	h := open(t)
	c := h.client()
	ctx := t.Context()
	sb, err := c.Create(ctx, api.SandboxSpec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("any name", func(t *testing.T) {
		for _, path := range []string{"/workspace/plain", "/workspace/a b+c&d=e?#%", "/workspace/\xff\xfe", "/workspace/ü\n"} {
			if err := sb.WriteFile(ctx, path, []byte(path), 0o600); err != nil {
				t.Fatalf("%q: %v", path, err)
			}
			got, err := sb.ReadFile(ctx, path)
			if err != nil || string(got) != path {
				t.Errorf("%q: %q %v", path, got, err)
			}
			info, err := c.StatFile(ctx, sb.ID, path)
			name := path[len("/workspace/"):]
			if err != nil || info.Mode != 0o600 || info.Name != name && string(info.NameBytes) != name {
				t.Errorf("%q: %+v %v", path, info, err)
			}
		}
	})
	t.Run("large", func(t *testing.T) {
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<20) // 16 MiB, over every buffer and the JSON limit
		if _, err := c.WriteFileFrom(ctx, sb.ID, "/workspace/large", bytes.NewReader(data), 0); err != nil {
			t.Fatal(err)
		}
		got, err := sb.ReadFile(ctx, "/workspace/large")
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes of %d: %v", len(got), len(data), err)
		}
		for _, tc := range []struct{ offset, length, want int64 }{{10, 5, 5}, {1 << 24, -1, 0}, {1<<24 - 3, 100, 3}, {1 << 40, 1, 0}, {0, 0, 0}} {
			r, info, err := c.OpenFile(ctx, sb.ID, "/workspace/large", tc.offset, tc.length)
			if err != nil {
				t.Fatal(err)
			}
			part, err := io.ReadAll(r)
			r.Close()
			from := min(tc.offset, int64(len(data)))
			if err != nil || !bytes.Equal(part, data[from:from+tc.want]) || info.Size != int64(len(data)) {
				t.Errorf("from %d length %d: %d bytes, %v", tc.offset, tc.length, len(part), err)
			}
		}
	})
	t.Run("failing source", func(t *testing.T) {
		if err := sb.WriteFile(ctx, "/workspace/kept", []byte("old"), 0); err != nil {
			t.Fatal(err)
		}
		cause := errors.New("disk on fire")
		r := io.MultiReader(strings.NewReader("new"), iotest.ErrReader(cause))
		if _, err := c.WriteFileFrom(ctx, sb.ID, "/workspace/kept", r, 0); !errors.Is(err, cause) {
			t.Errorf("write: %v, want the reader's error", err)
		}
		if got, err := sb.ReadFile(ctx, "/workspace/kept"); err != nil || string(got) != "old" {
			t.Errorf("%q %v, want the file as it was", got, err)
		}
	})
	t.Run("breaks while read", func(t *testing.T) {
		data, err := sb.ReadFile(ctx, "/workspace/made-up")
		if !errors.Is(err, api.ErrSandboxLost) {
			t.Errorf("%q %v, want sandbox lost", data, err)
		}
	})
	t.Run("breaks for who reads no trailers", func(t *testing.T) {
		for te, whole := range map[string]bool{"": false, "deflate": false, "deflate, Trailers": true} {
			conn, err := net.Dial("unix", h.unix)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(time.Minute))
			fmt.Fprintf(conn, "GET /v1/sandboxes/%s/files?path=/workspace/made-up HTTP/1.1\r\nHost: cloche\r\nTE: %s\r\n\r\n", sb.ID, te)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
			}
			if whole != (err == nil) || whole && resp.Trailer.Get("Cloche-Error") == "" {
				t.Errorf("TE %q: %v", te, err)
			}
		}
	})
	t.Run("refused upload", func(t *testing.T) {
		_, err := c.WriteFileFrom(ctx, "nobody", "/x", bytes.NewReader(make([]byte, 8<<20)), 0)
		if !errors.Is(err, api.ErrNotFound) {
			t.Errorf("%v, want not found", err)
		}
	})
	t.Run("tar breaks", func(t *testing.T) {
		if err := c.MakeDir(ctx, sb.ID, "/broken", 0); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"/broken/a", "/broken/b"} {
			if _, err := c.WriteFile(ctx, sb.ID, f, make([]byte, 1<<16), 0); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		if _, err := c.TarOut(ctx, sb.ID, "/broken", api.TarOutOptions{}, &out); !errors.Is(err, api.ErrSandboxLost) || out.Len() == 0 {
			t.Errorf("%d bytes, %v, want some and sandbox lost", out.Len(), err)
		}
	})
	t.Run("logs break", func(t *testing.T) {
		if _, err := sb.Exec(ctx, "both"); err != nil {
			t.Fatal(err)
		}
		n := 0
		err := c.Logs(ctx, sb.ID, api.LogOptions{Tail: 7}, func(api.LogEntry) error { n++; return nil })
		if !errors.Is(err, api.ErrSandboxLost) || n != 1 {
			t.Errorf("%d entries, %v", n, err)
		}
		mine := errors.New("enough")
		if err := c.Logs(ctx, sb.ID, api.LogOptions{}, func(api.LogEntry) error { return mine }); err != mine {
			t.Errorf("%v, want my own error", err)
		}
	})
}

func TestErrorsThroughTheClient(t *testing.T) {
	h := open(t)
	c := h.client()
	for profile, want := range map[string]*api.Error{
		"full": api.ErrNoCapacity, "forbidden": api.ErrDenied, "off": api.ErrDisabled,
	} {
		for name, call := range map[string]func() error{
			"create": func() error { _, err := c.Create(t.Context(), api.SandboxSpec{Profile: profile}); return err },
			"progress": func() error {
				_, err := c.CreateProgress(t.Context(), api.SandboxSpec{Profile: profile}, func(string) {})
				return err
			},
			"run": func() error {
				_, err := c.RunShell(t.Context(), "true", client.OneShot{SandboxSpec: api.SandboxSpec{Profile: profile}})
				return err
			},
			"stream": func() error {
				_, err := c.RunStream(t.Context(), api.RunRequest{Spec: api.SandboxSpec{Profile: profile}}, nil)
				return err
			},
		} {
			err := call()
			e, ok := errors.AsType[*api.Error](err)
			if !ok || !errors.Is(err, want) || e.RequestID == "" {
				t.Errorf("%s of %s: %v", name, profile, err)
				continue
			}
			if want == api.ErrNoCapacity && (e.RetryAfter().Milliseconds() != 1500 || !e.Retryable) {
				t.Errorf("%s: retry after %v, retryable %v", name, e.RetryAfter(), e.Retryable)
			}
			if want == api.ErrDenied && e.Rule != "profiles" {
				t.Errorf("%s: rule %q", name, e.Rule)
			}
		}
	}
	if _, err := h.tcpClient("0123456789abcdef-wrong").Status(t.Context()); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("wrong token: %v", err)
	}
	if _, err := h.tcpClient("").ExecStream(t.Context(), "box", api.ExecRequest{}); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("WebSocket without token: %v", err)
	}
}
