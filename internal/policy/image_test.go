package policy_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

var (
	digestA = "sha256:" + strings.Repeat("a", 64)
	digestB = "sha256:" + strings.Repeat("b", 64)
)

// here are the facts of a machine that has the image.
func here(names ...string) policy.ImageFact {
	return policy.ImageFact{Here: true, Digest: digestA, Index: digestB, Names: names}
}

func decideImage(spec api.SandboxSpec, fact policy.ImageFact, c policy.Caller, r rules.Rules) (policy.Permit, error) {
	f := facts()
	f.Image = fact
	return policy.Decide(policy.Request{Spec: spec, Facts: f}, c, r)
}

// TestImageSpellings: an image is the same however it is written, in grants and
// in blocks.
func TestImageSpellings(t *testing.T) {
	for _, tc := range []struct {
		pattern, ref string
		want         bool
	}{
		{"python:3.11", "docker.io/library/python:3.11", true},
		{"docker.io/library/python:3.11", "python:3.11", true},
		{"index.docker.io/python:3.11", "python:3.11", true},
		{"python", "python:latest", true},
		{"python", "python:3.11", false},
		{"python:*", "docker.io/python:3.11", true},
		{"python:*", "python@" + digestA, false},
		{"docker.io/library/python:3.*", "python:3.11", true},
		{"docker.io/python:3.*", "library/python:3.11", true},
		{"registry-1.docker.io/*", "python:3.11", true},
		{"library/*", "python:3.11", true},
		{"l*", "python:3.11", false},
		{"d*", "python:3.11", false},
		{"d*", "debian:12", true},
		{"docker.io/acme/*", "acme/tool:1", true},
		{"ghcr*", "ghcr.io/acme/tool:1", true},
		{"GHCR.io/acme/*", "ghcr.io/acme/tool:1", true},
		{"ghcr.io/acme/*", "ghcr.io/acmebad/tool:1", false},
		{"host", "team/host:latest", false},
		{"team/host", "host", false},
		{digestA, digestA, true},
		{"*", "anything/at:all", true},
	} {
		granted := mustParse(t, fmt.Sprintf("images: [%q]", tc.pattern))
		if tc.ref == "host" {
			granted = mustParse(t, fmt.Sprintf("blocked_images: [%q]", tc.pattern))
			if _, err := decideImage(api.SandboxSpec{}, policy.ImageFact{}, tenant, granted); (err != nil) != tc.want {
				t.Errorf("blocked %q, host: %v", tc.pattern, err)
			}
			continue
		}
		if _, err := decideImage(api.SandboxSpec{Image: tc.ref}, policy.ImageFact{}, tenant, granted); (err == nil) != tc.want {
			t.Errorf("granted %q, asked %q: %v", tc.pattern, tc.ref, err)
		}
		blocked := mustParse(t, fmt.Sprintf("images: ['*']\nblocked_images: [%q]", tc.pattern))
		if _, err := decideImage(api.SandboxSpec{Image: tc.ref}, policy.ImageFact{}, tenant, blocked); (err != nil) != tc.want && !strings.Contains(tc.ref, "@") {
			t.Errorf("blocked %q, asked %q: %v", tc.pattern, tc.ref, err)
		}
	}
}

// TestDigestsDoNotEvadeBlocks: a digest may be what a blocked name stands for.
func TestDigestsDoNotEvadeBlocks(t *testing.T) {
	for _, tc := range []struct {
		blocked, ref string
		fact         policy.ImageFact
	}{
		{"debian:12", "debian@" + digestA, policy.ImageFact{}},
		{"debian:*", "debian@" + digestA, policy.ImageFact{}},
		{"debian:1*", "debian:x@" + digestA, policy.ImageFact{}},
		{"deb*", "debian@" + digestA, policy.ImageFact{}},
		{"docker.io/library/*", "debian@" + digestA, policy.ImageFact{}},
		{"debian:12", digestA, here("debian:12")},
		{"debian:12", "copy/of@" + digestA, here("copy/of:1", "debian:12")},
	} {
		r := mustParse(t, fmt.Sprintf("images: ['*']\nblocked_images: [%q]", tc.blocked))
		for _, c := range []policy.Caller{operator, tenant} {
			_, err := decideImage(api.SandboxSpec{Image: tc.ref}, tc.fact, c, r)
			want{code: api.CodeDenied, rule: "blocked_images[0]"}.check(t, err)
		}
	}
	// What a name turns out to be is judged when that is known.
	r := mustParse(t, "blocked_images: ['"+digestB+"', 'x@"+digestA+"']")
	for _, digest := range []string{digestA, digestB} {
		p, err := decideImage(api.SandboxSpec{Image: "debian:12"}, policy.ImageFact{}, operator, r)
		if err != nil {
			t.Fatal(err)
		}
		want{code: api.CodeDenied}.check(t, p.Image().Check(digest, ""))
		want{code: api.CodeDenied}.check(t, p.Image().Check("sha256:"+strings.Repeat("c", 64), digest))
	}
}

