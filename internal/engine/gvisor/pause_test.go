//go:build linux

package gvisor_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
)

// cgroupsEnv says on what kind of machine the engine of this process is to think
// it is: "none" or "unified".
const cgroupsEnv = "GVISOR_TEST_CGROUPS"

const unifiedParent = "cloche-test-unified"

// dress makes the engine what cgroupsEnv says.
func dress(e *gvisor.Engine) bool {
	switch os.Getenv(cgroupsEnv) {
	case "none":
		e.WithoutCgroups()
	case "unified":
		return e.OnUnified(unifiedParent)
	}
	return true
}

// TestPauseOnOtherMachines proves the sentences on pausing for each way in which
// it is done. What this machine has is proved by TestEngine.
func TestPauseOnOtherMachines(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	for _, cgroups := range []string{"none", "unified"} {
		t.Run(cgroups, func(t *testing.T) {
			t.Setenv(cgroupsEnv, cgroups)
			t.Cleanup(func() { // after every instance is gone
				os.Remove(filepath.Join("/sys/fs/cgroup", unifiedParent))
				os.Remove(filepath.Join("/sys/fs/cgroup/unified", unifiedParent))
			})
			if e := newEngine(t, t.TempDir()); !dress(e) {
				t.Skip("needs root and a mounted hierarchy of version 2: makes a cgroup in it")
			}
			enginetest.Run(t, enginetest.Setup{
				New: func(t testing.TB, dir string) engine.Engine {
					e := newEngine(t, dir)
					dress(e)
					return e
				},
				Images: im, Kill: kill, Isolates: true, Survives: true,
				Only: []string{
					"Life", "Pause", "CloseOfPaused", "CloseWhilePausing", "SweepOfPaused", "PausedInLaterProcess", "PausedDiesWithParent",
					"RecoverDead", "NothingLeaks", "WriteRoot", "WriteRootWhenCallerDies", "WriteRootOfClosed",
				},
			})
		})
	}
}

// create makes an instance that is closed with the test.
func create(t testing.TB, e engine.Engine, im enginetest.Images, change func(*engine.Plan)) engine.Instance {
	t.Helper()
	p := enginetest.Plan(t, im)
	if change != nil {
		change(&p)
	}
	i, err := e.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return i
}

// answers proves that the agent is there.
func answers(t testing.TB, i engine.Instance) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := enginetest.Echo(ctx, i, "hello"); err != nil {
		t.Errorf("the agent does not answer: %v", err)
	}
}

// TestPauseCutShort: a daemon died in the middle of a call to the sentry. Whether
// the call was made or not, the instance lives and goes on.
func TestPauseCutShort(t *testing.T) {
	usable(t)
	im := enginetest.BuildImages(t, t.TempDir())
	for _, phase := range []string{"pausing", "resuming", ""} {
		for _, paused := range []bool{false, true} {
			if phase == "" && paused {
				continue // never: the note comes first
			}
			for _, next := range []string{"pause", "resume"} {
				name := phase + " and running, then " + next
				if paused {
					name = phase + " and paused, then " + next
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					e := newEngine(t, t.TempDir()).WithoutCgroups()
					var p engine.Plan
					i := create(t, e, im, func(plan *engine.Plan) { p = *plan })
					if paused {
						if err := i.(engine.Pauser).Pause(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					if err := os.WriteFile(filepath.Join(p.Dir, "paused"), []byte(phase), 0o600); err != nil {
						t.Fatal(err)
					}
					r, err := e.Recover(t.Context(), i.State())
					if err != nil {
						t.Fatal(err)
					}
					if next == "pause" {
						if err := r.(engine.Pauser).Pause(t.Context()); err != nil {
							t.Fatal(err)
						}
						if _, err := r.Dial(t.Context()); err == nil {
							t.Error("a paused instance was dialled")
						}
					}
					if err := r.(engine.Pauser).Resume(t.Context()); err != nil {
						t.Fatal(err)
					}
					answers(t, r)
				})
			}
		}
	}
}

// edit changes one field of a state, or removes it.
func edit(t testing.TB, state []byte, fields map[string]any) []byte {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(state, &m); err != nil {
		t.Fatal(err)
	}
	for name, value := range fields {
		if value == nil {
			delete(m, name)
		} else {
			m[name] = value
		}
	}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
