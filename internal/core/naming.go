package core

import (
	"context"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Info tells a caller what it may know of the daemon before it asks for anything.
func (s *Service) Info(_ context.Context, caller Caller) cloche.Info {
	info := policy.InfoOf(caller, s.rules())
	info.Version = s.opts.Version
	return info
}

// ResolveName tells which sandbox a request by who asks would be for, and whether
// it is there.
func (s *Service) ResolveName(ctx context.Context, caller Caller, asked cloche.Naming) (cloche.ResolvedName, error) {
	t, err := policy.DecideTarget(cloche.RefByNaming, asked, caller, s.rules())
	if err != nil {
		return cloche.ResolvedName{}, s.refused(ctx, caller, policy.VerbGet, "", nil, err)
	}
	out := cloche.ResolvedName{Name: t.Ref()}
	switch sb, err := s.opts.Sandboxes.Get(caller, t.Ref()); {
	case err == nil && t.Check(sb) == nil:
		out.Sandbox = sb.ID
	case err != nil && cloche.CodeOf(err) != cloche.CodeNotFound:
		return cloche.ResolvedName{}, err
	}
	return out, nil
}
