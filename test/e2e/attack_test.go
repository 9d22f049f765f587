//go:build linux

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// fixture is one home with its daemon, attacked from inside and outside.
type fixture struct {
	*scriptState
	t *testing.T
}

// newFixture starts a daemon in a home of its own. What is left of it in the end
// is an error of the test.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a run without -short: it starts sandboxes and attacks them")
	}
	bin := binary(t)
	if out, err := exec.CommandContext(t.Context(), bin, "doctor", "--home", t.TempDir()).CombinedOutput(); err != nil {
		t.Skipf("needs a usable engine: cloche doctor says\n%s", out)
	}
	home, err := os.MkdirTemp("", "cl-")
	if err != nil {
		t.Fatal(err)
	}
	h := &fixture{&scriptState{bin: bin, home: home, groupsBefore: emptyGroups(home)}, t}
	t.Cleanup(h.tearDown)
	h.start()
	return h
}

func (h *fixture) socket() string { return filepath.Join(h.home, "cloche.sock") }

func (h *fixture) log() string { return filepath.Join(h.home, "daemon.log") }

// start starts the daemon and waits until it answers.
func (h *fixture) start() {
	h.t.Helper()
	if err := h.begin(); err != nil {
		h.t.Fatal(err)
	}
}

// revive starts a daemon in place of one that an earlier subtest ended, since it hung.
func (h *fixture) revive() {
	h.t.Helper()
	if h.daemon == nil {
		h.start()
	}
}

// begin is start for any goroutine.
func (h *fixture) begin() error {
	log, err := os.OpenFile(h.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	h.daemon = exec.Command(h.bin, "serve", "--home", h.home)
	h.daemon.Stderr = log
	h.daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := h.daemon.Start(); err != nil {
		h.daemon = nil
		return err
	}
	if !poll(func() bool { return answers("unix", h.socket()) }) {
		return fmt.Errorf("the daemon does not answer:\n%s", h.lastWords())
	}
	return nil
}

// lastWords ends a daemon that hangs, and is what it was doing.
func (h *fixture) lastWords() string {
	_ = h.daemon.Process.Signal(syscall.SIGQUIT)
	late := time.AfterFunc(patience, func() { _ = h.daemon.Process.Kill() })
	_ = h.daemon.Wait()
	late.Stop()
	h.daemon = nil
	b, err := os.ReadFile(h.log())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-64<<10):])
}

// kill9 kills the daemon.
func (h *fixture) kill9() {
	_ = h.daemon.Process.Kill()
	_ = h.daemon.Wait()
	h.daemon = nil
}

// limit is how long a client's command may take: longer than the time that it gives a
// program itself, so that what is late in the end is the daemon.
func limit(args []string) time.Duration {
	own := time.Duration(0)
	if i := slices.Index(args, "--timeout"); i >= 0 && i+1 < len(args) {
		own, _ = time.ParseDuration(args[i+1]) // the command refuses an invalid one
	}
	return own + patience
}

// command is a client's command, killed when it takes longer than its limit.
func (h *fixture) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(h.t.Context(), limit(args))
	h.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, h.bin, args...)
	cmd.Env = append(os.Environ(), "CLOCHE_HOME="+h.home, "CLOCHE_HOST=")
	return cmd
}

// try runs a command and returns what it wrote and its exit status.
func (h *fixture) try(args ...string) (string, int) {
	cmd := h.command(args...)
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

// needs skips a test of what an engine does not hold here, and says why it does not.
func (h *fixture) needs(engine, limit string) {
	h.t.Helper()
	var d api.Doctor
	if err := json.Unmarshal([]byte(h.must("doctor", "--json")), &d); err != nil {
		h.t.Fatal(err)
	}
	for _, e := range d.Engines {
		if e.Name == engine && !e.Enforces[limit].OK {
			h.t.Skipf("needs %s of engine %s: %s", limit, engine, e.Enforces[limit].Reason)
		}
	}
}

// must is try of what has to succeed.
func (h *fixture) must(args ...string) string {
	h.t.Helper()
	out, status := h.try(args...)
	if status < 0 {
		h.t.Fatalf("cloche %s: no answer in %v\n%s\nthe daemon:\n%s", strings.Join(args, " "), limit(args), out, h.lastWords())
	}
	if status != 0 {
		h.t.Fatalf("cloche %s: status %d\n%s", strings.Join(args, " "), status, out)
	}
	return out
}

// python runs a program as uid 0 in a sandbox.
func (h *fixture) python(sandbox, program string) string {
	h.t.Helper()
	file := filepath.Join(h.t.TempDir(), "attack.py")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		h.t.Fatal(err)
	}
	h.must("cp", file, sandbox+":/tmp/attack.py")
	return h.must("exec", "--timeout", "120s", sandbox, "--", "python3", "/tmp/attack.py")
}

