//go:build linux

package envd_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/cloche-dev/cloche/internal/envdpb"
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

// started starts a process without a client that waits for its end, and returns its pid.
func (f *fixture) started(t *testing.T, body string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client := envdpb.NewProcessClient(&http.Client{Transport: withToken{}}, f.url, connect.WithProtoJSON())
	var req envdpb.StartRequest
	if err := protojson.Unmarshal([]byte(body), &req); err != nil {
		t.Fatal(err)
	}
	s, err := client.Start(ctx, connect.NewRequest(&req))
	if err != nil {
		t.Fatal(err)
	}
	if !s.Receive() {
		t.Fatal(s.Err())
	}
	return strconv.FormatUint(uint64(s.Msg().GetEvent().GetStart().GetPid()), 10)
}

// withToken adds the access token of the fixture.
type withToken struct{}

func (withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("X-Access-Token", token)
	return (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
}

func TestErrorsOfProcesses(t *testing.T) {
	f := newFixture(t)
	cat := f.started(t, `{"process":{"cmd":"cat"},"tag":"tagged"}`)
	closed := f.started(t, `{"process":{"cmd":"sleep","args":["60"]},"stdin":false}`)
	pty := f.started(t, `{"process":{"cmd":"cat"},"pty":{"size":{"cols":80,"rows":24}}}`)
	for _, c := range []struct {
		method, body string
		status       int
		code, text   string
	}{
		{"SendInput", `{"process":{"pid":` + cat + `},"input":{"stdin":"aGkK"}}`, 200, "", ""},
		{"SendInput", `{"process":{"tag":"tagged"},"input":{"stdin":"aGkK"}}`, 200, "", ""},
		{"SendInput", `{"process":{"pid":` + cat + `},"input":{"pty":"aGkK"}}`, 500, "internal", "no terminal"},
		{"SendInput", `{"process":{"pid":` + cat + `}}`, 501, "unimplemented", ""},
		{"SendInput", `{"process":{"pid":` + pty + `},"input":{"stdin":"aGkK"}}`, 500, "internal", "terminal"},
		{"SendInput", `{"process":{"pid":` + closed + `},"input":{"stdin":"aGkK"}}`, 500, "internal", "stdin not enabled or closed"},
		{"SendInput", `{"process":{"pid":4000000},"input":{"stdin":"aGkK"}}`, 404, "not_found", "process with pid 4000000 not found"},
		{"SendInput", `{"process":{"tag":"other"},"input":{"stdin":"aGkK"}}`, 404, "not_found", "process with tag other not found"},
		{"SendInput", `{"process":{},"input":{"stdin":"aGkK"}}`, 404, "not_found", ""},
		{"SendInput", `{"process":`, 400, "invalid_argument", ""},
		{"CloseStdin", `{"process":{"pid":` + pty + `}}`, 500, "unknown", "Ctrl-D"},
		{"CloseStdin", `{"process":{"pid":` + cat + `}}`, 200, "", ""},
		{"Update", `{"process":{"pid":` + closed + `},"pty":{"size":{"cols":100,"rows":20}}}`, 500, "internal", "no terminal"},
		{"Update", `{"process":{"pid":` + pty + `},"pty":{"size":{"cols":100,"rows":20}}}`, 200, "", ""},
		{"SendSignal", `{"process":{"pid":` + closed + `},"signal":"SIGNAL_UNSPECIFIED"}`, 501, "unimplemented", "SIGNAL_SIGTERM"},
		{"SendSignal", `{"process":{"pid":` + closed + `},"signal":2}`, 501, "unimplemented", ""},
		{"SendSignal", `{"process":{"pid":` + closed + `},"signal":"SIGNAL_SIGKILL"}`, 200, "", ""},
		{"SendSignal", `{"process":{"pid":` + pty + `},"signal":"SIGNAL_SIGKILL"}`, 200, "", ""},
		{"Nothing", `{}`, 404, "", ""},
	} {
		var status int
		var got map[string]any
		if c.method == "Nothing" {
			status, _, _ = f.do(t, http.MethodPost, "/process.Process/Nothing", nil, nil)
		} else {
			status, got = f.unary(t, "process.Process/"+c.method, c.body)
		}
		text, _ := got["message"].(string)
		if code, _ := got["code"].(string); status != c.status || code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%s %s answers %d %v, want %d %s %q", c.method, c.body, status, got, c.status, c.code, c.text)
		}
	}
}

