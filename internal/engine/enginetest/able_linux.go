package enginetest

import (
	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// testAbilities compares what the engine declares with what it does. The documentation of engines
// is generated from the declarations.
func testAbilities(s *suite) {
	able, ok := s.engine.(engine.Able)
	if !ok {
		s.Fatal("the engine does not say what it can do")
	}
	a, r := able.Abilities(), s.engine.Probe(s.ctx)
	if r.Tier != a.Tier {
		s.Errorf("it says tier %s, and its report %s", a.Tier, r.Tier)
	}
	if r.Enforces["egress"].OK && !a.Link {
		s.Error("it takes no link, and enforces egress")
	}
	i, _ := s.create(nil)
	_, pauses := i.(engine.Pauser)
	_, writes := i.(engine.RootWriter)
	_, refuses := i.(engine.Refuser)
	_, suspends := i.(engine.Suspender)
	for what, x := range map[string][2]bool{"pauses": {a.Pause, pauses}, "writes its root": {a.Layer, writes}, "tells of refusals": {a.Refusals, refuses}, "can be suspended": {a.Suspend, suspends}} {
		if x[0] != x[1] {
			s.Errorf("an instance that %s: it says %t, and it is %t", what, x[0], x[1])
		}
	}
	dir := s.TempDir()
	for what, x := range map[string]struct {
		says   bool
		change func(*engine.Plan)
	}{
		"rules on paths in a mount whose names are held": {a.Pinned, func(p *engine.Plan) {
			p.Mounts = []engine.Mount{{Source: dir, Target: "/srv/held", Pinned: true}}
			p.Rules = []engine.PathRule{{Target: "/srv/held", Path: "secret", Access: "none"}}
		}},
		"a root that begins with a layer": {a.Layer, func(p *engine.Plan) { p.Root.Upper = "/nonexistent" }},
	} {
		p := s.plan()
		x.change(&p)
		i, err := s.engine.Create(s.ctx, p)
		if err == nil {
			s.close(i)
		}
		if refused := api.CodeOf(err) == api.CodeUnsupported; refused == x.says {
			s.Errorf("%s: it says %t, and create says %v", what, x.says, err)
		}
		s.nothingLeft(p)
	}
}
