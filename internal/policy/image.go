package policy

import (
	"runtime"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// ImageFact is what is known locally about the image that a request names. The zero value is an
// image that is not stored.
type ImageFact struct {
	// Here is true if the image is stored and needs no registry.
	Here bool
	// Digest and Index are those of the stored image.
	Digest, Index string
	// Names are all names of the stored image. For a sandbox that starts from a snapshot they
	// include the name of the snapshot's image.
	Names []string
}

// ImageGrant is a granted image. Only Decide and DecidePull return a valid one. The zero value
// permits nothing.
type ImageGrant struct {
	// Ref is the image's name with aliases resolved.
	Ref string
	// Pull says whether it can be pulled. It is PullNever if policy forbids its registry.
	Pull api.PullPolicy
	// pin is the digest that it must have. blocked are digests that it must not have, each with
	// its rule.
	pin     rules.DigestRule
	blocked []rules.DigestRule
}

// digestLength is the length of a digest alone. Text that names one is not shorter.
const digestLength = len("sha256:") + 2*32

// Check judges the resolved image: digest is the manifest's, and index is the digest of the
// multi-platform index it came from, which may be empty. It is called before anything but the
// manifest is downloaded, and again before the image is used.
func (g ImageGrant) Check(digest, index string) error {
	if err := g.check(digest, index); err != nil {
		return err
	}
	return nil
}

func (g ImageGrant) check(digest, index string) *api.Error {
	is := func(want string) bool { return want == digest || index != "" && want == index }
	for _, b := range g.blocked {
		if is(b.Digest) {
			return rules.Denied(b.Rule, "image", "image %s is %s, which is blocked by the operator", rules.Quote(g.Ref), b.Digest).
				WithHint("choose another image; no other rule allows one that is listed in blocked_images")
		}
	}
	if g.pin.Digest == "" || is(g.pin.Digest) {
		return nil
	}
	return rules.Denied(g.pin.Rule, "image", "image %s is %s, and the operator wants it to be %s", rules.Quote(g.Ref), digest, g.pin.Digest).
		WithHint("where an older one is here, fetch it again with pull %q; where the name has moved on, the operator changes %s", api.PullAlways, g.pin.Rule)
}

// ImageOf returns the image that Decide will judge, so that the caller can look it up first. It is
// empty if Decide will refuse in any case.
func ImageOf(spec api.SandboxSpec, set rules.Rules) string {
	p, ok := rules.ResolveProfile(spec.Profile, set)
	if !ok {
		return ""
	}
	ref := spec.Image
	if ref == "" || p.Locks(rules.FieldImage) {
		ref = p.Image
	}
	return set.PullOf(ref)
}

// matchImage reports whether a pattern of the operator matches an image. "host" matches only the
// host image. A trailing * stands for the rest of a reference, in its short form or, if the pattern
// names the default registry, in its full form.
func matchImage(pattern string, n *rules.ImageName) bool {
	prefix, open := strings.CutSuffix(pattern, "*")
	switch {
	case n.Ref.Repository == "" && open:
		return strings.HasPrefix(n.Text, prefix)
	case n.Ref.Repository == "":
		return pattern == n.Text
	case !open:
		if !mayName(pattern, &n.Ref) {
			return false
		}
		p, err := rules.ParseImage(pattern)
		return err == nil && p.Canonical() == n.Canonical()
	}
	normal := normalPrefix(prefix)
	return mayBegin(normal, &n.Ref) &&
		slices.ContainsFunc(spellings(n.Ref, prefix), func(s string) bool { return strings.HasPrefix(s, normal) })
}

// mayName quickly excludes most patterns that are no spelling of a reference, because there can be
// thousands of rules.
func mayName(pattern string, ref *api.ImageRef) bool {
	short := strings.TrimPrefix(ref.Repository, "library/")
	return len(pattern) >= len(short) && strings.Contains(pattern, short)
}

// mayBegin quickly excludes most prefixes that no spelling of a reference has. Each spelling begins
// with the repository, with or without "library/" and the registry before it.
func mayBegin(prefix string, ref *api.ImageRef) bool {
	short := strings.TrimPrefix(ref.Repository, "library/")
	if agree(prefix, ref.Repository) || agree(prefix, short) {
		return true
	}
	rest, inside := strings.CutPrefix(prefix, ref.Registry)
	if !inside {
		return strings.HasPrefix(ref.Registry, prefix)
	}
	rest, inside = strings.CutPrefix(rest, "/")
	return rest == "" || inside && (agree(rest, ref.Repository) || agree(rest, short))
}

// agree reports whether one of the two is a prefix of the other.
func agree(a, b string) bool {
	n := min(len(a), len(b))
	return a[:n] == b[:n]
}

// spellings returns the spellings of a reference that a pattern beginning with prefix can mean.
func spellings(ref api.ImageRef, prefix string) []string {
	all := []string{ref.Familiar()}
	if ref.Registry != api.DefaultRegistry {
		return all
	}
	full := ref.String()
	rest := strings.TrimPrefix(full, api.DefaultRegistry+"/")
	short := strings.TrimPrefix(rest, "library/")
	if strings.HasPrefix(normalPrefix(prefix), api.DefaultRegistry) {
		all = append(all, full, api.DefaultRegistry+"/"+short)
	}
	if strings.HasPrefix(prefix, "library/") {
		all = append(all, rest)
	}
	return all
}

// normalPrefix writes the registry of a prefix in the form of references.
func normalPrefix(prefix string) string {
	written, rest, ok := strings.Cut(prefix, "/")
	if !ok {
		return prefix
	}
	host := strings.ToLower(written)
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		host = api.DefaultRegistry
	case written:
		return prefix
	}
	return host + "/" + rest
}

