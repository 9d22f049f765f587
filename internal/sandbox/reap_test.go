package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/directory"
	"github.com/cloche-dev/cloche/internal/sandbox/record"
	"github.com/cloche-dev/cloche/internal/sandbox/retention"
)

// stub is an engine whose instances do nothing, so that time is all there is.
type stub struct {
	mu   sync.Mutex
	live map[string]*stubInstance // by state
	// slow is how long one Recover takes.
	slow time.Duration
}

func (e *stub) Name() string                        { return "stub" }
func (e *stub) Probe(context.Context) engine.Report { return engine.Report{Name: "stub"} }
func (e *stub) Create(context.Context, engine.Plan) (engine.Instance, error) {
	return nil, errors.New("a stub creates nothing")
}
func (e *stub) Sweep(context.Context, string, func(string) bool) error { return nil }
func (e *stub) Recover(_ context.Context, state []byte) (engine.Instance, error) {
	time.Sleep(e.slow)
	e.mu.Lock()
	defer e.mu.Unlock()
	if i := e.live[string(state)]; i != nil {
		return i, nil
	}
	return nil, api.Errorf(api.CodeNotFound, "it is dead")
}

type stubInstance struct {
	e    *stub
	id   string
	done chan struct{}
	// refuse makes so many closes fail, and hang so many wait for their deadline.
	refuse, hang int
	// missing makes a close say that it is not there, closed counts those that freed it.
	missing bool
	closed  int
}

func (i *stubInstance) State() []byte { return []byte(i.id) }
func (i *stubInstance) Dial(context.Context) (net.Conn, error) {
	return nil, errors.New("nobody is in")
}
func (i *stubInstance) Done() <-chan struct{} { return i.done }
func (i *stubInstance) Close(ctx context.Context) error {
	i.e.mu.Lock()
	if i.hang > 0 {
		i.hang--
		i.e.mu.Unlock()
		<-ctx.Done()
		return ctx.Err()
	}
	defer i.e.mu.Unlock()
	if i.refuse > 0 {
		i.refuse--
		return errors.New("not yet")
	}
	if i.missing {
		return api.Errorf(api.CodeNotFound, "there is no such instance")
	}
	if i.e.live[i.id] == i {
		i.closed++
		delete(i.e.live, i.id)
		close(i.done)
	}
	return nil
}

// bubble is one home in which time is a test's own.
type bubble struct {
	t      *testing.T
	dir    string
	engine *stub
	begun  time.Time

	mu     sync.Mutex
	events []string
	// callers are those of the events, by kind.
	callers map[api.EventKind][]string
}

func newBubble(t *testing.T) *bubble {
	return &bubble{t: t, dir: t.TempDir(), engine: &stub{live: map[string]*stubInstance{}}, begun: time.Now()}
}

// put makes a sandbox as an earlier daemon left it.
func (b *bubble) put(id string, alive bool, change func(*record.Record)) {
	b.t.Helper()
	dir := filepath.Join(b.dir, "sandboxes", id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		b.t.Fatal(err)
	}
	r := &record.Record{Version: record.Version, EngineState: []byte(id), LastUse: now(), Info: api.Sandbox{
		ID: id, Name: id, State: api.StateRunning, Tenant: policy.LocalTenant, Engine: "stub", Persistent: true, CreatedAt: now(),
	}}
	if change != nil {
		change(r)
	}
	if err := r.Write(dir, false); err != nil {
		b.t.Fatal(err)
	}
	if alive {
		b.engine.live[id] = &stubInstance{e: b.engine, id: id, done: make(chan struct{})}
	}
}

// daemon starts a Manager that recovers.
func (b *bubble) daemon(r retention.Rule) *Manager {
	b.t.Helper()
	m := New(Options{
		Dir: b.dir, Owner: "owner", Engines: []engine.Engine{b.engine}, Retention: r,
		Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil)), Events: b.note,
	})
	if err := m.Recover(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	return m
}

