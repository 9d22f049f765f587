package langbot

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
)

// The names that the client computes too, as its own code does.
func TestNamesOfTenantsAndSessions(t *testing.T) {
	for _, c := range []struct{ instance, workspace, want string }{
		{"inst-1", "ws-1", "ws-9d14934957e7ea8dcfa33291"},
		{"instance-a", "workspace-a", "ws-695136eeae1cb9b6af4a8226"},
	} {
		if got := (placement{c.instance, c.workspace, 1}).durable(); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.instance, c.workspace, got, c.want)
		}
	}
	p := placement{"inst-1", "ws-1", 3}
	for id, want := range map[string]string{
		"a b/c": "a-b-c", "  x  ": "x", "--a--": "a", "a.b_c-d": "a.b_c-d", "../../etc": "..-..-etc", "群A1": "A1",
	} {
		if got, err := p.physical(id); err != nil || got != "ws-9d14934957e7ea8dcfa33291-g3-"+want {
			t.Errorf("%q: %s, %v", id, got, err)
		}
	}
	for _, id := range []string{"", "   ", "群", "--", strings.Repeat("a", maxSessionID+1)} {
		if got, err := p.physical(id); err == nil {
			t.Errorf("%q: %s, want a refusal", id, got)
		}
	}
}

func TestSpecs(t *testing.T) {
	for data, want := range map[string]string{
		`{"session_id":"s","workdir":""}`:                                                       "workdir",
		`{"session_id":"s","mount_path":"/proj"}`:                                               "",
		`{"session_id":"s","host_path":"/h","workdir":"/tmp"}`:                                  "workdir",
		`{"session_id":"s","host_path":"/h","workdir":"/tmp","host_path_mode":"none"}`:          "",
		`{"session_id":"s","timeout_sec":"5"}`:                                                  "",
		`{"session_id":"s","timeout_sec":5.5}`:                                                  "whole",
		`{"session_id":"s","timeout_sec":0}`:                                                    "timeout_sec",
		`{"session_id":"s","env":{"A":1}}`:                                                      "env",
		`{"session_id":"s","unknown":[1]}`:                                                      "",
		`{"session_id":"s","host_path":"C:\\x"}`:                                                "",
		`{"session_id":"s","host_path":"x"}`:                                                    "host_path",
		`{"session_id":"s","network":"yes"}`:                                                    "network",
		`{"session_id":"s","memory_mb":31}`:                                                     "memory_mb",
		`{"session_id":"s","cpus":0}`:                                                           "cpus",
		`{"session_id":"s","pids_limit":0}`:                                                     "pids_limit",
		`{"session_id":"s","workspace_quota_mb":-1}`:                                            "workspace_quota_mb",
		`{"session_id":"s","skill_name":"a b"}`:                                                 "skill_name",
		`{"session_id":"s","skill_name":" "}`:                                                   "",
		`{"session_id":"s","extra_mounts":[{"host_path":"/a","mount_path":"/b"}]}`:              "",
		`{"session_id":"s","extra_mounts":[{"host_path":"/a","mount_path":"b"}]}`:               "extra_mounts[0]",
		`{"session_id":"s","extra_mounts":[{"host_path":"/a","mount_path":"/b","mode":"rwx"}]}`: "extra_mounts[0]",
		`{"session_id":"  "}`:                                                                   "session_id",
	} {
		s, err := parseSpec([]byte(data))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "BoxValidationError: ")) {
			t.Errorf("%s: %v, want %q", data, err, want)
		}
		if strings.Contains(data, "/proj") && s.Workdir != "/proj" {
			t.Errorf("the work directory is %s", s.Workdir)
		}
	}
}

