package cli

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit/chain"
)

func (f *fakeDaemon) serveAudit(w http.ResponseWriter, path string) {
	switch path {
	case "/audit":
		w.Header().Set("Content-Type", "application/x-ndjson")
		for _, l := range f.audit {
			_, _ = io.WriteString(w, l+"\n")
		}
	case "/audit/verify":
		answer(w, f.report)
	default:
		answer(w, api.AuditUsage{Rows: []api.AuditUsageRow{{Tenant: "local", Label: "re\x1bd", Sandboxes: 2, CPUSeconds: 1.5, GiBSeconds: 20, Seconds: 30, BytesOut: 2048, Partial: 1}}})
	}
}

// auditLines is a log with a fact, a refusal whose fields want to be something
// else, and a usage.
func auditLines() []string {
	var out []string
	var head chain.Head
	for _, body := range []string{
		`"time":"2020-11-21T09:30:00Z","tenant":"","verb":"audit","chain":{"kind":"gap","count":3,"reason":"there was no space"}`,
		`"time":"2020-11-21T09:30:00Z","tenant":"t\u001b[2J","verb":"create","sandbox":"sb-1","outcome":"refused","code":"denied","rule":"mounts","details":{"argv":"a\u000a2020 forged"}`,
		`"time":"2020-11-21T09:30:00Z","tenant":"t","verb":"usage","sandbox":"sb-1","outcome":"ok","usage":{"cpu_seconds":1.5,"gib_seconds":2,"seconds":3}`,
	} {
		var line []byte
		line, head = head.Seal(nil, []byte(body))
		out = append(out, strings.TrimSuffix(string(line), "\n"))
	}
	return out
}

