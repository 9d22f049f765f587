//go:build linux

package fdstore

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Args[0] == Argv0 {
		os.Exit(Main())
	}
	os.Exit(m.Run())
}

// client makes a Client over a directory; the fd store that it starts, if any, dies
// with the test.
func client(t *testing.T, dir string, again func()) *Client {
	t.Helper()
	c := NewClient(Options{Dir: dir, Again: again})
	t.Cleanup(func() {
		c.mu.Lock()
		c.opts.Again, c.closed = nil, true
		c.mu.Unlock()
		if n := pid(t); n > 0 {
			_ = unix.Kill(n, unix.SIGKILL)
			_, _ = unix.Wait4(n, nil, 0, nil)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// pid is the one child of this test that plays the fd store; 0 means no child.
func pid(t testing.TB) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		cmd, _ := os.ReadFile(name)
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(name), "stat"))
		if err != nil || string(cmd) != Argv0+"\x00" {
			continue
		}
		var n, parent int
		var comm, state string
		if _, err := fmt.Sscan(string(stat), &n, &comm, &state, &parent); err == nil && parent == os.Getpid() && state != "Z" {
			return n
		}
	}
	return 0
}

// pair is a link; near is what a daemon has.
func pair(t *testing.T) (near, far *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	near, far = os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	t.Cleanup(func() {
		near.Close()
		far.Close()
	})
	return near, far
}

// same fails unless what is written to near comes out of far.
func same(t *testing.T, near, far *os.File, text string) {
	t.Helper()
	if _, err := near.WriteString(text); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	if n, err := far.Read(b); err != nil || string(b[:n]) != text {
		t.Fatalf("read %q, %v, want %q", b[:n], err, text)
	}
}

// TestOutlivesTheDaemon: what one client put the next one takes, as often as it likes.
func TestOutlivesTheDaemon(t *testing.T) {
	// However deep the directory is, the path of the socket fits.
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	first := NewClient(Options{Dir: dir})
	near, far := pair(t)
	other, _ := pair(t)
	for id, f := range map[string]*os.File{"sb-1": near, "sb-2": other} {
		if err := first.Put(t.Context(), id, f); err != nil {
			t.Fatal(err)
		}
	}
	started := pid(t)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	near.Close()

	second := client(t, dir, nil)
	if ids, err := second.List(t.Context()); err != nil || !slices.Equal(ids, []string{"sb-1", "sb-2"}) {
		t.Fatalf("holds %v, %v", ids, err)
	}
	if started == 0 || pid(t) != started {
		t.Errorf("the holder is %d and was %d", pid(t), started)
	}
	for i := range 2 {
		f, err := second.Take(t.Context(), "sb-1")
		if err != nil {
			t.Fatal(err)
		}
		same(t, f, far, fmt.Sprint("hello ", i))
		// The pair waits, and what was taken does not.
		if err := f.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Errorf("what was taken has no deadlines: %v", err)
		}
		f.Close()
	}
	if err := second.Keep(t.Context(), []string{"sb-1", "sb-9"}); err != nil {
		t.Fatal(err)
	}
	if ids, err := second.List(t.Context()); err != nil || !slices.Equal(ids, []string{"sb-1"}) {
		t.Errorf("holds %v, %v", ids, err)
	}
	if _, err := second.Take(t.Context(), "sb-2"); !errors.Is(err, ErrNone) {
		t.Errorf("take of what was dropped: %v", err)
	}
	if err := second.Drop(t.Context(), "sb-1", "sb-7"); err != nil {
		t.Fatal(err)
	}
	if n, err := far.Read(make([]byte, 1)); n != 0 {
		t.Errorf("the link that nobody holds is open: %d, %v", n, err)
	}
}

// TestNobodyIsStartedToTake: who holds nothing needs no fd store.
func TestNobodyIsStartedToTake(t *testing.T) {
	dir := t.TempDir()
	c := client(t, dir, nil)
	if _, err := c.Take(t.Context(), "sb-1"); !errors.Is(err, ErrNone) {
		t.Errorf("take: %v", err)
	}
	if ids, err := c.List(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("list: %v, %v", ids, err)
	}
	if err := errors.Join(c.Drop(t.Context(), "sb-1"), c.Keep(t.Context(), nil)); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("it left %v", left)
	}
}

// TestManyLinks: lists are longer than messages.
func TestManyLinks(t *testing.T) {
	c := client(t, t.TempDir(), nil)
	near, _ := pair(t)
	var want []string
	for i := range 950 {
		want = append(want, fmt.Sprintf("sb-%s-%04d", strings.Repeat("x", 40), i))
		if err := c.Put(t.Context(), want[i], near); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.List(t.Context())
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("%d of %d are listed, %v", len(got), len(want), err)
	}
	if err := c.Keep(t.Context(), want[:1]); err != nil {
		t.Fatal(err)
	}
	if got, err = c.List(t.Context()); err != nil || len(got) != 1 {
		t.Errorf("%d are left, %v", len(got), err)
	}
}

