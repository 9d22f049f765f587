//go:build linux

package envd_test

import (
	"regexp"
	"testing"
)

func TestStartIsOnTheWireAsClientsReadIt(t *testing.T) {
	f := newFixture(t)
	got := f.stream(t, "process.Process/Start", `{"process":{"cmd":"/bin/bash","args":["-l","-c","echo hi"],"envs":{}},"stdin":false}`, map[string]string{"Connect-Timeout-Ms": "60000"})
	want := []string{`{"event":{"start":{"pid":\d+}}}`, `{"event":{"data":{"stdout":"aGkK"}}}`, `{"event":{"end":{"exited":true,"status":"exit status 0"}}}`, `{}`}
	if len(got) != len(want) {
		t.Fatalf("frames %v", got)
	}
	for i, w := range want {
		if !regexp.MustCompile("^" + w + "$").MatchString(got[i].body) {
			t.Errorf("frame %d is %s, want %s", i, got[i].body, w)
		}
		if last := i == len(want)-1; (got[i].flags == 2) != last {
			t.Errorf("frame %d has the flags %d", i, got[i].flags)
		}
	}
}
