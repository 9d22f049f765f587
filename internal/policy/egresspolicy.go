package policy

import (
	"github.com/cloche-dev/cloche/api"
)

// checkSetupEgress decides the egress during setup, before the request's own egress takes effect.
// Both are judged before anything begins.
func checkSetupEgress(d *decision) *api.Error {
	if d.setup == nil {
		return nil
	}
	w := egressWish{tenant: d.caller.Tenant, caller: d.caller.egress(), profile: d.profile, rules: d.rules, because: d.because}
	first, err := w.whole("setup.", *d.setup)
	if err != nil {
		return err
	}
	if first.Closed && d.egress == nil {
		return nil // there is never a link
	}
	if d.egress == nil {
		later := w.closed()
		d.egress = &later
	}
	d.first = &first
	return nil
}
