package enginetest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// testCreateErrors lets Create fail at each of its steps.
func testCreateErrors(s *suite) {
	garbage := filepath.Join(s.TempDir(), "garbage")
	if err := os.WriteFile(garbage, make([]byte, 64<<10), 0o600); err != nil {
		s.Fatal(err)
	}
	type testCase struct {
		name     string
		change   func(*engine.Plan)
		want     api.Code
		isolates bool
	}
	tests := []testCase{
		{"unsafe id", func(p *engine.Plan) { p.ID = "../x" }, api.CodeInternal, false},
		{"no size of tmpfs", func(p *engine.Plan) { p.Tmpfs[0].SizeBytes = 0 }, api.CodeInternal, true},
		{"no port", func(p *engine.Plan) { p.Agent.Port = 0 }, api.CodeInternal, false},
		{"no root image", func(p *engine.Plan) { p.Root.Image = "/nonexistent" }, api.CodeInternal, true},
		{"no agent image", func(p *engine.Plan) { p.Agent.Image = "/nonexistent" }, api.CodeInternal, true},
		{"broken root image", func(p *engine.Plan) { p.Root.Image = garbage }, api.CodeInternal, true},
		{"broken agent image", func(p *engine.Plan) { p.Agent.Image = garbage }, api.CodeInternal, true},
		{"no directory", func(p *engine.Plan) { p.Dir = "/nonexistent" }, api.CodeInternal, true},
		{"no mount source", func(p *engine.Plan) {
			p.Mounts = []engine.Mount{{Source: "/nonexistent", Target: "/srv/job"}}
		}, api.CodeInternal, true},
		{"half a link", func(p *engine.Plan) { p.Link = &engine.Link{} }, api.CodeInternal, true},
		{"no agent", func(p *engine.Plan) { p.Agent.Argv = []string{AgentTarget + "/nothing"} }, api.CodeInternal, true},
		{"agent complains", func(p *engine.Plan) { p.Agent.Argv = []string{Inside, "agent", "complain"} }, api.CodeInternal, false},
		{"agent ends at once", func(p *engine.Plan) { p.Agent.Argv = []string{Inside, "hostname"} }, api.CodeInternal, false},
	}
	if !s.engine.Probe(s.ctx).Enforces["egress"].OK {
		tests = append(tests, testCase{"a link that the engine cannot have", func(p *engine.Plan) { p.Link = s.makeLink() }, api.CodeUnsupported, true})
	}
	for _, test := range tests {
		if test.isolates && !s.Isolates {
			continue
		}
		s.Run(test.name, func(t *testing.T) {
			s := s.in(t)
			p := s.plan()
			test.change(&p)
			i, err := s.engine.Create(s.ctx, p)
			if err == nil {
				s.close(i)
				t.Fatal("create succeeded")
			}
			t.Log(err)
			s.code("create", err, test.want)
			s.nothingLeft(p)
		})
	}
	s.Run("silent agent", func(t *testing.T) {
		s := s.in(t)
		p := s.plan()
		p.Agent.Argv = []string{Inside, "agent", "silent"}
		ctx, cancel := context.WithTimeout(s.ctx, time.Second)
		defer cancel()
		_, err := s.engine.Create(ctx, p)
		s.code("create", err, api.CodeTimeout)
		s.nothingLeft(p)
	})
}

// in is the suite in a subtest.
func (s *suite) in(t *testing.T) *suite {
	c := *s
	c.T = t
	return &c
}

// testCreateCanceled takes the caller away at many moments of a create.
func testCreateCanceled(s *suite) {
	canceled := 0
	most, step := 120*time.Millisecond, 4*time.Millisecond
	if s.Slow { // a create takes long there
		most, step = 400*time.Millisecond, 40*time.Millisecond
	}
	began := time.Now()
	for after := time.Duration(0); after < most; after += step {
		if canceled > 0 && time.Since(began) > patience/2 {
			s.Logf("it is slow here: no caller went after %v or more", after)
			break
		}
		p := s.plan()
		ctx, cancel := context.WithCancel(s.ctx)
		timer := time.AfterFunc(after, cancel)
		i, err := s.engine.Create(ctx, p)
		timer.Stop()
		cancel()
		if err == nil {
			s.close(i)
		} else {
			canceled++
			s.code("create", err, api.CodeCanceled)
		}
		s.nothingLeft(p)
	}
	if canceled == 0 {
		s.Error("no create was canceled")
	}
}
