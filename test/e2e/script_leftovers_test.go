//go:build linux

package e2e_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// leftovers [dir…] asserts that no sandbox has left anything: no process but the
// daemon, no mount, no loop device, no cgroup, no directory of a sandbox in the home. What is on
// its network is waited for. As arguments come more directories to hold empty.
func cmdLeftovers(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("usage: leftovers [dir...]")
	}
	s := state(ts)
	var left []string
	clean := poll(func() bool {
		left = slices.Concat(s.leftProcesses(), s.leftMounts(), s.leftGroups(), s.leftDirs(), s.leftLoops())
		for _, dir := range args {
			left = append(left, within(ts.MkAbs(dir))...)
		}
		return len(left) == 0
	})
	if !clean {
		ts.Fatalf("left behind:\n\t%s", strings.Join(left, "\n\t"))
	}
}

type process struct {
	pid, parent int
	argv        string
}

// processes are those of the binary under test, whatever they call themselves, and of
// sandboxes of the host's own kernel, which are known by their cgroup.
func (s *scriptState) processes() []process {
	bin, err := os.Stat(s.bin)
	if err != nil {
		return nil
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var found []process
	for _, dir := range dirs {
		exe, err := os.Stat(filepath.Join(dir, "exe"))
		ours := err == nil && os.SameFile(bin, exe)
		if groups, err := os.ReadFile(filepath.Join(dir, "cgroup")); err == nil && inGroupOf(string(groups), daemonOwner(s.home)) {
			ours = true
		}
		if !ours {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		argv, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		found = append(found, process{pid, parentOf(dir), strings.ReplaceAll(strings.TrimRight(string(argv), "\x00"), "\x00", " ")})
	}
	return found
}

// groupsOfEngines are the cgroups of the engines on the host's own kernel.
var groupsOfEngines = []string{"cloche-native", "cloche-nsjail", "cloche-oci"}

// inGroupOf reports whether the groups of a process are those of an owner's sandbox on
// the host's own kernel.
func inGroupOf(groups, owner string) bool {
	return slices.ContainsFunc(groupsOfEngines, func(name string) bool { return strings.Contains(groups, "/"+name+"/"+owner+"/") })
}

func (s *scriptState) leftProcesses() []string {
	var left []string
	for _, p := range s.ofSandboxes() {
		left = append(left, fmt.Sprintf("process %d: %.200s", p.pid, p.argv))
	}
	return left
}

// ofSandboxes are the processes but the daemon, and what it keeps ready for the next
// sandbox: a sentry with the children that this has, agents of the engine native.
func (s *scriptState) ofSandboxes() []process {
	all := s.processes()
	if s.daemon == nil {
		return all
	}
	ready := 0
	for _, p := range all {
		if p.parent == s.daemon.Process.Pid && strings.HasPrefix(p.argv, "cloche-sentry-") {
			ready = p.pid
		}
	}
	pool := s.pool()
	return slices.DeleteFunc(all, func(p process) bool {
		if slices.ContainsFunc(pool, func(r warm) bool { return r.Init.PID == p.pid && p.parent == s.daemon.Process.Pid }) {
			return true
		}
		return p.pid == s.daemon.Process.Pid || ready != 0 && (p.pid == ready || p.parent == ready)
	})
}

// spare is the record of an agent that the engine native keeps ready.
type warm struct {
	file string
	Init struct{ PID int }
	IDs  uint32
}

// spares are those of the daemon that runs.
func (s *scriptState) pool() []warm {
	if s.daemon == nil {
		return nil
	}
	var found []warm
	files, _ := filepath.Glob(filepath.Join(s.home, "engines", "native", "*-spare-*.json"))
	for _, f := range files {
		r := warm{file: f}
		if b, err := os.ReadFile(f); err == nil && json.Unmarshal(b, &r) == nil {
			found = append(found, r)
		}
	}
	return found
}

// parentOf is the number of a process's parent, from its directory in /proc.
func parentOf(dir string) int {
	fields := statFields(dir)
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// statFields are the fields of a stat file in a directory of /proc that come after the name, which may
// contain anything: the state, the parent and more.
func statFields(dir string) []string {
	stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
	_, after, _ := strings.Cut(string(stat[max(strings.LastIndexByte(string(stat), ')'), 0):]), " ")
	return strings.Fields(after)
}

// leftMounts are mounts under the home, here and where the daemon lives.
func (s *scriptState) leftMounts() []string {
	tables := []string{"/proc/self/mounts"}
	if s.daemon != nil {
		tables = append(tables, fmt.Sprintf("/proc/%d/mounts", s.daemon.Process.Pid))
	}
	var left []string
	for _, table := range tables {
		b, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], s.home) {
				left = append(left, "mount "+f[1])
			}
		}
	}
	return left
}

// daemonOwner is the name under which the daemon of a home owns things.
func daemonOwner(home string) string {
	sum := sha256.Sum256([]byte(home))
	return "d-" + hex.EncodeToString(sum[:6])
}

// emptyGroups are cgroups of sandboxes in which no process is: of the home's
// daemon, and of every in-process run, whose name does not tell its home.
func emptyGroups(home string) []string {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // it went meanwhile
		}
		parts := strings.Split(p, "/")
		if len(parts) < 3 || parts[len(parts)-3] != "cloche" && !slices.Contains(groupsOfEngines, parts[len(parts)-3]) {
			return nil
		}
		if owner := parts[len(parts)-2]; owner != daemonOwner(home) && !strings.HasPrefix(owner, "r-") {
			return filepath.SkipDir
		}
		if strings.HasPrefix(filepath.Base(p), "spare-") {
			// Of a sentry in the pool: it is below where memory is limited.
			if b, err := os.ReadFile(filepath.Join(p, "sentry", "cgroup.procs")); err == nil && len(b) > 0 {
				return filepath.SkipDir
			}
		}
		if b, err := os.ReadFile(filepath.Join(p, "cgroup.procs")); err == nil && len(b) == 0 {
			found = append(found, p)
		}
		return filepath.SkipDir
	})
	return found
}

// leftGroups are empty cgroups that were not there when the script began. One
// that another test makes and fills is not empty for long.
func (s *scriptState) leftGroups() []string {
	var left []string
	for _, g := range emptyGroups(s.home) {
		if !slices.Contains(s.groupsBefore, g) {
			left = append(left, "cgroup "+g)
		}
	}
	return left
}

// leftDirs are directories of sandboxes and dead owners in the home.
func (s *scriptState) leftDirs() []string {
	left := slices.Concat(within(filepath.Join(s.home, "engines", "*")), within(filepath.Join(s.home, "owners", "*", "sandboxes")))
	for _, r := range s.pool() {
		ids := filepath.Join(filepath.Dir(r.file), fmt.Sprint("ids-", r.IDs))
		left = slices.DeleteFunc(left, func(entry string) bool { return entry == "entry "+r.file || entry == "entry "+ids })
	}
	owners, _ := filepath.Glob(filepath.Join(s.home, "owners", "r-*"))
	for _, o := range owners {
		left = append(left, "owner "+o)
	}
	return left
}

// within lists what is in the directories that a pattern names.
func within(pattern string) []string {
	entries, _ := filepath.Glob(filepath.Join(pattern, "*"))
	var left []string
	for _, e := range entries {
		left = append(left, "entry "+e)
	}
	return left
}
