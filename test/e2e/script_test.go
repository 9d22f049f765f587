//go:build linux

package e2e_test

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cloche-dev/cloche/internal/engine/docker/dockertest"
	"github.com/cloche-dev/cloche/test/longtest"
)

const scriptDir = "test/e2e/testdata/script"

// How long a script may take before it is given up, and the next one begins. Attacks
// move gigabytes.
const (
	scriptTime = 8 * time.Minute
	attackTime = 10 * time.Minute
)

// The environment of these tests.
const (
	// envBin names a built binary to test instead of building one.
	envBin = "CLOCHE_BIN"
	// envUser names the normal user of TestScriptsAsUser; root makes it.
	envUser = "CLOCHE_TEST_USER"
)

// asUser are the scripts that a normal user runs, and TestScriptsAsUser: what such a user
// is promised, limits that need delegation left out.
var asUser = regexp.MustCompile(`^(run|exit|json|files|daemon|endpoint|snapshot|image|home_(kept|moved)|mounts(_private|_refused)?$|tar|workspace_(attach|measured|rootless|watched)|socket|(native|nsjail|oci|user)_rootless|real_(python|c|git))`)

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
	u := newUserTests(t)
	if err := os.CopyFS(filepath.Join(u.dir, scriptDir), os.DirFS(scriptDir)); err != nil {
		t.Fatal(err)
	}
	u.give(t)
	all, err := filepath.Glob(scriptDir + "/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		script := strings.TrimSuffix(filepath.Base(f), ".txtar")
		if asUser.MatchString(script) {
			t.Run(script, func(t *testing.T) { u.run(t, "^TestScripts$/^"+script+"$") })
		}
	}
}

// TestAttackAsUser runs attacks again on the daemon of a normal user.
func TestAttackAsUser(t *testing.T) {
	u := newUserTests(t)
	u.give(t)
	for _, name := range []string{"TestAttackDeadline"} {
		for _, engine := range []string{"gvisor", "native", "nsjail"} {
			t.Run(name+"/"+engine, func(t *testing.T) { u.run(t, "^"+name+"$/^"+engine+"$") })
		}
	}
}

// userTests are these tests in a directory where a normal user runs them.
type userTests struct {
	dir string
	*user.User
}

// newUserTests copies the tests and what they are about. They are given to the user by give.
func newUserTests(t *testing.T) *userTests {
	t.Helper()
	name := os.Getenv(envUser)
	if os.Geteuid() != 0 {
		t.Skip("needs root: as a normal user the other tests are this one")
	}
	if name == "" {
		t.Skip("needs " + envUser + ": the name of a normal user to run as, made when it does not exist")
	}
	u := &userTests{User: normalUser(t, name)}
	var err error
	if u.dir, err = os.MkdirTemp("", "cloche-user-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(u.dir) })
	if err := os.MkdirAll(filepath.Join(u.dir, "test", "e2e"), 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	copyFile(t, self, filepath.Join(u.dir, "scripts.test"))
	copyFile(t, binary(t), filepath.Join(u.dir, "cloche"))
	copyFile(t, callerProgram(t), filepath.Join(u.dir, "caller"))
	// What needs it is skipped where it is not.
	if ok, err := condition("nsjail"); ok && err == nil {
		found, err := exec.LookPath(nsjailProgram())
		if err != nil {
			t.Fatal(err)
		}
		copyFile(t, found, filepath.Join(u.dir, "nsjail"))
	}
	return u
}

// give gives all in the directory to the user.
func (u *userTests) give(t *testing.T) {
	t.Helper()
	uid, gid := number(t, u.Uid), number(t, u.Gid)
	err := filepath.Walk(u.dir, func(p string, _ os.FileInfo, err error) error {
		return errors.Join(err, os.Lchown(p, uid, gid))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// run runs the tests that a pattern names.
func (u *userTests) run(t *testing.T, pattern string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(u.dir, name) }
	cmd := exec.CommandContext(t.Context(), at("scripts.test"), "-test.run", pattern, "-test.v")
	cmd.Dir = filepath.Join(u.dir, "test", "e2e") // TestMain goes to the root of the module from here
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + u.HomeDir, "USER=" + u.Username, "TMPDIR=" + u.dir, envBin + "=" + at("cloche"), envCaller + "=" + at("caller"), envUser + "=" + u.Username, nsjailVar + "=" + at("nsjail")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(number(t, u.Uid)), Gid: uint32(number(t, u.Gid))}, Setsid: true}
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("as %s: %v\n%s", u.Username, err, out)
	case !passed.Match(out):
		t.Skipf("%s", reason.Find(out))
	}
}

// What runs to its end within a test, and the reason that is given where all is skipped.
var (
	passed = regexp.MustCompile(`--- PASS: \S+/`)
	reason = regexp.MustCompile(`needs [^'\n]+`)
)

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// normalUser finds the user or makes it.
func normalUser(t *testing.T, name string) *user.User {
	t.Helper()
	u, err := user.Lookup(name)
	if err == nil {
		return u
	}
	if out, err := exec.CommandContext(t.Context(), "useradd", "--create-home", "--shell", "/bin/sh", name).CombinedOutput(); err != nil {
		t.Skipf("needs a normal user: useradd %s: %v: %s", name, err, out)
	}
	if u, err = user.Lookup(name); err != nil {
		t.Fatal(err)
	}
	return u
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// buildOnce builds the binary when the first test asks for it.
var buildOnce = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "cloche-bin-")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "cloche")
	if given := os.Getenv(envBin); given != "" {
		if given, err = filepath.Abs(given); err != nil {
			return "", err
		}
		return bin, errors.Join(os.Symlink(given, bin), os.Chmod(dir, 0o755))
	}
	// The agent first: one that an earlier build left would be of other source.
	agent := filepath.Join("internal", "agent", "embed", "bin", "cloche-agent-linux-"+runtime.GOARCH)
	for _, args := range [][]string{
		{"build", "-ldflags=-s -w -buildid=", "-o", agent, "./cmd/cloche-agent"},
		{"build", "-o", bin, "./cmd/cloche"},
	} {
		cmd := exec.Command("go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	return bin, os.Chmod(dir, 0o755)
})

