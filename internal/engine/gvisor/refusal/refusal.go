// Package refusal is what the engine and the guard of a sentry tell each other: the rules on paths that a sentry
// gets, and the notes of what they have refused.
package refusal

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

// At is the rule's absolute path.
func (r Rule) At() string { return path.Join(r.Target, r.Path) }

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
	// MaxProgram and MaxOp bound the names of a program and of an operation.
	MaxProgram = 16
	MaxOp      = 16
)

// ParseNote decodes a line.
func ParseNote(line []byte) (Note, error) {
	var n Note
	if err := json.Unmarshal(line, &n); err != nil {
		return Note{}, fmt.Errorf("decode note of a guard: %w", err)
	}
	if len(n.Path) > MaxPath || len(n.Program) > MaxProgram || len(n.Op) > MaxOp {
		return Note{}, fmt.Errorf("decode note of a guard: a field of it is too long")
	}
	return n, nil
}

// FlagName begins the argument that gives a sentry its guard: the numbers of three
// descriptors follow.
const FlagName = "--cloche-guard="

// Argument is the argument of a sentry that gives it a guard. rules holds Rules, as
// JSON; pipe is a FIFO, open for both and not blocking, for notes; count is a file
// of CountBytes, open for both.
func Argument(rules, pipe, count string) string {
	return FlagName + strings.Join([]string{rules, pipe, count}, ",")
}
