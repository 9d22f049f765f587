package policy

import (
	"github.com/cloche-dev/cloche/api"
)

// bounds returns the values of the request in its present state.
func (d *decision) bounds() bounds {
	return bounds{d.spec.Limits, d.spec.Workspace.SizeBytes, d.spec.Workspace.Inodes}
}

func (d *decision) setBounds(b bounds) {
	d.spec.Limits, d.spec.Workspace.SizeBytes, d.spec.Workspace.Inodes = b.Limits, b.WorkspaceBytes, b.WorkspaceInodes
}

// checkLimits validates the requested limits, compares them with the ceilings and fills in the
// defaults.
func checkLimits(d *decision) *api.Error {
	asked := d.bounds()
	granted := asked
	for _, l := range limits() {
		v := l.get(&asked)
		if err := l.check(l.field, v); err != nil {
			return err
		}
		if d.given(l.field) {
			continue
		}
		if v > 0 {
			fitted, adj, err := l.fit(&d.profile, l.field, v, false)
			if err != nil {
				return err
			}
			if adj != nil {
				d.adjusted = append(d.adjusted, *adj)
			}
			if l.get(&d.profile.ceilings) > 0 {
				d.because(l.field, d.profile.ceilingBy(l))
			}
			l.set(&granted, fitted)
			d.demanded[l.field] = true
			continue
		}
		if d.unbounded(l.field) {
			continue
		}
		l.set(&granted, l.get(&d.profile.defaults))
		if d.profile.ruled[l.field] != "" && l.get(&granted) > 0 {
			d.demanded[l.field] = true
		}
	}
	if err := fitMemory(&asked, &granted); err != nil {
		return err
	}
	if err := d.shareDisk(&asked, &granted); err != nil {
		return err
	}
	d.setBounds(granted)
	return nil
}

// fitMemory keeps the limits of in-memory storage below the memory limit. It lowers a default, so
// that filling the storage is an error in the sandbox and does not end it.
func fitMemory(asked, granted *bounds) *api.Error {
	memory := granted.MemoryBytes
	if memory == 0 {
		return nil
	}
	for _, part := range []struct {
		field     string
		asked, to *int64
	}{{fieldTmp, &asked.TmpBytes, &granted.TmpBytes}, {fieldShm, &asked.ShmBytes, &granted.ShmBytes}} {
		switch {
		case *part.asked == 0:
			*part.to = min(*part.to, memory/3&^(1<<16-1))
		case *part.to > memory:
			return api.Invalid(part.field, "%s is %s, and it is memory, of which the sandbox has %s", part.field, formatSize(float64(*part.to)), formatSize(float64(memory))).
				WithHint("ask for less, or for more in %s", fieldMemory)
		}
	}
	return nil
}

// checkEnforcement compares the limits with what the engine can enforce. A demanded limit must be
// enforced. A built-in default that cannot be is dropped and reported.
func checkEnforcement(d *decision) *api.Error {
	granted := d.bounds()
	for _, l := range limits() {
		v := l.get(&granted)
		if l.enforced == "" || v == 0 {
			continue
		}
		can := d.engine.Enforces[l.enforced]
		if can.OK || l.field == fieldDisk && *d.spec.ReadOnlyRoot {
			continue // a root without a layer has nothing to limit
		}
		reason := can.Reason
		switch {
		case !d.caller.Operator:
			// The reason may contain paths of the host.
			reason = "the operator sees why"
		case reason == "":
			reason = "the engine reports no support for it"
		}
		if d.demanded[l.field] {
			e := unsupported(l.field, "%s is %s, and engine %s cannot enforce that here: %s", l.field, l.format(v), d.engine.Name, reason)
			if rule := d.profile.ruled[l.field]; rule != "" {
				e.Rule = rule
				return e.WithHint("the operator's rule %s requires this limit; fix what is missing, or remove the rule", rule)
			}
			return e.WithHint("fix what is missing, or leave %s out and run without that limit", l.field)
		}
		l.set(&granted, 0)
		d.unenforced = append(d.unenforced, api.Unenforced{Field: l.field, Reason: reason})
	}
	d.setBounds(granted)
	return nil
}
