package policy

import (
	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/egress"
)

// checkSetupEgress decides the egress during setup, before the request's own egress takes effect.
// Both are judged before anything begins.
func checkSetupEgress(d *decision) *api.Error {
	if d.setup == nil {
		return nil
	}
	w := egress.Request{Tenant: d.caller.Tenant, Caller: d.caller.egress(), Profile: d.profile, Rules: d.rules, Because: d.because}
	first, err := w.Whole("setup.", *d.setup)
	if err != nil {
		return err
	}
	if first.Closed && d.egress == nil {
		return nil // there is never a link
	}
	if d.egress == nil {
		later := w.Closed()
		d.egress = &later
	}
	d.first = &first
	return nil
}
