package core

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"sync"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/policy"
)

// createKeyed is Create for a spec with an idempotency key. All requests with the key share one
// creation, and policy decides it for the first of them: they are all from one tenant.
func (s *Service) createKeyed(ctx context.Context, caller Caller, spec api.SandboxSpec, progress func(string)) (api.Sandbox, error) {
	d := audit.SpecDetails(spec)
	if err := policy.CheckKey(spec.IdempotencyKey); err != nil {
		return api.Sandbox{}, s.refused(ctx, caller, policy.VerbCreate, "", d, err)
	}
	digest, err := digestOf(spec)
	if err != nil {
		return api.Sandbox{}, err
	}
	// The first caller may leave while others wait. Its progress reports are then dropped.
	here := &listener{progress: progress, pull: PullProgress(ctx)}
	defer here.leave()
	sb, made, err := s.opts.Sandboxes.Keyed(ctx, caller, spec.IdempotencyKey, digest, func(ctx context.Context) (api.Sandbox, error) {
		return s.createOne(WithPullProgress(ctx, here.pulling), caller, spec, here.step)
	})
	if made {
		return sb, err // already recorded
	}
	d = maps.Clone(d)
	d["repeated"] = "true"
	return sb, s.done(ctx, caller, policy.VerbCreate, sb.ID, d, err)
}

// digestOf returns a digest that is equal for equal requests.
func digestOf(spec api.SandboxSpec) (string, error) {
	spec.IdempotencyKey = ""
	data, err := json.Marshal(spec)
	if err != nil {
		return "", api.Errorf(api.CodeInvalid, "encode the request: %w", err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// listener forwards the progress of a creation until its caller leaves.
type listener struct {
	mu       sync.Mutex
	progress func(string)
	pull     func(api.PullProgress)
}

func (l *listener) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress, l.pull = nil, nil
}

func (l *listener) step(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.progress != nil {
		l.progress(name)
	}
}

func (l *listener) pulling(p api.PullProgress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pull != nil {
		l.pull(p)
	}
}
