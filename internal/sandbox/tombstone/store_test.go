package tombstone

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

func recordOf(id, key string) *Record {
	return &Record{At: now(), Sandbox: api.Sandbox{
		ID: id, Name: id, Tenant: policy.LocalTenant, IdempotencyKey: key, State: api.StateDeleted, TerminalReason: api.EndedIdle,
	}}
}

// What was removed is known for a day, over restarts and whatever a crash left of
// the file's last line; then its key is free.
func TestTombstonesLastADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		g := New(dir)
		for i := range 3 {
			if err := g.Add(recordOf(fmt.Sprintf("sb-%d", i), fmt.Sprintf("k-%d", i))); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.Add(recordOf("", "never")); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, fileName)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		torn := append(data, []byte("\n{\"At\":\"2030-01-01T00:0")...)
		if err := os.WriteFile(path, torn, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(23 * time.Hour)
		second := New(dir)
		if err := second.Load(); err != nil {
			t.Fatal(err)
		}
		if err := second.Add(recordOf("sb-9", "k-9")); err != nil { // behind the torn line
			t.Fatal(err)
		}
		third := New(dir)
		if err := third.Load(); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"k-0", "k-2", "never", "k-9"} {
			if third.Key(policy.LocalTenant, key) == nil {
				t.Errorf("key %s is forgotten after a restart", key)
			}
		}
		if sb, ok := third.Sandbox(policy.InProcessCaller(1), "sb-1"); !ok || sb.TerminalReason != api.EndedIdle {
			t.Errorf("sb-1: %+v", sb)
		}
		if _, ok := third.Sandbox(policy.TCPCaller(), "sb-1"); ok {
			t.Error("another tenant is told of it")
		}
		if third.Key("other", "k-0") != nil {
			t.Error("a key is another tenant's too")
		}
		time.Sleep(time.Hour)
		if third.Key(policy.LocalTenant, "k-0") != nil || third.Key(policy.LocalTenant, "k-9") == nil {
			t.Error("a key is free after a day, and not before")
		}
		if next := third.Expire(now()); next.IsZero() || third.known() != 1 {
			t.Errorf("known after a day: %d, next %s", third.known(), next)
		}
	})
}

// The file does not grow without end, and neither does what is known of one tenant.
func TestTombstonesAreBounded(t *testing.T) {
	dir := t.TempDir()
	g := New(dir)
	for i := range maxRecords + 10 {
		g.insert(recordOf(fmt.Sprintf("sb-%d", i), ""))
	}
	if n := g.known(); n != maxRecords || len(g.byID) != maxRecords {
		t.Errorf("%d are known", n)
	}
	if _, ok := g.Sandbox(policy.InProcessCaller(1), "sb-9"); ok {
		t.Error("the oldest is still known")
	}
	g = New(dir)
	g.lines = 3*spareLines + 1
	if err := g.Add(recordOf("sb-1", "k")); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil || bytes.Count(data, []byte("\n")) != 1 || !strings.Contains(string(data), `"sb-1"`) {
		t.Errorf("the file after a rewrite: %q, %v", data, err)
	}
}

// Whatever is in the file, reading it ends, and what is whole is found.
func FuzzTombstones(f *testing.F) {
	f.Add([]byte("{}\n\n{\"At\":1}\n"))
	f.Add([]byte(strings.Repeat("x", maxLine+7) + "\n"))
	f.Add([]byte("{\"At\":\"2030-01-01T00:00:00Z\",\"Sandbox\":{\"id\":\"a\"}}"))
	f.Fuzz(func(t *testing.T, junk []byte) {
		g := New("")
		whole := fmt.Appendf(bytes.Clone(junk), "\n{\"At\":%q,\"Sandbox\":{\"id\":\"sb-whole\"}}\n", time.Now().Format(time.RFC3339))
		g.read(bytes.NewReader(whole))
		if g.byID["sb-whole"] == nil {
			t.Error("what is whole was not found")
		}
	})
}
