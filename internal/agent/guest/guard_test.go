//go:build linux

package guest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/agent/guest/launcher"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// guarded makes the agent take a uid of its own, as in gVisor.
func guarded(t *testing.T) func(*agent.Config, *execCmd) {
	return func(c *agent.Config, _ *execCmd) {
		if cgoEnabled {
			t.Skip("needs CGO_ENABLED=0: with cgo a process cannot change its uid by itself")
		}
		c.KernelGuardsInit = false
	}
}

// kernelGuarded leaves it to the kernel.
func kernelGuarded(*testing.T) func(*agent.Config, *execCmd) { return nil }

// attack is what uid 0 inside tries; it prints what it could do.
const attack = `
for f in mem environ maps root/etc/passwd exe; do head -c 1 /proc/1/$f >/dev/null 2>&1 && echo "read $f"; done
for n in 0 1 2 3 4 5 6 7 8 9; do readlink /proc/1/fd/$n; head -c 1 /proc/1/fd/$n 2>/dev/null; done
for s in STOP KILL TERM INT HUP QUIT SEGV BUS ILL FPE ABRT TRAP SYS USR1 USR2 ALRM PROF VTALRM XCPU XFSZ IO PWR STKFLT PIPE TSTP; do kill -$s 1 2>/dev/null; done
for t in /proc/1/task/*; do kill -STOP ${t##*/} 2>/dev/null; done
python3 - 2>/dev/null <<'END'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in [int(p) for p in os.listdir("/proc") if p.isdigit()]:
    try: name = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")[0]
    except OSError: continue
    if pid != 1 and not name.endswith(b"cloche-agent"): continue
    try:
        open(f"/proc/{pid}/mem", "rb")
        print("opened memory of", pid)
    except OSError: pass
    for request in (16, 0x4206):
        if libc.ptrace(request, pid, 0, 0) == 0: print("traced", pid)
    for t in os.listdir(f"/proc/{pid}/task"):
        for sig in (19, 9):
            if pid == 1: libc.syscall(234, 1, int(t), sig)
            elif libc.syscall(200, int(t), sig) == 0: print("signalled", pid)
try: os.setresuid(4294967000, 4294967000, 4294967000); print("became the agent")
except OSError: pass
print("tried it all")
END
true`

func TestProcessesCannotReachTheAgent(t *testing.T) {
	for name, tune := range map[string]func(*testing.T) func(*agent.Config, *execCmd){"own uid": guarded, "kernel": kernelGuarded} {
		t.Run(name, func(t *testing.T) {
			in := boot(t, tune(t))
			got := in.run(t, attack)
			if name == "kernel" {
				// Any uid can be taken where the agent is 0 itself, and a launcher
				// is not its first process: to kill one makes a start fail, no more.
				lines := slices.DeleteFunc(strings.Split(got, "\n"), func(l string) bool { return l == "became the agent" || strings.HasPrefix(l, "signalled") })
				got = strings.Join(lines, "\n")
			}
			if strings.TrimSpace(got) != "tried it all" {
				t.Fatalf("uid 0 inside could: %s", got)
			}
			if _, err := in.Exec(within(t, time.Minute), shell(":")); err != nil && name != "kernel" {
				t.Fatal(err)
			}
			if got := in.run(t, "echo alive"); got != "alive" {
				t.Fatalf("got %q", got)
			}
		})
	}
}

// TestNoSignalEndsTheAgent: a first process of a namespace that leaves a signal to its default
// action dies of it when the thread that it is sent to blocks it at that moment.
func TestNoSignalEndsTheAgent(t *testing.T) {
	in := boot(t, kernelGuarded(t))
	var held uint64
	for line := range strings.Lines(in.run(t, "grep -E '^Sig(Ign|Cgt):' /proc/1/status")) {
		_, mask, _ := strings.Cut(line, ":")
		bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		held |= bits
	}
	for sig := syscall.Signal(1); sig <= launcher.LastSignal; sig++ {
		switch sig {
		case syscall.SIGKILL, syscall.SIGSTOP: // no thread blocks them
		case syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGURG, syscall.SIGWINCH: // which end nothing
		default:
			if held>>(sig-1)&1 == 0 {
				t.Errorf("the agent leaves %s to its default action", sig)
			}
		}
	}
}

