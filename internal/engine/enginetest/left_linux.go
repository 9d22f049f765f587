package enginetest

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/internal/engine"
)

// nothingLeft proves that nothing on this machine belongs to the plan.
func (s *suite) nothingLeft(p engine.Plan) {
	s.Helper()
	if s.Left != nil {
		// What the engine's own daemon runs for an instance ends a moment later.
		s.eventually("the processes that tend the instance have ended", func() bool { return len(processes(p)) == 0 })
	}
	for _, pid := range processes(p) {
		s.Errorf("left: process %d", pid)
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err == nil && bytes.Contains(b, []byte(p.Dir)) && strings.HasPrefix(p.Dir, "/tmp") {
		s.Errorf("left: a mount in %s", p.Dir)
	}
	if s.Left != nil {
		for _, what := range s.Left(s, p) {
			s.Errorf("left: %s", what)
		}
	}
	for _, dir := range cgroups(p.ID) {
		s.Errorf("left: cgroup %s", dir)
	}
	entries, err := os.ReadDir(p.Dir)
	if err == nil && len(entries) > 0 {
		s.Errorf("left: %s in the plan's directory", entries[0].Name())
	}
	_ = filepath.WalkDir(s.stateDir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.Contains(d.Name(), p.ID) {
			s.Errorf("left: %s in the state directory", d.Name())
		}
		return nil
	})
}

// processes finds the host's processes of an instance by what is in their
// command lines. Those without one are found by their cgroup.
func processes(p engine.Plan) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(b, []byte(p.ID)) {
			found = append(found, pid)
		}
	}
	return found
}

// runs reports whether an instance has a process.
func (s *suite) runs(p engine.Plan, state []byte) bool {
	if s.Remote {
		return len(s.Left(s, p)) > 0
	}
	if s.PID == nil {
		return len(processes(p)) > 0
	}
	// A zombie has no command line.
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.PID(state)), "cmdline"))
	return err == nil && len(b) > 0
}

// cgroups finds directories of that name in any hierarchy.
func cgroups(id string) []string {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(d.Name(), id) {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// eventually waits for a condition that no event announces.
func (s *suite) eventually(what string, ok func() bool) {
	s.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	// Also in a cleanup, when the test's context may be over.
	late := time.NewTimer(patience)
	defer late.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-late.C:
			s.Fatalf("not in time: %s", what)
		}
	}
}
