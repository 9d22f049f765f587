//go:build linux

package ingvisor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// attack is what uid 0 inside tries; it prints what it could do.
const attack = `
for f in mem environ maps root/etc/passwd exe; do head -c 1 /proc/1/$f >/dev/null 2>&1 && echo "read $f"; done
for n in 0 1 2 3 4 5 6 7 8 9; do head -c 1 /proc/1/fd/$n 2>/dev/null; done
for s in STOP KILL TERM INT HUP QUIT SEGV BUS ILL FPE ABRT TRAP SYS USR1 ALRM XCPU PIPE TSTP; do kill -$s 1 2>/dev/null && echo "sent $s"; done
for t in /proc/1/task/*; do kill -STOP ${t##*/} 2>/dev/null && echo "stopped ${t##*/}"; done
python3 - 2>/dev/null <<'END'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in [int(p) for p in os.listdir("/proc") if p.isdigit()]:
    try: name = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")[0]
    except OSError: continue
    if pid != 1 and not name.endswith(b"cloche-agent"): continue
    try:
        open(f"/proc/{pid}/mem", "rb").read(1)
        print("read memory of", pid)
    except OSError: pass
    for request in (16, 0x4206):
        if libc.ptrace(request, pid, 0, 0) == 0: print("traced", pid)
    for t in os.listdir(f"/proc/{pid}/task"):
        for sig in (19, 9):
            if libc.syscall(234, pid, int(t), sig) == 0: print("tgkilled", pid, t)
            if libc.syscall(200, int(t), sig) == 0: print("tkilled", pid, t)
    if libc.syscall(424, os.pidfd_open(pid), 9, 0, 0) == 0: print("killed by pidfd", pid)
try: os.setresuid(4294967000, 4294967000, 4294967000); print("became the agent")
except OSError: pass
if libc.mount(b"x", b"/srv", b"tmpfs", 0, None) == 0: print("mounted")
if libc.mount(b"x", b"/srv", b"cgroup2", 0, None) == 0: print("mounted cgroup2")
if libc.unshare(0x10000000 | 0x20000) == 0:
    if libc.mount(b"x", b"/srv", b"cgroup2", 0, None) == 0:
        for f in ("cgroup.procs", "job/cgroup.procs", "job/pids.max", "job/cgroup.kill"):
            try:
                with open("/srv/" + f, "w") as c: c.write(str(os.getpid()))
                print("wrote", f)
            except OSError: pass
print("tried it all")
END
kill -KILL -1
true`

func TestProcessesCannotReachTheAgent(t *testing.T) {
	b := boot(t, nil)
	r, err := b.Exec(t.Context(), shell(attack))
	if err != nil {
		t.Fatal(err)
	}
	if out := strings.TrimSpace(string(r.Stdout)); out != "tried it all" {
		t.Fatalf("uid 0 inside could: %s", out)
	}
	if got := b.run(t, "echo alive"); got != "alive" {
		t.Fatalf("got %q", got)
	}
}

