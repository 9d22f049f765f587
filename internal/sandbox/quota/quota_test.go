package quota

import (
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/workspace"
)

func TestRoomOfAWorkspace(t *testing.T) {
	s := &State{used: workspace.Bounds{SizeBytes: 30, Inodes: 3}, before: workspace.Space{FreeBytes: 1000, FreeInodes: 100}}
	for _, c := range []struct {
		limit        workspace.Bounds
		left         workspace.Space
		bytes, files int64
	}{
		{workspace.Bounds{}, workspace.Space{}, spaceRate, spaceFiles},
		{workspace.Bounds{SizeBytes: 100}, workspace.Space{FreeBytes: 990}, 60, spaceFiles},
		{workspace.Bounds{SizeBytes: 40}, workspace.Space{FreeBytes: 990}, 0, spaceFiles},
		{workspace.Bounds{Inodes: 10}, workspace.Space{FreeInodes: 95}, spaceRate, 2},
		{workspace.Bounds{SizeBytes: 100, Inodes: 10}, workspace.Space{FreeBytes: 1100, FreeInodes: 50}, 170, -43},
	} {
		if bytes, files := s.left(c.limit, c.left); bytes != c.bytes || files != c.files {
			t.Errorf("%+v with %+v left: %d bytes and %d files, want %d and %d", c.limit, c.left, bytes, files, c.bytes, c.files)
		}
	}
	for what, c := range map[string]struct {
		ws   api.Workspace
		disk int64
		want workspace.Bounds
	}{
		"watched":            {api.Workspace{Enforced: api.HeldByWatch, SizeBytes: 5, Inodes: 6}, 9, workspace.Bounds{SizeBytes: 5, Inodes: 6}},
		"measured":           {api.Workspace{Enforced: api.HeldByMeasure, SizeBytes: 5, Inodes: 6}, 9, workspace.Bounds{SizeBytes: 9}},
		"measured, larger":   {api.Workspace{Enforced: api.HeldByMeasure, SizeBytes: 50}, 9, workspace.Bounds{SizeBytes: 50}},
		"measured, no bound": {api.Workspace{Enforced: api.HeldByMeasure, SizeBytes: 50}, 0, workspace.Bounds{}},
	} {
		if got := BoundsOf(api.Sandbox{Workspace: c.ws, Limits: api.Limits{DiskBytes: c.disk}}); got != c.want {
			t.Errorf("%s: %+v, want %+v", what, got, c.want)
		}
	}
	for what, c := range map[string]struct {
		ws   api.Workspace
		want bool
	}{
		"watched": {api.Workspace{Enforced: api.HeldByWatch}, true}, "measured": {api.Workspace{Enforced: api.HeldByMeasure}, true},
		"by the kernel": {api.Workspace{Enforced: api.HeldByKernel}, false}, "named": {api.Workspace{Enforced: api.HeldByWatch, Name: "n"}, false},
		"of the host": {api.Workspace{Enforced: api.HeldByWatch, Dir: "/d"}, false}, "volume": {api.Workspace{Enforced: api.HeldByWatch, Volume: true}, false},
		"read-only": {api.Workspace{Enforced: api.HeldByWatch, ReadOnly: true}, false},
	} {
		if Watches(c.ws) != c.want {
			t.Errorf("%s is watched: %v", what, !c.want)
		}
	}
}
