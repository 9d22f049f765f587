package hostfile

import (
	"os"
	"path/filepath"
)

// HasNoFiles reports whether there is nothing below a directory except, at most, empty directories
// and a temporary file of this package.
func HasNoFiles(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if e.Type().IsRegular() && IsTemp(e.Name()) {
			continue
		}
		below, err := os.ReadDir(filepath.Join(dir, e.Name()))
		if err != nil || len(below) > 0 {
			return false
		}
	}
	return true
}
