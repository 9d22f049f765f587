//go:build linux

package native_test

import (
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/native"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// needsPool skips a test where there is no pool, and says why.
func needsPool(t testing.TB) {
	t.Helper()
	usable(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: nothing waits where ids are not root's to give")
	}
}

// pooled makes every sandbox of an agent that waits.
type pooled struct {
	*native.Engine
	t testing.TB
}

func (e pooled) Create(ctx context.Context, p engine.Plan) (engine.Instance, error) {
	i, err := e.CreateWaiting(ctx, p)
	if err == nil && !strings.Contains(string(i.State()), "spare-") {
		e.t.Errorf("sandbox %s was made of nothing that waited: %s", p.ID, i.State())
	}
	return i, err
}

// TestNativePoolEngine: a sandbox of an agent that waited is as any other.
func TestNativePoolEngine(t *testing.T) {
	needsPool(t)
	enginetest.Run(t, enginetest.Setup{
		New:      func(t testing.TB, dir string) engine.Engine { return pooled{newEngine(t, dir), t} },
		Images:   enginetest.BuildImages(t, t.TempDir()),
		Kill:     enginetest.KillInit,
		PID:      enginetest.InitPID,
		Isolates: true,
		Survives: true,
	})
}

// filled is an engine with so many agents that wait for plans, where it keeps its
// records, and such plans.
func filled(t *testing.T, n int) (*native.Engine, string, func() engine.Plan) {
	t.Helper()
	needsPool(t)
	dir := t.TempDir()
	e := newEngine(t, dir)
	images := enginetest.BuildImages(t, t.TempDir())
	owner := "pool-" + strconv.Itoa(os.Getpid()) + "-" + filepath.Base(filepath.Dir(dir))
	plan := func() engine.Plan {
		p := enginetest.Plan(t, images)
		p.Owner, p.Pool.Ceiling = owner, n
		return p
	}
	if e.Fill(plan()); len(e.Pool()) != n {
		t.Fatalf("%d wait, want %d", len(e.Pool()), n)
	}
	return e, dir, plan
}

// left is what an owner has in an engine's directory and in the cgroups.
func left(t *testing.T, dir, owner string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == owner {
			names = append(names, name)
		}
		return nil
	})
	return names
}

func gone(t *testing.T, what string, pid int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := pidfd.StartTime(pid); err != nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: process %d is there after a minute", what, pid)
		}
	}
}

func network(t *testing.T, pid int) string {
	t.Helper()
	name, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func hostname(t *testing.T, i engine.Instance) {
	t.Helper()
	o, err := enginetest.Exec(t.Context(), i, enginetest.Inside, "hostname")
	if err != nil || strings.TrimSpace(string(o.Output)) != "enginetest" {
		t.Errorf("inside: %+v, %v", o, err)
	}
}

// TestNativePoolExhausted: each agent in the pool becomes one sandbox, and a later create gets
// a new one.
func TestNativePoolExhausted(t *testing.T) {
	e, dir, plan := filled(t, 2)
	waiting := e.Pool()
	seen := map[string]bool{network(t, os.Getpid()): true}
	var made []engine.Instance
	for n := range 4 {
		i, err := e.Create(t.Context(), plan())
		if err != nil {
			t.Fatal(err)
		}
		if got := enginetest.InitPID(i.State()); slices.Contains(waiting, got) != (n < 2) {
			t.Errorf("sandbox %d is process %d, where %v were waiting", n, got, waiting)
		}
		if net := network(t, enginetest.InitPID(i.State())); seen[net] {
			t.Errorf("sandbox %d shares %s", n, net)
		} else {
			seen[net] = true
		}
		hostname(t, i)
		made = append(made, i)
		if n == 0 {
			continue // another engine would end what waits beside it
		}
		if err := newEngine(t, dir).Sweep(t.Context(), plan().Owner, func(id string) bool { return slices.Contains(ids(made), id) }); err != nil {
			t.Fatal(err)
		}
		hostname(t, i)
	}
	for _, i := range made {
		if err := i.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	e.Close()
	if found := left(t, dir, plan().Owner); len(found) != 0 {
		t.Errorf("left: %v", found)
	}
}

// ids are the names of instances.
func ids(all []engine.Instance) (names []string) {
	for _, i := range all {
		var s struct{ ID string }
		if json.Unmarshal(i.State(), &s) == nil {
			names = append(names, s.ID)
		}
	}
	return names
}

// TestNativePoolDeath: no create gets an agent that died while it waited, and the engine's
// own sweep takes none that lives.
func TestNativePoolDeath(t *testing.T) {
	e, dir, plan := filled(t, 2)
	waiting := e.Pool()
	if err := e.Sweep(t.Context(), plan().Owner, nil); err != nil {
		t.Fatal(err)
	}
	for _, pid := range waiting {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatalf("its own engine swept it away: %v", err)
		}
	}
	i, err := e.Create(t.Context(), plan())
	if err != nil {
		t.Fatal(err)
	}
	hostname(t, i)
	if slices.Contains(waiting, enginetest.InitPID(i.State())) {
		t.Errorf("the sandbox is process %d, which was killed", enginetest.InitPID(i.State()))
	}
	if err := i.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.Close()
	for _, pid := range waiting {
		gone(t, "killed", pid)
	}
	if found := left(t, dir, plan().Owner); len(found) != 0 {
		t.Errorf("left: %v", found)
	}
}

// TestNativePoolClose: with the engine goes what waits for it, and no Create that is on
// its way hangs.
func TestNativePoolClose(t *testing.T) {
	e, dir, plan := filled(t, 3)
	waiting := e.Pool()
	var wg sync.WaitGroup
	made := make([]engine.Instance, 4)
	for n := range made {
		p := plan()
		wg.Go(func() { made[n], _ = e.Create(t.Context(), p) })
	}
	e.Close()
	wg.Wait()
	if _, err := e.Create(t.Context(), plan()); api.CodeOf(err) != api.CodeUnavailable {
		t.Errorf("create after close: %v", err)
	}
	for _, i := range made {
		if i == nil {
			continue
		}
		hostname(t, i)
		if err := i.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for _, pid := range waiting {
		gone(t, "closed", pid)
	}
	if found := left(t, dir, plan().Owner); len(found) != 0 {
		t.Errorf("left: %v", found)
	}
}

// TestNativePoolRefills: who makes sandboxes finds agents that wait, without asking.
func TestNativePoolRefills(t *testing.T) {
	needsPool(t)
	e := newEngine(t, t.TempDir())
	images := enginetest.BuildImages(t, t.TempDir())
	p := enginetest.Plan(t, images)
	p.Pool = engine.Pool{Floor: 2, Ceiling: 2}
	i, err := e.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close(context.WithoutCancel(t.Context()))
	for end := time.Now().Add(time.Minute); len(e.Pool()) != 2; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d wait after a minute, want 2", len(e.Pool()))
		}
	}
}

