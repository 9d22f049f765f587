//go:build linux

package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// getAt asks for a path at a socket.
func getAt(t *testing.T, socket string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) },
	}}
	resp, err := client.Get("http://localhost/")
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

// TestListenSocket: a socket is there with its mode, says who connected, outlives the
// host's connection, and goes with its endpoint.
func TestListenSocket(t *testing.T) {
	in := boot(t, nil)
	// Short: a kernel takes 107 bytes. The directories do not exist.
	top, err := os.MkdirTemp("/tmp", "sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	if err := os.Chmod(top, 0o777); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(top, "a/b/model.sock")
	o := agent.ListenOptions{ID: "ep", Socket: socket, HTTP: true, Connections: 8}
	first := in.connect(t)
	l, err := first.Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if l.Addr().Network() != "unix" || l.Addr().String() != socket {
		t.Error(l.Addr())
	}
	who := make(chan string, 1)
	serveHTTP(t, &peers{l, who}, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") })
	st, err := os.Lstat(socket)
	if err != nil || st.Mode() != os.ModeSocket|0o666 {
		t.Fatal(st.Mode(), err)
	}
	if status, body := getAt(t, socket); status != 200 || body != "here" {
		t.Error(status, body)
	}
	// The agent has processes of its own, and this one is not among them.
	if got, want := <-who, fmt.Sprintf("%d 0 true", os.Getuid()); got != want {
		t.Errorf("the peer is %s, want %s", got, want)
	}

	// The same again is the same; another, or another's, is not.
	if _, err := in.Listen(t.Context(), agent.ListenOptions{ID: "ep", Socket: socket + "2", Connections: 8}); !errors.Is(err, api.ErrExists) {
		t.Error(err)
	}
	if _, err := in.Listen(t.Context(), agent.ListenOptions{ID: "other", Socket: socket, Connections: 8}); !errors.Is(err, api.ErrConflict) {
		t.Error(err)
	}
	first.Close()
	if status, body := getAt(t, socket); status != 502 && status != 503 || !strings.Contains(body, "bridge_error") {
		t.Error(status, body)
	}
	again, err := in.connect(t).Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	serveHTTP(t, again, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "back") })
	if status, body := getAt(t, socket); status != 200 || body != "back" {
		t.Error(status, body)
	}
	if err := in.Unlisten(t.Context(), "ep"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Error("the socket is still there")
	}
}

// peers says who makes the connections that it takes.
type peers struct {
	net.Listener
	who chan string
}

func (p *peers) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	uid, pid, ok := c.(interface {
		Peer() (uint32, int, bool)
	}).Peer()
	select {
	case p.who <- fmt.Sprintf("%d %d %t", uid, pid, ok):
	default:
	}
	return c, nil
}

// TestListenSocketPlaces: an existing file stays, unless it is a socket without a
// listener; and a directory that others see is refused.
func TestListenSocketPlaces(t *testing.T) {
	in := boot(t, nil)
	top, err := os.MkdirTemp("/tmp", "sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	if err := os.Chmod(top, 0o777); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(top, name) }
	if err := os.WriteFile(at("file"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at("shared"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("shared", at("link")); err != nil {
		t.Fatal(err)
	}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: at("stale"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	live, err := net.Listen("unix", at("live"))
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	for i, c := range []struct {
		path string
		want error
	}{
		{at("file"), api.ErrConflict},
		{at("live"), api.ErrConflict},
		{at("shared"), api.ErrConflict},
		{at("shared/x"), api.ErrInvalid},
		{at("link/x"), api.ErrInvalid},
		{at("link/new/x"), api.ErrInvalid},
		{at("file/x"), api.ErrInvalid},
		{top + "/a/../x", api.ErrInvalid},
		{"relative", api.ErrInvalid},
		{"/", api.ErrInvalid},
		{"/proc/x", &api.Error{Code: api.CodeState}},
		{at(strings.Repeat("x", 108)), api.ErrInvalid},
		{at("stale"), nil},
	} {
		o := agent.ListenOptions{ID: fmt.Sprint("ep", i), Socket: c.path, Outside: []string{at("shared")}, Connections: 1}
		if _, err := in.Listen(t.Context(), o); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.path, err)
		}
	}
	if got, err := os.ReadFile(at("file")); string(got) != "kept" {
		t.Error(string(got), err)
	}
	if left, err := os.ReadDir(at("shared")); len(left) > 0 {
		t.Error(left, err)
	}

	// What took the place of a socket is not the endpoint's to remove.
	if err := os.Rename(at("stale"), at("moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("stale"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := in.Unlisten(t.Context(), "ep12"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(at("stale")); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("unix", at("moved")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
}
