package enginetest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// finding is what the audit inside says of one file.
type finding struct {
	Path        string
	Read, Write bool
	Words       []string
}

// testKernelFiles looks at every file of /proc and /sys that root inside can read or write,
// and compares them with a list. None may have a word in it that is another sandbox's or the
// host's.
func testKernelFiles(s *suite) {
	words := s.plantWords()
	_, other := s.create(func(p *engine.Plan) { p.Hostname = "other-" + strings.ToLower(api.NewID("")) })
	words["another sandbox's host name"], words["another sandbox's id"], words["another sandbox's directory"] = other.Hostname, other.ID, other.Dir
	i, p := s.create(nil)
	words["the engine's directory"], words["the directory of the sandbox"] = s.stateDir, p.Dir
	argv := []string{Inside, "audit"}
	for _, w := range words {
		argv = append(argv, w)
	}
	found := s.findings(s.exec(i, argv...))
	if len(found) < 20 {
		s.Errorf("only %d files were found", len(found))
	}
	for _, f := range found {
		for what, w := range words {
			for _, got := range f.Words {
				if got == w {
					s.Errorf("%s has %s: %s", f.Path, what, w)
				}
			}
		}
		if s.OwnKernel {
			continue
		}
		if f.Read && !mayRead(f.Path) {
			s.Errorf("%s can be read", f.Path)
		}
		if f.Write && !mayWrite(f.Path) {
			s.Errorf("%s can be written", f.Path)
		}
	}
	if told := s.engine.Probe(s.ctx).Enforces[api.EnforcesKernelFiles]; !told.OK && !s.OwnKernel {
		s.Errorf("files of the kernel are not covered: %s", told.Reason)
	}
	if stat := s.exec(i, Inside, "cat", "/proc/stat"); !strings.Contains(stat, "\nctxt 0\n") && !s.OwnKernel {
		s.Errorf("/proc/stat counts what the host does:\n%s", stat)
	} else if !strings.Contains(stat, "cpu0 ") || !strings.Contains(stat, "\nbtime ") {
		s.Errorf("/proc/stat has not what programs look for:\n%s", stat)
	}
	if s.OwnKernel {
		return // which has no swap, and need not have the file
	}
	if swaps := s.exec(i, Inside, "cat", "/proc/swaps"); strings.Count(swaps, "\n") != 1 {
		s.Errorf("/proc/swaps has more than its heading:\n%s", swaps)
	}
}

func (s *suite) findings(text string) (found []finding) {
	s.Helper()
	for dec := json.NewDecoder(strings.NewReader(text)); dec.More(); {
		var f finding
		if err := dec.Decode(&f); err != nil {
			s.Fatalf("the audit says %q: %v", text, err)
		}
		found = append(found, f)
	}
	return found
}

// plantWords are words by which the host is known, some of which are put where the kernel
// shows them.
func (s *suite) plantWords() map[string]string {
	s.Helper()
	words := map[string]string{}
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		words["the host's boot id"] = strings.TrimSpace(string(id))
	}
	process := "canary-" + strings.ToLower(api.NewID(""))
	cmd := exec.CommandContext(s.ctx, "sleep", "600")
	cmd.Args[0] = process
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	words["a process of the host's"] = process
	if file, ok := s.plantLoop(); ok {
		words["another tenant's workspace"] = file
	}
	return words
}

// plantLoop attaches a file to a loop device, whose name the kernel shows in /sys.
func (s *suite) plantLoop() (name string, ok bool) {
	s.Helper()
	name = "tenant-" + strings.ToLower(api.NewID(""))
	f, err := os.Create(filepath.Join(s.TempDir(), name))
	if err != nil {
		s.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		s.Fatal(err)
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		s.Logf("no loop device: %v", err)
		return "", false
	}
	defer control.Close()
	for range 20 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			break
		}
		dev, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
		if err != nil {
			break
		}
		if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_FD, int(f.Fd())); err != nil {
			dev.Close()
			continue // another process took it first
		}
		s.Cleanup(func() {
			_ = unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0)
			dev.Close()
		})
		return name, true
	}
	s.Logf("no loop device: %v", err)
	return "", false
}

// mayRead says which files of the kernel's a sandbox may read: what programs need, and
// what its own namespaces have.
func mayRead(path string) bool {
	for _, at := range []string{
		"/proc/cgroups", "/proc/cpuinfo", "/proc/filesystems", "/proc/loadavg", "/proc/meminfo", "/proc/net/", "/proc/self/", "/proc/stat", "/proc/swaps",
		"/proc/sysvipc/", "/proc/uptime", "/proc/version", "/proc/vmstat", "/sys/devices/system/cpu/", "/sys/devices/virtual/net/",
		"/sys/fs/cgroup/", // of its own groups, by which programs know their limits
	} {
		if path == at || strings.HasSuffix(at, "/") && strings.HasPrefix(path, at) {
			return true
		}
	}
	return maySee(path)
}

// maySee says which settings of the kernel a sandbox may read.
func maySee(path string) bool {
	rest, ok := strings.CutPrefix(path, "/proc/sys/")
	if !ok {
		return false
	}
	switch rest {
	case "fs/aio-nr", "fs/dentry-state", "fs/file-nr", "fs/inode-nr", "fs/inode-state", "kernel/pty/nr":
		return false
	}
	for _, dir := range []string{"abi/", "crypto/", "debug/", "fs/", "kernel/", "net/", "user/", "vm/"} {
		if strings.HasPrefix(rest, dir) {
			return !strings.HasPrefix(rest, "fs/quota/")
		}
	}
	return false
}

// mayWrite says which files of the kernel's a sandbox may write: those of its own process.
func mayWrite(path string) bool { return strings.HasPrefix(path, "/proc/self/") }
