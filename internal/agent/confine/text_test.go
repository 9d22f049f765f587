//go:build linux && (amd64 || arm64)

package confine

import (
	"fmt"
	"slices"
	"strings"
)

// profileText is the profile as docs/native.md shows it. It depends on the architecture alone.
func profileText() string {
	var b strings.Builder
	list := func(title string, calls []named) {
		var names []string
		for _, c := range calls {
			names = append(names, c.name)
		}
		slices.Sort(names)
		line := title
		for _, n := range names {
			if len(line)+len(n) > 100 {
				fmt.Fprintln(&b, line)
				line = " "
			}
			line += " " + n
		}
		fmt.Fprintln(&b, line)
	}
	fmt.Fprintf(&b, "architecture: %s; calls of every other fail with ENOSYS\n", architecture)
	list("allowed:", slices.Concat(common[:], native[:]))
	list("no set-id bits in the mode of a file, otherwise EPERM; where the file is there already, root is given them by the agent in the sandbox's own root:", modeNames())
	for _, r := range rules(Threads{}, false)[:len(rules(Threads{}, false))-len(modes)-len(nativeModes)] {
		fmt.Fprintf(&b, "%s: %s\n", r.name, r.text)
	}
	list("refused with EPERM:", refusals[:])
	fmt.Fprintln(&b, "all others, clone3 and openat2 among them, whose arguments a filter cannot see: ENOSYS")
	return b.String()
}

func modeNames() (names []named) {
	for _, m := range slices.Concat(modes[:], nativeModes[:]) {
		names = append(names, m.named)
	}
	return names
}
