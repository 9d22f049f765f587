package cli

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// serveEgress plays the egress of a daemon. Bodies are kept in files["body"].
func (f *fakeDaemon) serveEgress(w http.ResponseWriter, r *http.Request, p string) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	rules := api.EgressRules{
		Network: "on", Egress: api.Egress{Allow: []string{"pypi.org", "@npm"}, Deny: []string{"a.org"}, Requests: []api.RequestRule{{Host: "pypi.org", Methods: []string{"GET"}, Paths: []string{"/simple/*"}}}},
		Temporary: []api.TemporaryRule{{Rule: "@npm", ExpiresAt: at}}, Operator: []string{"egress.deny:b.org"},
	}
	ask := api.Approval{ID: "ap-1", Sandbox: "sb-1", SandboxName: "box", Name: "c.org", Port: 443, Rule: "c.org", State: api.ApprovalPending, AskedAt: time.Now().Add(-time.Minute)}
	switch r.Method + " " + p {
	case "GET /sandboxes/box/egress":
		answer(w, rules)
	case "PATCH /sandboxes/box/egress":
		f.keep(r)
		answer(w, rules)
	case "GET /sandboxes/box/egress/log":
		w.Header().Set("Content-Type", "application/x-ndjson")
		answer(w, api.EgressRecord{
			Seq: 1, Time: at, Kind: api.EgressClosed, Name: "pypi.org", Port: 443, Addr: "192.0.2.1", Protocol: "tls", Rule: "pypi.org",
			BytesOut: 517, BytesIn: 4096, DurationMS: 1200,
		})
		answer(w, api.EgressRecord{
			Seq: 4, Missed: 2, Time: at, Kind: api.EgressRefused, Name: "evil.org\x1b[2J\u202e", Rule: "egress.name", Reason: "it is in no list", Allow: "evil.org at 10.0.0.1/32",
		})
	case "GET /approvals":
		answer(w, api.ApprovalList{Approvals: []api.Approval{ask}})
	case "POST /approvals/ap-1":
		f.keep(r)
		ask.State = api.ApprovalApproved
		answer(w, ask)
	default:
		http.NotFound(w, r)
	}
}

func TestEgressVerbs(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	const rules = "WHAT      RULE                    UNTIL\nallow     pypi.org                -\nallow     @npm                    2026-01-02 03:04:05\ndeny      a.org                   -\n" +
		"request   GET pypi.org/simple/*   -\noperator  egress.deny:b.org       -\n"
	table := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	for _, tc := range []struct {
		args   string
		status int
		out    string
		err    string
		asked  string
		body   string
	}{
		{"egress rules box", 0, rules, "", "GET /v1/sandboxes/box/egress", ""},
		{"egress rules", 125, "", "want a sandbox", "", ""},
		{"egress allow box c.org,d.org:22 --for 10m", 0, rules, "", "PATCH", `{"allow":["c.org","d.org:22"],"for_ms":600000}`},
		{"egress allow box", 125, "", "want a sandbox and a rule", "", ""},
		{"egress allow box c.org --for 0", 125, "", "no time at all", "", ""},
		{"egress allow box c.org,", 125, "", "empty rule", "", ""},
		{"egress deny box *.c.org", 0, rules, "", "PATCH", `{"deny":["*.c.org"]}`},
		{"egress remove box pypi.org", 0, rules, "", "PATCH", `{"remove":["pypi.org"]}`},
		{"egress log --kind nonsense box", 125, "", "the kinds are", "", ""},
		{"egress log -n 7 --kind closed --kind refused box", 0, "", "2 records before this one", "GET /v1/sandboxes/box/egress/log?kind=closed&kind=refused&tail=7", ""},
		{"egress approvals", 0, "ID SANDBOX TO RULE STATE ASKED ap-1 box c.org:443 c.org pending 1m ago", "", "GET /v1/approvals", ""},
		{"egress approvals --all box", 0, "ID SANDBOX TO RULE STATE ASKED ap-1 box c.org:443 c.org pending 1m ago", "", "GET /v1/approvals?all=true&sandbox=box", ""},
		{"egress approve ap-1 --for 1m", 0, "ap-1 approved: c.org in box", "", "POST /v1/approvals/ap-1", `{"approve":true,"for_ms":60000}`},
		{"egress reject ap-1", 0, "ap-1 approved: c.org in box", "", "POST /v1/approvals/ap-1", `{"approve":false}`},
		{"egress approve", 125, "", "no approval was named", "", ""},
	} {
		f.files["body"] = ""
		res := runCLI(t, nil, nil, nil, append([]string{"--home", home}, strings.Fields(tc.args)...)...)
		if res.status != tc.status || tc.out != "" && table(res.out) != table(tc.out) || !strings.Contains(res.err, tc.err) {
			t.Errorf("%s: status %d, %q, %q", tc.args, res.status, res.out, res.err)
		}
		if tc.asked != "" && !f.asked(tc.asked) || strings.TrimSpace(f.files["body"]) != tc.body {
			t.Errorf("%s: sent %s", tc.args, f.files["body"])
		}
	}
	res := runCLI(t, nil, nil, nil, "--home", home, "egress", "log", "box")
	for _, want := range []string{
		"closed pypi.org:443 addr=192.0.2.1 protocol=tls rule=pypi.org out=517 B in=4 KiB time=1.2s\n",
		"refused evil.org\uFFFD[2J\uFFFD rule=egress.name allow='evil.org at 10.0.0.1/32' it is in no list\n",
	} {
		if !strings.Contains(res.out, want) {
			t.Errorf("the log is %q, want %q in it", res.out, want)
		}
	}
}

