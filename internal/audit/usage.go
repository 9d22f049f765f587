package audit

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// Usage sums what ended sandboxes used, by tenant and by the values of a label.
// sees chooses the records that count; nil is all.
func (l *Log) Usage(ctx context.Context, o api.AuditUsageOptions, sees func(api.AuditRecord) bool) (api.AuditUsage, error) {
	type key struct{ tenant, label string }
	sums := map[key]api.AuditUsageRow{}
	read := api.AuditOptions{Verb: VerbUsage, Since: o.Since, Until: o.Until, Tenant: o.Tenant}
	err := l.Read(ctx, read, sees, func(r api.AuditRecord, _ []byte) error {
		u := r.Usage
		if u == nil {
			return nil
		}
		k := key{tenant: r.Tenant}
		if o.Label != "" {
			k.label = u.Labels[o.Label]
		}
		row := sums[k]
		row.Tenant, row.Label = k.tenant, k.label
		row.Sandboxes++
		row.CPUSeconds += u.CPUSeconds
		row.GiBSeconds += u.GiBSeconds
		row.Seconds += u.Seconds
		row.BytesIn += u.BytesIn
		row.BytesOut += u.BytesOut
		if u.Partial {
			row.Partial++
		}
		sums[k] = row
		return nil
	})
	rows := slices.SortedFunc(maps.Values(sums), func(a, b api.AuditUsageRow) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Label, b.Label))
	})
	return api.AuditUsage{Rows: rows}, err
}
