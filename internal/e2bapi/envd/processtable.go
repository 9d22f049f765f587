package envd

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/envdpb"
)

const (
	// idPrefix begins the ID of every process that a client of this package started.
	idPrefix = "e2b-"
	// endedFor is how long a client can still connect to a process that has ended.
	endedFor = 30 * time.Second
	// keepEntries is from how many processes of a sandbox on the table forgets ended ones.
	keepEntries = 256
)

// process is what a client said of a process when it started it. It is immutable.
type process struct {
	id     string
	pid    uint32
	tag    string
	pty    bool
	config *envdpb.ProcessConfig
}

// ours reports whether a client of this package started a process.
func ours(rec *api.Process) bool { return rec.Managed && strings.HasPrefix(rec.ExecID, idPrefix) }

// processTable knows the processes that clients started since the daemon started. Core's records
// have the others, without the parts of a config that core does not tell.
type processTable struct {
	mu   sync.Mutex
	byID map[string]map[string]*process // by sandbox, then by core's ID
}

func newProcessTable() *processTable { return &processTable{byID: map[string]map[string]*process{}} }

func (t *processTable) forget(ref string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, ref)
}

// add notes a process that was started.
func (t *processTable) add(ref string, rec api.Process, m *envdpb.StartRequest) *process {
	e := &process{id: rec.ExecID, pid: uint32(max(rec.PID, 0)), tag: m.GetTag(), pty: m.Pty != nil, config: m.GetProcess()}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[ref] == nil {
		t.byID[ref] = map[string]*process{}
	}
	for id, other := range t.byID[ref] {
		if other.pid == e.pid && e.pid != 0 {
			delete(t.byID[ref], id) // the pid is used again
		}
	}
	t.byID[ref][e.id] = e
	return e
}

// known returns what is known of a process on record.
func (t *processTable) known(ref string, rec *api.Process) *process {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.byID[ref][rec.ExecID]; e != nil {
		return e
	}
	e := &process{id: rec.ExecID, pid: uint32(max(rec.PID, 0)), tag: rec.Name, pty: rec.TTY, config: &envdpb.ProcessConfig{}}
	if len(rec.Argv) > 0 {
		e.config.Cmd, e.config.Args = rec.Argv[0], rec.Argv[1:]
	}
	return e
}

// find finds a process by the selector of a client; nil if no process matches. ended also finds one that
// ended a short time ago.
func (t *processTable) find(ctx context.Context, core Processes, sb Sandbox, sel *envdpb.ProcessSelector, ended bool) (*process, error) {
	all, err := core.Processes(ctx, sb.Caller, sb.Ref)
	if err != nil {
		return nil, err
	}
	t.prune(sb.Ref, all)
	var gone *process
	for i := len(all) - 1; i >= 0; i-- { // the newest first
		rec := &all[i]
		if !ours(rec) {
			continue
		}
		e := t.known(sb.Ref, rec)
		if !e.is(sel) {
			continue
		}
		if rec.Running {
			return e, nil
		}
		if gone == nil && rec.EndedAt != nil && time.Since(*rec.EndedAt) < endedFor {
			gone = e
		}
	}
	if ended {
		return gone, nil
	}
	return nil, nil
}

// is reports whether a selector means the process.
func (e *process) is(sel *envdpb.ProcessSelector) bool {
	switch by := sel.GetSelector().(type) {
	case *envdpb.ProcessSelector_Pid:
		return by.Pid != 0 && by.Pid == e.pid
	case *envdpb.ProcessSelector_Tag:
		return by.Tag != "" && by.Tag == e.tag
	}
	return false
}

// prune forgets processes that ended a longer time ago, or are no longer on record.
func (t *processTable) prune(ref string, all []api.Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.byID[ref]) < keepEntries {
		return
	}
	keep := map[string]*process{}
	for i := range all {
		rec := &all[i]
		if e := t.byID[ref][rec.ExecID]; e != nil && (rec.EndedAt == nil || time.Since(*rec.EndedAt) < endedFor) {
			keep[rec.ExecID] = e
		}
	}
	t.byID[ref] = keep
}