// note keeps an event as "seconds name kind", with what it says.
func (b *bubble) note(e api.Event) {
	line := fmt.Sprintf("%g %s %s", e.Time.Sub(b.begun).Round(time.Second).Seconds(), e.Name, strings.TrimPrefix(string(e.Kind), "sandbox."))
	if e.ExpiresAt != nil {
		line += fmt.Sprintf(" at %g", e.ExpiresAt.Sub(b.begun).Round(time.Second).Seconds())
	}
	if e.Reason != "" {
		line += ": " + e.Reason
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, line)
	if b.callers == nil {
		b.callers = map[api.EventKind][]string{}
	}
	b.callers[e.Kind] = append(b.callers[e.Kind], e.Caller)
}

func (b *bubble) want(events ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.events, events) {
		b.t.Errorf("events:\n\t%s\nwant:\n\t%s", strings.Join(b.events, "\n\t"), strings.Join(events, "\n\t"))
	}
}

var anyone = policy.InProcessCaller(1)

// pass lets time go by, and what it brings about happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func leased(lifetime, idle time.Duration) func(*record.Record) {
	return func(r *record.Record) { r.Info.Limits = limits(lifetime, idle) }
}

func TestLeasesEndSandboxes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.put("free", true, nil)
		b.put("idle", true, leased(0, 5*time.Minute))
		b.put("old", true, leased(8*time.Minute, time.Hour))
		b.put("gone", true, func(r *record.Record) { leased(0, 6*time.Minute+30*time.Second)(r); r.Info.Transient = true })
		m := b.daemon(retention.Rule{})
		synctest.Wait()
		b.mu.Lock()
		b.events = nil // in whatever order they were adopted
		b.mu.Unlock()
		if sb, err := m.Get(anyone, "idle"); err != nil || sb.ExpiresAt == nil || sb.ExpiresAt.Sub(b.begun) != 5*time.Minute {
			t.Errorf("idle expires at %v, %v", sb.ExpiresAt, err)
		}
		if sb, _ := m.Get(anyone, "free"); sb.ExpiresAt != nil {
			t.Errorf("free expires at %v", sb.ExpiresAt)
		}
		pass(time.Hour)
		b.want(
			"240 idle expiring at 300",
			"300 idle stopping: its idle time of 5m0s is over",
			"300 idle stopped: its idle time of 5m0s is over",
			"330 gone expiring at 390",
			"390 gone stopping: its idle time of 6m30s is over",
			"390 gone stopped: its idle time of 6m30s is over",
			"390 gone removed: its idle time of 6m30s is over",
			"420 old expiring at 480",
			"480 old stopping: its lifetime of 8m0s is over",
			"480 old stopped: its lifetime of 8m0s is over",
		)
		if sb, err := m.Get(anyone, "idle"); err != nil || sb.State != api.StateStopped || sb.Reason != "its idle time of 5m0s is over" || sb.ExpiresAt != nil {
			t.Errorf("idle: %+v, %v", sb, err)
		}
		if _, err := m.Get(anyone, "gone"); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("gone: %v", err)
		}
		if sb, _ := m.Get(anyone, "free"); sb.State != api.StateRunning {
			t.Errorf("free is %s", sb.State)
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestUseRenewsALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.put("x", true, leased(0, 2*time.Minute))
		m := b.daemon(retention.Rule{})
		pass(90 * time.Second)
		if sb, err := m.Touch(anyone, "x"); err != nil || sb.ExpiresAt.Sub(b.begun) != 210*time.Second {
			t.Errorf("after a heartbeat: %v, %v", sb.ExpiresAt, err)
		}
		for range 5 { // looking is no use
			pass(10 * time.Second)
			if _, err := m.Get(anyone, "x"); err != nil {
				t.Fatal(err)
			}
		}
		s, err := m.find(anyone, policy.VerbExec, "x")
		if err != nil {
			t.Fatal(err)
		}
		release, again := s.use(), s.use() // at 140 s
		pass(time.Hour)
		release()
		release()
		pass(time.Hour)
		again() // at 2 h 140 s
		if _, err := m.Touch(anyone, "nobody"); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("a heartbeat for nobody: %v", err)
		}
		pass(time.Hour)
		b.want(
			"0 x adopted",
			"60 x expiring at 120",
			"7400 x expiring at 7460",
			"7460 x stopping: its idle time of 2m0s is over",
			"7460 x stopped: its idle time of 2m0s is over",
		)
		if _, err := m.Touch(anyone, "x"); api.CodeOf(err) != api.CodeState {
			t.Errorf("a heartbeat for what has stopped: %v", err)
		}
		m.Close(t.Context())
	})
}

