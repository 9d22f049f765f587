//go:build linux

package e2e_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/longtest"
)

const taskDir = "docs/tasks"

// taskNeeds are what a page, or one section of a page, needs from the machine: it returns the
// reason for a skip, or "".
var taskNeeds = map[string]func() string{
	"agent-on-repository.md":                        needsProgram("git"),
	"agent-on-repository.md#In a layered workspace": func() string { return needsRoot("it mounts an overlay") },
	"browser.md":                   needsProgram("/usr/lib/chromium/chromium"),
	"data-analysis.md":             needsWheels,
	"dev-box.md":                   needsProgram("git"),
	"npm-tests.md":                 needsProgram("npm"),
	"parallel.md#Choose limits":    func() string { return needsRoot("memory limits need a cgroup") },
	"parallel.md#From Python":      needsHTTPX,
	"private-registry.md#Images":   needsProgram(staticBusybox),
	"private-registry.md#Packages": needsProgram("pip3"),
}

func needsProgram(name string) func() string {
	return func() string {
		// What only the user's own directories have isn't in the sandbox.
		for _, dir := range []string{"", "/usr/local/bin", "/usr/bin", "/bin"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				return ""
			}
		}
		return "needs " + name
	}
}

func needsRoot(why string) string {
	if os.Geteuid() != 0 {
		return "needs root: " + why
	}
	return ""
}

// wheelsVar names the directory that taskHosts serves as pypi.org.
const wheelsVar = "CLOCHE_TEST_WHEELS"

func needsWheels() string {
	if os.Getenv(wheelsVar) == "" {
		return "needs " + wheelsVar + ": a directory with wheels of matplotlib"
	}
	return ""
}

func needsHTTPX() string {
	if os.Getenv(pypiVar) == "" {
		return "needs " + pypiVar + ": a directory with httpx"
	}
	return ""
}

// TestTasks runs the blocks of each page in docs/tasks as one script, as they are written:
//
//   - an sh block is run
//   - a block with a title is the file of that name
//   - a text block is output of the sh block before it: its lines in this order, among others;
//     … stands for any text
//
// Other blocks are not run. Public hosts are played by servers on loopback.
func TestTasks(t *testing.T) {
	longtest.Skip(t, "it makes some sandboxes for each page")
	bin := fixture.Binary(t)
	if out, err := exec.CommandContext(t.Context(), bin, "doctor", "--home", t.TempDir()).CombinedOutput(); err != nil {
		t.Skipf("needs a usable engine: cloche doctor says\n%s", out)
	}
	pages, err := filepath.Glob(taskDir + "/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages in %s: %v", taskDir, err)
	}
	for _, page := range pages {
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) { runTask(t, bin, page) })
	}
	for key := range taskNeeds {
		page, section, _ := strings.Cut(key, "#")
		text, err := os.ReadFile(filepath.Join(taskDir, page))
		if err != nil || section != "" && !bytes.Contains(text, []byte("\n## "+section+"\n")) {
			t.Errorf("there is no %s", key)
		}
	}
}

// TestTasksAsUser runs the pages again as a normal user.
func TestTasksAsUser(t *testing.T) {
	u := fixture.NewUserTests(t)
	if err := os.CopyFS(filepath.Join(u.Dir, taskDir), os.DirFS(taskDir)); err != nil {
		t.Fatal(err)
	}
	u.Give(t)
	pages, err := filepath.Glob(taskDir + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		t.Run(name, func(t *testing.T) { u.Run(t, "^TestTasks$/^"+name+"$") })
	}
}

// taskBlock is a block of a page.
type taskBlock struct {
	language, title, text string
}

var (
	taskFence = regexp.MustCompile("(?ms)^```(\\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$")
	taskHead  = regexp.MustCompile(`(?m)^## (.*)$`)
)

