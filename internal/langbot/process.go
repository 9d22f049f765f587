package langbot

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
)

const (
	// previewChars is how much of a process's error output is shown.
	previewChars = 4000
	// stopGrace is how long a process may take to end after TERM.
	stopGrace = 5 * time.Second
	// fromEnd is where the first relay to a process of an earlier runtime begins: what
	// was asked before has no asker any more.
	fromEnd = -1
)

// managed is a process of a session. The server's mu guards what changes.
type managed struct {
	rec processRecord
	// next is the position in its output of the first byte that no relay has sent.
	next int64
	// torn: next is within a line that is too long, of which nothing more is sent.
	torn  bool
	relay *relay
	// ended and endedAt are as they were last seen.
	ended   bool
	endedAt time.Time
}

// processInfo is what is told of a process.
type processInfo struct {
	SessionID string   `json:"session_id"`
	ProcessID string   `json:"process_id"`
	Status    string   `json:"status"`
	Command   string   `json:"command"`
	Args      []string `json:"args"`
	Cwd       string   `json:"cwd"`
	EnvKeys   []string `json:"env_keys"`
	Attached  bool     `json:"attached"`
	StartedAt string   `json:"started_at"`
	ExitedAt  *string  `json:"exited_at"`
	ExitCode  *int     `json:"exit_code"`
	Preview   string   `json:"stderr_preview"`
}

// process finds one of a session's.
func (s *Server) process(x *session, id string) (*managed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := x.processes[id]; m != nil {
		return m, nil
	}
	return nil, noProcess(id)
}

func noProcess(id string) error {
	return failed(classProcessNotFound, "there is no managed process %s", clipped(id))
}

// startProcess starts one. A running one of the same id is ended first.
func (s *Server) startProcess(ctx context.Context, p placement, logical string, spec processSpec) (processInfo, error) {
	x, err := s.lookup(p, logical)
	if err != nil {
		return processInfo{}, err
	}
	defer s.use(x)()
	unlock, err := s.ops.lock(ctx, x.physical+"\x00"+spec.ProcessID)
	if err != nil {
		return processInfo{}, err
	}
	defer unlock()
	if err := s.replace(ctx, x, spec.ProcessID); err != nil {
		return processInfo{}, err
	}
	free, err := s.reserve()
	if err != nil {
		return processInfo{}, err
	}
	defer free()
	asked := api.ProcessSpec{OpenStdin: true, OnFull: api.OnFullBlock}
	asked.ExecID = api.NewID("mp-")
	asked.Identity = identityOf(p, x.logical())
	asked.Argv = append([]string{"/bin/sh", "-lc", startIn, "sh", spec.Cwd, spec.Command}, spec.Args...)
	asked.Env = spec.Env
	asked.TimeoutMS = new(int64(0))
	if _, err := s.core.StartProcess(ctx, p.caller(), x.sandbox, asked); err != nil {
		return processInfo{}, s.whyNot(x, err)
	}
	m := &managed{rec: processRecord{
		ID: spec.ProcessID, ExecID: asked.ExecID, Command: spec.Command, Args: spec.Args, Cwd: spec.Cwd,
		EnvKeys: slices.AppendSeq([]string{}, maps.Keys(spec.Env)), Started: time.Now(),
	}}
	slices.Sort(m.rec.EnvKeys)
	s.mu.Lock()
	x.processes[spec.ProcessID] = m
	s.mu.Unlock()
	if err := s.keep(x); err != nil {
		s.log.Error("keep the record of a process", "session", x.physical, "error", err)
	}
	return s.processInfo(ctx, x, m)
}

// replace ends what has the id.
func (s *Server) replace(ctx context.Context, x *session, id string) error {
	s.mu.Lock()
	m := x.processes[id]
	s.mu.Unlock()
	if m == nil {
		return nil
	}
	return s.end1(ctx, x, m)
}

// reserve counts a process that is about to be, against the most that there may be.
func (s *Server) reserve() (free func(), err error) {
	most := s.settings().limits.Processes
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.running() + s.starting; n >= most {
		return nil, failed(classCapacity, "there are %d managed processes, which is the most", n)
	}
	s.starting++
	return func() {
		s.mu.Lock()
		s.starting--
		s.mu.Unlock()
	}, nil
}

// running counts processes; for who holds mu.
func (s *Server) running() (n int) {
	for _, x := range s.sessions {
		for _, m := range x.processes {
			if !m.ended {
				n++
			}
		}
	}
	return n
}

// stopProcess ends one and forgets it.
func (s *Server) stopProcess(ctx context.Context, p placement, logical, id string) error {
	x, err := s.lookup(p, logical)
	if err != nil {
		return err
	}
	defer s.use(x)()
	m, err := s.process(x, id)
	if err != nil {
		return err
	}
	if err := s.end1(ctx, x, m); err != nil {
		return err
	}
	if err := s.keep(x); err != nil {
		s.log.Error("keep the record of a session", "session", x.physical, "error", err)
	}
	return nil
}

