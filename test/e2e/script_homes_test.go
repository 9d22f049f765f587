//go:build linux

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cloche-dev/cloche/test/fixture"
)

// homesDir has the homes that earlier versions made (make.sh), with the answers of
// their API.
const homesDir = "homes"

// keptHome NAME unpacks the home of an earlier version in the place of the script's
// own. The dates of ended sandboxes move to today, since these are kept for a day.
func cmdKeptHome(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: kepthome NAME")
	}
	s := state(ts)
	archive := filepath.Join(ts.Getenv("SCRIPTS"), homesDir, args[0]+".tar.gz")
	out, err := exec.Command("tar", "-xzf", archive, "-C", s.Dir, "--strip-components=1").CombinedOutput()
	if err != nil {
		ts.Fatalf("tar: %v\n%s", err, out)
	}
	today := []byte(time.Now().UTC().Format(time.DateOnly) + "T00:00:0")
	ts.Check(filepath.WalkDir(filepath.Join(s.Dir, "owners"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !slices.Contains([]string{"sandbox.json", "processes.json", "process.json", "removed.ndjson"}, d.Name()) {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, date.ReplaceAll(b, today), 0o600)
	}))
}

// date is the beginning of a date as records have it, up to the last digit of its second.
var date = regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d`)

// answers NAME compares what the API says of a kept home with what the version that
// made it said: each field that was there is there with the same value. Fields may be
// added. Dates and what is measured may differ.
func cmdAnswers(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: answers NAME")
	}
	s := state(ts)
	b, err := os.ReadFile(filepath.Join(ts.Getenv("SCRIPTS"), homesDir, args[0]+".json"))
	ts.Check(err)
	var routes map[string]any
	ts.Check(json.Unmarshal(b, &routes))
	client := &http.Client{Timeout: fixture.Patience, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(s.Dir, "cloche.sock"))
	}}}
	defer client.CloseIdleConnections()
	var all []string
	for route, want := range routes {
		res, err := client.Get("http://localhost" + route)
		ts.Check(err)
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		ts.Check(err)
		var got any
		if err := json.Unmarshal(b, &got); err != nil {
			ts.Fatalf("%s: %v\n%s", route, err, b)
		}
		all = append(all, missing(route, want, got)...)
	}
	if len(all) > 0 {
		ts.Fatalf("the earlier version answered more:\n\t%s", strings.Join(all, "\n\t"))
	}
}

// missing lists what an answer lacks of an earlier one. Lists may be in another order
// where their items have a name or an id.
func missing(at string, want, got any) []string {
	switch want := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return []string{fmt.Sprintf("%s: %v, want an object", at, got)}
		}
		var all []string
		for k, w := range want {
			v, ok := g[k]
			if !ok {
				all = append(all, at+"."+k+" is missing")
				continue
			}
			all = append(all, missing(at+"."+k, w, v)...)
		}
		return all
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(want) {
			return []string{fmt.Sprintf("%s: %v, want a list of %d", at, got, len(want))}
		}
		var all []string
		for i, w := range want {
			j := max(0, slices.IndexFunc(g, func(v any) bool { return identity(v) == identity(w) }))
			if identity(w) == nil {
				j = i
			}
			all = append(all, missing(fmt.Sprintf("%s[%d]", at, i), w, g[j])...)
		}
		return all
	case string:
		if _, err := time.Parse(time.RFC3339, want); err == nil {
			g, _ := got.(string)
			if _, err := time.Parse(time.RFC3339, g); err != nil {
				return []string{fmt.Sprintf("%s: %v, want a date", at, got)}
			}
			return nil
		}
	case nil:
		return nil
	}
	if got != want {
		return []string{fmt.Sprintf("%s: %v, want %v", at, got, want)}
	}
	return nil
}

// identity is what an item of a list is known by, or nil.
func identity(v any) any {
	m, _ := v.(map[string]any)
	for _, key := range []string{"id", "exec_id", "name"} {
		if id, ok := m[key]; ok {
			return id
		}
	}
	return nil
}

// firstVersion is the commit whose homes and running sandboxes every later version opens.
const firstVersion = "3a919e7"

// TestUpgradeWhileSandboxesRun has the first version make sandboxes on each engine, and
// today's daemon take them over.
func TestUpgradeWhileSandboxesRun(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it builds an earlier version")
	}
	if out, err := exec.CommandContext(t.Context(), "git", "cat-file", "-e", firstVersion+"^{commit}").CombinedOutput(); err != nil {
		t.Skipf("needs the commit %s, to build what it was: git: %v: %s", firstVersion, err, out)
	}
	dir, err := os.MkdirTemp("", "cloche-first-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	src, bin := filepath.Join(dir, "src"), filepath.Join(dir, "cloche")
	if err := os.Mkdir(src, 0o755); err != nil {
		t.Fatal(err)
	}
	steps := [][]string{
		{"git", "archive", "--format=tar", "-o", filepath.Join(dir, "src.tar"), firstVersion},
		{"tar", "-xf", filepath.Join(dir, "src.tar"), "-C", src},
		{"go", "-C", src, "build", "-trimpath", "-ldflags=-s -w -buildid=", "-o", "internal/agent/embed/bin/cloche-agent-linux-" + runtime.GOARCH, "./cmd/cloche-agent"},
		{"go", "-C", src, "build", "-trimpath", "-o", bin, "./cmd/cloche"},
	}
	for _, argv := range steps {
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
	}
	today := filepath.Join(dir, "today")
	fixture.CopyFile(t, fixture.Binary(t), today)
	t.Setenv(envToday, today)
	runFiles(t, bin, []string{"test/e2e/testdata/upgrade/running.txtar"}, scriptTime)
}

// envToday is in scripts that begin with an earlier version the binary of today.
const envToday = "CLOCHE_TEST_TODAY"
