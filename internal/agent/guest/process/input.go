//go:build linux

package process

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// input is what a process is given to read. One writes at a time; a program that
// does not read blocks only its own writers.
type input struct {
	slot chan struct{} // held by who writes
	tty  bool
	// given: nothing comes behind the input of the request. It is set before the
	// process begins.
	given bool

	mu     sync.Mutex
	f      *os.File // nil without a run, or when that has closed it
	open   bool     // more may come
	offset int64    // bytes given since the process began
	kept   []byte   // the last of them
}

func newInput(tty bool) *input { return &input{slot: make(chan struct{}, 1), tty: tty, open: true} }

// attach gives the input to a run.
func (in *input) attach(f *os.File) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.open && !in.tty {
		f.Close()
		return
	}
	in.f = f
}

// detach takes it away from the run that had it. A terminal is closed by who
// reads it.
func (in *input) detach() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.f != nil && !in.tty {
		in.f.Close() // wakes who writes
	}
	in.f = nil
}

// state is the offset, and whether more may come.
func (in *input) state() (int64, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.offset, in.open && !in.given
}

// takes is the offset, and whether the run takes more.
func (in *input) takes() (int64, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.offset, in.open && in.f != nil
}

// finish says that no more can come, because the process has ended.
func (in *input) finish() {
	in.detach()
	in.mu.Lock()
	defer in.mu.Unlock()
	in.open, in.kept = false, nil
}

// hold takes the slot.
func (in *input) hold(ctx context.Context) error {
	select {
	case in.slot <- struct{}{}:
		return nil
	case <-ctx.Done():
		return errAbandoned
	}
}

func (in *input) release() { <-in.slot }

var (
	errAbandoned   = api.Errorf(api.CodeCanceled, "the write was given up")
	errInputClosed = api.Errorf(api.CodeState, "the process takes no more input: it was closed, or the process has ended")
	errInputLost   = api.Errorf(api.CodeState, "the process takes no input now: it has closed it itself, or is between two runs")
)

// write gives the process data whose first byte has the offset at, -1 for the
// end. It returns the offset after what has been given, error or not. It waits
// while the program does not read, until ctx ends.
func (in *input) write(ctx context.Context, at int64, data []byte) (int64, error) {
	if err := in.hold(ctx); err != nil {
		offset, _ := in.state()
		return offset, err
	}
	defer in.release()
	return in.writeHeld(ctx, at, data)
}

// writeHeld is write for who has the slot.
func (in *input) writeHeld(ctx context.Context, at int64, data []byte) (int64, error) {
	in.mu.Lock()
	f, offset, open := in.f, in.offset, in.open
	in.mu.Unlock()
	if at > offset {
		return offset, api.Invalid("offset", "offset %d is past %d, where the input ends: bytes between would be missing", at, offset).
			WithHint("go on from %d", offset)
	}
	if at >= 0 {
		if !in.repeats(at, data) {
			return offset, errOtherInput(offset)
		}
		if data = data[min(offset-at, int64(len(data))):]; len(data) == 0 && at < offset {
			return offset, nil // all of it was given already
		}
	}
	switch {
	case !open:
		return offset, errInputClosed
	case f == nil:
		return offset, errInputLost
	case len(data) == 0:
		return offset, nil
	}
	n, err := writeUntil(ctx, f, data)
	in.mu.Lock()
	defer in.mu.Unlock()
	in.offset += int64(n)
	in.keep(data[:n])
	switch {
	case err == nil:
		return in.offset, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return in.offset, errAbandoned
	case !in.open:
		return in.offset, errInputClosed
	default:
		if in.f == f && !in.tty {
			in.f.Close()
			in.f = nil
		}
		return in.offset, errInputLost
	}
}

// errOtherInput is the error for a write that is no repeat of what was given.
func errOtherInput(offset int64) error {
	return api.Errorf(api.CodeConflict, "the process was given other input than this up to offset %d: another writer's", offset).
		WithHint("read its stdin_offset and go on from there, or write without an offset")
}

// repeats reports whether data, as far as it is before the end of the input and
// that is remembered, is what was given there. For who has the slot.
func (in *input) repeats(at int64, data []byte) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	first := in.offset - int64(len(in.kept))
	from, to := max(at, first), min(at+int64(len(data)), in.offset)
	return from >= to || bytes.Equal(data[from-at:to-at], in.kept[from-first:to-first])
}

// keep remembers what was given. The caller holds in.mu.
func (in *input) keep(data []byte) {
	if over := len(data) - wire.InputKept; over > 0 {
		// What is kept is of one piece: nothing stays from before a gap.
		in.kept, data = in.kept[:0], data[over:]
	}
	in.kept = append(in.kept, data...)
	if over := len(in.kept) - wire.InputKept; over >= wire.InputKept {
		in.kept = append(in.kept[:0], in.kept[over:]...)
	}
}

// writeUntil writes data; the end of ctx interrupts it. No other writes to f.
func writeUntil(ctx context.Context, f *os.File, data []byte) (int, error) {
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = f.SetWriteDeadline(time.Unix(1, 0))
		close(woken)
	})
	n, err := f.Write(data)
	if !stop() {
		<-woken
		_ = f.SetWriteDeadline(time.Time{})
	}
	return n, err
}

// close ends the input after what is being written. A terminal gets an
// end-of-file character, and stays open. It reports whether it was open.
func (in *input) close(ctx context.Context) (bool, error) {
	if err := in.hold(ctx); err != nil {
		return false, err
	}
	defer in.release()
	return in.closeHeld(ctx), nil
}

// closeHeld is close for who has the slot.
func (in *input) closeHeld(ctx context.Context) bool {
	in.mu.Lock()
	f, open := in.f, in.open
	if in.tty || !open {
		in.mu.Unlock()
		if f == nil || !open {
			return false
		}
		_, _ = writeUntil(ctx, f, []byte{4}) // ^D: the terminal turns it into an end of file
		return true
	}
	in.open, in.f = false, nil
	in.mu.Unlock()
	if f != nil {
		f.Close()
	}
	return true
}
