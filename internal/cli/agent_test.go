package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

func TestErrors(t *testing.T) {
	f := newFake(t)
	at := time.Date(2020, 11, 21, 9, 30, 0, 0, time.UTC)
	f.answers["GET /errors"] = api.ErrorList{Errors: []api.ErrorRecord{
		{Time: at, Stage: api.StageQuotaAfter, Code: api.CodeQuota, Message: "it is \x1b[2Jfull\nand more", Tenant: "red", RequestID: "rq-1", QueryID: "q-7", Sandbox: "sb-1"},
		{Time: at, Stage: api.StageBuild, Code: api.CodeDenied, Message: "no", Tenant: "red"},
	}}
	home := f.listen()
	got := runCLI(t, homeEnv(home), nil, nil, "errors", "--tenant", "red", "--limit", "5")
	lines := strings.Split(got.out, "\n")
	if got.status != 0 || got.err != "" || len(lines) != 4 || strings.Join(strings.Fields(lines[0]), " ") != "TIME TENANT STAGE CODE QUERY REQUEST MESSAGE" {
		t.Fatalf("%+v", got)
	}
	stamp := at.Local().Format(time.DateTime)
	for i, want := range []string{
		stamp + " red " + string(api.StageQuotaAfter) + " quota_exceeded q-7 rq-1 it is", stamp + " red build denied - - no",
	} {
		if row := strings.Join(strings.Fields(lines[i+1]), " "); !strings.HasPrefix(row, want) {
			t.Errorf("%q, want %q", row, want)
		}
	}
	if strings.Contains(got.out, "\x1b") {
		t.Errorf("%q reaches the terminal", got.out)
	}
	if !f.asked("GET /v1/errors?limit=5&tenant=red") {
		t.Errorf("asked %v", f.requests)
	}
	var list api.ErrorList
	if got := runCLI(t, homeEnv(home), nil, nil, "errors", "--json"); json.Unmarshal([]byte(got.out), &list) != nil || len(list.Errors) != 2 || list.Errors[0].Message != "it is \x1b[2Jfull\nand more" {
		t.Errorf("%+v", got)
	}
	f.answers["GET /errors"] = api.ErrorList{}
	if got := runCLI(t, homeEnv(home), nil, nil, "errors", "--json"); got != (result{0, "{\"errors\":[]}\n", ""}) {
		t.Errorf("none: %+v", got)
	}
	for _, bad := range [][]string{{"errors", "--limit", "0"}, {"errors", "more"}, {"errors", "--tenant", "a\xff"}} {
		if got := runCLI(t, homeEnv(home), nil, nil, bad...); got.status != 125 || got.out != "" || !strings.Contains(got.err, "hint: ") {
			t.Errorf("%v: %+v", bad, got)
		}
	}
}

func TestGuidance(t *testing.T) {
	f := newFake(t)
	f.answers["GET /guidance"] = api.Guidance{Text: "The workspace is mounted at /srv.\n- evil\x1b[2J\n", Workspace: "/srv", Profile: "agent", Network: "none"}
	home := f.listen()
	if got := runCLI(t, homeEnv(home), nil, nil, "guidance", "box"); got != (result{0, "The workspace is mounted at /srv.\n- evil\uFFFD[2J\n", ""}) {
		t.Errorf("%+v", got)
	}
	if !f.asked("GET /v1/guidance?sandbox=box") {
		t.Errorf("asked %v", f.requests)
	}
	var g api.Guidance
	got := runCLI(t, homeEnv(home), nil, nil, "guidance", "--profile", "agent", "--all-skills", "--json")
	if json.Unmarshal([]byte(got.out), &g) != nil || g.Workspace != "/srv" || !f.asked("GET /v1/guidance?all_skills=true&profile=agent") {
		t.Errorf("%+v, asked %v", got, f.requests)
	}
	f.refuse["GET /guidance"] = api.Errorf(api.CodeDisabled, "it is switched off")
	if got := runCLI(t, homeEnv(home), nil, nil, "guidance"); got.status != 125 && got.status != 126 || !strings.Contains(got.err, "it is switched off") || got.out != "" {
		t.Errorf("%+v", got)
	}
}

