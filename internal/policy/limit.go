package policy

import (
	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// bounds returns the values of the request in its present state.
func (d *decision) bounds() rules.Bounds {
	return rules.Bounds{Limits: d.spec.Limits, WorkspaceBytes: d.spec.Workspace.SizeBytes, WorkspaceInodes: d.spec.Workspace.Inodes}
}

func (d *decision) setBounds(b rules.Bounds) {
	d.spec.Limits, d.spec.Workspace.SizeBytes, d.spec.Workspace.Inodes = b.Limits, b.WorkspaceBytes, b.WorkspaceInodes
}

// checkLimits validates the requested limits, compares them with the ceilings and fills in the
// defaults.
func checkLimits(d *decision) *api.Error {
	asked := d.bounds()
	granted := asked
	for _, l := range rules.Limits() {
		v := l.Get(&asked)
		if err := l.Check(l.Field, v); err != nil {
			return err
		}
		if d.given(l.Field) {
			continue
		}
		if v > 0 {
			fitted, adj, err := l.Fit(&d.profile, l.Field, v, false)
			if err != nil {
				return err
			}
			if adj != nil {
				d.adjusted = append(d.adjusted, *adj)
			}
			if l.Get(&d.profile.Ceilings) > 0 {
				d.because(l.Field, d.profile.CeilingBy(l))
			}
			l.Set(&granted, fitted)
			d.demanded[l.Field] = true
			continue
		}
		if d.unbounded(l.Field) {
			continue
		}
		l.Set(&granted, l.Get(&d.profile.Defaults))
		if d.profile.Ruled[l.Field] != "" && l.Get(&granted) > 0 {
			d.demanded[l.Field] = true
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
func fitMemory(asked, granted *rules.Bounds) *api.Error {
	memory := granted.MemoryBytes
	if memory == 0 {
		return nil
	}
	for _, part := range []struct {
		field     string
		asked, to *int64
	}{{rules.FieldTmp, &asked.TmpBytes, &granted.TmpBytes}, {rules.FieldShm, &asked.ShmBytes, &granted.ShmBytes}} {
		switch {
		case *part.asked == 0:
			*part.to = min(*part.to, memory/3&^(1<<16-1))
		case *part.to > memory:
			return api.Invalid(part.field, "%s is %s, and it is memory, of which the sandbox has %s", part.field, rules.FormatSize(float64(*part.to)), rules.FormatSize(float64(memory))).
				WithHint("ask for less, or for more in %s", rules.FieldMemory)
		}
	}
	return nil
}

// checkEnforcement compares the limits with what the engine can enforce. A demanded limit must be
// enforced. A built-in default that cannot be is dropped and reported.
func checkEnforcement(d *decision) *api.Error {
	granted := d.bounds()
	for _, l := range rules.Limits() {
		v := l.Get(&granted)
		if l.Enforced == "" || v == 0 {
			continue
		}
		can := d.engine.Enforces[l.Enforced]
		if can.OK || l.Field == rules.FieldDisk && *d.spec.ReadOnlyRoot {
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
		if d.demanded[l.Field] {
			e := unsupported(l.Field, "%s is %s, and engine %s cannot enforce that here: %s", l.Field, l.Format(v), d.engine.Name, reason)
			if rule := d.profile.Ruled[l.Field]; rule != "" {
				e.Rule = rule
				return e.WithHint("the operator's rule %s requires this limit; fix what is missing, or remove the rule", rule)
			}
			return e.WithHint("fix what is missing, or leave %s out and run without that limit", l.Field)
		}
		l.Set(&granted, 0)
		d.unenforced = append(d.unenforced, api.Unenforced{Field: l.Field, Reason: reason})
	}
	d.setBounds(granted)
	return nil
}
