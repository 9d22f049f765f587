// Package deadline ends sandboxes whose agents do not keep the timeouts of programs. What runs beside an
// agent may keep it from that, so the daemon has deadlines of its own, behind those of the agent.
package deadline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

const (
	// Grace is how long after the timeout of a program its agent may take to end it and to say so. An
	// agent that is slow is not one that is lost: what follows is the end of the sandbox.
	Grace = 30 * time.Second
	// Look bounds the last question to an agent that is late.
	Look = 10 * time.Second
	// fileName holds the deadlines of a sandbox for the next daemon. It is never
	// synced: what it speaks of ends with the machine.
	fileName = "deadlines"
	// slotSize is the size of one deadline in it: the time, the timeout, the length of the ID
	// and the ID. A time of 0 is a free slot, and a negative one is the remaining time of a
	// paused deadline. Both are in milliseconds.
	slotSize = 160
	maxID    = slotSize - 17
	// maxDeadlines bounds what is read of it.
	maxDeadlines = 4096
)

// Options are what a [Table] works with.
type Options struct {
	// Sandbox is the id of the sandbox, Dir its directory.
	Sandbox, Dir string
	// Context ends when the daemon closes.
	Context context.Context //nolint:containedctx // the table lives as long
	// Background runs a function that the owner waits for; it reports false, and runs nothing, when the
	// owner closes.
	Background func(func()) (runs bool)
	Logger     *slog.Logger
	// Grace and Look are the constants, except in tests.
	Grace, Look time.Duration
	// Process asks the agent what became of a program; nil is a program that it does not know.
	Process func(ctx context.Context, id string) (*api.Process, error)
	// Condemn ends the sandbox: its agent has not kept a deadline.
	Condemn func(reason string, cause error)
}

// Table has the deadlines of the programs of one sandbox. [Table.Init] comes before a deadline is set. It
// is safe for concurrent use, also for a caller that holds the lock of the sandbox.
type Table struct {
	o Options

	mu   sync.Mutex
	byID map[string]*deadline
	held bool // the sandbox is paused, and so are the deadlines
	over bool
	file *os.File
	bad  bool // the file cannot be written, which was reported
	free []int64
	next int64 // the first slot that was never used
	// asked counts the calls that wait for the end of a program.
	asked map[string]int
}

// Init gives the table what it works with.
func (t *Table) Init(o Options) { t.o = o }

// Held reports whether the deadlines are paused.
func (t *Table) Held() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

// Len is how many programs have a deadline.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byID)
}

// deadline is of one program.
type deadline struct {
	id      string
	timeout time.Duration
	at      time.Time
	left    time.Duration // while held
	timer   *time.Timer   // nil while held
	slot    int64         // -1: not in the file
	// unknown says that the agent, which answers, has not known the program when it was asked
	// before, though a call waits for it.
	unknown bool
	// restarts is how often a managed process had been started again when at was set.
	restarts int
}

// Set makes the daemon see to it that a program is over when its timeout is. One
// that has a deadline keeps it.
func (t *Table) Set(id string, timeout time.Duration) {
	if timeout <= 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || t.byID[id] != nil {
		return
	}
	d := &deadline{id: id, timeout: timeout, left: timeout + t.o.Grace, slot: -1}
	if t.byID == nil {
		t.byID = map[string]*deadline{}
	}
	t.byID[id] = d
	if len(id) <= maxID && t.open() {
		if n := len(t.free); n > 0 {
			d.slot, t.free = t.free[n-1], t.free[:n-1]
		} else {
			d.slot = t.next
			t.next++
		}
	}
	t.armLocked(d)
}

// Ask notes that a call waits for the end of a program, or by -1 that it waits no more.
func (t *Table) Ask(id string, by int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked == nil {
		t.asked = map[string]int{}
	}
	if t.asked[id] += by; t.asked[id] <= 0 {
		delete(t.asked, id)
	}
}

