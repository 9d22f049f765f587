package policy

import (
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func TestSkills(t *testing.T) {
	const key = "RWT4ivW8FAfSVpOy2Xu7BjNbQcdCf6Gy04eUCgr7vsgorfyWJkgxw3JK"
	facts := []SkillFact{
		{Name: "pdf", Dir: DirFact{Exists: true, Dir: true, Real: "/home/c/skills/pdf", Ino: 7}, SignedBy: "K"},
		{Name: "xlsx", Dir: DirFact{Exists: true, Dir: true, Real: "/home/c/skills/xlsx", Ino: 8}},
	}
	tenant, operator := Caller{Tenant: "a", UID: -1}, Caller{Tenant: LocalTenant, Operator: true}
	signed := rules.Rules{Skills: rules.SkillRule{SignedBy: []string{key}}}
	uses := func(list ...string) (out []api.SkillUse) {
		for _, text := range list {
			name, access, _ := strings.Cut(text, ":")
			out = append(out, api.SkillUse{Name: name, Access: api.PathAccess(access)})
		}
		return out
	}
	for name, c := range map[string]struct {
		caller Caller
		rules  rules.Rules
		uses   []api.SkillUse
		mounts []api.Mount
		want   string // targets with what may be done, or the rule or code of the refusal
	}{
		"one to read":                    {caller: tenant, uses: uses("pdf"), want: "/w/.skills/pdf:ro"},
		"all":                            {caller: tenant, uses: uses("*"), want: "/w/.skills/pdf:ro /w/.skills/xlsx:ro"},
		"all, one to write":              {caller: operator, uses: uses("*", "pdf:rw"), want: "/w/.skills/xlsx:ro /w/.skills/pdf:rw"},
		"to write, no rule":              {caller: tenant, uses: uses("pdf:rw"), want: "skills.write"},
		"to write, by a rule":            {caller: tenant, rules: rules.Rules{Skills: rules.SkillRule{Write: true}}, uses: uses("pdf:rw"), want: "/w/.skills/pdf:rw"},
		"one that is not there":          {caller: tenant, uses: uses("other"), want: "not_found"},
		"a path":                         {caller: tenant, uses: uses("../pdf"), want: "not_found"},
		"twice":                          {caller: tenant, uses: uses("pdf", "pdf"), want: "invalid_argument"},
		"another access":                 {caller: tenant, uses: uses("pdf:none"), want: "invalid_argument"},
		"where a mount is":               {caller: tenant, uses: uses("pdf"), mounts: []api.Mount{{Target: "/w/.skills/pdf"}}, want: "invalid_argument"},
		"one that is signed":             {caller: tenant, rules: signed, uses: uses("pdf"), want: "/w/.skills/pdf:ro"},
		"one that is not signed":         {caller: tenant, rules: signed, uses: uses("xlsx"), want: "skills.signed_by"},
		"the operator, not signed":       {caller: operator, rules: signed, uses: uses("xlsx"), want: "skills.signed_by"},
		"one that is signed, to write":   {caller: operator, rules: signed, uses: uses("pdf:rw"), want: "skills.signed_by"},
		"all that are signed":            {caller: tenant, rules: signed, uses: uses("*"), want: "/w/.skills/pdf:ro"},
		"as many as nobody has a use of": {caller: tenant, uses: make([]api.SkillUse, maxSkills+1), want: "too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			d := begin(Request{Spec: api.SandboxSpec{Skills: c.uses, Mounts: c.mounts, Workspace: &api.Workspace{Path: "/w"}}, Facts: Facts{Skills: facts}}, c.caller, c.rules)
			var got string
			if err := checkSkills(d); err != nil {
				if got = err.Rule; got == "" {
					got = string(err.Code)
				}
			} else {
				var out []string
				for i, s := range d.skills {
					access := map[bool]string{true: "ro", false: "rw"}[s.ReadOnly]
					out = append(out, s.Target+":"+access)
					if s.Ino == 0 || s.Real == "" || string(d.spec.Skills[i].Access) != access {
						t.Errorf("granted %+v for %+v", s, d.spec.Skills[i])
					}
				}
				got = strings.Join(out, " ")
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	if err := DecideSkillChange("pdf", rules.Rules{}); err != nil {
		t.Error(err)
	}
	if err := DecideSkillChange("pdf", signed); api.CodeOf(err) != api.CodeDenied {
		t.Errorf("a signed skill may be changed: %v", err)
	}
	for text, good := range map[string]bool{
		"skills: {write: true, max_bytes_per_tenant: 2GiB, signed_by: [" + key + "]}": true,
		"skills: {signed_by: [RWx]}": false, "skills: {signed_by: RWx}": false, "skills: {sign: true}": false,
	} {
		if _, err := rules.ParseRules([]byte(text)); (err == nil) != good {
			t.Errorf("%s: %v", text, err)
		}
	}
}
