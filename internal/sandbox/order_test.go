//go:build linux

package sandbox_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/sandbox"
)

// journal is what happened, in its order: names that appear in directories and go from
// them, as the kernel tells it, and what a test notes in between.
type journal struct {
	t  *testing.T
	fd int

	mu     sync.Mutex
	labels map[int]string
	list   []string
}

func newJournal(t *testing.T) *journal {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return &journal{t: t, fd: fd, labels: map[int]string{}}
}

// watch has the journal tell of a directory, under a label. It goes on when the directory
// has got another name.
func (j *journal) watch(label, dir string) {
	wd, err := unix.InotifyAddWatch(j.fd, dir, unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_MOVED_TO|unix.IN_MODIFY|unix.IN_ONLYDIR)
	if err != nil {
		j.t.Errorf("watch %s: %v", dir, err)
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.labels[wd] = label
}

// note adds what, after everything that the kernel has to tell until now.
func (j *journal) note(what string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.drain()
	j.list = append(j.list, what)
}

// drain is called with mu held.
func (j *journal) drain() {
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(j.fd, buf)
		if err != nil || n <= 0 {
			return
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			mask, size := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
			name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size]), "\x00")
			label := j.labels[int(int32(binary.NativeEndian.Uint32(b)))]
			b = b[unix.SizeofInotifyEvent+size:]
			verb := ""
			switch {
			case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
				verb = "has"
			case mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
				verb = "lost"
			case mask&unix.IN_MODIFY != 0:
				verb = "wrote"
			}
			if verb != "" {
				j.list = append(j.list, label+" "+verb+" "+name)
			}
		}
	}
}

// inOrder fails unless each of what happened, and first after the one before it. One that
// begins with ! did not happen before the one after it.
func (j *journal) inOrder(what ...string) {
	j.t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.drain()
	at := 0
	never := ""
	for _, w := range what {
		if not, ok := strings.CutPrefix(w, "!"); ok {
			never = not
			continue
		}
		i := slices.Index(j.list[at:], w)
		if i < 0 {
			j.t.Errorf("%q did not happen in its place, of %q in:\n\t%s", w, what, strings.Join(j.list, "\n\t"))
			return
		}
		if never != "" && slices.Contains(j.list[:at+i], never) {
			j.t.Errorf("%q happened before %q in:\n\t%s", never, w, strings.Join(j.list, "\n\t"))
		}
		never = ""
		at += i + 1
	}
}

// saved is what is in a sandbox's record.
type saved struct {
	Info     api.Sandbox
	Removing bool
	Removal  *struct{ By string }
	// AgentToken is what a connection to the agent must show.
	AgentToken []byte
}

func (w *fixture) saved(id string) (s saved) {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.sandboxes(), id, "sandbox.json"))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		w.t.Errorf("record of %s: %v", id, err)
	}
	return s
}

func (w *fixture) sandboxes() string { return filepath.Join(w.dir, "owner", "sandboxes") }

// only is the one sandbox directory.
func (w *fixture) only() string {
	w.t.Helper()
	entries, err := os.ReadDir(w.sandboxes())
	if err != nil || len(entries) != 1 {
		w.t.Errorf("sandbox directories: %v, %v; want one", entries, err)
		return w.sandboxes()
	}
	return filepath.Join(w.sandboxes(), entries[0].Name())
}

// journal has what a create in w does told, in the order of its points, the steps of the
// engine and the names in its directory.
func (w *fixture) journal(t *testing.T, at func(what string)) *journal {
	j := newJournal(t)
	tell := func(what string) {
		if what == "after directory" {
			j.watch("home", filepath.Join(w.dir, "owner"))
			j.watch("sandboxes", w.sandboxes())
			j.watch("sandbox", w.only())
		}
		j.note(what)
		if at != nil {
			at(what)
		}
	}
	inner := w.trap
	w.trap = func(ctx context.Context, point string) error {
		tell(point)
		if inner != nil {
			return inner(ctx, point)
		}
		return nil
	}
	w.machine.SetFaults(fake.Faults{At: func(s fake.Step) { tell("engine " + string(s)) }})
	return j
}