// left asserts that only the daemon is left.
func (h *fixture) left() {
	h.t.Helper()
	var left []string
	clean := poll(func() bool {
		left = slices.Concat(h.leftProcesses(), h.leftMounts(), h.leftGroups(), h.leftDirs())
		return len(left) == 0
	})
	if !clean {
		h.t.Fatalf("left behind:\n\t%s", strings.Join(left, "\n\t"))
	}
}

// names lists the sandboxes.
func (h *fixture) names() []string {
	h.t.Helper()
	var l struct {
		Sandboxes []struct{ Name, State string }
	}
	if err := json.Unmarshal([]byte(h.must("ls", "-a", "--json")), &l); err != nil {
		h.t.Fatal(err)
	}
	var names []string
	for _, s := range l.Sandboxes {
		names = append(names, s.Name+" "+s.State)
	}
	return names
}

// post sends one request over a connection of its own.
func (h *fixture) post(path, body string) (net.Conn, error) {
	c, err := net.Dial("unix", h.socket())
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: cloche\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	return c, err
}

// A process that makes a user namespace has every capability in it. They reach neither
// the agent nor the cgroups that hold the limit.
func TestAttackUserNamespace(t *testing.T) {
	h := newFixture(t)
	h.must("create", "--name", "box", "--pids", "64")
	out := h.python("box", `
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(272, 0x10020000) != 0:
    print("no user namespaces"); sys.exit()
for name, value in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
    try: os.write(os.open("/proc/self/" + name, os.O_WRONLY), value.encode())
    except OSError: pass
for pid in [1] + [int(t) for t in os.listdir("/proc/1/task")]:
    if libc.ptrace(16, pid, 0, 0) == 0: print("ESCAPED: traces", pid)
    if libc.kill(pid, 0) == 0: print("ESCAPED: signals", pid)
for what in ("environ", "mem", "maps", "auxv", "fd"):
    try:
        os.listdir("/proc/1/fd") and os.readlink("/proc/1/fd/0") if what == "fd" else open("/proc/1/" + what, "rb").read(1)
        print("ESCAPED: reads", what)
    except OSError: pass
for ns in os.listdir("/proc/1/ns"):
    try:
        if libc.setns(os.open("/proc/1/ns/" + ns, 0), 0) == 0: print("ESCAPED: entered", ns)
    except OSError: pass
os.makedirs("/tmp/cg")
if libc.mount(b"x", b"/tmp/cg", b"cgroup2", 0, 0) == 0:
    try: os.mkdir("/tmp/cg/mine")
    except OSError: pass
    for dir, _, files in os.walk("/tmp/cg"):
        for f in ("cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "pids.max", "memory.max", "cgroup.kill"):
            if dir.endswith("/mine") and f not in ("cgroup.procs", "cgroup.threads"): continue
            for value in ("0", str(os.getpid()), "max", "-pids"):
                if f not in files: continue
                try:
                    os.write(os.open(dir + "/" + f, os.O_WRONLY), value.encode())
                    print("ESCAPED: wrote", value, "to", dir + "/" + f)
                except OSError: pass
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            import time
            time.sleep(20); os._exit(0)
        made += 1
except OSError: pass
print("ESCAPED: processes" if made >= 64 else "held", made)
`)
	if strings.Contains(out, "ESCAPED") || !strings.Contains(out, "held") && !strings.Contains(out, "no user namespaces") {
		t.Error(out)
	}
	if out := h.must("exec", "box", "--", "echo", "alive"); out != "alive\n" {
		t.Errorf("after the attack: %q", out)
	}
	h.must("rm", "-f", "box")
	h.left()
}