func TestImageByDigestForTenants(t *testing.T) {
	r := mustParse(t, "images: ['debian:*']")
	spec := api.SandboxSpec{Image: digestA}
	if _, err := decideImage(spec, here("debian:12", "secret:1"), tenant, r); err != nil {
		t.Errorf("a digest of what is granted by name: %v", err)
	}
	_, err := decideImage(spec, here("secret:1"), tenant, r)
	want{code: api.CodeDenied, rule: "images"}.check(t, err)
	_, err = decideImage(spec, policy.ImageFact{}, tenant, r)
	want{code: api.CodeDenied, rule: "images"}.check(t, err)
	// A name that the operator wants to be another image grants nothing to this one.
	pinned := mustParse(t, "images: ['debian:*']\nimage_pins: {'debian:12': 'sha256:"+strings.Repeat("c", 64)+"'}")
	_, err = decideImage(spec, here("debian:12"), tenant, pinned)
	want{code: api.CodeDenied, rule: "images"}.check(t, err)
	if _, err := decideImage(spec, here("debian:12", "debian:bookworm"), tenant, pinned); err != nil {
		t.Errorf("a digest that another name grants: %v", err)
	}
}

// TestHostIsNoReference: with a tag or a digest it would be asked of a registry.
func TestHostIsNoReference(t *testing.T) {
	for _, ref := range []string{"host:latest", "host@" + digestA, "docker.io/library/host"} {
		for _, c := range []policy.Caller{operator, tenant} {
			_, err := decideImage(api.SandboxSpec{Image: ref}, policy.ImageFact{}, c, mustParse(t, "images: ['*']"))
			want{code: api.CodeInvalid, field: "image"}.check(t, err)
			if !errors.Is(err, api.ErrHostImage) {
				t.Errorf("%q: %v", ref, err)
			}
			_, err = policy.DecidePull(api.PullRequest{Image: ref}, policy.ImageFact{}, c, mustParse(t, "images: ['*']"))
			want{code: api.CodeInvalid, field: "image"}.check(t, err)
		}
	}
}

func TestImageAliases(t *testing.T) {
	r := mustParse(t, "image_aliases: {'python:3.11-slim': host, 'node': 'corp.example/node:20'}\nblocked_images: ['docker.io/*']")
	p, err := decideImage(api.SandboxSpec{Image: "docker.io/library/python:3.11-slim"}, policy.ImageFact{}, tenant, r)
	if err != nil {
		t.Fatal(err)
	}
	adjusted := []api.Adjustment{{Field: "image", Asked: "docker.io/library/python:3.11-slim", Used: "host", Rule: `image_aliases["python:3.11-slim"]`}}
	if p.Spec().Image != "host" || p.Image().Pull != api.PullNever || !reflect.DeepEqual(p.Adjusted(), adjusted) {
		t.Errorf("granted %+v, %+v, adjusted %+v", p.Spec().Image, p.Image(), p.Adjusted())
	}
	// The other rules judge what it stands for.
	_, err = decideImage(api.SandboxSpec{Image: "node:latest"}, policy.ImageFact{}, tenant, r)
	want{code: api.CodeDenied, rule: "images", says: "corp.example/node:20"}.check(t, err)
	if got := policy.ImageOf(api.SandboxSpec{Image: "node"}, r); got != "corp.example/node:20" {
		t.Errorf("ImageOf is %q", got)
	}
	// A profile's own image is granted, whatever it stands for.
	r = mustParse(t, "image_aliases: {node: 'corp.example/node:20'}\nprofiles: {agent: {image: node}}")
	if p, err = decideImage(api.SandboxSpec{}, policy.ImageFact{}, tenant, r); err != nil || p.Spec().Image != "corp.example/node:20" {
		t.Errorf("%v, %q", err, p.Spec().Image)
	}
}

