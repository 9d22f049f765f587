//go:build linux && !remoteonly

package network

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/egress/resolver"
)

// A name with the value of a secret in it works as long as the daemon lives, is not
// written down, and its address is given to no other name by the next daemon.
func TestNamesWithoutSecrets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names")
	open := func() *resolver.Table {
		t.Helper()
		store, entries, err := resolver.OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		table, err := resolver.NewTable(redactedNames{store, func(s string) string {
			return strings.ReplaceAll(s, "canary", "[redacted]")
		}}, entries)
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	table := open()
	first, err := table.Address("canary.example")
	if err != nil {
		t.Fatal(err)
	}
	second, err := table.Address("plain.example")
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := table.Name(first); !ok || n != "canary.example" {
		t.Errorf("%s is %q", first, n)
	}
	if data, err := os.ReadFile(path); err != nil || strings.Contains(string(data), "canary") {
		t.Errorf("on disk: %q, %v", data, err)
	}
	table = open()
	if n, _ := table.Name(first); n == "canary.example" || !strings.HasSuffix(string(n), ".redacted.invalid") {
		t.Errorf("for the next daemon %s is %q", first, n)
	}
	if n, _ := table.Name(second); n != "plain.example" {
		t.Errorf("for the next daemon %s is %q", second, n)
	}
	if again, err := table.Address("canary.example"); err != nil || again == first || again == second {
		t.Errorf("the next daemon gives it %s, %v", again, err)
	}
}