func TestAuditTail(t *testing.T) {
	f := newFake(t)
	f.audit = auditLines()
	home := f.listen()
	stamp := time.Date(2020, 11, 21, 9, 30, 0, 0, time.UTC).Local().Format("2006-01-02T15:04:05.000Z07:00")
	want := stamp + " 1 - - audit - gap 3 records could not be written there was no space\n" +
		stamp + " 2 refused t\uFFFD[2J create sb-1 code=denied rule=mounts argv=a 2020 forged\n" +
		stamp + " 3 ok t usage sb-1 cpu=1.500s memory=2.0GiBs time=3.0s\n"
	if got := runCLI(t, homeEnv(home), nil, nil, "audit", "tail", "--verb", "exec", "--outcome", "ok", "--tenant", "t", "--sandbox", "sb-1"); got != (result{0, want, ""}) {
		t.Errorf("%+v\nwant %s", got, want)
	}
	if !f.asked("GET /v1/audit?outcome=ok&sandbox=sb-1&tail=20&tenant=t&verb=exec") {
		t.Errorf("asked %v", f.requests)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "audit", "tail", "--json", "--since", "0"); got != (result{0, strings.Join(f.audit, "\n") + "\n", ""}) || !f.asked("GET /v1/audit") {
		t.Errorf("%+v, asked %v", got, f.requests)
	}
	for args, says := range map[string]string{
		"tail --outcome good": "outcomes are", "tail -n -3": "less than none", "tail --since yesterday": "neither a number", "tail --until 7": "neither a time",
		"tail x": "want none", "verify a b": "one home or file", "verify --anchor 7": "is not valid", "verify --anchor 7:abc": "is not valid", "usage --since 7": "number of a record",
		"export -o /": "does not exist yet",
	} {
		if got := runCLI(t, homeEnv(home), nil, nil, append([]string{"audit"}, strings.Fields(args)...)...); got.status != 125 || !strings.Contains(got.err, says) {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

// TestAuditExportVerifiesOffline: what was exported needs no daemon, and a change
// shows with the record's number.
func TestAuditExportVerifiesOffline(t *testing.T) {
	f := newFake(t)
	f.audit = auditLines()
	home := f.listen()
	file := filepath.Join(t.TempDir(), "audit.ndjson")
	if got := runCLI(t, homeEnv(home), nil, nil, "audit", "export", "-o", file); got != (result{0, "", ""}) {
		t.Fatalf("%+v", got)
	}
	data, err := os.ReadFile(file)
	if err != nil || string(data) != strings.Join(f.audit, "\n")+"\n" {
		t.Fatalf("%q, %v", data, err)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "audit", "export", "-o", file); got.status != 125 {
		t.Errorf("a file was overwritten: %+v", got)
	}
	nowhere := homeEnv(t.TempDir())
	last, err := chain.Parse([]byte(f.audit[2]))
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("note: 3 records could not be written: there was no space (audit.ndjson line 1)\nthe chain is whole: 3 records, 1 to 3 (files: 1)\nanchor: 3:%s\n", last.Hash)
	if got := runCLI(t, nowhere, nil, nil, "audit", "verify", file, "--anchor", "3:"+last.Hash); got != (result{0, want, ""}) {
		t.Errorf("%+v\nwant %s", got, want)
	}
	if got := runCLI(t, nowhere, bytes.NewReader(data), nil, "audit", "verify", "-", "--anchor", "4:"+last.Hash); got.status != 1 || !strings.Contains(got.out, "first bad record: 4\n") {
		t.Errorf("cut off: %+v", got)
	}
	bad := bytes.Replace(data, []byte(`"refused"`), []byte(`"granted"`), 1)
	if got := runCLI(t, nowhere, bytes.NewReader(bad), nil, "audit", "verify", "-"); got.status != 1 || !strings.Contains(got.out, "first bad record: 2\nproblem: record 2 was changed") {
		t.Errorf("changed: %+v", got)
	}
	if got := runCLI(t, nowhere, nil, nil, "audit", "verify", filepath.Join(home, "none")); got.status != 125 {
		t.Errorf("missing: %+v", got)
	}
	// A home without a log is no proof of anything.
	if got := runCLI(t, nowhere, nil, nil, "audit", "verify", t.TempDir()); got.status != 1 {
		t.Errorf("empty home: %+v", got)
	}
}

func TestAuditVerifyByTheDaemon(t *testing.T) {
	f := newFake(t)
	f.report = api.AuditReport{ProblemCount: 150, Problems: []api.AuditFinding{{Seq: 7, File: "audit.log", Line: 3, Message: "record 7 was \x1bchanged"}}, Records: 9, First: 1, Last: 9, Segments: 2}
	home := f.listen()
	want := "first bad record: 7\nproblem: record 7 was \uFFFDchanged (audit.log line 3)\nand 149 more problems\nthe chain is broken: 9 records, 1 to 9 (files: 2)\n"
	hash := strings.Repeat("0a", 32)
	if got := runCLI(t, homeEnv(home), nil, nil, "audit", "verify", "--anchor", "5:"+strings.ToUpper(hash), "--accept", "4"); got != (result{1, want, ""}) {
		t.Errorf("%+v\nwant %s", got, want)
	}
	if !f.asked("GET /v1/audit/verify?accept=4&anchor=5%3A" + hash) {
		t.Errorf("asked %v", f.requests)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "audit", "verify", "--json"); got.status != 1 || !strings.HasPrefix(got.out, `{"ok":false,`) {
		t.Errorf("%+v", got)
	}
}

func TestAuditUsage(t *testing.T) {
	f := newFake(t)
	home := f.listen()
	got := runCLI(t, homeEnv(home), nil, nil, "audit", "usage", "--label", "team", "--since", "2020-11-21T09:30:00Z")
	if got.status != 0 || !strings.Contains(got.out, "TEAM") || !strings.Contains(got.out, "re\uFFFDd") || !strings.Contains(got.out, "1.500") || !strings.Contains(got.err, "could not be measured") {
		t.Errorf("%+v", got)
	}
	if !f.asked("GET /v1/audit/usage?label=team&since=2020-11-21T09%3A30%3A00Z") {
		t.Errorf("asked %v", f.requests)
	}
	if got := runCLI(t, homeEnv(home), nil, nil, "audit", "usage", "--json"); !strings.HasPrefix(got.out, `{"rows":[{"tenant":"local"`) {
		t.Errorf("%+v", got)
	}
}
