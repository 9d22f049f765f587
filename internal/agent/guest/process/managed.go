//go:build linux

package process

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// What a Restart that leaves them out means.
const (
	firstBackoff = 500 * time.Millisecond
	mostBackoff  = 30 * time.Second
	// A run went well when it lasted steadyBackoffs times the wait before it, and
	// steadyTime at least: else a loop of short runs would never back off.
	steadyBackoffs = 10
	steadyTime     = 10 * time.Second
	probeInterval  = 200 * time.Millisecond
	// maxDuration bounds what a request may ask for.
	maxDuration = 1000 * time.Hour
)

// managed is what makes a process a managed one.
type managed struct {
	name        string
	policy      api.RestartPolicy
	maxRestarts int
	backoff     time.Duration
	maxBackoff  time.Duration
	ready       *api.Readiness // nil for none
	line        *regexp.Regexp // of a readiness by log
	timeout     time.Duration  // of readiness
	interval    time.Duration
	restored    int // the signal that it gets when it continues from saved memory, or 0

	mu      sync.Mutex
	matcher *matcher // of the present run, nil when there is nothing to look for
}

// millis is a number of milliseconds of a request, or its default.
func millis(n int64, or time.Duration) time.Duration {
	if n == 0 {
		return or
	}
	return min(time.Duration(min(n, maxDuration.Milliseconds()))*time.Millisecond, maxDuration)
}

// newManaged checks what a start says beside the program.
func newManaged(m *wire.Managed, ownPort int) (*managed, error) {
	d := &managed{name: m.Name, policy: api.RestartNever, ready: m.Ready, restored: m.RestoreSignal}
	if m.RestoreSignal != 0 && api.SignalName(m.RestoreSignal) == "" {
		return nil, api.Invalid("restore_signal", "signal %d does not exist", m.RestoreSignal)
	}
	switch m.OnFull {
	case "", api.OnFullDrop, api.OnFullBlock:
	default:
		return nil, api.Invalid("on_full", "on_full %.20q", string(m.OnFull)).WithHint("drop or block")
	}
	if r := m.Restart; r != nil {
		switch r.Policy {
		case api.RestartNever, api.RestartOnFailure, api.RestartAlways:
			d.policy = r.Policy
		case "":
		default:
			return nil, api.Invalid("restart.policy", "restart policy %.20q", string(r.Policy)).WithHint("never, on-failure or always")
		}
		if r.MaxRestarts < 0 || r.BackoffMS < 0 || r.MaxBackoffMS < 0 {
			return nil, api.Invalid("restart", "a restart policy has no negative numbers")
		}
		d.maxRestarts = r.MaxRestarts
		d.backoff, d.maxBackoff = millis(r.BackoffMS, firstBackoff), millis(r.MaxBackoffMS, mostBackoff)
		d.maxBackoff = max(d.maxBackoff, d.backoff)
	}
	if d.ready == nil {
		return d, nil
	}
	d.timeout = millis(d.ready.TimeoutMS, api.DefaultReadyTimeoutMS*time.Millisecond)
	d.interval = max(millis(d.ready.IntervalMS, probeInterval), time.Millisecond)
	return d, d.checkReady(ownPort)
}

func (d *managed) checkReady(ownPort int) error {
	r := d.ready
	if r.TimeoutMS < 0 || r.IntervalMS < 0 {
		return api.Invalid("ready", "readiness has no negative times")
	}
	ways := 0
	if r.Port != 0 {
		ways++
		if err := checkPort("ready.port", r.Port, ownPort); err != nil {
			return err
		}
	}
	if h := r.HTTP; h != nil {
		ways++
		if err := checkPort("ready.http.port", h.Port, ownPort); err != nil {
			return err
		}
		if h.Path != "" && !strings.HasPrefix(h.Path, "/") || strings.ContainsFunc(h.Path, func(c rune) bool { return c <= ' ' || c >= 0x7f }) || len(h.Path) > 8<<10 {
			return api.Invalid("ready.http.path", "path %.100q of a readiness probe", h.Path).WithHint("it begins with / and has neither spaces nor control characters")
		}
	}
	if r.Log != "" {
		ways++
		var err error
		if d.line, err = regexp.Compile(r.Log); err != nil {
			return api.Invalid("ready.log", "%.200q is no regular expression: %w", r.Log, err).WithHint("the syntax is RE2's")
		}
	}
	if ways != 1 {
		return api.Invalid("ready", "readiness has %d conditions", ways).WithHint("exactly one of port, log and http")
	}
	return nil
}

func checkPort(field string, port, own int) error {
	if port < 1 || port > 65535 {
		return api.Invalid(field, "port %d does not exist", port).WithHint("1 to 65535")
	}
	if port == own {
		return api.Invalid(field, "port %d is the agent's own", port)
	}
	return nil
}