// binary is the built binary. Every test end to end asks for it, so this is where a run
// with -short skips them.
func binary(t *testing.T) string {
	t.Helper()
	longtest.Skip(t, "it runs the built binary")
	built.Store(true)
	bin, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// built is whether buildOnce was called: its directory is removed at the end.
var built atomic.Bool

// TestMain runs the tests at the root of the module, from where they build it and read its files.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	status := m.Run()
	if built.Load() {
		if bin, err := buildOnce(); err == nil {
			_ = os.RemoveAll(filepath.Dir(bin))
		}
	}
	os.Exit(status)
}

// runScripts runs the scripts that choose names.
func runScripts(t *testing.T, each time.Duration, choose func(string) bool) {
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
	bin := binary(t)
	if out, err := exec.CommandContext(t.Context(), bin, "doctor", "--home", t.TempDir()).CombinedOutput(); err != nil {
		t.Skipf("needs a usable engine: cloche doctor says\n%s", out)
	}
	runFiles(t, bin, files, each)
}

// runFiles runs scripts with a binary.
func runFiles(t *testing.T, bin string, files []string, each time.Duration) {
	params := testscript.Params{
		Setup:     func(e *testscript.Env) error { return setUp(e, bin) },
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

// nsjailVar names the nsjail binary to test with; without it that in PATH is.
const nsjailVar = "CLOCHE_TEST_NSJAIL"

// nsjailProgram is that binary, or a name to look for in PATH.
func nsjailProgram() string { return cmp.Or(os.Getenv(nsjailVar), "nsjail") }

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
		// Not where a library is missing that it is linked with.
		return exec.Command(nsjailProgram(), "--help").Run() == nil, nil
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
	s := &scriptState{bin: bin, home: home, groupsBefore: emptyGroups(home)}
	e.Values[stateKey{}] = s
	e.Defer(s.tearDown)
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
	e.Setenv("NSJAIL", nsjailProgram())
	e.Setenv("LC_ALL", "C.UTF-8")
	// A terminal multiplexer's socket, short for the same reason.
	e.Setenv("SOCK", home+"-tmux")
	e.Defer(func() {
		_ = exec.Command("tmux", "-S", home+"-tmux", "kill-server").Run()
		_ = os.Remove(home + "-tmux")
	})
	return nil
}
