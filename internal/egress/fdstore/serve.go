//go:build linux

package fdstore

import (
	"maps"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/internal/poll"
)

const (
	// listenFD is the descriptor of the socket that an fd store is started with.
	listenFD = 3
	// patience is how long an fd store stays that holds nothing, while a client is connected
	// or before the first one. Another is started in less.
	patience = 3 * time.Second
	// rounds is how often it looks whether the links still have another end.
	rounds = 20 * patience
	// maxConns bounds the connections at once. The daemon has two.
	maxConns = 8
)

// Main is the life of an fd store. It returns its exit status.
func Main() int {
	debug.SetGCPercent(20) // it does next to nothing, and should be next to nothing
	// Who stops the daemon by its terminal or group does not mean its links.
	signal.Ignore(unix.SIGINT, unix.SIGHUP, unix.SIGTERM, unix.SIGPIPE)
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = limit.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	}
	return (&server{listener: listenFD, patience: patience, rounds: rounds, links: map[string]*os.File{}}).serve()
}

// server is one goroutine over a poller: it has no more to say at once than one
// daemon asks.
type server struct {
	listener         int
	patience, rounds time.Duration
	links            map[string]*os.File
	conns            []int
}

func (s *server) serve() int {
	_ = unix.SetNonblock(s.listener, true)
	looked := time.Now()
	idle := looked // since when it holds nothing
	known := false // a client has connected
	for {
		polled := []unix.PollFd{{Fd: int32(s.listener), Events: unix.POLLIN}}
		for _, c := range s.conns {
			polled = append(polled, unix.PollFd{Fd: int32(c), Events: unix.POLLIN})
		}
		wait := s.rounds - time.Since(looked)
		if len(s.links) == 0 {
			wait = s.patience - time.Since(idle)
		}
		if _, err := unix.Poll(polled, int(max(wait.Milliseconds(), 0))); err != nil && err != unix.EINTR { //nolint:errorlint // a bare errno
			return 1
		}
		for i, p := range polled[1:] {
			if p.Revents == 0 {
				continue
			}
			idle = time.Now()
			if !s.answer(int(p.Fd)) {
				_ = unix.Close(int(p.Fd))
				s.conns[i] = -1
			}
		}
		s.conns = slices.DeleteFunc(s.conns, func(fd int) bool { return fd < 0 })
		if polled[0].Revents != 0 {
			s.accept()
		}
		if time.Since(looked) >= s.rounds {
			looked = time.Now()
			s.bury()
		}
		if len(s.links) > 0 {
			idle = time.Now()
		} else if gone := known && len(s.conns) == 0; gone || time.Since(idle) >= s.patience {
			return 0
		}
		known = known || len(s.conns) > 0
	}
}

func (s *server) accept() {
	fd, _, err := unix.Accept4(s.listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return
	}
	if len(s.conns) >= maxConns || !samePeer(fd) {
		_ = unix.Close(fd)
		return
	}
	// A client that does not read must not block the others.
	tv := unix.NsecToTimeval(int64(5 * time.Second))
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	s.conns = append(s.conns, fd)
}

// bury lets go of links whose other end is gone.
func (s *server) bury() {
	for id, f := range s.links {
		if gone, err := poll.HungUp(int(f.Fd()), 0); err == nil && gone {
			s.drop(id)
		}
	}
}

func (s *server) drop(id string) {
	if f := s.links[id]; f != nil {
		_ = f.Close()
		delete(s.links, id)
	}
}

// answer does what one message asks; false ends the connection.
func (s *server) answer(fd int) bool {
	words, file, err := receive(fd)
	if err != nil {
		return false
	}
	keep := false
	defer func() {
		if file != nil && !keep {
			_ = file.Close()
		}
	}()
	verb, ids := words[0], words[1:]
	switch {
	case verb == verbPut && file != nil && len(ids) == 1:
		if s.links[ids[0]] == nil && len(s.links) >= maxLinks {
			return send(fd, encode("it holds as many links as it may"), nil) == nil
		}
		s.drop(ids[0])
		s.links[ids[0]], keep = file, true
		return send(fd, encode(wordOK), nil) == nil
	case verb == verbTake && len(ids) == 1:
		f := s.links[ids[0]]
		if f == nil {
			return send(fd, encode(wordNone), nil) == nil
		}
		return send(fd, encode(wordOK), f) == nil
	case verb == verbDrop:
		for _, id := range ids {
			s.drop(id)
		}
		return send(fd, encode(wordOK), nil) == nil
	case verb == verbList && len(ids) <= 1:
		return s.list(fd, ids)
	}
	return send(fd, encode("it does not know what was asked"), nil) == nil
}

// list answers with the ids after one, as many as fit into a message.
func (s *server) list(fd int, after []string) bool {
	const some = 200
	ids := slices.Sorted(maps.Keys(s.links))
	if len(after) == 1 {
		i, found := slices.BinarySearch(ids, after[0])
		if found {
			i++
		}
		ids = ids[i:]
	}
	word := wordOK
	if len(ids) > some {
		word, ids = wordMore, ids[:some]
	}
	return send(fd, encode(append([]string{word}, ids...)...), nil) == nil
}
