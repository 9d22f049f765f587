//go:build linux

package tools

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/guest/pathwalk"
)

// TestToolsThatRunOutOfTime tell what they have, and that there may be more.
func TestToolsThatRunOutOfTime(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/long", []byte(strings.Repeat("x\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := pathwalk.OpenRoot(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	all, long := &place{root: pathwalk.Roots{b}, name: dir, way: dir + "/", rel: "."}, &place{root: pathwalk.Roots{b}, name: dir, way: dir + "/", rel: "long"}
	if got, err := toolGlob(late, all, &api.ToolGlob{Pattern: "**"}); err != nil || got.Partial != api.PartialTime {
		t.Errorf("a glob: %+v, %v", got, err)
	}
	if got, err := toolGrep(late, all, &api.ToolGrep{Pattern: "needle"}); err != nil || got.Partial != api.PartialTime {
		t.Errorf("a grep: %+v, %v", got, err)
	}
	if got, err := toolGrep(late, long, &api.ToolGrep{Pattern: "y"}); err != nil || got.Partial != api.PartialTime {
		t.Errorf("a grep of one long file: %+v, %v", got, err)
	}
}

func FuzzGlob(f *testing.F) {
	for _, s := range []string{"*", "**/*.go", "a/{b,c}/**", "{a,{b,c}}", "[a-", "a**b", "**/**", "{,}"} {
		f.Add(s, "a/b/c.go")
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		g, err := parseGlob("pattern", pattern)
		if err != nil {
			return
		}
		if len(g.alternatives) > maxAlternatives {
			t.Fatalf("%d alternatives", len(g.alternatives))
		}
		s, parts := g.start(), strings.Split(name, "/")
		for i, part := range parts {
			if !g.leads(s) && g.matches(g.step(s, part)) {
				t.Fatalf("%q leads nowhere at %q, and matches there", pattern, parts[:i+1])
			}
			s = g.step(s, part)
		}
	})
}
