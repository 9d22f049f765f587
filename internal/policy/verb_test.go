package policy_test

import (
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

func TestCallers(t *testing.T) {
	for name, c := range map[string]struct {
		got  policy.Caller
		want policy.Caller
	}{
		"own uid":     {policy.UnixCaller(1000, 1000), policy.Caller{Tenant: "local", Operator: true, UID: 1000, Via: "unix"}},
		"root peer":   {policy.UnixCaller(0, 1000), policy.Caller{Tenant: "uid-0", UID: 0, Via: "unix"}},
		"root daemon": {policy.UnixCaller(0, 0), policy.Caller{Tenant: "local", Operator: true, UID: 0, Via: "unix"}},
		"other uid":   {policy.UnixCaller(7, 0), policy.Caller{Tenant: "uid-7", UID: 7, Via: "unix"}},
		"unknown":     {policy.UnixCaller(-1, -1), policy.Caller{Tenant: "unknown", UID: -1, Via: "unix"}},
		"tcp":         {policy.TCPCaller(), policy.Caller{Tenant: "tcp", UID: -1, Via: "tcp"}},
		"in process":  {policy.InProcessCaller(5), policy.Caller{Tenant: "local", Operator: true, UID: 5, Via: "inprocess"}},
	} {
		if c.got != c.want {
			t.Errorf("%s: %+v, want %+v", name, c.got, c.want)
		}
	}
}

func TestTenantsSeeOnlyTheirOwn(t *testing.T) {
	for _, v := range []policy.Verb{policy.VerbGet, policy.VerbExec, policy.VerbKill, policy.VerbReadFile} {
		if err := policy.Authorize(tenant, v, "sb-1", "tcp", "agent"); err != nil {
			t.Error(err)
		}
		if err := policy.Authorize(operator, v, "sb-1", "tcp", "agent"); err != nil {
			t.Error(err)
		}
		err := policy.Authorize(tenant, v, "sb-1", "uid-secret", "agent")
		want{code: api.CodeNotFound}.check(t, err)
		if err.Error() != policy.NoSandbox("sb-1").Error() {
			t.Errorf("a foreign sandbox %q differs from a missing one %q", err, policy.NoSandbox("sb-1"))
		}
	}
	if policy.Sees(tenant, "local") || !policy.Sees(tenant, "tcp") || !policy.Sees(operator, "tcp") {
		t.Error("Sees differs from Authorize")
	}
	// A record without tenant belongs to no tenant.
	if err := policy.Authorize(policy.Caller{}, policy.VerbGet, "x", "", "agent"); err == nil {
		t.Error("a caller without tenant sees what has none")
	}
}

func TestDoctorIsForTheOperator(t *testing.T) {
	want{code: api.CodeDenied, rule: "operator_only"}.check(t, policy.AuthorizeHost(tenant, policy.VerbDoctor))
	for _, v := range []policy.Verb{policy.VerbStatus, policy.VerbImages, policy.VerbList} {
		if err := policy.AuthorizeHost(tenant, v); err != nil {
			t.Error(err)
		}
	}
	if err := policy.AuthorizeHost(operator, policy.VerbDoctor); err != nil {
		t.Error(err)
	}
}
