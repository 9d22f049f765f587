package policy

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
func (r DefaultRule) apply(p *profile) {
	for _, l := range limits() {
		if v, ok := l.ruled(&r.Limits); ok && !p.locks(l.field) {
			l.set(&p.defaults, v)
			p.ruled[l.field] = "defaults.limits." + l.key
		}
	}
	if r.Image != "" && !p.locks(fieldImage) {
		p.image = r.Image
	}
	if !p.locks(fieldReadOnlyRoot) {
		setBool(&p.readOnlyRoot, r.ReadOnlyRoot)
	}
}

// ruleDefaults checks the defaults of the policy file.
func ruleDefaults(r Rules, report reporter) {
	d := r.Defaults
	if d.Profile != "" {
		if _, ok := resolveProfile(d.Profile, r); !ok {
			e := noProfile(d.Profile, r)
			e.Field = "defaults.profile"
			report(e)
		}
	}
	if _, err := parseImage(d.Image); d.Image != "" && err != nil {
		report(api.Invalid("defaults.image", "image %s is not a reference", show(d.Image)).WithHint("write a reference such as debian:12"))
	}
	for _, l := range limits() {
		path := "defaults.limits." + l.key
		if v, ok := l.ruled(&d.Limits); ok {
			if err := checkRuled(l, path, v); err != nil {
				report(err)
			}
		}
	}
}
