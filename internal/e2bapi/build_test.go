package e2bapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// buildAnswer is the state of a build.
type buildAnswer struct {
	TemplateID, BuildID, Status string
	Tags                        []string
	LogEntries                  []buildLine
	Reason                      *buildReason
}

// begin requests a build of a template and starts it with the steps, in JSON.
func (f *fixture) begin(name, steps string) buildAnswer {
	f.Helper()
	var b buildAnswer
	f.want(http.StatusAccepted, http.MethodPost, "/v3/templates", fmt.Sprintf(`{"name":%q}`, name), &b)
	f.want(http.StatusAccepted, http.MethodPost, "/v2/templates/"+b.TemplateID+"/builds/"+b.BuildID, `{"fromImage":"e2bdev/base","steps":`+steps+`}`, nil)
	return b
}

// wait waits until a build has ended, and returns all of its log.
func (f *fixture) wait(b buildAnswer) buildAnswer {
	f.Helper()
	var all []buildLine
	for range 500 {
		var now buildAnswer
		f.want(http.StatusOK, http.MethodGet, fmt.Sprintf("/templates/%s/builds/%s/status?logsOffset=%d", b.TemplateID, b.BuildID, len(all)), "", &now)
		all = append(all, now.LogEntries...)
		if (now.Status == buildReady || now.Status == buildFailed) && len(now.LogEntries) == 0 {
			now.LogEntries = all
			return now
		}
		if len(now.LogEntries) == 0 {
			select {
			case <-f.Context().Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	f.Fatal("the build does not end")
	return b
}

// A build has a state, a log in pages, and the step that failed.
func TestTemplateBuild(t *testing.T) {
	f := newFixture(t, hello)
	done := f.wait(f.begin("my-template", `[{"type":"RUN","args":["true"]},{"type":"ENV","args":["A","b"]}]`))
	if done.Status != buildReady || done.Reason != nil || !strings.Contains(fmt.Sprint(done.LogEntries), "[builder 1/2] RUN true") || !strings.Contains(fmt.Sprint(done.LogEntries), "no line end") {
		t.Errorf("%+v", done)
	}
	if bad := f.wait(f.begin("bad:v1", `[{"type":"RUN","args":["true"]},{"type":"RUN","args":["exit 1"]}]`)); bad.Status != buildFailed || bad.Reason == nil || bad.Reason.Step != "2" || !strings.Contains(bad.Reason.Message, "exit status 1") {
		t.Errorf("%+v, %+v", bad, bad.Reason)
	}
	// A newer build of the same tag ends an older one, and one of another tag does not.
	old, other := f.begin("wait", `[{"type":"RUN","args":["wait"]}]`), f.begin("wait:v2", `[{"type":"RUN","args":["wait"]}]`)
	f.wait(f.begin("wait", `[]`))
	if got := f.wait(old); got.Status != buildFailed || !strings.Contains(got.Reason.Message, "newer build") {
		t.Errorf("the older build: %+v", got)
	}
	var still buildAnswer
	f.want(http.StatusOK, http.MethodGet, "/templates/wait/builds/"+other.BuildID+"/status", "", &still)
	if still.Status != buildRunning {
		t.Errorf("the build of another tag: %+v", still)
	}
	f.want(http.StatusBadRequest, http.MethodPost, "/v2/templates/wait/builds/"+other.BuildID, `{"fromImage":"e2bdev/base"}`, nil)
	// Another tenant does not see it.
	f.want(http.StatusNotFound, http.MethodGet, "/templates/wait/builds/"+other.BuildID+"/status", "", nil, "X-API-Key", keyPrefix+"other")
}

// What a build refuses.
func TestTemplateBuildRefusals(t *testing.T) {
	f := newFixture(t, hello)
	for _, name := range []string{"", ":x", "name:", "Name", "a b", "../x", "x:y/z", strings.Repeat("a", 200)} {
		f.want(http.StatusBadRequest, http.MethodPost, "/v3/templates", fmt.Sprintf(`{"name":%q}`, name), nil)
	}
	var b buildAnswer
	f.want(http.StatusAccepted, http.MethodPost, "/v3/templates", `{"name":"team/x","tags":["b","a","a"]}`, &b)
	if b.TemplateID != "x" || fmt.Sprint(b.Tags) != "[a b]" {
		t.Errorf("%+v", b)
	}
	at := "/v2/templates/x/builds/" + b.BuildID
	for body, status := range map[string]int{
		`{}`:                                   http.StatusBadRequest,
		`{"fromImage":"a","fromTemplate":"b"}`: http.StatusBadRequest,
		`{"fromTemplate":"none"}`:              http.StatusNotFound,
		`{"fromImage":"a b"}`:                  http.StatusBadRequest,
		`{"fromImage":"a","fromImageRegistry":{"type":"registry"}}`:                                                           http.StatusNotImplemented,
		`{"fromImage":"a","steps":[{"type":"NONE","args":["x"]}]}`:                                                            http.StatusBadRequest,
		`{"fromImage":"a","steps":[{"type":"RUN","args":[]}]}`:                                                                http.StatusBadRequest,
		`{"fromImage":"a","steps":[{"type":"ENV","args":["x"]}]}`:                                                             http.StatusBadRequest,
		`{"fromImage":"a","steps":[{"type":"COPY","args":["x","y"],"filesHash":"../../x"}]}`:                                  http.StatusBadRequest,
		`{"fromImage":"a","steps":[` + strings.Repeat(`{"type":"RUN","args":["x"]},`, 1000) + `{"type":"RUN","args":["x"]}]}`: http.StatusBadRequest,
		`{"fromImage":`: http.StatusBadRequest,
	} {
		f.want(status, http.MethodPost, at, body, nil)
	}
	f.want(http.StatusNotFound, http.MethodPost, "/v2/templates/y/builds/"+b.BuildID, `{"fromImage":"a"}`, nil)
	f.want(http.StatusBadRequest, http.MethodGet, "/templates/x/builds/"+b.BuildID+"/status?logsOffset=-1", "", nil)
	f.want(http.StatusBadRequest, http.MethodGet, "/templates/x/files/nohash", "", nil)
	f.want(http.StatusNotFound, http.MethodGet, "/templates/none/tags", "", nil)
	f.want(http.StatusBadRequest, http.MethodPost, "/templates/tags", `{"target":"x:","tags":["a"]}`, nil)
	f.want(http.StatusNotFound, http.MethodPost, "/templates/tags", `{"target":"x:a","tags":["a"]}`, nil)
	f.want(http.StatusBadRequest, http.MethodDelete, "/templates/tags", `{"name":"x","tags":["default"]}`, nil)
	// An upload needs its link, and is whole or not there.
	hash := strings.Repeat("0a", 32)
	var link struct {
		Present bool
		URL     string
	}
	f.want(http.StatusCreated, http.MethodGet, "/templates/x/files/"+hash, "", &link)
	path := strings.TrimPrefix(link.URL, f.url)
	if link.Present || !strings.HasPrefix(path, "/templates/uploads/") {
		t.Errorf("%+v", link)
	}
	for path, status := range map[string]int{"/templates/uploads/guess": http.StatusNotFound, path: http.StatusOK} {
		res := f.do(http.MethodPut, path, "a tar")
		_ = res.Body.Close()
		if res.StatusCode != status {
			t.Errorf("PUT %s: %d", path, res.StatusCode)
		}
	}
	f.want(http.StatusCreated, http.MethodGet, "/templates/x/files/"+hash, "", &link)
	if !link.Present {
		t.Error("the upload is not there")
	}
	f.want(http.StatusCreated, http.MethodGet, "/templates/x/files/"+hash, "", &link, "X-API-Key", keyPrefix+"other")
	if link.Present {
		t.Error("another tenant has the upload")
	}
}
