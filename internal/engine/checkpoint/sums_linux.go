package checkpoint

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sumTime is how long a checksum counts for a file that has not changed since. Later the disk may have to be read, and may
	// have lost something.
	sumTime = 10 * time.Minute
	// clockTick is more than the step of the clock that the kernel sets times of files by: two writes in one step are one time.
	clockTick = 20 * time.Millisecond
	// maxSums bounds how many files are known.
	maxSums = 4096
)

// Sums computes checksums, and knows those of the files that it has read lately: a file that is read again within ten minutes, and
// that was not changed since, is not read for that. The zero value is ready. It is safe for concurrent use.
type Sums struct {
	mu    sync.Mutex
	known map[fileState]sum
}

// fileState is a file as it is: a write, and a change of its times, gives it another ctime, which only the kernel sets.
type fileState struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

type sum struct {
	text string
	read time.Time
}

// Of returns what a file contains in bytes, and its SHA-256 checksum in hex.
func (s *Sums) Of(ctx context.Context, f *os.File) (size int64, text string, err error) {
	id, err := stateOf(f)
	if err != nil {
		return 0, "", err
	}
	if text, ok := s.lookUp(id); ok {
		return id.size, text, nil
	}
	if size, text, err = Sum(ctx, f); err != nil {
		return 0, "", err
	}
	// What was read has this sum if nothing was written meanwhile, nor can be without another ctime.
	after, err := stateOf(f)
	if err == nil && after == id && time.Since(time.Unix(after.ctime.Unix())) > clockTick {
		s.keep(id, text)
	}
	return size, text, err
}

func (s *Sums) lookUp(id fileState) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.known[id]
	return k.text, ok && time.Since(k.read) < sumTime
}

func (s *Sums) keep(id fileState, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || len(s.known) >= maxSums {
		s.known = map[fileState]sum{}
	}
	s.known[id] = sum{text, time.Now()}
}

func stateOf(f *os.File) (fileState, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fileState{}, fmt.Errorf("read the checkpoint: %w", err)
	}
	return fileState{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Ctim}, nil
}
