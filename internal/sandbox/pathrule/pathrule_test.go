package pathrule

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// Directories above a rule get a mount of their own where they could be moved.
func TestPinned(t *testing.T) {
	list := []api.PathRule{
		{Path: "a/b/secrets", Access: api.AccessNone}, {Path: "a/c", Access: api.AccessRead},
		{Path: "lib", Access: api.AccessRead}, {Path: "lib/x/out", Access: api.AccessWrite}, {Path: "lib/x/out/y/z", Access: api.AccessNone},
		{Path: "top", Access: api.AccessNone},
	}
	for readOnly, want := range map[bool][]string{
		false: {"0 a rw", "0 a/b rw", "0 a/b/secrets none", "1 a/c ro", "2 lib ro", "3 lib/x/out rw", "4 lib/x/out/y rw", "4 lib/x/out/y/z none", "5 top none"},
		true:  {"0 a/b/secrets none", "1 a/c ro", "2 lib ro", "3 lib/x/out rw", "4 lib/x/out/y/z none", "5 top none"},
	} {
		var got []string
		for _, r := range pinned(readOnly, list) {
			got = append(got, fmt.Sprint(r.of, " ", r.Path, " ", r.Access))
		}
		if !slices.Equal(got, want) {
			t.Errorf("read-only %v: %q, want %q", readOnly, got, want)
		}
	}
}