// A lease goes on while no daemon is there: what is over is ended at once, and
// what was used just before the daemon was killed is not ended early.
func TestLeaseOutlivesTheDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.put("over", true, leased(0, 5*time.Minute))
		b.put("used", true, leased(0, 5*time.Minute))
		b.put("held", true, leased(0, 5*time.Minute))
		m := b.daemon(retention.Rule{})
		held, _ := m.find(anyone, policy.VerbExec, "held")
		held.use() // and never released: the daemon is killed
		for range 40 {
			pass(5 * time.Second)
			if _, err := m.Touch(anyone, "used"); err != nil {
				t.Fatal(err)
			}
		}
		Crash(m) // at 200 s
		pass(290 * time.Second)
		for _, id := range []string{"over", "used", "held"} {
			r, err := record.Read(filepath.Join(b.dir, "sandboxes", id))
			if err != nil {
				t.Fatal(err)
			}
			if age := b.begun.Add(200 * time.Second).Sub(r.LastUse); id != "over" && age > 15*time.Second {
				t.Errorf("the last use on record of %s is %s old", id, age)
			}
		}
		b.events = nil
		n := b.daemon(retention.Rule{}) // at 490 s
		synctest.Wait()
		if sb, _ := n.Get(anyone, "over"); sb.State != api.StateStopped || sb.Reason != "its idle time of 5m0s is over" {
			t.Errorf("over is %s: %s", sb.State, sb.Reason)
		}
		for _, id := range []string{"used", "held"} {
			if sb, _ := n.Get(anyone, id); sb.State != api.StateRunning {
				t.Errorf("%s is %s: %s", id, sb.State, sb.Reason)
			}
		}
		pass(30 * time.Second)
		for _, id := range []string{"used", "held"} {
			if sb, _ := n.Get(anyone, id); sb.State != api.StateStopped {
				t.Errorf("%s is %s 320 s after its last use", id, sb.State)
			}
		}
		n.Close(t.Context())
	})
}

// After the machine was rebooted everything is dead.
func TestReboot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.put("plain", false, nil)
		b.put("leased", false, leased(0, time.Hour))
		b.put("over", false, func(r *record.Record) { leased(0, time.Minute)(r); r.LastUse = now().Add(-time.Hour) })
		b.put("transient", false, func(r *record.Record) { leased(0, time.Hour)(r); r.Info.Transient = true })
		b.put("stopping", false, func(r *record.Record) { r.Info.State = api.StateStopping })
		b.put("removing", false, func(r *record.Record) { r.Removing = true })
		b.put("stopped", false, func(r *record.Record) { r.Info.State = api.StateStopped; at := now(); r.Info.StoppedAt = &at })
		b.put("version1", false, func(r *record.Record) { r.Version = 1; r.Info.Persistent = false; r.LastUse = time.Time{} })
		if err := os.WriteFile(filepath.Join(b.dir, "sandboxes", "stopped", "processes.json.new"), []byte("{half"), 0o600); err != nil {
			t.Fatal(err)
		}
		empty := filepath.Join(b.dir, "sandboxes", "sb-unfinished")
		if err := errors.Join(os.Mkdir(empty, 0o700), os.WriteFile(filepath.Join(empty, directory.UnfinishedIdentity), nil, 0o600), os.WriteFile(filepath.Join(empty, directory.Record), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		m := b.daemon(retention.Rule{})
		synctest.Wait()
		got := map[string]api.State{}
		for _, sb := range m.List(anyone, api.ListOptions{}).Sandboxes {
			got[sb.ID] = sb.State
			if sb.StoppedAt == nil {
				t.Errorf("%s ended at no time", sb.ID)
			}
			if sb.ID == "version1" && !sb.Persistent {
				t.Error("a sandbox of the first version is not persistent")
			}
		}
		want := map[string]api.State{
			"plain": api.StateLost, "leased": api.StateLost, "over": api.StateStopped, "stopping": api.StateStopped,
			"stopped": api.StateStopped, "version1": api.StateLost,
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("after a reboot: %v, want %v", got, want)
		}
		for _, gone := range []string{"transient", "removing", "sb-unfinished"} {
			if _, err := os.Stat(filepath.Join(b.dir, "sandboxes", gone)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is still there: %v", gone, err)
			}
		}
		if ps, err := m.Processes(t.Context(), anyone, "stopped"); err != nil || len(ps) != 0 {
			t.Errorf("processes of a stopped one: %v, %v", ps, err)
		}
		m.Close(t.Context())
	})
}