func TestImagePins(t *testing.T) {
	r := mustParse(t, "image_pins: {'debian:12': '"+digestA+"'}")
	p, err := decideImage(api.SandboxSpec{Image: "library/debian:12"}, policy.ImageFact{}, operator, r)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		digest, index string
		want          bool
	}{{digestA, "", true}, {digestB, digestA, true}, {digestA, digestB, true}, {digestB, "", false}, {digestB, digestB, false}} {
		if err := p.Image().Check(tc.digest, tc.index); (err == nil) != tc.want {
			t.Errorf("%+v: %v", tc, err)
		}
	}
	// What is here and is another one is refused before anything is made.
	_, err = decideImage(api.SandboxSpec{Image: "debian:12"}, policy.ImageFact{Here: true, Digest: digestB}, operator, r)
	want{code: api.CodeDenied, rule: `image_pins["debian:12"]`, says: "always"}.check(t, err)
	if _, err = decideImage(api.SandboxSpec{Image: "debian:12", Pull: api.PullAlways}, policy.ImageFact{Here: true, Digest: digestB}, operator, r); err != nil {
		t.Errorf("one that is fetched anew: %v", err)
	}
	if _, err = decideImage(api.SandboxSpec{Image: "debian:13"}, policy.ImageFact{Here: true, Digest: digestB}, operator, r); err != nil {
		t.Errorf("another tag: %v", err)
	}
}

func TestRegistries(t *testing.T) {
	only := "only_registries: [GHCR.io, 'localhost:5000']"
	blocked := "registries: {index.docker.io: {blocked: true}}"
	for _, tc := range []struct {
		rules, image string
		pull         api.PullPolicy
		here         bool
		rule         string
	}{
		{only, "ghcr.io/a/b", "", false, ""},
		{only, "localhost:5000/b", "always", false, ""},
		{only, "debian:12", "", false, "only_registries"},
		{only, "debian:12", "always", true, "only_registries"},
		{only, "debian:12", "", true, ""},
		{only, "debian:12", "never", false, ""},
		{only, "host", "", false, ""},
		{blocked, "debian:12", "missing", false, "registries.index.docker.io.blocked"},
		{blocked, "debian:12", "missing", true, ""},
		{blocked, "ghcr.io/a/b", "always", false, ""},
	} {
		fact := policy.ImageFact{Here: tc.here, Digest: digestA}
		p, err := decideImage(api.SandboxSpec{Image: tc.image, Pull: tc.pull}, fact, operator, mustParse(t, tc.rules))
		if tc.rule != "" {
			want{code: api.CodeDenied, field: "image", rule: tc.rule}.check(t, err)
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", tc, err)
			continue
		}
		allowed := strings.HasPrefix(tc.image, "ghcr.io") || strings.HasPrefix(tc.image, "localhost")
		if (p.Image().Pull != api.PullNever) != (allowed && tc.pull != "never") {
			t.Errorf("%+v: may be fetched: %q", tc, p.Image().Pull)
		}
	}
	_, err := decideImage(api.SandboxSpec{Pull: "sometimes"}, policy.ImageFact{}, operator, rules.Rules{})
	want{code: api.CodeInvalid, field: "pull"}.check(t, err)
}

func TestImageRulesAreChecked(t *testing.T) {
	for text, w := range map[string]want{
		"image_aliases: {host: 'debian:12'}":                                          {field: `image_aliases["host"]`},
		"image_aliases: {'a b': host}":                                                {says: "not a name"},
		"image_aliases: {a: 'b:1', b: 'c', 'b:latest': d}":                            {says: "same image"},
		"image_aliases: {a: b, b: c}":                                                 {says: "alias itself"},
		"image_aliases: {a: a}":                                                       {says: "alias itself"},
		"image_aliases: {a: 'no such'}":                                               {says: "not a reference"},
		"image_pins: {'debian:12': 'sha256:abc'}":                                     {says: "no digest"},
		"image_pins: {host: '" + digestA + "'}":                                       {says: "can be pinned"},
		"image_pins: {debian: '" + digestA + "', 'debian:latest': '" + digestA + "'}": {says: "same image"},
		"only_registries: [not/a/host]":                                               {field: "only_registries[0]"},
		"only_registries: [library]":                                                  {field: "only_registries[0]"},
		"registries: {docker.io: {}, index.docker.io: {}}":                            {says: "same registry"},
		"registries: {docker.io: {mirrors: ['http://m']}}":                            {says: "no mirror"},
		"registries: {docker.io: {mirror: [a]}}":                                      {says: "mirror"},
		"image_store: {max: -1}":                                                      {},
	} {
		_, err := rules.ParseRules([]byte(text))
		w.code = api.CodeInvalid
		t.Run(text, func(t *testing.T) { w.check(t, err) })
	}
}