// A sandbox is described before there is anything to lose of it, and has the name of one
// that was created only when its record is whole: whatever of that a crash leaves, the next
// daemon knows which of the two it has.
func TestOrderOfACreate(t *testing.T) {
	w := newFixture(t)
	j := w.journal(t, func(what string) {
		switch what {
		case "after directory", "engine start", "before record":
			if _, err := os.Stat(filepath.Join(w.only(), "creating.json")); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if _, err := os.Stat(filepath.Join(w.only(), "sandbox.json")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: there is a record: %v", what, err)
			}
		}
	})
	m := w.manager(false)
	if _, err := m.Create(t.Context(), w.permit(everything(t)), nil); err != nil {
		t.Fatal(err)
	}
	j.note("returned")
	j.inOrder("after directory", "engine ready", "!sandbox has created.json", "sandbox wrote sandbox.json",
		"sandbox lost creating.json", "sandbox has created.json", "after record", "returned")
}

// A create that fails when its record is there takes that back before it ends anything:
// what a crash leaves of the undo is not a sandbox that was lost.
func TestOrderOfAnUndo(t *testing.T) {
	w := newFixture(t)
	w.trap = func(_ context.Context, point string) error {
		if point == "after record" {
			return errWanted
		}
		return nil
	}
	id := ""
	j := w.journal(t, func(what string) {
		if what == "after record" {
			id = filepath.Base(w.only())
		}
	})
	m := w.manager(false)
	if _, err := m.Create(t.Context(), w.permit(everything(t)), nil); err == nil {
		t.Fatal("it was created")
	}
	j.inOrder("after record", "sandbox has creating.json", "sandbox lost sandbox.json", "engine kill", "!sandboxes lost "+id, "engine remove", "sandboxes lost "+id)
	w.nothingLeft(m)
}

