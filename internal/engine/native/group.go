//go:build linux

package native

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/hostrootfs"
)

// overhead is what the agent may take above the limit of memory.
const overhead = 48 << 20

// maxGroups is how many groups the agent can be told to put its processes into.
const maxGroups = 4

// groupLayout: on version 1 what the agent starts is in a group of its own, where the
// agent can report that a limit is reached. On version 2 the agent gets the
// instance's group and makes its own in it.
func groupLayout(name string) cgroup.Layout {
	return cgroup.Layout{
		Parent: "cloche-" + name, Controllers: []string{cgroup.Memory, cgroup.CPU, cgroup.Usage, cgroup.Pids}, Bare: true,
		Split: func(h cgroup.Hierarchy) bool {
			return h.Mount.Version == 1 && (h.Has(cgroup.Memory) || h.Has(cgroup.Pids))
		},
		Overhead: overhead,
	}
}

// findGroups looks which hierarchies are mounted and can be used, for the engine of that
// name: no other has its directory in them. A normal user has what was delegated to it.
// It asks systemd for nothing: the engine gvisor, which is made before, has done that.
func findGroups(root bool, name string) cgroup.Maker {
	return cgroup.Look(groupLayout(name), root)
}

// limitsPids reports whether the groups limit what the agent starts: on version 2 the
// agent does, in the group that it is given.
func limitsPids(m cgroup.Maker) bool {
	u := m.Unified()
	return m.Has(cgroup.Pids) && (u == nil || !u.Has(cgroup.Pids))
}

// enforcement says which limits can be enforced.
func (e *Engine) enforcement() map[string]api.Enforcement {
	out := e.groups.Enforcement()
	out["disk_bytes"] = api.Enforcement{OK: true}
	if e.countsByUser() {
		out["pids"] = api.Enforcement{OK: true}
	}
	return out
}

// countsByUser reports whether processes are limited by how many a sandbox's user namespace
// has, for want of a group: there is one user inside.
func (e *Engine) countsByUser() bool { return e.rootless && !e.groups.Has(cgroup.Pids) }

// handOver gives the group of version 2 to the sandbox's root: the agent makes one in it
// for each process. Nothing else inside can see it.
func handOver(g *cgroup.Group, who hostrootfs.IDs) error {
	dir := g.Unified()
	if dir == "" {
		return nil
	}
	for _, name := range []string{".", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
		if err := os.Lchown(filepath.Join(dir, name), int(who.UID), int(who.GID)); err != nil {
			return fmt.Errorf("give cgroup to the sandbox: %w", err)
		}
	}
	return nil
}
