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
}

// A sandbox that is paused without its memory is stopped, by request or at its end, and started again. It is not gone meanwhile,
// also after a restart of the server. One that was paused with its memory can be continued without it.
func TestColdPause(t *testing.T) {
	f := newFixture(t, hello)
	var sb sandboxAnswer
	create := func(more string) string {
		t.Helper()
		f.want(http.StatusCreated, http.MethodPost, "/v2/sandboxes", `{"templateID":"base","timeout":600`+more+`}`, &sb)
		return "/sandboxes/" + sb.SandboxID
	}
	counts := func(what string, started, resumed int32) {
		t.Helper()
		if s, r := f.core.started.Load(), f.core.resumed.Load(); s != started || r != resumed {
			t.Errorf("%s: started %d times and resumed %d times, want %d and %d", what, s, r, started, resumed)
		}
	}
	at := create("")
	f.want(http.StatusNoContent, http.MethodPost, at+"/pause", `{"memory":false}`, nil)
	f.want(http.StatusConflict, http.MethodPost, at+"/pause", `{"memory":false}`, nil)
	f.sweep()
	f.end()
	f.start()
	f.sweep()
	if d := f.eventually(sb.SandboxID, statePaused); time.Until(d.EndAt) > 0 {
		t.Errorf("it was paused at %s", d.EndAt)
	}
	f.want(http.StatusCreated, http.MethodPost, "/v2"+at+"/connect", `{"timeout":600}`, nil)
	f.eventually(sb.SandboxID, stateRunning)
	counts("a pause without memory", 1, 0)

	f.want(http.StatusNoContent, http.MethodPost, at+"/pause", "", nil)
	f.want(http.StatusCreated, http.MethodPost, "/v2"+at+"/connect", `{"timeout":600}`, nil)
	counts("then one with memory", 1, 1)
	f.want(http.StatusNoContent, http.MethodPost, at+"/pause", "", nil)
	f.want(http.StatusCreated, http.MethodPost, "/v2"+at+"/connect", `{"timeout":600,"memory":false}`, nil)
	f.eventually(sb.SandboxID, stateRunning)
	counts("then a restart of one with memory", 2, 1)

	at = create(`,"autoPause":true,"autoPauseMemory":false`)
	f.want(http.StatusNoContent, http.MethodPost, at+"/timeout", `{"timeout":0}`, nil)
	f.eventually(sb.SandboxID, statePaused)
	f.want(http.StatusCreated, http.MethodPost, "/v2"+at+"/connect", `{"timeout":1}`, nil)
	f.eventually(sb.SandboxID, statePaused) // its timeout is one second
	f.want(http.StatusCreated, http.MethodPost, "/v2"+at+"/connect", `{"timeout":600}`, nil)
	counts("at its end", 4, 1)
	f.want(http.StatusNoContent, http.MethodPost, at+"/pause", `{"memory":false}`, nil)
	f.want(http.StatusNoContent, http.MethodDelete, at, "", nil)
	f.want(http.StatusNotFound, http.MethodGet, at, "", nil)
}
