package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/hostfile"
	"github.com/cloche-dev/cloche/internal/spool"
	"github.com/cloche-dev/cloche/internal/workspace"
)

const (
	// processRecordFile is the record of a process, in its directory, beside its
	// log.
	processRecordFile = "process.json"
	// processStartFile is the record until the agent has confirmed the start. Another daemon needs it to
	// look for the process. It is not written to the disk at once: no process survives a power cut, and
	// a start is acknowledged after the confirmation. What a power cut leaves of it is not kept.
	processStartFile = "start.new"
	processLogDir    = "log"
	// processRecordVersion is its format; another version is not read.
	processRecordVersion = 1
	// maxLastStderr bounds the last line of a process in its record.
	maxLastStderr = 256
	// MaxSaid bounds what an agent says in words.
	MaxSaid = 1024
)

// process is one managed process of a sandbox, for as long as its record is kept.
type process struct {
	id       string
	dir      string
	logBytes int64

	// stdin is a lock that a writer of the process's input takes by sending.
	stdin chan struct{}
	// given is how much input it has been given, -1 when that is not known; it
	// belongs to the holder of stdin.
	given int64

	// updating puts the changes of rec, of its file and the events about them in
	// one order.
	updating sync.Mutex

	mu  sync.Mutex // guards what follows
	rec api.Process
	// confirmed means that the agent has reported the process. Until then it is not visible to
	// callers.
	confirmed bool
	// collected: all of its output is in the log, which is finished.
	collected bool
	// removing: it is being taken away; removed: it has been.
	removing, removed bool
	// changed is closed, and replaced, whenever something above changes.
	changed chan struct{}
	// said is the end that the agent has reported, which is published when the
	// output before it is in the log.
	said *api.Process
	// sentKill: a KILL was sent on request.
	sentKill bool
	// kills is the sandbox's count of kills for memory when it was started.
	kills int64
	// readers are who is attached, writer is who among them has the input.
	readers map[*Attachment]struct{}
	writer  *Attachment

	logMu   sync.Mutex
	log     *spool.Log // open while logRefs is not 0
	logRefs int
	// reads is logRefs for code that does not wait for logMu. condemned means that the log can no
	// longer be opened.
	reads     atomic.Int32
	condemned bool
	// ends are where a finished log ended, known from the record.
	ends spool.Ends
	// end is where the log ended when it was last open.
	end int64

	// stop ends the collecting of its output, and stopped is closed when it has
	// ended. Both are guarded by mu and nil until it begins.
	stop    context.CancelFunc
	stopped chan struct{}
}

// processRecord is what survives the daemon.
type processRecord struct {
	Version   int
	Process   api.Process
	Confirmed bool
	Collected bool
	LogBytes  int64
	// LogEnds are where its log ended, once Collected; zero in records that were
	// written before the log's ends were kept.
	LogEnds spool.Ends
}

func newProcess(dir string, r processRecord) *process {
	return &process{
		id: r.Process.ExecID, dir: dir, logBytes: r.LogBytes, rec: r.Process, confirmed: r.Confirmed, collected: r.Collected,
		stdin: make(chan struct{}, 1), given: -1, changed: make(chan struct{}), readers: map[*Attachment]struct{}{},
		end: r.Process.Position, ends: r.LogEnds,
	}
}

// errNotStarted is the error for what a power cut left of a start that was not confirmed.
var errNotStarted = errors.New("the start of the process was not confirmed")

// readProcess reads the record of a process's directory.
func readProcess(dir string) (*process, error) {
	data, err := os.ReadFile(filepath.Join(dir, processRecordFile))
	if errors.Is(err, fs.ErrNotExist) {
		start, serr := os.ReadFile(filepath.Join(dir, processStartFile))
		switch {
		case serr == nil && !json.Valid(start):
			return nil, errNotStarted
		case serr == nil:
			data, err = start, nil
		}
	}
	if err != nil {
		return nil, err
	}
	var r processRecord
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("decode record of a process: %w", err)
	}
	if isRun(dir, r.Process.ExecID) {
		r.Process.ExecID = filepath.Base(dir)
	}
	if r.Version != processRecordVersion || r.Process.ExecID != filepath.Base(dir) {
		return nil, fmt.Errorf("record of a process is of version %d and of %q", r.Version, r.Process.ExecID)
	}
	return newProcess(dir, r), nil
}