// blocks reports whether a pattern of blocked_images matches an image. A name with a digest can be
// the same image as any tag of its repository.
func blocks(pattern string, n *rules.ImageName) bool {
	if matchImage(pattern, n) {
		return true
	}
	if n.Ref.Digest == "" {
		return false
	}
	if !strings.HasSuffix(pattern, "*") && !mayName(pattern, &n.Ref) {
		return false
	}
	untagged := n.Ref
	untagged.Digest, untagged.Tag = "", ""
	prefix, open := strings.CutSuffix(pattern, "*")
	if !open {
		p, err := rules.ParseImage(pattern)
		return err == nil && p.Ref.Digest == "" && p.Ref.Registry == n.Ref.Registry && p.Ref.Repository == n.Ref.Repository
	}
	untagged.Tag = "x"
	return slices.ContainsFunc(spellings(untagged, prefix), func(s string) bool {
		name := strings.TrimSuffix(s, "x") // with the colon
		return strings.HasPrefix(name, normalPrefix(prefix)) || strings.HasPrefix(normalPrefix(prefix), name)
	})
}

// checkImage judges the reference. Whether the image is available is for the image store to find
// out.
func checkImage(d *decision) *api.Error {
	asked, err := rules.ParseImage(d.spec.Image)
	if err != nil {
		return err
	}
	switch d.spec.Pull {
	case "":
		d.spec.Pull = api.PullMissing
	case api.PullMissing, api.PullNever, api.PullAlways:
	default:
		return api.Invalid("pull", "pull %s is not known", rules.Quote(string(d.spec.Pull))).
			WithHint("write %q, %q or %q", api.PullMissing, api.PullNever, api.PullAlways)
	}
	n, rule := d.rules.Unalias(asked)
	if rule != "" {
		d.adjust("image", rules.Shorten(asked.Text), n.Text, rule)
		d.spec.Image = n.Text
	}
	j := imageJudge{caller: d.caller, rules: d.rules, fact: d.facts.Image, own: d.profile.Image}
	if d.image, err = j.judge(n, d.spec.Pull); err == nil {
		d.because("image", j.granted(n))
	}
	return err
}

// DecidePull grants the pull of an image to a caller, or returns why not. It grants only images
// that the caller could name in a create.
func DecidePull(req api.PullRequest, fact ImageFact, caller Caller, set rules.Rules) (ImageGrant, error) {
	asked, err := rules.ParseImage(req.Image)
	if err != nil {
		return ImageGrant{}, err
	}
	n, _ := set.Unalias(asked)
	if n.Ref.Repository == "" {
		return ImageGrant{}, api.Invalid("image", "image %s is not one that a registry has", rules.Quote(asked.Text)).
			WithHint(`name one such as "debian:12"`)
	}
	// An image under this name for another platform would break the creates of others.
	if own := "linux/" + runtime.GOARCH; !caller.Operator && req.Platform != "" && req.Platform != own {
		return ImageGrant{}, rules.Denied("operator_only", "platform", "only the operator may fetch an image for another platform than %s", own).
			WithHint("leave the platform out")
	}
	j := imageJudge{caller: caller, rules: set, fact: fact}
	grant, err := j.judge(n, api.PullAlways)
	if err != nil {
		return ImageGrant{}, err
	}
	return grant, nil
}

