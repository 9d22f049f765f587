//go:build linux

package client_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
)

func TestPort(t *testing.T) {
	c, box, end := withCat()
	defer end()
	dial := func(t *testing.T, port int) net.Conn {
		t.Helper()
		conn, err := c.DialPort(t.Context(), box.ID, port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	t.Run("both ways", func(t *testing.T) {
		conn := dial(t, 7)
		in := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MiB
		wrote := make(chan error, 1)
		go func() {
			_, err := conn.Write(in)
			wrote <- errors.Join(err, conn.(interface{ CloseWrite() error }).CloseWrite())
		}()
		out, err := io.ReadAll(conn)
		if err != nil || !bytes.Equal(out, in) {
			t.Errorf("%d bytes back of %d: %v", len(out), len(in), err)
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
	})
	t.Run("one direction ends first", func(t *testing.T) {
		conn := dial(t, 9)
		if _, err := conn.Write(make([]byte, 100_000)); err != nil {
			t.Fatal(err)
		}
		if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if out, err := io.ReadAll(conn); err != nil || string(out) != time.Duration(100_000).String() {
			t.Errorf("%q %v", out, err)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		conn := dial(t, 7)
		if err := conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
		if err := conn.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Errorf("after the deadline was taken back: %v", err)
		}
	})
	t.Run("close", func(t *testing.T) {
		conn := dial(t, 7)
		got := make(chan error, 1)
		go func() {
			_, err := conn.Read(make([]byte, 1))
			got <- err
		}()
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-got; !errors.Is(err, net.ErrClosed) {
			t.Errorf("read: %v", err)
		}
		if _, err := conn.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write: %v", err)
		}
		if err := conn.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("second close: %v", err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		_, err := c.DialPort(t.Context(), box.ID, 81)
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeUnavailable || !e.Retryable {
			t.Errorf("a port where nobody listens: %v", err)
		}
		if _, err := c.DialPort(t.Context(), "none", 7); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("no sandbox: %v", err)
		}
		for _, port := range []int{0, -1, 65536} {
			if _, err := c.DialPort(t.Context(), box.ID, port); !errors.Is(err, api.ErrInvalid) {
				t.Errorf("port %d: %v", port, err)
			}
		}
	})
}

func TestAttachRefusals(t *testing.T) {
	c, box, end := withCat()
	defer end()
	ctx := t.Context()
	if _, err := c.Attach(ctx, box.ID, "none", api.AttachRequest{}); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("no process: %v", err)
	}
	reader, err := c.Attach(ctx, box.ID, "cat", api.AttachRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if _, err := reader.Write([]byte("x")); api.CodeOf(err) != api.CodeState {
		t.Errorf("a write by a reader: %v", err)
	}
	writer, err := c.Attach(ctx, box.ID, "cat", api.AttachRequest{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if _, err := c.CloseStdin(ctx, box.ID, "cat"); err != nil {
		t.Fatal(err)
	}
	if res, err := writer.Copy(nil, nil); err != nil || !res.OK() {
		t.Errorf("%v %v", res, err)
	}
	// An attach to one that has ended gives the record.
	late, err := c.Attach(ctx, box.ID, "cat", api.AttachRequest{Exclusive: true})
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if res, err := late.Copy(nil, nil); err != nil || !res.OK() {
		t.Errorf("%v %v", res, err)
	}
}

// TestAttachGap: output that is no longer kept is said to be missing.
func TestAttachGap(t *testing.T) {
	c, fake, end := start()
	defer end()
	ctx := t.Context()
	box, err := c.Create(ctx, api.SandboxSpec{Name: "box"})
	if err != nil {
		t.Fatal(err)
	}
	spec := api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: "both", Argv: []string{"both"}}}
	if _, err := box.StartProcess(ctx, spec); err != nil {
		t.Fatal(err)
	}
	if _, err := box.WaitProcess(ctx, "both", api.WaitRequest{}); err != nil {
		t.Fatal(err)
	}
	fake.Forget("box", "both", 5)
	since := int64(1)
	a, err := box.Attach(ctx, "both", api.AttachRequest{Since: &since})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var gaps []api.Gap
	var out []client.AttachEvent
	for {
		ev, err := a.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Exit != nil {
			break
		}
		if ev.Gap != nil {
			gaps = append(gaps, *ev.Gap)
		}
		if len(ev.Data) > 0 {
			ev.Data = bytes.Clone(ev.Data)
			out = append(out, ev)
		}
	}
	if len(gaps) != 1 || gaps[0] != (api.Gap{Position: 5, Bytes: 4}) {
		t.Errorf("%+v", gaps)
	}
	if len(out) != 2 || out[0].Position != 5 || string(out[0].Data) != "\n" || out[0].Stream != api.Stdout || out[1].Position != 6 {
		t.Errorf("%+v", out)
	}
}
