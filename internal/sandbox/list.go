package sandbox

import (
	"cmp"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// List returns one page of the sandboxes that caller sees, newest first.
func (m *Manager) List(caller policy.Caller, o api.ListOptions) api.SandboxList {
	var infos []api.Sandbox
	for _, s := range m.all() {
		if info := s.observed(); policy.SeesSandbox(caller, info.Tenant, info.Profile) && chosen(info, o) {
			infos = append(infos, info)
		}
	}
	slices.SortFunc(infos, func(a, b api.Sandbox) int { return cmp.Compare(cursorOf(b), cursorOf(a)) })
	if o.Cursor != "" {
		infos = slices.DeleteFunc(infos, func(s api.Sandbox) bool { return cursorOf(s) >= o.Cursor })
	}
	page := api.SandboxList{Sandboxes: infos}
	if limit := cmp.Or(o.Limit, 100); len(infos) > limit {
		page.Sandboxes = infos[:limit]
		page.Next = cursorOf(infos[limit-1])
	}
	if page.Sandboxes == nil {
		page.Sandboxes = []api.Sandbox{}
	}
	return page
}

// cursorOf orders sandboxes by age, and by id within one instant.
func cursorOf(s api.Sandbox) string {
	return s.CreatedAt.UTC().Format("20060102T150405.000000000") + "." + s.ID
}

// chosen reports whether a sandbox is one that the options ask for.
func chosen(s api.Sandbox, o api.ListOptions) bool {
	if len(o.States) > 0 && !slices.Contains(o.States, s.State) {
		return false
	}
	for k, v := range o.Labels {
		if got, ok := s.Labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
