//go:build linux

package pidfd

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Spawner starts processes from one thread that lives as long as it does. Two things
// need that: the kernel sends a parent-death signal when the thread that forked dies,
// not the process; and a thread can enter the cgroups of a sandbox, fork into them and
// leave again, without the rest of the process moving.
type Spawner struct {
	start sync.Once
	stop  sync.Once
	jobs  chan func()
	quit  chan struct{}
	done  chan struct{}
}

// ErrClosed is what Do says after Close.
var ErrClosed = errors.New("the engine is closed")

// NewSpawner makes one. Its thread is started by the first Do.
func NewSpawner() *Spawner {
	return &Spawner{jobs: make(chan func()), quit: make(chan struct{}), done: make(chan struct{})}
}

func (s *Spawner) run() {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The first thread stands for the process when its cgroup is read: that must not be
		// a cgroup of a sandbox. It is held until another has been found.
		found := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(found)
			s.serve()
		}()
		<-found
		runtime.UnlockOSThread()
		return
	}
	s.serve()
}

// serve runs what is asked for. The caller's thread is locked and never unlocked: it
// ends with the goroutine.
func (s *Spawner) serve() {
	defer close(s.done)
	for {
		select {
		case job := <-s.jobs:
			job()
		case <-s.quit:
			return
		}
	}
}

// Do runs f on the thread, and nothing else meanwhile. When ctx ends before f was begun,
// f never is.
func (s *Spawner) Do(ctx context.Context, f func() error) error {
	s.start.Do(func() { go s.run() })
	result := make(chan error, 1)
	select {
	case s.jobs <- func() { result <- f() }:
		return <-result
	case <-s.quit:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends the thread, after what it is doing. It may be called more than once.
func (s *Spawner) Close() {
	s.stop.Do(func() { close(s.quit) })
	s.start.Do(func() { close(s.done) })
	<-s.done
}
