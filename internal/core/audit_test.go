//go:build linux

package core_test

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/policy"
)

// TestWhoReadsTheAudit: the operator all of it, a tenant that is granted it what it
// did itself, everybody else nothing, and every refusal is on record.
func TestWhoReadsTheAudit(t *testing.T) {
	rules, err := policy.ParseRules([]byte("audit: {tenants: [tcp]}\n"))
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
		s.Used(cloche.Sandbox{ID: "sb-1", Tenant: tenant}, cloche.AuditUsed{CPUSeconds: 1})
	}
	read := func(c core.Caller, o cloche.AuditOptions) ([]string, error) {
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
	if got, err := read(operator, cloche.AuditOptions{}); err != nil || !slices.Equal(got, all) {
		t.Errorf("operator: %q, %v", got, err)
	}
	// Asking for another tenant's shows none of them either.
	for _, o := range []cloche.AuditOptions{{}, {Tenant: "tcp"}, {Tail: 2}} {
		if got, err := read(tcp, o); err != nil || !slices.Equal(got, []string{"tcp", "tcp"}) {
			t.Errorf("%+v: %q, %v", o, got, err)
		}
	}
	if got, err := read(tcp, cloche.AuditOptions{Tenant: "local"}); err != nil || len(got) != 0 {
		t.Errorf("%q, %v", got, err)
	}
	if u, err := s.AuditUsage(t.Context(), tcp, cloche.AuditUsageOptions{}); err != nil || len(u.Rows) != 1 || u.Rows[0].Tenant != "tcp" {
		t.Errorf("%+v, %v", u, err)
	}
	if u, err := s.AuditUsage(t.Context(), operator, cloche.AuditUsageOptions{}); err != nil || len(u.Rows) != 3 {
		t.Errorf("%+v, %v", u, err)
	}
	if got, err := read(other, cloche.AuditOptions{}); cloche.CodeOf(err) != cloche.CodeDenied || len(got) != 0 || !strings.Contains(err.Error(), "audit: {tenants: ["+other.Tenant+"]}") {
		t.Errorf("%q, %v", got, err)
	}
	for _, c := range []core.Caller{tcp, other} {
		if _, err := s.VerifyAudit(t.Context(), c, cloche.AuditVerifyOptions{}); cloche.CodeOf(err) != cloche.CodeDenied {
			t.Errorf("%s: %v", c.Tenant, err)
		}
	}
	if got, err := read(operator, cloche.AuditOptions{Outcome: "refused"}); err != nil || !slices.Equal(got, []string{other.Tenant, "tcp", other.Tenant}) {
		t.Errorf("refusals: %q, %v", got, err)
	}
	if r, err := s.VerifyAudit(t.Context(), operator, cloche.AuditVerifyOptions{}); err != nil || !r.OK {
		t.Errorf("%+v, %v", r, err)
	}
	for _, o := range []cloche.AuditOptions{{After: -1}, {Tail: -1}, {Limit: -1}, {Limit: 1, Follow: true}, {Verb: strings.Repeat("x", 300)}} {
		if _, err := read(operator, o); cloche.CodeOf(err) != cloche.CodeInvalid {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
