package crash

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/test/longtest"
)

const (
	// roleVar says what the test binary is when it starts itself again.
	roleVar = "CLOCHE_CRASH_ROLE"
	// binaryVar is a binary to test; without it one is built.
	binaryVar = "CLOCHE_CRASH_BINARY"
	// statesVar is how many states of each filesystem are tried; seedVar is where chance
	// begins.
	statesVar, seedVar = "CLOCHE_CRASH_STATES", "CLOCHE_CRASH_SEED"
	// usualStates is enough for a gate, and takes less than two minutes.
	usualStates = 75
	block       = 4096
)

func TestMain(m *testing.M) {
	if os.Getenv(roleVar) == "disk" {
		if err := serveDisk(os.Getenv("CRASH_IMAGE"), os.Getenv("CRASH_RECORD"), os.Getenv("CRASH_DIR")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestPowerCuts is the test, on two filesystems. Each has namespaces of its own for mounts
// and processes: when the first process ends, however, so do all sandboxes, and with the
// last of them the mounts and loop devices are gone.
func TestPowerCuts(t *testing.T) {
	longtest.Skip(t, "it starts sandboxes and cuts their power")
	if os.Geteuid() != 0 {
		t.Skip("needs root: only root mounts filesystems")
	}
	for _, path := range []string{"/dev/fuse", "/dev/loop-control"} {
		if _, err := os.Stat(path); err != nil {
			t.Skipf("needs %s: %v", path, err)
		}
	}
	binary := os.Getenv(binaryVar)
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "cloche")
		build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "github.com/cloche-dev/cloche/cmd/cloche")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
	}
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath("mkfs." + kind); err != nil {
				t.Skipf("needs mkfs.%s: %v", kind, err)
			}
			c := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestInNamespace$", "-test.v", "-test.timeout=0")
			c.Env = append(os.Environ(), roleVar+"="+kind, "CRASH_BINARY="+binary, "CRASH_TEMP="+t.TempDir())
			c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
			out, err := c.CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
				return
			}
			t.Logf("%s", out)
		})
	}
}

// fixture is one filesystem with a home on it, in this process's mount namespace.
type fixture struct {
	t                 *testing.T
	kind, binary, dir string
	daemon            *exec.Cmd
	c                 *client.Client
	// facts are what is true at each mark.
	facts history
}

