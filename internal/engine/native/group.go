//go:build linux

package native

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/hostgroup"
	"github.com/cloche-dev/cloche/internal/engine/hostkernel"
)

// overhead is what the agent may take above the limit of memory.
const overhead = 48 << 20

// maxGroups is how many groups the agent can be told to put its processes into.
const maxGroups = 4

// groupLayout: on version 1 what the agent starts is in a group of its own, where a
// limit that is reached leaves the agent room to say so. On version 2 the agent gets the
// instance's group and makes its own in it.
func groupLayout(name string) hostgroup.Layout {
	return hostgroup.Layout{
		Parent: "cloche-" + name, Controllers: []string{hostgroup.Memory, hostgroup.CPU, hostgroup.Usage, hostgroup.Pids}, Bare: true,
		Split: func(h hostgroup.Hierarchy) bool {
			return h.Mount.Version == 1 && (h.Has(hostgroup.Memory) || h.Has(hostgroup.Pids))
		},
		Overhead: overhead,
	}
}

// findGroups looks which hierarchies are mounted and can be used, for the engine of that
// name: no other has its directory in them. A normal user has what was delegated to it.
// Nobody is asked for more: the engine gvisor, which is made before, has done that.
func findGroups(root bool, name string) hostgroup.Maker {
	return hostgroup.Look(groupLayout(name), root)
}

// limitsPids reports whether the groups limit what the agent starts: on version 2 the
// agent does, in the group that it is given.
func limitsPids(m hostgroup.Maker) bool {
	u := m.Unified()
	return m.Has(hostgroup.Pids) && (u == nil || !u.Has(hostgroup.Pids))
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
func (e *Engine) countsByUser() bool { return e.rootless && !e.groups.Has(hostgroup.Pids) }

// handOver gives the group of version 2 to the sandbox's root: the agent makes one in it
// for each process. Nothing else inside can see it.
func handOver(g *hostgroup.Group, who hostkernel.IDs) error {
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
