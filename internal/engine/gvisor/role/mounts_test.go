//go:build linux

package role

import (
	"testing"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// TestUnder: what is mounted on a file system is found by the tree of mounts, also
// where several are at one path.
func TestUnder(t *testing.T) {
	on := func(name string, id uint64) placed { return placed{name: name, id: id, on: true} }
	off := func(name string, id uint64) placed { return placed{name: name, id: id} }
	for what, c := range map[string]struct {
		all  []placed
		want bool
	}{
		"nothing is mounted on it":             {[]placed{off("/", 1), on("/m", 2), off("/n", 3)}, false},
		"something is":                         {[]placed{off("/", 1), on("/m", 2), off("/m/den", 3)}, true},
		"itself is":                            {[]placed{off("/", 1), on("/m", 2), on("/m/ro", 3)}, true},
		"only a name begins as its own":        {[]placed{off("/", 1), on("/m", 2), off("/mm", 3)}, false},
		"another is between":                   {[]placed{off("/", 1), on("/m", 2), off("/m/den", 3), off("/m/den/x", 4)}, true},
		"it is on another":                     {[]placed{off("/", 1), off("/m", 2), on("/m/sub", 3)}, false},
		"another is at its path, later":        {[]placed{off("/", 1), on("/m", 2), off("/m", 3)}, true},
		"another is at its path, earlier":      {[]placed{off("/", 1), off("/m", 2), on("/m", 3)}, false},
		"something is on one of two at a path": {[]placed{off("/", 1), on("/m", 3), off("/m", 2), off("/m/x", 4)}, true},
		"it is the top":                        {[]placed{on("/", 1), off("/m", 2)}, true},
	} {
		if got := under(c.all); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// TestOwnCalls: each call that is made here is in gVisor's tables, and each of the
// tables has those by which something is mounted.
func TestOwnCalls(t *testing.T) {
	for _, table := range tables() {
		have := map[string]bool{}
		for _, sc := range table.Table {
			have[sc.Name] = true
		}
		for _, name := range []string{"mount", "fsopen", "renameat", "renameat2", "unlinkat"} {
			if !have[name] {
				t.Errorf("%v has no call %q", table.Arch, name)
			}
		}
		// A call that gVisor learns, and that could mount a file system, is judged first.
		for _, name := range []string{"fspick", "mount_setattr", "open_tree_attr", "statmount"} {
			for _, sc := range table.Table {
				if sc.Name == name && sc.SupportLevel != kernel.SupportUnimplemented {
					t.Errorf("%v supports %q now", table.Arch, name)
				}
			}
		}
	}
}
