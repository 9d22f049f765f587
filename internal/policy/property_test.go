package policy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// secretValue stands in environments and scripts; no error may hold it.
const secretValue = "s3cr3t-v4lue"

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// rare is usually empty, else one of these: a request of many bad parts would
// always fail on the first.
func rare(r *rand.Rand, of ...string) string {
	if r.IntN(12) > 0 {
		return ""
	}
	return pick(r, of...)
}

var somePaths = []string{
	"/home/alice/project", "/data", "/data/in", "/data/link", "/data/out", "/data/file", "/datax", "/home/alice/etc",
	"/home/alice/keys", "/etc", "/", "/root", "/srv/real/sub", "/nope", "relative", "/data/../etc", "/data/in/",
}

func randomSpec(r *rand.Rand) api.SandboxSpec {
	s := api.SandboxSpec{
		Name:    rare(r, "box", "Bad Name"),
		Profile: pick(r, "", "agent", "default", "offline_readonly", "mine", rare(r, "network_basic", "nope")),
		Image:   pick(r, "", "host", "debian:12", "alpine", rare(r, "bad image")),
		Engine:  pick(r, "", "auto", "gvisor", rare(r, "native", "nope")),
		Network: pick(r, "", "none", rare(r, "on")),
		Egress:  pick(r, nil, nil, nil, nil, &api.Egress{}, &api.Egress{Allow: []string{"a.org"}}, &api.Egress{Allow: []string{"@pypi", "b.org:22"}, Deny: []string{"*"}, Ask: true}),
		User:    pick(r, "", "0:0", "nobody", rare(r, "a b")),
		Cwd:     pick(r, "", "/srv/", rare(r, "rel")),
	}
	if r.IntN(3) == 0 {
		s.Limits = api.Limits{
			CPUs:           pick(r, 0, 0.5, 4, 64, 64, 65, -1),
			MemoryBytes:    pick[int64](r, 0, 64<<20, 4<<30, 100<<30),
			Pids:           pick[int64](r, 0, 1, 500, 99999),
			DiskBytes:      pick[int64](r, 0, 1<<20, 1<<33, 1<<45),
			TimeoutMS:      pick[int64](r, 0, 1, 45_000, 10_000_000),
			MaxOutputBytes: pick[int64](r, 0, 1, 1<<22, 1<<26),
		}
	}
	for i := range r.IntN(3) {
		s.Mounts = append(s.Mounts, api.Mount{
			Source: pick(r, somePaths...), Target: fmt.Sprintf("/m%d%s", i, pick(r, "", "/", "/x")), ReadOnly: r.IntN(2) == 0,
		})
	}
	if r.IntN(2) == 0 {
		s.Workspace = &api.Workspace{Path: pick(r, "", "/workspace", "/srv/job"), ReadOnly: r.IntN(2) == 0}
		switch r.IntN(3) {
		case 0:
			s.Workspace.Dir = pick(r, somePaths...)
		case 1:
			s.Workspace.Name = "w"
		}
	}
	if r.IntN(3) == 0 {
		s.ReadOnlyRoot = new(r.IntN(2) == 0)
	}
	if r.IntN(3) == 0 {
		s.Env = map[string]string{"A" + rare(r, "="): secretValue + rare(r, "\x00")}
	}
	if r.IntN(5) == 0 {
		s.Files = []api.File{{Path: pick(r, "/tmp/a", "/workspace/a", "/m0/a", "/x"+rare(r, "/", "/../y")), Content: api.Bytes(secretValue)}}
	}
	return s
}

func randomRules(r *rand.Rand) rules.Rules {
	var out rules.Rules
	if r.IntN(10) == 0 {
		out.Enabled = new(false)
	}
	out.MinTier = pick(r, "", "", api.TierNamespace, api.TierGVisor)
	if r.IntN(2) == 0 {
		out.Images = []string{pick(r, "debian:12", "al*")}
	}
	for range r.IntN(3) {
		out.Mounts = append(out.Mounts, rules.MountRule{
			Root: pick(r, "/data", "/data/in", "/srv/real", "/", "/home/alice"), Write: r.IntN(2) == 0,
			Tenants: pick(r, nil, nil, []string{"tcp"}, []string{"local"}),
		})
	}
	if r.IntN(3) == 0 {
		out.BlockedPaths = []string{pick(r, "/data/in", "/datax", "/srv")}
	}
	out.Profiles = map[string]rules.ProfileRule{"mine": {
		Extends:  pick(r, "", "default", "offline_readonly"),
		Ceilings: rules.LimitRule{Pids: pick(r, nil, new(int64(100))), Timeout: pick(r, nil, new(rules.Duration(20e9)))},
		Defaults: rules.LimitRule{Memory: pick(r, nil, new(rules.Size(1<<30)))},
		Locked:   pick(r, nil, &[]string{"limits.cpus", "limits.timeout_ms", "mounts.read_only", "image"}),
		Clamp:    pick(r, nil, &[]string{}, &[]string{"limits.timeout_ms", "limits.pids", "limits.memory_bytes"}),
	}}
	return out
}

