package sandbox

import (
	"context"
	"errors"

	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/sandbox/pathrule"
	"github.com/cloche-dev/cloche/internal/secret"
)

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
		rf.m.opts.Refused(s.snapshot(), secret.In(rf.m.opts.Redact, pathrule.DenialOf(r, rules)))
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		rf.m.log.Warn("what paths' rules refuse is not told any more", "sandbox", s.id, "error", err)
	}
}

// untold reports the number of unreported refusals of an instance that died while no daemon was
// running.
func (rf refusalReader) untold(s *live, err error) {
	if n, ok := errors.AsType[engine.Untold](err); ok && rf.m.opts.Refused != nil {
		rf.m.opts.Refused(s.info, pathrule.Denial{Missed: int64(n)})
	}
}
