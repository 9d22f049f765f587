package sandbox

import (
	"context"
	"errors"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/sandbox/pathrule"
	"github.com/cloche-dev/cloche/internal/secret"
)

// PathDenial is what a rule on a path refused to a program of a sandbox. It comes from
// inside and is bounded.
type PathDenial struct {
	// Rule is the rule's place in the request; empty when there is nothing to tell
	// but how many more there were.
	Rule   string
	Access api.PathAccess
	// Mount is where the rule's mount is seen, and Path is relative to it.
	Mount, Path string
	// Op is what was tried: "open", "rename".
	Op string
	// Program is what the program calls itself, and UID its user inside.
	Program string
	UID     uint32
	// Missed is how many before this one are not told.
	Missed int64
}

// refusalReader passes on what the engines of sandboxes refuse their programs.
type refusalReader struct{ m *Manager }

// attend starts what an instance needs for as long as it lives.
func (rf refusalReader) attend(s *live, inst engine.Instance) {
	rf.m.background(func() { rf.m.watch(s, inst) })
	told, ok := inst.(engine.Refuser)
	if !ok || rf.m.opts.Refused == nil {
		return
	}
	if rules := pathrule.Of(s.snapshot()); len(rules) > 0 {
		rf.m.background(func() { rf.hear(s, told, rules) })
	}
}

// hear passes on what the rules refuse, until the instance has ended.
func (rf refusalReader) hear(s *live, told engine.Refuser, rules []agent.Rule) {
	err := told.Refusals(rf.m.ctx, func(r engine.PathDenial) {
		out := PathDenial{Missed: r.Missed}
		if r.Rule >= 0 && r.Rule < len(rules) {
			by := rules[r.Rule]
			out.Rule, out.Access, out.Mount = by.Name, by.Access, string(by.Target)
			out.Op, out.Path, out.Program, out.UID = r.Op, r.Path, r.Program, r.UID
		}
		rf.m.opts.Refused(s.snapshot(), secret.In(rf.m.opts.Redact, out))
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		rf.m.log.Warn("what paths' rules refuse is not told any more", "sandbox", s.id, "error", err)
	}
}

// untold reports the number of unreported refusals of an instance that died while no daemon was
// running.
func (rf refusalReader) untold(s *live, err error) {
	if n, ok := errors.AsType[engine.Untold](err); ok && rf.m.opts.Refused != nil {
		rf.m.opts.Refused(s.info, PathDenial{Missed: int64(n)})
	}
}