func TestStartRefuses(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct{ body, user, code, text string }{
		{`{"process":{"cmd":""}}`, "", "invalid_argument", "cmd"},
		{`{}`, "", "invalid_argument", "cmd"},
		{`{"process":{"cmd":"true","cwd":"/no/where"}}`, "", "invalid_argument", "cwd '/no/where' does not exist"},
		{`{"process":{"cmd":"true","cwd":"~other/x"}}`, "", "invalid_argument", "~other"},
		{`{"process":{"cmd":"true","cwd":"a\u0000b"}}`, "", "invalid_argument", "NUL"},
		{`{"process":{"cmd":"true","args":["a\u0000b"]}}`, "", "invalid_argument", "NUL"},
		{`{"process":{"cmd":"true"}}`, "x", "unauthenticated", "invalid username: 'x'"},
		{`{"process":{"cmd":"true"}}`, "0:0", "unauthenticated", "invalid username"},
		{`{"process":{"cmd":"true"},"tag":"a\nb"}`, "", "invalid_argument", "name"},
	} {
		h := map[string]string{}
		if c.user != "" {
			h["Authorization"] = "Basic " + base64.StdEncoding.EncodeToString([]byte(c.user+":"))
		}
		got := f.stream(t, "process.Process/Start", c.body, h)
		var end struct {
			Error struct{ Code, Message string }
		}
		if err := json.Unmarshal([]byte(got[len(got)-1].body), &end); err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || end.Error.Code != c.code || !strings.Contains(end.Error.Message, c.text) {
			t.Errorf("%s as %q ends with %v, want %s %q", c.body, c.user, got, c.code, c.text)
		}
	}
}

// The SDKs read these ends as the results of commands.
func TestEnds(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct{ body, end string }{
		{`{"process":{"cmd":"sh","args":["-c","exit 3"]}}`, `{"exitCode":3,"exited":true,"status":"exit status 3","error":"exit status 3"}`},
		{`{"process":{"cmd":"sh","args":["-c","kill -KILL $$"]}}`, `{"exitCode":-1,"status":"signal: killed","error":"signal: killed"}`},
		{`{"process":{"cmd":"sh","args":["-c","kill -TERM $$"]}}`, `{"exitCode":-1,"status":"signal: terminated","error":"signal: terminated"}`},
		{`{"process":{"cmd":"no-such-program"}}`, `{"exitCode":127,"exited":true,"status":"exit status 127","error":"exit status 127"}`},
	} {
		got := f.stream(t, "process.Process/Start", c.body, nil)
		if n := len(got); n < 3 || got[n-2].body != `{"event":{"end":`+c.end+`}}` || got[n-1] != (frame{2, `{}`}) {
			t.Errorf("%s ends with %v, want %s", c.body, got, c.end)
		}
	}
}

func TestTimeoutKillsTheProcess(t *testing.T) {
	f := newFixture(t)
	got := f.stream(t, "process.Process/Start", `{"process":{"cmd":"sleep","args":["60"]}}`, map[string]string{"Connect-Timeout-Ms": "500"})
	if end := got[len(got)-1]; end.flags != 2 || !strings.Contains(end.body, `"deadline_exceeded"`) {
		t.Errorf("the stream ends with %v", end)
	}
	for until := time.Now().Add(10 * time.Second); ; {
		_, list := f.unary(t, "process.Process/List", `{}`)
		if len(list) == 0 {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("the process runs on: %v", list)
		}
	}
}

func TestKeepAlive(t *testing.T) {
	f := newFixture(t)
	got := f.stream(t, "process.Process/Start", `{"process":{"cmd":"sleep","args":["1.5"]}}`, map[string]string{"Keepalive-Ping-Interval": "1"})
	if !slices.Contains(got, frame{0, `{"event":{"keepalive":{}}}`}) {
		t.Errorf("no keep-alive in %v", got)
	}
}

