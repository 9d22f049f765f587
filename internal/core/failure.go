package core

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

const (
	// maxFailing is the maximum number of tenants whose errors are kept. The tenant whose newest
	// error is the oldest is dropped first.
	maxFailing = 1024
	// maxFailureText limits a message, and maxFailureID an ID from the caller, in bytes.
	maxFailureText = 2048
	maxFailureID   = 256
)

// failures keeps the newest errors of each tenant while the daemon runs. The audit log has all of
// them. The zero value is ready to use. It is safe for concurrent use.
type failures struct {
	mu    sync.Mutex
	rings map[string][]api.ErrorRecord // oldest first
}

func (f *failures) add(r api.ErrorRecord) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rings == nil {
		f.rings = map[string][]api.ErrorRecord{}
	}
	ring, known := f.rings[r.Tenant]
	if !known && len(f.rings) >= maxFailing {
		f.forget()
	}
	if len(ring) >= api.KeptErrors {
		ring = slices.Delete(ring, 0, len(ring)-api.KeptErrors+1)
	}
	f.rings[r.Tenant] = append(ring, r)
}

// forget drops the tenant without errors for the longest time. The caller holds f.mu.
func (f *failures) forget() {
	var oldest string
	var at time.Time
	for tenant, ring := range f.rings {
		if last := ring[len(ring)-1].Time; oldest == "" || last.Before(at) {
			oldest, at = tenant, last
		}
	}
	delete(f.rings, oldest)
}

// newest returns the errors of the tenants for which sees is true, newest first.
func (f *failures) newest(sees func(tenant string) bool, limit int) []api.ErrorRecord {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []api.ErrorRecord
	for tenant, ring := range f.rings {
		if sees(tenant) {
			out = append(out, ring...)
		}
	}
	slices.SortStableFunc(out, func(a, b api.ErrorRecord) int {
		return cmp.Or(b.Time.Compare(a.Time), cmp.Compare(a.Tenant, b.Tenant))
	})
	return out[:min(len(out), limit)]
}

func (f *failures) count(tenant string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.rings[tenant])
}

// remember keeps an error that the caller is about to get, in the form in which it gets it, and
// returns it. An error because the caller disconnected is not kept: the caller knows.
func (s *Service) remember(ctx context.Context, caller Caller, stage api.ErrorStage, sandbox string, asked api.Naming, err error) error {
	code := api.CodeOf(err)
	switch {
	case err == nil || code == api.CodeCanceled || errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded) && code == api.CodeInternal:
		code = api.CodeTimeout
	}
	message := err.Error()
	if code == api.CodeInternal && !caller.Operator {
		message = "the daemon met an internal error" // the cause may contain paths of the host
	}
	r := api.ErrorRecord{
		Time: time.Now().UTC(), Stage: stage, Code: code, Message: cutText(s.redact(message), maxFailureText),
		Tenant: caller.Tenant, Sandbox: sandbox,
	}
	r.RequestID, _ = ctx.Value(requestIDKey{}).(string)
	r.RequestID = cutText(r.RequestID, maxFailureID)
	if asked.Identity != nil {
		r.QueryID = cutText(asked.Identity.QueryID, maxFailureID)
	}
	s.failures.add(r)
	return err
}

// cutText truncates a text to at most n bytes of printable characters.
func cutText(s string, n int) string {
	if len(s) > n {
		s = s[:n] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// Errors returns the newest errors of creates, execs and process starts since the daemon started. A
// caller gets its own errors, and the operator gets those of any tenant.
func (s *Service) Errors(_ context.Context, caller Caller, o api.ErrorOptions) (api.ErrorList, error) {
	if o.Limit < 0 || o.Limit > maxPage {
		return api.ErrorList{}, api.Invalid("limit", "%d errors were asked for", o.Limit).WithHint("0 to %d", maxPage)
	}
	return api.ErrorList{Errors: s.failures.newest(func(tenant string) bool {
		return policy.Sees(caller, tenant) && (o.Tenant == "" || o.Tenant == tenant)
	}, cmp.Or(o.Limit, api.KeptErrors))}, nil
}
