package sandbox

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

const (
	// deadlineGrace is how long after the timeout of a program its agent may take to end
	// it and to say so. An agent that is slow is not one that is lost: what follows is the
	// end of the sandbox.
	deadlineGrace = 30 * time.Second
	// deadlineLook bounds the last question to an agent that is late.
	deadlineLook = 10 * time.Second
	// deadlineFile holds the deadlines of a sandbox for the next daemon. It is never
	// synced: what it speaks of ends with the machine.
	deadlineFile = "deadlines"
	// deadlineSlot is the size of one deadline in it: the time, the timeout, the length of the ID
	// and the ID. A time of 0 is a free slot, and a negative one is the remaining time of a
	// paused deadline. Both are in milliseconds.
	deadlineSlot  = 160
	deadlineMaxID = deadlineSlot - 17
	// maxDeadlines bounds what is read of it.
	maxDeadlines = 4096
)

// deadlines are the daemon's own, behind the timeouts of programs that the agent of one
// sandbox holds: the agent may be kept from it by what runs beside it. The zero value is
// ready. Its methods are safe for concurrent use; the caller may hold live.mu.
type deadlines struct {
	mu   sync.Mutex
	byID map[string]*deadline
	held bool // the sandbox is paused, and so are the deadlines
	over bool
	file *os.File
	bad  bool // the file cannot be written, which was told
	free []int64
	next int64 // the first slot that was never used
	// asked counts the calls that wait for the end of a program.
	asked map[string]int
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

// setDeadline makes the daemon see to it that a program is over when its timeout is. One
// that has a deadline keeps it.
func (m *Manager) setDeadline(s *live, id string, timeout time.Duration) {
	if timeout <= 0 {
		return
	}
	t := &s.deadlines
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || t.byID[id] != nil {
		return
	}
	d := &deadline{id: id, timeout: timeout, left: timeout + m.deadlineGrace, slot: -1}
	if t.byID == nil {
		t.byID = map[string]*deadline{}
	}
	t.byID[id] = d
	if len(id) <= deadlineMaxID && m.openDeadlines(s) {
		if n := len(t.free); n > 0 {
			d.slot, t.free = t.free[n-1], t.free[:n-1]
		} else {
			d.slot = t.next
			t.next++
		}
	}
	m.armLocked(s, d)
}

// ask notes that a call waits for the end of a program, or by -1 that it waits no more.
func (t *deadlines) ask(id string, by int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked == nil {
		t.asked = map[string]int{}
	}
	if t.asked[id] += by; t.asked[id] <= 0 {
		delete(t.asked, id)
	}
}

// openDeadlines opens the file. The caller holds deadlines.mu.
func (m *Manager) openDeadlines(s *live) bool {
	t := &s.deadlines
	if t.file != nil || t.bad {
		return t.file != nil
	}
	f, err := hostfile.OpenFile(filepath.Join(s.dir, deadlineFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		m.unwritable(s, err)
		return false
	}
	t.file = f
	return true
}

// unwritable tells once that a next daemon will not know the deadlines.
func (m *Manager) unwritable(s *live, err error) {
	if !s.deadlines.bad {
		s.deadlines.bad = true
		m.log.Warn("a daemon that is started now will not know the deadlines of programs", "sandbox", s.id, "error", err)
	}
}

// armLocked starts the timer for the remaining time of d, unless deadlines are paused, and stores
// it. The caller holds deadlines.mu.
func (m *Manager) armLocked(s *live, d *deadline) {
	t := &s.deadlines
	when := -max(d.left.Milliseconds(), 1)
	if !t.held {
		d.at = time.Now().Add(d.left)
		when = d.at.UnixMilli()
		d.timer = time.AfterFunc(d.left, func() { m.background(func() { m.overdue(s, d) }) })
	}
	m.noteLocked(s, d, when)
}

// noteLocked writes when d is, or that it is no more.
func (m *Manager) noteLocked(s *live, d *deadline, when int64) {
	if d.slot < 0 || s.deadlines.file == nil {
		return
	}
	b := binary.BigEndian.AppendUint64(make([]byte, 0, deadlineSlot), uint64(when))
	if when != 0 {
		b = binary.BigEndian.AppendUint64(b, uint64(d.timeout.Milliseconds()))
		b = append(append(b, byte(len(d.id))), d.id...)
		b = b[:deadlineSlot]
	}
	if _, err := s.deadlines.file.WriteAt(b, d.slot*deadlineSlot); err != nil {
		m.unwritable(s, err)
	}
}

// met takes the deadline of a program away that is over, or was not started.
func (m *Manager) met(s *live, id string) {
	t := &s.deadlines
	t.mu.Lock()
	defer t.mu.Unlock()
	if d := t.byID[id]; d != nil {
		m.dropLocked(s, d)
	}
}

func (m *Manager) dropLocked(s *live, d *deadline) {
	t := &s.deadlines
	if d.timer != nil {
		d.timer.Stop()
	}
	delete(t.byID, d.id)
	m.noteLocked(s, d, 0)
	if d.slot >= 0 {
		t.free = append(t.free, d.slot)
	}
}

// holdDeadlines pauses all deadlines, or resumes them with their remaining time.
func (m *Manager) holdDeadlines(s *live, on bool) {
	t := &s.deadlines
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
		m.armLocked(s, d)
	}
}

// end forgets all of them: nothing runs any more, or this daemon ends.
func (t *deadlines) end() {
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

// adoptDeadlines takes over those of an earlier daemon. held says that the sandbox is
// paused.
func (m *Manager) adoptDeadlines(s *live, held bool) {
	t := &s.deadlines
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = held
	f, err := hostfile.OpenFile(filepath.Join(s.dir, deadlineFile), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		m.unwritable(s, err)
		return
	}
	t.file, t.byID = f, map[string]*deadline{}
	b := make([]byte, deadlineSlot)
	for ; t.next < maxDeadlines; t.next++ {
		n, _ := f.ReadAt(b, t.next*deadlineSlot)
		if n < 8 {
			return
		}
		when := int64(binary.BigEndian.Uint64(b))
		length := 0
		if n == deadlineSlot {
			length = int(b[16])
		}
		if when == 0 || length == 0 || length > deadlineMaxID {
			t.free = append(t.free, t.next)
			continue
		}
		d := &deadline{id: string(b[17 : 17+length]), timeout: time.Duration(binary.BigEndian.Uint64(b[8:])) * time.Millisecond, slot: t.next}
		if d.left = time.Duration(-when) * time.Millisecond; when > 0 {
			d.left = max(time.Until(time.UnixMilli(when)), 0)
		}
		t.byID[d.id] = d
		m.armLocked(s, d)
	}
}

// overdue ends a sandbox whose agent has not ended a program by its deadline. An agent that answers
// may report that the program ended but that the answer was lost.
func (m *Manager) overdue(s *live, d *deadline) {
	due := func() bool {
		s.deadlines.mu.Lock()
		defer s.deadlines.mu.Unlock()
		return s.deadlines.byID[d.id] == d && d.timer != nil && !time.Now().Before(d.at)
	}
	if !due() {
		return
	}
	rec, err := m.askAbout(s, d.id)
	if !due() {
		return // it was paused meanwhile, or is over
	}
	switch {
	case err == nil && rec == nil:
		// It is over, unless it has not begun: the agent may be waiting for a file of it.
		if wanted, again := m.wanted(s, d); again {
			return
		} else if !wanted {
			m.met(s, d.id)
			return
		}
	case err == nil && (rec.State.Ended() || !rec.Managed && !rec.Running):
		m.met(s, d.id)
		return
	case err == nil && rec.Managed && (!rec.Running || rec.Restarts != d.restarts):
		// Another run, with a timeout of its own.
		s.deadlines.mu.Lock()
		if s.deadlines.byID[d.id] == d && d.timer != nil {
			d.restarts, d.left = rec.Restarts, d.timeout+m.deadlineGrace
			m.armLocked(s, d)
		}
		s.deadlines.mu.Unlock()
		return
	}
	m.condemn(s, fmt.Sprintf("its agent did not end %s within %s of its timeout", d.id, m.deadlineGrace), err)
}

// wanted reports whether a call waits for a program that the agent does not know. The first
// time the agent is to be asked again, for its answer to the call may be on its way.
func (m *Manager) wanted(s *live, d *deadline) (wanted, again bool) {
	t := &s.deadlines
	t.mu.Lock()
	defer t.mu.Unlock()
	wanted = t.asked[d.id] > 0
	if !wanted || d.unknown || t.byID[d.id] != d || d.timer == nil {
		return wanted, false
	}
	d.unknown, d.left = true, m.deadlineLook
	m.armLocked(s, d)
	return true, true
}

// askAbout asks the agent what became of a program; nil is one that it does not know.
func (m *Manager) askAbout(s *live, id string) (*api.Process, error) {
	ctx, cancel := context.WithTimeout(m.ctx, m.deadlineLook)
	defer cancel()
	client, err := m.agentOf(ctx, s)
	if err != nil {
		return nil, err
	}
	recs, err := client.Processes(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range recs {
		if r.ExecID == id {
			return &r, nil
		}
	}
	return nil, nil
}

// condemn kills all that runs in a sandbox, by its engine and without help from inside.
// It is lost then, for that reason.
func (m *Manager) condemn(s *live, reason string, cause error) {
	s.mu.Lock()
	inst := s.inst
	if !s.leased() || inst == nil {
		s.mu.Unlock()
		return
	}
	s.condemned = reason
	s.mu.Unlock()
	m.log.Error("end a sandbox that has not kept a deadline", "sandbox", s.id, "reason", reason, "error", cause)
	if err := bounded(m.ctx, closeTimeout, inst.Close); err != nil {
		m.log.Error("close instance", "sandbox", s.id, "error", err)
		// As any end that fails, it is tried again until it succeeds.
		if _, err := m.end(m.ctx, s, why{cause: api.EndedLost, text: reason}, nil); err != nil {
			m.log.Error("end a sandbox that has not kept a deadline", "sandbox", s.id, "error", err)
		}
	}
}
