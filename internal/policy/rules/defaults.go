package rules

import (
	"github.com/cloche-dev/cloche/api"
)

// DefaultRule has settings for the sandboxes of every profile. A request takes precedence over
// them, and they take precedence over the profile. If a profile locks a value, its own value always
// applies.
type DefaultRule struct {
	// Profile is the profile of requests that do not name one. Empty is "agent".
	Profile string `yaml:"profile"`
	// Image is the default image.
	Image string `yaml:"image"`
	// ReadOnlyRoot is the default of read_only_root.
	ReadOnlyRoot *bool `yaml:"read_only_root"`
	// Limits are the limits of a request that does not set them. A limit above a profile's
	// ceiling becomes that ceiling.
	Limits LimitRule `yaml:"limits"`
}

// apply sets the defaults of a profile to these settings.
func (r DefaultRule) apply(p *Profile) {
	for _, l := range Limits() {
		if v, ok := l.Ruled(&r.Limits); ok && !p.Locks(l.Field) {
			l.Set(&p.Defaults, v)
			p.Ruled[l.Field] = "defaults.limits." + l.Key
		}
	}
	if r.Image != "" && !p.Locks(FieldImage) {
		p.Image = r.Image
	}
	if !p.Locks(FieldReadOnlyRoot) {
		setBool(&p.ReadOnlyRoot, r.ReadOnlyRoot)
	}
}

// ruleDefaults checks the defaults of the policy file.
func ruleDefaults(r Rules, report Reporter) {
	d := r.Defaults
	if d.Profile != "" {
		if _, ok := ResolveProfile(d.Profile, r); !ok {
			e := NoProfile(d.Profile, r)
			e.Field = "defaults.profile"
			report(e)
		}
	}
	if _, err := ParseImage(d.Image); d.Image != "" && err != nil {
		report(api.Invalid("defaults.image", "image %s is not a reference", Quote(d.Image)).WithHint("write a reference such as debian:12"))
	}
	for _, l := range Limits() {
		path := "defaults.limits." + l.Key
		if v, ok := l.Ruled(&d.Limits); ok {
			if err := checkRuled(l, path, v); err != nil {
				report(err)
			}
		}
	}
}
