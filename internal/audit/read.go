package audit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit/chain"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// pollEvery is how often a reader that follows looks for what other processes
// wrote.
const pollEvery = 500 * time.Millisecond

// Read calls fn with every record that o chooses and sees allows, in order, and
// with its line, which is valid during the call only and has no line end; a nil
// sees allows all. Without Follow it ends at what there was when it began, with
// Follow when ctx ends, whose cause is then the error. An error of fn ends it and
// is returned as it is. What is no record is left out: Verify tells of it. A sandbox that no
// record is of is an error of the code not_found, before fn is called.
func (l *Log) Read(ctx context.Context, o api.AuditOptions, sees func(api.AuditRecord) bool, fn func(r api.AuditRecord, line []byte) error) error {
	chooses := func(r api.AuditRecord) bool { return r.Seq > o.After && (sees == nil || sees(r)) && matches(o, r) }
	if o.Sandbox != "" {
		of, err := l.sandboxes(ctx, o.Sandbox, func(r api.AuditRecord) bool {
			return (o.Tenant == "" || o.Tenant == r.Tenant) && (sees == nil || sees(r))
		})
		if err != nil {
			return err
		}
		all := chooses
		chooses = func(r api.AuditRecord) bool { return all(r) && of.match(r) }
	}
	until, err := chain.ReadAnchor(filepath.Join(l.dir, chain.HeadName))
	if err != nil {
		return fmt.Errorf("read audit log: %w", err)
	}
	if o.Tail > 0 {
		after, err := l.tailStart(ctx, o.Tail, chooses)
		if err != nil {
			return err
		}
		o.After = max(o.After, after)
	}
	w := &walker{home: l.opts.Home, after: o.After}
	defer w.close()
	for n := 0; ; {
		// Taken before the look, so that what comes after the look wakes.
		wake, closed := l.waker()
		r, line, err := w.next(ctx)
		switch {
		case err == nil:
		case !errors.Is(err, io.EOF):
			return err
		case !o.Follow:
			return nil
		case closed:
			return fmt.Errorf("read audit log: %w", fs.ErrClosed)
		default:
			if err := await(ctx, wake); err != nil {
				return err
			}
			continue
		}
		if !o.Follow && r.Seq > until.Seq {
			return nil
		}
		if !chooses(r) {
			continue
		}
		if err := fn(r, line); err != nil {
			return err
		}
		if n++; n == o.Limit {
			return nil
		}
	}
}

// Verify checks the whole log.
func (l *Log) Verify(ctx context.Context, o api.AuditVerifyOptions) (api.AuditReport, error) {
	return chain.VerifyHome(ctx, l.opts.Home, o)
}

// waker is closed at the next record of this process, or with the log.
func (l *Log) waker() (wake <-chan struct{}, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wake, l.closed
}

func await(ctx context.Context, wake <-chan struct{}) error {
	timer := time.NewTimer(pollEvery)
	defer timer.Stop()
	select {
	case <-wake:
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// matches is the choice by content, without the sandbox.
func matches(o api.AuditOptions, r api.AuditRecord) bool {
	return (o.Tenant == "" || o.Tenant == r.Tenant) &&
		(o.Verb == "" || api.CurrentVerb(o.Verb) == api.CurrentVerb(r.Verb)) && (o.Outcome == "" || o.Outcome == r.Outcome) &&
		(o.Since.IsZero() || !r.Time.Before(o.Since)) && (o.Until.IsZero() || r.Time.Before(o.Until))
}

// tailStart is the record after which the last n that are chosen come.
func (l *Log) tailStart(ctx context.Context, n int, chooses func(api.AuditRecord) bool) (int64, error) {
	older, err := chain.Segments(l.opts.Home)
	if err != nil {
		return 0, err
	}
	var after int64
	for i := len(older); i >= 0 && n > 0; i-- {
		path := filepath.Join(l.opts.Home, chain.Active)
		if i < len(older) {
			path = filepath.Join(l.dir, chain.SegmentName(older[i]))
		}
		w := &walker{home: l.opts.Home, only: path}
		ring := make([]int64, 0, min(n, 1024))
		at := 0
		for {
			r, _, err := w.next(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				w.close()
				return 0, err
			}
			switch {
			case !chooses(r):
			case len(ring) < n:
				ring = append(ring, r.Seq)
			default:
				ring[at] = r.Seq
				at = (at + 1) % n
			}
		}
		w.close()
		if len(ring) > 0 {
			after = ring[at%len(ring)] - 1
		}
		n -= len(ring)
	}
	return after, nil
}

// walker reads the records of a home, file by file, and goes on where the log
// grows and is rotated.
type walker struct {
	home  string
	after int64
	// only is the one file to read; empty is all.
	only string

	f    *os.File
	b    *bufio.Reader
	part []byte // of a line whose end has not come
	last int64  // the last record
	skip bool   // of a line that is too long
}

func (w *walker) close() {
	if w.f != nil {
		_ = w.f.Close() // only read
		w.f = nil
	}
}

// next returns the next record, or io.EOF where the log ends at present. The line
// is valid until the next call.
func (w *walker) next(ctx context.Context) (api.AuditRecord, []byte, error) {
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return api.AuditRecord{}, nil, context.Cause(ctx)
		}
		if w.f == nil {
			if err := w.open(); err != nil {
				return api.AuditRecord{}, nil, err
			}
		}
		line, err := w.line()
		if errors.Is(err, io.EOF) {
			more, err := w.turn()
			if err != nil {
				return api.AuditRecord{}, nil, err
			}
			if !more {
				return api.AuditRecord{}, nil, io.EOF
			}
			continue
		}
		if err != nil {
			return api.AuditRecord{}, nil, err
		}
		r, err := chain.Parse(line)
		if err != nil || r.Seq <= w.last && w.only == "" {
			continue
		}
		w.last = r.Seq
		return r, line, nil
	}
}