// end1 ends one process: by TERM, and then whatever it does.
func (s *Server) end1(ctx context.Context, x *session, m *managed) error {
	s.mu.Lock()
	if x.processes[m.rec.ID] == m {
		delete(x.processes, m.rec.ID)
	}
	attached := m.relay
	s.mu.Unlock()
	if attached != nil {
		attached.end(websocket.StatusNormalClosure, "the process was stopped")
	}
	ctx = context.WithoutCancel(ctx)
	caller := x.place.caller()
	if s.core.SignalProcess(ctx, caller, x.sandbox, m.rec.ExecID, api.SignalRequest{Signal: "TERM"}) == nil {
		_, _ = s.core.WaitProcess(ctx, caller, x.sandbox, m.rec.ExecID, api.WaitRequest{TimeoutMS: stopGrace.Milliseconds()})
	}
	err := s.core.RemoveProcess(ctx, caller, x.sandbox, m.rec.ExecID)
	if err != nil && api.CodeOf(err) != api.CodeNotFound {
		return s.whyNot(x, err)
	}
	return nil
}

// processInfo tells what is known of a process now.
func (s *Server) processInfo(ctx context.Context, x *session, m *managed) (processInfo, error) {
	p, err := s.core.GetProcess(ctx, x.place.caller(), x.sandbox, m.rec.ExecID)
	if api.CodeOf(err) == api.CodeNotFound {
		return processInfo{}, noProcess(m.rec.ID)
	}
	if err != nil {
		return processInfo{}, s.whyNot(x, err)
	}
	s.note(m, p)
	out := processInfo{
		SessionID: x.logical(), ProcessID: m.rec.ID, Status: "running", Command: m.rec.Command, Args: m.rec.Args, Cwd: m.rec.Cwd,
		EnvKeys: m.rec.EnvKeys, StartedAt: stamp(m.rec.Started), Preview: s.preview(ctx, x, m),
	}
	s.mu.Lock()
	out.Attached = m.relay != nil
	s.mu.Unlock()
	if p.State.Ended() {
		out.Status, out.ExitCode = "exited", exitCode(p)
		if p.EndedAt != nil {
			out.ExitedAt = new(stamp(*p.EndedAt))
		}
	}
	return out, nil
}

// note remembers what was seen of a process.
func (s *Server) note(m *managed, p api.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.ended = p.State.Ended(); m.ended && m.endedAt.IsZero() {
		m.endedAt = time.Now()
		if p.EndedAt != nil {
			m.endedAt = *p.EndedAt
		}
	}
}

// exitCode is as the client's language has it: a signal is its negative number.
func exitCode(p api.Process) *int {
	if p.ExitCode != nil {
		return p.ExitCode
	}
	if n := api.SignalNumber(p.Signal); n > 0 {
		return new(-n)
	}
	return nil
}

// preview is the end of a process's error output, in whole characters.
func (s *Server) preview(ctx context.Context, x *session, m *managed) string {
	var tail []byte
	since := int64(-4 * previewChars)
	err := s.core.Logs(ctx, x.place.caller(), x.sandbox, api.LogOptions{ExecID: m.rec.ExecID, Stream: api.Stderr, Since: &since}, func(e api.LogEntry) error {
		tail = append(tail, e.Data...)
		if extra := len(tail) - 8*previewChars; extra > 0 {
			tail = tail[extra:]
		}
		return nil
	})
	if err != nil && api.CodeOf(err) != api.CodeNotFound {
		s.log.Debug("read the error output of a process", "session", x.physical, "error", err)
	}
	return lastChars(tail, previewChars)
}

// lastChars is the end of a text, of which the first character may have been cut.
func lastChars(data []byte, most int) string {
	for cut := 0; cut < 3 && len(data) > 0 && data[0]&0xc0 == 0x80; cut++ {
		data = data[1:]
	}
	runes := []rune(string(data))
	return string(runes[max(0, len(runes)-most):])
}

// refresh looks which processes have ended.
func (s *Server) refresh(ctx context.Context) {
	type of struct {
		x *session
		m *managed
	}
	var all []of
	s.mu.Lock()
	for _, x := range s.sessions {
		for _, m := range x.processes {
			if !m.ended {
				all = append(all, of{x, m})
			}
		}
	}
	s.mu.Unlock()
	for _, o := range all {
		p, err := s.core.GetProcess(ctx, o.x.place.caller(), o.x.sandbox, o.m.rec.ExecID)
		switch {
		case err == nil:
			s.note(o.m, p)
		case errors.Is(err, api.ErrNotFound):
			s.mu.Lock()
			o.m.ended, o.m.endedAt = true, time.Now()
			s.mu.Unlock()
		}
	}
}

// forgetEnded takes away processes that ended long ago, and the oldest of too many.
func (s *Server) forgetEnded(ctx context.Context, cfg *settings, now time.Time) {
	type of struct {
		x *session
		m *managed
	}
	var ended []of
	s.mu.Lock()
	for _, x := range s.sessions {
		for _, m := range x.processes {
			if m.ended {
				ended = append(ended, of{x, m})
			}
		}
	}
	s.mu.Unlock()
	slices.SortFunc(ended, func(a, b of) int { return b.m.endedAt.Compare(a.m.endedAt) })
	for i, o := range ended {
		if i < cfg.limits.EndedProcesses && now.Sub(o.m.endedAt) < cfg.limits.completedRetained {
			continue
		}
		if err := s.end1(ctx, o.x, o.m); err != nil {
			s.log.Debug("forget an ended process", "session", o.x.physical, "error", err)
		}
		if err := s.keep(o.x); err != nil {
			s.log.Error("keep the record of a session", "session", o.x.physical, "error", err)
		}
	}
}