func TestStrengthOfProcesses(t *testing.T) {
	b := boot(t, nil)
	s := shell("grep -e Cap -e NoNew /proc/self/status; id; echo $$ >/tmp/x; stat -c %u:%g /tmp/x /work; ls /proc/self/fd | wc -l")
	for _, who := range users(t) {
		s.User, s.ExecID = who, api.NewID("x-")
		r, err := b.Exec(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		eff, id := "CapEff:\t00000000a00405fb", "uid=0(root) gid=0(root) groups=0(root)"
		if who != "" {
			eff, id = "CapEff:\t0000000000000000", "uid=1000(alice) gid=1000(alice) groups=1000(alice),50(staff)"
		}
		out := string(r.Stdout)
		if !strings.Contains(out, eff) || !strings.Contains(out, id) || !strings.Contains(out, "CapBnd:\t00000000a00405fb") || !strings.Contains(out, "NoNewPrivs:\t1") {
			t.Errorf("as %q: %s", who, out)
		}
	}
}

func TestExecWorksDuringAForkBomb(t *testing.T) {
	b := boot(t, func(c *agent.Config) { c.PidsMax = 64 })
	// A shell that cannot fork may exit, so the program itself does not fork.
	bomb, err := b.Stream(t.Context(), shell(`echo begun; bomb() { bomb | bomb & }; (while :; do bomb; done) & exec sleep 1000`))
	if err != nil {
		t.Fatal(err)
	}
	defer bomb.Close()
	full := false
	for !full {
		ev, err := bomb.Recv()
		if err != nil {
			t.Fatal(err)
		}
		full = bytes.Contains(ev.Data, []byte("ork")) // Cannot fork
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for i := range 5 {
		at := time.Now()
		_, serr := b.Stat(ctx, "/etc")
		t.Logf("stat %d: %v %v", i, time.Since(at), serr)
		r, err := b.Exec(ctx, start("/bin/echo", "works"))
		t.Logf("exec %d: %v", i, time.Since(at))
		if err != nil || string(r.Stdout) != "works\n" {
			t.Fatalf("during the bomb: %+v, %v", r, err)
		}
	}
	ps, err := b.Processes(ctx)
	if err != nil || len(ps) == 0 {
		t.Fatal(ps, err)
	}
	if err := b.Signal(ctx, ps[0].ExecID, 9); err != nil {
		t.Fatal(err)
	}
	if got := b.run(t, "seq 1 20 | wc -l"); got != "20" {
		t.Fatalf("after the bomb: %q", got)
	}
}

func TestTimeoutKillsTheWholeTree(t *testing.T) {
	b := boot(t, nil)
	s := shell("echo partial; sleep 1000 & (setsid sleep 1001 &) ; wait")
	s.Timeout = 500 * time.Millisecond
	r, err := b.Exec(t.Context(), s)
	if err != nil || !r.TimedOut || r.Signal != "KILL" || string(r.Stdout) != "partial\n" {
		t.Fatalf("got %+v, %v", r, err)
	}
	if got := b.run(t, "ps -eo args | grep -c '^sleep 100' || true"); got != "0" {
		t.Fatalf("%s processes are left", got)
	}
}

func TestTerminalAndSignals(t *testing.T) {
	b := boot(t, nil)
	s := shell("stty size; test -t 0 && echo tty; trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.1; done")
	s.TTY, s.Rows, s.Cols = true, 33, 99
	st, err := b.Stream(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var got bytes.Buffer
	resized := false
	for {
		ev, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Exit != nil {
			if ev.Exit.ExitStatus() != 5 || !strings.Contains(got.String(), "33 99") || !strings.Contains(got.String(), "44 111") {
				t.Fatalf("exit %+v after %q", ev.Exit, &got)
			}
			return
		}
		got.Write(ev.Data)
		if strings.Contains(got.String(), "ready") && !resized {
			resized = true
			if err := st.Resize(44, 111); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestFilesBelongToTheUser(t *testing.T) {
	b, users := boot(t, nil), users(t)
	for _, dir := range []string{"/tmp", "/srv", "/work"} {
		for _, user := range users {
			want := map[string]string{"": "0:0", "alice": "1000:1000"}[user]
			p := dir + "/new" + user + "/file"
			if _, err := b.WriteFile(t.Context(), p, agent.WriteOptions{User: user, Parents: true, Mode: 0o640}, strings.NewReader("content")); err != nil {
				t.Fatal(err)
			}
			if got := b.run(t, "stat -c %u:%g:%a "+p+"; cat "+p); got != want+":640\ncontent" {
				t.Errorf("%s: %q", p, got)
			}
			r, info, err := b.ReadFile(t.Context(), p, 2, 3)
			if err != nil {
				t.Fatal(err)
			}
			if data, err := io.ReadAll(r); err != nil || string(data) != "nte" || info.Size != 7 {
				t.Errorf("%q, %+v, %v", data, info, err)
			}
			r.Close()
		}
	}
	if _, err := b.Stat(t.Context(), "/no/such"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

func TestTerminate(t *testing.T) {
	b := boot(t, nil)
	st, err := b.Stream(t.Context(), shell("trap '' TERM; echo ready; while :; do sleep 0.02; done"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := b.Terminate(t.Context(), 200*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for {
		ev, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Exit != nil {
			if ev.Exit.Signal != "KILL" {
				t.Fatalf("got %+v", ev.Exit)
			}
			return
		}
	}
}