func TestFrames(t *testing.T) {
	r, err := parseRequest([]byte(`{"seq_id": 18175, "action": "__ping", "data": {}}`))
	if err != nil || r.id != "18175" || r.action != "__ping" || r.place != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	got, err := succeeded(r.id, nil).encode()
	if err != nil || string(got) != `{"seq_id":18175,"code":0,"message":"success","data":{},"chunk_status":"continue"}` {
		t.Errorf("%s, %v", got, err)
	}
	for _, ignored := range []string{
		``, `null`, `[]`, `{`, `"x"`, `{"seq_id":1}`, `{"seq_id":1,"code":0,"action":"x","data":{}}`, `{"action":"x","data":{}}`,
		`{"seq_id":"1","action":"x","data":{}}`, `{"seq_id":1.5,"action":"x","data":{}}`,
	} {
		if _, err := parseRequest([]byte(ignored)); !errors.Is(err, errIgnored) {
			t.Errorf("%s: %v, want it ignored", ignored, err)
		}
	}
	for _, bad := range []string{
		`{"seq_id":1,"action":"x"}`, `{"seq_id":1,"action":"x","data":null}`, `{"seq_id":1,"action":"x","data":[]}`,
		`{"seq_id":1,"action":"x","data":{},"context":{}}`, `{"seq_id":1,"action":"x","data":{},"context":{"instance_uuid":" ","workspace_uuid":"w"}}`,
		`{"seq_id":1,"action":"x","data":{},"context":{"instance_uuid":"i","workspace_uuid":"w","placement_generation":0}}`,
		`{"seq_id":1,"action":"x","data":{},"context":{"instance_uuid":"i","workspace_uuid":"w","more":1}}`,
	} {
		r, err := parseRequest([]byte(bad))
		if err == nil || errors.Is(err, errIgnored) || r.id != "1" || !strings.HasPrefix(wireError(err), "ValidationError: ") {
			t.Errorf("%s: %+v, %v", bad, r, err)
		}
	}
	r, err = parseRequest([]byte(`{"seq_id":1,"action":"x","data":{},"context":{"instance_uuid":" i ","workspace_uuid":"w"}}`))
	if err != nil || *r.place != (placement{"i", "w", 1}) {
		t.Errorf("%+v, %v", r.place, err)
	}
}

