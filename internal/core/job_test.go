//go:build linux

package core_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/test/freeport"
	"github.com/cloche-dev/cloche/test/longtest"
)

// sh is one command of a phase.
func sh(scripts ...string) *api.JobPhase {
	p := &api.JobPhase{}
	for _, s := range scripts {
		p.Commands = append(p.Commands, api.JobCommand{Shell: s})
	}
	return p
}

// ended runs a job to its end.
func (h *fixture) ended(t *testing.T, c core.Caller, spec api.JobSpec) api.Job {
	t.Helper()
	p, err := h.StartJob(t.Context(), c, spec)
	if err != nil {
		t.Fatal(err)
	}
	if p, err = h.FollowJob(t.Context(), c, p.ID, func(api.JobStep) error { return nil }); err != nil {
		t.Fatal(err)
	}
	return p
}

// reaches waits until a job is in a phase in which a command has begun.
func (h *fixture) reaches(t *testing.T, id, phase string) {
	t.Helper()
	seen := errors.New("seen")
	p, err := h.FollowJob(t.Context(), operator, id, func(s api.JobStep) error {
		if s.Phase == phase && (s.Command != nil || s.State == "waiting") {
			return seen
		}
		return nil
	})
	if !errors.Is(err, seen) {
		t.Fatalf("it never came to %s: %+v, %v", phase, p.Failure, err)
	}
}

// in is a job whose commands work in a directory of this machine: the imaginary one
// has no other.
func in(dir string) api.JobSpec {
	return api.JobSpec{Spec: &api.SandboxSpec{}, Cwd: dir, Run: *sh("true")}
}

func TestAJobHasItsOrder(t *testing.T) {
	h, dir := newFixture(t), t.TempDir()
	state := filepath.Join(dir, "state")
	spec := in(dir)
	look := func(phase string) string {
		return `echo ` + phase + ` $(cat tool) state=$(cat state 2>/dev/null) url=$URL both=$BOTH >> log`
	}
	model, early := strconv.Itoa(freeport.Free(t)), strconv.Itoa(freeport.Free(t))
	spec.Spec.Endpoints = []api.Endpoint{
		{Name: "model", Listen: "127.0.0.1:" + model, Target: api.TargetClient, Env: map[string]string{"URL": "{base}"}},
		{Name: "early", Listen: "127.0.0.1:" + early, Target: api.TargetClient, Phases: []string{"setup"}, Env: map[string]string{"BOTH": "{port}"}},
	}
	spec.Files = []api.File{{Path: filepath.Join(dir, "tool"), Content: api.Bytes("tool")}}
	spec.State = []api.File{{Path: state, Content: api.Bytes("7")}}
	spec.Setup, spec.PostSetup, spec.Score = sh(look("setup")), sh(look("post_setup")), sh(look("score"), "printf '\\377'")
	spec.Handlers = []api.JobHandler{{Name: "own", Commands: sh(look("handlers")).Commands}}
	spec.Channels = []api.ProcessSpec{{ExecRequest: api.ExecRequest{Shell: look("channels") + "; echo up; sleep 100"}, Ready: &api.Readiness{Log: "^up"}}}
	spec.Run = *sh(look("run"))
	spec.ScoreFile = filepath.Join(dir, "tool")
	spec.Outputs = []api.JobOutputSpec{{Path: filepath.Join(dir, "log"), MaxBytes: 5}, {Path: filepath.Join(dir, "none")}}
	before := clone(t, spec)
	p := h.ended(t, operator, spec)
	if p.State != api.JobSucceeded || p.Failure != nil || p.ReadyAt == nil || p.Cleanup != nil {
		t.Fatalf("%+v %+v", p, p.Failure)
	}
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	want := `setup tool state= url= both=` + early + `
post_setup tool state= url=http://127.0.0.1:` + model + ` both=
handlers tool state= url= both=
channels tool state=7 url=http://127.0.0.1:` + model + ` both=
run tool state=7 url=http://127.0.0.1:` + model + ` both=
score tool state=7 url=http://127.0.0.1:` + model + ` both=
`
	if string(log) != want {
		t.Errorf("the phases saw\n%s\nwant\n%s", log, want)
	}
	var order []string
	for _, ph := range p.Phases {
		order = append(order, ph.Phase)
	}
	if got := strings.Join(order, " "); got != "create files setup post_setup handlers state channels run score" {
		t.Errorf("order %s", got)
	}
	if p.Score == nil || string(p.Score.Output) != "\xff" || string(p.Score.File.Content) != "tool" || *p.Score.ExitCode != 0 {
		t.Errorf("score %+v", p.Score)
	}
	if o := p.Outputs; len(o) != 2 || string(o[0].Content) != "setup" || !o[0].Truncated || o[1].Error == nil || o[1].Error.Code != api.CodeNotFound {
		t.Errorf("outputs %+v", o)
	}
	if got, err := h.Job(t.Context(), operator, p.ID); err != nil || !reflect.DeepEqual(*got.Spec, before) || !reflect.DeepEqual(spec, before) {
		t.Errorf("the request on record is not the one that came: %+v, %v", got.Spec, err)
	}
	h.emptyFixture(t)
	h.holds(t, `"run_job"`, p.ID)
}

