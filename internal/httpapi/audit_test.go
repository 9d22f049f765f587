package httpapi_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestAuditLinesAreAsTheyAre: an export can be verified only if nothing between the
// log and its reader writes a line anew.
func TestAuditLinesAreAsTheyAre(t *testing.T) {
	h := open(t)
	resp, data := h.do("GET", "/v1/audit", http.Header{}, strings.NewReader(""))
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/x-ndjson" || !strings.Contains(string(data), `{"argv":"[\u003cb\u003e]"}`) {
		t.Fatalf("HTTP %d: %s", resp.StatusCode, data)
	}
	var lines []string
	err := h.client().Audit(t.Context(), api.AuditOptions{Tail: 9}, func(r api.AuditRecord, line []byte) error {
		if r.Seq != int64(len(lines)+1) {
			t.Errorf("record %d", r.Seq)
		}
		lines = append(lines, string(line))
		return nil
	})
	if err != nil || strings.Join(lines, "\n")+"\n" != string(data) {
		t.Errorf("%q, %v", lines, err)
	}
	stop := errors.New("enough")
	if err := h.client().Audit(t.Context(), api.AuditOptions{After: 1, Follow: true}, func(r api.AuditRecord, _ []byte) error {
		if r.Seq != 2 {
			t.Errorf("record %d after 1", r.Seq)
		}
		return stop
	}); !errors.Is(err, stop) {
		t.Error(err)
	}
	err = h.client().Audit(t.Context(), api.AuditOptions{Tenant: "nobody"}, func(api.AuditRecord, []byte) error { return nil })
	if api.CodeOf(err) != api.CodeDenied {
		t.Error(err)
	}
	report, err := h.client().VerifyAudit(t.Context(), api.AuditVerifyOptions{Anchors: []api.AuditAnchor{{Seq: 3, Hash: strings.Repeat("a", 64)}}, Accept: 1})
	if err != nil || report.OK || report.Problems[0].Seq != 2 || report.Notes[0].Message != strings.Repeat("a", 64) {
		t.Errorf("%+v, %v", report, err)
	}
	usage, err := h.client().AuditUsage(t.Context(), api.AuditUsageOptions{Label: "team"})
	if err != nil || len(usage.Rows) != 1 || usage.Rows[0].Label != "team" {
		t.Errorf("%+v, %v", usage, err)
	}
}
