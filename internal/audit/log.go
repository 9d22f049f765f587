//go:build linux

package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche"
)

// lockWait is how long Record waits for another process to finish its line. A
// line takes microseconds; who holds the lock longer is stuck.
const lockWait = 5 * time.Second

// Log appends events to one file. Several processes may have the same file
// open: each line is one write under a lock on the file, so lines never mix. A
// Log is safe for concurrent use.
//
// A line that Record returned from survives the death of every process. It is
// not synced to the disk one by one, which would cost each exec milliseconds:
// when the whole machine stops, the last seconds can be lost. Close syncs.
type Log struct {
	path   string
	logger *slog.Logger

	mu   sync.Mutex
	file *os.File // nil after Close
}

// Open opens the log at path, making it with mode 0600. The file must be a
// regular one: a symlink is refused.
func Open(path string, logger *slog.Logger) (*Log, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	return &Log{path: path, logger: logger, file: f}, nil
}

func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("it is %s, not a regular file", info.Mode().Type())
	}
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = f.Chmod(0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open audit log: %w", err), f.Close())
	}
	return f, nil
}

// Record appends one event. What happened is recorded even when ctx is
// cancelled, for the caller that left was served all the same; only waiting for
// another process's lock is bounded, by a time of its own.
//
// The error is a *cloche.Error of code unavailable and names no path. Whoever
// gets one for a Granted event must not do what it was about to do.
func (l *Log) Record(ctx context.Context, e Event) error {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	line, err := encode(e)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		err = l.append(context.WithoutCancel(ctx), line)
	}
	if err == nil {
		return nil
	}
	out := cloche.Errorf(cloche.CodeUnavailable, "the audit log cannot be written, and nothing is done without a record")
	out.Retryable = true
	return out.WithCause(err).WithHint("the operator finds the reason in the daemon's log")
}

// append needs l.mu.
func (l *Log) append(ctx context.Context, line []byte) error {
	if l.file == nil {
		return fmt.Errorf("append to audit log: %w", fs.ErrClosed)
	}
	if err := l.follow(); err != nil {
		return err
	}
	fd := int(l.file.Fd())
	if err := lock(ctx, fd); err != nil {
		return err
	}
	// An unlock of a valid descriptor does not fail, and Close would undo it.
	defer func() { _ = unix.Flock(fd, unix.LOCK_UN) }()

	size, torn, err := l.tail()
	if err != nil {
		return err
	}
	if torn {
		l.logger.Warn("audit log ends in a torn line; starting on a new one", "offset", size)
		line = append([]byte{'\n'}, line...)
	}
	if _, err := l.file.Write(line); err != nil {
		// Nobody else writes while the lock is held, so half a line can be taken
		// back. Where that fails too, the next append starts on a new line.
		return errors.Join(fmt.Errorf("append to audit log: %w", err), l.file.Truncate(size))
	}
	return nil
}

// follow opens the file again when the one at path is another, or gone: a log
// that was moved away must not swallow what comes after.
func (l *Log) follow() error {
	have, err := l.file.Stat()
	if err != nil {
		return fmt.Errorf("stat audit log: %w", err)
	}
	now, err := os.Lstat(l.path)
	if err == nil && os.SameFile(have, now) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("stat audit log: %w", err)
	}
	f, err := openFile(l.path)
	if err != nil {
		return err
	}
	l.logger.Warn("audit log was moved or removed; it was begun anew", "path", l.path)
	old := l.file
	l.file = f
	if err := old.Close(); err != nil {
		l.logger.Warn("close moved audit log", "err", err)
	}
	return nil
}

// tail returns the size and whether the last line lacks its end, as after a
// crash in the middle of a write.
func (l *Log) tail() (size int64, torn bool, err error) {
	info, err := l.file.Stat()
	if err != nil {
		return 0, false, fmt.Errorf("stat audit log: %w", err)
	}
	size = info.Size()
	if size == 0 {
		return 0, false, nil
	}
	var last [1]byte
	if _, err := l.file.ReadAt(last[:], size-1); err != nil {
		return 0, false, fmt.Errorf("read end of audit log: %w", err)
	}
	return size, last[0] != '\n', nil
}

// lock takes the lock on the file. It asks again and again instead of blocking
// in the kernel, where nothing could bound the wait.
func lock(ctx context.Context, fd int) error {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("lock audit log: %w", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("lock audit log, held by another process: %w", context.Cause(ctx))
		}
	}
}

// Sync writes what was recorded through to the disk.
func (l *Log) Sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	if err := l.file.Sync(); err != nil {
		return fmt.Errorf("sync audit log: %w", err)
	}
	return nil
}

// Close syncs and closes the log; Record fails from then on. It is idempotent.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	f := l.file
	l.file = nil
	return errors.Join(f.Sync(), f.Close())
}
