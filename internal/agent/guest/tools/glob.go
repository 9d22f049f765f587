//go:build linux

package tools

import (
	"path"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

const (
	// maxAlternatives bounds what braces of a pattern stand for.
	maxAlternatives = 64
	maxGlobParts    = 64
)

// globPattern is a pattern for paths, read one name after the other.
type globPattern struct {
	// alternatives are what braces stand for, each the patterns of one name after the
	// other; "**" is any number of names.
	alternatives [][]string
}

// globState says for each alternative behind which of its parts a path can be.
type globState [][]int

// parseGlob reads a pattern of field.
func parseGlob(field, text string) (globPattern, error) {
	var g globPattern
	bad := func(why string) (globPattern, error) {
		return g, api.Invalid(field, "%s %.200q %s", field, text, why).WithHint(`such as "*.go", "src/**/*.{c,h}" or "**/test_[a-z]*.py"`)
	}
	switch {
	case text == "":
		return bad("is empty")
	case len(text) > api.MaxToolPattern:
		return bad("is too long")
	case strings.HasPrefix(text, "/"):
		return bad("begins with a slash, and patterns are relative to the path")
	case strings.IndexByte(text, 0) >= 0:
		return bad("holds a NUL byte")
	}
	all, ok := braces(text)
	if !ok {
		return bad("has braces that do not match, or that stand for too much")
	}
	for _, one := range all {
		var parts []string
		for _, part := range strings.Split(one, "/") {
			if part == "" || part == "." || part == "**" && len(parts) > 0 && parts[len(parts)-1] == "**" {
				continue
			}
			if _, err := path.Match(part, "x"); err != nil || part == ".." {
				return bad("is not a glob")
			}
			parts = append(parts, part)
		}
		if len(parts) == 0 || len(parts) > maxGlobParts {
			return bad("names nothing, or too much")
		}
		g.alternatives = append(g.alternatives, parts)
	}
	return g, nil
}

// braces writes out what "{a,b}" stands for.
func braces(text string) ([]string, bool) {
	open := strings.IndexByte(text, '{')
	if open < 0 {
		return []string{text}, !strings.Contains(text, "}")
	}
	depth, from := 0, open+1
	var options []string
	end := -1
	for i := open; i < len(text) && end < 0; i++ {
		switch text[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				options, end = append(options, text[from:i]), i
			}
		case ',':
			if depth == 1 {
				options, from = append(options, text[from:i]), i+1
			}
		}
	}
	if end < 0 || strings.Contains(text[:open], "}") {
		return nil, false
	}
	var out []string
	for _, o := range options {
		rest, ok := braces(text[:open] + o + text[end+1:])
		if out = append(out, rest...); !ok || len(out) > maxAlternatives {
			return nil, false
		}
	}
	return out, true
}

// start is the state of the directory that the pattern is relative to.
func (g globPattern) start() globState {
	s := make(globState, len(g.alternatives))
	for i, parts := range g.alternatives {
		s[i] = reach(parts, []int{0})
	}
	return s
}

// reach adds what "**" for no name at all leads to.
func reach(parts []string, at []int) []int {
	for i := 0; i < len(at); i++ {
		if p := at[i]; p < len(parts) && parts[p] == "**" && !slices.Contains(at, p+1) {
			at = append(at, p+1)
		}
	}
	return at
}

// step is the state of what has that name in a directory of state s.
func (g globPattern) step(s globState, name string) globState {
	next := make(globState, len(s))
	for i, parts := range g.alternatives {
		var at []int
		for _, p := range s[i] {
			if p == len(parts) {
				continue
			}
			to := p + 1
			if parts[p] == "**" {
				to = p
			} else if ok, _ := path.Match(parts[p], name); !ok {
				continue
			}
			if !slices.Contains(at, to) {
				at = append(at, to)
			}
		}
		next[i] = reach(parts, at)
	}
	return next
}

// matches says whether a path of that state is one that the pattern means.
func (g globPattern) matches(s globState) bool {
	for i, parts := range g.alternatives {
		if slices.Contains(s[i], len(parts)) {
			return true
		}
	}
	return false
}

// leads says whether something below a directory of that state may be.
func (g globPattern) leads(s globState) bool {
	for i, parts := range g.alternatives {
		if slices.ContainsFunc(s[i], func(p int) bool { return p < len(parts) }) {
			return true
		}
	}
	return false
}