func TestEgressFlags(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	for _, tc := range []struct {
		args []string
		want *api.Egress
		bad  string
	}{
		{nil, nil, ""},
		{[]string{"--net", "on"}, nil, ""},
		{[]string{"--allow", "a.org, *.b.org:22", "--allow", "db at 10.0.0.0/8,192.168.0.0/16,c.org"}, &api.Egress{Allow: []string{"a.org", "*.b.org:22", "db at 10.0.0.0/8,192.168.0.0/16", "c.org"}}, ""},
		{[]string{"--deny", "a.org", "--ask"}, &api.Egress{Deny: []string{"a.org"}, Ask: true}, ""},
		{[]string{"--allow-request", "get,head a.org/v1/*,/v2"}, &api.Egress{Allow: []string{"a.org"}, Requests: []api.RequestRule{{Host: "a.org", Methods: []string{"GET", "HEAD"}, Paths: []string{"/v1/*", "/v2"}}}}, ""},
		{[]string{"--allow-request", "a.org", "--allow", "a.org"}, &api.Egress{Allow: []string{"a.org"}, Requests: []api.RequestRule{{Host: "a.org"}}}, ""},
		{[]string{"--allow", ""}, nil, "empty rule"},
		{[]string{"--allow-request", "GET /x"}, nil, "names no host"},
	} {
		f.spec = api.SandboxSpec{}
		res := runCLI(t, nil, nil, nil, append([]string{"--home", home, "create"}, tc.args...)...)
		if (res.status != 0) != (tc.bad != "") || !strings.Contains(res.err, tc.bad) {
			t.Errorf("%q: status %d: %s", tc.args, res.status, res.err)
		}
		got, _ := json.Marshal(f.spec.Egress)
		want, _ := json.Marshal(tc.want)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %s, want %s", tc.args, got, want)
		}
	}
}

func TestRefusalsAreTold(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	f.program = func(*fakeProgram) api.Result {
		res := exited(7)
		for range 7 {
			res.Refusals = append(res.Refusals, api.EgressRefusal{Name: "evil.org\r\n", Port: 443, Rule: "egress.name", Reason: "it is in no list", Allow: "*.org"})
		}
		res.Refusals[0] = api.EgressRefusal{Name: "a.org", Method: "POST", Path: "/x", Port: 80, Rule: "egress.requests", Reason: "no"}
		return res
	}
	for want, args := range map[string][]string{
		"to allow it: --allow '*.org'\n":                   {"run", "--", "true"},
		"to allow it: cloche egress allow box '*.org'\n":   {"exec", "box", "--", "true"},
		"cloche: not let out: POST a.org:80/x: no (rule e": {"exec", "box", "--", "true"},
		"cloche: 2 connections more not let out\n":         {"exec", "box", "--", "true"},
	} {
		res := runCLI(t, nil, nil, nil, append([]string{"--home", home}, args...)...)
		if res.status != 7 || !strings.Contains(res.err, want) || strings.Contains(res.err, "\r") {
			t.Errorf("%q: status %d, %q, want %q", args, res.status, res.err, want)
		}
		if strings.Count(res.err, "\n") != 6 {
			t.Errorf("%q: %q", args, res.err)
		}
	}
	f.program = func(*fakeProgram) api.Result {
		res := exited(0)
		res.Refusals = []api.EgressRefusal{{Name: "evil.org", Rule: "egress.name", Reason: "no"}}
		return res
	}
	if res := runCLI(t, nil, nil, nil, "--home", home, "exec", "box", "--", "true"); res.err != "" {
		t.Errorf("a command that did well is told of: %q", res.err)
	}
}
