// Package network makes the network of a sandbox whole: the link with its gate, the
// table of names and the log on disk, the files of /etc that speak of it, and the
// fd store that keeps the link while no daemon runs.
package network

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

const (
	logFile = "egress.ndjson"
	oldFile = "egress.old.ndjson"
	// maxLog is the size at which the log becomes the old one, and the old one goes.
	maxLog = 1 << 20
	// maxRecord bounds a line; what a sandbox has a say in is bounded far below.
	maxRecord = 16 << 10
)

// Log is what left one sandbox and what did not, in two files of bounded size. It
// holds no descriptor while nothing happens. One process at a time may append.
type Log struct {
	dir string

	mu      sync.Mutex
	last    int64 // the number of the last record
	size    int64 // of logFile, of what is whole
	changed chan struct{}
	closed  bool
}

// OpenLog finds the log in a directory, or begins one. A line that a crash left
// without its end is overwritten by the next.
func OpenLog(dir string) (*Log, error) {
	l := &Log{dir: dir, changed: make(chan struct{})}
	for _, name := range []string{oldFile, logFile} {
		l.size = 0
		err := l.scan(name, -1, func(rec api.EgressRecord, n int64) error {
			l.last = max(l.last, rec.Seq)
			l.size += n
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

// scan calls fn with each whole record of a file, up to a size that is negative for
// all, and with its length. Lines that are no record are passed over.
func (l *Log) scan(name string, size int64, fn func(api.EgressRecord, int64) error) error {
	f, err := hostfile.OpenFile(filepath.Join(l.dir, name), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open egress log: %w", err)
	}
	defer f.Close()
	var in io.Reader = f
	if size >= 0 {
		in = io.LimitReader(f, size)
	}
	r := bufio.NewReaderSize(in, maxRecord)
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read egress log: %w", err)
		}
		var rec api.EgressRecord
		if json.Unmarshal(line, &rec) != nil {
			rec = api.EgressRecord{}
		}
		if err := fn(rec, int64(len(line))); err != nil {
			return err
		}
	}
}

// Append numbers a record and writes it. The number is given also on an error, so
// that a record which could not be written is missed.
func (l *Log) Append(rec api.EgressRecord) (api.EgressRecord, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	rec.Seq = l.last
	line, err := json.Marshal(rec)
	if err != nil {
		return rec, fmt.Errorf("encode record: %w", err)
	}
	line = append(line, '\n')
	if len(line) > maxRecord {
		return rec, errors.New("write egress log: the record is too long")
	}
	if l.size+int64(len(line)) > maxLog {
		if err := hostfile.Rename(filepath.Join(l.dir, logFile), filepath.Join(l.dir, oldFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return rec, fmt.Errorf("turn egress log: %w", err)
		}
		l.size = 0
	}
	if err := l.put(line); err != nil {
		return rec, fmt.Errorf("write egress log: %w", err)
	}
	l.size += int64(len(line))
	if !l.closed {
		close(l.changed)
		l.changed = make(chan struct{})
	}
	return rec, nil
}

func (l *Log) put(line []byte) (err error) {
	f, err := hostfile.OpenFile(filepath.Join(l.dir, logFile), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// What a crash or a full disk left half written goes first.
	if err := f.Truncate(l.size); err != nil {
		return err
	}
	_, err = f.WriteAt(line, l.size)
	return err
}

// Close ends those who follow.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		close(l.changed)
	}
}

// state is what a reader needs.
func (l *Log) state() (last, size int64, changed <-chan struct{}, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last, l.size, l.changed, l.closed
}

// Read calls fn with the records that o chooses. With Follow it ends with ctx, with
// the log, or with an error of fn.
func (l *Log) Read(ctx context.Context, o api.EgressLogOptions, fn func(api.EgressRecord) error) error {
	last, _, changed, closed := l.state()
	after := o.After
	if after < 0 {
		after = last
	}
	tail := o.Tail
	for {
		list, err := l.after(after, o, tail)
		if err != nil {
			return err
		}
		for _, rec := range list {
			if err := fn(rec); err != nil {
				return err
			}
		}
		after, tail = max(after, last), 0
		if len(list) > 0 {
			after = max(after, list[len(list)-1].Seq)
		}
		if !o.Follow || closed {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
		last, _, changed, closed = l.state()
	}
}

// after lists the chosen records behind a number; the first says how many are not
// kept any more.
func (l *Log) after(after int64, o api.EgressLogOptions, tail int) ([]api.EgressRecord, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if after >= l.last {
		return nil, nil
	}
	var list []api.EgressRecord
	first := int64(0)
	for _, name := range []string{oldFile, logFile} {
		size := int64(-1)
		if name == logFile {
			size = l.size
		}
		err := l.scan(name, size, func(rec api.EgressRecord, _ int64) error {
			if rec.Seq <= after {
				return nil
			}
			if first == 0 {
				first = rec.Seq
			}
			if len(o.Kinds) == 0 || slices.Contains(o.Kinds, rec.Kind) {
				list = append(list, rec)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if tail > 0 && len(list) > tail {
		return list[len(list)-tail:], nil
	}
	if tail == 0 && len(list) > 0 && after > 0 && first > after+1 {
		list[0].Missed = first - after - 1
	}
	return list, nil
}
