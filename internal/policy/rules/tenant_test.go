package rules_test

import (
	"errors"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// TestCheckSuspended: a tenant's own limit goes before the limit of all, and without one there is a default.
func TestCheckSuspended(t *testing.T) {
	small, none := rules.Size(10), rules.Size(0)
	own := map[string]rules.TenantRule{"own": {MaxSuspendedBytes: &small}, "default": {MaxSuspendedBytes: &none}, "other": {}}
	for name, c := range map[string]struct {
		rules  rules.Rules
		tenant string
		bytes  int64
		rule   string
	}{
		"no rule":             {rules.Rules{}, "t", 128 << 30, ""},
		"over the default":    {rules.Rules{}, "t", 128<<30 + 1, "max_suspended_bytes_per_tenant"},
		"at the limit":        {rules.Rules{MaxSuspendedBytesPerTenant: 10}, "t", 10, ""},
		"over the limit":      {rules.Rules{MaxSuspendedBytesPerTenant: 10}, "t", 11, "max_suspended_bytes_per_tenant"},
		"over its own":        {rules.Rules{Tenants: own}, "own", 11, "tenants.own.max_suspended_bytes"},
		"its own is larger":   {rules.Rules{MaxSuspendedBytesPerTenant: 5, Tenants: own}, "own", 10, ""},
		"its own is default":  {rules.Rules{MaxSuspendedBytesPerTenant: 5, Tenants: own}, "default", 128 << 30, ""},
		"a tenant without it": {rules.Rules{MaxSuspendedBytesPerTenant: 5, Tenants: own}, "other", 6, "max_suspended_bytes_per_tenant"},
	} {
		err := c.rules.CheckSuspended(c.tenant, c.bytes)
		e, refused := errors.AsType[*api.Error](err)
		if refused != (c.rule != "") || refused && (e.Rule != c.rule || e.Code != api.CodeTooMany) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