// encode returns a record as it is on disk.
func (p *process) encode(r processRecord) ([]byte, error) {
	r.Version, r.LogBytes = processRecordVersion, p.logBytes
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode record of process %s: %w", p.id, err)
	}
	return data, nil
}

// saveStart writes the record of a start that is not confirmed.
func (p *process) saveStart() error {
	data, err := p.encode(processRecord{Process: p.rec})
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(p.dir)
	if err == nil {
		err = errors.Join(root.WriteFile(processStartFile, data, 0o600), root.Close())
	}
	if err != nil {
		return fmt.Errorf("write record of process %s: %w", p.id, err)
	}
	return nil
}

// save writes the record. The caller holds p.updating, or is alone with p.
func (p *process) save(r processRecord) error {
	data, err := p.encode(r)
	if err != nil {
		return err
	}
	if err := hostfile.ReplaceIn(p.dir, processRecordFile, data); err != nil {
		return fmt.Errorf("write record of process %s: %w", p.id, err)
	}
	return nil
}

// snapshot is what is on record, with who is attached, and a channel that is
// closed when it has changed.
func (p *process) snapshot() (rec api.Process, changed <-chan struct{}) {
	p.logMu.Lock()
	if p.log != nil {
		p.end = p.log.End()
	}
	end := p.end
	p.logMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	rec = p.rec
	rec.Argv = slices.Clone(rec.Argv)
	rec.Position = max(end, rec.Position)
	rec.Readers, rec.Writer = len(p.readers), p.writer != nil
	return rec, p.changed
}

// ended reports whether the process will never run again, and gone whether its
// record is.
func (p *process) ended() (ended, gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rec.State.Ended(), p.removed
}

// broadcast wakes all that wait for a change. The caller holds p.mu.
func (p *process) broadcast() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// openLog returns the log, which stays open until the last one who has it calls
// release. Ended processes have theirs closed. One that is not kept any longer is
// api.CodeNotFound.
func (p *process) openLog() (log *spool.Log, release func(), err error) {
	p.logMu.Lock()
	defer p.logMu.Unlock()
	if p.condemned {
		return nil, nil, api.Errorf(api.CodeNotFound, "process %s has ended and is not kept any longer", p.id)
	}
	if p.log == nil {
		p.log, err = spool.Open(spool.Options{Dir: filepath.Join(p.dir, processLogDir), MaxBytes: p.logBytes, TailBytes: tailBytes(p.logBytes), Ends: p.ends})
		if err != nil {
			p.log = nil
			return nil, nil, api.Errorf(api.CodeInternal, "the log of process %s cannot be read", p.id).WithCause(err)
		}
	}
	p.restoreEnd()
	p.logRefs++
	p.reads.Add(1)
	log = p.log
	return log, sync.OnceFunc(func() {
		p.logMu.Lock()
		defer p.logMu.Unlock()
		p.reads.Add(-1)
		if p.logRefs--; p.logRefs == 0 {
			p.end = p.log.End()
			_ = p.log.Close() // Append has reported what could not be written
			p.log = nil
		}
	}), nil
}

// restoreEnd puts back the end of a log whose last file was damaged after it was
// finished: readers get a gap, and do not wait for more. The caller holds p.logMu.
func (p *process) restoreEnd() {
	p.mu.Lock()
	rec, collected := p.rec, p.collected
	p.mu.Unlock()
	if _, done := p.log.Finished(); done || !collected || p.logBytes == unreadableLogBytes {
		return // the log of a process whose record cannot be read stays as it is
	}
	if rec.Position > p.log.End() { // a record without the ends of both streams
		_ = p.log.Append(spool.Record{Position: rec.Position}) // readers have it in memory if the disk has not
	}
	_ = p.log.Finish(finishReason(rec)) // it is finished for readers whatever the error
}

