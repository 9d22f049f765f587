package policy

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// applyLocks sets every locked field to the profile's value and reports what that changed. A field
// that the request did not set does not count as changed.
func applyLocks(d *decision) *api.Error {
	for _, field := range d.profile.locked {
		rule := ruleName(d.profile.name, "locked", field)
		switch field {
		case fieldNetwork:
			if a := d.spec.Network; a != "" && a != d.profile.network {
				d.adjust(field, bounded(a), d.profile.network, rule)
			}
			d.spec.Network = d.profile.network
		case fieldEgress:
			d.lockEgress(rule)
		case fieldImage:
			if d.spec.Image != d.profile.image {
				d.adjust(field, bounded(d.spec.Image), d.profile.image, rule)
			}
			d.spec.Image = d.profile.image
		case fieldReadOnlyRoot:
			d.lockBool(field, d.spec.ReadOnlyRoot, d.profile.readOnlyRoot, rule)
		case fieldWorkspaceReadOnly:
			d.lockBool(field, &d.spec.Workspace.ReadOnly, d.profile.workspaceReadOnly, rule)
		case fieldMountsReadOnly:
			for i := range d.spec.Mounts {
				d.lockBool(at("mounts", i)+".read_only", &d.spec.Mounts[i].ReadOnly, d.profile.mountsReadOnly, rule)
			}
		default:
			d.lockLimit(field, rule)
		}
	}
	return nil
}

func (d *decision) lockBool(field string, v *bool, want bool, rule string) {
	if *v != want {
		d.adjust(field, strconv.FormatBool(*v), strconv.FormatBool(want), rule)
		*v = want
	}
}

// lockEgress sets the profile's list. Restrictions of the request stay.
func (d *decision) lockEgress(rule string) {
	e := d.spec.Egress
	if e == nil {
		return
	}
	texts := []string{}
	for _, i := range d.profile.egress {
		texts = append(texts, i.String())
	}
	if e.Allow != nil && !slices.Equal(e.Allow, texts) {
		d.adjust("egress.allow", bounded(strings.Join(e.Allow, " ")), bounded(strings.Join(texts, " ")), rule)
	}
	if e.Ask {
		d.adjust("egress.ask", "true", "false", rule)
	}
	e.Allow, e.Ask = nil, false
}

// lockLimit removes the requested limit, so that the default is filled in.
func (d *decision) lockLimit(field, rule string) {
	for _, l := range limits() {
		if l.field != field {
			continue
		}
		b := d.bounds()
		asked, want := l.get(&b), l.get(&d.profile.defaults)
		if asked != 0 && asked != want {
			d.adjust(field, wire(asked), wire(want), rule)
		}
		l.set(&b, 0)
		d.setBounds(b)
	}
}
