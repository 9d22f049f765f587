package bridge

import (
	"errors"
	"net/url"
	"slices"
	"strings"
)

var (
	errTarget  = errors.New("the target of the request is not a path")
	errDots    = errors.New("the path has a segment that another path could be meant by")
	errEscaped = errors.New("the path has an encoded slash or an empty segment")
)

// pathOf takes the path out of the target of a request, as it was sent and decoded.
// A confined one must not be able to mean anything above it, to whoever decodes it
// once more or takes parameters off.
func pathOf(target string, confined bool) (raw, decoded string, err error) {
	raw, _, _ = strings.Cut(target, "?")
	if !strings.HasPrefix(target, "/") || strings.ContainsFunc(target, forbidden) || strings.Contains(raw, "#") {
		return "", "", errTarget
	}
	if decoded, err = url.PathUnescape(raw); err != nil || strings.ContainsFunc(decoded, unspeakable) {
		return "", "", errTarget
	}
	twice, err := url.PathUnescape(decoded)
	if err != nil {
		twice = decoded // a lone percent sign
	}
	if dotted(decoded) || dotted(twice) {
		return "", "", errDots
	}
	if confined && (strings.Contains(decoded, "//") || strings.Count(decoded, "/") != strings.Count(raw, "/")) {
		return "", "", errEscaped
	}
	return raw, decoded, nil
}

// forbidden is true for what no target of a request holds.
func forbidden(c rune) bool { return c <= ' ' || c == 0x7f || c == '\\' }

// unspeakable is true for what no decoded path may hold.
func unspeakable(c rune) bool { return c < ' ' || c == 0x7f || c == '\\' }

// dotted is true where a segment is "." or "..", parameters or not.
func dotted(p string) bool {
	for seg := range strings.FieldsFuncSeq(p, func(c rune) bool { return c == '/' || c == '\\' }) {
		name, _, _ := strings.Cut(seg, ";")
		if name == "." || name == ".." {
			return true
		}
	}
	return false
}

// allowed says whether a decoded path is one of those; none allow all.
func allowed(paths []string, p string) bool {
	return len(paths) == 0 || slices.ContainsFunc(paths, func(pattern string) bool {
		if below, ok := strings.CutSuffix(pattern, "/*"); ok {
			return strings.HasPrefix(p, below+"/")
		}
		return p == pattern
	})
}