// clone is a request as it is sent.
func clone(t *testing.T, spec api.JobSpec) (out api.JobSpec) {
	t.Helper()
	data, err := json.Marshal(spec)
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// emptyFixture wants no sandbox to be left.
func (h *fixture) emptyFixture(t *testing.T) {
	t.Helper()
	if l, err := h.List(t.Context(), operator, api.ListOptions{}); err != nil || len(l.Sandboxes) != 0 {
		t.Errorf("%d sandboxes are left, %v", len(l.Sandboxes), err)
	}
}

// TestFailuresAreTyped makes every phase fail in every way.
func TestFailuresAreTyped(t *testing.T) {
	longtest.Skip(t, "it runs a job for each failure of each phase")
	h := newFixture(t)
	phases := map[string]func(*api.JobSpec, *api.JobPhase){
		api.PhaseSetup:     func(s *api.JobSpec, p *api.JobPhase) { s.Setup = p },
		api.PhasePostSetup: func(s *api.JobSpec, p *api.JobPhase) { s.PostSetup = p },
		api.PhaseHandlers: func(s *api.JobSpec, p *api.JobPhase) {
			s.Handlers = []api.JobHandler{{Name: "own", Commands: p.Commands}}
		},
		api.PhaseRun:   func(s *api.JobSpec, p *api.JobPhase) { s.Run = *p },
		api.PhaseScore: func(s *api.JobSpec, p *api.JobPhase) { s.Score = p },
	}
	for phase, put := range phases {
		for kind, tc := range map[api.FailureKind]struct {
			command string
			class   api.Class
			retry   bool
			during  func(t *testing.T, id string)
		}{
			api.FailureExit:    {"exit 3", api.ClassUser, false, nil},
			api.FailureTimeout: {"sleep 100", api.ClassLimit, false, nil},
			api.FailureRequest: {"", api.ClassUser, false, nil},
			api.FailureLost:    {"sleep 100", api.ClassInfra, true, func(t *testing.T, id string) { h.killSandboxOf(t, id) }},
			api.FailureEnded: {"sleep 100", api.ClassUser, false, func(t *testing.T, id string) {
				if err := h.Remove(t.Context(), operator, h.sandboxOf(t, id)); err != nil {
					t.Error(err)
				}
			}},
			api.FailureCanceled: {"sleep 100", api.ClassUser, false, func(t *testing.T, id string) {
				if p, err := h.CancelJob(t.Context(), operator, id); err != nil || p.State != api.JobCanceled {
					t.Errorf("%+v, %v", p, err)
				}
			}},
		} {
			t.Run(phase+"/"+string(kind), func(t *testing.T) {
				dir := t.TempDir()
				spec := in(dir)
				ph := sh("true", tc.command, "touch never")
				if kind == api.FailureRequest {
					ph.Commands[1] = api.JobCommand{Argv: []string{"no-such-job"}}
				}
				if kind == api.FailureTimeout {
					ph.Commands[1].TimeoutMS = 50
				}
				put(&spec, ph)
				p, err := h.StartJob(t.Context(), operator, spec)
				if err != nil {
					t.Fatal(err)
				}
				if tc.during != nil {
					h.reaches(t, p.ID, phase)
					h.second(t, p.ID)
					tc.during(t, p.ID)
				}
				if p, err = h.FollowJob(t.Context(), operator, p.ID, func(api.JobStep) error { return nil }); err != nil {
					t.Fatal(err)
				}
				f := p.Failure
				if f == nil || f.Kind != kind || f.Phase != phase || f.Class != tc.class || f.Retryable != tc.retry {
					t.Fatalf("%s: %+v", p.State, f)
				}
				if before := phase != api.PhaseRun && phase != api.PhaseScore; before == (p.ReadyAt != nil) {
					t.Errorf("ready at %v", p.ReadyAt)
				}
				if last := p.Phases[len(p.Phases)-1]; last.State != "failed" || len(last.Commands) != 2 {
					t.Errorf("%+v", last)
				}
				if _, err := os.Stat(filepath.Join(dir, "never")); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("a later command ran: %v", err)
				}
				h.emptyFixture(t)
			})
		}
	}
}