func TestDecidePull(t *testing.T) {
	r := mustParse(t, "images: ['debian:*']\nimage_aliases: {py: host, d: 'debian:12'}\nonly_registries: [docker.io]")
	pull := func(ref string, c policy.Caller) (policy.ImageGrant, error) {
		return policy.DecidePull(api.PullRequest{Image: ref}, policy.ImageFact{}, c, r)
	}
	if g, err := pull("d", tenant); err != nil || g.Ref != "debian:12" || g.Pull != api.PullAlways {
		t.Errorf("%+v, %v", g, err)
	}
	_, err := pull("alpine", tenant)
	want{code: api.CodeDenied, rule: "images"}.check(t, err)
	if _, err := pull("alpine", operator); err != nil {
		t.Error(err)
	}
	_, err = pull("ghcr.io/a/b", operator)
	want{code: api.CodeDenied, rule: "only_registries"}.check(t, err)
	// An image for another kind of machine would take the name from those whose
	// programs run here.
	for platform, allowed := range map[string]bool{"": true, "linux/" + runtime.GOARCH: true, "linux/s390x": false, "linux/" + runtime.GOARCH + "/v9": false} {
		req := api.PullRequest{Image: "debian:12", Platform: platform}
		if _, err := policy.DecidePull(req, policy.ImageFact{}, operator, r); err != nil {
			t.Errorf("the operator, %s: %v", platform, err)
		}
		_, err := policy.DecidePull(req, policy.ImageFact{}, tenant, r)
		if allowed && err != nil {
			t.Errorf("%s: %v", platform, err)
		}
		if !allowed {
			want{code: api.CodeDenied, rule: "operator_only", field: "platform"}.check(t, err)
		}
	}
	for _, ref := range []string{"host", "py", digestA, "a b"} {
		_, err := pull(ref, operator)
		want{code: api.CodeInvalid, field: "image"}.check(t, err)
	}
	for _, verb := range []policy.Verb{policy.VerbImportImage, policy.VerbPackImage, policy.VerbRemoveImage, policy.VerbPruneImages} {
		want{code: api.CodeDenied, rule: "operator_only"}.check(t, policy.AuthorizeHost(tenant, verb))
		if err := policy.AuthorizeHost(operator, verb); err != nil {
			t.Error(err)
		}
	}
}

// TestSeesImage: a list shows a tenant what its creates could name.
func TestSeesImage(t *testing.T) {
	r := mustParse(t, "images: ['debian:*']\nblocked_images: ['debian:bad', '"+digestB+"']")
	for _, tc := range []struct {
		digest, name string
		want         bool
	}{{digestA, "debian:12", true}, {digestA, "debian:bad", false}, {digestB, "debian:12", false}, {digestA, "secret:1", false}, {"", "host", true}} {
		if got := policy.SeesImage(tenant, r, tc.digest, tc.name); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
		if !policy.SeesImage(operator, r, tc.digest, tc.name) {
			t.Errorf("the operator does not see %+v", tc)
		}
	}
}

