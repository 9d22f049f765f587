package workspace

import (
	"os"
	"strconv"
	"strings"
)

// Mount is one line of /proc/self/mountinfo.
type Mount struct {
	ID int
	// Volume is the superblock, as "major:minor". All subvolumes of a btrfs have the same
	// one, unlike what stat(2) tells.
	Volume string
	// Root is the directory of the filesystem that is mounted, Point is where.
	Root, Point string
	// Type is the filesystem's, such as "ext4".
	Type string
}

// parseMounts reads a text in the form of /proc/self/mountinfo, in its order, which is
// the order of mounting. Lines of another form are left out.
func parseMounts(info string) []Mount {
	var mounts []Mount
	for line := range strings.Lines(info) {
		// The kernel escapes the space and the newline, and no other white space.
		fields := strings.Split(strings.TrimSuffix(line, "\n"), " ")
		if len(fields) < 5 {
			continue
		}
		id, err := strconv.Atoi(fields[0])
		if err != nil {
			continue
		}
		m := Mount{ID: id, Volume: fields[2], Root: unescapeMount(fields[3]), Point: unescapeMount(fields[4])}
		for i := 6; i+1 < len(fields); i++ {
			if fields[i] == "-" {
				m.Type = fields[i+1]
				break
			}
		}
		mounts = append(mounts, m)
	}
	return mounts
}

// unescapeMount undoes the kernel's \ooo for space, tab, newline and backslash.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && octal(s[i+1:i+4]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func octal(s string) bool {
	return s[0] >= '0' && s[0] <= '3' && s[1] >= '0' && s[1] <= '7' && s[2] >= '0' && s[2] <= '7'
}

// MountsBelow counts this process's mounts below a directory. Where there is no list of them, it is 0.
func MountsBelow(dir string) (n int) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return 0
	}
	for _, m := range parseMounts(string(info)) {
		if strings.HasPrefix(m.Point, dir+"/") {
			n++
		}
	}
	return n
}