// A process outlives its client. Another one gets what comes later, and nothing that came before.
func TestConnectTellsWhatComesLater(t *testing.T) {
	f := newFixture(t)
	pid := f.started(t, `{"process":{"cmd":"sh","args":["-c","echo before; cat"]}}`)
	deadline := time.Now().Add(10 * time.Second)
	for { // until the first output is in the log
		list, err := f.Service.Processes(t.Context(), operator, f.box.ID)
		if err != nil || time.Now().After(deadline) {
			t.Fatal(err)
		}
		if list[0].Position >= 7 {
			break
		}
	}
	client := envdpb.NewProcessClient(&http.Client{Transport: withToken{}}, f.url) // with the codec for protobuf
	n, err := strconv.ParseUint(pid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	sel := &envdpb.ProcessSelector{Selector: &envdpb.ProcessSelector_Pid{Pid: uint32(n)}}
	s, err := client.Connect(t.Context(), connect.NewRequest(&envdpb.ConnectRequest{Process: sel}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !s.Receive() || s.Msg().GetEvent().GetStart().GetPid() != uint32(n) {
		t.Fatalf("the first message is %v: %v", s.Msg(), s.Err())
	}
	in := client.StreamInput(t.Context())
	for _, m := range []*envdpb.StreamInputRequest{
		{Event: &envdpb.StreamInputRequest_Start{Start: &envdpb.StreamInputRequest_StartEvent{Process: sel}}},
		{Event: &envdpb.StreamInputRequest_Keepalive{Keepalive: &envdpb.StreamInputRequest_KeepAlive{}}},
		{Event: &envdpb.StreamInputRequest_Data{Data: &envdpb.StreamInputRequest_DataEvent{Input: &envdpb.ProcessInput{Input: &envdpb.ProcessInput_Stdin{Stdin: []byte("after")}}}}},
	} {
		if err := in.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := in.CloseAndReceive(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CloseStdin(t.Context(), connect.NewRequest(&envdpb.CloseStdinRequest{Process: sel})); err != nil {
		t.Fatal(err)
	}
	var out string
	for s.Receive() {
		out += string(s.Msg().GetEvent().GetData().GetStdout())
	}
	if s.Err() != nil || out != "after" {
		t.Errorf("got %q, %v", out, s.Err())
	}
	again, err := client.Connect(t.Context(), connect.NewRequest(&envdpb.ConnectRequest{Process: sel}))
	if err != nil {
		t.Fatal(err)
	}
	var events []*envdpb.ProcessEvent
	for again.Receive() {
		events = append(events, proto.CloneOf(again.Msg().GetEvent()))
	}
	if len(events) != 2 || events[0].GetStart() == nil || !events[1].GetEnd().GetExited() {
		t.Errorf("a process that has ended tells %v, %v", events, again.Err())
	}
}

// A client tells the end of a sandbox by a connection that breaks, without a last frame.
func TestCutBreaksTheConnection(t *testing.T) {
	for name, end := range map[string]func(*fixture) error{
		"cut":   func(f *fixture) error { f.Cut(f.sb.Ref); return nil },
		"close": func(f *fixture) error { return f.Server.Close() },
		"delete": func(f *fixture) error {
			return f.Service.Remove(context.WithoutCancel(t.Context()), operator, f.box.ID)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+"/process.Process/Start", bytes.NewReader(envelope(`{"process":{"cmd":"sleep","args":["60"]}}`)))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Access-Token", token)
			req.Header.Set("Content-Type", "application/connect+json")
			res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			first := make([]byte, 5)
			if _, err := io.ReadFull(res.Body, first); err != nil {
				t.Fatal(err)
			}
			if err := end(f); err != nil {
				t.Fatal(err)
			}
			rest, err := io.ReadAll(res.Body)
			if err == nil || bytes.Contains(rest, []byte{2, 0, 0, 0}) {
				t.Errorf("the stream ends with %q, %v", rest, err)
			}
		})
	}
}
