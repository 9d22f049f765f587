//go:build linux

package attack_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/test/fixture"
)

// TestOutOfMemory reads on the host by what the kernel would choose when memory runs
// out: programs first, what keeps their sandbox after them, the daemon last. Then a program
// takes all memory of its sandbox and ends by it, and the sandbox goes on.
func TestOutOfMemory(t *testing.T) {
	fixture.NsjailHere(t)
	h := fixture.New(t)
	daemon := oomScore(h, h.Daemon.Process.Pid)
	want := 0 // what this process has, which it was born with
	if mayLowerOOM(t) {
		want = -500
	}
	if daemon != want {
		t.Errorf("the daemon has %d, want %d", daemon, want)
	}
	for _, e := range fixture.Engines() {
		e.Run(t, func(t *testing.T) {
			h.T = t
			h.Needs(e.Name, "memory_bytes")
			dir := t.TempDir()
			h.Must("create", "--engine", e.Name, "--name", "hog", "--memory", "192MiB", "--mount", dir+":/m")
			// A child of a shell, which inherits it.
			const argument = "98765.4321"
			h.Must("start", "hog", "--", "sh", "-c", "sleep "+argument+" & wait")
			keepers := keepersOf(h, e.Name, "hog")
			for name, pid := range keepers {
				if got := oomScore(h, pid); got != max(daemon+100, 0) {
					t.Errorf("%s has %d, and the daemon %d", name, got, daemon)
				}
			}
			programs := 0
			found := func() bool {
				programs = 0
				for pid, p := range processes(t) {
					inside := p.below(keepers["sentry"])
					if e.Name != "gvisor" {
						inside = p.command == "sleep\x00"+argument+"\x00" || p.command == "sh\x00-c\x00sleep "+argument+" & wait\x00"
					}
					if inside && oomScore(h, pid) == 1000 {
						programs++
					} else if inside {
						t.Logf("process %d, %q, has %d", pid, p.command, oomScore(h, pid))
						return false
					}
				}
				return programs >= 2
			}
			if !fixture.Poll(found) {
				t.Errorf("%d processes of programs have 1000, and not all of them", programs)
			}
			h.Must("exec", "hog", "--", "sh", "-c", "! echo 0 > /proc/self/oom_score_adj || test "+e.Name+" = gvisor")
			for range 3 {
				if out, status := h.Try("exec", "hog", "--", "python3", "-c", "b = b'x' * (1 << 30)"); status == 0 {
					t.Errorf("a program has more memory than its sandbox: %s", out)
				}
				alive(h, "hog")
			}
			h.Must("rm", "-f", "hog")
		})
	}
	h.T = t
	h.Left()
}

// mayLowerOOM says whether a child of this process could give itself a lower value.
func mayLowerOOM(t *testing.T) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "CapEff:")
	var caps uint64
	if _, err := fmt.Sscanf(rest, "%x", &caps); err != nil {
		t.Fatal(err)
	}
	return caps>>unix.CAP_SYS_RESOURCE&1 != 0
}

// keepersOf are the processes on the host by which a sandbox is kept.
func keepersOf(h *fixture.Fixture, engine, sandbox string) map[string]int {
	h.T.Helper()
	var box struct{ ID string }
	if err := json.Unmarshal([]byte(h.Must("inspect", "--json", sandbox)), &box); err != nil {
		h.T.Fatal(err)
	}
	records, err := filepath.Glob(filepath.Join(h.Dir, "engines", engine, "*.json"))
	if err != nil {
		h.T.Fatal(err)
	}
	found := map[string]int{}
	for _, path := range records {
		b, err := os.ReadFile(path)
		if err != nil {
			h.T.Fatal(err)
		}
		var rec map[string]json.RawMessage
		if err := json.Unmarshal(b, &rec); err != nil || !strings.Contains(string(b), box.ID) {
			continue
		}
		for name, value := range rec {
			var id struct{ PID int }
			if json.Unmarshal(value, &id) == nil && id.PID > 1 {
				found[strings.ToLower(name)] = id.PID
			}
		}
	}
	want := map[string][]string{"gvisor": {"sentry", "gofer"}, "native": {"init"}, "nsjail": {"init", "jail"}, "oci": {"init"}}[engine]
	for _, name := range want {
		if found[name] == 0 {
			h.T.Fatalf("no %s among %v of %q", name, found, records)
		}
	}
	return found
}

// oomScore is the value of a process; of one that has ended it is the value of a program.
func oomScore(h *fixture.Fixture, pid int) int {
	h.T.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	if errors.Is(err, fs.ErrNotExist) {
		return 1000
	}
	n, err2 := strconv.Atoi(strings.TrimSpace(string(b)))
	if err := errors.Join(err, err2); err != nil {
		h.T.Fatal(err)
	}
	return n
}

// hostProcess is a process of the host.
type hostProcess struct {
	command string
	parents []int // the nearest first
}

func (p hostProcess) below(pid int) bool {
	for _, parent := range p.parents {
		if parent == pid {
			return true
		}
	}
	return false
}

// processes are those of the host.
func processes(t *testing.T) map[int]hostProcess {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	parent, found := map[int]int{}, map[int]hostProcess{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err1 := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		argv, err2 := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if errors.Join(err1, err2) != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		parent[pid], _ = strconv.Atoi(fields[1])
		found[pid] = hostProcess{command: string(argv)}
	}
	for pid, p := range found {
		for at := parent[pid]; at > 1 && len(p.parents) < 64; at = parent[at] {
			p.parents = append(p.parents, at)
		}
		found[pid] = p
	}
	return found
}
