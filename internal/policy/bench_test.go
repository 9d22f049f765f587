package policy_test

import (
	"fmt"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/rule"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// manyRules are n rules, as many of each kind, of which the last is the one that
// counts.
func manyRules(n int) rules.Rules {
	n = max(n/7, 1)
	r := rules.Rules{Tenants: map[string]rules.TenantRule{}, Profiles: map[string]rules.ProfileRule{}}
	for i := range n {
		r.Images = append(r.Images, fmt.Sprintf("registry.example/team%d/tool:%d", i, i))
		r.BlockedImages = append(r.BlockedImages, fmt.Sprintf("registry.example/bad%d/*", i))
		r.Mounts = append(r.Mounts, rules.MountRule{Root: fmt.Sprintf("/data/%d", i), Tenants: []string{"tcp"}})
		r.BlockedPaths = append(r.BlockedPaths, fmt.Sprintf("/private/%d", i))
		r.Egress.Allow = append(r.Egress.Allow, rules.EgressItem{Item: rule.Item{Rule: rule.Rule{Host: fmt.Sprintf("*.team%d.example", i)}}})
		r.Tenants[fmt.Sprintf("t%d", i)] = rules.TenantRule{MaxSandboxes: new(5)}
		r.Profiles[fmt.Sprintf("p%d", i)] = rules.ProfileRule{Ceilings: rules.LimitRule{Pids: new(int64(5))}}
	}
	return r
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{1, 1000} {
		set := manyRules(n)
		last := max(n/7, 1) - 1
		for name, spec := range map[string]api.SandboxSpec{
			"plain":  {},
			"image":  {Image: fmt.Sprintf("registry.example/team%d/tool:%d", last, last)},
			"mount":  {Mounts: []api.Mount{{Source: fmt.Sprintf("/data/%d", last), Target: "/in", ReadOnly: true}}},
			"egress": {Egress: &api.Egress{Allow: []string{fmt.Sprintf("a.team%d.example", last), fmt.Sprintf("b.team%d.example", last)}}},
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				f := facts()
				for _, p := range policy.Paths(spec, tenant, set) {
					f.Dirs[p] = dir(p, 0)
				}
				for b.Loop() {
					if _, err := policy.Decide(policy.Request{Spec: spec, Facts: f}, tenant, set); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