// finishReason says in the log of an ended process why there is no more.
func finishReason(rec api.Process) string {
	if rec.State == api.ProcessUnknown {
		return rec.Reason
	}
	return string(rec.State)
}

// update changes the record of a process. An ended one does not change any more.
func (m *Runner) update(s *Table, p *process, change func(rec *api.Process)) {
	p.updating.Lock()
	defer p.updating.Unlock()
	m.updateLocked(s, p, change)
}

// confirm stores the answer to a start, unless the watcher of the agent has already reported the
// process, because that report may be newer. An end waits for the output before it.
func (m *Runner) confirm(s *Table, p *process, said api.Process) {
	p.updating.Lock()
	defer p.updating.Unlock()
	if p.shown() {
		return
	}
	m.updateLocked(s, p, func(rec *api.Process) {
		if said.State.Ended() {
			rec.State, rec.StartedAt = api.ProcessRunning, said.StartedAt.UTC()
			return
		}
		takeOver(rec, said)
	})
}

// updateLocked is update for a caller that holds p.updating.
func (m *Runner) updateLocked(s *Table, p *process, change func(rec *api.Process)) {
	p.mu.Lock()
	old, confirmed, removed := p.rec, p.confirmed, p.removed
	p.mu.Unlock()
	if removed || confirmed && old.State.Ended() {
		return
	}
	next := old
	change(&next)
	next = m.o.Redacted(next)
	next.Running = !next.State.Ended() && next.State != api.ProcessBackoff
	if confirmed && !differs(old, next) {
		p.mu.Lock()
		p.rec = next // what it said last, and how much
		p.broadcast()
		p.mu.Unlock()
		return
	}
	if next.State.Ended() && (s.sandbox.Removing() || s.sandbox.Over()) {
		// There may be a thousand of them, and what is on disk goes with the sandbox, or
		// is written when the log is finished.
	} else if err := p.save(processRecord{Process: next, Confirmed: true}); err != nil {
		m.o.Logger.Error("save process", "sandbox", s.names.ID, "process", p.id, "error", err)
	}
	p.mu.Lock()
	p.rec, p.confirmed = next, true
	p.mu.Unlock()
	m.tellProcess(s, old, next, !confirmed)
	// Who waits for the change finds that it has been told.
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broadcast()
	for a := range p.readers {
		a.note(next)
	}
}

// differs reports whether two records of one process differ in what is worth a
// write and an event. What it printed last is not.
func differs(a, b api.Process) bool {
	return a.State != b.State || a.PID != b.PID || a.Restarts != b.Restarts || a.Reason != b.Reason ||
		a.StdinOpen != b.StdinOpen || !a.StartedAt.Equal(b.StartedAt) || (a.ReadyAt == nil) != (b.ReadyAt == nil)
}