// startManaged starts a managed process, or returns the one that an earlier,
// equal request has started.
func (ps *Manager) startManaged(ctx context.Context, x *wire.Exec, m *wire.Managed, stdin []byte) (*process, error) {
	d, err := newManaged(m, ps.port)
	if err != nil {
		return nil, err
	}
	l, err := ps.prepare(x)
	if err != nil {
		return nil, err
	}
	p := ps.newProcess(x, m.OnFull == api.OnFullBlock)
	p.managed = d
	p.input.given = !m.OpenStdin && !p.hasTTY
	for {
		same, err := ps.enterManaged(p)
		if err != nil {
			return nil, err
		}
		if same == nil {
			break
		}
		select {
		case <-same.launched:
		case <-ctx.Done():
			return nil, errAbandoned
		}
		if same.present() != nil {
			return same, nil
		}
	}
	d.lookAgain()
	r, err := ps.launch(p, l)
	if err != nil {
		d.lookNoMore()
		ps.forget(p)
		return nil, err
	}
	// Before another caller can: the first input is the request's.
	_ = p.input.hold(context.Background())
	ps.wg.Go(func() {
		defer p.input.release()
		if len(stdin) > 0 {
			_, _ = p.input.writeHeld(context.Background(), -1, stdin)
		}
		if p.input.given {
			p.input.closeHeld(context.Background())
		}
		ps.feed.changed(p)
	})
	ps.list(p)
	ps.feed.changed(p)
	ps.wg.Go(func() { ps.live(p, l, r, time.Duration(x.TimeoutMS)*time.Millisecond) })
	return p, nil
}

// enterManaged is enter; the process that the same request has started is
// returned.
func (ps *Manager) enterManaged(p *process) (same *process, err error) {
	err = ps.enter(p)
	if api.CodeOf(err) != api.CodeExists {
		return nil, err
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	q := ps.byID[p.id]
	switch {
	case q == nil:
		return nil, errExists(p.id) // it has just been removed: the caller may try again
	case q.managed != nil && q.key == p.key && p.key != "":
		return q, nil
	}
	return nil, err
}

// live is the life of a managed process: run after run until its policy or
// a caller ends it.
func (ps *Manager) live(p *process, l launch, r *run, timeout time.Duration) {
	d := p.managed
	streak, waited := 0, d.backoff
	reason := "" // why the last start failed
	for wait := d.backoff; ; {
		if r != nil {
			ps.probe(p, r)
			ps.await(p, r, timeout)
			d.lookNoMore()
			if !d.wantsAgain(r) {
				break
			}
			if time.Since(r.started) >= Steady(waited) {
				streak, wait = 0, d.backoff
			}
		}
		if ps.over(p) {
			break
		}
		if d.maxRestarts > 0 && streak >= d.maxRestarts {
			ps.finish(p, api.ProcessFailed, failedReason(p, streak, reason))
			return
		}
		p.set(func() { p.state = api.ProcessBackoff })
		if !ps.clock.wait(wait, p.quit) {
			break
		}
		streak++
		waited, wait = wait, min(2*wait, d.maxBackoff)
		r, reason = ps.again(p, l)
	}
	ps.finish(p, api.ProcessExited, reason)
}

// Steady is how long a run must last to count as one that went well.
func Steady(waited time.Duration) time.Duration { return max(steadyBackoffs*waited, steadyTime) }

// wantsAgain says whether the policy asks for another run after r.
func (d *managed) wantsAgain(r *run) bool {
	switch d.policy {
	case api.RestartAlways:
		return true
	case api.RestartOnFailure:
		return r.expired.Load() || !r.child.status.Exited() || r.child.status.ExitStatus() != 0
	}
	return false
}

// over says that p is not started again.
func (ps *Manager) over(p *process) bool {
	select {
	case <-p.quit:
		return true
	default:
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.stopped
}

// again begins another run. What is left of the one before is killed first: it
// may hold what the next one needs, such as a port. Without a run it says why.
func (ps *Manager) again(p *process, l launch) (*run, string) {
	p.set(func() { p.state = api.ProcessStarting })
	ps.killTree(p.present())
	p.managed.lookAgain()
	r, err := ps.launch(p, l)
	if err == nil {
		return r, ""
	}
	p.managed.lookNoMore()
	reason := "could not be started again: " + err.Error()
	p.set(func() { p.reason = reason })
	return nil, reason
}

// failedReason says why p is not started again.
func failedReason(p *process, restarts int, how string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if how == "" {
		code, signal := exitOf(p.status)
		switch {
		case p.timedOut:
			how = "its timeout killed it"
		case code != nil:
			how = fmt.Sprintf("exit code %d", *code)
		default:
			how = "signal " + signal
		}
	}
	return fmt.Sprintf("restarted %d times in a row, and ended again: %s", restarts, how)
}
