//go:build linux

package audit_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/audit/chain"
)

// The age of a file is the age of its first record, also for a process that finds it there.
func TestAgeOfAFoundFile(t *testing.T) {
	for _, old := range []bool{true, false} {
		home := t.TempDir()
		if err := os.Mkdir(filepath.Join(home, chain.Dir), 0o700); err != nil {
			t.Fatal(err)
		}
		now := time.Now().UTC()
		first := now
		if old {
			first = now.Add(-2 * time.Hour)
		}
		text, head := chain.Head{}.Seal(nil, fmt.Appendf(nil, `"time":%q,"tenant":"","verb":"audit","chain":{"kind":"begin","segment":1}`, first.Format(time.RFC3339)))
		text, head = head.Seal(text, fmt.Appendf(nil, `"time":%q,"tenant":"t","verb":"exec"`, now.Format(time.RFC3339)))
		anchor, err := chain.Anchor{Seq: head.Seq, Hash: head.Hash, Segment: 1}.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, data := range map[string][]byte{chain.Active: text, filepath.Join(chain.Dir, chain.HeadName): anchor} {
			if err := os.WriteFile(filepath.Join(home, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		record(t, openWith(t, audit.Options{Home: home, SegmentAge: time.Hour}), event("x"))
		segments, err := chain.Segments(home)
		if err != nil || (len(segments) == 1) != old {
			t.Errorf("a file that is old: %v; older segments: %v, %v", old, segments, err)
		}
		verify(t, home)
	}
}

// A log that cannot be opened is an error, and what is in its place stays.
func TestLogThatIsNone(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a directory": func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o700) },
		"a link":      func(path string) error { return os.Symlink("/dev/null", path) },
	} {
		home := t.TempDir()
		path := filepath.Join(home, chain.Active)
		if err := put(path); err != nil {
			t.Fatal(err)
		}
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		log, err := audit.Open(audit.Options{Home: home})
		if err == nil {
			err = log.Close()
			t.Errorf("%s was opened as a log; close: %v", name, err)
		}
		if after, err := os.Lstat(path); err != nil || after.Mode() != before.Mode() {
			t.Errorf("%s: %v, %v", name, after, err)
		}
	}
}

// Without a label to sum by, no label splits a tenant's usage.
func TestUsageWithoutALabel(t *testing.T) {
	log := open(t, t.TempDir())
	for i := range 4 {
		e := event(fmt.Sprint(i))
		e.Verb, e.Usage = audit.VerbUsage, &api.AuditUsed{Seconds: 1, Labels: map[string]string{"": fmt.Sprint(i)}}
		record(t, log, e)
	}
	if u, err := log.Usage(context.Background(), api.AuditUsageOptions{}, nil); err != nil || len(u.Rows) != 1 || u.Rows[0].Sandboxes != 4 {
		t.Errorf("%+v, %v", u, err)
	}
}

// What a request does not have is not in its details.
func TestDetailsOfWhatIsThere(t *testing.T) {
	d := audit.SpecDetails(api.SandboxSpec{Egress: &api.Egress{Allow: []string{"a.example"}}})
	for _, key := range []string{"egress_requests", "egress_deny", "egress_ask", "env", "labels"} {
		if v, there := d[key]; there {
			t.Errorf("%s: %q", key, v)
		}
	}
	if d["egress_allow"] != "a.example" {
		t.Errorf("details %v", d)
	}
	if d := audit.SpecDetails(api.SandboxSpec{Egress: &api.Egress{Ask: true, Requests: []api.RequestRule{{Host: "a.example", Methods: []string{"GET"}}}}}); d["egress_requests"] != "1" || d["egress_ask"] != "true" {
		t.Errorf("details %v", d)
	}
}