// taskBlocks are the blocks of the sections that can run here. The others are skipped by name.
func taskBlocks(t *testing.T, page string) (blocks []taskBlock) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(page)
	if needs := taskNeeds[name]; needs != nil {
		if reason := needs(); reason != "" {
			t.Skip(reason)
		}
	}
	starts := []int{0}
	for _, m := range taskHead.FindAllIndex(text, -1) {
		starts = append(starts, m[0])
	}
	for i, start := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1]
		}
		section := text[start:end]
		if m := taskHead.FindSubmatch(section); m != nil {
			if needs := taskNeeds[name+"#"+string(m[1])]; needs != nil {
				if reason := needs(); reason != "" {
					t.Run(string(m[1]), func(t *testing.T) { t.Skip(reason) })
					continue
				}
			}
		}
		for _, m := range taskFence.FindAllSubmatch(section, -1) {
			blocks = append(blocks, taskBlock{language: string(m[1]), title: string(m[2]), text: string(m[3])})
		}
	}
	return blocks
}

// taskEnd separates the output of blocks.
const taskEnd = "\x1e"

func runTask(t *testing.T, bin, page string) {
	blocks := taskBlocks(t, page)
	dir, err := os.MkdirTemp("", "cl-") // short enough for a socket in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	hosts := newTaskHosts(t, dir)
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "policy.yaml"), []byte(hosts.policy()), 0o600); err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	serves := slices.ContainsFunc(blocks, func(b taskBlock) bool { return b.language == "sh" && strings.Contains(b.text, "cloche serve") })
	if !serves {
		script.WriteString("cloche serve > serve.log 2>&1 &\nuntil cloche ls > /dev/null 2>&1; do sleep 0.1; done\n")
	}
	var expected []string // what each sh block is to print
	for _, b := range blocks {
		switch {
		case b.title != "":
			if b.title == "policy.yaml" {
				b.text += hosts.policy()
			}
			fmt.Fprintf(&script, "printf %%s %s | base64 -d > %s\n", base64.StdEncoding.EncodeToString([]byte(b.text)), b.title)
		case b.language == "sh":
			script.WriteString(b.text + "printf '\\036'\n")
			expected = append(expected, "")
		case b.language == "text" && len(expected) > 0:
			expected[len(expected)-1] += b.text
		}
	}
	// If a line fails, the sandboxes and the daemon before it end too.
	cmd := exec.CommandContext(t.Context(), "bash", "-c", `trap 'status=$?; trap - ERR; set +e; cloche ls -q 2>/dev/null | xargs -r cloche rm -f >/dev/null; kill %1 2>/dev/null; wait; exit $status' EXIT
trap 'echo "failed: $BASH_COMMAND"' ERR
set -e
`+script.String())
	cmd.Dir, cmd.WaitDelay = dir, 10*time.Second
	cmd.Env = append(hosts.env(),
		"PATH="+filepath.Dir(bin)+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME="+dir,
		"CLOCHE_HOME="+home, "LC_ALL=C.UTF-8", "PYTHONPATH="+pythonPath(t))
	out, err := cmd.CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "serve.log"))
		t.Fatalf("%v:\n%s\nthe daemon's log:\n%s", err, out, log)
	}
	if testing.Verbose() {
		t.Logf("%s", bytes.ReplaceAll(out, []byte(taskEnd), []byte("----\n")))
	}
	parts := strings.Split(string(out), taskEnd)
	for i, want := range expected {
		if line := missingLine(parts[i], want); line != "" {
			t.Errorf("the output of sh block %d has no line %q after those before it:\n%s", i+1, line, parts[i])
		}
	}
}

// missingLine is the first line of want that isn't in out, behind those before it.
func missingLine(out, want string) string {
	lines := strings.Split(out, "\n")
	for line := range strings.Lines(want) {
		line = strings.Join(strings.Fields(line), " ")
		if line == "" || line == "…" {
			continue
		}
		pattern := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*") + "$")
		i := slices.IndexFunc(lines, func(l string) bool { return pattern.MatchString(strings.Join(strings.Fields(l), " ")) })
		if i < 0 {
			return line
		}
		lines = lines[i+1:]
	}
	return ""
}

// pythonPath has the Python client and what it needs, for the host's python3.
func pythonPath(t *testing.T) string {
	t.Helper()
	sdk, err := filepath.Abs("sdk/python")
	if err != nil {
		t.Fatal(err)
	}
	return sdk + ":" + os.Getenv(pypiVar)
}
