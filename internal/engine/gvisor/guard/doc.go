// Package guard is what a sentry does beyond gVisor's own for what is covered by
// mounts, and for rules on paths.
//
// In every sentry it keeps the mounts of the sandbox's first mount namespace as they
// are: a program in a user namespace of its own cannot take them away, mount on them,
// or use what is below them as a layer of an overlay. It makes these calls itself,
// with what it has resolved once.
//
// In a sentry with rules it also answers EACCES where a rule is the reason, and says
// so to the engine. This part enforces nothing, with one exception (extended
// attributes, where gVisor does not ask whether a mount is read-only). A rule is a
// mount in the sentry's file system, and that refuses, with the errors that mounts
// have: EROFS, EXDEV, EBUSY. The guard stands behind the system calls that take a
// path, looks at those that failed, and asks the same file system what the path was.
// What a program can win by changing a path in that moment is another error number
// and a misleading line.
package guard

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// Rules are what a guard is told.
type Rules struct {
	// Targets are where something is mounted.
	Targets []string `json:"targets"`
	Rules   []Rule   `json:"rules"`
}

// Rule is the access to what is at and below Path in the mount at Target. Its
// number is its place in the list.
type Rule struct {
	Target string         `json:"target"`
	Path   string         `json:"path"`
	Access api.PathAccess `json:"access"`
}

// at is the rule's absolute path.
func (r Rule) at() string { return path.Join(r.Target, r.Path) }

// Note is one line from a guard. Everything in it comes from inside a sandbox.
type Note struct {
	// Seq counts what was refused, told or not, from 1.
	Seq     uint64 `json:"seq"`
	Rule    int    `json:"rule"`
	Op      string `json:"op"`
	Path    []byte `json:"path"` // relative to the rule's mount
	Program []byte `json:"program"`
	UID     uint32 `json:"uid"`
}

const (
	// MaxLine bounds a note with its line feed: a pipe takes one of that size
	// whole or not at all.
	MaxLine = 4096
	// MaxPath is what is kept of a path.
	MaxPath = 1024
	// CountBytes is the size of the count: two numbers of 8 bytes, little-endian.
	// The first is how many refusals a guard has seen, the second is the
	// engine's own: how many of them it has told, or told the number of.
	CountBytes = 4096
)

// ParseNote decodes a line.
func ParseNote(line []byte) (Note, error) {
	var n Note
	if err := json.Unmarshal(line, &n); err != nil {
		return Note{}, fmt.Errorf("decode note of a guard: %w", err)
	}
	if len(n.Path) > MaxPath || len(n.Program) > maxProgram || len(n.Op) > maxOp {
		return Note{}, fmt.Errorf("decode note of a guard: a field of it is too long")
	}
	return n, nil
}

const (
	maxProgram = 16
	maxOp      = 16
)

// covering is the number of the rule that says what may be done at name: the
// longest of those that hold it.
func (r Rules) covering(name string) (int, bool) {
	found, longest := -1, -1
	for i, rule := range r.Rules {
		if at := rule.at(); within(name, at) && len(at) > longest {
			found, longest = i, len(at)
		}
	}
	if found >= 0 && r.Rules[found].Access != api.AccessNone {
		// What is mounted below the rule is a matter of its own.
		for _, t := range r.Targets {
			if len(t) > longest && within(name, t) {
				return -1, false
			}
		}
	}
	return found, found >= 0
}

// below is a rule on something in the directory name, or on name itself.
func (r Rules) below(name string) (int, bool) {
	found := -1
	for i, rule := range r.Rules {
		if within(rule.at(), name) && (found < 0 || rule.Access != api.AccessWrite && r.Rules[found].Access == api.AccessWrite) {
			found = i
		}
	}
	return found, found >= 0
}

// within is true for dir and what is below it.
func within(name, dir string) bool {
	rest, ok := strings.CutPrefix(name, dir)
	return ok && (rest == "" || rest[0] == '/' || strings.HasSuffix(dir, "/"))
}
