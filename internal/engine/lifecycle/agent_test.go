//go:build linux

package lifecycle_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
)

// TestWaitAgent: one byte that is no text is success, text is what the agent says, and an end is
// its death.
func TestWaitAgent(t *testing.T) {
	long := strings.Repeat("x", 2000)
	for _, c := range []struct {
		name, written string
		want          error
	}{
		{"ready", "\x01", nil},
		{"complaint", "no /proc\nmore", lifecycle.AgentError("no /proc")},
		{"bounded", long, lifecycle.AgentError(long[:512])},
		{"dead", "", lifecycle.ErrAgentEnded},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, w := pipe(t)
			if _, err := io.WriteString(w, c.written); err != nil {
				t.Fatal(err)
			}
			w.Close()
			if err := lifecycle.WaitAgent(t.Context(), r); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// TestWaitAgentCanceled: a caller that has gone is not kept by an agent that says nothing.
func TestWaitAgentCanceled(t *testing.T) {
	r, _ := pipe(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := lifecycle.WaitAgent(ctx, r); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// TestDialAgent: by a path of any length; without a listener the error depends on whether the
// sandbox is dead.
func TestDialAgent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 200))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dead := range []bool{false, true} {
		_, err := lifecycle.DialAgent("sb-1", dir, func() bool { return dead })
		want := map[bool]api.Code{false: api.CodeUnavailable, true: api.CodeSandboxLost}[dead]
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != want || e.Retryable == dead {
			t.Errorf("dead %t: got %v, want %s", dead, err, want)
		}
	}
	fd, err := lifecycle.ListenAgent(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	var conn net.Conn
	if conn, err = lifecycle.DialAgent("sb-1", dir, func() bool { return false }); err != nil {
		t.Fatal(err)
	}
	conn.Close()
}
