package policy_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func shellSpec(s api.ProcessSpec) api.ProcessSpec {
	s.Shell = "serve"
	return s
}

func TestProcessDefaults(t *testing.T) {
	in := decide(t, api.SandboxSpec{Name: "box", Profile: "default"}, operator, rules.Rules{}).Settings()
	asked := shellSpec(api.ProcessSpec{Ready: &api.Readiness{Port: 80}, Restart: &api.Restart{Policy: api.RestartAlways, BackoffMS: 60_000}})
	p, err := policy.DecideProcess(asked, in, operator, rules.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	// The profile's timeout is for execs, for whose end a caller waits.
	if p.Timeout() != 0 || !p.Valid() {
		t.Errorf("timeout %v, valid %t", p.Timeout(), p.Valid())
	}
	got := p.Spec()
	if want := (api.Readiness{Port: 80, TimeoutMS: 300_000, IntervalMS: 200}); *got.Ready != want {
		t.Errorf("readiness %+v, want %+v", *got.Ready, want)
	}
	if want := (api.Restart{Policy: "always", BackoffMS: 60_000, MaxBackoffMS: 60_000}); *got.Restart != want {
		t.Errorf("restart %+v, want %+v", *got.Restart, want)
	}
	if got.OnFull != api.OnFullDrop {
		t.Errorf("on_full %q", got.OnFull)
	}
	if asked.Ready.TimeoutMS != 0 || asked.Restart.MaxBackoffMS != 0 {
		t.Error("the request was changed")
	}
	again, err := policy.DecideProcess(got, in, operator, rules.Rules{})
	if err != nil || !reflect.DeepEqual(again.Spec(), got) {
		t.Errorf("deciding the granted spec again: %+v, %v", again.Spec(), err)
	}
	asked.TimeoutMS = new(int64(1500))
	if p, err = policy.DecideProcess(asked, in, operator, rules.Rules{}); err != nil || p.Timeout() != 1500*time.Millisecond {
		t.Errorf("a timeout that was asked for is %v, %v", p.Timeout(), err)
	}
}

func TestProcessRefusals(t *testing.T) {
	in := decide(t, api.SandboxSpec{Name: "box"}, operator, rules.Rules{}).Settings()
	const invalid, large = api.CodeInvalid, api.CodeTooLarge
	type spec = api.ProcessSpec
	ready := func(r api.Readiness) spec { return spec{Ready: &r} }
	restart := func(r api.Restart) spec { return spec{Restart: &r} }
	id := spec{}
	id.ExecID = "../up"
	for name, c := range map[string]struct {
		spec spec
		want want
	}{
		"id":              {id, want{invalid, "exec_id", "", "../up"}},
		"name":            {spec{Name: "a\x1b[2J"}, want{invalid, "name", "", ""}},
		"restore signal":  {spec{RestoreSignal: "SIGUSR1"}, want{invalid, "restore_signal", "", "such as USR1"}},
		"on full":         {spec{OnFull: "wait"}, want{invalid, "on_full", "", "drop or block"}},
		"no policy":       {restart(api.Restart{}), want{invalid, "restart.policy", "", "on-failure"}},
		"restarts":        {restart(api.Restart{Policy: "always", MaxRestarts: -1}), want{invalid, "restart.max_restarts", "", ""}},
		"back-off":        {restart(api.Restart{Policy: "always", BackoffMS: -1}), want{invalid, "restart.backoff_ms", "", ""}},
		"long back-off":   {restart(api.Restart{Policy: "always", MaxBackoffMS: 1 << 40}), want{invalid, "restart.max_backoff_ms", "", ""}},
		"nothing":         {ready(api.Readiness{}), want{invalid, "ready", "", "exactly one"}},
		"two ways":        {ready(api.Readiness{Port: 1, Log: "x"}), want{invalid, "ready", "", "exactly one"}},
		"port":            {ready(api.Readiness{Port: 70000}), want{invalid, "ready.port", "", "65535"}},
		"expression":      {ready(api.Readiness{Log: "("}), want{invalid, "ready.log", "", "regular"}},
		"long expression": {ready(api.Readiness{Log: long(2000)}), want{large, "ready.log", "", ""}},
		"no http port":    {ready(api.Readiness{HTTP: &api.HTTPProbe{}}), want{invalid, "ready.http.port", "", ""}},
		"http path":       {ready(api.Readiness{HTTP: &api.HTTPProbe{Port: 1, Path: "/a b"}}), want{invalid, "ready.http.path", "", ""}},
		"header by path":  {ready(api.Readiness{HTTP: &api.HTTPProbe{Port: 1, Path: "/\r\nX: y"}}), want{invalid, "ready.http.path", "", ""}},
		"ready time":      {ready(api.Readiness{Port: 1, TimeoutMS: -1}), want{invalid, "ready.timeout_ms", "", ""}},
		"ready pause":     {ready(api.Readiness{Port: 1, IntervalMS: -1}), want{invalid, "ready.interval_ms", "", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := policy.DecideProcess(shellSpec(c.spec), in, operator, rules.Rules{})
			if p.Valid() {
				t.Error("valid although refused")
			}
			c.want.check(t, err)
		})
	}
	_, err := policy.DecideProcess(api.ProcessSpec{}, in, operator, rules.Rules{})
	want{code: api.CodeInvalid, field: "argv"}.check(t, err)
	_, err = policy.DecideProcess(shellSpec(api.ProcessSpec{}), in, tenant, rules.Rules{})
	want{code: api.CodeNotFound, says: `"box"`}.check(t, err)
}

func TestLeases(t *testing.T) {
	const invalid = api.CodeInvalid
	set := mustParse(t, "profiles: {short: {defaults: {idle: 10m}, ceilings: {lifetime: 2h, idle: 1h}, clamp: [limits.idle_ms]}}\nretention: {for: 1h, count: 5}")
	if *set.Retention.For != rules.Duration(time.Hour) || set.Retention.Count != 5 {
		t.Errorf("retention %+v", set.Retention)
	}
	short := func(l api.Limits) api.SandboxSpec { return api.SandboxSpec{Profile: "short", Limits: l} }
	// Under a ceiling nothing is unlimited.
	if l := decide(t, short(api.Limits{}), tenant, set).Limits(); l.LifetimeMS != 7_200_000 || l.IdleMS != 600_000 {
		t.Errorf("defaults are %d and %d", l.LifetimeMS, l.IdleMS)
	}
	if p := decide(t, short(api.Limits{IdleMS: 7_200_000}), tenant, set); p.Limits().IdleMS != 3_600_000 || len(p.Adjusted()) != 1 {
		t.Errorf("clamped to %d, adjusted %+v", p.Limits().IdleMS, p.Adjusted())
	}
	_, err := policy.Decide(policy.Request{Spec: short(api.Limits{LifetimeMS: 7_200_001}), Facts: facts()}, tenant, set)
	want{api.CodeDenied, "limits.lifetime_ms", "profiles.short.ceilings.lifetime", "2h"}.check(t, err)
	_, err = policy.Decide(policy.Request{Spec: api.SandboxSpec{Limits: api.Limits{IdleMS: 5}}, Facts: facts()}, operator, rules.Rules{})
	want{code: invalid, field: "limits.idle_ms"}.check(t, err)

	transient := api.SandboxSpec{Transient: true}
	_, err = policy.Decide(policy.Request{Spec: transient, Facts: facts()}, operator, rules.Rules{})
	want{code: invalid, field: "transient", says: "hold"}.check(t, err)
	if _, err = policy.Decide(policy.Request{Spec: transient, Facts: facts(), Connected: true}, operator, rules.Rules{}); err != nil {
		t.Errorf("held: %v", err)
	}
	transient.Limits.IdleMS = 60_000
	if p := decide(t, transient, operator, rules.Rules{}); !p.Spec().Transient || !*p.Spec().Persistent {
		t.Errorf("granted %+v", p.Spec())
	}
	for _, bad := range []string{"retention: {count: -1}", "retention: {for: -1h}", "retention: {days: 3}"} {
		if _, err := rules.ParseRules([]byte(bad)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}
