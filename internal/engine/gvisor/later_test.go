//go:build linux

package gvisor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
)

// TestVersionIsThePinned: the version in every state is the one of go.mod.
func TestVersionIsThePinned(t *testing.T) {
	mod, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	found := regexp.MustCompile(`(?m)^\s*gvisor\.dev/gvisor (\S+)$`).FindSubmatch(mod)
	if found == nil || string(found[1]) != gvisor.GVisorVersion {
		t.Errorf("go.mod has %s, the engine %s", found, gvisor.GVisorVersion)
	}
}

// TestRecoverOfOtherVersion: an instance of another build can be used and
// removed, and what it was paused by.
func TestRecoverOfOtherVersion(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	for name, fields := range map[string]map[string]any{
		"another gVisor":  {"gvisor": "v0.0.0-20240101000000-0123456789ab"},
		"the first build": {"gvisor": nil, "boot": nil, "executable": nil},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, t.TempDir())
			i := create(t, e, im, nil)
			state := edit(t, i.State(), fields)
			r, err := newEngine(t, t.TempDir()).Recover(t.Context(), state)
			if err != nil {
				t.Fatal(err)
			}
			if string(r.State()) != string(state) {
				t.Errorf("state was %s, is %s", state, r.State())
			}
			answers(t, r)
			if code := api.CodeOf(r.(engine.Pauser).Pause(t.Context())); code != api.CodeUnsupported {
				t.Errorf("pause: %s", code)
			}
			if s, err := r.(engine.Statter).Stat(t.Context()); e.Probe(t.Context()).Enforces["memory_bytes"].OK && (err != nil || s.MemoryBytes == 0) {
				t.Errorf("stat: %+v, %v", s, err)
			}
			if err := r.Close(t.Context()); err != nil {
				t.Error(err)
			}
			<-i.Done()
			<-r.Done()
		})
	}
	t.Run("paused by its sentry", func(t *testing.T) {
		e := newEngine(t, t.TempDir()).WithoutCgroups()
		i := create(t, e, im, nil)
		if err := i.(engine.Pauser).Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		r, err := e.Recover(t.Context(), edit(t, i.State(), map[string]any{"gvisor": "other"}))
		if err != nil {
			t.Fatal(err)
		}
		if code := api.CodeOf(r.(engine.Pauser).Resume(t.Context())); code != api.CodeUnsupported {
			t.Errorf("resume: %s", code)
		}
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// stranger is a process that has nothing to do with any sandbox.
func stranger(t *testing.T) map[string]any {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("the stranger was killed: %v", err)
		}
		cmd.Process.Kill()
		cmd.Wait()
	})
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	return map[string]any{"pid": cmd.Process.Pid, "start": fields[19]}
}

// TestNumbersTakenOver: after a reboot, or long enough without one, others have
// the numbers of the instance's processes. Nothing happens to them.
func TestNumbersTakenOver(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	other := stranger(t)
	late := map[string]any{"pid": other["pid"], "start": "1"}
	const boot = "00000000-0000-4000-8000-000000000000"
	for name, fields := range map[string]map[string]any{
		"reboot":                     {"boot": boot, "sentry": other, "gofer": other},
		"number used again":          {"sentry": late, "gofer": late},
		"reboot, nothing has them":   {"boot": boot},
		"reboot, before the sentry":  {"boot": boot, "sentry": map[string]any{"pid": 0, "start": ""}},
		"number used, an old record": {"sentry": late, "boot": nil, "gvisor": nil},
	} {
		for _, how := range []string{"recover", "sweep"} {
			t.Run(name+", "+how, func(t *testing.T) {
				dir := t.TempDir()
				e := newEngine(t, dir)
				var p engine.Plan
				i := create(t, e, im, func(plan *engine.Plan) { p = *plan })
				// The engine's own record is what is there after the machine went down.
				files, err := filepath.Glob(filepath.Join(dir, "*.json"))
				if err != nil || len(files) != 1 {
					t.Fatalf("records: %v, %v", files, err)
				}
				before, err := os.ReadFile(files[0])
				if err != nil {
					t.Fatal(err)
				}
				kill(t, i.State())
				<-i.Done()
				after := edit(t, before, fields)
				if err := os.WriteFile(files[0], after, 0o600); err != nil {
					t.Fatal(err)
				}
				if how == "recover" {
					_, err = e.Recover(t.Context(), after)
					if api.CodeOf(err) != api.CodeNotFound {
						t.Errorf("recover: %v", err)
					}
				} else if err := e.Sweep(t.Context(), p.Owner, nil); err != nil {
					t.Errorf("sweep: %v", err)
				}
				if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
				if left, _ := filepath.Glob(filepath.Join(p.Dir, "*")); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		}
	}
}

// BenchmarkRecover takes the time of finding fifty instances again, engine and
// all, as a daemon does when it starts.
func BenchmarkRecover(b *testing.B) {
	const instances = 50
	im := enginetest.BuildImages(b, b.TempDir())
	dir := b.TempDir()
	e := newEngine(b, dir)
	var states [][]byte
	for range instances {
		states = append(states, create(b, e, im, func(p *engine.Plan) {
			p.Mounts = []engine.Mount{{Source: b.TempDir(), Target: "/srv/job"}}
		}).State())
	}
	var worst time.Duration
	for b.Loop() {
		e, err := gvisor.New(gvisor.Options{StateDir: dir})
		if err != nil {
			b.Fatal(err)
		}
		var keep []string
		for _, state := range states {
			began := time.Now()
			if _, err := e.Recover(b.Context(), state); err != nil {
				b.Fatal(err)
			}
			worst = max(worst, time.Since(began))
			var s struct{ ID string }
			if err := json.Unmarshal(state, &s); err != nil {
				b.Fatal(err)
			}
			keep = append(keep, s.ID)
		}
		if err := e.Sweep(b.Context(), "enginetest", func(id string) bool { return slices.Contains(keep, id) }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(worst.Microseconds())/1000, "worst-of-one-ms")
	b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N*instances), "each-ms")
}
