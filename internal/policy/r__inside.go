package policy

import (
	"path"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// Limits of what a request puts into the sandbox.
const (
	maxPath = 4095
)

// within reports whether p is dir or below it. Both are clean and absolute, so /a contains /a/b and
// not /ab.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir) && p[len(dir)] == '/'
}

// cleanAbs checks one path of a request and returns it clean. It refuses an element "..", because
// its meaning depends on symlinks.
func cleanAbs(field, p string) (string, *api.Error) {
	const hint = "write an absolute path such as \"/srv/data\", without \"..\""
	switch {
	case p == "":
		return "", api.Invalid(field, "%s is empty", field).WithHint(hint)
	case len(p) > maxPath:
		return "", api.Invalid(field, "%s is a path of %d bytes", field, len(p)).WithHint("at most %d", maxPath)
	case strings.ContainsRune(p, 0):
		return "", api.Invalid(field, "%s %s holds a NUL byte", field, show(p)).WithHint(hint)
	case windowsPath(p):
		return "", api.Invalid(field, "%s %s is a path of Windows, and sandboxes run on Linux", field, show(p)).
			WithHint("write it as the machine of the daemon knows it, such as \"/srv/data\" or \"/mnt/c/data\"")
	case !strings.HasPrefix(p, "/"):
		return "", api.Invalid(field, "%s %s is relative", field, show(p)).WithHint(hint)
	case slices.Contains(strings.Split(p, "/"), ".."):
		return "", api.Invalid(field, "%s %s has an element \"..\"", field, show(p)).WithHint(hint)
	}
	return path.Clean(p), nil
}

// windowsPath reports whether a path begins with a drive letter or is a UNC name.
func windowsPath(p string) bool {
	drive := len(p) >= 2 && p[1] == ':' && (p[0]|0x20) >= 'a' && (p[0]|0x20) <= 'z'
	return drive || strings.HasPrefix(p, `\\`)
}
