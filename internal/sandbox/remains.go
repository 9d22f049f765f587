package sandbox

import (
	"errors"
	"os"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/sandbox/remains"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// remains returns what is left of each kind of resource of a sandbox, in the order of the teardown.
// err is the error of the attempt, or nil.
func (m *Manager) remains(s *live, err error) []api.Resource {
	s.mu.Lock()
	inst, network, named := s.inst, s.network, s.info.Workspace.Name != "" && !s.detached
	s.mu.Unlock()
	var runs, group, disk, mounts int
	if inst != nil {
		runs, group = 1, 1
		if _, ok := errors.AsType[*engine.CloseError](err); ok && remains.Kind(err) != api.ResourceProcesses || remains.Closed(inst.Done()) {
			runs = 0 // it says what is left, in the order of Close
		}
	}
	if _, serr := os.Lstat(s.dir); serr == nil {
		disk, mounts = 1, workspace.MountsBelow(s.dir)
	}
	count := remains.Counts{
		api.ResourceListeners: s.endpoints.Len(), api.ResourceProcesses: runs, api.ResourceCgroup: group,
		api.ResourceMounts: mounts, api.ResourceDisk: disk,
	}
	if network != nil {
		count[api.ResourceNetwork] = 1
	}
	if named {
		count[api.ResourceLeases] = 1
	}
	return count.List(err)
}
