package rules

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// DigestRule is a rule on the digest that a name leads to.
type DigestRule struct{ Digest, Rule string }

// PullOf returns the image that DecidePull will judge.
func (r Rules) PullOf(ref string) string {
	n, err := ParseImage(ref)
	if err != nil {
		return ""
	}
	n, _ = r.Unalias(n)
	return n.Text
}

// ImageName is a reference in the form that policy compares: "host", a digest alone, or a reference
// with defaults filled in.
type ImageName struct {
	// text is the name as it was written.
	Text string
	// digest is set for a digest alone.
	Digest string
	// ref is set for all but "host" and a digest alone.
	Ref api.ImageRef
}

// ParseImage parses the name of an image in a rule or a request.
func ParseImage(s string) (ImageName, *api.Error) {
	n := ImageName{Text: s}
	switch {
	case s == api.DefaultImage:
		return n, nil
	case api.ValidDigest(s):
		n.Digest = s
		return n, nil
	}
	ref, err := api.ParseImageRef(s)
	if e, ok := errors.AsType[*api.Error](err); ok && errors.Is(err, api.ErrHostImage) {
		return n, e
	}
	if err != nil {
		return n, api.Invalid("image", "image %s is not a reference", Quote(s)).
			WithHint("write %q or a reference such as \"debian:12\" or \"registry.example/team/name@sha256:…\", of at most %d characters", api.DefaultImage, maxImageName)
	}
	n.Ref = ref
	return n, nil
}

// Canonical returns the same text for the same image.
func (n ImageName) Canonical() string {
	if n.Ref.Repository == "" {
		return n.Text
	}
	return n.Ref.String()
}

// IsHost reports whether the name is the host image.
func (n ImageName) IsHost() bool { return n.Text == api.DefaultImage && n.Ref.Repository == "" }

// Unalias resolves the operator's alias for n, if there is one, and returns its rule. An alias does
// not lead to another alias.
func (r Rules) Unalias(n ImageName) (ImageName, string) {
	if n.Ref.Repository == "" {
		return n, ""
	}
	for _, from := range slices.Sorted(maps.Keys(r.ImageAliases)) {
		key, err := ParseImage(from)
		if err != nil || key.Canonical() != n.Canonical() {
			continue
		}
		to, err := ParseImage(r.ImageAliases[from])
		if err != nil {
			continue // ParseRules allows none
		}
		return to, KeyAt("image_aliases", from)
	}
	return n, ""
}

// KeyAt is the path of an element of a map, such as tenants["acme"].
func KeyAt(list, key string) string { return list + "[" + Quote(key) + "]" }

// Pin returns the digest that the operator requires for a name, if there is one.
func (r Rules) Pin(n ImageName) (pin DigestRule) {
	for _, key := range slices.Sorted(maps.Keys(r.ImagePins)) {
		if k, err := ParseImage(key); err == nil && k.Ref.Registry == n.Ref.Registry && k.Ref.Repository == n.Ref.Repository && k.Ref.Tag == n.Ref.Tag {
			pin = DigestRule{r.ImagePins[key], KeyAt("image_pins", key)}
		}
	}
	return pin
}

// Registry returns the rule on one registry.
func (r Rules) Registry(host string) (key string, rule RegistryRule, ok bool) {
	for _, key := range slices.Sorted(maps.Keys(r.Registries)) {
		if RegistryName(key) == host {
			return key, r.Registries[key], true
		}
	}
	return "", RegistryRule{}, false
}

// RegistryName returns the host of a registry in the form of references, or "" if it is invalid.
func RegistryName(s string) string {
	ref, err := api.ParseImageRef(s + "/x")
	if err != nil || ref.Repository != "x" && ref.Repository != "library/x" || !strings.ContainsAny(s, ".:") && s != "localhost" {
		return ""
	}
	return ref.Registry
}

// RegistryRule says how one registry is reached.
type RegistryRule struct {
	// Mirrors are tried before the registry itself: "host[:port][/prefix]".
	Mirrors []string `yaml:"mirrors"`
	// Insecure allows plain HTTP and unknown certificates.
	Insecure bool `yaml:"insecure"`
	// Blocked forbids pulls from it.
	Blocked bool `yaml:"blocked"`
}

// ImageStoreRule limits the disk space of images.
type ImageStoreRule struct {
	// Max is enforced by removing unused images, least recently used first. Nil is no limit.
	Max *Size `yaml:"max"`
}

// Mirrors returns the mirrors of every registry, by its name in references.
func (r Rules) Mirrors() map[string][]string {
	out := map[string][]string{}
	for key, rule := range r.Registries {
		if host := RegistryName(key); host != "" && len(rule.Mirrors) > 0 {
			out[host] = slices.Clone(rule.Mirrors)
		}
	}
	return out
}

// InsecureRegistries returns the registries that may use plain HTTP.
func (r Rules) InsecureRegistries() []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(r.Registries)) {
		if host := RegistryName(key); host != "" && r.Registries[key].Insecure {
			out = append(out, host)
		}
	}
	return out
}

// ImageStoreMax returns how many bytes images can use. False is no limit.
func (r Rules) ImageStoreMax() (int64, bool) {
	if r.ImageStore.Max == nil {
		return 0, false
	}
	return int64(*r.ImageStore.Max), true
}

