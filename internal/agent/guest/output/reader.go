//go:build linux

package output

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
)

const (
	// A pipe is in flood when so much has come within so long.
	floodBytes = 512 << 10
	floodTime  = 200 * time.Millisecond
	// A read in flood that brings less than enough came too soon. The next one
	// waits, longer each time.
	enoughBytes      = 96 << 10
	minPace, maxPace = 50 * time.Microsecond, 800 * time.Microsecond
	// maxEmpty reads in a row that bring nothing end a flood.
	maxEmpty = 3
)

// Reader is the agent's end of one stream of a program. Read is for one
// goroutine, SetReadDeadline for any.
//
// Each write to a pipe that the runtime polls wakes the agent, whether or not it
// has read what came before. In a sandbox that costs as much as moving tens of
// kilobytes, and takes the processor from the program that writes. So a pipe in
// flood is taken out of the poller and is read at a pace that lets the program
// fill it.
type Reader struct {
	pipe bool // false for a terminal, which others use too

	// Of Read alone.
	since time.Time
	run   int // bytes that came since
	pace  time.Duration
	early bool // the last read in flood came too soon
	empty int  // reads in a row that brought nothing

	mu       sync.Mutex // guards what follows; only Read changes f and fd
	f        *os.File   // nil in flood
	fd       int        // in flood
	deadline time.Time
}

// NewReader reads f; pipe says that it is a pipe.
func NewReader(f *os.File, pipe bool) *Reader { return &Reader{f: f, pipe: pipe} }

// Read waits for output. Its errors are those of os.File.
func (o *Reader) Read(p []byte) (int, error) {
	for o.f == nil {
		if o.early || o.empty > 0 {
			time.Sleep(o.pace) //nolint:forbidigo // the pace itself, maxPace at most
		}
		n, err := unix.Read(o.fd, p)
		switch {
		case n > 0:
			o.empty = 0
			if o.early = n < min(enoughBytes, len(p)); o.early {
				o.pace = min(2*o.pace, maxPace)
			} else {
				o.pace = max(o.pace/2, minPace)
			}
			return n, nil
		case n == 0 && err == nil:
			return 0, io.EOF
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EAGAIN):
			return 0, os.NewSyscallError("read", err)
		default:
			o.pace = maxPace
			if o.empty++; o.empty > maxEmpty {
				o.endFlood()
			}
		}
	}
	n, err := o.f.Read(p)
	if n > 0 && o.pipe {
		o.read(n)
	}
	return n, err
}

// read notes n bytes of a pipe that is not in flood, and may begin one.
func (o *Reader) read(n int) {
	if now := time.Now(); now.Sub(o.since) > floodTime {
		o.since, o.run = now, 0
	}
	if o.run += n; o.run >= floodBytes {
		o.beginFlood()
	}
}

// beginFlood takes the pipe out of the poller. Where that cannot be done, it goes
// on as before.
func (o *Reader) beginFlood() {
	o.run = 0
	var fd int
	err := pathwalk.WithFD(o.f, func(old int) (err error) {
		fd, err = unix.FcntlInt(uintptr(old), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.f.Close()
	o.f, o.fd = nil, fd
	o.pace, o.early, o.empty = minPace, false, 0
}

// endFlood gives the pipe back to the poller.
func (o *Reader) endFlood() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.f = os.NewFile(uintptr(o.fd), "pipe")
	_ = o.f.SetReadDeadline(o.deadline)
}

// SetReadDeadline sets the deadline of reads. A flood is read on past it until it ends.
func (o *Reader) SetReadDeadline(t time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deadline = t
	if o.f == nil {
		return nil
	}
	return o.f.SetReadDeadline(t)
}

// Close is for when Read is over.
func (o *Reader) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.f == nil {
		return unix.Close(o.fd)
	}
	return o.f.Close()
}