// second waits until the second command of the present phase runs.
func (h *fixture) second(t *testing.T, id string) {
	t.Helper()
	seen := errors.New("seen")
	_, err := h.FollowJob(t.Context(), operator, id, func(s api.JobStep) error {
		if s.Command != nil && *s.Command == 1 {
			return seen
		}
		return nil
	})
	if !errors.Is(err, seen) {
		t.Fatal(err)
	}
	// The command is on record before it is started.
	sb := h.sandboxOf(t, id)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		l, err := h.Processes(t.Context(), operator, sb)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range l {
			if p.Running {
				return
			}
		}
	}
	t.Fatal("nothing runs")
}

func (h *fixture) sandboxOf(t *testing.T, id string) string {
	t.Helper()
	p, err := h.Job(t.Context(), operator, id)
	if err != nil || p.Sandbox == nil {
		t.Fatalf("%+v, %v", p, err)
	}
	return p.Sandbox.ID
}

func (h *fixture) killSandboxOf(t *testing.T, id string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.dir, "owner", "sandboxes", h.sandboxOf(t, id), "sandbox.json"))
	if err != nil {
		t.Fatal(err)
	}
	var rec struct{ EngineState []byte }
	if err := errors.Join(json.Unmarshal(data, &rec), h.machine.Kill(rec.EngineState)); err != nil {
		t.Fatal(err)
	}
}

func TestACreateThatFails(t *testing.T) {
	h := newFixture(t)
	h.machine.SetFaults(fake.Faults{Create: map[fake.Step]error{fake.StepStart: errors.New("no machine")}})
	p := h.ended(t, operator, in("/"))
	if f := p.Failure; f == nil || f.Phase != api.PhaseCreate || f.Class != api.ClassInfra || !f.Retryable || p.Sandbox != nil {
		t.Errorf("%+v", p.Failure)
	}
	h.emptyFixture(t)
}

// TestACleanupThatFails is no failure of what had succeeded.
func TestACleanupThatFails(t *testing.T) {
	longtest.Skip(t, "it waits for retries of a teardown")
	h := newFixture(t)
	h.machine.SetFaults(fake.Faults{Fail: map[fake.Step]error{fake.StepKill: errors.New("stuck")}})
	p := h.ended(t, operator, in("/"))
	if p.State != api.JobSucceeded || p.Failure != nil || p.Cleanup == nil {
		t.Errorf("%s %+v cleanup %+v", p.State, p.Failure, p.Cleanup)
	}
}