// TestStoreThatDies is told, and the next question starts another.
func TestStoreThatDies(t *testing.T) {
	again := make(chan struct{}, 1)
	c := client(t, t.TempDir(), func() { again <- struct{}{} })
	near, far := pair(t)
	if err := c.Put(t.Context(), "sb-1", near); err != nil {
		t.Fatal(err)
	}
	dead := pid(t)
	if err := unix.Kill(dead, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-again:
	case <-time.After(time.Minute):
		t.Fatal("nobody was told")
	}
	if _, err := c.Take(t.Context(), "sb-1"); !errors.Is(err, ErrNone) {
		t.Errorf("take from the dead: %v", err)
	}
	if err := c.Put(t.Context(), "sb-1", near); err != nil {
		t.Fatal(err)
	}
	if n := pid(t); n == dead || n == 0 {
		t.Error("the dead serve")
	}
	f, err := c.Take(t.Context(), "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	same(t, f, far, "hello")
}

// TestStoreInheritsNothing: what the daemon was started with stays its own.
func TestStoreInheritsNothing(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe(fds[:]); err != nil { // outlives execve
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	c := client(t, t.TempDir(), nil)
	near, _ := pair(t)
	if err := c.Put(t.Context(), "sb-1", near); err != nil {
		t.Fatal(err)
	}
	ours, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fds[0]))
	if err != nil {
		t.Fatal(err)
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid(t))
	open, err := os.ReadDir(dir)
	if err != nil || len(open) == 0 {
		t.Fatalf("%v, %v", open, err)
	}
	for _, fd := range open {
		if target, _ := os.Readlink(filepath.Join(dir, fd.Name())); target == ours {
			t.Errorf("the holder has %s of the daemon's", target)
		}
	}
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid(t))); err != nil || bytes.Contains(env, []byte("PATH")) {
		t.Errorf("environment %q, %v", env, err)
	}
}

// startServer runs an fd store in this process, which looks often whether its links have
// another end. While a client is connected it waits for longer than any test takes.
func startServer(t *testing.T) (path string, ended chan int) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, maxConns)); err != nil {
		t.Fatal(err)
	}
	ended = make(chan int, 1)
	go func() {
		ended <- (&server{listener: fd, patience: 10 * time.Minute, rounds: 100 * time.Millisecond, links: map[string]*os.File{}}).serve()
		_ = unix.Close(fd)
	}()
	return path, ended
}

// TestEndsByItself: an fd store stays while a client is connected or it holds a link that
// has another end, and no longer.
func TestEndsByItself(t *testing.T) {
	path, ended := startServer(t)
	conn, err := dial(path)
	if err != nil {
		t.Fatal(err)
	}
	near, far := pair(t)
	if err := send(conn, encode(verbPut, "sb-1"), near); err != nil {
		t.Fatal(err)
	}
	if words, _, err := receive(conn); err != nil || words[0] != wordOK {
		t.Fatalf("%v, %v", words, err)
	}
	near.Close()
	unix.Close(conn)
	select {
	case <-ended:
		t.Fatal("it ended with a link")
	case <-time.After(500 * time.Millisecond):
	}
	far.Close()
	select {
	case status := <-ended:
		if status != 0 {
			t.Errorf("ended with %d", status)
		}
	case <-time.After(time.Minute):
		t.Fatal("it goes on, for nobody")
	}
}

// TestNonsense: whatever a connection says, the others are served.
func TestNonsense(t *testing.T) {
	path, ended := startServer(t)
	stays, err := dial(path)
	if err != nil {
		t.Fatal(err)
	}
	near, far := pair(t)
	two := func(fd int) error {
		rights := unix.UnixRights(int(near.Fd()), int(far.Fd()))
		return unix.Sendmsg(fd, encode(verbPut, "sb-1"), rights, nil, 0)
	}
	for name, say := range map[string]func(int) error{
		"nothing":         func(int) error { return nil },
		"no end":          func(fd int) error { return send(fd, []byte("put"), nil) },
		"no link":         func(fd int) error { return send(fd, encode(verbPut, "sb-1"), nil) },
		"no id":           func(fd int) error { return send(fd, encode(verbPut), near) },
		"path":            func(fd int) error { return send(fd, encode(verbPut, "../x"), near) },
		"two links":       two,
		"too long":        func(fd int) error { return send(fd, bytes.Repeat([]byte{'x'}, 2*maxMessage), nil) },
		"unknown":         func(fd int) error { return send(fd, encode("dance"), near) },
		"take of nothing": func(fd int) error { return send(fd, encode(verbTake, "sb-2"), nil) },
	} {
		fd, err := dial(path)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := say(fd); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		unix.Close(fd)
	}
	fd, err := dial(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := send(fd, encode(verbList), nil); err != nil {
		t.Fatal(err)
	}
	if words, _, err := receive(fd); err != nil || len(words) != 1 || words[0] != wordOK {
		t.Errorf("after all that it says %q, %v", words, err)
	}
	unix.Close(fd)
	unix.Close(stays)
	<-ended
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(verbPut, "sb-1"))
	f.Add([]byte("put\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		words, err := decode(b)
		if err == nil && !bytes.Equal(encode(words...), b) {
			t.Errorf("%q became %q", b, words)
		}
	})
}