// Processes inside can connect to the agent's port. They get no answer and do not
// block the host.
func TestAttackAgentPort(t *testing.T) {
	h := newFixture(t)
	h.must("create", "--name", "box")
	done := make(chan string, 1)
	go func() {
		out, _ := h.try("exec", "--timeout", "20s", "box", "--", "python3", "-c", `
import socket, struct, threading, time
end = time.time() + 6
def attack(data):
    held = []
    while time.time() < end:
        try:
            s = socket.create_connection(("127.0.0.1", 1), 2)
            if data is None:
                held = held[-200:] + [s]
                continue
            s.sendall(data)
            s.settimeout(1)
            if s.recv(64): print("ANSWERED", data[:16])
            s.close()
        except OSError: pass
frames = [None, None, b"\xff" * 65536, struct.pack(">cI", b"H", 2**31 - 1), b"H\0\0\0\x20" + b'{"Token":"AAAA","Versions":[1]}', b"GET / HTTP/1.0\r\n\r\n"]
threads = [threading.Thread(target=attack, args=(f,)) for f in frames]
print("begun", flush=True)
for t in threads: t.start()
for t in threads: t.join()
print("attacked")
`)
		done <- out
	}()
	for attacks := 0; ; attacks++ {
		select {
		case out := <-done:
			if attacks == 0 || strings.Contains(out, "ANSWERED") || !strings.Contains(out, "attacked") {
				t.Errorf("beside %d execs: %s", attacks, out)
			}
			h.must("rm", "-f", "box")
			h.left()
			return
		default:
			h.must("exec", "box", "--", "true")
		}
	}
}

// What a sandbox leaves in its workspace is neither followed nor waited for, and
// it can all be removed.
func TestAttackWorkspaceContent(t *testing.T) {
	h := newFixture(t)
	h.must("create", "--name", "box")
	h.python("box", `
import os, socket
w = "/workspace/"
for name, target in (("env", "/proc/1/environ"), ("mem", "/proc/1/mem"), ("fd", "/proc/1/fd/3"), ("root", "/proc/1/root/etc/passwd"), ("self", "/proc/self/mem"), ("loop", "loop")):
    os.symlink(target, w + name)
os.mkfifo(w + "fifo")
socket.socket(socket.AF_UNIX).bind(w + "sock")
open(os.fsencode(w) + b"\xff\x1b[2J\n", "w").close()
os.makedirs(w + "locked/in"); os.chmod(w + "locked", 0)
os.mkdir(w + "deep"); os.chdir(w + "deep")
for i in range(1500):
    os.mkdir("d" * 200); os.chdir("d" * 200)
open("bottom", "w").close()
`)
	to := filepath.Join(t.TempDir(), "out")
	for _, name := range []string{"env", "mem", "fd", "root", "self", "loop", "fifo", "sock"} {
		if out, status := h.try("cp", "box:/workspace/"+name, to); status == 0 {
			t.Errorf("%s could be copied: %s", name, out)
		}
	}
	file := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/workspace/env", "/workspace/root", "/workspace/fifo", "/workspace/loop", "/proc/1/comm", "/proc/1/oom_score_adj", "/.cloche/x"} {
		if out, status := h.try("cp", file, "box:"+path); status == 0 {
			t.Errorf("%s could be written: %s", path, out)
		}
	}
	h.must("rm", "-f", "box")
	h.left()
}

// A one-shot whose caller hangs up is gone soon, however far it had come.
func TestAttackCallerHangsUp(t *testing.T) {
	h := newFixture(t)
	for _, reached := range []string{"creating", "running"} {
		c, err := h.post("/v1/run", `{"exec":{"argv":["sleep","1000"]}}`)
		if err != nil {
			t.Fatal(err)
		}
		if !poll(func() bool {
			l := h.names()
			return len(l) == 1 && (reached == "creating" || strings.HasSuffix(l[0], reached))
		}) {
			t.Fatalf("it never was %s: %q", reached, h.names())
		}
		c.Close()
		gone := time.Now()
		if !poll(func() bool { return len(h.names()) == 0 }) || time.Since(gone) > 5*time.Second {
			t.Errorf("%s: there after %s: %q", reached, time.Since(gone), h.names())
		}
	}
	h.left()
}

