//go:build linux

package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cloche-dev/cloche/test/fixture"
)

// poolKey has scripts whose daemon has sandboxes ready before its first request; its value counts those that
// were taken.
type poolKey struct{}

// ofPool are the scripts that run once more with a pool: what a sandbox is and is kept from.
var ofPool = regexp.MustCompile(`^(attack_(agent|contained)|audit$|daemon_(killed|life|upgrade)|egress_(change|refused|restart)|endpoint_(env|forged|model|own|secret)|files_access|idempotent_create|job_(run|steps)|json_shapes|lease|limits_seen|mounts(_private|_refused|_tenant)?$|names|ports$|process_(life|recovery)|real_(git|python|sockets)|rm_many|run_basic|suspend.*|secret_(canary|placeholder)|snapshot_files|stats|sudo|tenants|user_.*|workspace_(attach|killed|quota))`)

// TestScriptsWithPool runs scripts with a daemon that has booted sandboxes before they begin.
func TestScriptsWithPool(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it runs scripts again")
	}
	if os.Getenv(envEngine) != "" {
		t.Skip("needs the default engine")
	}
	var ran, taken atomic.Int64
	t.Cleanup(func() {
		t.Logf("%d sandboxes were ready in %d scripts", taken.Load(), ran.Load())
		if taken.Load() < ran.Load()/2 && !t.Failed() {
			t.Errorf("only %d sandboxes were ready in %d scripts", taken.Load(), ran.Load())
		}
	})
	runScripts(t, attackTime, ofPool.MatchString, func(e *testscript.Env) error {
		ran.Add(1)
		e.Values[poolKey{}] = &taken
		return nil
	})
}

// fillPool has the kinds of sandboxes known to the daemon of a new home, by a daemon of which nothing else stays.
func fillPool(s *fixture.Home, ts *testscript.TestScript) {
	if _, ok := ts.Value(poolKey{}).(*atomic.Int64); !ok {
		return
	}
	if _, err := os.Stat(filepath.Join(s.Dir, "owners")); err == nil {
		return // the script's own daemon has been here
	}
	env := []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME"), "CLOCHE_HOME=" + s.Dir}
	rules := ts.MkAbs(".fill.yaml") // whatever the script's own are
	ts.Check(os.WriteFile(rules, []byte("version: 1\n"), 0o600))
	daemon := exec.Command(s.Bin, "serve", "--config", rules)
	daemon.Env = env
	ts.Check(daemon.Start())
	ended := func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		_ = daemon.Wait()
	}
	defer ended()
	if !fixture.Poll(func() bool { return fixture.Answers("unix", filepath.Join(s.Dir, "cloche.sock")) }) {
		ts.Fatalf("the daemon that fills the pool does not answer")
	}
	for _, args := range [][]string{{"create", "--name", "fill"}, {"create", "--name", "fill-net", "--net", "on", "--allow", "localhost"}} {
		cmd := exec.Command(s.Bin, args...)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if err != nil {
			ts.Fatalf("fill the pool: %v\n%s", err, out)
		}
	}
	if !fixture.Poll(func() bool {
		b, err := os.ReadFile(kindsOf(s))
		return err == nil && strings.Count(string(b), `"plan"`) == 2
	}) {
		ts.Fatalf("the kinds of the pool are not kept")
	}
	cmd := exec.Command(s.Bin, "rm", "-f", "fill", "fill-net")
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil {
		ts.Fatalf("fill the pool: %v\n%s", err, out)
	}
	ended()
	entries, err := os.ReadDir(s.Dir)
	ts.Check(err)
	for _, e := range entries {
		switch e.Name() {
		case "bin", "engines", "images", "policy.yaml", "settings.yaml":
		default:
			ts.Check(os.RemoveAll(filepath.Join(s.Dir, e.Name())))
		}
	}
}

// kindsOf is the file of the kinds that a daemon has ready at its start.
func kindsOf(s *fixture.Home) string {
	return filepath.Join(s.Dir, "engines", "gvisor", "pool", "kinds.json")
}

// awaitPool waits until the sandboxes are ready that a daemon has before its first request.
func awaitPool(s *fixture.Home, ts *testscript.TestScript) {
	_, ok := ts.Value(poolKey{}).(*atomic.Int64)
	if b, err := os.ReadFile(kindsOf(s)); !ok || err != nil || strings.Count(string(b), `"plan"`) < 2 {
		return // it was not filled
	}
	if !fixture.Poll(func() bool { return s.Booted() >= 2 }) {
		ts.Fatalf("the pool is not filled:\n%s", ts.ReadFile("daemon.log"))
	}
}

// takenLine is what a daemon says at its end.
var takenLine = regexp.MustCompile(`msg="the pool is closed".* taken=(\d+)`)

// countTaken adds up what the daemons of a script took from their pools.
func countTaken(e *testscript.Env) {
	taken, ok := e.Values[poolKey{}].(*atomic.Int64)
	if !ok {
		return
	}
	log, err := os.ReadFile(filepath.Join(e.WorkDir, "daemon.log"))
	if err != nil {
		return // no daemon was started
	}
	for _, m := range takenLine.FindAllStringSubmatch(string(log), -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			panic(fmt.Sprintf("%q: %v", m[0], err))
		}
		taken.Add(int64(n))
	}
}