func TestNothingBeginsThatIsNotGranted(t *testing.T) {
	h := newFixture(t)
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	for name, tc := range map[string]struct {
		change func(*api.JobSpec)
		field  string
	}{
		"no sandbox":     {func(s *api.JobSpec) { s.Spec = nil }, "spec"},
		"both":           {func(s *api.JobSpec) { s.Sandbox = "x" }, "sandbox"},
		"no run":         {func(s *api.JobSpec) { s.Run = api.JobPhase{} }, "run.commands"},
		"two ways":       {func(s *api.JobSpec) { s.Score = sh("x"); s.Score.Commands[0].Argv = []string{"y"} }, "score.commands[0].argv"},
		"network of run": {func(s *api.JobSpec) { s.Run.Network = "on" }, "run.network"},
		"setup network":  {func(s *api.JobSpec) { s.Setup = sh("x"); s.Setup.Network = "tunnel" }, "setup.network"},
		"setup egress": {func(s *api.JobSpec) {
			s.Setup = sh("x")
			s.Setup.Egress = &api.Egress{Allow: []string{"b.org"}}
		}, "egress.allow[0]"},
		"lifetime":         {func(s *api.JobSpec) { s.Setup = sh("x", "y"); s.Spec.Limits.LifetimeMS = 599_999 }, "spec.limits.lifetime_ms"},
		"handler":          {func(s *api.JobSpec) { s.Handlers = []api.JobHandler{{Name: "x"}} }, "handlers[0]"},
		"relative":         {func(s *api.JobSpec) { s.State = []api.File{{Path: "x"}} }, "state[0].path"},
		"outputs":          {func(s *api.JobSpec) { s.Outputs = []api.JobOutputSpec{{Path: "/x", MaxBytes: 1 << 30}} }, "outputs[0].max_bytes"},
		"snapshot":         {func(s *api.JobSpec) { s.Run.Snapshot = "x" }, "run.snapshot"},
		"inspect":          {func(s *api.JobSpec) { s.InspectFailedMS = -1 }, "inspect_failed_ms"},
		"score without":    {func(s *api.JobSpec) { s.ScoreFile = "/x" }, "score"},
		"a late bad score": {func(s *api.JobSpec) { s.Score = sh("x"); s.Score.Env = map[string]string{"A=": "b"} }, ""},
	} {
		spec := in("/")
		tc.change(&spec)
		_, err := h.StartJob(t.Context(), red, spec)
		if e := errorOf(t, err); tc.field != "" && e.Field != tc.field {
			t.Errorf("%s: field %s: %v", name, e.Field, e)
		}
	}
	h.emptyFixture(t)
	h.holds(t, `"run_job"`, `"refused"`)
	if l, err := h.Jobs(t.Context(), red, 0); err != nil || len(l.Jobs) != 0 {
		t.Errorf("%+v, %v", l, err)
	}
}

