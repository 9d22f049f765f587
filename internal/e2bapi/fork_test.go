package e2bapi

import (
	"net/http"
	"testing"
	"time"
)

// Forks have tokens and timeouts of their own; each that cannot be created has its error.
func TestFork(t *testing.T) {
	f := newFixture(t, hello)
	var parent sandboxAnswer
	f.want(http.StatusCreated, http.MethodPost, "/v2/sandboxes", `{"templateID":"base","timeout":600,"metadata":{"a":"b"},"network":{"allowPublicTraffic":false}}`, &parent)
	fork := "/sandboxes/" + parent.SandboxID + "/fork"
	var made []forkResult
	f.want(http.StatusCreated, http.MethodPost, fork, `{"count":8,"timeout":60}`, &made)
	if len(made) != 8 {
		t.Fatalf("%d results", len(made))
	}
	tokens := map[string]bool{parent.EnvdAccessToken: true, parent.TrafficAccessToken: true}
	for n, one := range made {
		if n >= 6 {
			if one.Sandbox != nil || one.Error == nil || one.Error.Code != http.StatusTooManyRequests {
				t.Errorf("result %d is %+v", n, one)
			}
			continue
		}
		for _, token := range []string{one.Sandbox.EnvdAccessToken, one.Sandbox.TrafficAccessToken} {
			if token == "" || tokens[token] {
				t.Errorf("result %d has a token of another: %q", n, token)
			}
			tokens[token] = true
		}
		d := f.eventually(one.Sandbox.SandboxID, stateRunning)
		if left := time.Until(d.EndAt); left > time.Minute || left < 50*time.Second || d.Metadata["a"] != "b" || d.TemplateID != "base" {
			t.Errorf("result %d is %+v", n, d)
		}
	}
	f.want(http.StatusCreated, http.MethodPost, fork, "", &made)
	if len(made) != 1 {
		t.Errorf("without a count: %d", len(made))
	}
	for _, body := range []string{`{"count":0}`, `{"count":101}`, `{"timeout":0}`, `{"timeout":99999999}`} {
		f.want(http.StatusBadRequest, http.MethodPost, fork, body, nil)
	}
	f.want(http.StatusNotFound, http.MethodPost, "/sandboxes/isbnone/fork", "", nil)
	f.core.noSuspend = true
	f.want(http.StatusNotImplemented, http.MethodPost, fork, "", nil)
	f.want(http.StatusNoContent, http.MethodPost, "/sandboxes/"+parent.SandboxID+"/pause", "", nil)
	f.want(http.StatusConflict, http.MethodPost, fork, "", nil)
}
