package template_test

import (
	"reflect"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox/template"
)

// whole is what a captured sandbox had.
func whole() api.SandboxSpec {
	return api.SandboxSpec{
		Name: "old", Profile: "agent", Image: "python", Network: api.NetworkOn, Egress: &api.Egress{Allow: []string{"a.test"}}, Env: map[string]string{"A": "1", "B": "1"},
		Limits: api.Limits{MemoryBytes: 1 << 30, LifetimeMS: 1000, IdleMS: 500, TimeoutMS: 5, MaxOutputBytes: 10}, Labels: map[string]string{"of": "old"}, OnExpiry: api.ExpirySuspend, AutoResume: true,
		Persistent: new(false), User: "user",
	}
}

// A sandbox that continues from a memory has its own name, labels, times and environment, and everything else of the old one.
func TestComplete(t *testing.T) {
	got, err := template.Complete(api.SandboxSpec{
		Name: "new", Snapshot: "s", IdempotencyKey: "k", Env: map[string]string{"B": "2"}, Limits: api.Limits{IdleMS: 7}, Labels: map[string]string{"of": "new"}, Persistent: new(true),
	}, whole())
	want := whole()
	want.Name, want.Snapshot, want.IdempotencyKey, want.Labels, want.Persistent = "new", "s", "k", map[string]string{"of": "new"}, new(true)
	want.Env, want.Limits.LifetimeMS, want.Limits.IdleMS = map[string]string{"A": "1", "B": "2"}, 0, 7
	want.OnExpiry, want.AutoResume = "", false
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if got, err = template.Complete(api.SandboxSpec{Limits: api.Limits{TimeoutMS: 6}}, whole()); err != nil || got.Limits.TimeoutMS != 6 || got.Name != "" || got.Labels != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	if w := whole(); w.Env["B"] != "1" {
		t.Error("the environment of the old one has changed")
	}
}

// What the processes know is refused with its field, unless it is what the old one had.
func TestCompleteRefuses(t *testing.T) {
	for field, asked := range map[string]api.SandboxSpec{
		"":                    {Profile: "agent", Image: "python", Network: api.NetworkOn, Egress: &api.Egress{Allow: []string{"a.test"}}},
		"image":               {Image: "node"},
		"network":             {Network: api.NetworkNone},
		"egress":              {Egress: &api.Egress{Allow: []string{"b.test"}}},
		"profile":             {Profile: "default"},
		"engine":              {Engine: "native"},
		"user":                {User: "user"},
		"cwd":                 {Cwd: "/"},
		"mounts":              {Mounts: []api.Mount{{Source: "/a", Target: "/a"}}},
		"workspace":           {Workspace: &api.Workspace{Path: "/w"}},
		"secrets":             {Secrets: []api.SecretUse{{Name: "key"}}},
		"files":               {Files: []api.File{{Path: "/f"}}},
		"endpoints":           {Endpoints: []api.Endpoint{{Name: "e"}}},
		"read_only_root":      {ReadOnlyRoot: new(true)},
		"sudo":                {Sudo: true},
		"skills":              {Skills: []api.SkillUse{{Name: "s"}}},
		"pull":                {Pull: api.PullAlways},
		"limits.memory_bytes": {Limits: api.Limits{MemoryBytes: 1, LifetimeMS: 5}},
		"limits.cpus":         {Limits: api.Limits{CPUs: 1, Pids: 4}},
	} {
		_, err := template.Complete(asked, whole())
		e, _ := err.(*api.Error) //nolint:errorlint // it is not wrapped
		switch {
		case field == "" && err != nil:
			t.Errorf("what it had: %v", err)
		case field != "" && (e == nil || e.Code != api.CodeInvalid || e.Field != field):
			t.Errorf("%s: %v", field, err)
		}
	}
}

// Every field of a request is carried, refused or the sandbox's own: a new one needs a decision here.
func TestCompleteKnowsEveryField(t *testing.T) {
	if got := reflect.TypeFor[api.SandboxSpec]().NumField(); got != 27 {
		t.Errorf("a SandboxSpec has %d fields: say in Complete and here what each is", got)
	}
}
