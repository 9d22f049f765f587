package e2bapi

import (
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"
)

// eventually waits until a sandbox has a state.
func (f *fixture) eventually(id, state string) (d detail) {
	f.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if f.want(http.StatusOK, http.MethodGet, "/sandboxes/"+id, "", &d); d.State == state {
			return d
		}
		<-time.After(20 * time.Millisecond)
	}
	f.Fatalf("the sandbox is %s, want %s", d.State, state)
	return d
}

// A sandbox is paused at its end, and resumed once by requests that come at the same time. Its end can be
// changed, and outlives the server.
func TestAutoPause(t *testing.T) {
	for name, noSuspend := range map[string]bool{"to the disk": false, "in memory": true} {
		t.Run(name, func(t *testing.T) { testAutoPause(t, noSuspend) })
	}
}

func testAutoPause(t *testing.T, noSuspend bool) {
	f := newFixture(t, hello)
	f.core.noSuspend = noSuspend
	var sb sandboxAnswer
	f.want(http.StatusCreated, http.MethodPost, "/v2/sandboxes", `{"templateID":"base","timeout":600,"autoPause":true,"autoResume":{"enabled":true}}`, &sb)
	d := f.eventually(sb.SandboxID, stateRunning)
	if left := time.Until(d.EndAt); d.Lifecycle != (lifecycle{AutoResume: true, OnTimeout: "pause"}) || left < 9*time.Minute || left > 10*time.Minute {
		t.Errorf("%+v, ends in %s", d.Lifecycle, left)
	}
	f.want(http.StatusNoContent, http.MethodPost, "/sandboxes/"+sb.SandboxID+"/timeout", `{"timeout":1}`, nil)
	if d := f.eventually(sb.SandboxID, stateRunning); time.Until(d.EndAt) > time.Second {
		t.Errorf("it ends at %s", d.EndAt)
	}
	f.end()
	f.start()
	d = f.eventually(sb.SandboxID, statePaused)
	if time.Until(d.EndAt) > 0 {
		t.Errorf("it was paused at %s", d.EndAt)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			res := f.do(http.MethodGet, "/", "", headerID, sb.SandboxID, headerPort, strconv.Itoa(8000))
			defer res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Errorf("a request to a port of it: %s", res.Status)
			}
		})
	}
	wg.Wait()
	if n := f.core.resumed.Load(); n != 1 {
		t.Errorf("it was resumed %d times", n)
	}
	f.eventually(sb.SandboxID, stateRunning)
	f.eventually(sb.SandboxID, statePaused) // its timeout is one second
	f.want(http.StatusCreated, http.MethodPost, "/v2/sandboxes/"+sb.SandboxID+"/connect", `{"timeout":600}`, nil)
	f.want(http.StatusNoContent, http.MethodPost, "/sandboxes/"+sb.SandboxID+"/timeout", `{"timeout":0}`, nil)
	if d := f.eventually(sb.SandboxID, statePaused); d.State != statePaused {
		t.Errorf("after a timeout of 0: %s", d.State)
	}
	f.want(http.StatusNotImplemented, http.MethodPost, "/v2/sandboxes", `{"templateID":"base","autoPause":true,"autoPauseMemory":false}`, nil)
}
