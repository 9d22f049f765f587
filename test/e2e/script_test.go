//go:build linux

package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cloche-dev/cloche/internal/engine/docker/dockertest"
	"github.com/cloche-dev/cloche/test/fixture"
)

const scriptDir = "test/e2e/testdata/script"

// How long a script may take before it is given up, and the next one begins. Attacks
// move gigabytes.
const (
	scriptTime = 8 * time.Minute
	attackTime = 10 * time.Minute
)

// asUser are the scripts that a normal user runs, and TestScriptsAsUser: what such a user
// is promised, limits that need delegation left out.
var asUser = regexp.MustCompile(`^(run|exit|json|files|daemon|endpoint|snapshot|image|home_(kept|moved)|mounts(_private|_refused)?$|tar|workspace_(attach|measured|rootless|watched)|socket|(native|nsjail|oci|user)_rootless|sudo$|start_again|suspend(_idle)?$|real_(python|c|git))`)

// TestScripts drives the built binary through the files of testdata/script, one
// after the other: each looks at what is left on the machine.
func TestScripts(t *testing.T) {
	runScripts(t, scriptTime, func(name string) bool { return !strings.HasPrefix(name, "attack_") })
}

// TestAttackScripts runs what attacks the machine, long or heavy.
func TestAttackScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it exhausts processes, memory and disk of its sandboxes")
	}
	runScripts(t, attackTime, func(name string) bool { return strings.HasPrefix(name, "attack_") })
}

// TestScriptsAsUser runs the basic scripts again as a normal user.
func TestScriptsAsUser(t *testing.T) {
	u := fixture.NewUserTests(t)
	if err := os.CopyFS(filepath.Join(u.Dir, scriptDir), os.DirFS(scriptDir)); err != nil {
		t.Fatal(err)
	}
	u.Give(t)
	all, err := filepath.Glob(scriptDir + "/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		script := strings.TrimSuffix(filepath.Base(f), ".txtar")
		if asUser.MatchString(script) {
			t.Run(script, func(t *testing.T) { u.Run(t, "^TestScripts$/^"+script+"$") })
		}
	}
}

// TestMain runs the tests at the root of the module.
func TestMain(m *testing.M) { os.Exit(fixture.Main(m)) }

// runScripts runs the scripts that choose names.
func runScripts(t *testing.T, each time.Duration, choose func(string) bool, more ...func(*testscript.Env) error) {
	all, err := filepath.Glob(scriptDir + "/*.txtar")
	if err != nil || len(all) == 0 {
		t.Fatalf("no scripts in %s: %v", scriptDir, err)
	}
	var files []string
	for _, f := range all {
		switch name := strings.TrimSuffix(filepath.Base(f), ".txtar"); {
		case !choose(name):
		case os.Geteuid() == 0 || asUser.MatchString(name):
			files = append(files, f)
		default:
			t.Run(name, func(t *testing.T) { t.Skip("needs root: it is about more than a normal user is promised") })
		}
	}
	bin := fixture.Binary(t)
	if out, err := exec.CommandContext(t.Context(), bin, "doctor", "--home", t.TempDir()).CombinedOutput(); err != nil {
		t.Skipf("needs a usable engine: cloche doctor says\n%s", out)
	}
	runFiles(t, bin, files, each, more...)
}

// runFiles runs scripts with a binary.
func runFiles(t *testing.T, bin string, files []string, each time.Duration, more ...func(*testscript.Env) error) {
	params := testscript.Params{
		Setup: func(e *testscript.Env) error {
			for _, prepare := range more {
				if err := prepare(e); err != nil {
					return err
				}
			}
			return setUp(e, bin)
		},
		Condition: condition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status": cmdStatus, "daemon": cmdDaemon, "leftovers": cmdLeftovers, "json": cmdJSON, "eventually": cmdEventually,
			"samesum": cmdSameSum, "grown": cmdGrown, "http": cmdHTTP, "signal": cmdSignal, "rawname": cmdRawName, "sentries": cmdSentries,
			"registry": cmdRegistry, "model": cmdModel, "caller": cmdCaller, "loops": cmdLoops, "internet": cmdInternet, "holder": cmdHolder, "tlssite": cmdTLSSite, "certificate": cmdCertificate, "outside": cmdOutside,
			"container": cmdContainer, "kepthome": cmdKeptHome, "answers": cmdAnswers,
		},
	}
	for _, f := range files {
		params.Files, params.Deadline = []string{f}, deadline(t, each)
		testscript.RunT(oneByOne{t}, params)
	}
}