// line reads one whole line.
func (w *walker) line() ([]byte, error) {
	for {
		piece, err := w.b.ReadSlice('\n')
		switch {
		case err == nil && len(w.part) == 0 && !w.skip:
			return piece[:len(piece)-1], nil
		case err == nil && w.skip:
			w.skip, w.part = false, w.part[:0]
		case err == nil:
			line := append(w.part, piece[:len(piece)-1]...)
			w.part = w.part[:0]
			return line, nil
		case errors.Is(err, bufio.ErrBufferFull), errors.Is(err, io.EOF):
			if len(w.part)+len(piece) > chain.MaxLine {
				w.skip, w.part = true, w.part[:0]
			} else if !w.skip {
				w.part = append(w.part, piece...)
			}
			if errors.Is(err, io.EOF) {
				return nil, io.EOF
			}
		default:
			return nil, fmt.Errorf("read audit log: %w", err)
		}
	}
}

// open opens the first file that holds a record after the last one.
func (w *walker) open() error {
	path, first, err := w.choose()
	if err == nil {
		err = w.take(path, first)
	}
	return err
}

// take opens a file that begins with a record; io.EOF is one that was rotated since
// that was seen.
func (w *walker) take(path string, first int64) error {
	f, err := hostfile.OpenFile(path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return io.EOF
	}
	if err != nil {
		return fmt.Errorf("read audit log: %w", err)
	}
	if first > 0 {
		r, err := firstRecord(f)
		if err == nil && r.Seq != first {
			err = io.EOF
		}
		if err == nil {
			_, err = f.Seek(0, io.SeekStart)
		}
		if err != nil {
			return errors.Join(err, f.Close())
		}
	}
	w.close()
	w.f, w.b, w.part, w.skip = f, bufio.NewReaderSize(f, chain.MaxLine), w.part[:0], false
	return nil
}

// choose finds the last file that does not begin behind the next record, or else
// the oldest.
func (w *walker) choose() (path string, first int64, err error) {
	if w.only != "" {
		return w.only, 0, nil
	}
	err = io.EOF // between two steps of a rotation
	files, ferr := w.files()
	if ferr != nil {
		return "", 0, ferr
	}
	for _, f := range files {
		if path == "" || f.first <= max(w.after, w.last)+1 {
			path, first, err = f.path, f.first, nil
		}
	}
	return path, first, err
}

// beginning is a file and the number of its first record.
type beginning struct {
	path  string
	first int64
}

// files are the files that hold records, oldest first. None is a log that is being
// rotated under the look.
func (w *walker) files() ([]beginning, error) {
	older, err := chain.Segments(w.home)
	if err != nil {
		return nil, err
	}
	var out []beginning
	for _, n := range older {
		p := filepath.Join(w.home, chain.Dir, chain.SegmentName(n))
		if first, err := firstSeq(p); err == nil {
			out = append(out, beginning{p, first})
		}
	}
	active := filepath.Join(w.home, chain.Active)
	if first, err := firstSeq(active); err == nil {
		out = append(out, beginning{active, first})
	}
	// A file that was closed between the two looks would be left out.
	again, err := chain.Segments(w.home)
	if err != nil || !slices.Equal(older, again) {
		return nil, err
	}
	return out, nil
}

func firstSeq(path string) (int64, error) {
	f, err := hostfile.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return 0, fmt.Errorf("read audit log: %w", err)
	}
	defer f.Close() // only read
	r, err := firstRecord(f)
	return r.Seq, err
}

// turn goes to the next file where this one grows no more, and reports whether
// there is something to read.
func (w *walker) turn() (more bool, err error) {
	if w.only != "" {
		return false, nil
	}
	now, err := os.Lstat(filepath.Join(w.home, chain.Active))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read audit log: %w", err)
	}
	mine, err := w.f.Stat()
	if err != nil {
		return false, fmt.Errorf("read audit log: %w", err)
	}
	if os.SameFile(now, mine) {
		return false, nil
	}
	// This file is closed. What was written to it between the last read and its
	// closing is read first.
	if _, err := w.b.Peek(1); err == nil {
		return true, nil
	}
	files, err := w.files()
	if err != nil {
		return false, err
	}
	for _, f := range files {
		if f.first <= w.last {
			continue
		}
		if err := w.take(f.path, f.first); !errors.Is(err, io.EOF) {
			return err == nil, err
		}
		return true, nil // rotated once more: look again
	}
	return false, nil
}
