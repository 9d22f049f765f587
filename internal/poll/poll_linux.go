package poll

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Events returns which of the events a descriptor has, and of those that are always
// reported: that it ended, failed, or is not open. It waits for one as long as it is told; 0 only
// looks. None in that time is 0 and no error.
func Events(fd int, events int16, wait time.Duration) (int16, error) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}}
	end := time.Now().Add(wait)
	for {
		_, err := unix.Poll(fds, int(wait.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return fds[0].Revents, os.NewSyscallError("poll", err)
		}
		wait = max(time.Until(end), 0)
	}
}

// HungUp reports whether the other end of a socket is gone, or becomes so while it is
// waited for.
func HungUp(fd int, wait time.Duration) (bool, error) {
	events, err := Events(fd, unix.POLLRDHUP, wait)
	return events&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0, err
}