// open opens the file. The caller holds t.mu.
func (t *Table) open() bool {
	if t.file != nil || t.bad {
		return t.file != nil
	}
	f, err := hostfile.OpenFile(filepath.Join(t.o.Dir, fileName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.unwritable(err)
		return false
	}
	t.file = f
	return true
}

// unwritable tells once that a next daemon will not know the deadlines.
func (t *Table) unwritable(err error) {
	if !t.bad {
		t.bad = true
		t.o.Logger.Warn("a daemon that is started now will not know the deadlines of programs", "sandbox", t.o.Sandbox, "error", err)
	}
}

// armLocked starts the timer for the remaining time of d, unless deadlines are paused, and stores
// it. The caller holds t.mu.
func (t *Table) armLocked(d *deadline) {
	when := -max(d.left.Milliseconds(), 1)
	if !t.held {
		d.at = time.Now().Add(d.left)
		when = d.at.UnixMilli()
		d.timer = time.AfterFunc(d.left, func() { t.o.Background(func() { t.overdue(d) }) })
	}
	t.noteLocked(d, when)
}

// noteLocked writes when d is, or that it is no more.
func (t *Table) noteLocked(d *deadline, when int64) {
	if d.slot < 0 || t.file == nil {
		return
	}
	b := binary.BigEndian.AppendUint64(make([]byte, 0, slotSize), uint64(when))
	if when != 0 {
		b = binary.BigEndian.AppendUint64(b, uint64(d.timeout.Milliseconds()))
		b = append(append(b, byte(len(d.id))), d.id...)
		b = b[:slotSize]
	}
	if _, err := t.file.WriteAt(b, d.slot*slotSize); err != nil {
		t.unwritable(err)
	}
}

// Meet takes the deadline of a program away that is over, or was not started.
func (t *Table) Meet(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d := t.byID[id]; d != nil {
		t.dropLocked(d)
	}
}

func (t *Table) dropLocked(d *deadline) {
	if d.timer != nil {
		d.timer.Stop()
	}
	delete(t.byID, d.id)
	t.noteLocked(d, 0)
	if d.slot >= 0 {
		t.free = append(t.free, d.slot)
	}
}

// Hold pauses all deadlines, or resumes them with their remaining time.
func (t *Table) Hold(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held == on || t.over {
		return
	}
	t.held = on
	for _, d := range t.byID {
		if on {
			d.timer.Stop()
			d.left, d.timer = max(time.Until(d.at), 0), nil
		}
		t.armLocked(d)
	}
}

// End forgets all of them: nothing runs any more, or this daemon ends.
func (t *Table) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	for _, d := range t.byID {
		if d.timer != nil {
			d.timer.Stop()
		}
	}
	t.byID = nil
	if t.file != nil {
		_ = t.file.Close() // nothing in it waits to be written
		t.file = nil
	}
}

// Adopt takes over those of an earlier daemon. held says that the sandbox is
// paused.
func (t *Table) Adopt(held bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = held
	f, err := hostfile.OpenFile(filepath.Join(t.o.Dir, fileName), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		t.unwritable(err)
		return
	}
	t.file, t.byID = f, map[string]*deadline{}
	b := make([]byte, slotSize)
	for ; t.next < maxDeadlines; t.next++ {
		n, _ := f.ReadAt(b, t.next*slotSize)
		if n < 8 {
			return
		}
		when := int64(binary.BigEndian.Uint64(b))
		length := 0
		if n == slotSize {
			length = int(b[16])
		}
		if when == 0 || length == 0 || length > maxID {
			t.free = append(t.free, t.next)
			continue
		}
		d := &deadline{id: string(b[17 : 17+length]), timeout: time.Duration(binary.BigEndian.Uint64(b[8:])) * time.Millisecond, slot: t.next}
		if d.left = time.Duration(-when) * time.Millisecond; when > 0 {
			d.left = max(time.Until(time.UnixMilli(when)), 0)
		}
		t.byID[d.id] = d
		t.armLocked(d)
	}
}

// overdue ends a sandbox whose agent has not ended a program by its deadline. An agent that answers
// may report that the program ended but that the answer was lost.
func (t *Table) overdue(d *deadline) {
	due := func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.byID[d.id] == d && d.timer != nil && !time.Now().Before(d.at)
	}
	if !due() {
		return
	}
	rec, err := t.ask(d.id)
	if !due() {
		return // it was paused meanwhile, or is over
	}
	switch {
	case err == nil && rec == nil:
		// It is over, unless it has not begun: the agent may be waiting for a file of it.
		if wanted, again := t.wanted(d); again {
			return
		} else if !wanted {
			t.Meet(d.id)
			return
		}
	case err == nil && (rec.State.Ended() || !rec.Managed && !rec.Running):
		t.Meet(d.id)
		return
	case err == nil && rec.Managed && (!rec.Running || rec.Restarts != d.restarts):
		// Another run, with a timeout of its own.
		t.mu.Lock()
		if t.byID[d.id] == d && d.timer != nil {
			d.restarts, d.left = rec.Restarts, d.timeout+t.o.Grace
			t.armLocked(d)
		}
		t.mu.Unlock()
		return
	}
	t.o.Condemn(fmt.Sprintf("its agent did not end %s within %s of its timeout", d.id, t.o.Grace), err)
}

// wanted reports whether a call waits for a program that the agent does not know. The first
// time the agent is to be asked again, for its answer to the call may be on its way.
func (t *Table) wanted(d *deadline) (wanted, again bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	wanted = t.asked[d.id] > 0
	if !wanted || d.unknown || t.byID[d.id] != d || d.timer == nil {
		return wanted, false
	}
	d.unknown, d.left = true, t.o.Look
	t.armLocked(d)
	return true, true
}

// ask asks the agent what became of a program.
func (t *Table) ask(id string) (*api.Process, error) {
	ctx, cancel := context.WithTimeout(t.o.Context, t.o.Look)
	defer cancel()
	return t.o.Process(ctx, id)
}
