package archive

import (
	"slices"
	"strings"
)

// PathSet is a set of directories or files, each with all below it.
type PathSet []string

// NewPathSet returns the set of cleaned paths.
func NewPathSet[T ~string | ~[]byte](paths []T) PathSet {
	var s PathSet
	for _, p := range paths {
		s = append(s, string(p))
	}
	slices.Sort(s)
	return slices.Compact(s)
}

// Holds says whether p is in the set.
func (s PathSet) Holds(p string) bool {
	if len(s) == 0 {
		return false
	}
	for {
		if _, ok := slices.BinarySearch(s, p); ok {
			return true
		}
		i := strings.LastIndexByte(p, '/')
		if i < 0 {
			return false
		}
		p = p[:i]
	}
}

// Under says whether something in the set lies below p.
func (s PathSet) Under(p string) bool {
	i, _ := slices.BinarySearch(s, p+"/")
	return i < len(s) && strings.HasPrefix(s[i], p+"/")
}
