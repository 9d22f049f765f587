//go:build linux

package fake

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// patience is how often a tree that does not come to rest is looked at before it
// is let go for a moment.
const patience = 50

// Pause implements engine.Pauser: the agent and what descends from it is
// stopped.
func (i *instance) Pause(ctx context.Context) error {
	if err := i.m.current().at(ctx, i, StepPause); err != nil {
		return err
	}
	if err := i.usable("pause"); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	// What a process has forked before it stopped is in the next list.
	var before []int
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	looks := 0
	for pids := i.tree(); !slices.Equal(pids, before) || slices.ContainsFunc(pids, moves); pids = i.tree() {
		// A child that was stopped between vfork and execve keeps its parent from
		// stopping: let go, and try again.
		sig := syscall.SIGSTOP
		if looks++; looks%patience == 0 {
			sig = syscall.SIGCONT
		}
		signal(pids, sig)
		before = pids
		select {
		case <-tick.C:
		case <-ctx.Done():
			signal(pids, syscall.SIGCONT)
			return ended(ctx.Err(), StepPause)
		}
	}
	i.paused = true
	i.calls.Pauses++
	return nil
}

// Resume implements engine.Pauser.
func (i *instance) Resume(ctx context.Context) error {
	if err := i.m.current().at(ctx, i, StepResume); err != nil {
		return err
	}
	if err := i.usable("resume"); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.paused {
		signal(i.tree(), syscall.SIGCONT)
	}
	i.paused = false
	i.calls.Resumes++
	return nil
}

func (i *instance) isPaused() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.paused
}

// tree is the agent and all its descendants, by number. The caller holds mu.
func (i *instance) tree() []int {
	pids := []int{i.cmd.Process.Pid}
	for n := 0; n < len(pids); n++ {
		files, _ := filepath.Glob("/proc/" + strconv.Itoa(pids[n]) + "/task/*/children")
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				continue // it ended
			}
			for _, f := range strings.Fields(string(b)) {
				if pid, err := strconv.Atoi(f); err == nil {
					pids = append(pids, pid)
				}
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// moves reports whether a thread of a process has not stopped yet.
func moves(pid int) bool {
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	return slices.ContainsFunc(files, func(file string) bool {
		b, err := os.ReadFile(file)
		if err != nil {
			return false // it ended
		}
		_, state, _ := bytes.Cut(b[bytes.LastIndexByte(b, ')')+1:], []byte{' '})
		return len(state) > 0 && !bytes.ContainsRune([]byte("TtZX"), rune(state[0]))
	})
}

func signal(pids []int, s syscall.Signal) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, s) // one that has ended is paused
	}
}

// stream is a connection that Cut can break.
type stream struct {
	*net.TCPConn
	i *instance
}

func (i *instance) track(conn *net.TCPConn) net.Conn {
	s := &stream{TCPConn: conn, i: i}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.streams[s] = struct{}{}
	return s
}

// Close implements net.Conn.
func (s *stream) Close() error {
	s.i.mu.Lock()
	delete(s.i.streams, s)
	s.i.mu.Unlock()
	return s.TCPConn.Close()
}

func (i *instance) cut() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for s := range i.streams {
		_ = s.SetLinger(0) // a reset, not an orderly end
		_ = s.TCPConn.Close()
	}
	clear(i.streams)
}