// SeesImage reports whether the caller can see a stored image with these names and this digest.
// Callers see only images that they could name in a create.
func SeesImage(caller Caller, set rules.Rules, digest string, names ...string) bool {
	if caller.Operator {
		return true
	}
	own := ""
	if p, ok := rules.ResolveProfile("", set); ok {
		own = p.Image
	}
	j := imageJudge{caller: caller, rules: set, own: own, fact: ImageFact{Here: true, Digest: digest, Names: names}}
	return slices.ContainsFunc(names, func(name string) bool {
		n, err := rules.ParseImage(name)
		if err != nil {
			return false
		}
		_, err = j.judge(n, api.PullNever)
		return err == nil
	})
}

// imageJudge is the context for judging an image.
type imageJudge struct {
	caller Caller
	rules  rules.Rules
	fact   ImageFact
	// own is the profile's image, which the operator has chosen.
	own string
}

func (j imageJudge) judge(n rules.ImageName, pull api.PullPolicy) (ImageGrant, *api.Error) {
	g := ImageGrant{Ref: n.Text, Pull: pull}
	if err := j.blocked(n, &g); err != nil {
		return ImageGrant{}, err
	}
	if j.granted(n) == "" {
		return ImageGrant{}, rules.Denied("images", "image", "image %s is not among those that the operator allows", rules.Quote(n.Text)).
			WithHint("the smallest rule that would allow it is `images: [%s]`", rules.YamlString(n.Text))
	}
	if n.Ref.Repository == "" {
		g.Pull = api.PullNever // only a stored image can be used
		return g, nil
	}
	g.pin = j.rules.Pin(n)
	if err := j.registry(n.Ref.Registry); err != nil {
		if pull == api.PullAlways || pull == api.PullMissing && !j.fact.Here {
			return ImageGrant{}, err
		}
		g.Pull = api.PullNever
	}
	if j.fact.Here && pull != api.PullAlways {
		if err := g.check(j.fact.Digest, j.fact.Index); err != nil {
			return ImageGrant{}, err
		}
	}
	return g, nil
}

// pinnedElsewhere reports whether the operator requires another digest for the name of the stored
// image.
func (j imageJudge) pinnedElsewhere(n rules.ImageName) bool {
	pin := j.rules.Pin(n).Digest
	return pin != "" && pin != j.fact.Digest && pin != j.fact.Index
}

// blocked applies blocked_images, to a stored image by each of its names.
func (j imageJudge) blocked(n rules.ImageName, g *ImageGrant) *api.Error {
	names := []rules.ImageName{n}
	if n.Digest != "" || n.Ref.Digest != "" {
		for _, other := range j.fact.Names {
			if o, err := rules.ParseImage(other); err == nil {
				names = append(names, o)
			}
		}
	}
	for i, pattern := range j.rules.BlockedImages {
		for k := range names {
			if blocks(pattern, &names[k]) {
				return rules.Denied(rules.ElementAt("blocked_images", i), "image", "image %s is blocked by the operator", rules.Quote(n.Text)).
					WithHint("choose another image; no other rule allows one that is listed in blocked_images")
			}
		}
		if len(pattern) < digestLength || !strings.Contains(pattern, "sha256:") {
			continue
		}
		if p, err := rules.ParseImage(pattern); err == nil && (p.Digest != "" || p.Ref.Digest != "") {
			digest := p.Digest
			if digest == "" {
				digest = p.Ref.Digest
			}
			g.blocked = append(g.blocked, rules.DigestRule{Digest: digest, Rule: rules.ElementAt("blocked_images", i)})
		}
	}
	return nil
}

