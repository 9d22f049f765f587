package sandbox

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/sandbox/mountorder"
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
	return mountorder.Arrange(c.plan.Mounts, c.permit)
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
