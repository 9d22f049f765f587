// Package mountorder puts the mounts of a sandbox in their order, and checks that each has a place.
package mountorder

import (
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// Arrange puts mounts, of which those of the image come first, in an order in which nothing hides what the request puts
// below it. It returns an error for a mount that has no place in the one above it.
func Arrange(mounts []engine.Mount, permit policy.Permit) error {
	// The image's own stay as they are.
	asked := mounts
	for len(asked) > 0 && asked[0].OfImage {
		asked = asked[1:]
	}
	slices.SortStableFunc(asked, func(a, b engine.Mount) int { return strings.Compare(a.Target, b.Target) })
	hold(asked, permit.Spec())
	return checkPoints(asked, permit)
}

// hold makes the engine bind the names of mounts with rules. Otherwise, a process on the host or in
// another sandbox could expose a hidden path by replacing it.
func hold(asked []engine.Mount, spec api.SandboxSpec) {
	ruled := map[string]bool{spec.Workspace.Path: len(spec.Workspace.Rules) > 0}
	for _, m := range spec.Mounts {
		ruled[m.Target] = len(m.Rules) > 0
	}
	for i := range asked {
		asked[i].Pinned = ruled[asked[i].Target]
	}
}

// checkPoints refuses a mount below another that has no directory for it: in one
// that is to be written the engine makes it.
func checkPoints(sorted []engine.Mount, permit policy.Permit) error {
	for i, m := range sorted {
		for _, above := range slices.Backward(sorted[:i]) {
			rel, ok := strings.CutPrefix(m.Target, above.Target+"/")
			if !ok {
				continue
			}
			err := workspace.FindDir(above.Source, rel)
			if err != nil && (above.ReadOnly || !errors.Is(err, fs.ErrNotExist)) {
				return api.Invalid(fieldOf(m.Target, permit), "nothing can be mounted at %s: in what is mounted at %s there is no such directory", m.Target, above.Target).
					WithHint("make the directory, or mount it beside").WithCause(err)
			}
			break
		}
	}
	return nil
}

// fieldOf is the part of the request that says where a mount is.
func fieldOf(target string, permit policy.Permit) string {
	for i, m := range permit.Mounts() {
		if m.Target == target {
			return "mounts[" + strconv.Itoa(i) + "].target"
		}
	}
	for i, m := range permit.Skills() {
		if m.Target == target {
			return "skills[" + strconv.Itoa(i) + "]"
		}
	}
	return "workspace.path"
}