// granted returns the rule that allows an image, from images or built in, or "". A digest alone is
// judged by the names of the stored image, except for names that the operator pins to another
// digest.
func (j imageJudge) granted(n rules.ImageName) (rule string) {
	switch {
	case n.IsHost():
		return rules.ByBuiltin
	case j.caller.Operator:
		return rules.ByOperator
	}
	names := []rules.ImageName{n}
	if n.Digest != "" {
		for _, other := range j.fact.Names {
			if o, err := rules.ParseImage(other); err == nil && !j.pinnedElsewhere(o) {
				names = append(names, o)
			}
		}
	}
	own, err := rules.ParseImage(j.own)
	if err == nil {
		own, _ = j.rules.Unalias(own)
	}
	for _, n := range names {
		if err == nil && n.Canonical() == own.Canonical() {
			return "profile"
		}
		if ownImage(j.caller.Tenant, n) {
			return rules.ByBuiltin
		}
		if i := slices.IndexFunc(j.rules.Images, func(p string) bool { return matchImage(p, &n) }); i >= 0 {
			return rules.ElementAt("images", i)
		}
	}
	return ""
}

// registry judges the registry that an image would come from.
func (j imageJudge) registry(host string) *api.Error {
	if host == api.BuiltRegistry {
		return rules.Denied("builtin", "image", "nothing is fetched from %s: it is where images that were built here have their names", host).
			WithHint("`cloche image ls` lists the images that are here")
	}
	if key, r, ok := j.rules.Registry(host); ok && r.Blocked {
		return rules.Denied("registries."+key+".blocked", "image", "nothing may be fetched from %s: the operator blocks it", host).
			WithHint("use an image that is here, or one of another registry")
	}
	allowed := func(name string) bool { return rules.RegistryName(name) == host }
	if len(j.rules.OnlyRegistries) > 0 && !slices.ContainsFunc(j.rules.OnlyRegistries, allowed) {
		return rules.Denied("only_registries", "image", "nothing may be fetched from %s: it is not among the operator's registries", host).
			WithHint("use an image that is here, or the operator adds %s to only_registries", rules.YamlString(host))
	}
	return nil
}

// ownImage reports whether the name is one of the images that a tenant has built.
func ownImage(tenant string, n rules.ImageName) bool {
	return tenant != "" && n.Ref.Registry == api.BuiltRegistry && strings.HasPrefix(n.Ref.Repository, tenant+"/")
}

// DecideImageName checks whether the caller can give this name to an image that it builds or commits. The
// names of all tenants are in one store, so each tenant has its own part of them.
func DecideImageName(name string, caller Caller) error {
	n, err := rules.ParseImage(name)
	if err != nil {
		return err
	}
	if caller.Operator || ownImage(caller.Tenant, n) {
		return nil
	}
	e := rules.Denied("operator_only", "name", "image %s is not one of tenant %s", rules.Quote(name), rules.Quote(caller.Tenant))
	return e.WithHint("name it %s/%s/NAME", api.BuiltRegistry, caller.Tenant)
}

// AuthorizeRemoveImage checks whether the caller can remove a name of an image: the operator any, and others
// those of their tenant.
func AuthorizeRemoveImage(caller Caller, ref string) error {
	err := AuthorizeHost(caller, VerbRemoveImage)
	if n, perr := rules.ParseImage(ref); err != nil && perr == nil && ownImage(caller.Tenant, n) {
		return nil
	}
	return err
}

// DecidePack grants the operator an image of files of this machine, or returns why not. An image
// cannot contain what no sandbox can see. facts must have each path of the request in Dirs.
func DecidePack(req api.ImagePackRequest, facts Facts, caller Caller, set rules.Rules) error {
	if err := AuthorizeHost(caller, VerbPackImage); err != nil {
		return err
	}
	d := &decision{facts: facts, caller: caller, rules: set}
	for i, asked := range req.Paths {
		field := rules.ElementAt("paths", i)
		p, err := rules.CleanAbs(field, asked)
		if err != nil {
			return err
		}
		rule := d.blockedBy(p)
		if f := facts.Dirs[asked]; rule == "" && f.Exists {
			rule = d.blockedDir(d.cleanRule(f.Real), &f)
		}
		if rule != "" {
			return blockedError(rule, field, p, "is blocked, or leads to something that is, or holds it")
		}
	}
	return nil
}
