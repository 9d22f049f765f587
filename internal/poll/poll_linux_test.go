package poll_test

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/poll"
)

// longest bounds a wait that is not expected to come to its end.
const longest = 30 * time.Second

func pair(t *testing.T) (ours, theirs int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.Close(fds[0]), unix.Close(fds[1]) })
	return fds[0], fds[1]
}

func TestEvents(t *testing.T) {
	ours, theirs := pair(t)
	check := func(when string, events, want int16) {
		t.Helper()
		if got, err := poll.Events(ours, events, 0); got != want || err != nil {
			t.Errorf("%s: events %#x, %v; want %#x", when, got, err, want)
		}
	}
	check("nothing to read", unix.POLLIN, 0)
	check("room to write", unix.POLLIN|unix.POLLOUT, unix.POLLOUT)
	if _, err := unix.Write(theirs, []byte{1}); err != nil {
		t.Fatal(err)
	}
	check("something to read", unix.POLLIN, unix.POLLIN)
	check("not asked for", 0, 0)
	if got, err := poll.Events(-2, unix.POLLIN, 0); got != 0 || err != nil {
		t.Errorf("a number below zero: events %#x, %v; want none, as the kernel has it", got, err)
	}
}

func TestHungUp(t *testing.T) {
	ours, theirs := pair(t)
	if gone, err := poll.HungUp(ours, 0); gone || err != nil {
		t.Errorf("both ends open: %v, %v", gone, err)
	}
	if _, err := unix.Write(theirs, []byte{1}); err != nil {
		t.Fatal(err)
	}
	if gone, err := poll.HungUp(ours, 0); gone || err != nil {
		t.Errorf("something to read: %v, %v", gone, err)
	}
	if err := unix.Shutdown(theirs, unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
	if gone, err := poll.HungUp(ours, longest); !gone || err != nil {
		t.Errorf("the other end shut: %v, %v", gone, err)
	}
}

// TestSignals: a wait goes on whatever signals come in it.
func TestSignals(t *testing.T) {
	ours, theirs := pair(t)
	thread := make(chan int)
	type answer struct {
		events int16
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		events, err := poll.Events(ours, unix.POLLIN, longest)
		answered <- answer{events, err}
	}()
	id := <-thread
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 50 {
		if err := unix.Tgkill(unix.Getpid(), id, unix.SIGURG); err != nil {
			t.Fatal(err)
		}
		<-tick.C
	}
	select {
	case a := <-answered:
		t.Fatalf("it ended before there was anything: events %#x, %v", a.events, a.err)
	default:
	}
	if _, err := unix.Write(theirs, []byte{1}); err != nil {
		t.Fatal(err)
	}
	if a := <-answered; a.events != unix.POLLIN || a.err != nil {
		t.Errorf("events %#x, %v; want what there is to read", a.events, a.err)
	}
}
