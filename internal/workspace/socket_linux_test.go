package workspace_test

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/workspace"
)

// listenOn makes a socket of a kind with a listener, in a directory whose path
// may be long.
func listenOn(t *testing.T, dir, name string, kind int) {
	t.Helper()
	at, err := os.Open(dir)
	must(t, err)
	defer at.Close()
	link := filepath.Join(tempDir(t), "d")
	must(t, os.Symlink(dir, link))
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(link, name)}))
	if kind != unix.SOCK_DGRAM {
		must(t, unix.Listen(fd, 1))
	}
}

func findSockets(t *testing.T, dir string, most int) []string {
	t.Helper()
	d, err := workspace.OpenDir(dir)
	must(t, err)
	defer d.Close()
	s, err := d.Stage(tempDir(t), false)
	must(t, err)
	defer s.Close()
	found, err := s.Sockets(most)
	must(t, err)
	slices.Sort(found)
	return found
}

// TestSockets: the search finds sockets with a listener, of each kind, in hidden
// directories too, over no link and to a stated depth; and no service is told of it.
func TestSockets(t *testing.T) {
	dir := filepath.Join(tempDir(t), "project")
	other := tempDir(t)
	must(t, os.MkdirAll(dir+"/.git/hooks", 0o755))
	must(t, os.Chmod(dir, 0o755))
	deep := strings.Repeat("/d", 8)
	must(t, os.MkdirAll(dir+deep+"/d", 0o755))
	listenOn(t, dir, "stream", unix.SOCK_STREAM)
	listenOn(t, dir, "datagram", unix.SOCK_DGRAM)
	listenOn(t, dir, "packet", unix.SOCK_SEQPACKET)
	listenOn(t, dir+"/.git/hooks", ".monitor", unix.SOCK_STREAM)
	listenOn(t, dir+deep, "eighth", unix.SOCK_STREAM)
	listenOn(t, dir+deep+"/d", "ninth", unix.SOCK_STREAM)
	listenOn(t, other, "elsewhere", unix.SOCK_STREAM)
	must(t, os.Symlink(other, dir+"/link"))
	must(t, os.Symlink(other+"/elsewhere", dir+"/straight"))
	must(t, os.Link(dir+"/stream", dir+"/another name"))
	must(t, unix.Mknod(dir+"/dead", unix.S_IFSOCK|0o777, 0))
	must(t, os.WriteFile(dir+"/file", nil, 0o644))
	want := []string{".git/hooks/.monitor", "another name", "d/d/d/d/d/d/d/d/eighth", "datagram", "packet", "stream"}
	if got := findSockets(t, dir, 100); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
	if got := findSockets(t, dir, 2); len(got) != 2 {
		t.Errorf("found %q, want two", got)
	}
	if got := findSockets(t, other, 100); !slices.Equal(got, []string{"elsewhere"}) {
		t.Errorf("found %q", got)
	}
}

// TestSearchTellsNoService: a service sees no connection and no datagram.
func TestSearchTellsNoService(t *testing.T) {
	dir := filepath.Join(tempDir(t), "project")
	must(t, os.Mkdir(dir, 0o755))
	stream, err := net.Listen("unix", dir+"/s")
	must(t, err)
	defer stream.Close()
	packet, err := net.Listen("unixpacket", dir+"/p")
	must(t, err)
	defer packet.Close()
	datagram, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: dir + "/d", Net: "unixgram"})
	must(t, err)
	defer datagram.Close()
	if got := findSockets(t, dir, 100); len(got) != 3 {
		t.Fatalf("found %q, want three", got)
	}
	for name, f := range map[string]func() (*os.File, error){
		"stream": stream.(*net.UnixListener).File, "packet": packet.(*net.UnixListener).File, "datagram": datagram.File,
	} {
		file, err := f()
		must(t, err)
		ready := []unix.PollFd{{Fd: int32(file.Fd()), Events: unix.POLLIN}}
		if n, err := unix.Poll(ready, 0); n != 0 || err != nil {
			t.Errorf("%s: the service was told: %v %v", name, ready[0].Revents, err)
		}
		file.Close()
	}
}
