package role

import (
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/refusal"
)

func testRules() rules {
	return rules{
		Targets: []string{"/", "/w", "/w/src/mounted", "/w/keys/mounted", "/w2"},
		Rules: []refusal.Rule{
			{Target: "/w", Path: "keys", Access: api.AccessNone}, {Target: "/w", Path: "src", Access: api.AccessRead}, {Target: "/w", Path: "src/out", Access: api.AccessWrite},
			{Target: "/w", Path: "src/out/not", Access: api.AccessRead}, {Target: "/w2", Path: "src", Access: api.AccessNone},
		},
	}
}

func TestCovering(t *testing.T) {
	for name, want := range map[string]int{
		"/w": -1, "/w/keys": 0, "/w/keys/a/b": 0, "/w/keysx": -1, "/w/key": -1, "/w/src": 1, "/w/src/a": 1, "/w/src/out": 2, "/w/src/out/a": 2,
		"/w/src/out/not/a": 3, "/w2/src/x": 4, "/": -1, "/elsewhere/w/keys": -1, "/w/srcx/out": -1,
		"/w/src/mounted": -1, "/w/src/mounted/x": -1, // another mount's
		"/w/keys/mounted/x": 0, // which is covered
	} {
		if got, ok := testRules().covering(name); got != want || ok != (want >= 0) {
			t.Errorf("%s: %d, %v, want %d", name, got, ok, want)
		}
	}
}

func TestBelow(t *testing.T) {
	for name, want := range map[string]int{"/w": 0, "/w/src": 1, "/w/src/out": 3, "/w/plain": -1, "/w/src/ou": -1, "/w2": 4} {
		if got, ok := testRules().below(name); got != want || ok != (want >= 0) {
			t.Errorf("%s: %d, %v, want %d", name, got, ok, want)
		}
	}
}
