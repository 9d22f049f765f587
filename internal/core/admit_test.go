//go:build linux

package core_test

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// TestRatesHold: a tenant gets its burst and then its rate, whatever others do, and
// the time that it is told to wait is the one after which it gets the next.
func TestRatesHold(t *testing.T) {
	h := &fixture{dir: t.TempDir()}
	rules := rules.Rules{Rate: &rules.RateRule{Requests: 2, Burst: 5}, Tenants: map[string]rules.TenantRule{"slow": {Rate: &rules.RateRule{Requests: 1, Per: rules.Duration(time.Minute)}}}}
	synctest.Test(t, func(t *testing.T) {
		logger := slog.New(slog.DiscardHandler)
		log, err := audit.Open(audit.Options{Home: h.dir, Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		h.Service = core.New(core.Options{Rules: rules, Audit: log, Logger: logger})
		ask := func(c core.Caller) *api.Error {
			if err := h.Admit(t.Context(), c, policy.VerbStatus); err != nil {
				return errorOf(t, err)
			}
			return nil
		}
		fast, slow := core.Caller{Tenant: "fast", UID: -1}, core.Caller{Tenant: "slow", UID: -1}
		for i := range 5 {
			if e := ask(fast); e != nil {
				t.Fatalf("request %d of the burst: %v", i, e)
			}
		}
		e := ask(fast)
		if e == nil || e.Code != api.CodeTooMany || e.Rule != "rate" || !e.Retryable || e.RetryAfterMS != 500 {
			t.Fatalf("%+v", e)
		}
		if e := ask(slow); e != nil {
			t.Errorf("another tenant: %v", e)
		}
		if e := ask(slow); e == nil || e.Rule != "tenants.slow.rate" || e.RetryAfterMS != 60_000 {
			t.Errorf("%+v", e)
		}
		if e := ask(core.Caller{Tenant: policy.LocalTenant, Operator: true}); e != nil {
			t.Errorf("the operator: %v", e)
		}
		time.Sleep(e.RetryAfter())
		if e := ask(fast); e != nil {
			t.Errorf("after the wait: %v", e)
		}
		granted := 0
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			if ask(fast) == nil {
				granted++
			}
		}
		if granted < 19 || granted > 21 {
			t.Errorf("%d requests were granted in 10 s", granted)
		}
	})
	if n := h.count(t, `"rule":"rate"`); n == 0 || n > 25 {
		t.Errorf("%d records of refusals: one for each run of them", n)
	}
}