func randomFacts(r *rand.Rand) policy.Facts {
	f := facts()
	f.Engines = append(f.Engines, api.EngineReport{Name: "native", Tier: api.TierNamespace, Usable: true, SharesHostFS: true})
	for _, k := range []string{"cpus", "memory_bytes", "pids", "disk_bytes"} {
		if r.IntN(12) == 0 {
			f.Engines[0].Enforces[k] = api.Enforcement{Reason: "not here: /host/path"}
		}
	}
	f.Engines[0].Usable = r.IntN(10) > 0
	return f
}

// checkDecision holds for every decision whatever.
func checkDecision(t *testing.T, req policy.Request, c policy.Caller, set rules.Rules) (policy.Permit, error) {
	t.Helper()
	before, _ := json.Marshal(req.Spec)
	p, err := policy.Decide(req, c, set)
	again, err2 := policy.Decide(req, c, set)
	if after, _ := json.Marshal(req.Spec); string(after) != string(before) {
		t.Fatalf("Decide changed its request:\n%s\n%s", before, after)
	}
	if !reflect.DeepEqual(p, again) || fmt.Sprintf("%+v", err) != fmt.Sprintf("%+v", err2) {
		t.Fatalf("two decisions differ: %+v %v, %+v %v", p, err, again, err2)
	}
	if err != nil {
		e, ok := errors.AsType[*api.Error](err)
		switch {
		case !ok:
			t.Fatalf("error of type %T", err)
		case p.Valid():
			t.Fatalf("valid permit with %v", err)
		case e.Code == api.CodeDenied && e.Rule == "", e.Hint == "" && e.Code != api.CodeInternal:
			t.Fatalf("refusal without rule or hint: %+v", e)
		case !slices.Contains(api.Codes(), e.Code):
			t.Fatalf("code %q", e.Code)
		}
		checkSilence(t, req, c, e)
		return p, err
	}
	checkGranted(t, req, c, set, p)
	return p, nil
}

// checkSilence: no error holds an environment value, and a foreign tenant reads
// no path that it did not name itself.
func checkSilence(t *testing.T, req policy.Request, c policy.Caller, e *api.Error) {
	t.Helper()
	text := fmt.Sprintf("%+v", *e)
	if strings.Contains(text, secretValue) {
		t.Fatalf("error holds an environment value or a file: %s", text)
	}
	if c.Operator {
		return
	}
	for _, secret := range []string{"/host/path", "/srv/out", "/etc/ssl", "/home/alice/.ssh", "/home/alice/.local"} {
		if strings.Contains(text, secret) && !strings.Contains(fmt.Sprintf("%+v", req.Spec), secret) {
			t.Fatalf("a tenant reads %s: %s", secret, text)
		}
	}
}

func checkGranted(t *testing.T, req policy.Request, c policy.Caller, set rules.Rules, p policy.Permit) {
	t.Helper()
	s := p.Spec()
	q, err := policy.Decide(policy.Request{Spec: s, Facts: req.Facts}, c, set)
	if err != nil {
		t.Fatalf("a granted spec is refused: %v\n%+v", err, s)
	}
	if !reflect.DeepEqual(q.Spec(), s) || len(q.Adjusted()) != 0 {
		t.Fatalf("deciding again changes the grant:\n%+v\n%+v\n%+v", s, q.Spec(), q.Adjusted())
	}
	if !reflect.DeepEqual(q.Mounts(), p.Mounts()) || !reflect.DeepEqual(q.Unenforced(), p.Unenforced()) {
		t.Fatalf("deciding again changes mounts or what is not enforced")
	}
	if _, out := p.Egress(); out != (s.Network == "on") || out != (s.Egress != nil) || s.Engine == "" || s.Engine == "auto" || s.Profile == "" || s.Image == "" || s.Workspace.Path == "" || s.ReadOnlyRoot == nil {
		t.Fatalf("a default is missing: %+v", s)
	}
	checkUnderCeilings(t, set, p)
	dirs := p.Mounts()
	if w, ok := p.WorkspaceDir(); ok {
		dirs = append(dirs, w)
	}
	for _, d := range dirs {
		checkHostDir(t, c, set, d)
	}
}

