package rules

import (
	"cmp"

	"github.com/cloche-dev/cloche/api"
)

// usualSuspendedBytes is the default of max_suspended_bytes_per_tenant.
const usualSuspendedBytes = 128 << 30

// LimitFor returns a limit for all tenants, or one tenant's own, with its rule.
func LimitFor[T int | Size](r Rules, tenant string, all T, allKey, ownKey string, own func(TenantRule) *T) (T, string) {
	if t, ok := r.Tenants[tenant]; ok {
		if v := own(t); v != nil {
			return *v, "tenants." + tenant + "." + ownKey
		}
	}
	return all, allKey
}

// CheckSuspended returns an error if the saved memory and the saved roots of the sandboxes of a tenant may not have so many bytes.
func (r Rules) CheckSuspended(tenant string, bytes int64) error {
	n, rule := LimitFor(r, tenant, r.MaxSuspendedBytesPerTenant, "max_suspended_bytes_per_tenant", "max_suspended_bytes", func(t TenantRule) *Size { return t.MaxSuspendedBytes })
	most := int64(cmp.Or(n, usualSuspendedBytes))
	if bytes <= most {
		return nil
	}
	e := api.Errorf(api.CodeTooMany, "too much saved memory: the saved memory and roots of suspended and stopped sandboxes would have %d bytes, and %s is %d", bytes, rule, most).
		WithHint("remove suspended and stopped sandboxes, and try again")
	e.Rule = rule
	return e
}
