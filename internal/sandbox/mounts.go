package sandbox

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/pathrule"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// stageMounts stages the granted directories of the host, and puts what is to be
// mounted in an order in which nothing hides what the request put below it.
func (c *creation) stageMounts(context.Context) error {
	for _, host := range c.permit.Mounts() {
		if err := c.stage(host); err != nil {
			return err
		}
	}
	for i, host := range c.permit.Skills() {
		err := c.stage(host)
		if errors.Is(err, fs.ErrNotExist) {
			c.skipSkill(c.permit.Spec().Skills[i].Name)
		} else if err != nil {
			return err
		}
	}
	// The image's own come first, as they were.
	asked := c.plan.Mounts
	for len(asked) > 0 && asked[0].OfImage {
		asked = asked[1:]
	}
	slices.SortStableFunc(asked, func(a, b engine.Mount) int { return strings.Compare(a.Target, b.Target) })
	c.hold(asked)
	return c.checkPoints(asked)
}

// skipSkill leaves out a skill that was removed while the request was being decided. The order of
// the two was chance, and the sandbox may not need the skill. Nothing is created in its place.
func (c *creation) skipSkill(name string) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.info.Skills = slices.DeleteFunc(slices.Clone(c.s.info.Skills), func(u api.SkillUse) bool { return u.Name == name })
	c.s.info.Degraded = "the skill " + name + " was removed while the sandbox was being made, which goes on without"
	c.m.log.Warn("a skill has vanished", "sandbox", c.s.id, "skill", name)
}

// hold makes the engine bind the names of mounts with rules. Otherwise, a process on the host or in
// another sandbox could expose a hidden path by replacing it.
func (c *creation) hold(asked []engine.Mount) {
	spec := c.permit.Spec()
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
func (c *creation) checkPoints(sorted []engine.Mount) error {
	for i, m := range sorted {
		for _, above := range slices.Backward(sorted[:i]) {
			rel, ok := strings.CutPrefix(m.Target, above.Target+"/")
			if !ok {
				continue
			}
			err := workspace.FindDir(above.Source, rel)
			if err != nil && (above.ReadOnly || !errors.Is(err, fs.ErrNotExist)) {
				return api.Invalid(c.fieldOf(m.Target), "nothing can be mounted at %s: in what is mounted at %s there is no such directory", m.Target, above.Target).
					WithHint("make the directory, or mount it beside").WithCause(err)
			}
			break
		}
	}
	return nil
}

// fieldOf is the part of the request that says where a mount is.
func (c *creation) fieldOf(target string) string {
	for i, m := range c.permit.Mounts() {
		if m.Target == target {
			return "mounts[" + strconv.Itoa(i) + "].target"
		}
	}
	for i, m := range c.permit.Skills() {
		if m.Target == target {
			return "skills[" + strconv.Itoa(i) + "]"
		}
	}
	return "workspace.path"
}

// stage mounts a granted host directory into the staging directory, if it is
// still the one that policy judged, and makes it first where that is granted.
func (c *creation) stage(host policy.HostDir) error {
	real, ok := strings.CutSuffix(host.Real, host.Missing)
	if !ok {
		return api.Errorf(api.CodeInternal, "the directory to make is not part of its path")
	}
	if host.Missing != "" {
		real = path.Clean(real)
	}
	dir, err := workspace.OpenDir(real)
	if err != nil {
		return err
	}
	if dev, ino := dir.ID(); dev != host.Dev || ino != host.Ino {
		dir.Close()
		return api.Errorf(api.CodeDenied, "the directory %s was replaced while the request was being decided", host.Asked).
			WithHint("ask again")
	}
	if host.Missing != "" {
		above := dir
		var made *workspace.Made
		dir, made, err = above.MakeBelow(host.Missing, host.OwnerUID)
		above.Close()
		if err != nil {
			return err
		}
		c.made = append(c.made, made)
	}
	return c.stageDir(dir, host.Target, host.ReadOnly)
}

// keepMade lets go of the directories that were made on the host, and removes
// them again after a create that failed.
func (c *creation) keepMade(failed error) {
	for _, made := range slices.Backward(c.made) {
		if failed != nil {
			if err := made.Undo(); err != nil {
				c.m.log.Warn("a directory that was made for a mount is left", "sandbox", c.s.id, "error", err)
			}
		}
		made.Close()
	}
	c.made = nil
}

// restrict has the agent put the rules on paths in force. Nothing was started
// yet, and no file was written.
func (c *creation) restrict(ctx context.Context) error {
	rules := pathrule.Of(c.s.snapshot())
	if len(rules) == 0 {
		return nil
	}
	return c.client.Restrict(ctx, rules)
}
