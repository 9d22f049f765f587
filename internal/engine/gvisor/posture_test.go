//go:build linux

package gvisor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
)

// The capabilities of a gofer: CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER,
// FSETID, SYS_CHROOT.
const goferCaps = "000000000004001f"

const noCaps = "0000000000000000"

// TestPosture looks at the sandbox's processes from the host.
func TestPosture(t *testing.T) {
	usable(t)
	e := newEngine(t, t.TempDir())
	p := enginetest.Plan(t, enginetest.BuildImages(t, t.TempDir()))
	p.Mounts = []engine.Mount{{Source: t.TempDir(), Target: "/srv/job"}}
	i, err := e.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close(t.Context())
	var state struct{ Sentry, Gofer struct{ PID int } }
	if err := json.Unmarshal(i.State(), &state); err != nil {
		t.Fatal(err)
	}
	nobody, self := "65534", fmt.Sprint(os.Geteuid())
	if os.Geteuid() != 0 {
		nobody = self
	}
	t.Run("sentry", func(t *testing.T) {
		pid := state.Sentry.PID
		status(t, pid, map[string]string{
			"Uid": nobody, "CapInh": noCaps, "CapPrm": noCaps, "CapEff": noCaps, "CapBnd": noCaps, "CapAmb": noCaps,
			"NoNewPrivs": "1", "Seccomp": "2",
		})
		namespaces(t, pid, "user", "pid", "mnt", "net", "ipc", "uts")
		for _, text := range []string{"environ", "cmdline"} {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, text))
			if strings.Contains(string(b), "Port") {
				t.Errorf("%s holds the agent's configuration", text)
			}
		}
		if os.Geteuid() == 0 {
			status(t, pid, map[string]string{"Groups": "none", "Gid": nobody})
			root(t, pid)
		}
	})
	t.Run("gofer", func(t *testing.T) {
		pid := state.Gofer.PID
		status(t, pid, map[string]string{
			"Uid": self, "CapPrm": goferCaps, "CapEff": goferCaps, "CapBnd": goferCaps,
			"NoNewPrivs": "1", "Seccomp": "2",
		})
		namespaces(t, pid, "pid", "mnt", "net", "ipc", "uts")
	})
}

func status(t *testing.T, pid int, want map[string]string) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		w, ok := want[name]
		if !ok {
			continue
		}
		seen++
		for _, v := range strings.Fields(value) {
			if v != w {
				t.Errorf("%s is %s, want %s", name, v, w)
			}
		}
	}
	if seen != len(want) {
		t.Errorf("%d of %d lines in the status", seen, len(want))
	}
}

// namespaces must be others than this process's.
func namespaces(t *testing.T, pid int, names ...string) {
	t.Helper()
	for _, name := range names {
		ours, err := os.Readlink("/proc/self/ns/" + name)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, name))
		if err != nil {
			if os.Geteuid() != 0 && os.IsPermission(err) {
				return // not dumpable: no process may look, which is safe too
			}
			t.Fatal(err)
		}
		if ours == theirs {
			t.Errorf("the %s namespace is the host's", name)
		}
	}
}

// root proves that nothing of the host can be seen: an empty directory, no
// directory open, no /proc.
func root(t *testing.T, pid int) {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "etc" && e.Name() != "proc" {
			t.Errorf("the root directory holds %s", e.Name())
		}
	}
	if left, _ := os.ReadDir(fmt.Sprintf("/proc/%d/root/proc", pid)); len(left) > 0 {
		t.Errorf("/proc is still mounted: %s", left[0].Name())
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(fds) == 0 {
		t.Fatalf("no descriptors: %v", err)
	}
	for _, fd := range fds {
		if info, err := os.Stat(fd); err == nil && info.IsDir() {
			to, _ := os.Readlink(fd)
			t.Errorf("descriptor %s is the directory %s", filepath.Base(fd), to)
		}
	}
}
