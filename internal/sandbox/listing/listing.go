// Package listing selects and orders the sandboxes of a list, and divides them into pages.
package listing

import (
	"cmp"
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// Page returns the page of the sandboxes that the options ask for, newest first. It changes the order of all.
func Page(all []api.Sandbox, o api.ListOptions) api.SandboxList {
	all = slices.DeleteFunc(all, func(s api.Sandbox) bool { return !chosen(s, o) || o.Cursor != "" && cursorOf(s) >= o.Cursor })
	slices.SortFunc(all, func(a, b api.Sandbox) int { return cmp.Compare(cursorOf(b), cursorOf(a)) })
	page := api.SandboxList{Sandboxes: all}
	if limit := cmp.Or(o.Limit, 100); len(all) > limit {
		page.Sandboxes = all[:limit]
		page.Next = cursorOf(all[limit-1])
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