// tellProcess reports what a change of a record means.
func (m *Runner) tellProcess(s *Table, old, rec api.Process, started bool) {
	var kinds []api.EventKind
	if started {
		old.State = api.ProcessStarting
		kinds = append(kinds, api.EventProcessStarted)
	}
	if rec.Restarts > old.Restarts {
		kinds = append(kinds, api.EventProcessRestarted)
	}
	switch {
	case rec.State == old.State && rec.State == api.ProcessRunning && rec.Reason != old.Reason && rec.Reason != "":
		kinds = append(kinds, api.EventProcessNotReady)
	case rec.State == old.State:
	case rec.State == api.ProcessReady:
		kinds = append(kinds, api.EventProcessReady)
	case rec.State == api.ProcessFailed:
		kinds = append(kinds, api.EventProcessFailed)
	case rec.State.Ended():
		kinds = append(kinds, api.EventProcessExited)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range kinds {
		e := api.Event{Time: now(), Kind: kind, Tenant: s.names.Tenant, Sandbox: s.names.ID, Name: s.names.Name, Process: &rec, Reason: rec.Reason}
		m.o.Events(e)
	}
}

// takeOver puts into a record what an agent may say of its process.
func takeOver(rec *api.Process, said api.Process) {
	rec.State, rec.Reason = said.State, agent.PlainText(said.Reason, MaxSaid)
	rec.PID, rec.Restarts = min(max(said.PID, 0), math.MaxInt32), max(said.Restarts, rec.Restarts)
	rec.StartedAt, rec.ReadyAt, rec.EndedAt = said.StartedAt.UTC(), said.ReadyAt, said.EndedAt
	rec.ExitCode, rec.Signal, rec.TimedOut = said.ExitCode, said.Signal, said.TimedOut
	rec.LastStderr = agent.PlainText(said.LastStderr, maxLastStderr)
	rec.StdinOffset, rec.StdinOpen = max(said.StdinOffset, 0), said.StdinOpen
	switch said.State {
	case api.ProcessStarting, api.ProcessRunning, api.ProcessReady, api.ProcessBackoff:
		rec.EndedAt = nil
	case api.ProcessExited:
		if rec.ExitCode == nil && rec.Signal == "" && !rec.TimedOut {
			rec.State, rec.Reason = api.ProcessUnknown, "its agent did not say how it ended"
		}
	case api.ProcessFailed, api.ProcessUnknown:
	default:
		rec.State, rec.Reason = api.ProcessUnknown, "its agent did not say in what state it is"
	}
	if rec.State.Ended() {
		rec.PID, rec.StdinOpen = 0, false
		if rec.EndedAt == nil {
			rec.EndedAt = new(now())
		}
	}
}

// erase removes the directory of a process. It is renamed first, so that its id
// is free at once.
func (p *process) erase() error {
	doomed := filepath.Join(filepath.Dir(p.dir), ".gone-"+api.NewID(""))
	if err := os.Rename(p.dir, doomed); err != nil {
		if os.IsNotExist(err) {
			return nil
		}
		// Some systems keep the name of a directory while a process reads a file in it.
		if err := workspace.RemoveTree(p.dir); err != nil {
			return fmt.Errorf("remove process %s: %w", p.id, err)
		}
		return nil
	}
	if err := workspace.RemoveTree(doomed); err != nil {
		return fmt.Errorf("remove process %s: %w", p.id, err)
	}
	return nil
}

// resultOf is the outcome of an ended process.
func resultOf(rec api.Process, lost bool) api.Result {
	res := api.Result{
		ExitCode: rec.ExitCode, Signal: rec.Signal, TimedOut: rec.TimedOut, OOM: rec.OOM, Reason: rec.Reason, ExecID: rec.ExecID,
		SandboxLost: lost && rec.State == api.ProcessUnknown,
	}
	if rec.EndedAt != nil && !rec.StartedAt.IsZero() {
		res.DurationMS = max(rec.EndedAt.Sub(rec.StartedAt), 0).Milliseconds()
	}
	return res
}

// unknown ends the record of a process whose end was not observed.
func unknown(reason string) func(*api.Process) {
	return func(rec *api.Process) {
		rec.State, rec.Reason, rec.PID, rec.StdinOpen = api.ProcessUnknown, reason, 0, false
		// What an earlier run came to says nothing of the last one.
		rec.ExitCode, rec.Signal, rec.TimedOut = nil, "", false
		rec.EndedAt = new(now())
	}
}

// byStart orders records by the start of their processes.
func byStart(a, b api.Process) int {
	if c := a.StartedAt.Compare(b.StartedAt); c != 0 {
		return c
	}
	return strings.Compare(a.ExecID, b.ExecID)
}

// processDirs lists the directories of processes, and removes what a removal
// left half done.
func processDirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if os.IsNotExist(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var dirs []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), ".gone-"):
			if err := workspace.RemoveTree(path); err != nil {
				return nil, fmt.Errorf("remove what is left of a process: %w", err)
			}
		case e.Type() == fs.ModeDir && api.ValidName(e.Name()):
			dirs = append(dirs, path)
		}
	}
	return dirs, nil
}
