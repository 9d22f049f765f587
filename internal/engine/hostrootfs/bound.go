//go:build linux

package hostrootfs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxTerminals is how many terminals a sandbox may have. The kernel has some 3,000 for the
// whole machine.
const MaxTerminals = 64

// share is the part that a sandbox may have of what its user has: 1 in so many.
const share = 4

// Setting is a file below /proc/sys and what is written to it.
type Setting struct{ Path, Value string }

// UserSettings bound what a user namespace takes of its maker's tables. They are for a
// sandbox with the daemon's own user: one with ids of its own has tables of its own.
func UserSettings() []Setting {
	var list []Setting
	for _, s := range []struct {
		set, from string
		least     int
	}{
		{"max_inotify_instances", "fs/inotify/max_user_instances", 16},
		{"max_inotify_watches", "fs/inotify/max_user_watches", 1024},
	} {
		b, err := os.ReadFile(filepath.Join("/proc/sys", s.from))
		if err != nil {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			continue
		}
		list = append(list, Setting{"/proc/sys/user/" + s.set, strconv.Itoa(max(n/share, min(n, s.least)))})
	}
	return list
}

// Limit is a limit of a process, which is its user's in a user namespace too.
type Limit struct {
	Kind int
	Most uint64
}

// UserLimits are for a sandbox with the daemon's own user: a part of what the daemon has
// of what the kernel counts by user.
func UserLimits() []Limit {
	var list []Limit
	for _, kind := range []int{unix.RLIMIT_SIGPENDING, unix.RLIMIT_MSGQUEUE} {
		var own unix.Rlimit
		if unix.Getrlimit(kind, &own) == nil && own.Cur != unix.RLIM_INFINITY {
			list = append(list, Limit{kind, own.Cur / share})
		}
	}
	return list
}
