//go:build linux

package core_test

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// TestWhoReadsTheAudit: the operator all of it, a tenant that is granted it what it
// did itself, everybody else nothing, and every refusal is on record.
func TestWhoReadsTheAudit(t *testing.T) {
	rules, err := rules.ParseRules([]byte("audit: {tenants: [tcp]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	log, err := audit.Open(audit.Options{Home: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	s := core.New(core.Options{Rules: rules, Audit: log, Logger: slog.New(slog.DiscardHandler)})
	operator, tcp, other := core.InProcessCaller(0), core.TCPCaller(), core.UnixCaller(12345, 0)
	for _, tenant := range []string{operator.Tenant, tcp.Tenant, other.Tenant} {
		if err := log.Record(t.Context(), audit.Event{Tenant: tenant, Verb: "exec", Outcome: audit.Done}); err != nil {
			t.Fatal(err)
		}
		s.Used(api.Sandbox{ID: "sb-1", Tenant: tenant}, api.AuditUsed{CPUSeconds: 1})
	}
	read := func(c core.Caller, o api.AuditOptions) ([]string, error) {
		var tenants []string
		err := s.Audit(t.Context(), c, o, func(line []byte) error {
			_, text, _ := strings.Cut(string(line), `"tenant":"`)
			text, _, _ = strings.Cut(text, `"`)
			tenants = append(tenants, text)
			return nil
		})
		return tenants, err
	}
	all := []string{"", "local", "local", "tcp", "tcp", other.Tenant, other.Tenant}
	if got, err := read(operator, api.AuditOptions{}); err != nil || !slices.Equal(got, all) {
		t.Errorf("operator: %q, %v", got, err)
	}
	// Asking for another tenant's shows none of them either.
	for _, o := range []api.AuditOptions{{}, {Tenant: "tcp"}, {Tail: 2}} {
		if got, err := read(tcp, o); err != nil || !slices.Equal(got, []string{"tcp", "tcp"}) {
			t.Errorf("%+v: %q, %v", o, got, err)
		}
	}
	if got, err := read(tcp, api.AuditOptions{Tenant: "local"}); err != nil || len(got) != 0 {
		t.Errorf("%q, %v", got, err)
	}
	if u, err := s.AuditUsage(t.Context(), tcp, api.AuditUsageOptions{}); err != nil || len(u.Rows) != 1 || u.Rows[0].Tenant != "tcp" {
		t.Errorf("%+v, %v", u, err)
	}
	if u, err := s.AuditUsage(t.Context(), operator, api.AuditUsageOptions{}); err != nil || len(u.Rows) != 3 {
		t.Errorf("%+v, %v", u, err)
	}
	if got, err := read(other, api.AuditOptions{}); api.CodeOf(err) != api.CodeDenied || len(got) != 0 || !strings.Contains(err.Error(), "audit: {tenants: ["+other.Tenant+"]}") {
		t.Errorf("%q, %v", got, err)
	}
	for _, c := range []core.Caller{tcp, other} {
		if _, err := s.VerifyAudit(t.Context(), c, api.AuditVerifyOptions{}); api.CodeOf(err) != api.CodeDenied {
			t.Errorf("%s: %v", c.Tenant, err)
		}
	}
	if got, err := read(operator, api.AuditOptions{Outcome: "refused"}); err != nil || !slices.Equal(got, []string{other.Tenant, "tcp", other.Tenant}) {
		t.Errorf("refusals: %q, %v", got, err)
	}
	if r, err := s.VerifyAudit(t.Context(), operator, api.AuditVerifyOptions{}); err != nil || !r.OK {
		t.Errorf("%+v, %v", r, err)
	}
	for _, o := range []api.AuditOptions{{After: -1}, {Tail: -1}, {Limit: -1}, {Limit: 1, Follow: true}, {Verb: strings.Repeat("x", 300)}} {
		if _, err := read(operator, o); api.CodeOf(err) != api.CodeInvalid {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