// TestImageRulesAreMonotone: an image that is granted permits nothing else, and
// what takes away never opens anything, by any spelling.
func TestImageRulesAreMonotone(t *testing.T) {
	refs := []string{
		"host", "debian:12", "docker.io/library/debian:12", "debian:13", "debian", "acme/tool:1", "docker.io/acme/tool:1", "ghcr.io/acme/tool:1",
		"debian@" + digestA, "debian:12@" + digestA, digestA, "localhost:5000/x:1", "INVALID",
	}
	patterns := []string{"debian:12", "docker.io/library/debian:12", "debian:*", "docker.io/*", "acme/*", "ghcr.io/acme/tool:1", "debian@" + digestA, digestA, "*", "host"}
	canonical := func(ref string) string {
		r, err := api.ParseImageRef(ref)
		if err != nil || api.ValidDigest(ref) || ref == "host" {
			return ref
		}
		return r.String()
	}
	opened := 0
	for seed := range uint64(30_000) {
		r := rand.New(rand.NewPCG(seed, 3))
		var set rules.Rules
		if r.IntN(2) == 0 {
			set.Images = []string{pick(r, patterns...)}
		}
		if r.IntN(3) == 0 {
			set.BlockedImages = []string{pick(r, patterns...)}
		}
		if r.IntN(3) == 0 {
			set.ImageAliases = map[string]string{"debian:13": pick(r, "host", "debian:12", "acme/tool:1")}
		}
		if r.IntN(3) == 0 {
			set.OnlyRegistries = []string{pick(r, "docker.io", "ghcr.io")}
		}
		if r.IntN(3) == 0 {
			set.ImagePins = map[string]string{pick(r, "debian:12", "acme/tool:1"): pick(r, digestA, digestB)}
		}
		spec := api.SandboxSpec{Image: pick(r, refs...), Pull: pick(r, "", api.PullNever, api.PullAlways)}
		fact := pick(r, policy.ImageFact{}, here("debian:12"), policy.ImageFact{Here: true, Digest: digestB, Names: []string{"acme/tool:1"}})
		c := pick(r, operator, tenant)
		before, err := decideImage(spec, fact, c, set)

		// Less: whatever takes away turns no refusal into a grant.
		less := set
		switch r.IntN(3) {
		case 0:
			less.BlockedImages = append([]string{pick(r, patterns...)}, set.BlockedImages...)
		case 1:
			less.Registries = map[string]rules.RegistryRule{pick(r, "docker.io", "ghcr.io"): {Blocked: true}}
		case 2:
			less.ImagePins = map[string]string{"debian:12": digestA, "acme/tool:1": digestB}
			for k, v := range set.ImagePins {
				less.ImagePins[k] = v
			}
		}
		after, err2 := decideImage(spec, fact, c, less)
		if err != nil && err2 == nil {
			t.Fatalf("%+v opens %+v: was %v", less, spec, err)
		}
		if err == nil && err2 == nil && before.Image().Pull == api.PullNever && after.Image().Pull != api.PullNever {
			t.Fatalf("%+v lets %+v be fetched", less, spec)
		}

		// More: a grant of one image opens that one only.
		more := set
		grant := pick(r, "debian:12", "acme/tool:1", "ghcr.io/acme/tool:1")
		more.Images = append([]string{grant}, set.Images...)
		after, err2 = decideImage(spec, fact, c, more)
		switch {
		case err == nil && (err2 != nil || !reflect.DeepEqual(before, after)):
			t.Fatalf("a grant of %s changes what %+v gets: %v", grant, spec, err2)
		case err != nil && err2 == nil:
			opened++
			ref := after.Image().Ref
			byDigest := api.ValidDigest(ref) && len(fact.Names) > 0 && canonical(fact.Names[0]) == canonical(grant)
			if canonical(ref) != canonical(grant) && !byDigest {
				t.Fatalf("a grant of %s opens %s", grant, ref)
			}
		case err2 != nil:
			if e, ok := errors.AsType[*api.Error](err2); !ok || e.Hint == "" || e.Code == api.CodeDenied && e.Rule == "" {
				t.Fatalf("refusal without rule or hint: %v", err2)
			}
		}
	}
	if opened < 500 {
		t.Errorf("only %d requests were opened: the sample says little", opened)
	}
}

func TestCwdIsTheImagesUnlessSomebodySays(t *testing.T) {
	for _, tc := range []struct {
		spec api.SandboxSpec
		open bool
	}{
		{api.SandboxSpec{}, true},
		{api.SandboxSpec{Workspace: &api.Workspace{}}, true},
		{api.SandboxSpec{Cwd: "/srv"}, false},
		{api.SandboxSpec{Workspace: &api.Workspace{Name: "job"}}, false},
		{api.SandboxSpec{Workspace: &api.Workspace{Path: "/job"}}, false},
	} {
		p := decide(t, tc.spec, operator, rules.Rules{})
		if p.CwdOpen() != tc.open || (p.Settings().Cwd == "") != tc.open {
			t.Errorf("%+v: open %v, an exec's is %q", tc.spec, p.CwdOpen(), p.Settings().Cwd)
		}
	}
}