// TestJobsMeet: two jobs in one sandbox wait for each other, while a third sets
// something up there.
func TestJobsMeet(t *testing.T) {
	h, dir := newFixture(t), t.TempDir()
	box, err := h.Create(t.Context(), operator, api.SandboxSpec{Name: "box"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	meet := func(me, other string) api.JobSpec {
		s := in(dir)
		s.Spec, s.Sandbox = nil, "box"
		s.Setup = sh("mkdir lock && sleep 0.1 && rmdir lock")
		s.Run = *sh("touch " + me + "; until test -e " + other + "; do sleep 0.02; done")
		return s
	}
	var ids []string
	for _, pair := range [][2]string{{"a", "b"}, {"b", "a"}, {"c", "a"}} {
		p, err := h.StartJob(t.Context(), operator, meet(pair[0], pair[1]))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, p.ID)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, id := range ids {
		p, err := h.FollowJob(ctx, operator, id, func(api.JobStep) error { return nil })
		if err != nil || p.State != api.JobSucceeded {
			t.Errorf("%s %+v, %v", p.State, p.Failure, err)
		}
	}
	if _, err := h.Get(t.Context(), operator, box.ID); err != nil {
		t.Errorf("the sandbox is gone: %v", err)
	}
}

// TestACancelledJobLeavesNothingRunning in a sandbox that stays.
func TestACancelledJobLeavesNothingRunning(t *testing.T) {
	h, dir := newFixture(t), t.TempDir()
	if _, err := h.Create(t.Context(), operator, api.SandboxSpec{Name: "box"}, nil); err != nil {
		t.Fatal(err)
	}
	s := in(dir)
	s.Spec, s.Sandbox = nil, "box"
	s.Channels = []api.ProcessSpec{{ExecRequest: api.ExecRequest{Shell: "sleep 1000"}}}
	s.Run = *sh("true", "sleep 1000")
	p, err := h.StartJob(t.Context(), operator, s)
	if err != nil {
		t.Fatal(err)
	}
	h.reaches(t, p.ID, api.PhaseRun)
	h.second(t, p.ID)
	if p, err = h.CancelJob(t.Context(), operator, p.ID); err != nil || p.State != api.JobCanceled || p.Cleanup != nil {
		t.Fatalf("%+v, %v", p, err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		l, err := h.Processes(t.Context(), operator, "box")
		if err != nil {
			t.Fatal(err)
		}
		running := 0
		for _, pr := range l {
			if pr.Running {
				running++
			}
		}
		if running == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", l)
		}
	}
}

func TestHandlersOfTheCaller(t *testing.T) {
	h, dir := newFixture(t), t.TempDir()
	spec := in(dir)
	spec.Handlers = []api.JobHandler{{Name: "one", Wait: true}, {Name: "two", Wait: true}}
	spec.Run = *sh("cat made")
	p, err := h.StartJob(t.Context(), operator, spec)
	if err != nil {
		t.Fatal(err)
	}
	id := p.ID
	h.reaches(t, id, api.PhaseHandlers)
	if p, err = h.Job(t.Context(), operator, id); err != nil || p.State != api.JobWaiting || p.Handler != "one" {
		t.Fatalf("%+v, %v", p, err)
	}
	if _, err := h.ContinueJob(t.Context(), operator, id, api.JobContinue{Handler: "two"}); !errors.Is(err, &api.Error{Code: api.CodeState}) {
		t.Errorf("another handler: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "made"), []byte("outside"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := h.ContinueJob(t.Context(), operator, id, api.JobContinue{Handler: "one"}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		_, err := h.ContinueJob(t.Context(), operator, id, api.JobContinue{Handler: "two"})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if p, err = h.FollowJob(t.Context(), operator, id, func(api.JobStep) error { return nil }); err != nil || p.State != api.JobSucceeded {
		t.Fatalf("%+v %v", p.Failure, err)
	}
	if out := p.Phases[len(p.Phases)-1].Commands[0].Result.Stdout; string(out) != "outside" {
		t.Errorf("%q", out)
	}
	spec.Handlers = []api.JobHandler{{Name: "late", Wait: true, TimeoutMS: 1}}
	if f := h.ended(t, operator, spec).Failure; f == nil || f.Kind != api.FailureTimeout || f.Phase != api.PhaseHandlers {
		t.Errorf("%+v", f)
	}
	spec.Handlers[0].TimeoutMS = 0
	if p, err = h.StartJob(t.Context(), operator, spec); err != nil {
		t.Fatal(err)
	}
	h.reaches(t, p.ID, api.PhaseHandlers)
	if _, err := h.ContinueJob(t.Context(), operator, p.ID, api.JobContinue{Handler: "late", Failed: "no data"}); err != nil {
		t.Fatal(err)
	}
	p, err = h.FollowJob(t.Context(), operator, p.ID, func(api.JobStep) error { return nil })
	if err != nil || p.Failure == nil || p.Failure.Kind != api.FailureHandler || !strings.Contains(p.Failure.Message, "no data") {
		t.Errorf("%+v, %v", p.Failure, err)
	}
}

func TestAKeyIsOneJob(t *testing.T) {
	h := newFixture(t)
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	blue, _ := h.caller(t, api.KeySpec{Tenant: "blue"})
	spec := in("/")
	spec.IdempotencyKey = "k"
	first := h.ended(t, red, spec)
	again := h.ended(t, red, spec)
	other := h.ended(t, blue, spec)
	if first.ID != again.ID || other.ID == first.ID {
		t.Errorf("%s, %s, %s", first.ID, again.ID, other.ID)
	}
	spec.Run = *sh("false")
	_, err := h.StartJob(t.Context(), red, spec)
	if e := errorOf(t, err); e.Code != api.CodeConflict || e.Field != "idempotency_key" {
		t.Errorf("%+v", e)
	}
	for name, do := range map[string]func(id string) error{
		"get":    func(id string) error { _, err := h.Job(t.Context(), blue, id); return err },
		"cancel": func(id string) error { _, err := h.CancelJob(t.Context(), blue, id); return err },
		"continue": func(id string) error {
			_, err := h.ContinueJob(t.Context(), blue, id, api.JobContinue{})
			return err
		},
		"follow": func(id string) error {
			_, err := h.FollowJob(t.Context(), blue, id, func(api.JobStep) error { return nil })
			return err
		},
	} {
		foreign, missing := errorOf(t, do(first.ID)), errorOf(t, do("pg-0000000000000000"))
		if foreign.Code != api.CodeNotFound || foreign.Hint != missing.Hint {
			t.Errorf("%s: %+v, missing %+v", name, foreign, missing)
		}
	}
	if l, err := h.Jobs(t.Context(), blue, 0); err != nil || len(l.Jobs) != 1 || l.Jobs[0].ID != other.ID {
		t.Errorf("%+v, %v", l, err)
	}
}

// TestTheDaemonEnds in the middle of a job: that is on record, of a daemon that shuts
// down and of one that is killed.
func TestTheDaemonEnds(t *testing.T) {
	h := newFixture(t)
	spec := in("/")
	spec.Run = *sh("true", "sleep 1000")
	p, err := h.StartJob(t.Context(), operator, spec)
	if err != nil {
		t.Fatal(err)
	}
	h.reaches(t, p.ID, api.PhaseRun)
	// What a daemon finds that was killed here.
	killed := h.copyOfJobs(t)
	if err := h.CloseJobs(t.Context()); err != nil {
		t.Fatal(err)
	}
	p, err = h.Job(t.Context(), operator, p.ID)
	if err != nil || p.State != api.JobFailed || p.Failure.Kind != api.FailureInterrupted || p.Failure.Phase != api.PhaseRun || !p.Failure.Retryable {
		t.Errorf("%s %+v, %v", p.State, p.Failure, err)
	}
	h.emptyFixture(t)
	if _, err := h.StartJob(t.Context(), operator, spec); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("after the end: %v", err)
	}
	next := newFixtureOf(t, killed)
	next.RecoverJobs(t.Context())
	p, err = next.Job(t.Context(), operator, p.ID)
	if err != nil || p.State != api.JobFailed || p.Failure.Kind != api.FailureInterrupted || p.Failure.Phase != api.PhaseRun || p.EndedAt == nil ||
		p.Phases[len(p.Phases)-1].State != "failed" || p.Spec == nil {
		t.Errorf("%s %+v, %v", p.State, p.Failure, err)
	}
}

// copyOfJobs is what is on disk of jobs now. A draft that took its name while
// it was copied makes the copy begin again.
func (h *fixture) copyOfJobs(t *testing.T) string {
	t.Helper()
	for {
		dir := filepath.Join(t.TempDir(), "jobs")
		switch err := os.CopyFS(dir, os.DirFS(filepath.Join(h.dir, "jobs"))); {
		case err == nil:
			return dir
		case !errors.Is(err, os.ErrNotExist) || t.Context().Err() != nil:
			t.Fatal(err)
		}
	}
}
