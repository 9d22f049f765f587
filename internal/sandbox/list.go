package sandbox

import (
	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/listing"
)

// List returns one page of the sandboxes that caller sees, newest first.
func (m *Manager) List(caller policy.Caller, o api.ListOptions) api.SandboxList {
	var infos []api.Sandbox
	for _, s := range m.all() {
		if info := s.observed(); policy.SeesSandbox(caller, info.Tenant, info.Profile) {
			infos = append(infos, info)
		}
	}
	return listing.Page(infos, o)
}
