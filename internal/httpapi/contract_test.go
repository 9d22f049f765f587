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

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/getkin/kin-openapi/openapi3"
)

func contract(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI())
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
		cloche.Error{}, cloche.Mount{}, cloche.Workspace{}, cloche.File{}, cloche.Limits{}, cloche.SandboxSpec{},
		cloche.Adjustment{}, cloche.Unenforced{}, cloche.Sandbox{}, cloche.SandboxList{}, cloche.StopOptions{},
		cloche.ExecRequest{}, cloche.StreamCounts{}, cloche.Chunk{}, cloche.Result{}, cloche.RunRequest{},
		cloche.RunResult{}, cloche.Process{}, cloche.LogEntry{}, cloche.FileInfo{}, cloche.FileList{}, cloche.TarSkip{},
		cloche.TarReport{}, cloche.Image{}, cloche.ImageList{}, cloche.EngineStatus{}, cloche.Status{},
		cloche.Enforcement{}, cloche.Problem{}, cloche.EngineReport{}, cloche.Doctor{}, client.Version{}, cloche.Size{},
		cloche.Started{}, cloche.ClientMessage{}, cloche.ServerMessage{},
	}
	for _, v := range types {
		typ := reflect.TypeOf(v)
		ref := doc.Components.Schemas[typ.Name()]
		if ref == nil {
			t.Errorf("the contract has no schema %s", typ.Name())
			continue
		}
		var want []string
		for f := range typ.Fields() {
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
	for _, c := range cloche.Codes() {
		codes = append(codes, string(c))
	}
	if got := fmt.Sprint(doc.Components.Schemas["Code"].Value.Enum); got != fmt.Sprint(codes) {
		t.Errorf("the contract's codes are %v, want %v", got, codes)
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
	const sb = "/v1/sandboxes/{ref}"
	js, bin, tarKind := "application/json", "application/octet-stream", "application/x-tar"
	spec := `{"name":"box","env":{"A":"b"},"labels":{"team":"red"},"files":[{"path":"/workspace/a","content":{"base64":"/w=="},"mode":384}],
		"limits":{"cpus":0.5,"pids":10},"workspace":{"path":"/srv"},"mounts":[{"source":"/a","target":"/b","read_only":true}]}`
	for _, tc := range []struct {
		method, path, query, kind, body string
		status                          int
	}{
		{"POST", "/v1/sandboxes", "", js, spec, 201},
		{"POST", "/v1/sandboxes", "", js, spec, 409},
		{"POST", "/v1/sandboxes", "", js, `{"profile":"forbidden"}`, 403},
		{"POST", "/v1/sandboxes", "", js, `{"profile":"full"}`, 503},
		{"GET", "/v1/sandboxes", "label=team=red&state=running&limit=10", "", "", 200},
		{"GET", "/v1/sandboxes", "state=lost", "", "", 200},
		{"GET", "/v1/sandboxes", "limit=x", "", "", 400},
		{"GET", sb, "", "", "", 200},
		{"POST", sb + "/exec", "", js, `{"argv":["both"],"stdin":"x","timeout_ms":60000,"env":{"A":"b"},"cwd":"/","combined":true}`, 200},
		{"POST", sb + "/exec", "", js, `{"argv":["sleep"],"timeout_ms":1}`, 200},
		{"POST", sb + "/exec", "", js, `{"argv":["missing"]}`, 422},
		{"GET", sb + "/exec/stream", "", "", "", 400},
		{"GET", sb + "/processes", "", "", "", 200},
		{"GET", sb + "/processes", "x=y", "", "", 400},
		{"GET", sb + "/logs", "stream=stdout&tail=10", "", "", 200},
		{"GET", sb + "/logs", "tail=-1", "", "", 400},
		{"PUT", sb + "/files", "path=/workspace/f&mode=0600", bin, "content", 200},
		{"PUT", sb + "/files", "path=/nowhere/f", bin, "content", 404},
		{"GET", sb + "/files", "path=/workspace/f&offset=1&length=3", "", "", 200},
		{"GET", sb + "/files", "path=/nowhere", "", "", 404},
		{"GET", sb + "/files/stat", "path=/workspace/f", "", "", 200},
		{"GET", sb + "/files/stat", "path=/nowhere", "", "", 404},
		{"POST", sb + "/files/mkdir", "path=/workspace/d&mode=0755", "", "", 204},
		{"POST", sb + "/files/mkdir", "", "", "", 400},
		{"POST", sb + "/files/move", "path=/workspace/f&to=/workspace/d/%25ff%ff", "", "", 204},
		{"POST", sb + "/files/move", "path=/workspace/f", "", "", 400},
		{"GET", sb + "/files/list", "path=/workspace/d&limit=5", "", "", 200},
		{"GET", sb + "/files/list", "path=/nowhere", "", "", 404},
		{"GET", sb + "/tar", "path=/workspace/d", "", "", 200},
		{"GET", sb + "/tar", "path=/nowhere", "", "", 404},
		{"PUT", sb + "/tar", "path=/workspace/t", tarKind, archive.String(), 200},
		{"PUT", sb + "/tar", "path=/workspace/t", tarKind, strings.Repeat("not a tar", 100), 400},
		{"DELETE", sb + "/files", "path=/workspace/d&recursive=true", "", "", 204},
		{"DELETE", sb + "/files", "path=/workspace/d", "", "", 404},
		{"POST", "/v1/run", "", js, `{"spec":{},"exec":{"python":"print(6*7)"}}`, 200},
		{"POST", "/v1/run", "", js, `{"spec":{"profile":"fault"},"exec":{"shell":"true"}}`, 500},
		{"GET", "/v1/run/stream", "", "", "", 400},
		{"POST", sb + "/stop", "", js, `{"grace_ms":0}`, 200},
		{"POST", sb + "/stop", "", js, `{"grace_ms":"soon"}`, 400},
		{"POST", sb + "/kill", "", "", "", 200},
		{"POST", sb + "/kill", "x=y", "", "", 400},
		{"DELETE", sb, "", "", "", 204},
		{"DELETE", sb, "", "", "", 404},
		{"GET", sb, "", "", "", 404},
		{"GET", "/v1/images", "", "", "", 200},
		{"GET", "/v1/images", "x=y", "", "", 400},
		{"GET", "/v1/status", "", "", "", 200},
		{"GET", "/v1/status", "x=y", "", "", 400},
		{"GET", "/v1/doctor", "", "", "", 200},
		{"GET", "/v1/doctor", "x=y", "", "", 400},
		{"GET", "/v1/version", "", "", "", 200},
		{"GET", "/v1/version", "x=y", "", "", 400},
		{"GET", "/v1/openapi.yaml", "", "", "", 200},
		{"GET", "/v1/openapi.yaml", "x=y", "", "", 400},
	} {
		name := fmt.Sprintf("%s %s %d", tc.method, tc.path, tc.status)
		url := strings.ReplaceAll(tc.path, "{ref}", "box")
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
			// What the two WebSockets say is validated by TestContractHoldsInStreams.
			if !seen[fmt.Sprintf("%s %v", r, good)] && !(good && strings.HasSuffix(r, "/stream")) {
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

// TestContractHoldsInStreams validates the messages of both WebSockets, and the
// lines of a create with progress.
func TestContractHoldsInStreams(t *testing.T) {
	doc := contract(t)
	h := open(t)
	media := &openapi3.MediaType{Schema: doc.Components.Schemas["ServerMessage"]}
	resp, data := h.do("POST", "/v1/sandboxes", http.Header{"Content-Type": {"application/json"}, "Accept": {"application/x-ndjson"}}, strings.NewReader(`{"name":"box"}`))
	if resp.StatusCode != 201 || bytes.Count(data, []byte("\n")) != 3 {
		t.Fatalf("HTTP %d, want two steps and a sandbox: %s", resp.StatusCode, data)
	}
	for line := range bytes.Lines(data) {
		checkJSON(t, "create", media, line)
	}
	for path, first := range map[string]string{
		"/v1/sandboxes/box/exec/stream": `{"exec":{"argv":["both"]}}`,
		"/v1/run/stream":                `{"run":{"spec":{},"exec":{"argv":["missing"]}}}`,
	} {
		ws := h.dialWS(path)
		ws.text(first)
		n := 0
		for _, m := range ws.rest() {
			if m.text {
				n++
				checkJSON(t, path, media, m.data)
			}
		}
		if n < 2 {
			t.Errorf("%s: %d text messages, want at least 2", path, n)
		}
	}
}
