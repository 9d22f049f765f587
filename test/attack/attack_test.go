//go:build linux

// Package attack_test attacks daemons and sandboxes of the built binary from inside and outside.
package attack_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/test/fixture"
)

// TestMain runs the tests at the root of the module.
func TestMain(m *testing.M) { os.Exit(fixture.Main(m)) }

// A process that makes a user namespace has every capability in it. They reach neither
// the agent nor the cgroups that hold the limit.
func TestAttackUserNamespace(t *testing.T) {
	h := fixture.New(t)
	h.Must("create", "--name", "box", "--pids", "64")
	out := h.Python("box", `
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
	if out := h.Must("exec", "box", "--", "echo", "alive"); out != "alive\n" {
		t.Errorf("after the attack: %q", out)
	}
	h.Must("rm", "-f", "box")
	h.Left()
}

// Processes inside can connect to the agent's port. They get no answer and do not
// block the host.
func TestAttackAgentPort(t *testing.T) {
	h := fixture.New(t)
	h.Must("create", "--name", "box")
	done := make(chan string, 1)
	go func() {
		out, _ := h.Try("exec", "--timeout", "20s", "box", "--", "python3", "-c", `
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
			h.Must("rm", "-f", "box")
			h.Left()
			return
		default:
			h.Must("exec", "box", "--", "true")
		}
	}
}

// What a sandbox leaves in its workspace is neither followed nor waited for, and
// it can all be removed.
func TestAttackWorkspaceContent(t *testing.T) {
	h := fixture.New(t)
	h.Must("create", "--name", "box")
	h.Python("box", `
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
		if out, status := h.Try("cp", "box:/workspace/"+name, to); status == 0 {
			t.Errorf("%s could be copied: %s", name, out)
		}
	}
	file := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/workspace/env", "/workspace/root", "/workspace/fifo", "/workspace/loop", "/proc/1/comm", "/proc/1/oom_score_adj", "/.cloche/x"} {
		if out, status := h.Try("cp", file, "box:"+path); status == 0 {
			t.Errorf("%s could be written: %s", path, out)
		}
	}
	h.Must("rm", "-f", "box")
	h.Left()
}

// A one-shot whose caller hangs up is gone soon, however far it had come.
func TestAttackCallerHangsUp(t *testing.T) {
	h := fixture.New(t)
	for _, reached := range []string{"creating", "running"} {
		c, err := h.Post("/v1/run", `{"exec":{"argv":["sleep","1000"]}}`)
		if err != nil {
			t.Fatal(err)
		}
		if !fixture.Poll(func() bool {
			l := h.Names()
			return len(l) == 1 && (reached == "creating" || strings.HasSuffix(l[0], reached))
		}) {
			t.Fatalf("it never was %s: %q", reached, h.Names())
		}
		c.Close()
		gone := time.Now()
		if !fixture.Poll(func() bool { return len(h.Names()) == 0 }) || time.Since(gone) > 5*time.Second {
			t.Errorf("%s: there after %s: %q", reached, time.Since(gone), h.Names())
		}
	}
	h.Left()
}

// A daemon that is killed at any moment of creates and removals leaves nothing
// that the next one does not find or clear, and what runs goes on.
func TestAttackDaemonKilled(t *testing.T) {
	h := fixture.New(t)
	h.Must("create", "--name", "keep")
	h.Must("exec", "keep", "--", "sh", "-c", "echo kept > f")
	for i := range 6 {
		h.Must("create", "--name", fmt.Sprint("old", i))
		var clients []*exec.Cmd
		for _, args := range [][]string{{"create", "--name", fmt.Sprint("new", i)}, {"rm", "-f", fmt.Sprint("old", i)}} {
			cmd := h.Command(args...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			clients = append(clients, cmd)
		}
		<-time.After(time.Duration(rand.IntN(120)) * time.Millisecond) // any moment is one to die at
		h.Kill9()
		for _, c := range clients {
			_ = c.Wait()
		}
		h.Start()
		if out := h.Must("exec", "keep", "--", "cat", "f"); out != "kept\n" {
			t.Fatalf("round %d: the sandbox that ran says %q", i, out)
		}
		for _, s := range h.Names() {
			name, state, _ := strings.Cut(s, " ")
			if name == "keep" {
				continue
			}
			if state == "running" {
				h.Must("exec", name, "--", "true")
			}
			h.Must("rm", "-f", name)
		}
	}
	h.Must("rm", "-f", "keep")
	h.Left()
}

// Sandboxes that come and go leave the daemon as it was.
func TestAttackCycles(t *testing.T) {
	h := fixture.New(t)
	cycle := func() {
		h.Must("create", "--name", "box")
		h.Must("exec", "box", "--", "true")
		h.Must("rm", "-f", "box")
	}
	open := func() int {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.Daemon.Process.Pid))
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
	if !fixture.Poll(func() bool { return open() <= before+8 }) {
		t.Errorf("%d descriptors became %d", before, open())
	}
	h.Left()
}

// Another user could change a home that belongs to them while the daemon runs.
func TestAttackHomeOfAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to give a directory to another user")
	}
	h := fixture.New(t)
	home := t.TempDir()
	if err := os.Chown(home, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if out, status := h.Try("serve", "--home", home); status == 0 || !strings.Contains(out, "belongs to uid 65534") {
		t.Errorf("status %d: %s", status, out)
	}
	// A home has one daemon.
	if out, status := h.Try("serve", "--home", h.Dir); status == 0 || !strings.Contains(out, "running already") {
		t.Errorf("status %d: %s", status, out)
	}
	h.Must("create", "--name", "box")
	h.Must("rm", "-f", "box")
	h.Left()
}

// On a full disk what cannot be recorded is not begun, and leaves nothing.
func TestAttackFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to mount a small disk")
	}
	h := fixture.New(t)
	h.Must("create", "--name", "box")
	h.Must("rm", "-f", "box") // the images are made
	records := filepath.Join(h.Dir, "engines", "gvisor")
	if err := syscall.Mount("tmpfs", records, "tmpfs", 0, "size=4k,mode=0700"); err != nil {
		t.Skip("needs mounts: " + err.Error())
	}
	t.Cleanup(func() { _ = syscall.Unmount(records, syscall.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(records, "filler"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	out, status := h.Try("create", "--json", "--name", "full")
	if status != 125 || !strings.Contains(out, `"no_capacity"`) {
		t.Errorf("status %d: %s", status, out)
	}
	if left := fixture.Within(records); len(left) != 1 {
		t.Errorf("beside the filler there is more: %q", left)
	}
	if err := syscall.Unmount(records, syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	h.Must("create", "--name", "full")
	h.Must("rm", "-f", "full")
	h.Left()
}

// TestAttackAsUser runs attacks again on the daemon of a normal user.
func TestAttackAsUser(t *testing.T) {
	u := fixture.NewUserTests(t)
	u.Give(t)
	for _, name := range []string{"TestAttackDeadline"} {
		for _, engine := range []string{"gvisor", "native", "nsjail"} {
			t.Run(name+"/"+engine, func(t *testing.T) { u.Run(t, "^"+name+"$/^"+engine+"$") })
		}
	}
}
