package policy

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
)

// digestRule is a rule on the digest that a name leads to.
type digestRule struct{ digest, rule string }

// PullOf returns the image that DecidePull will judge.
func (r Rules) PullOf(ref string) string {
	n, err := parseImage(ref)
	if err != nil {
		return ""
	}
	n, _ = r.unalias(n)
	return n.text
}

// imageName is a reference in the form that policy compares: "host", a digest alone, or a reference
// with defaults filled in.
type imageName struct {
	// text is the name as it was written.
	text string
	// digest is set for a digest alone.
	digest string
	// ref is set for all but "host" and a digest alone.
	ref api.ImageRef
}

func parseImage(s string) (imageName, *api.Error) {
	n := imageName{text: s}
	switch {
	case s == api.DefaultImage:
		return n, nil
	case api.ValidDigest(s):
		n.digest = s
		return n, nil
	}
	ref, err := api.ParseImageRef(s)
	if e, ok := errors.AsType[*api.Error](err); ok && errors.Is(err, api.ErrHostImage) {
		return n, e
	}
	if err != nil {
		return n, api.Invalid("image", "image %s is not a reference", show(s)).
			WithHint("write %q or a reference such as \"debian:12\" or \"registry.example/team/name@sha256:…\", of at most %d characters", api.DefaultImage, maxImageName)
	}
	n.ref = ref
	return n, nil
}

// canonical returns the same text for the same image.
func (n imageName) canonical() string {
	if n.ref.Repository == "" {
		return n.text
	}
	return n.ref.String()
}

func (n imageName) isHost() bool { return n.text == api.DefaultImage && n.ref.Repository == "" }

// unalias resolves the operator's alias for n, if there is one, and returns its rule. An alias does
// not lead to another alias.
func (r Rules) unalias(n imageName) (imageName, string) {
	if n.ref.Repository == "" {
		return n, ""
	}
	for _, from := range slices.Sorted(maps.Keys(r.ImageAliases)) {
		key, err := parseImage(from)
		if err != nil || key.canonical() != n.canonical() {
			continue
		}
		to, err := parseImage(r.ImageAliases[from])
		if err != nil {
			continue // ParseRules allows none
		}
		return to, keyed("image_aliases", from)
	}
	return n, ""
}

func keyed(list, key string) string { return list + "[" + show(key) + "]" }

// pin returns the digest that the operator requires for a name, if there is one.
func (r Rules) pin(n imageName) (pin digestRule) {
	for _, key := range slices.Sorted(maps.Keys(r.ImagePins)) {
		if k, err := parseImage(key); err == nil && k.ref.Registry == n.ref.Registry && k.ref.Repository == n.ref.Repository && k.ref.Tag == n.ref.Tag {
			pin = digestRule{r.ImagePins[key], keyed("image_pins", key)}
		}
	}
	return pin
}

// registry returns the rule on one registry.
func (r Rules) registry(host string) (key string, rule RegistryRule, ok bool) {
	for _, key := range slices.Sorted(maps.Keys(r.Registries)) {
		if registryName(key) == host {
			return key, r.Registries[key], true
		}
	}
	return "", RegistryRule{}, false
}

// registryName returns the host of a registry in the form of references, or "" if it is invalid.
func registryName(s string) string {
	ref, err := api.ParseImageRef(s + "/x")
	if err != nil || ref.Repository != "x" && ref.Repository != "library/x" || !strings.ContainsAny(s, ".:") && s != "localhost" {
		return ""
	}
	return ref.Registry
}
