//go:build linux

package sandbox_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
)

// mounted is a permit for a sandbox with directories of the host, each at /m and its number.
func (w *fixture) mounted(readOnly bool, dirs ...string) policy.Permit {
	w.t.Helper()
	spec := api.SandboxSpec{Name: "x"}
	facts := policy.Facts{Engines: []api.EngineReport{w.machine.Engine().Probe(w.t.Context())}, Home: w.dir, Dirs: map[string]policy.DirFact{}}
	for i, dir := range dirs {
		fi, err := os.Stat(dir)
		if err != nil {
			w.t.Fatal(err)
		}
		st := fi.Sys().(*syscall.Stat_t)
		facts.Dirs[dir] = policy.DirFact{Exists: true, Dir: true, Real: dir, OwnerUID: int(st.Uid), Dev: st.Dev, Ino: st.Ino}
		spec.Mounts = append(spec.Mounts, api.Mount{Source: dir, Target: fmt.Sprintf("/m%d", i), ReadOnly: readOnly})
	}
	p, err := policy.Decide(policy.Request{Spec: spec, Facts: facts}, operator, testRules)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// The engine is told of the sockets that it is to cover in writable directories of the
// host, in all of them together no more than it can cover, and the agent of its terms.
func TestSocketsInMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts are staged by root")
	}
	first, second := t.TempDir(), t.TempDir()
	for _, path := range []string{filepath.Join(first, "a.sock"), filepath.Join(second, "b.sock")} {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	for what, c := range map[string]struct {
		terms   *engine.Terms
		sockets [2][]string
	}{
		"no host":       {nil, [2][]string{}},
		"covers none":   {&engine.Terms{SingleUser: true, NoGroups: true}, [2][]string{}},
		"covers":        {&engine.Terms{CoversSockets: true, LimitsPids: true, CountsAgent: true}, [2][]string{{"a.sock"}, {"b.sock"}}},
		"keeps owners":  {&engine.Terms{CoversSockets: true, KeepsOwners: true}, [2][]string{{"a.sock"}, {"b.sock"}}},
		"limits no pid": {&engine.Terms{CountsAgent: true}, [2][]string{}},
	} {
		t.Run(what, func(t *testing.T) {
			w := newFixture(t)
			if c.terms != nil {
				w.machine.SetTerms(*c.terms)
			}
			m := w.manager(false)
			sb, err := m.Create(t.Context(), w.mounted(false, first, second), nil)
			if err != nil {
				t.Fatal(err)
			}
			plan := w.machine.Plans()[0]
			for i, want := range c.sockets {
				at := slices.IndexFunc(plan.Mounts, func(m engine.Mount) bool { return m.Target == fmt.Sprintf("/m%d", i) })
				if at < 0 || plan.Mounts[at].ReadOnly || !slices.Equal(plan.Mounts[at].Sockets, want) {
					t.Errorf("mounts are %+v, want the sockets %q", plan.Mounts, want)
				}
			}
			var told agent.Config
			if err := json.Unmarshal(plan.Agent.Config, &told); err != nil {
				t.Fatal(err)
			}
			terms, host := engine.Terms{SingleUser: os.Geteuid() != 0}, c.terms != nil
			if host {
				terms = *c.terms
			}
			if told.Confine != host || told.KernelGuardsInit != host || told.SingleUser != terms.SingleUser || told.NoCgroup != terms.NoGroups ||
				told.OwnThreads != (terms.LimitsPids && terms.CountsAgent) || (told.PidsMax == sb.Limits.Pids) == terms.LimitsPids {
				t.Errorf("the agent is told %+v", told)
			}
			if (plan.Agent.UID == 0) != host {
				t.Errorf("the agent is started as %d", plan.Agent.UID)
			}
			if err := m.Remove(t.Context(), operator, "x"); err != nil {
				t.Error(err)
			}
			w.nothingLeft(m)
		})
	}
}
