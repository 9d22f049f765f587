//go:build linux

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/test/freeport"
)

func TestDialPort(t *testing.T) {
	in := boot(t, nil)
	port := freeport.Free(t)
	dir := t.TempDir()
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if err := os.WriteFile(filepath.Join(dir, "file"), body, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := in.DialPort(t.Context(), port); !errors.Is(err, api.ErrUnavailable) {
		t.Fatal(err)
	}
	if _, err := in.DialPort(t.Context(), in.port); !errors.Is(err, api.ErrDenied) {
		t.Fatal(err)
	}
	if _, err := in.DialPort(t.Context(), 0); !errors.Is(err, api.ErrInvalid) {
		t.Fatal(err)
	}
	p := managedShell(fmt.Sprintf("cd %s && exec python3 -m http.server --bind 127.0.0.1 %d", dir, port))
	p.Spec.Ready = &api.Readiness{Port: port, IntervalMS: 20}
	in.must(t, p)
	until(t, in.Client, p.ExecID, func(r api.Process) bool { return r.State == api.ProcessReady })
	for range 3 {
		conn, err := in.DialPort(within(t, time.Minute), port)
		if err != nil {
			t.Fatal(err)
		}
		// A deadline that passes breaks nothing.
		conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		conn.SetReadDeadline(time.Time{})
		fmt.Fprintf(conn, "GET /file HTTP/1.0\r\n\r\n")
		conn.(interface{ CloseWrite() error }).CloseWrite()
		all, err := io.ReadAll(conn)
		if err != nil || !bytes.HasSuffix(all, body) || !bytes.HasPrefix(all, []byte("HTTP/1.0 200")) {
			t.Fatalf("%d bytes, %v", len(all), err)
		}
		conn.Close()
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Fatal("read after close")
		}
	}
}