// TestStatus is what each reason looks like; that a daemon and a client tell them apart
// is tested where they do.
func TestStatus(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	f.status = api.Status{
		Version: "v9", Enabled: true, Available: true, Engine: api.EngineStatus{Name: "gvisor", Available: true}, Profile: "agent",
		Sandboxes: 3, Starting: 2, Queued: 1, RecentErrors: 4,
	}
	want := result{0, "available: engine gvisor, profile agent\nsandboxes: 3 live, 2 being made, 1 waiting for that\nrecent errors: 4\n", ""}
	if got := runCLI(t, homeEnv(home), nil, nil, "status"); got != want {
		t.Errorf("%+v", got)
	}
	for _, reason := range []api.StatusReason{api.ReasonDisabled, api.ReasonEngineDown, api.ReasonNoEngine} {
		f.status = api.Status{Version: "v9", Reason: reason, Message: "it is \x1bso", Engine: api.EngineStatus{Name: "docker"}}
		if got := runCLI(t, homeEnv(home), nil, nil, "status"); got.status != 1 || !strings.HasPrefix(got.out, "not available: "+string(reason)+": it is \uFFFDso\n") || got.err != "" {
			t.Errorf("%s: %+v", reason, got)
		}
		var st api.Status
		if got := runCLI(t, homeEnv(home), nil, nil, "status", "--json"); got.status != 1 || json.Unmarshal([]byte(got.out), &st) != nil || st.Reason != reason || st.Engine.Name != "docker" {
			t.Errorf("%s: %+v", reason, got)
		}
	}
	f.refuse["GET /status"] = api.Errorf(api.CodeInternal, "it broke")
	if got := runCLI(t, homeEnv(home), nil, nil, "status"); got.status != 1 || !strings.HasPrefix(got.out, "not available: failing: ") || !strings.Contains(got.out, "it broke") {
		t.Errorf("an error: %+v", got)
	}
	// Nothing was seen of a daemon, so nothing is said of its sandboxes.
	for what, env := range map[string]map[string]string{"no daemon": homeEnv(shortDir(t)), "none at the host": {client.EnvHost: "tcp://127.0.0.1:1"}} {
		got := runCLI(t, env, nil, nil, "status")
		if got.status != 1 || !strings.HasPrefix(got.out, "not available: never_connected: ") || strings.Contains(got.out, "sandboxes:") || !strings.Contains(got.out, "cloche serve") || got.err != "" {
			t.Errorf("%s: %+v", what, got)
		}
		var st api.Status
		if got := runCLI(t, env, nil, nil, "status", "--json"); got.status != 1 || json.Unmarshal([]byte(got.out), &st) != nil || st.Reason != api.ReasonNeverConnected {
			t.Errorf("%s: %+v", what, got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() }))
	defer hangs.Close()
	var out, errOut strings.Builder
	status := Main(ctx, []string{"status", "--host", hangs.URL}, command.Streams{Out: &out, Err: &errOut}, command.Env{Getenv: func(string) (string, bool) { return "", false }})
	if status == 0 || status == 1 || strings.Contains(out.String(), "available") {
		t.Errorf("interrupted: %d, %q, %q", status, out.String(), errOut.String())
	}
}

// TestBoxFlags are those that LangBot starts its own runtime with.
func TestBoxFlags(t *testing.T) {
	var got command.BoxOptions
	box := func(e *command.Env) {
		e.Box = func(_ context.Context, o command.BoxOptions) error { got = o; return nil }
	}
	in := strings.NewReader("")
	for args, want := range map[string]struct {
		address string
		port    int
		stdio   bool
	}{
		"box":                            {"", 5410, false},
		"box -s --ws-control-port 5411":  {"", 5411, true},
		"box --stdio-control":            {"", 5410, true},
		"box --host 0.0.0.0":             {"0.0.0.0", 5410, false},
		"box --ws-control-port 0 --json": {"", 0, false},
	} {
		got = command.BoxOptions{}
		r := runCLI(t, homeEnv(t.TempDir()), in, box, strings.Fields(args)...)
		if r != (result{}) || got.Address != want.address || got.Port != want.port || (got.In != nil) != want.stdio || (got.Out != nil) != want.stdio {
			t.Errorf("%s: %+v, %+v", args, r, got)
		}
	}
	for _, bad := range []string{"box --ws-control-port 65536", "box --ws-control-port -1", "box --ws-control-port x", "box more"} {
		if r := runCLI(t, homeEnv(t.TempDir()), in, box, strings.Fields(bad)...); r.status != 125 {
			t.Errorf("%s: %+v", bad, r)
		}
	}
	if r := runCLI(t, homeEnv(t.TempDir()), in, nil, "box"); r.status != 125 || !strings.Contains(r.err, "Linux") {
		t.Errorf("where no daemon can run: %+v", r)
	}
}
