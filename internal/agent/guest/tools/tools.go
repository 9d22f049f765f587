//go:build linux

package tools

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/identity"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
	"github.com/cloche-dev/cloche/internal/agent/guest/session"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// Tools carries out the file tools of models.
type Tools struct {
	id    identity.Identity
	users *identity.Users
	rules *pathwalk.Restrictions
	slots chan struct{} // a slot for each tool at work
}

// New returns the file tools of a sandbox.
func New(id identity.Identity, users *identity.Users, rules *pathwalk.Restrictions) *Tools {
	return &Tools{id: id, users: users, rules: rules, slots: make(chan struct{}, maxTools)}
}

// maxTools bounds the file tools that work at once: each may hold a file in memory.
const maxTools = 4

// Do carries out a file tool of a model's.
func (ts *Tools) Do(p *session.Call, req *wire.Request) error {
	ctx, cancel := context.WithTimeout(p.Attend(nil), maxToolTime)
	defer cancel()
	select {
	case ts.slots <- struct{}{}:
	case <-ctx.Done():
		return api.Errorf(api.CodeNoCapacity, "%d file tools are at work in this sandbox, which is the limit", maxTools)
	}
	defer func() { <-ts.slots }()
	t := req.Tool
	if t == nil {
		t = &wire.Tool{}
	}
	var out any
	var at *api.ToolPlace
	var do func(*place) (any, error)
	switch {
	case t.Read != nil:
		at, do = &t.Read.ToolPlace, func(pl *place) (any, error) { return toolRead(ctx, pl, t.Read) }
	case t.Write != nil:
		at, do = &t.Write.ToolPlace, func(pl *place) (any, error) { return toolWrite(pl, t.Write) }
	case t.Edit != nil:
		at, do = &t.Edit.ToolPlace, func(pl *place) (any, error) { return toolEdit(pl, t.Edit) }
	case t.Glob != nil:
		at, do = &t.Glob.ToolPlace, func(pl *place) (any, error) { return toolGlob(ctx, pl, t.Glob) }
	case t.Grep != nil:
		at, do = &t.Grep.ToolPlace, func(pl *place) (any, error) { return toolGrep(ctx, pl, t.Grep) }
	default:
		return api.Invalid("tool", "the request names no tool")
	}
	pl, err := ts.toolPlace(*at, req.User)
	if err != nil {
		return ts.rules.Explain(at.Root, err)
	}
	defer pl.root.Close()
	if out, err = do(pl); err != nil {
		return ts.rules.Explain(pl.abs(), pl.fail(err))
	}
	return p.JSON(wire.KindReply, out)
}

func outside(name, root string) error {
	return api.Invalid("path", "%.500q is not below %.500q, or a symlink leads out of it", name, root).
		WithHint("name a path below the root, or another root")
}
