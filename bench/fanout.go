//go:build linux

package main

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/client"
)

// bareFollowers is what 200 followers cost at the least: one has the line as any
// has it, and the others get it from there over bare sockets, with no frame, no
// log, no HTTP and no daemon between.
func bareFollowers(sb *client.Sandbox) func(context.Context) (measure, error) {
	one := lineTo(sb, 1)
	return func(ctx context.Context) (m measure, err error) {
		first, err := one(ctx)
		if err != nil {
			return m, err
		}
		writers, readers := make([]net.Conn, followers), make([]net.Conn, followers)
		defer func() {
			for _, c := range slices.Concat(writers, readers) {
				if c != nil {
					err = errors.Join(err, c.Close())
				}
			}
		}()
		for i := range writers {
			if writers[i], readers[i], err = socketPair(); err != nil {
				return m, err
			}
		}
		took, errs := make([]time.Duration, followers), make([]error, 2*followers)
		var wg sync.WaitGroup
		var began atomic.Pointer[time.Time]
		for i, c := range readers {
			wg.Go(func() {
				_, errs[i] = c.Read(make([]byte, 64))
				took[i] = time.Since(*began.Load())
			})
		}
		time.Sleep(calm) // they wait in a read by then
		now := time.Now()
		began.Store(&now)
		for i, c := range writers {
			_, errs[followers+i] = c.Write([]byte("a line\n"))
		}
		wg.Wait()
		slices.Sort(took)
		return measure{Total: first.Total + took[followers/2]}, errors.Join(errs...)
	}
}

func socketPair() (a, b net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "bare")
		var ferr error
		conns[i], ferr = net.FileConn(f)
		err = errors.Join(err, ferr, f.Close())
	}
	return conns[0], conns[1], err
}