func TestInNamespace(t *testing.T) {
	kind := os.Getenv(roleVar)
	if kind == "" {
		t.Skip("is run by TestPowerCuts, in a mount namespace of its own")
	}
	w := &fixture{t: t, kind: kind, binary: os.Getenv("CRASH_BINARY"), dir: filepath.Join(os.Getenv("CRASH_TEMP"), "w")}
	must(t, syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	must(t, syscall.Mount("proc", "/proc", "proc", 0, ""))
	must(t, os.Mkdir(w.dir, 0o700))
	must(t, syscall.Mount("tmpfs", w.dir, "tmpfs", 0, "mode=700"))
	for _, sub := range []string{"fuse", "home"} {
		must(t, os.Mkdir(w.at(sub), 0o700))
	}
	w.makeBase()
	entries := w.recordRun()
	// A power cut is a boot: what the kernel calls it is how a daemon tells one from a
	// record that another process changed.
	must(t, os.WriteFile(w.at("boot"), []byte("00000000-0000-4000-8000-000000000000\n"), 0o444))
	must(t, syscall.Mount(w.at("boot"), "/proc/sys/kernel/random/boot_id", "", syscall.MS_BIND, ""))
	states := usualStates
	if text := os.Getenv(statesVar); text != "" {
		var err error
		states, err = strconv.Atoi(text)
		must(t, err)
	}
	seed := uint64(1)
	if text := os.Getenv(seedVar); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	w.tryStates(entries, states, seed)
}

func (w *fixture) at(elem ...string) string {
	return filepath.Join(append([]string{w.dir}, elem...)...)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *fixture) run(name string, args ...string) {
	w.t.Helper()
	if out, err := exec.CommandContext(w.t.Context(), name, args...).CombinedOutput(); err != nil {
		w.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// makeBase makes the filesystem, with a home in which a sandbox has been: the image that
// all are made of is there.
func (w *fixture) makeBase() {
	f, err := os.Create(w.at("base"))
	must(w.t, err)
	must(w.t, errors.Join(f.Truncate(512<<20), f.Close()))
	if w.kind == "xfs" {
		w.run("mkfs.xfs", "-q", "-K", w.at("base"))
	} else {
		w.run("mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=0", w.at("base"))
	}
	w.mount(w.at("base"))
	w.start()
	_, err = w.c.Create(w.t.Context(), api.SandboxSpec{Name: "first"})
	must(w.t, err)
	must(w.t, w.c.Remove(w.t.Context(), "first"))
	w.stop(syscall.SIGTERM)
	w.unmount()
}

// mount mounts a file by a loop device, which goes with the mount.
func (w *fixture) mount(file string) {
	w.run("mount", "-t", w.kind, "-o", "loop,noatime", file, w.at("home"))
}

func (w *fixture) unmount() { w.run("umount", w.at("home")) }

// start starts a daemon on the home, and waits until it answers.
func (w *fixture) start() {
	w.t.Helper()
	home := w.at("home", "h")
	log, err := os.OpenFile(w.at("log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	must(w.t, err)
	defer log.Close()
	must(w.t, os.MkdirAll(home, 0o700))
	w.daemon = exec.CommandContext(w.t.Context(), w.binary, "serve", "--home", home, "--config", w.policy())
	w.daemon.Stdout, w.daemon.Stderr = log, log
	w.daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(w.t, w.daemon.Start())
	w.c, err = client.New(client.Options{Host: "unix://" + filepath.Join(home, "cloche.sock")})
	must(w.t, err)
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err = w.c.Info(ctx); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			text, _ := os.ReadFile(w.at("log"))
			w.t.Fatalf("the daemon does not answer: %v\n%s", err, text)
		case <-tick.C:
		}
	}
}

// policy is a file with the rules: the engine is the one that starts soonest.
func (w *fixture) policy() string {
	path := w.at("policy.yaml")
	must(w.t, os.WriteFile(path, []byte("version: 1\nengine: native\nmin_tier: namespace\n"), 0o600))
	return path
}

func (w *fixture) stop(sig os.Signal) {
	w.t.Helper()
	must(w.t, w.c.Close())
	must(w.t, w.daemon.Process.Signal(sig))
	_ = w.daemon.Wait() // it was told to end
}

// history is what the caller was promised: for each mark, what became true then.
type history []change

type change struct {
	mark      int64
	fact, now string
	begun     bool
}

// promised are the facts at a point of the record that has marks up to mark. What was under
// way is unsure.
func (h history) promised(mark int64) (facts map[string]string, unsure map[string]bool) {
	facts, unsure = map[string]string{}, map[string]bool{}
	for _, c := range h {
		if c.mark > mark {
			// A call that begins after the mark may have reached the disk before the next.
			if c.begun && c.mark == mark+1 {
				unsure[c.fact] = true
			}
			continue
		}
		if c.begun {
			unsure[c.fact] = true
			continue
		}
		delete(unsure, c.fact)
		facts[c.fact] = c.now
	}
	return facts, unsure
}

// recordRun uses a daemon for a while on a disk that is recorded.
func (w *fixture) recordRun() []entry {
	w.run("cp", "--sparse=always", w.at("base"), w.at("image"))
	r, err := startRecorder(w.t.Context(), w.at("image"), w.at("record"), w.at("fuse"))
	must(w.t, err)
	w.mount(w.at("fuse", "disk"))
	w.start()
	// do makes a call, after which a fact has another value; what it names is what the check
	// looks for.
	do := func(now string, call func(ctx context.Context) error, facts ...string) {
		w.t.Helper()
		must(w.t, r.next())
		for _, f := range facts {
			w.facts = append(w.facts, change{mark: r.mark, fact: f, begun: true})
		}
		if err := call(w.t.Context()); err != nil {
			w.t.Fatalf("%v: %v", facts, err)
		}
		must(w.t, r.next())
		for _, f := range facts {
			w.facts = append(w.facts, change{mark: r.mark, fact: f, now: now})
		}
	}
	c := w.c
	create := func(name string, ws *api.Workspace) {
		do("there", func(ctx context.Context) error {
			spec := api.SandboxSpec{Name: name, Workspace: ws, Labels: map[string]string{"of": name}}
			if ws != nil && ws.Layered {
				spec.Engine = "gvisor" // not every kernel has layers with ids of their own
			}
			_, err := c.Create(ctx, spec)
			return err
		}, "sandbox "+name)
	}
	remove := func(name string) {
		do("", func(ctx context.Context) error { return c.Remove(ctx, name) }, "sandbox "+name)
	}
	exec := func(name, script string) {
		_, err := c.Shell(w.t.Context(), name, script)
		must(w.t, err)
	}
	var keys []string
	for round := range 2 {
		id := func(name string) string { return fmt.Sprintf("%s-%d", name, round) }
		do("there", func(ctx context.Context) error {
			_, err := c.CreateWorkspace(ctx, api.WorkspaceSpec{Name: id("sized"), SizeBytes: 4 << 20})
			return err
		}, "workspace "+id("sized"))
		create(id("private"), nil)
		_, err := c.WriteFile(w.t.Context(), id("private"), "/workspace/file", bytes.Repeat([]byte("data"), 4096), 0o644)
		must(w.t, err)
		exec(id("private"), "echo more > /workspace/more; sync /workspace/more")
		do("there", func(ctx context.Context) error {
			_, err := c.StartProcess(ctx, id("private"), api.ProcessSpec{ExecRequest: api.ExecRequest{ExecID: id("proc"), Argv: []string{"sh", "-c", "seq 1 2000; sleep 600"}}})
			return err
		}, "process "+id("private")+"/"+id("proc"))
		create(id("held"), &api.Workspace{Name: id("sized")})
		exec(id("held"), "echo x > f; sync f")
		do("there", func(ctx context.Context) error {
			k, err := c.CreateKey(ctx, api.KeySpec{Tenant: "t", Name: id("key")})
			keys = append(keys, k.Key.ID)
			return err
		}, "key "+id("key"))
		create(id("layered"), &api.Workspace{Name: id("plain"), Layered: true})
		exec(id("layered"), "echo committed > f")
		_, err = c.Stop(w.t.Context(), id("layered"), api.StopOptions{})
		must(w.t, err)
		do("committed\n", func(ctx context.Context) error { _, err := c.CommitWorkspace(ctx, id("layered")); return err }, "file "+id("plain")+"/f")
		remove(id("layered"))
		do("there", func(ctx context.Context) error {
			_, err := c.CreateSnapshot(ctx, id("private"), api.SnapshotRequest{Name: id("snap"), Scope: api.SnapshotWorkspace})
			return err
		}, "snapshot "+id("snap"))
		_, err = c.Extend(w.t.Context(), id("private"), time.Hour)
		must(w.t, err)
		_, err = c.Pause(w.t.Context(), id("private"))
		must(w.t, err)
		_, err = c.Resume(w.t.Context(), id("private"))
		must(w.t, err)
		remove(id("held"))
		do("", func(ctx context.Context) error { return c.RemoveWorkspace(ctx, "", id("sized")) }, "workspace "+id("sized"))
		if round == 0 {
			do("", func(ctx context.Context) error { _, err := c.RevokeKey(ctx, keys[0]); return err }, "key "+id("key"))
			do("", func(ctx context.Context) error { return c.RemoveSnapshot(ctx, id("snap")) }, "snapshot "+id("snap"))
			remove(id("private"))
			w.facts = append(w.facts, change{mark: r.mark, fact: "process " + id("private") + "/" + id("proc"), begun: true})
		}
	}
	must(w.t, r.next())
	last := r.mark
	// What is written from here on belongs to no state.
	for sb := range c.ListAll(w.t.Context(), api.ListOptions{}) {
		_ = c.Remove(w.t.Context(), sb.ID)
	}
	w.stop(syscall.SIGTERM)
	w.unmount()
	must(w.t, r.stop())
	entries, err := readRecord(w.at("record"))
	must(w.t, err)
	end := slices.IndexFunc(entries, func(e entry) bool { return e.kind == marked && e.off == last })
	return entries[:end]
}

// cut is one state of the disk: all of the record before flush, and a part of what follows
// until end.
type cut struct{ flush, end int }

// cuts are the states to try, in the order of the record: after every flush, and between
// flushes at random.
func cuts(entries []entry, n int, chance *rand.Rand) []cut {
	var flushes []int
	for i, e := range entries {
		if e.kind == flushed {
			flushes = append(flushes, i)
		}
	}
	chosen := map[cut]bool{}
	whole := slices.Clone(flushes)
	chance.Shuffle(len(whole), func(i, j int) { whole[i], whole[j] = whole[j], whole[i] })
	for _, f := range whole[:min(len(whole), n/2)] {
		chosen[cut{f, f}] = true
	}
	for tries := 0; len(chosen) < n && tries < 100*n; tries++ {
		end := chance.IntN(len(entries))
		i, _ := slices.BinarySearch(flushes, end)
		flush := 0
		if i > 0 {
			flush = flushes[i-1]
		}
		chosen[cut{flush, end}] = true
	}
	return slices.SortedFunc(maps.Keys(chosen), func(a, b cut) int { return a.end - b.end })
}

// tryStates starts a daemon on each state.
func (w *fixture) tryStates(entries []entry, n int, seed uint64) {
	chance := rand.New(rand.NewPCG(seed, 1))
	all := cuts(entries, n, chance)
	durable, err := os.OpenFile(w.at("base"), os.O_RDWR, 0)
	must(w.t, err)
	defer durable.Close()
	done, mark, marks := 0, int64(0), 0
	began := time.Now()
	for i, c := range all {
		for ; done < c.flush; done++ {
			if e := entries[done]; e.kind == wrote {
				_, err := durable.WriteAt(e.data, e.off)
				must(w.t, err)
			}
		}
		for ; marks < c.end; marks++ {
			if e := entries[marks]; e.kind == marked {
				mark = e.off
			}
		}
		w.run("cp", "--sparse=always", w.at("base"), w.at("image"))
		image, err := os.OpenFile(w.at("image"), os.O_RDWR, 0)
		must(w.t, err)
		keep := chance.Float64()
		for _, e := range entries[c.flush:c.end] {
			for at := 0; e.kind == wrote && at < len(e.data); at += block {
				if chance.Float64() < keep {
					_, err := image.WriteAt(e.data[at:min(at+block, len(e.data))], e.off+int64(at))
					must(w.t, err)
				}
			}
		}
		must(w.t, image.Close())
		bad := w.check(mark)
		if len(bad) > 0 {
			log, _ := os.ReadFile(w.at("log"))
			w.t.Fatalf("state %d (seed %d, flush at %d, cut at %d of %d, mark %d):\n%s\n%s", i, seed, c.flush, c.end, len(entries), mark, strings.Join(bad, "\n"), log)
		}
	}
	w.t.Logf("%s: %d states of %d entries, in %s", w.kind, len(all), len(entries), time.Since(began).Round(time.Second))
}

// check starts a daemon on the image and compares what it has with what was promised.
func (w *fixture) check(mark int64) (bad []string) {
	w.mount(w.at("image"))
	defer w.unmount()
	w.start()
	defer w.stop(syscall.SIGTERM)
	facts, unsure := w.facts.promised(mark)
	have, wrong := w.look()
	bad = append(bad, wrong...)
	for fact, want := range facts {
		if got := have[fact]; !unsure[fact] && got != want {
			bad = append(bad, fmt.Sprintf("%s is %q, and was promised to be %q", fact, got, want))
		}
	}
	// Nothing is stuck: what is there can be removed.
	for sb := range w.c.ListAll(w.t.Context(), api.ListOptions{}) {
		if err := w.c.Remove(w.t.Context(), sb.ID); err != nil {
			bad = append(bad, fmt.Sprintf("remove sandbox %s: %v", sb.Name, err))
		}
	}
	slices.Sort(bad)
	return bad
}

// look is what a daemon has, and what is wrong with it by itself.
func (w *fixture) look() (have map[string]string, bad []string) {
	ctx := w.t.Context()
	have = map[string]string{}
	wrong := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	for sb, err := range w.c.ListAll(ctx, api.ListOptions{}) {
		if err != nil {
			wrong("list sandboxes: %v", err)
			break
		}
		have["sandbox "+sb.Name] = "there"
		if sb.State == api.StateFailed {
			wrong("sandbox %s is failed: %s", sb.Name, sb.Reason)
		}
		if sb.Workspace.Name == "" && !sb.State.Over() {
			continue
		}
		if dirs, _ := filepath.Glob(w.at("home", "h", "owners", "*", "sandboxes", sb.ID, "workspace*")); sb.Workspace.Name == "" && len(dirs) == 0 {
			wrong("the private workspace of sandbox %s is gone", sb.Name)
		}
		procs, err := w.c.Processes(ctx, sb.ID)
		if err != nil {
			wrong("processes of sandbox %s: %v", sb.Name, err)
		}
		for _, p := range procs {
			have["process "+sb.Name+"/"+p.ExecID] = "there"
			if strings.Contains(p.Reason, "cannot be read") {
				wrong("process %s: %s", p.ExecID, p.Reason)
			}
		}
		if err := w.c.Logs(ctx, sb.ID, api.LogOptions{}, func(api.LogEntry) error { return nil }); err != nil && !errors.Is(err, io.EOF) {
			wrong("logs of sandbox %s: %v", sb.Name, err)
		}
	}
	spaces, err := w.c.Workspaces(ctx)
	if err != nil {
		wrong("list workspaces: %v", err)
	}
	for _, ws := range spaces.Workspaces {
		have["workspace "+ws.Name] = "there"
		if ws.State != "" {
			wrong("workspace %s is %s: %s", ws.Name, ws.State, ws.Reason)
		}
		if data, err := os.ReadFile(w.at("home", "h", "workspaces", ws.Tenant, ws.Name, "f")); err == nil {
			have["file "+ws.Name+"/f"] = string(data)
		}
	}
	snaps, err := w.c.Snapshots(ctx)
	if err != nil {
		wrong("list snapshots: %v", err)
	}
	for _, s := range snaps.Snapshots {
		have["snapshot "+s.Name] = "there"
		for _, l := range s.Left {
			if l.Path == "/" {
				wrong("snapshot %s: %s", s.Name, l.Reason)
			}
		}
	}
	keys, err := w.c.Keys(ctx)
	if err != nil {
		wrong("list keys: %v", err)
	}
	for _, k := range keys.Keys {
		if k.RevokedAt == nil {
			have["key "+k.Name] = "there"
		}
	}
	report, err := w.c.VerifyAudit(ctx, api.AuditVerifyOptions{})
	if err != nil {
		wrong("verify the audit log: %v", err)
	}
	for _, p := range report.Problems {
		wrong("audit log: %+v", p)
	}
	return have, bad
}
