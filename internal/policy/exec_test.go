package policy_test

import (
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func settings(t *testing.T, profile string, l api.Limits, r rules.Rules) policy.Settings {
	t.Helper()
	spec := api.SandboxSpec{
		Name: "box", Profile: profile, Limits: l, User: "nobody", Cwd: "/src",
		Env: map[string]string{"A": "1", "B": "2"},
	}
	return decide(t, spec, operator, r).Settings()
}

func TestExecGrants(t *testing.T) {
	in := settings(t, "agent", api.Limits{}, rules.Rules{})
	x, err := policy.DecideExec(api.ExecRequest{Argv: []string{"ls", "", "-l"}, Env: map[string]string{"B": "3"}}, in, operator, rules.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	if !x.Valid() || !slices.Equal(x.Argv(), []string{"ls", "", "-l"}) || x.Cwd() != "/src" || x.User() != "nobody" ||
		!maps.Equal(x.Env(), map[string]string{"A": "1", "B": "3"}) || x.Timeout() != 0 || x.MaxOutput() != 1<<20 || len(x.Adjusted()) != 0 {
		t.Errorf("granted %+v", x)
	}
	x, err = policy.DecideExec(api.ExecRequest{Shell: "a | b", Cwd: "/x//y/", User: "0:0", TTY: true, TimeoutMS: new(int64(1500)), MaxOutputBytes: 7}, in, operator, rules.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(x.Argv(), []string{"/bin/sh", "-c", "a | b"}) || x.Cwd() != "/x/y" || x.User() != "0:0" || !x.Request().Combined ||
		x.Timeout() != 1500*time.Millisecond || x.MaxOutput() != 7 {
		t.Errorf("granted %+v", x)
	}
	x, err = policy.DecideExec(api.ExecRequest{Python: "print(1)"}, in, operator, rules.Rules{})
	if err != nil || !slices.Equal(x.Argv(), []string{"python3", "-c", "print(1)"}) {
		t.Errorf("granted %+v, %v", x, err)
	}
}

func TestExecRefusals(t *testing.T) {
	in := settings(t, "agent", api.Limits{}, rules.Rules{})
	type req = api.ExecRequest
	const invalid, large = api.CodeInvalid, api.CodeTooLarge
	for name, c := range map[string]struct {
		req  req
		want want
	}{
		"nothing":            {req{}, want{invalid, "argv", "", "exactly one"}},
		"empty argv":         {req{Argv: []string{}}, want{invalid, "argv", "", "empty"}},
		"empty program":      {req{Argv: []string{"", "x"}}, want{invalid, "argv[0]", "", "empty"}},
		"argv and shell":     {req{Argv: []string{"a"}, Shell: "b"}, want{invalid, "", "", "exactly one"}},
		"shell and python":   {req{Shell: "a", Python: "b"}, want{invalid, "", "", "exactly one"}},
		"empty argv, shell":  {req{Argv: []string{}, Shell: "b"}, want{invalid, "", "", "exactly one"}},
		"NUL in argv":        {req{Argv: []string{"a", "b\x00c"}}, want{invalid, "argv[1]", "", "NUL"}},
		"NUL in shell":       {req{Shell: "b\x00c"}, want{invalid, "shell", "", "NUL"}},
		"script too long":    {req{Python: long(128 << 10)}, want{large, "python", "", "file"}},
		"argv too long":      {req{Argv: slices.Repeat([]string{long(64 << 10)}, 31)}, want{large, "argv", "", ""}},
		"too many arguments": {req{Argv: slices.Repeat([]string{"a"}, 4097)}, want{large, "argv", "", "4096"}},
		"env":                {req{Shell: "a", Env: map[string]string{"A=": ""}}, want{invalid, "env.A=", "", ""}},
		"cwd":                {req{Shell: "a", Cwd: "x"}, want{invalid, "cwd", "", "relative"}},
		"user":               {req{Shell: "a", User: "a b"}, want{invalid, "user", "", ""}},
		"stdin":              {req{Shell: "a", Stdin: make([]byte, 16<<20+1)}, want{large, "stdin", "", "stream"}},
		"terminal":           {req{Shell: "a", TTY: true, Rows: 60000}, want{invalid, "rows", "", ""}},
		"timeout negative":   {req{Shell: "a", TimeoutMS: new(int64(-1))}, want{invalid, "timeout_ms", "", "-1"}},
		"timeout absurd":     {req{Shell: "a", TimeoutMS: new(int64(math.MaxInt64))}, want{invalid, "timeout_ms", "", ""}},
		"output negative":    {req{Shell: "a", MaxOutputBytes: -1}, want{invalid, "max_output_bytes", "", ""}},
		"output too much":    {req{Shell: "a", MaxOutputBytes: 65 << 20}, want{invalid, "max_output_bytes", "", "64MiB"}},
	} {
		t.Run(name, func(t *testing.T) {
			x, err := policy.DecideExec(c.req, in, operator, rules.Rules{})
			if x.Valid() {
				t.Error("valid although refused")
			}
			c.want.check(t, err)
		})
	}
	_, err := policy.DecideExec(req{Shell: "a"}, in, tenant, rules.Rules{})
	want{code: api.CodeNotFound, says: `"box"`}.check(t, err)
	in.Profile = "gone"
	_, err = policy.DecideExec(req{Shell: "a"}, in, operator, rules.Rules{})
	want{code: api.CodeState, says: "gone"}.check(t, err)
}

// Together the sandbox's and the request's environment obey the same bound.
func TestExecEnvIsBoundedAsAWhole(t *testing.T) {
	half := func(prefix string) map[string]string {
		m := map[string]string{}
		for _, c := range "abcdefgh" {
			m[prefix+string(c)] = long(100 << 10)
		}
		return m
	}
	in := decide(t, api.SandboxSpec{Env: half("A")}, operator, rules.Rules{}).Settings()
	_, err := policy.DecideExec(api.ExecRequest{Shell: "a", Env: half("B")}, in, operator, rules.Rules{})
	want{code: api.CodeTooLarge, field: "env"}.check(t, err)
}

func TestExecTimeoutsAndOutput(t *testing.T) {
	refuse := mustParse(t, "profiles: {strict: {ceilings: {timeout: 10s, max_output: 2MiB}, clamp: []}}")
	locked := mustParse(t, "profiles: {fixed: {defaults: {timeout: 7s, max_output: 4KiB}, locked: [limits.timeout_ms, limits.max_output_bytes]}}")
	for name, c := range map[string]struct {
		profile string
		rules   rules.Rules
		limits  api.Limits
		timeout *int64
		output  int64
		used    time.Duration
		kept    int64
		adj     []api.Adjustment
		want    want
	}{
		"agent has none":        {profile: "agent", used: 0, kept: 1 << 20},
		"agent, unlimited":      {profile: "agent", limits: api.Limits{TimeoutMS: 5000}, timeout: new(int64(0)), used: 0, kept: 1 << 20},
		"the sandbox's":         {profile: "agent", limits: api.Limits{TimeoutMS: 5000, MaxOutputBytes: 99}, used: 5 * time.Second, kept: 99},
		"the profile's default": {profile: "default", used: 30 * time.Second, kept: 1 << 20},
		"under the ceiling":     {profile: "default", timeout: new(int64(120_000)), used: 2 * time.Minute, kept: 1 << 20},
		"clamped": {
			profile: "default", timeout: new(int64(120_001)), used: 2 * time.Minute, kept: 1 << 20,
			adj: []api.Adjustment{{Field: "timeout_ms", Asked: "120001", Used: "120000", Rule: "profiles.default.ceilings.timeout"}},
		},
		"unlimited is clamped": {
			profile: "offline_readonly", timeout: new(int64(0)), used: time.Minute, kept: 1 << 20,
			adj: []api.Adjustment{{Field: "timeout_ms", Asked: "0", Used: "60000", Rule: "profiles.offline_readonly.ceilings.timeout"}},
		},
		"a ceiling bounds what has no default": {profile: "strict", rules: refuse, used: 10 * time.Second, kept: 1 << 20},
		"refused": {
			profile: "strict", rules: refuse, timeout: new(int64(10_001)),
			want: want{api.CodeDenied, "timeout_ms", "profiles.strict.ceilings.timeout", "timeout: 10.001s"},
		},
		"unlimited is refused": {
			profile: "strict", rules: refuse, timeout: new(int64(0)),
			want: want{api.CodeDenied, "timeout_ms", "", "timeout: 0}"},
		},
		"output is refused": {
			profile: "strict", rules: refuse, output: 3 << 20,
			want: want{api.CodeDenied, "max_output_bytes", "profiles.strict.ceilings.max_output", "2MiB"},
		},
		"locked": {
			profile: "fixed", rules: locked, timeout: new(int64(1)), output: 5, used: 7 * time.Second, kept: 4096,
			adj: []api.Adjustment{
				{Field: "timeout_ms", Asked: "1", Used: "7000", Rule: "profiles.fixed.locked.limits.timeout_ms"},
				{Field: "max_output_bytes", Asked: "5", Used: "4096", Rule: "profiles.fixed.locked.limits.max_output_bytes"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := settings(t, c.profile, c.limits, c.rules)
			x, err := policy.DecideExec(api.ExecRequest{Shell: "a", TimeoutMS: c.timeout, MaxOutputBytes: c.output}, in, operator, c.rules)
			if c.want.code != "" {
				c.want.check(t, err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if x.Timeout() != c.used || x.MaxOutput() != c.kept || !slices.Equal(x.Adjusted(), c.adj) {
				t.Errorf("timeout %v output %d adjusted %+v; want %v %d %+v", x.Timeout(), x.MaxOutput(), x.Adjusted(), c.used, c.kept, c.adj)
			}
		})
	}
}

func TestDisabledDoesNotStopExec(t *testing.T) {
	in := settings(t, "agent", api.Limits{}, rules.Rules{})
	if _, err := policy.DecideExec(api.ExecRequest{Shell: "a"}, in, operator, mustParse(t, "enabled: false")); err != nil {
		t.Error(err)
	}
}
