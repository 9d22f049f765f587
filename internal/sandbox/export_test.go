package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox/agentconn"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/sandbox/retry"
)

// EngineStateForTest reads what a record keeps of the engine.
func EngineStateForTest(t testing.TB, dir string) []byte {
	t.Helper()
	r, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r.EngineState
}

// SetTrap makes trap be called at every named point of creates, ends and pauses.
// It is set before the Manager is used.
func SetTrap(m *Manager, trap func(ctx context.Context, point string) error) { m.trap = trap }

// SetPace makes teardowns that fail be retried sooner. It is called before the
// Manager is used.
func SetPace(m *Manager, first, most time.Duration, burst int) {
	m.retrier.pace = retry.Pace{First: first, Most: most, Burst: burst}
}

// SetDeadlineGrace makes the daemon wait less for an agent that is late. It is called
// before the Manager is used.
func SetDeadlineGrace(m *Manager, grace, look time.Duration) {
	m.deadlineGrace, m.deadlineLook = grace, look
}

// Deadlines counts the deadlines of a sandbox's programs, and says whether they are paused.
func Deadlines(m *Manager, id string) (n int, held bool) {
	m.mu.Lock()
	t := &m.byID[id].deadlines
	m.mu.Unlock()
	return t.Len(), t.Held()
}

// Waiters counts those who wait for what a key stands for.
func Waiters(m *Manager, tenant, key string) int {
	return m.keys.Waiters(tenant, key)
}

// Crash is the end of a daemon that is killed: nothing is put in order, and
// nothing that goes on does anything more. What hangs in a trap goes on hanging.
func Crash(m *Manager) {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	all := m.all()
	m.mu.Lock()
	clear(m.byID)
	clear(m.byName)
	m.mu.Unlock()
	m.bg.Lock()
	m.cancel()
	m.bg.Unlock()
	for _, s := range all {
		s.mu.Lock()
		s.sealed = true // the dead write nothing
		s.deadlines.End()
		if s.agent != nil {
			s.agent.Close()
		}
		s.mu.Unlock()
	}
}

// DowngradeForTest makes a record one that the first version wrote.
func DowngradeForTest(t testing.TB, dir string) {
	t.Helper()
	r, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	old := struct {
		Version     int
		Info        any
		EngineState []byte
		AgentToken  []byte
		Image       record.Image
	}{1, nil, r.EngineState, r.AgentToken, r.Image}
	r.Info.Persistent = false // the first version knew of nothing else
	old.Info = r.Info
	data, err := json.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, directory.Record), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// SetProcessBounds makes the bounds of the processes of one sandbox smaller. It is
// called before the Manager is used.
func SetProcessBounds(m *Manager, living, ended int) { m.Runner.SetBounds(living, ended) }

// processRecord is what tests read and write of the record of a process.
type processRecord struct {
	Version              int
	Process              api.Process
	Confirmed, Collected bool
	LogBytes             int64
}

// IsFinal reports whether the record of a process is final.
func IsFinal(m *Manager, sandbox, id string) bool {
	m.mu.Lock()
	s := m.byID[sandbox]
	m.mu.Unlock()
	data, err := os.ReadFile(filepath.Join(s.dir, "processes", id, "process.json"))
	var r processRecord
	return err == nil && json.Unmarshal(data, &r) == nil && r.Collected && r.Process.State.Ended()
}

// UnconfirmForTest makes the record of a process one whose start the daemon did
// not survive.
func UnconfirmForTest(t *testing.T, dir, id string) {
	t.Helper()
	data, err := json.Marshal(processRecord{Version: 1, Process: api.Process{ExecID: id, State: api.ProcessStarting, Managed: true}, LogBytes: 1 << 20})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "process.json"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// BreakConnections returns a function that cuts every connection to the agent of a sandbox. It is
// called before the sandbox has processes.
func BreakConnections(m *Manager) func(id string) {
	var mu sync.Mutex
	conns := map[string][]*agentconn.Conn{}
	m.dialed = func(id string, c *agentconn.Conn) {
		mu.Lock()
		defer mu.Unlock()
		conns[id] = append(conns[id], c)
	}
	return func(id string) {
		m.mu.Lock()
		s := m.byID[id]
		m.mu.Unlock()
		s.mu.Lock()
		all := []*agentconn.Conn{s.agent}
		s.mu.Unlock()
		mu.Lock()
		all = append(all, conns[id]...)
		mu.Unlock()
		for _, c := range all {
			now, cancel := context.WithCancel(context.Background())
			cancel() // it dials no other
			if client, err := c.Get(now); err == nil {
				_ = client.Close()
			}
		}
	}
}

// OwesResume says whether a sandbox is paused that is to be resumed in the background.
func OwesResume(m *Manager, name string) bool {
	for _, s := range m.all() {
		if s.name == name {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.owed
		}
	}
	return false
}

// BreakEngineStateForTest makes the state of the engine in a record one that it cannot read.
func BreakEngineStateForTest(t testing.TB, dir string) {
	t.Helper()
	r, err := record.Read(dir)
	if err == nil {
		r.EngineState = []byte("{")
		err = r.Write(dir, false)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Check returns an error for each sandbox whose stages are an illegal combination.
func Check(m *Manager) error {
	var errs []error
	for _, s := range m.all() {
		s.mu.Lock()
		errs = append(errs, s.check())
		s.mu.Unlock()
	}
	return errors.Join(errs...)
}

// SetIdle makes the idle time of a sandbox shorter than policy would.
func SetIdle(m *Manager, id string, idle time.Duration) {
	m.mu.Lock()
	s := m.byID[id]
	m.mu.Unlock()
	s.mu.Lock()
	s.lease.Idle = idle
	s.mu.Unlock()
	m.reaper.poke()
}
