//go:build linux

package guest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/test/freeport"
)

func TestReadiness(t *testing.T) {
	in := boot(t, nil)
	port := freeport.Free(t)
	serve := "import http.server as h\nclass H(h.BaseHTTPRequestHandler):\n n=0\n def do_GET(s):\n  H.n+=1\n  s.send_response(503 if H.n<3 else 204); s.end_headers()\n def log_message(s,*a): pass\nh.HTTPServer(('127.0.0.1',%d),H).serve_forever()"
	for name, c := range map[string]struct {
		script string
		ready  api.Readiness
	}{
		"log line":       {"sleep 0.1; echo 'listening on 80'; sleep 100", api.Readiness{Log: `^listening on \d+$`}},
		"on stderr":      {"echo starting >&2; printf 'lis' >&2; sleep 0.1; echo 'tening' >&2; sleep 100", api.Readiness{Log: "^listening$"}},
		"prompt":         {"printf 'ready> '; sleep 100", api.Readiness{Log: "^ready> $"}},
		"after a flood":  {"head -c 3000000 /dev/zero | tr '\\0' x; echo; echo go; sleep 100", api.Readiness{Log: "^go$"}},
		"carriage":       {"printf 'go\\r\\n'; sleep 100", api.Readiness{Log: "^go$"}},
		"port":           {fmt.Sprintf("exec python3 -m http.server --bind 127.0.0.1 %d", port), api.Readiness{Port: port, IntervalMS: 20}},
		"http":           {fmt.Sprintf("exec python3 -c \""+serve+"\"", freeport.Free(t)), api.Readiness{IntervalMS: 20}},
		"already at end": {"echo go", api.Readiness{Log: "nothing of that"}},
	} {
		p := managedShell(c.script)
		if name == "http" {
			var n int
			fmt.Sscanf(c.script[strings.Index(c.script, "127.0.0.1',")+len("127.0.0.1',"):], "%d", &n)
			c.ready.HTTP = &api.HTTPProbe{Port: n, Path: "/health"}
		}
		p.Spec.Ready = &c.ready
		if r := in.must(t, p); r.State == api.ProcessReady && name != "prompt" && name != "carriage" {
			t.Errorf("%s: ready at once", name)
		}
		r := until(t, in.Client, p.ExecID, func(r api.Process) bool { return r.ReadyAt != nil || r.State.Ended() })
		if name == "already at end" {
			if r.State != api.ProcessExited || r.ReadyAt != nil {
				t.Errorf("%s: %+v", name, r)
			}
			continue
		}
		if r.State != api.ProcessReady || r.ReadyAt == nil {
			t.Errorf("%s: %+v", name, r)
		}
		if err := in.RemoveProcess(within(t, time.Minute), p.ExecID); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReadinessTimesOutAndGoesOn(t *testing.T) {
	in := boot(t, nil)
	p := managedShell("read line; echo now; sleep 100")
	p.Spec.OpenStdin = true
	p.Spec.Ready = &api.Readiness{Log: "now", TimeoutMS: 100}
	in.must(t, p)
	r := until(t, in.Client, p.ExecID, func(r api.Process) bool { return r.Reason != "" })
	if r.State != api.ProcessRunning || r.Reason != "not ready after 100ms" {
		t.Fatalf("%+v", r)
	}
	if _, err := in.WriteStdin(t.Context(), p.ExecID, -1, []byte("\n")); err != nil {
		t.Fatal(err)
	}
	if r := until(t, in.Client, p.ExecID, func(r api.Process) bool { return r.State == api.ProcessReady }); r.Reason != "" {
		t.Fatalf("%+v", r)
	}
}
