//go:build linux

package audit_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/audit/chain"
)

// A log that was closed has said in its head that all of it is on the disk: a power cut
// after that cannot have taken anything.
func TestCloseSettlesTheHead(t *testing.T) {
	home := t.TempDir()
	log := open(t, home)
	record(t, log, event("r1"))
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	a, err := chain.ReadAnchor(filepath.Join(home, chain.Dir, chain.HeadName))
	if err != nil || a.Seq != 2 || a.Synced != a.Seq {
		t.Errorf("the head is %+v, %v", a, err)
	}
}

// A password is everything up to the last @ before the path.
func TestPasswordsWithSigns(t *testing.T) {
	for arg, want := range map[string]string{
		"https://user:p@ss@host/x":            "https://user:[redacted]@host/x",
		"postgres://u:a:b@c@d.example/db?x=@": "postgres://u:[redacted]@d.example/db?x=@",
		"--url=ftp://u:p@h and http://v:q@i":  "--url=ftp://u:[redacted]@h and http://v:[redacted]@i",
		"http://host:80/a@b":                  "http://host:80/a@b",
		"http://user@host:80/":                "http://user@host:80/",
	} {
		got := audit.ExecDetails(api.ExecRequest{Argv: []string{arg}}, audit.Disclosure{})["argv"]
		if got != `["`+want+`"]` || strings.Contains(got, "ss@") {
			t.Errorf("%s is told as %s", arg, got)
		}
	}
}

// words is a Redactor of one word.
type words string

// Redact implements audit.Redactor.
func (w words) Redact(s string) string { return strings.ReplaceAll(s, string(w), audit.Redacted) }

// Every part of a record goes through the Redactor, names of details and labels too.
func TestRecordHasNoSecret(t *testing.T) {
	const value = "canary-0123456789"
	home := t.TempDir()
	log, err := audit.Open(audit.Options{Home: home, Logger: slog.New(slog.DiscardHandler), Redactor: words(value)})
	if err != nil {
		t.Fatal(err)
	}
	record(t, log, audit.Event{
		RequestID: value, Tenant: value, Caller: value, Verb: value, Sandbox: value, Code: value, Rule: value,
		Details: map[string]string{value: value, "long": strings.Repeat("x", 1020) + value},
		Usage:   &api.AuditUsed{Labels: map[string]string{value: value}},
	})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(home, "audit.log"))
	if err != nil || strings.Contains(string(data), value[:6]) {
		t.Errorf("%s, %v", data, err)
	}
}