func ruleImages(r Rules, report Reporter) {
	for _, l := range []struct {
		key  string
		refs []string
	}{{"images", r.Images}, {"blocked_images", r.BlockedImages}} {
		for i, ref := range l.refs {
			// The text before the * can end where a reference cannot.
			if p, star := strings.CutSuffix(ref, "*"); star && (p == "" || validImage(p+"x")) {
				continue
			}
			if _, err := ParseImage(ref); err == nil {
				continue
			}
			report(api.Invalid(ElementAt(l.key, i), "%s %s is not a reference", ElementAt(l.key, i), Quote(ref)).
				WithHint("write a reference such as debian:12, or the beginning of one and a *"))
		}
	}
	ruleAliases(r, report)
	rulePins(r, report)
	ruleRegistries(r, report)
	if most := r.ImageStore.Max; most != nil && *most < 0 {
		report(api.Invalid("image_store.max", "image_store.max is negative").WithHint("write a size such as 20GiB, or leave it out for no bound"))
	}
}

// validImage checks the characters of a reference, or of its beginning.
func validImage(s string) bool {
	if s == "" || len(s) > maxImageName || !IsAlphanumeric(s[0]) || strings.Contains(s, "//") || strings.Contains(s, "..") {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !IsAlphanumeric(c) && !strings.ContainsRune("._-/:@", rune(c)) {
			return false
		}
	}
	return IsAlphanumeric(s[len(s)-1])
}

func ruleAliases(r Rules, report Reporter) {
	taken := map[string]string{}
	for _, from := range slices.Sorted(maps.Keys(r.ImageAliases)) {
		field := KeyAt("image_aliases", from)
		key, err := ParseImage(from)
		if err != nil || key.Ref.Repository == "" || key.Ref.Digest != "" {
			report(api.Invalid(field, "%s is not a name that can stand for another image", field).WithHint("write a reference such as python:3.11-slim"))
			continue
		}
		if other, dup := taken[key.Canonical()]; dup {
			report(api.Invalid(field, "%s and %s are the same image", Quote(other), Quote(from)).WithHint("keep one of them"))
		}
		taken[key.Canonical()] = from
		if _, err := ParseImage(r.ImageAliases[from]); err != nil {
			report(api.Invalid(field, "%s stands for %s, which is not a reference", field, Quote(r.ImageAliases[from])).
				WithHint("write %q or a reference such as debian:12", api.DefaultImage))
		}
	}
	for _, from := range slices.Sorted(maps.Keys(r.ImageAliases)) {
		to, err := ParseImage(r.ImageAliases[from])
		if other, chain := taken[to.Canonical()]; err == nil && chain {
			report(api.Invalid(KeyAt("image_aliases", from), "%s stands for %s, which is an alias itself", Quote(from), Quote(other)).
				WithHint("write what that one stands for: an alias is followed once"))
		}
	}
}

func rulePins(r Rules, report Reporter) {
	taken := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(r.ImagePins)) {
		field := KeyAt("image_pins", name)
		key, err := ParseImage(name)
		if err != nil || key.Ref.Repository == "" || key.Ref.Digest != "" {
			report(api.Invalid(field, "%s is not a name that can be pinned", field).WithHint("write a reference with a tag, such as python:3.11"))
			continue
		}
		if other, dup := taken[key.Canonical()]; dup {
			report(api.Invalid(field, "%s and %s are the same image", Quote(other), Quote(name)).WithHint("keep one of them"))
		}
		taken[key.Canonical()] = name
		if !api.ValidDigest(r.ImagePins[name]) {
			report(api.Invalid(field, "%s is %s, which is no digest", field, Quote(r.ImagePins[name])).WithHint(`write "sha256:" and 64 of 0-9a-f`))
		}
	}
}

func ruleRegistries(r Rules, report Reporter) {
	const hint = "write a host such as docker.io or registry.example:5000"
	for i, name := range r.OnlyRegistries {
		if RegistryName(name) == "" {
			report(api.Invalid(ElementAt("only_registries", i), "%s %s is no registry", ElementAt("only_registries", i), Quote(name)).WithHint(hint))
		}
	}
	taken := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(r.Registries)) {
		host := RegistryName(name)
		if host == "" {
			report(api.Invalid("registries", "registries has %s, which is no registry", Quote(name)).WithHint(hint))
			continue
		}
		if other, dup := taken[host]; dup {
			report(api.Invalid("registries", "%s and %s are the same registry", Quote(other), Quote(name)).WithHint("keep one of them"))
		}
		taken[host] = name
		for i, m := range r.Registries[name].Mirrors {
			mirror, _, _ := strings.Cut(m, "/")
			if _, err := api.ParseImageRef(strings.TrimSuffix(m, "/") + "/x"); err != nil || RegistryName(mirror) == "" {
				report(api.Invalid(ElementAt("registries."+Shorten(name)+".mirrors", i), "%s is no mirror", Quote(m)).
					WithHint("write a host, with a port and the beginning of a path where there are such: mirror.example:5000/hub"))
			}
		}
	}
}
