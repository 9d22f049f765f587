package archive

import "strings"

// ImportPrefix begins the name of the directory in which an atomic import is put together. It is in the
// target itself, because that may be a mount.
const ImportPrefix = ".cloche-import-"

// IsImport reports whether a name at the top of a target is the name of such a directory.
func IsImport(name string) bool {
	rest, ok := strings.CutPrefix(name, ImportPrefix)
	return ok && len(rest) == 32
}