// A daemon that is killed at any moment of creates and removals leaves nothing
// that the next one does not find or clear, and what runs goes on.
func TestAttackDaemonKilled(t *testing.T) {
	h := newFixture(t)
	h.must("create", "--name", "keep")
	h.must("exec", "keep", "--", "sh", "-c", "echo kept > f")
	for i := range 6 {
		h.must("create", "--name", fmt.Sprint("old", i))
		var clients []*exec.Cmd
		for _, args := range [][]string{{"create", "--name", fmt.Sprint("new", i)}, {"rm", "-f", fmt.Sprint("old", i)}} {
			cmd := h.command(args...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			clients = append(clients, cmd)
		}
		<-time.After(time.Duration(rand.IntN(120)) * time.Millisecond) // any moment is one to die at
		h.kill9()
		for _, c := range clients {
			_ = c.Wait()
		}
		h.start()
		if out := h.must("exec", "keep", "--", "cat", "f"); out != "kept\n" {
			t.Fatalf("round %d: the sandbox that ran says %q", i, out)
		}
		for _, s := range h.names() {
			name, state, _ := strings.Cut(s, " ")
			if name == "keep" {
				continue
			}
			if state == "running" {
				h.must("exec", name, "--", "true")
			}
			h.must("rm", "-f", name)
		}
	}
	h.must("rm", "-f", "keep")
	h.left()
}

// Sandboxes that come and go leave the daemon as it was.
func TestAttackCycles(t *testing.T) {
	h := newFixture(t)
	cycle := func() {
		h.must("create", "--name", "box")
		h.must("exec", "box", "--", "true")
		h.must("rm", "-f", "box")
	}
	open := func() int {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.daemon.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	for range 3 {
		cycle()
	}
	before := open()
	for range 20 {
		cycle()
	}
	// The sentry that is kept ready for the next sandbox has some, when there is one.
	if !poll(func() bool { return open() <= before+8 }) {
		t.Errorf("%d descriptors became %d", before, open())
	}
	h.left()
}

// Another user could change a home that belongs to them while the daemon runs.
func TestAttackHomeOfAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to give a directory to somebody else")
	}
	h := newFixture(t)
	home := t.TempDir()
	if err := os.Chown(home, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if out, status := h.try("serve", "--home", home); status == 0 || !strings.Contains(out, "belongs to uid 65534") {
		t.Errorf("status %d: %s", status, out)
	}
	// A home has one daemon.
	if out, status := h.try("serve", "--home", h.home); status == 0 || !strings.Contains(out, "running already") {
		t.Errorf("status %d: %s", status, out)
	}
	h.must("create", "--name", "box")
	h.must("rm", "-f", "box")
	h.left()
}

// On a full disk what cannot be recorded is not begun, and leaves nothing.
func TestAttackFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to mount a small disk")
	}
	h := newFixture(t)
	h.must("create", "--name", "box")
	h.must("rm", "-f", "box") // the images are made
	records := filepath.Join(h.home, "engines", "gvisor")
	if err := syscall.Mount("tmpfs", records, "tmpfs", 0, "size=4k,mode=0700"); err != nil {
		t.Skip("needs mounts: " + err.Error())
	}
	t.Cleanup(func() { _ = syscall.Unmount(records, syscall.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(records, "filler"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	out, status := h.try("create", "--json", "--name", "full")
	if status != 125 || !strings.Contains(out, `"no_capacity"`) {
		t.Errorf("status %d: %s", status, out)
	}
	if left := within(records); len(left) != 1 {
		t.Errorf("beside the filler there is more: %q", left)
	}
	if err := syscall.Unmount(records, syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	h.must("create", "--name", "full")
	h.must("rm", "-f", "full")
	h.left()
}