// deadline leaves time to clean up before the test binary would be killed.
func deadline(t *testing.T, budget time.Duration) time.Time {
	end := time.Now().Add(budget)
	if last, ok := t.Deadline(); ok && last.Add(-20*time.Second).Before(end) {
		end = last.Add(-20 * time.Second)
	}
	return end
}

// oneByOne keeps scripts from running at the same time.
type oneByOne struct{ *testing.T }

func (t oneByOne) Parallel()     {}
func (t oneByOne) Verbose() bool { return testing.Verbose() }
func (t oneByOne) Run(name string, f func(testscript.T)) {
	t.T.Run(name, func(t *testing.T) { f(oneByOne{t}) })
}

// condition adds [root], and [busybox] for a static one to make images of.
func condition(name string) (bool, error) {
	switch name {
	case "root":
		return os.Geteuid() == 0, nil
	case "openai":
		_, err := os.Stat(filepath.Join(os.Getenv(pypiVar), "openai", "__init__.py"))
		return err == nil, nil
	case "mcp", "hypercorn":
		_, err := os.Stat(filepath.Join(os.Getenv(pypiVar), name, "__init__.py"))
		return err == nil, nil
	case "busybox":
		return hasBusybox(), nil
	case "dockerd", "podman":
		return dockertest.Can(name) == nil, nil
	case "nsjail":
		return fixture.HasNsjail(), nil
	}
	return false, fmt.Errorf("there is no condition %q", name)
}

// tellDaemonLog writes what the daemon of a script that failed said of errors.
func tellDaemonLog(e *testscript.Env) {
	t, ok := e.T().(oneByOne)
	if !ok || !t.Failed() {
		return
	}
	log, err := os.ReadFile(filepath.Join(e.WorkDir, "daemon.log"))
	if err != nil {
		return // no daemon was started
	}
	var told []string
	for line := range strings.Lines(string(log)) {
		if !strings.Contains(line, "level=INFO") && !strings.Contains(line, "level=DEBUG") {
			told = append(told, line)
		}
	}
	t.Logf("the daemon's log, beyond what is information:\n%s", strings.Join(told[max(0, len(told)-30):], ""))
}

// setUp gives a script its own home, short enough for a socket in it.
func setUp(e *testscript.Env, bin string) error {
	home, err := os.MkdirTemp("", "cl-")
	if err != nil {
		return err
	}
	s := &fixture.Home{Bin: bin, Dir: home, GroupsBefore: fixture.EmptyGroups(home)}
	e.Values[stateKey{}] = s
	e.Defer(func() { countTaken(e) })
	e.Defer(s.TearDown)
	e.Defer(func() { tellDaemonLog(e) })
	in := &scriptInternet{}
	e.Values[internetKey{}] = in
	e.Defer(in.close)
	r := &scriptRegistry{}
	e.Values[registryKey{}] = r
	e.Defer(r.close)
	containers := scriptContainers{}
	e.Values[containersKey{}] = containers
	e.Defer(containers.close)
	if err := meanEngine(home); err != nil {
		return err
	}
	e.Setenv("CLOCHE_HOME", home)
	e.Setenv("CLOCHE_HOST", "")
	scripts, err := filepath.Abs(scriptDir)
	if err != nil {
		return err
	}
	e.Setenv("SCRIPTS", scripts)
	e.Setenv("TODAY", os.Getenv(envToday))
	e.Setenv("PATH", filepath.Dir(bin)+":/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	e.Setenv("HOME", e.WorkDir)
	e.Setenv("NSJAIL", fixture.NsjailProgram())
	e.Setenv("LC_ALL", "C.UTF-8")
	// A terminal multiplexer's socket, short for the same reason.
	e.Setenv("SOCK", home+"-tmux")
	e.Defer(func() {
		_ = exec.Command("tmux", "-S", home+"-tmux", "kill-server").Run()
		_ = os.Remove(home + "-tmux")
	})
	return nil
}
