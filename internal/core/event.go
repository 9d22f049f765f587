package core

import (
	"context"
	"errors"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Events calls fn with the events of sandboxes that the caller can see. With Follow it ends when
// ctx ends or fn returns an error.
func (s *Service) Events(ctx context.Context, caller Caller, o api.EventOptions, fn func(api.Event) error) error {
	if s.opts.Events == nil {
		return api.Errorf(api.CodeUnavailable, "events are kept by a daemon, and none runs").WithHint("start one with: cloche serve")
	}
	for _, k := range o.Kinds {
		if !slices.Contains(api.EventKinds(), k) {
			return api.Invalid("kind", "there is no event %.60q", string(k)).WithHint("such as %s", api.EventCreated)
		}
	}
	sees := func(e api.Event) bool { return policy.Sees(caller, e.Tenant) }
	if o.Sandbox != "" {
		if err := s.knows(ctx, caller, o.Sandbox, sees); err != nil {
			return err
		}
	}
	return s.opts.Events.Read(ctx, o, sees, fn)
}

// errKnown ends the search for an event.
var errKnown = errors.New("there is an event")

// knows refuses a name that no present sandbox has, and that no sandbox had while its events are
// kept.
func (s *Service) knows(ctx context.Context, caller Caller, ref string, sees func(api.Event) bool) error {
	_, missing := s.opts.Sandboxes.Get(caller, ref)
	if missing == nil {
		return nil
	}
	err := s.opts.Events.Read(ctx, api.EventOptions{Sandbox: ref}, sees, func(api.Event) error { return errKnown })
	switch {
	case errors.Is(err, errKnown):
		return nil
	case err != nil:
		return err
	}
	return missing
}

// publish sends a refusal to those who follow the events.
func (s *Service) publish(caller Caller, verb policy.Verb, sandbox, rule string, err error) {
	if s.opts.Events == nil {
		return
	}
	e := api.Event{Kind: api.EventRefused, Tenant: caller.Tenant, Sandbox: sandbox, Verb: string(verb), Rule: rule}
	if err != nil {
		e.Reason = err.Error()
	}
	s.opts.Events.Publish(e)
}
