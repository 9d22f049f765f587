package bridge

import (
	"errors"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/internal/egress/rule"
)

var (
	errTarget  = errors.New("the target of the request is not a path")
	errDots    = errors.New("the path has a segment that another path could be meant by")
	errEscaped = errors.New("the path has an encoded slash, an empty segment, or what is encoded twice")
)

// pathOf takes the path out of the target of a request, as it was sent and decoded.
// A confined one must not be able to mean anything above it, to whoever decodes it
// once more or takes parameters off.
func pathOf(target string, confined bool) (raw, decoded string, err error) {
	raw, _, _ = strings.Cut(target, "?")
	if !strings.HasPrefix(target, "/") || strings.ContainsFunc(target, forbidden) || strings.Contains(raw, "#") {
		return "", "", errTarget
	}
	decoded, fault := rule.ReadPath(raw)
	switch {
	case fault == rule.PathMalformed:
		return "", "", errTarget
	case fault == rule.PathDots:
		return "", "", errDots
	case fault == rule.PathTwoWays && confined:
		return "", "", errEscaped
	}
	return raw, decoded, nil
}

// forbidden is true for what no target of a request holds.
func forbidden(c rune) bool { return c <= ' ' || c == 0x7f || c == '\\' }

// allowed says whether a decoded path is one of those; none allow all.
func allowed(paths []string, p string) bool {
	return len(paths) == 0 || slices.ContainsFunc(paths, func(pattern string) bool {
		if below, ok := strings.CutSuffix(pattern, "/*"); ok {
			return strings.HasPrefix(p, below+"/")
		}
		return p == pattern
	})
}