// checkUnderCeilings knows the built-in ceilings and the ones of randomRules on
// its own.
func checkUnderCeilings(t *testing.T, set rules.Rules, p policy.Permit) {
	t.Helper()
	unenforced := map[string]bool{}
	for _, u := range p.Unenforced() {
		unenforced[u.Field] = true
	}
	l := p.Limits()
	pids := int64(32768)
	timeout := map[string]int64{"default": 120_000, "offline_readonly": 60_000}[p.Profile()]
	if m, ok := set.Profiles[p.Profile()]; ok {
		timeout = map[string]int64{"default": 120_000, "offline_readonly": 60_000}[m.Extends]
		if m.Ceilings.Pids != nil {
			pids = *m.Ceilings.Pids
		}
		if m.Ceilings.Timeout != nil {
			timeout = int64(*m.Ceilings.Timeout) / 1e6
		}
	}
	for _, b := range []struct {
		field        string
		value, bound float64
	}{
		{"limits.cpus", l.CPUs, 64}, {"limits.memory_bytes", float64(l.MemoryBytes), 64 << 30},
		{"limits.pids", float64(l.Pids), float64(pids)}, {"limits.disk_bytes", float64(l.DiskBytes), 256 << 30},
		{"limits.max_output_bytes", float64(l.MaxOutputBytes), 64 << 20}, {"limits.timeout_ms", float64(l.TimeoutMS), float64(timeout)},
	} {
		if b.bound > 0 && (b.value > b.bound || b.value <= 0 && !unenforced[b.field]) {
			t.Fatalf("%s is %v over %v in profile %s", b.field, b.value, b.bound, p.Profile())
		}
		if unenforced[b.field] && (b.value != 0 || slices.Contains(p.Demanded(), b.field)) {
			t.Fatalf("%s is not enforced, yet %v or demanded", b.field, b.value)
		}
	}
}

// checkHostDir is the rule on directories once more, in the plainest words.
func checkHostDir(t *testing.T, c policy.Caller, set rules.Rules, d policy.HostDir) {
	t.Helper()
	below := func(p, dir string) bool { return dir == "/" || p == dir || strings.HasPrefix(p, dir+"/") }
	for _, b := range append([]string{"/etc", "/proc", "/run", "/home/alice/.local/share/cloche"}, set.BlockedPaths...) {
		if below(d.Real, b) || below(b, d.Real) {
			t.Fatalf("%s shows %s", d.Real, b)
		}
	}
	if strings.Contains(d.Real+"/", "/.ssh/") {
		t.Fatalf("%s shows keys", d.Real)
	}
	if c.Operator && (c.UID == 0 || c.UID == d.OwnerUID) {
		return
	}
	for _, m := range set.Mounts {
		if below(d.Real, path.Clean(m.Root)) && (d.ReadOnly || m.Write) && (len(m.Tenants) == 0 || slices.Contains(m.Tenants, c.Tenant)) {
			return
		}
	}
	t.Fatalf("%+v is granted to %+v by no rule of %+v", d, c, set.Mounts)
}

func TestEveryDecision(t *testing.T) {
	granted, refused := 0, map[api.Code]int{}
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 1))
		req := policy.Request{Spec: randomSpec(r), Facts: randomFacts(r)}
		_, err := checkDecision(t, req, pick(r, operator, root, tenant, policy.UnixCaller(7, 0)), randomRules(r))
		if err == nil {
			granted++
		}
		refused[api.CodeOf(err)]++
	}
	if granted < 2000 || refused[api.CodeDenied] < 500 || refused[api.CodeUnsupported] == 0 {
		t.Errorf("the sample says little: %d granted, %v", granted, refused)
	}
}

// A rule that allows something takes nothing away, changes no other grant, and
// permits nothing that it does not name.
func TestAllowRulesAreMonotone(t *testing.T) {
	opened := 0
	for seed := range uint64(50_000) {
		r := rand.New(rand.NewPCG(seed, 2))
		req := policy.Request{Spec: randomSpec(r), Facts: randomFacts(r)}
		c := pick(r, operator, root, tenant)
		set := randomRules(r)
		more := set
		mountRule := rules.MountRule{Root: pick(r, "/data", "/datax", "/srv/real", "/home/alice"), Write: r.IntN(2) == 0}
		image := pick(r, "debian:12", "alpine")
		byMount := r.IntN(2) == 0
		if byMount {
			more.Mounts = append(slices.Clone(set.Mounts), mountRule)
		} else {
			more.Images = append(slices.Clone(set.Images), image)
		}
		before, err := policy.Decide(req, c, set)
		after, err2 := policy.Decide(req, c, more)
		switch {
		case err == nil && err2 != nil:
			t.Fatalf("an allow rule refuses: %v", err2)
		case err == nil && !reflect.DeepEqual(before, after):
			t.Fatalf("an allow rule changes a grant:\n%+v\n%+v", before, after)
		case err != nil && err2 == nil:
			opened++
			rule := err.(*api.Error).Rule
			if byMount {
				uses := func(d policy.HostDir) bool { return strings.HasPrefix(d.Real+"/", mountRule.Root+"/") }
				dirs := after.Mounts()
				if w, ok := after.WorkspaceDir(); ok {
					dirs = append(dirs, w)
				}
				if rule != "mounts" || !slices.ContainsFunc(dirs, uses) {
					t.Fatalf("a rule on %s permits what it does not name (was: %v): %+v", mountRule.Root, err, dirs)
				}
			} else if rule != "images" || after.Spec().Image != image {
				t.Fatalf("a rule on image %s permits %s (was: %v)", image, after.Spec().Image, err)
			}
		}
	}
	if opened < 200 {
		t.Errorf("only %d requests were opened by a rule: the sample says little", opened)
	}
}