// An end that fails is tried again, and what was begun by a lease is what is
// finished.
func TestFailedEndOfALeaseIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.put("x", true, leased(0, time.Minute))
		b.put("y", true, func(r *record.Record) { leased(0, time.Minute)(r); r.Info.Transient = true })
		b.engine.live["x"].refuse, b.engine.live["y"].refuse = 2, 2
		m := b.daemon(retention.Rule{})
		pass(60*time.Second + 500*time.Millisecond)
		if sb, _ := m.Get(anyone, "x"); sb.State != api.StateStopping || sb.Teardown == nil || sb.Teardown.Attempts == 0 || sb.TerminalReason != api.EndedIdle {
			t.Errorf("x is %s, %+v, want stopping, with what went wrong", sb.State, sb.Teardown)
		}
		pass(10 * time.Second)
		if sb, _ := m.Get(anyone, "x"); sb.State != api.StateStopped || sb.Reason != "its idle time of 1m0s is over" {
			t.Errorf("x is %s: %s", sb.State, sb.Reason)
		}
		if sb, err := m.Get(anyone, "y"); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("y is %s, want gone", sb.State)
		}
		m.Close(t.Context())
	})
}

func TestRetentionForgetsTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		for i := range 4 {
			b.put(fmt.Sprintf("e%d", i), false, func(r *record.Record) {
				at := now().Add(-time.Duration(i) * time.Minute)
				r.Info.State, r.Info.StoppedAt = api.StateStopped, &at
			})
		}
		b.put("live", true, nil)
		m := b.daemon(retention.Rule{For: time.Hour, Count: 3})
		synctest.Wait()
		b.want("0 live adopted", "0 e3 removed: it ended at 1999-12-31T23:57:00Z and is not kept any longer")
		pass(58 * time.Minute)
		if _, err := m.Get(anyone, "e2"); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("e2, which ended an hour ago: %v", err)
		}
		if _, err := m.Get(anyone, "e1"); err != nil {
			t.Errorf("e1, which ended 59 minutes ago: %v", err)
		}
		if _, err := m.Stop(t.Context(), anyone, "live", nil); err != nil {
			t.Fatal(err)
		}
		pass(24 * time.Hour)
		if l := m.List(anyone, api.ListOptions{}); len(l.Sandboxes) != 0 {
			t.Errorf("left: %v", l.Sandboxes)
		}
		m.Close(t.Context())
	})
}

func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.put("left", true, func(r *record.Record) { r.Info.Transient = true })
		b.put("x", true, func(r *record.Record) { leased(0, time.Hour)(r); r.Info.Transient = true })
		b.put("y", true, nil)
		m := b.daemon(retention.Rule{})
		synctest.Wait()
		if _, err := m.Get(anyone, "left"); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("a held sandbox whose holder went with the daemon: %v", err)
		}
		if _, err := m.Hold(anyone, "y"); api.CodeOf(err) != api.CodeState {
			t.Errorf("hold of one that is not transient: %v", err)
		}
		if _, err := m.Hold(policy.TCPCaller(), "x"); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("hold of another tenant's: %v", err)
		}
		one, err := m.Hold(anyone, "x")
		if err != nil {
			t.Fatal(err)
		}
		two, err := m.Hold(anyone, "x")
		if err != nil {
			t.Fatal(err)
		}
		one()
		one()
		synctest.Wait()
		if _, err := m.Get(anyone, "x"); err != nil {
			t.Errorf("with one of two holders gone: %v", err)
		}
		b.engine.live["x"].refuse = 3
		two()
		pass(time.Minute)
		if _, err := m.Get(anyone, "x"); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("with both holders gone: %v", err)
		}
		m.Close(t.Context())
	})
}