// A removal is on record before anything ends, with who asked for it. The workspace is the
// sandbox's until nothing runs that could write to it, the tombstone is there before the record
// goes, and the directory goes as a whole before anything in it does.
func TestOrderOfARemoval(t *testing.T) {
	w := newFixture(t)
	id, killed := "", false
	j := w.journal(t, func(what string) {
		switch what {
		case "engine kill":
			killed = true
			if r := w.saved(id); !r.Removing || r.Removal == nil || !strings.Contains(r.Removal.By, operator.Tenant) {
				t.Errorf("the record when the instance is killed: %+v", r)
			}
			fallthrough
		case "engine remove":
			if ws, err := w.spaces.Get(operator.Tenant, "kept"); err != nil || !slices.Equal(ws.Sandboxes, []string{id}) {
				t.Errorf("%s: the workspace is of %v, %v", what, ws.Sandboxes, err)
			}
		}
	})
	m := w.manager(false)
	sb, err := m.Create(t.Context(), w.permit(everything(t)), nil)
	if err != nil {
		t.Fatal(err)
	}
	id = sb.ID
	j.note("created")
	if err := m.Remove(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	if !killed {
		t.Error("nothing was killed")
	}
	j.inOrder("created", "sandbox has sandbox.json", "removing", "stopping", "engine kill", "!home wrote removed.ndjson", "engine remove", "before erase",
		"!sandboxes lost "+id, "home wrote removed.ndjson", "!sandbox lost sandbox.json", "sandboxes lost "+id, "sandboxes has .gone-"+id, "sandbox lost sandbox.json")
	w.nothingLeft(m)
}

// A stop is on record before anything ends, and its end when nothing runs any more.
func TestOrderOfAStop(t *testing.T) {
	w := newFixture(t)
	id := ""
	j := w.journal(t, func(what string) {
		if strings.HasPrefix(what, "engine k") || what == "engine remove" {
			if r := w.saved(id); r.Info.State != api.StateStopping {
				t.Errorf("%s: the record says %s", what, r.Info.State)
			}
		}
	})
	m := w.manager(false)
	id = w.create(m, "x").ID
	j.note("created")
	if _, err := m.Kill(t.Context(), operator, "x"); err != nil {
		t.Fatal(err)
	}
	j.inOrder("created", "sandbox has sandbox.json", "stopping", "engine kill", "engine remove", "after close", "sandbox has sandbox.json")
	if r := w.saved(id); r.Info.State != api.StateStopped {
		t.Errorf("the record after a stop says %s", r.Info.State)
	}
}

// What is kept of a process that could not be started, or is removed, goes as a whole: its
// id is free at once, and the next daemon removes what is left.
func TestOrderOfADiscard(t *testing.T) {
	w := newFixture(t)
	m := w.manager(false)
	sb := w.create(m, "x")
	start(t, m, sb, shell("first", "exec sleep 600"))
	processes := filepath.Join(w.sandboxes(), sb.ID, "processes")
	j := newJournal(t)
	j.watch("processes", processes)
	spec := shell("never", "")
	spec.Shell, spec.Argv = "", []string{"/no/such/program"}
	if _, err := m.StartProcess(t.Context(), operator, "x", permitProcess(t, sb, spec)); err == nil {
		t.Fatal("what is not there was started")
	}
	if err := m.RemoveProcess(t.Context(), operator, "x", "first"); err != nil {
		t.Fatal(err)
	}
	j.note("done")
	for _, id := range []string{"never", "first"} {
		i := slices.Index(j.list, "processes lost "+id)
		if i < 0 || i+1 >= len(j.list) || !strings.HasPrefix(j.list[i+1], "processes has .gone-") {
			t.Errorf("the directory of %s got no other name: %q", id, j.list)
			continue
		}
		gone := strings.TrimPrefix(j.list[i+1], "processes has ")
		j.inOrder("processes has "+gone, "processes lost "+gone, "done")
	}
	if _, err := os.ReadDir(processes); err != nil {
		t.Fatal(err)
	}
	// What a crash left of it.
	sandbox.Crash(m)
	if err := os.MkdirAll(filepath.Join(processes, ".gone-x", "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.manager(false)
	if left, err := os.ReadDir(processes); err != nil || len(left) != 0 {
		t.Errorf("left of processes that are gone: %v, %v", left, err)
	}
}

// A sandbox whose link could not be handed over to the fd store is not created: the instance that
// the engine had made already is ended with it.
func TestHandoverFails(t *testing.T) {
	noGoroutinesLeft(t)
	w := newFixture(t)
	w.held = true
	m := w.manager(false)
	// No holder can be started where something is in the way of its socket.
	socket := filepath.Join(w.dir, "owner", "links.sock")
	if err := os.MkdirAll(filepath.Join(socket, "in-the-way"), 0o700); err != nil {
		t.Fatal(err)
	}
	made := false
	w.machine.SetFaults(fake.Faults{At: func(s fake.Step) { made = made || s == fake.StepReady }})
	spec := api.SandboxSpec{Name: "x", Egress: &api.Egress{Allow: []string{"a.example"}}}
	if _, err := m.Create(t.Context(), w.permit(spec), nil); api.CodeOf(err) != api.CodeInternal {
		t.Errorf("create: %v, want %s", err, api.CodeInternal)
	}
	if !made {
		t.Error("the engine made nothing")
	}
	w.nothingLeft(m)
	if err := os.RemoveAll(socket); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(t.Context(), w.permit(spec), nil); err != nil {
		t.Errorf("create when nothing is in the way: %v", err)
	}
	if err := m.Remove(t.Context(), operator, "x"); err != nil {
		t.Error(err)
	}
}
