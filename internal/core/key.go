package core

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/key"
	"github.com/cloche-dev/cloche/internal/policy"
)

// CreateKey creates an API key. Only the answer contains its text.
func (s *Service) CreateKey(ctx context.Context, caller Caller, spec api.KeySpec) (api.NewKey, error) {
	d := details{"key_tenant": bound(spec.Tenant), "name": bound(spec.Name), "verbs": bound(strings.Join(spec.Verbs, " ")), "profiles": bound(strings.Join(spec.Profiles, " "))}
	permit, err := policy.DecideKey(spec, caller, s.rules())
	if err == nil && s.opts.Keys == nil {
		err = noKeys()
	}
	if err != nil {
		return api.NewKey{}, s.refused(ctx, caller, policy.VerbCreateKey, "", d, err)
	}
	if err := s.intend(ctx, caller, policy.VerbCreateKey, "", d); err != nil {
		return api.NewKey{}, err
	}
	granted := permit.Spec()
	k, text, err := s.opts.Keys.Create(key.Wish{
		Tenant: granted.Tenant, Name: granted.Name, Verbs: granted.Verbs, Profiles: granted.Profiles,
		Life: time.Duration(granted.ExpiresInMS) * time.Millisecond,
	})
	if err != nil {
		return api.NewKey{}, s.done(ctx, caller, policy.VerbCreateKey, "", d, err)
	}
	d["key"] = k.ID
	return api.NewKey{Key: k, Secret: text}, s.done(ctx, caller, policy.VerbCreateKey, "", d, nil)
}

// Keys lists every key on record, newest first.
func (s *Service) Keys(_ context.Context, caller Caller) (api.KeyList, error) {
	if err := policy.AuthorizeHost(caller, policy.VerbListKeys); err != nil {
		return api.KeyList{}, err
	}
	if s.opts.Keys == nil {
		return api.KeyList{}, noKeys()
	}
	return api.KeyList{Keys: s.opts.Keys.List()}, nil
}

// RevokeKey revokes a key at once. An audit log that cannot be written never delays a revocation.
func (s *Service) RevokeKey(ctx context.Context, caller Caller, id string) (api.Key, error) {
	d := details{"key": key.ClipID(id)}
	err := policy.AuthorizeHost(caller, policy.VerbRevokeKey)
	if err == nil && s.opts.Keys == nil {
		err = noKeys()
	}
	if err != nil {
		return api.Key{}, s.refused(ctx, caller, policy.VerbRevokeKey, "", d, err)
	}
	k, err := s.opts.Keys.Revoke(id)
	if _, said := errors.AsType[*api.Error](err); err != nil && !said {
		err = api.Errorf(api.CodeInternal, "the key %s is revoked for as long as this daemon runs, and that could not be written: %w", k.ID, err).
			WithHint("fix the home's disk, and revoke it again")
	}
	return k, s.done(context.WithoutCancel(ctx), caller, policy.VerbRevokeKey, "", d, err)
}

func noKeys() error {
	return api.Errorf(api.CodeUnavailable, "keys are kept by a daemon, and none runs").WithHint("start one with: cloche serve")
}
