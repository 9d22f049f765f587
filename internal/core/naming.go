package core

import (
	"context"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Info returns what a caller can learn about the daemon before any other request.
func (s *Service) Info(_ context.Context, caller Caller) api.Info {
	info := policy.InfoOf(caller, s.rules())
	info.Version = s.opts.Version
	if s.opts.E2BURL != nil {
		info.E2BURL = s.opts.E2BURL()
	}
	return info
}

// ResolveName returns the sandbox that an identity selects, and whether it exists.
func (s *Service) ResolveName(ctx context.Context, caller Caller, asked api.Naming) (api.ResolvedName, error) {
	t, err := policy.DecideTarget(api.RefByNaming, asked, caller, s.rules())
	if err != nil {
		return api.ResolvedName{}, s.refused(ctx, caller, policy.VerbGet, "", nil, err)
	}
	out := api.ResolvedName{Name: t.Ref()}
	switch sb, err := s.opts.Sandboxes.Get(caller, t.Ref()); {
	case err == nil && t.Check(sb) == nil:
		out.Sandbox = sb.ID
	case err != nil && api.CodeOf(err) != api.CodeNotFound:
		return api.ResolvedName{}, err
	}
	return out, nil
}
