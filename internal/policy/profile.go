package policy

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func checkProfile(d *decision) *api.Error {
	p, ok := rules.ResolveProfile(d.spec.Profile, d.rules)
	if !ok {
		return rules.NoProfile(d.spec.Profile, d.rules)
	}
	d.profile = p
	d.because("profile", d.rules.ProfileBy(p.Name))
	d.spec.Profile = p.Name
	if d.spec.ReadOnlyRoot == nil {
		d.spec.ReadOnlyRoot = new(p.ReadOnlyRoot)
	}
	if d.spec.Workspace == nil {
		d.spec.Workspace = &api.Workspace{ReadOnly: p.WorkspaceReadOnly}
	}
	if d.spec.Image == "" {
		d.spec.Image = p.Image
	}
	return nil
}

// shadowedDefaults warns of defaults of a profile that a setting for all profiles overrides.
func shadowedDefaults(r rules.Rules, report rules.Reporter) {
	for _, name := range slices.Sorted(maps.Keys(r.Profiles)) {
		rule, field := r.Profiles[name], "profiles."+rules.Shorten(name)
		p, _ := rules.ResolveProfile(name, r)
		for _, l := range rules.Limits() {
			_, own := l.Ruled(&rule.Defaults)
			if _, all := l.Ruled(&r.Defaults.Limits); own && all && !p.Locks(l.Field) {
				report(rules.Warning(field+".defaults."+l.Key, "%s.defaults.%s changes nothing: defaults.limits.%s goes before it", field, l.Key, l.Key).
					WithHint("leave one of them out, or lock %s in the profile", l.Field))
			}
		}
		if rule.Image != "" && r.Defaults.Image != "" && !p.Locks(rules.FieldImage) {
			report(rules.Warning(field+".image", "%s.image changes nothing: defaults.image goes before it", field).WithHint("leave one of them out, or lock image in the profile"))
		}
	}
}

// applyLocks sets every locked field to the profile's value and reports what that changed. A field
// that the request did not set does not count as changed.
func applyLocks(d *decision) *api.Error {
	for _, field := range d.profile.Locked {
		rule := rules.KeyPath(d.profile.Name, "locked", field)
		switch field {
		case rules.FieldNetwork:
			if a := d.spec.Network; a != "" && a != d.profile.Network {
				d.adjust(field, rules.Shorten(a), d.profile.Network, rule)
			}
			d.spec.Network = d.profile.Network
		case rules.FieldEgress:
			d.lockEgress(rule)
		case rules.FieldImage:
			if d.spec.Image != d.profile.Image {
				d.adjust(field, rules.Shorten(d.spec.Image), d.profile.Image, rule)
			}
			d.spec.Image = d.profile.Image
		case rules.FieldReadOnlyRoot:
			d.lockBool(field, d.spec.ReadOnlyRoot, d.profile.ReadOnlyRoot, rule)
		case rules.FieldWorkspaceReadOnly:
			d.lockBool(field, &d.spec.Workspace.ReadOnly, d.profile.WorkspaceReadOnly, rule)
		case rules.FieldMountsReadOnly:
			for i := range d.spec.Mounts {
				d.lockBool(rules.ElementAt("mounts", i)+".read_only", &d.spec.Mounts[i].ReadOnly, d.profile.MountsReadOnly, rule)
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
	for _, i := range d.profile.Egress {
		texts = append(texts, i.String())
	}
	if e.Allow != nil && !slices.Equal(e.Allow, texts) {
		d.adjust("egress.allow", rules.Shorten(strings.Join(e.Allow, " ")), rules.Shorten(strings.Join(texts, " ")), rule)
	}
	if e.Ask {
		d.adjust("egress.ask", "true", "false", rule)
	}
	e.Allow, e.Ask = nil, false
}

// lockLimit removes the requested limit, so that the default is filled in.
func (d *decision) lockLimit(field, rule string) {
	for _, l := range rules.Limits() {
		if l.Field != field {
			continue
		}
		b := d.bounds()
		asked, want := l.Get(&b), l.Get(&d.profile.Defaults)
		if asked != 0 && asked != want {
			d.adjust(field, rules.FormatNumber(asked), rules.FormatNumber(want), rule)
		}
		l.Set(&b, 0)
		d.setBounds(b)
	}
}