func TestStrengthOfProcesses(t *testing.T) {
	for name, tune := range map[string]func(*testing.T) func(*agent.Config, *execCmd){"own uid": guarded, "kernel": kernelGuarded} {
		for _, who := range []string{"", "1000:1000"} {
			t.Run(name+" "+who, func(t *testing.T) {
				in := boot(t, tune(t))
				s := shell("cat /proc/self/status; ls -l /proc/self/fd; cat /proc/self/cgroup; umask; ulimit -n; ps -o sid= -o pgid= -o pid= $$")
				s.User = who
				r, err := in.Exec(t.Context(), s)
				if err != nil || !r.OK() {
					t.Fatal(r, err)
				}
				out := string(r.Stdout)
				field := func(name string) string {
					_, rest, _ := strings.Cut(out, "\n"+name+":")
					line, _, _ := strings.Cut(rest, "\n")
					return strings.TrimSpace(line)
				}
				kept, none := "00000000a00405fb", strings.Repeat("0", 16)
				eff := kept
				if who != "" {
					eff = none
				}
				for name, want := range map[string]string{
					"CapInh": none, "CapAmb": none, "CapPrm": eff, "CapEff": eff, "CapBnd": kept, "NoNewPrivs": "1",
					"SigBlk": none, "SigIgn": none,
				} {
					if got := field(name); got != want {
						t.Errorf("%s is %s, want %s", name, got, want)
					}
				}
				for fd := 4; fd < 20; fd++ { // 3 is ls's own
					if strings.Contains(out, fmt.Sprintf(" %d -> ", fd)) {
						t.Errorf("descriptor %d is open: %s", fd, out)
					}
				}
				if !strings.Contains(out, "\n0022\n") {
					t.Errorf("umask: %s", out)
				}
			})
		}
	}
}

func TestEnvironmentIsTheGivenOne(t *testing.T) {
	in := boot(t, nil)
	s := start("env")
	s.Env = []string{"PATH=/usr/bin:/bin", "A=1", "A=2", "B=\xff", "HOME=/h"}
	r, err := in.Exec(t.Context(), s)
	// And who it runs as, where that is not given.
	if err != nil || string(r.Stdout) != "PATH=/usr/bin:/bin\nA=1\nA=2\nB=\xff\nHOME=/h\nUSER=root\nLOGNAME=root\n" {
		t.Fatalf("got %q, %v", r.Stdout, err)
	}
}

func TestWrongTokenGetsNothing(t *testing.T) {
	in := boot(t, nil)
	conn, err := net.Dial("tcp", in.addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agent.Connect(within(t, time.Minute), conn, agent.NewToken()); err == nil {
		t.Fatal("a wrong token was taken")
	}
	for _, bad := range []string{"GET / HTTP/1.1\r\n\r\n", "H\xff\xff\xff\xff", "H\x00\x00\x00\x02{}", "Q\x00\x00\x00\x02{}"} {
		conn, err := net.Dial("tcp", in.addr)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(time.Minute))
		if _, err := conn.Write([]byte(bad)); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%q got an answer: %d, %v", bad, n, err)
		}
		conn.Close()
	}
}

func TestNoCommonVersionIsSaid(t *testing.T) {
	in := boot(t, nil)
	conn, err := net.Dial("tcp", in.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := wire.NewWriter(conn).JSON(wire.KindHello, wire.Hello{Versions: []int{99}, Token: in.token}); err != nil {
		t.Fatal(err)
	}
	kind, payload, err := wire.NewReader(conn).Next()
	if err != nil || kind != wire.KindWelcome {
		t.Fatalf("got %q, %v", kind, err)
	}
	if w, err := wire.Decode[wire.Welcome](payload); err != nil || w.Version != 0 || len(w.Versions) == 0 {
		t.Fatalf("got %+v, %v", w, err)
	}
}

func TestSilentConnectionsDoNotKeepTheHostOut(t *testing.T) {
	in := boot(t, nil)
	for range 3 * maxStrangers {
		conn, err := net.Dial("tcp", in.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	c := in.connect(t)
	if _, err := c.Exec(within(t, time.Minute), shell(":")); err != nil {
		t.Fatal(err)
	}
}

func TestProcessesOutliveTheConnection(t *testing.T) {
	in := boot(t, nil)
	c := in.connect(t)
	s := shell("echo one; sleep 0.2; echo two")
	if _, err := c.Stream(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	c.Close()
	<-c.Done()
	for end := time.Now().Add(time.Minute); ; {
		ps, err := in.Processes(t.Context())
		if err != nil || len(ps) != 1 || time.Now().After(end) {
			t.Fatalf("got %+v, %v", ps, err)
		}
		if !ps[0].Running {
			if ps[0].ExitCode == nil || *ps[0].ExitCode != 0 {
				t.Fatalf("got %+v", ps[0])
			}
			return
		}
	}
}
