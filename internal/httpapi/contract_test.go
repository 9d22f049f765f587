package httpapi_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/api/openapi"
	"github.com/cloche-dev/cloche/client"
	"github.com/getkin/kin-openapi/openapi3"
)

func contract(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(openapi.OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return doc
}

// TestContractHasTheRoutes compares document and mux, both ways.
func TestContractHasTheRoutes(t *testing.T) {
	var written []string
	for path, item := range contract(t).Paths.Map() {
		for method, op := range item.Operations() {
			written = append(written, method+" "+path)
			if op.Summary == "" || op.OperationID == "" || op.Responses.Default() == nil {
				t.Errorf("%s %s lacks a summary, an id or the error", method, path)
			}
		}
	}
	served := open(t).server.Routes()
	slices.Sort(written)
	slices.Sort(served)
	if !slices.Equal(written, served) {
		t.Errorf("the contract has\n%s\nthe server has\n%s", strings.Join(written, "\n"), strings.Join(served, "\n"))
	}
}

// TestContractHasTheFields compares the schemas with the Go types, both ways.
func TestContractHasTheFields(t *testing.T) {
	doc := contract(t)
	types := []any{
		api.Error{}, api.Mount{}, api.Workspace{}, api.File{}, api.Limits{}, api.SandboxSpec{},
		api.Adjustment{}, api.Unenforced{}, api.Sandbox{}, api.SandboxStats{}, api.MemoryParts{}, api.SandboxList{}, api.StopOptions{},
		api.ExecRequest{}, api.StreamCounts{}, api.Chunk{}, api.Result{}, api.RunRequest{},
		api.RunResult{}, api.Process{}, api.LogEntry{}, api.FileInfo{}, api.FileList{}, api.TarSkip{},
		api.Skill{}, api.SkillPreview{}, api.SkillList{}, api.SkillFault{}, api.SkillSpec{}, api.SkillChange{}, api.SkillUse{}, api.SkillFile{}, api.SkillFileList{}, api.SkillPreviewList{},
		api.RecordingInfo{}, api.RecordingList{}, api.EndpointReplay{}, api.TarReport{}, api.Image{}, api.ImageConfig{}, api.ImageLayer{}, api.ImageList{}, api.EngineStatus{}, api.Status{},
		api.Enforcement{}, api.Problem{}, api.EngineReport{}, api.Doctor{}, client.Version{}, api.Size{},
		api.Started{}, api.ClientMessage{}, api.ServerMessage{}, api.ProcessSpec{}, api.Restart{},
		api.Readiness{}, api.HTTPProbe{}, api.ProcessList{}, api.WaitRequest{}, api.SignalRequest{},
		api.StdinAck{}, api.AttachRequest{}, api.Gap{}, api.Event{},
		api.QuotaExcess{}, api.WorkspaceSpec{}, api.WorkspaceInfo{}, api.WorkspaceList{},
		api.PathRule{}, api.PathGlob{},
		api.Egress{}, api.RequestRule{}, api.EgressLimits{}, api.EgressRefusal{}, api.EgressRecord{}, api.EgressChange{}, api.EgressPolicy{}, api.EgressRules{},
		api.JobSpec{}, api.JobDir{}, api.JobPhase{}, api.JobCommand{}, api.JobHandler{}, api.JobContinue{}, api.JobOutputSpec{},
		api.Job{}, api.JobPhaseRecord{}, api.JobCommandRecord{}, api.JobScore{}, api.JobOutput{}, api.JobFailure{}, api.JobStep{},
		api.JobMessage{}, api.JobList{},
		api.TemporaryRule{}, api.Approval{}, api.ApprovalList{}, api.ApprovalAnswer{},
		api.KeySpec{}, api.Key{}, api.NewKey{}, api.KeyList{}, api.PolicyQuestion{}, api.PolicyAnswer{},
		api.PolicyStep{}, api.PolicyGrant{},
		api.Naming{}, api.Identity{}, api.ResolvedName{}, api.Info{}, api.InfoLimits{},
		api.AuditRecord{}, api.AuditFact{}, api.AuditUsed{}, api.AuditReport{}, api.AuditFinding{},
		api.AuditUsage{}, api.AuditUsageRow{},
		api.ErrorRecord{}, api.ErrorList{}, api.ToolRead{}, api.ToolText{}, api.ToolWrite{}, api.ToolWritten{}, api.ToolEdit{}, api.ToolGlob{}, api.ToolFiles{}, api.ToolFile{}, api.ToolGrep{}, api.ToolLines{}, api.ToolMatch{},
		api.Guidance{}, api.GuidanceSkill{},
		api.ForkRequest{}, api.ForkResult{}, api.SnapshotRequest{}, api.Snapshot{}, api.SnapshotList{}, api.PortSpec{}, api.OpenPort{}, api.OpenedPort{}, api.PortList{}, api.Change{}, api.Diff{},
	}
	for _, v := range types {
		typ := reflect.TypeOf(v)
		ref := doc.Components.Schemas[typ.Name()]
		if ref == nil {
			t.Errorf("the contract has no schema %s", typ.Name())
			continue
		}
		var want []string
		for _, f := range reflect.VisibleFields(typ) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); f.IsExported() && name != "" {
				want = append(want, name)
			}
		}
		var got []string
		for name := range ref.Value.Properties {
			got = append(got, name)
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("schema %s has %v, the type has %v", typ.Name(), got, want)
		}
	}
	var codes []string
	for _, c := range api.Codes() {
		codes = append(codes, string(c))
	}
	if got := fmt.Sprint(doc.Components.Schemas["Code"].Value.Enum); got != fmt.Sprint(codes) {
		t.Errorf("the contract's codes are %v, want %v", got, codes)
	}
}