// Without a home to find them in, none may stay.
func TestCloseOfTheHomelessEndsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.put("stays", true, nil)
		b.put("goes", true, func(r *record.Record) { r.Info.Persistent = false })
		m := b.daemon(retention.Rule{})
		synctest.Wait()
		m.Homeless()
		if err := m.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(b.engine.live) != 0 {
			t.Errorf("alive: %v, want none", b.engine.live)
		}
	})
}

// An orderly shutdown ends sandboxes that are not persistent or that only connections
// held, and leaves the rest.
func TestCloseEndsWhatIsNotPersistent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.put("stays", true, nil)
		b.put("goes", true, func(r *record.Record) { r.Info.Persistent = false })
		b.put("held", true, func(r *record.Record) { leased(0, time.Hour)(r); r.Info.Transient = true })
		m := b.daemon(retention.Rule{})
		synctest.Wait()
		if err := m.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(b.engine.live) != 2 {
			t.Errorf("alive: %v, want the two that stay", b.engine.live)
		}
		n := b.daemon(retention.Rule{})
		synctest.Wait()
		for id, want := range map[string]api.State{"stays": api.StateRunning, "goes": api.StateStopped, "held": api.StateRunning} {
			if sb, err := n.Get(anyone, id); err != nil || sb.State != want || want == api.StateStopped && sb.Reason != shutdownReason {
				t.Errorf("%s is %s (%s), %v; want %s", id, sb.State, sb.Reason, err, want)
			}
		}
		n.Close(t.Context())
	})
}

// A teardown that hangs does not block its caller indefinitely, and is
// finished later.
func TestHangingTeardown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.put("x", true, nil)
		b.put("y", true, nil)
		b.engine.live["x"].hang, b.engine.live["y"].hang = 2, 2
		m := b.daemon(retention.Rule{})
		if _, err := m.Kill(t.Context(), anyone, "x"); api.CodeOf(err) != api.CodeTimeout || time.Since(b.begun) != closeTimeout {
			t.Errorf("a kill that hangs: %v after %s", err, time.Since(b.begun))
		}
		if err := m.Remove(t.Context(), anyone, "y"); api.CodeOf(err) != api.CodeTimeout {
			t.Errorf("a removal that hangs: %v", err)
		}
		pass(5 * time.Minute)
		if sb, err := m.Get(anyone, "x"); err != nil || sb.State != api.StateStopped {
			t.Errorf("x is %s, %v", sb.State, err)
		}
		if sb, err := m.Get(anyone, "y"); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("y is %s, %v", sb.State, err)
		}
		m.Close(t.Context())
	})
}

func TestPauseNeedsAnEngineThatCan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.put("x", true, nil)
		m := b.daemon(retention.Rule{})
		if _, err := m.Pause(t.Context(), anyone, "x"); !errors.Is(err, api.ErrUnsupported) || !strings.Contains(err.Error(), "stub") {
			t.Errorf("pause: %v, want unsupported, and the engine's name", err)
		}
		m.Close(t.Context())
	})
}

// Fifty sandboxes are found again eight at a time.
func TestRecoverIsParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		for i := range 50 {
			b.put(fmt.Sprintf("s%d", i), true, nil)
		}
		b.engine.slow = 100 * time.Millisecond
		begun := time.Now()
		m := b.daemon(retention.Rule{})
		if took := time.Since(begun); took != 700*time.Millisecond {
			t.Errorf("50 recoveries of 100ms took %s, want 700ms", took)
		}
		if own, _ := m.Count(policy.LocalTenant); own != 50 {
			t.Errorf("%d of 50 were adopted", own)
		}
		m.Close(t.Context())
	})
}

func limits(lifetime, idle time.Duration) api.Limits {
	return api.Limits{LifetimeMS: lifetime.Milliseconds(), IdleMS: idle.Milliseconds()}
}