// daemonEnv has this program be a daemon that is going to be killed.
const daemonEnv = "NATIVE_POOL_DAEMON"

type daemonOrders struct {
	Dir  string
	Plan engine.Plan
}

// daemon makes a sandbox and has agents wait, says which, and lives on.
func daemon(orders string) error {
	var o daemonOrders
	if err := json.Unmarshal([]byte(orders), &o); err != nil {
		return err
	}
	e, err := native.New(native.Options{StateDir: o.Dir, RootsDir: o.Dir + "-roots"})
	if err != nil {
		return err
	}
	i, err := e.Create(context.Background(), o.Plan)
	if err != nil {
		return err
	}
	e.Fill(o.Plan)
	if err := json.NewEncoder(os.Stdout).Encode(append(e.Pool(), enginetest.InitPID(i.State()))); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// TestNativePoolDaemonKilled: what waited dies with the daemon, the next daemon removes
// the rest of it, and the sandbox lives on.
func TestNativePoolDaemonKilled(t *testing.T) {
	needsPool(t)
	dir := t.TempDir()
	p := enginetest.Plan(t, enginetest.BuildImages(t, t.TempDir()))
	p.Owner, p.Pool.Ceiling = "pool-"+strconv.Itoa(os.Getpid())+"-killed", 2
	orders, err := json.Marshal(daemonOrders{dir, p})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), daemonEnv+"="+string(orders))
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	err = json.NewDecoder(out).Decode(&pids)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil || len(pids) < 3 {
		t.Fatalf("the daemon says %v: %v", pids, err)
	}
	last := len(pids) - 1
	for _, pid := range pids[:last] {
		gone(t, "without a daemon", pid)
	}
	e := newEngine(t, dir)
	if err := e.Sweep(t.Context(), p.Owner, func(id string) bool { return id == p.ID }); err != nil {
		t.Fatal(err)
	}
	for _, name := range left(t, dir, p.Owner) {
		if strings.Contains(name, "spare-") {
			t.Errorf("left: %s", name)
		}
	}
	if _, err := pidfd.StartTime(pids[last]); err != nil {
		t.Errorf("the sandbox was swept away: %v", err)
	}
	if err := e.Sweep(t.Context(), p.Owner, nil); err != nil {
		t.Fatal(err)
	}
	gone(t, "swept", pids[last])
	if found := left(t, dir, p.Owner); len(found) != 0 {
		t.Errorf("left: %v", found)
	}
}

// creator makes instances.
type creator interface {
	Create(ctx context.Context, p engine.Plan) (engine.Instance, error)
}