// A long message goes in lines that the client's reader takes, whatever is in it.
func TestLongMessagesInLines(t *testing.T) {
	for name, text := range map[string]string{
		"short": "x", "a line": strings.Repeat("x", lineBytes), "long": strings.Repeat("x", 3*lineBytes+1), "markup": strings.Repeat("<&>", 30_000),
		"quotes": strings.Repeat(`"\`, 30_000), "control": strings.Repeat("\x01", 20_000), "wide": strings.Repeat("群é🙂", 20_000),
	} {
		want, _ := succeeded("1", map[string]string{"text": text}).encode()
		var out bytes.Buffer
		if err := writeLines(&out, want); err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(out.Bytes()) {
			if len(line) > 64<<10 {
				t.Errorf("%s: a line of %d bytes", name, len(line))
			}
		}
		noisy := "a stray print\n{\"type\":\"chunk_data\"}\n" + out.String()
		got, err := newLineReader(strings.NewReader(noisy)).next()
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(want), err)
		}
	}
}

func TestBrokenFraming(t *testing.T) {
	for _, in := range []string{
		`{"type":"chunk_start","total_size":-1}`,
		`{"type":"chunk_start","total_size":16777217}`,
		`{"type":"chunk_start"}`,
		"{\"type\":\"chunk_start\",\"total_size\":2}\n{\"type\":\"chunk_data\",\"data\":\"a\",\"offset\":1}",
		"{\"type\":\"chunk_start\",\"total_size\":2}\n{\"type\":\"chunk_data\",\"data\":\"abc\",\"offset\":0}",
		"{\"type\":\"chunk_start\",\"total_size\":2}\n{\"type\":\"chunk_data\",\"data\":\"a\",\"offset\":0}\n{\"type\":\"chunk_end\"}",
		"{\"type\":\"chunk_start\",\"total_size\":1}\n" + strings.Repeat("x\n", maxPieces+1),
		"{" + strings.Repeat("x", maxLine+1),
	} {
		if m, err := newLineReader(strings.NewReader(in + "\n")).next(); !errors.Is(err, errFrame) {
			t.Errorf("%.80s: %.80s, %v", in, m, err)
		}
	}
	if _, err := newLineReader(strings.NewReader("noise\n")).next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"seq_id":1,"action":"box_exec","data":{"session_id":"s","cmd":"x"},"context":{"instance_uuid":"i","workspace_uuid":"w","placement_generation":2}}`))
	f.Add([]byte(`{"seq_id":-0,"action":"x","data":{"timeout_sec":"1e3"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseRequest(data)
		if errors.Is(err, errIgnored) {
			return
		}
		answer, err := refusedWith(r.id, failed(classBox, "x")).encode()
		if err != nil || !json.Valid(answer) {
			t.Fatalf("the answer to %q is %q, %v", data, answer, err)
		}
		if spec, err := parseSpec(r.data); err == nil && (spec.TimeoutSec <= 0 || !strings.HasPrefix(spec.Workdir, "/")) {
			t.Fatalf("%+v", spec)
		}
	})
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"type\":\"chunk_start\",\"total_size\":2}\n{\"type\":\"chunk_data\",\"data\":\"{}\",\"offset\":0}\n{\"type\":\"chunk_end\"}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newLineReader(bytes.NewReader(data))
		for {
			m, err := r.next()
			if err != nil {
				return
			}
			if len(m) > maxFrame {
				t.Fatalf("a message of %d bytes", len(m))
			}
		}
	})
}

// Lines come whole, however the process wrote them, and each says where the next
// begins.
func TestLinesOfAProcess(t *testing.T) {
	var got []string
	var next []int64
	send := func(line []byte, n int64) bool {
		got, next = append(got, string(line)), append(next, n)
		return true
	}
	var l lines
	at := int64(100)
	for _, part := range []string{"a", "b\nc\r\n\nd", "é"[:1], "é"[1:] + "\n", "rest"} {
		if err := l.add([]byte(part), at, send); err != nil {
			t.Fatal(err)
		}
		at += int64(len(part))
	}
	if strings.Join(got, "|") != "ab|c||dé" || next[0] != 103 || next[3] != 111 || string(l.part) != "rest" {
		t.Errorf("%q at %v, and %q", got, next, l.part)
	}
	if err := (&lines{}).add(make([]byte, maxFrame+1), 0, send); !errors.Is(err, errLine) {
		t.Errorf("a line without end: %v", err)
	}
}

func TestPreviewIsTheEnd(t *testing.T) {
	if got := lastChars([]byte(strings.Repeat("x", 4000)+"end"), previewChars); len(got) != previewChars || !strings.HasSuffix(got, "end") {
		t.Errorf("%d characters", len(got))
	}
	if got := lastChars([]byte("é")[1:], 10); got != "" {
		t.Errorf("half a character is %q", got)
	}
}

// TestPathsOfHosts: what is a directory of the host, and what lies in another, on each
// system. A path of another system is not one.
func TestPathsOfHosts(t *testing.T) {
	for _, c := range []struct {
		system, path string
		want         bool
	}{
		{"linux", "/srv", true}, {"linux", `C:\srv`, false}, {"linux", `\\host\share`, false},
		{"windows", `C:\srv`, true}, {"windows", "c:/srv", true}, {"windows", `\\host\share`, true}, {"windows", "/srv", false}, {"windows", "srv", false}, {"windows", "C:srv", false},
	} {
		if got := ofHost(c.system, c.path); got != c.want {
			t.Errorf("%s: %s: %v", c.system, c.path, got)
		}
	}
	for _, c := range []struct {
		system, dir, path string
		want              bool
	}{
		{"linux", "/srv/box", "/srv/box/a", true}, {"linux", "/srv/box", "/srv/Box/a", false}, {"linux", "/srv/box", "/srv/boxes", false},
		{"windows", `C:\LangBot\data`, `c:/langbot/DATA/box`, true}, {"windows", `C:\LangBot\data`, `C:\LangBot\data`, true}, {"windows", `C:\`, `C:\LangBot`, true},
		{"windows", `C:\LangBot\data`, `C:\LangBot\database`, false}, {"windows", `C:\LangBot\data`, `D:\LangBot\data\box`, false},
		{"windows", `C:\LangBot\data`, `C:\LangBot\data\..\data2`, false}, {"windows", `C:\LangBot`, `\\?\C:\LangBot\data`, true}, {"windows", `C:\LangBot`, `\\host\LangBot\data`, false},
	} {
		if got := belowHost(c.system, c.dir, c.path); got != c.want {
			t.Errorf("%s: %s in %s: %v", c.system, c.path, c.dir, got)
		}
	}
}