// TestContractHasTheKinds compares the lists of what a string may be.
func TestContractHasTheKinds(t *testing.T) {
	doc := contract(t)
	if got := fmt.Sprint(doc.Components.Schemas["EventKind"].Value.Enum); got != fmt.Sprint(api.EventKinds()) {
		t.Errorf("the contract's kinds are %v, want %v", got, api.EventKinds())
	}
	if got := fmt.Sprint(doc.Components.Schemas["EgressKind"].Value.Enum); got != fmt.Sprint(api.EgressKinds()) {
		t.Errorf("the contract's kinds of records are %v, want %v", got, api.EgressKinds())
	}
	for _, s := range []api.State{api.StateRunning, api.StatePaused, api.StateLost} {
		if !slices.Contains(doc.Components.Schemas["State"].Value.Enum, any(string(s))) {
			t.Errorf("state %s is not in the contract", s)
		}
	}
}

// TestContractHoldsInAnswers makes one good and one bad request of every route
// and validates what comes back.
func TestContractHoldsInAnswers(t *testing.T) {
	doc := contract(t)
	h := open(t)
	seen := map[string]bool{}
	var archive bytes.Buffer
	tw := tar.NewWriter(&archive)
	if err := tw.WriteHeader(&tar.Header{Name: "in", Size: 2, Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	tw.Write([]byte("hi"))
	tw.Close()
	const sb, tools = "/v1/sandboxes/{ref}", "/v1/sandboxes/{ref}/tools"
	js, bin, tarKind := "application/json", "application/octet-stream", "application/x-tar"
	spec := `{"name":"box","network":"on","egress":{"allow":["pypi.org","@npm"],"deny":["a.org"],"requests":[{"host":"pypi.org","methods":["GET"],"paths":["/simple/*"]}],
		"ask":true,"limits":{"connections":5}},"env":{"A":"b"},"labels":{"team":"red"},"files":[{"path":"/workspace/a","content":{"base64":"/w=="},"mode":384}],
		"limits":{"cpus":0.5,"pids":10},"workspace":{"path":"/srv"},"mounts":[{"source":"/a","target":"/b","read_only":true}]}`
	for _, tc := range []struct {
		method, path, query, kind, body string
		status                          int
	}{
		{"POST", "/v1/sandboxes", "", js, spec, 201},
		{"POST", "/v1/sandboxes", "", js, spec, 409},
		{"POST", "/v1/run", "", js, `{"spec":{"workspace":{"dir":null,"size_bytes":null,"inodes":null}},"exec":{"python":"print(6*7)","timeout_ms":null}}`, 200},
		{"POST", "/v1/sandboxes", "", js, `{"profile":"forbidden"}`, 403},
		{"POST", "/v1/sandboxes", "", js, `{"profile":"full"}`, 503},
		{"POST", "/v1/sandboxes/stream", "", js, `{"name":"streamed"}`, 201}, // whatever it accepts
		{"POST", "/v1/sandboxes/stream", "", js, `{"profile":"forbidden"}`, 403},
		{"GET", "/v1/sandboxes", "label=team=red&state=running&limit=10", "", "", 200},
		{"GET", "/v1/sandboxes", "state=lost", "", "", 200},
		{"GET", "/v1/sandboxes", "limit=x", "", "", 400},
		{"GET", sb, "", "", "", 200},
		{"POST", sb + "/exec", "", js, `{"argv":["both"],"stdin":"x","timeout_ms":60000,"env":{"A":"b"},"cwd":"/","combined":true,"wait_endpoints":["model"]}`, 200},
		{"POST", sb + "/exec", "", js, `{"argv":["sleep"],"timeout_ms":1}`, 200},
		{"POST", sb + "/exec", "", js, `{"argv":["missing"]}`, 422},
		{"GET", sb + "/exec/stream", "", "", "", 400},
		{"POST", sb + "/heartbeat", "", "", "", 200},
		{"POST", sb + "/heartbeat", "x=y", "", "", 400},
		{"POST", sb + "/pause", "", "", "", 200}, {"POST", sb + "/pause", "", "", "", 409},
		{"POST", sb + "/resume", "", "", "", 200},
		{"POST", sb + "/resume", "", js, "{}", 409}, {"POST", sb + "/suspend", "", "", "", 200},
		{"POST", sb + "/suspend", "", "", "", 409}, {"POST", sb + "/resume", "", "", "", 200}, {"POST", sb + "/fork", "", js, `{"names":["forked"]}`, 200}, {"POST", sb + "/fork", "x=y", js, "{}", 400},
		{"POST", sb + "/processes", "", js, `{"exec_id":"one","name":"web","argv":["cat"],"open_stdin":true,"restart":{"policy":"on-failure","max_restarts":3},
			"ready":{"http":{"port":80,"path":"/"}},"on_full":"block","restore_signal":"USR1"}`, 201},
		{"POST", sb + "/processes", "", js, `{"exec_id":"one","argv":["echo"]}`, 409},
		{"POST", sb + "/processes", "", js, `{"argv":["missing"]}`, 422},
		{"GET", sb + "/processes", "", "", "", 200},
		{"GET", sb + "/processes", "x=y", "", "", 400},
		{"GET", sb + "/processes/{id}", "", "", "", 200},
		{"POST", sb + "/processes/{id}/wait", "", js, `{"ready":true}`, 200},
		{"POST", sb + "/processes/{id}/wait", "", js, `{"timeout_ms":"long"}`, 400},
		{"POST", sb + "/processes/{id}/resize", "", js, `{"rows":24,"cols":80}`, 204},
		{"POST", sb + "/processes/{id}/resize", "", js, `{"rows":0,"cols":0}`, 400},
		{"POST", sb + "/processes/{id}/stdin", "offset=0&end=false", bin, "input", 200},
		{"POST", sb + "/processes/{id}/stdin", "offset=100", bin, "input", 400},
		{"GET", sb + "/processes/{id}/attach", "", "", "", 400},
		{"POST", sb + "/processes/{id}/signal", "", js, `{"signal":"TERM","scope":"group"}`, 204},
		{"POST", sb + "/processes/{id}/signal", "", js, `{"signal":"NONE"}`, 400},
		{"POST", sb + "/processes/{id}/wait", "", "", "", 200},
		{"GET", sb + "/logs", "exec_id=one&since=-3&since_time=1700000000.5&follow=true&wait_ms=10", "", "", 200},
		{"DELETE", sb + "/processes/{id}", "", "", "", 204},
		{"DELETE", sb + "/processes/{id}", "", "", "", 404},
		{"GET", sb + "/processes/{id}", "", "", "", 404},
		{"GET", sb + "/ports/{port}", "", "", "", 400},
		{"POST", sb + "/endpoints", "", js, `{"name":"data","listen":"127.0.0.1:13131","target":"http://127.0.0.1:8080/v1","phases":["run"],"presets":["openai"],"env":{"A":"{base}"},"probe":true,
			"http":{"methods":["GET"],"paths":["/v1/*"],"set_headers":{"X-A":"b"},"secret_headers":{"X-B":"key"},"pass_headers":["Cookie"],"allow_origin":true},
			"limits":{"connections":1,"active":1,"request_bytes":1,"response_bytes":1,"connect_ms":1,"header_ms":1,"idle_ms":1}}`, 201},
		{"POST", sb + "/endpoints", "", js, `{"name":"data","target":"client"}`, 409},
		{"GET", sb + "/endpoints", "", "", "", 200},
		{"GET", sb + "/endpoints", "x=y", "", "", 400},
		{"GET", sb + "/endpoints/{name}", "", "", "", 200},
		{"PUT", sb + "/endpoints/{name}", "", js, `{"name":"data","target":"client"}`, 200},
		{"PUT", sb + "/endpoints/{name}", "", js, `{"name":"other","target":"client"}`, 400},
		{"GET", sb + "/endpoints/{name}/events", "follow=false&kind=endpoint.ready&after=0", "", "", 200},
		{"GET", sb + "/endpoints/{name}/events", "sandbox=box", "", "", 400},
		{"GET", sb + "/endpoints/{name}/serve", "", "", "", 400},
		{"DELETE", sb + "/endpoints/{name}", "grace_ms=0", "", "", 200},
		{"DELETE", sb + "/endpoints/{name}", "grace_ms=x", "", "", 400},
		{"GET", sb + "/endpoints/{name}", "", "", "", 404},
		{"POST", "/v1/jobs", "", js, `{"idempotency_key":"k","name":"n","labels":{"a":"b"},"spec":{},"keep":true,"inspect_failed_ms":1,"files":[{"path":"/a","content":"x"}],
			"dirs":[{"path":"/d","archive":{"base64":"/w=="}}],"env":{"A":"b"},"cwd":"/","user":"0","setup":{"commands":[{"shell":"x","stdin":"y","timeout_ms":5}],"env":{"A":"b"},
			"timeout_ms":1,"max_output_bytes":1,"network":"on","egress":{"allow":["a.org"]},"snapshot":"deps"},"handlers":[{"name":"own","wait":true,"timeout_ms":1}],
			"state":[{"path":"/s","content":"x"}],"channels":[{"argv":["x"],"phase":"channels"}],"run":{"commands":[{"argv":["x"]},{"python":"1"}]},"score":{"commands":[{"shell":"x"}]},
			"score_always":true,"score_file":"/r","outputs":[{"path":"/o","max_bytes":1}]}`, 200},
		{"POST", "/v1/jobs", "detach=true", js, `{"sandbox":"box","run":{"commands":[{"shell":"x"}]}}`, 202},
		{"POST", "/v1/jobs", "", js, `{"sandbox":"box","cancel_with_caller":true,"run":{"commands":[{"shell":"x"}]}}`, 200},
		{"POST", "/v1/jobs", "detach=true", js, `{"sandbox":"box","cancel_with_caller":true,"run":{"commands":[{"shell":"x"}]}}`, 400},
		{"POST", "/v1/jobs", "", js, `{"spec":{},"run":{"commands":[]}}`, 400},
		{"GET", "/v1/jobs", "limit=10", "", "", 200}, {"GET", "/v1/jobs", "limit=-1", "", "", 400},
		{"GET", "/v1/jobs/{job}", "", "", "", 200},
		{"GET", "/v1/jobs/{job}", "x=y", "", "", 400},
		{"POST", "/v1/jobs/{job}/continue", "", js, `{"handler":"own","failed":"no"}`, 200},
		{"POST", "/v1/jobs/{job}/continue", "", js, `{"handler":"other"}`, 409},
		{"DELETE", "/v1/jobs/{job}", "", "", "", 200},
		{"DELETE", "/v1/jobs/{job}", "x=y", "", "", 400},
		{"GET", "/v1/hold", "", "", "", 400},
		{"GET", "/v1/events", "sandbox=box&kind=sandbox.created&kind=process.exited&after=0&follow=false", "", "", 200},
		{"GET", "/v1/events", "kind=nonsense", "", "", 400},
		{"POST", sb + "/contexts", "", js, `{"id":"own","language":"python","cwd":"/","env":{"A":"b"},"user":"0"}`, 201}, {"POST", sb + "/contexts", "", js, `{"language":"cobol"}`, 501},
		{"GET", sb + "/contexts", "", "", "", 200}, {"GET", sb + "/contexts", "x=y", "", "", 400},
		{"POST", sb + "/code", "", js, `{"code":"1+1","context":"own","env":{"A":"b"},"timeout_ms":5}`, 200}, {"POST", sb + "/code", "", js, `{"code":"1","context":"none"}`, 404},
		{"POST", sb + "/contexts/{context}/restart", "", "", "", 204}, {"POST", sb + "/contexts/{context}/restart", "x=y", "", "", 400},
		{"DELETE", sb + "/contexts/{context}", "", "", "", 204}, {"DELETE", sb + "/contexts/{context}", "", "", "", 404},
		{"GET", sb + "/logs", "stream=stdout&tail=10", "", "", 200}, {"GET", sb + "/logs", "tail=-1", "", "", 400},
		{"PUT", sb + "/files", "path=/workspace/f&mode=0600", bin, "content", 200},
		{"PUT", sb + "/files", "path=/nowhere/f", bin, "content", 404},
		{"GET", sb + "/files", "path=/workspace/f&offset=1&length=3", "", "", 200},
		{"GET", sb + "/files", "path=/nowhere", "", "", 404},
		{"GET", sb + "/files/stat", "path=/workspace/f", "", "", 200}, {"GET", sb + "/files/stat", "path=/nowhere", "", "", 404},
		{"POST", sb + "/files/mkdir", "path=/workspace/d&mode=0755", "", "", 204}, {"POST", sb + "/files/mkdir", "", "", "", 400},
		{"POST", sb + "/files/move", "path=/workspace/f&to=/workspace/d/%25ff%ff", "", "", 204},
		{"POST", sb + "/files/move", "path=/workspace/f", "", "", 400},
		{"GET", sb + "/files/list", "path=/workspace/d&limit=5", "", "", 200}, {"GET", sb + "/files/list", "path=/nowhere", "", "", 404},
		{"GET", sb + "/files/watch", "path=/workspace/d&entries=true", "", "", 200}, {"GET", sb + "/files/watch", "path=/missing", "", "", 404},
		{"GET", sb + "/tar", "path=/workspace/d", "", "", 200}, {"GET", sb + "/tar", "path=/nowhere", "", "", 404},
		{"PUT", sb + "/tar", "path=/workspace/t", tarKind, archive.String(), 200},
		{"GET", sb + "/tar", "path=/workspace/d&exclude=.git&exclude=a/b&links=keep", "", "", 200},
		{"GET", sb + "/tar", "path=/workspace/d&links=some", "", "", 400},
		{"PUT", sb + "/tar", "path=/workspace/t&exclude=x&owner=keep&atomic=true&external_symlinks=reject", tarKind, archive.String(), 200},
		{"PUT", sb + "/tar", "path=/workspace/t&external_symlinks=no", tarKind, archive.String(), 400},
		{"PUT", sb + "/tar", "path=/workspace/t", tarKind, strings.Repeat("not a tar", 100), 400},
		{"DELETE", sb + "/files", "path=/workspace/d&recursive=true", "", "", 204},
		{"DELETE", sb + "/files", "path=/workspace/d", "", "", 404},
		{"POST", "/v1/run", "", js, `{"spec":{},"exec":{"python":"print(6*7)"}}`, 200},
		{"POST", "/v1/run", "", js, `{"spec":{"profile":"fault"},"exec":{"shell":"true"}}`, 500},
		{"GET", "/v1/run/stream", "", "", "", 400},
		{"GET", sb + "/diff", "scope=root&limit=2", "", "", 200},
		{"GET", sb + "/diff", "scope=workspace&cursor=two", "", "", 200},
		{"GET", sb + "/diff", "scope=mounts", "", "", 400},
		{"POST", sb + "/commit", "", "", "", 409},
		{"POST", sb + "/rollback", "", js, "{}", 409},
		{"POST", sb + "/snapshots", "", js, `{"name":"ready","scope":"files","labels":{"a":"b"}}`, 201},
		{"POST", sb + "/snapshots", "", js, `{"name":"ready"}`, 409},
		{"GET", "/v1/skills", "instructions=true", "", "", 200}, {"GET", "/v1/skills", "x=y", "", "", 400},
		{"POST", "/v1/skills", "", js, `{"name":"pdf","display_name":"PDF","description":"a","instructions":"b"}`, 201},
		{"POST", "/v1/skills", "", js, `{"name":"a b"}`, 400},
		{"POST", "/v1/skills/preview", "filename=a.zip&suffix=up&subdir=a", "application/zip", "PK", 200},
		{"POST", "/v1/skills/preview", "", "application/zip", "", 400},
		{"POST", "/v1/skills/install", "path=a/zed", "application/zip", "PK", 201},
		{"POST", "/v1/skills/install", "path=b", "application/zip", "PK", 400},
		{"POST", "/v1/skills/install", "", bin, "PK", 400},
		{"GET", "/v1/skills/{name}", "", "", "", 200},
		{"GET", "/v1/skills/{name}", "x=y", "", "", 400},
		{"PATCH", "/v1/skills/{name}", "", js, `{"description":"new"}`, 200},
		{"PATCH", "/v1/skills/{name}", "", js, `{"name":"new"}`, 400},
		{"GET", "/v1/skills/{name}/files", "path=a&hidden=true&limit=5", "", "", 200},
		{"GET", "/v1/skills/{name}/files", "limit=0", "", "", 400},
		{"GET", "/v1/skills/{name}/data", "path=SKILL.md", "", "", 200},
		{"GET", "/v1/skills/{name}/data", "path=none", "", "", 404},
		{"PUT", "/v1/skills/{name}/data", "path=a/b", bin, "text", 204},
		{"PUT", "/v1/skills/{name}/data", "path=a/b", js, "{}", 400},
		{"DELETE", "/v1/skills/{name}/data", "path=a/b", "", "", 204},
		{"DELETE", "/v1/skills/{name}/data", "", "", "", 400},
		{"DELETE", "/v1/skills/{name}", "", "", "", 204},
		{"DELETE", "/v1/skills/{name}", "x=y", "", "", 400},
		{"GET", "/v1/recordings", "", "", "", 200},
		{"GET", "/v1/recordings", "x=y", "", "", 400},
		{"GET", "/v1/recordings/{name}", "", "", "", 200},
		{"GET", "/v1/recordings/{name}", "x=y", "", "", 400},
		{"GET", "/v1/recordings/{name}/data", "", "", "", 200},
		{"GET", "/v1/recordings/{name}/data", "x=y", "", "", 400},
		{"PUT", "/v1/recordings/{name}/data", "", "application/jsonl", "{}", 201},
		{"PUT", "/v1/recordings/{name}/data", "", "application/jsonl", "", 409},
		{"PUT", "/v1/recordings/{name}/data", "", bin, "{}", 400},
		{"DELETE", "/v1/recordings/{name}", "", "", "", 204},
		{"DELETE", "/v1/recordings/{name}", "x=y", "", "", 400},
		{"GET", "/v1/snapshots", "", "", "", 200},
		{"GET", "/v1/snapshots", "x=y", "", "", 400},
		{"GET", "/v1/snapshots/{ref}", "", "", "", 404},
		{"DELETE", "/v1/snapshots/{ref}", "", "", "", 404},
		{"POST", sb + "/snapshots", "", js, `{"name":"box"}`, 201}, {"POST", sb + "/image", "", js, `{"name":"box:1"}`, 200}, {"POST", sb + "/image", "", js, `{"name":"Box"}`, 400},
		{"GET", "/v1/snapshots/{ref}", "", "", "", 200},
		{"DELETE", "/v1/snapshots/{ref}", "", "", "", 204},
		{"POST", sb + "/ports", "", js, `{"port":7,"ttl_ms":60000,"public":true,"keep_host":true}`, 201}, {"POST", sb + "/ports", "", js, `{"port":0}`, 400}, {"GET", sb + "/ports", "", "", "", 200},
		{"GET", sb + "/ports", "x=y", "", "", 400}, {"DELETE", sb + "/ports/{port}", "", "", "", 204}, {"DELETE", sb + "/ports/{port}", "x=y", "", "", 400}, {"GET", sb + "/egress", "", "", "", 200}, {"GET", sb + "/egress", "x=y", "", "", 400},
		{"PATCH", sb + "/egress", "", js, `{"allow":["a.org"],"deny":["b.org"],"remove":["deny c.org"],"for_ms":1000}`, 200},
		{"PATCH", sb + "/egress", "", js, `{"allow":["forbidden.org"]}`, 403},
		{"PUT", sb + "/egress", "", js, `{"network":"on","egress":{"allow":["a.org"]}}`, 200},
		{"PUT", sb + "/egress", "", js, `{"allow":["a.org"]}`, 400},
		{"GET", sb + "/egress/log", "kind=closed&kind=refused&after=0&tail=10&follow=false", "", "", 200},
		{"GET", sb + "/egress/log", "tail=-1", "", "", 400},
		{"GET", "/v1/approvals", "sandbox=box&all=true", "", "", 200},
		{"GET", "/v1/approvals", "x=y", "", "", 400},
		{"POST", "/v1/approvals/{approval}", "", js, `{"approve":true,"for_ms":1000}`, 200},
		{"POST", "/v1/approvals/{approval}", "", js, `{"approve":"yes"}`, 400},
		{"GET", sb + "/stats", "", "", "", 200}, {"GET", sb + "/stats", "x=y", "", "", 400},
		{"POST", sb + "/stop", "", js, `{"grace_ms":0}`, 200},
		{"POST", sb + "/commit", "", "", "", 200},
		{"POST", sb + "/rollback", "", "", "", 200},
		{"POST", sb + "/stop", "", js, `{"grace_ms":"soon"}`, 400},
		{"POST", sb + "/start", "", "", "", 200}, {"POST", sb + "/start", "x=y", "", "", 400},
		{"POST", sb + "/kill", "", "", "", 200}, {"POST", sb + "/kill", "x=y", "", "", 400},
		{"POST", sb + "/extend", "", js, `{"lifetime_ms": 60000}`, 200},
		{"POST", sb + "/extend", "", js, `{"lifetime": 60000}`, 400},
		{"POST", "/v1/batch/create", "", js, `{"specs": [{"name": "many", "idempotency_key": "k-1"}, {"profile": "full"}], "count": 1}`, 200},
		{"POST", "/v1/batch/create", "", js, `{"spec": {}}`, 400},
		{"POST", "/v1/batch/status", "", js, `{"ids": ["many", "nobody"]}`, 200},
		{"POST", "/v1/batch/status", "", js, `{"ids": "many"}`, 400},
		{"POST", "/v1/batch/remove", "", js, `{"ids": ["nobody"], "labels": {"team": "nobody"}, "idempotency_keys": ["k-2"]}`, 200},
		{"POST", "/v1/batch/remove", "", js, `{"ref": "many"}`, 400},
		{"DELETE", "/v1/sandboxes", "idempotency_key=k-1", "", "", 200},
		{"DELETE", "/v1/sandboxes", "", "", "", 400},
		{"DELETE", sb, "", "", "", 200},
		{"DELETE", sb, "", "", "", 404},
		{"GET", sb, "", "", "", 404},
		{"GET", "/v1/images", "", "", "", 200},
		{"POST", "/v1/images/pull", "", js, `{"image":"debian:12","platform":"linux/amd64"}`, 200},
		{"POST", "/v1/images/pull", "", js, `{"image":"gone:1"}`, 404},
		{"POST", "/v1/images/pull", "", js, `{"image":"forbidden:1"}`, 403},
		{"GET", "/v1/images/inspect", "image=debian:12", "", "", 200},
		{"GET", "/v1/images/inspect", "image=gone:1", "", "", 404},
		{"GET", "/v1/images/inspect", "", "", "", 400},
		{"POST", "/v1/images/import", "name=mine&format=tar&ref=a&platform=linux/amd64", bin, "archive", 200},
		{"POST", "/v1/images/import", "name=mine", bin, "", 400},
		{"POST", "/v1/images/import", "name=mine", js, "{}", 400},
		{"POST", "/v1/images/pack", "", js, `{"name":"base","paths":["/usr/bin/env"],"config":{"cmd":["env"]}}`, 200}, {"POST", "/v1/images/pack", "", js, `{"name":"base","paths":[]}`, 400},
		{"POST", "/v1/images/build", "", js, `{"name":"app:1","dockerfile":"FROM host\nRUN true\n"}`, 200}, {"POST", "/v1/images/build", "", js, `{"name":"app:1","dockerfile":"FROM host\nRUN false\n"}`, 409},
		{"GET", "/v1/images/export", "image=app:1", "", "", 200}, {"GET", "/v1/images/export", "image=none:1", "", "", 404},
		{"GET", "/v1/images", "", "", "", 200},
		{"DELETE", "/v1/images", "image=mine:latest", "", "", 204},
		{"DELETE", "/v1/images", "image=mine:latest", "", "", 404},
		{"DELETE", "/v1/images", "image=busy:1", "", "", 409},
		{"POST", "/v1/images/prune", "", js, `{"max_bytes":0,"dry_run":true}`, 200},
		{"POST", "/v1/images/prune", "", js, `{"max_bytes":1000}`, 200},
		{"POST", "/v1/images/prune", "", "", "", 400},
		{"GET", "/v1/images", "x=y", "", "", 400},
		{"POST", "/v1/workspaces", "", js, `{"name":"data","size_bytes":1073741824,"inodes":1000,"labels":{"team":"red"}}`, 201},
		{"POST", "/v1/workspaces", "", js, `{"name":"data"}`, 409},
		{"POST", "/v1/workspaces", "", js, `{"name":"Data"}`, 400},
		{"POST", "/v1/workspaces", "", js, `{"name":"big","size_bytes":1125899906842624}`, 501},
		{"POST", "/v1/workspaces", "", js, `{"name":"taken"}`, 201},
		{"GET", "/v1/workspaces", "", "", "", 200},
		{"GET", "/v1/workspaces", "x=y", "", "", 400},
		{"GET", "/v1/workspaces/{name}", "tenant=local", "", "", 200},
		{"GET", "/v1/workspaces/{name}", "tenant=foreign", "", "", 404},
		{"DELETE", "/v1/workspaces/{name}", "tenant=foreign", "", "", 404},
		{"DELETE", "/v1/workspaces/{name}", "", "", "", 204},
		{"DELETE", "/v1/workspaces/{name}", "", "", "", 404},
		{"GET", "/v1/audit", "after=0&tail=5&limit=9&since=2026-01-02T00:00:00Z&until=2027-01-01T00:00:00Z&tenant=local&sandbox=sb-1&verb=exec&outcome=ok&follow=false", "", "", 200},
		{"GET", "/v1/audit", "tenant=nobody", "", "", 403},
		{"GET", "/v1/audit", "after=-1", "", "", 400},
		{"GET", "/v1/audit/verify", "accept=7&anchor=17:" + strings.Repeat("0a", 32), "", "", 200},
		{"GET", "/v1/audit/verify", "anchor=17:abc", "", "", 400},
		{"GET", "/v1/audit/usage", "since=2026-01-02T00:00:00Z&until=2027-01-01T00:00:00Z&tenant=local&label=team", "", "", 200},
		{"GET", "/v1/audit/usage", "by=team", "", "", 400},
		{"POST", "/v1/keys", "", js, `{"tenant":"acme","name":"ci","verbs":["run"],"profiles":["agent"],"expires_in_ms":1000}`, 201},
		{"POST", "/v1/keys", "", js, `{"tenant":"acme","key":"mine"}`, 400},
		{"GET", "/v1/secrets", "", "", "", 200},
		{"GET", "/v1/secrets", "x=y", "", "", 400},
		{"GET", "/v1/keys", "", "", "", 200},
		{"GET", "/v1/keys", "x=y", "", "", 400},
		{"DELETE", "/v1/keys/{key}", "", "", "", 200},
		{"DELETE", "/v1/keys/{key}", "x=y", "", "", 400},
		{"POST", "/v1/policy/explain", "", js, `{"verb":"create","spec":{"profile":"agent"},"tenant":"acme"}`, 200},
		{"POST", "/v1/policy/explain", "", js, `{"spec":{"profile":"forbidden"}}`, 200},
		{"POST", "/v1/policy/explain", "", js, `{"spec":[]}`, 400},
		{"GET", "/v1/info", "", "", "", 200},
		{"GET", "/v1/info", "x=y", "", "", 400},
		{"POST", "/v1/names/resolve", "", js, `{"identity":{"launcher_type":"group","launcher_id":"5","variables":{"a":"b"}},"name_template":"{launcher_id}"}`, 200},
		{"POST", "/v1/names/resolve", "", js, `{"identity":{"user":"5"}}`, 400},
		{"GET", "/v1/status", "", "", "", 200},
		{"GET", "/v1/status", "x=y", "", "", 400},
		{"POST", tools + "/read", "", js, `{"path":"f","root":"/workspace","first_line":1,"lines":5}`, 200},
		{"POST", tools + "/read", "", js, `{"path":"gone","identity":{"launcher_id":"1"}}`, 404},
		{"POST", tools + "/read", "", js, `{"line":1}`, 400},
		{"POST", tools + "/write", "", js, `{"path":"f","content":"x"}`, 200},
		{"POST", tools + "/write", "x=y", js, `{"path":"f","content":"x"}`, 400},
		{"POST", tools + "/edit", "", js, `{"path":"f","old":"a","new":"b","all":true}`, 200},
		{"POST", tools + "/edit", "", js, `{"path":"f","old":1,"new":"b"}`, 400},
		{"POST", tools + "/glob", "", js, `{"pattern":"*","limit":5,"skip":[]}`, 200},
		{"POST", tools + "/glob", "", js, `{"pattern":"none"}`, 200},
		{"POST", tools + "/glob", "", js, `{"pattern":null}`, 400},
		{"POST", tools + "/grep", "", js, `{"pattern":"text","fixed":true,"ignore_case":true,"include":"*.go","limit":7}`, 200},
		{"POST", tools + "/grep", "", js, `{"pattern":"none"}`, 200},
		{"POST", tools + "/grep", "", js, `[]`, 400},
		{"GET", "/v1/errors", "tenant=local&limit=5", "", "", 200},
		{"GET", "/v1/errors", "tenant=nobody", "", "", 200},
		{"GET", "/v1/errors", "limit=0", "", "", 400},
		{"GET", "/v1/guidance", "", "", "", 200},
		{"GET", "/v1/guidance", "sandbox=box", "", "", 200},
		{"GET", "/v1/guidance", "profile=agent&all_skills=true", "", "", 200},
		{"GET", "/v1/guidance", "sandbox=../box", "", "", 404},
		{"GET", "/v1/guidance", "all_skills=maybe", "", "", 400},
		{"GET", "/v1/doctor", "", "", "", 200},
		{"GET", "/v1/doctor", "x=y", "", "", 400},
		{"GET", "/v1/metrics", "", "", "", 200}, {"GET", "/v1/metrics", "x=y", "", "", 400},
		{"GET", "/healthz", "", "", "", 200}, {"GET", "/healthz", "x=y", "", "", 400}, {"GET", "/readyz", "", "", "", 200}, {"GET", "/readyz", "x=y", "", "", 400},
		{"GET", "/v1/version", "", "", "", 200},
		{"GET", "/v1/version", "x=y", "", "", 400},
		{"GET", "/v1/openapi.yaml", "", "", "", 200},
		{"GET", "/v1/openapi.yaml", "x=y", "", "", 400},
	} {
		name := fmt.Sprintf("%s %s %d", tc.method, tc.path, tc.status)
		url := strings.NewReplacer("{ref}", "box", "{id}", "one", "{port}", "7", "{name}", "data", "{key}", "key-1", "{approval}", "ap-1", "{job}", "pg-1", "{context}", "own").Replace(tc.path)
		if tc.query != "" {
			url += "?" + tc.query
		}
		hd := http.Header{}
		if tc.kind != "" {
			hd.Set("Content-Type", tc.kind)
		}
		resp, data := h.do(tc.method, url, hd, strings.NewReader(tc.body))
		if resp.StatusCode != tc.status {
			t.Errorf("%s: HTTP %d: %s", name, resp.StatusCode, data)
			continue
		}
		op := doc.Paths.Find(tc.path).GetOperation(tc.method)
		checkQuery(t, name, op, tc.query, tc.status < 300)
		if tc.kind == js && tc.status < 300 {
			checkJSON(t, name+" request", op.RequestBody.Value.Content.Get(js), []byte(tc.body))
		}
		answer := op.Responses.Status(tc.status)
		if answer == nil {
			answer = op.Responses.Default()
		}
		seen[fmt.Sprintf("%s %s %v", tc.method, tc.path, tc.status < 300)] = true
		checkAnswer(t, name, answer.Value, resp, data)
	}
	for _, r := range h.server.Routes() {
		for _, good := range []bool{true, false} {
			// What the WebSockets say is validated by TestContractHoldsInStreams.
			_, path, _ := strings.Cut(r, " ")
			socket := doc.Paths.Find(path).Get != nil && doc.Paths.Find(path).Get.Responses.Status(101) != nil
			if !seen[fmt.Sprintf("%s %v", r, good)] && !(good && socket) {
				t.Errorf("no request of %s with success=%v was made", r, good)
			}
		}
	}
}

// checkQuery wants every parameter of a good request to be in the contract.
func checkQuery(t *testing.T, name string, op *openapi3.Operation, query string, good bool) {
	t.Helper()
	for p := range strings.SplitSeq(query, "&") {
		k, _, _ := strings.Cut(p, "=")
		if good && k != "" && op.Parameters.GetByInAndName("query", k) == nil {
			t.Errorf("%s: parameter %q is not in the contract", name, k)
		}
	}
}

func checkAnswer(t *testing.T, name string, want *openapi3.Response, resp *http.Response, data []byte) {
	t.Helper()
	if len(want.Content) == 0 {
		if len(data) != 0 {
			t.Errorf("%s: a body where the contract has none: %q", name, data)
		}
		return
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	media := want.Content.Get(kind)
	if err != nil || media == nil {
		t.Errorf("%s: content type %q is not in the contract", name, resp.Header.Get("Content-Type"))
		return
	}
	switch kind {
	case "application/json":
		checkJSON(t, name, media, data)
	case "application/x-ndjson":
		for line := range bytes.Lines(data) {
			checkJSON(t, name, media, line)
		}
	case "text/event-stream":
		for line := range bytes.Lines(data) {
			if v, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
				checkJSON(t, name, media, v)
			}
		}
	}
}

func checkJSON(t *testing.T, name string, media *openapi3.MediaType, data []byte) {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Errorf("%s: %v in %q", name, err, data)
		return
	}
	if err := media.Schema.Value.VisitJSON(v); err != nil {
		t.Errorf("%s: %v\nin %s", name, err, data)
	}
}

// TestContractHoldsInStreams validates the messages of the WebSockets, and the
// lines of a create with progress.
func TestContractHoldsInStreams(t *testing.T) {
	doc := contract(t)
	h := open(t)
	media := &openapi3.MediaType{Schema: doc.Components.Schemas["ServerMessage"]}
	// The second is how callers asked before the stream had a path of its own.
	for name, path := range map[string]string{"box": "/v1/sandboxes/stream", "older": "/v1/sandboxes"} {
		resp, data := h.do("POST", path, http.Header{"Content-Type": {"application/json"}, "Accept": {"application/x-ndjson"}}, strings.NewReader(`{"name":"`+name+`"}`))
		if resp.StatusCode != 201 || bytes.Count(data, []byte("\n")) != 3 {
			t.Fatalf("HTTP %d, want two steps and a sandbox: %s", resp.StatusCode, data)
		}
		for line := range bytes.Lines(data) {
			checkJSON(t, "create", media, line)
		}
	}
	resp, data := h.do("POST", "/v1/sandboxes/box/processes", http.Header{"Content-Type": {"application/json"}}, strings.NewReader(`{"exec_id":"one","argv":["cat"],"open_stdin":true}`))
	if resp.StatusCode != 201 {
		t.Fatalf("HTTP %d: %s", resp.StatusCode, data)
	}
	for path, first := range map[string][]string{
		"/v1/sandboxes/box/exec/stream":          {`{"exec":{"argv":["both"]}}`},
		"/v1/run/stream":                         {`{"run":{"spec":{},"exec":{"argv":["missing"]}}}`},
		"/v1/hold":                               {`{"hold":{"transient":true}}`, `{"signal":"TERM"}`},
		"/v1/sandboxes/box/processes/one/attach": {`{"attach":{"write":true,"rows":2,"cols":3}}`, "=input", `{"close_stdin":true}`},
	} {
		ws := h.dialWS(path)
		for _, m := range first {
			if in, ok := strings.CutPrefix(m, "="); ok {
				ws.binary(in)
			} else {
				ws.text(m)
			}
		}
		n := 0
		for _, m := range ws.rest() {
			if m.text {
				n++
				checkJSON(t, path, media, m.data)
			}
		}
		if n == 0 {
			t.Errorf("%s: no text message", path)
		}
	}
}

// TestContractHoldsInPulls validates the lines of a pull, to its end and to one
// that breaks off.
func TestContractHoldsInPulls(t *testing.T) {
	doc := contract(t)
	h := open(t)
	media := &openapi3.MediaType{Schema: doc.Components.Schemas["ServerMessage"]}
	head := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/x-ndjson"}}
	for image, want := range map[string][]string{
		"debian:12": {"pull resolve", "pull download", "pull done", "image debian:12"},
		"broken:1":  {"pull resolve", "pull download", "error unavailable"},
	} {
		resp, data := h.do("POST", "/v1/images/pull", head, strings.NewReader(fmt.Sprintf(`{"image":%q}`, image)))
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/x-ndjson" {
			t.Fatalf("%s: HTTP %d: %s", image, resp.StatusCode, data)
		}
		var got []string
		for line := range bytes.Lines(data) {
			checkJSON(t, image, media, line)
			var m api.ServerMessage
			if err := json.Unmarshal(line, &m); err != nil {
				t.Fatal(err)
			}
			switch {
			case m.Pull != nil:
				got = append(got, "pull "+string(m.Pull.Phase))
			case m.Image != nil:
				got = append(got, "image "+m.Image.Name)
			case m.Error != nil:
				got = append(got, "error "+string(m.Error.Code))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
	resp, data := h.do("POST", "/v1/images/pull", head, strings.NewReader(`{"image":"forbidden:1"}`))
	if resp.StatusCode != 403 || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("a refusal is HTTP %d: %s", resp.StatusCode, data)
	}
}
