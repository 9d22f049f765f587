package policy

import (
	"maps"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

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
		if host := registryName(key); host != "" && len(rule.Mirrors) > 0 {
			out[host] = slices.Clone(rule.Mirrors)
		}
	}
	return out
}

// InsecureRegistries returns the registries that may use plain HTTP.
func (r Rules) InsecureRegistries() []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(r.Registries)) {
		if host := registryName(key); host != "" && r.Registries[key].Insecure {
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

func ruleImages(r Rules, report reporter) {
	for _, l := range []struct {
		key  string
		refs []string
	}{{"images", r.Images}, {"blocked_images", r.BlockedImages}} {
		for i, ref := range l.refs {
			// The text before the * can end where a reference cannot.
			if p, star := strings.CutSuffix(ref, "*"); star && (p == "" || validImage(p+"x")) {
				continue
			}
			if _, err := parseImage(ref); err == nil {
				continue
			}
			report(api.Invalid(at(l.key, i), "%s %s is not a reference", at(l.key, i), show(ref)).
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
	if s == "" || len(s) > maxImageName || !alnum(s[0]) || strings.Contains(s, "//") || strings.Contains(s, "..") {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !alnum(c) && !strings.ContainsRune("._-/:@", rune(c)) {
			return false
		}
	}
	return alnum(s[len(s)-1])
}

func ruleAliases(r Rules, report reporter) {
	taken := map[string]string{}
	for _, from := range slices.Sorted(maps.Keys(r.ImageAliases)) {
		field := keyed("image_aliases", from)
		key, err := parseImage(from)
		if err != nil || key.ref.Repository == "" || key.ref.Digest != "" {
			report(api.Invalid(field, "%s is not a name that can stand for another image", field).WithHint("write a reference such as python:3.11-slim"))
			continue
		}
		if other, dup := taken[key.canonical()]; dup {
			report(api.Invalid(field, "%s and %s are the same image", show(other), show(from)).WithHint("keep one of them"))
		}
		taken[key.canonical()] = from
		if _, err := parseImage(r.ImageAliases[from]); err != nil {
			report(api.Invalid(field, "%s stands for %s, which is not a reference", field, show(r.ImageAliases[from])).
				WithHint("write %q or a reference such as debian:12", api.DefaultImage))
		}
	}
	for _, from := range slices.Sorted(maps.Keys(r.ImageAliases)) {
		to, err := parseImage(r.ImageAliases[from])
		if other, chain := taken[to.canonical()]; err == nil && chain {
			report(api.Invalid(keyed("image_aliases", from), "%s stands for %s, which is an alias itself", show(from), show(other)).
				WithHint("write what that one stands for: an alias is followed once"))
		}
	}
}

func rulePins(r Rules, report reporter) {
	taken := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(r.ImagePins)) {
		field := keyed("image_pins", name)
		key, err := parseImage(name)
		if err != nil || key.ref.Repository == "" || key.ref.Digest != "" {
			report(api.Invalid(field, "%s is not a name that can be pinned", field).WithHint("write a reference with a tag, such as python:3.11"))
			continue
		}
		if other, dup := taken[key.canonical()]; dup {
			report(api.Invalid(field, "%s and %s are the same image", show(other), show(name)).WithHint("keep one of them"))
		}
		taken[key.canonical()] = name
		if !api.ValidDigest(r.ImagePins[name]) {
			report(api.Invalid(field, "%s is %s, which is no digest", field, show(r.ImagePins[name])).WithHint(`write "sha256:" and 64 of 0-9a-f`))
		}
	}
}

func ruleRegistries(r Rules, report reporter) {
	const hint = "write a host such as docker.io or registry.example:5000"
	for i, name := range r.OnlyRegistries {
		if registryName(name) == "" {
			report(api.Invalid(at("only_registries", i), "%s %s is no registry", at("only_registries", i), show(name)).WithHint(hint))
		}
	}
	taken := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(r.Registries)) {
		host := registryName(name)
		if host == "" {
			report(api.Invalid("registries", "registries has %s, which is no registry", show(name)).WithHint(hint))
			continue
		}
		if other, dup := taken[host]; dup {
			report(api.Invalid("registries", "%s and %s are the same registry", show(other), show(name)).WithHint("keep one of them"))
		}
		taken[host] = name
		for i, m := range r.Registries[name].Mirrors {
			mirror, _, _ := strings.Cut(m, "/")
			if _, err := api.ParseImageRef(strings.TrimSuffix(m, "/") + "/x"); err != nil || registryName(mirror) == "" {
				report(api.Invalid(at("registries."+bounded(name)+".mirrors", i), "%s is no mirror", show(m)).
					WithHint("write a host, with a port and the beginning of a path where there are such: mirror.example:5000/hub"))
			}
		}
	}
}
