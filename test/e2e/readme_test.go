//go:build linux

package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/test/fixture"
)

// readmeLine is what a line of the README's ten minutes does, where it does more than end
// with status 0.
type readmeLine struct {
	status int
	says   string // in its output
	// until is for what goes on until it is interrupted: whether it is there, and may be.
	until func(out string) bool
	// stays is for what goes on beside the lines that follow.
	stays bool
	// needs is why the line is not run; asUser is that for another user than root alone.
	needs, asUser string
}

// readmeLines are those lines, without their comments.
var readmeLines = map[string]readmeLine{
	"cloche run -- sh -c 'id; ls ~; touch /usr/x'":                           {status: 1, says: "uid=0(root)"},
	"cloche run --timeout 2s -- sleep 60; echo $?":                           {says: "124\n"},
	"cloche run --memory 256MiB -- python3 -c 'x=bytearray(2**30)'":          {status: 137, says: "out of memory", asUser: "a cgroup that holds memory"},
	"seq 100 | cloche run --file sum.py:/workspace/sum.py -- python3 sum.py": {says: "5050\n"},
	"cloche serve &": {stays: true},
	"cloche exec dev -- sh -c 'echo hello > note; cat note'":             {says: "hello\n"},
	"cloche wait --ready dev web; cloche ps dev; cloche logs -f dev web": {until: func(out string) bool { return strings.Contains(out, "Serving HTTP") }},
	"cloche port-forward dev 8000:8000": {until: func(string) bool {
		answer, err := http.Get("http://127.0.0.1:8000/note")
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	}},
	"cloche attach dev web": {until: func(string) bool { return true }},
	"cloche run --mount ./data:/data:ro --workspace ./job -- python3 analyse.py":                                  {says: "from data\n"},
	"cloche run --image python:3.11-slim -- python3 -V":                                                           {says: "Python 3"},
	"cloche run --allow pypi.org,files.pythonhosted.org -- pip install --target /workspace/py six":                {needs: "pypi.org, with a certificate that pip trusts"},
	"cloche exec net -- curl -sS https://example.com":                                                             {status: 6, says: "not let out: example.com"},
	"cloche egress allow net example.com --for 10m; cloche egress log net":                                        {says: "refused example.com"},
	"cloche run --endpoint model=http://127.0.0.1:8080,openai,record=first --workspace ./job -- python3 agent.py": {says: "Hello there\n"},
	"cloche run --endpoint model=replay:first,openai --workspace ./job -- python3 agent.py":                       {says: "Hello there\n"},
	"cloche job run rollout.yaml": {says: "Hello there"},
	"cloche secret ls":            {says: "api.openai.com"},
	"cloche run --secret openai=OPENAI_API_KEY --allow api.openai.com --workspace ./job -- python3 ask.py": {says: "a placeholder\n"},
	"cloche audit tail --outcome refused; cloche audit verify; cloche audit usage":                         {says: "the chain is whole"},
	"cloche policy explain --memory 200GiB":                                                                {status: 126, says: "the smallest rule that would allow it"},
	"cloche create --name fix --workspace proj --layered":                                                  {asUser: "the mount of an overlay"},
	"cloche exec fix -- sh -c 'echo hi > new; rm note'; cloche diff fix":                                   {asUser: "the mount of an overlay", says: "new\n"},
	"cloche snapshot create --name half-way fix":                                                           {asUser: "the mount of an overlay"},
	"cloche rollback --stop fix":                                                                           {asUser: "the mount of an overlay", says: "1 added"},
	"cloche rm fix; cloche run --snapshot half-way -- ls":                                                  {asUser: "the mount of an overlay", says: "new\n"},
	"cloche box": {stays: true},
}

// readmeFiles are what the README supposes that its reader has.
var readmeFiles = map[string]string{
	"data/numbers":   "from data\n",
	"job/analyse.py": "print(open('/data/numbers').read(), end='')\n",
	"job/agent.py": `import json, os, urllib.request
ask = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
answer = urllib.request.urlopen(urllib.request.Request(url, json.dumps(ask).encode(), {"Content-Type": "application/json"}))
print(json.load(answer)["choices"][0]["message"]["content"])
`,
	"job/ask.py": "import os\nprint('the value' if 'real' in os.environ['OPENAI_API_KEY'] else 'a placeholder')\n",
	"rollout.yaml": `spec:
  image: host
  network: none
  endpoints: [{name: model, target: "http://127.0.0.1:8080", presets: [openai]}]
files: [{path: /workspace/agent.py, from: job/agent.py}]
run: [[python3, /workspace/agent.py]]
`,
	"openai.key": "the real value",
	// No name of the public leads anywhere, whatever a line asks for.
	"home/policy.yaml": `min_tier: namespace
image_aliases: {"python:3.11-slim": host}
egress: {hosts: {example.com: 127.0.0.1, api.openai.com: 127.0.0.1, pypi.org: 127.0.0.1, files.pythonhosted.org: 127.0.0.1}}
secrets: [{name: openai, from: {file: KEY}, hosts: [api.openai.com]}]
`,
}

// readmeBlocks are the sh blocks below a heading, in their order.
func readmeBlocks(t *testing.T, heading string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := bytes.Cut(text, []byte("\n## "+heading+"\n"))
	if !ok {
		t.Fatalf("the README has no heading %q", heading)
	}
	text, _, _ = bytes.Cut(text, []byte("\n## "))
	inside := false
	for line := range strings.Lines(string(text)) {
		switch line = strings.TrimSuffix(line, "\n"); {
		case strings.HasPrefix(line, "```"):
			inside = line == "```sh"
		case inside && line != "":
			lines = append(lines, line)
		}
	}
	return lines
}

// withoutComment is a line without what explains it.
func withoutComment(line string) string {
	code, _, _ := strings.Cut(line, "  #")
	code, _, _ = strings.Cut(code, " # ")
	return strings.TrimSpace(code)
}

// TestReadme runs the README's ten minutes from top to bottom, as they are written.
func TestReadme(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: it makes two dozen sandboxes")
	}
	lines := readmeBlocks(t, "Ten minutes")
	for known := range readmeLines {
		if !slices.ContainsFunc(lines, func(l string) bool { return withoutComment(l) == known }) {
			t.Errorf("the README has no line %q", known)
		}
	}
	bin := fixture.Binary(t)
	if out, err := exec.CommandContext(t.Context(), bin, "doctor", "--home", t.TempDir()).CombinedOutput(); err != nil {
		t.Skipf("needs a usable engine: cloche doctor says\n%s", out)
	}
	r := newReader(t, bin)
	for _, line := range lines {
		ok := t.Run(withoutComment(line), func(t *testing.T) { r.line(t, line) })
		if !ok {
			t.Fatal("the lines that follow need this one")
		}
	}
}

// reader is one who types what the README says.
type reader struct {
	dir, home string
	env       []string
	beside    *exec.Cmd // what runs beside the lines; nil is nothing
}

func newReader(t *testing.T, bin string) *reader {
	dir, err := os.MkdirTemp("", "cl-") // short enough for a socket in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &reader{dir: dir, home: filepath.Join(dir, "home")}
	for name, content := range readmeFiles {
		path := filepath.Join(dir, name)
		content = strings.ReplaceAll(content, "KEY}", filepath.Join(dir, "openai.key")+"}")
		mode := os.FileMode(0o644)
		if name == "openai.key" || strings.HasPrefix(name, "home/") {
			mode = 0o600
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(r.home, 0o700); err != nil {
		t.Fatal(err)
	}
	r.env = []string{"PATH=" + filepath.Dir(bin) + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir, "CLOCHE_HOME=" + r.home, "LC_ALL=C.UTF-8"}
	t.Cleanup(func() { r.stop(t) })
	claimPorts(t)
	ln, err := net.Listen("tcp", "127.0.0.1:8080")
	if err != nil {
		t.Skipf("needs the port of the README's model: %v", err)
	}
	server := &http.Server{Handler: &model{}, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(func() { _ = server.Close() })
	free, err := net.Listen("tcp", "127.0.0.1:8000")
	if err != nil {
		t.Skipf("needs the port that the README forwards: %v", err)
	}
	free.Close()
	return r
}

// claimPorts waits until no other run of this test has the README's ports.
func claimPorts(t *testing.T) {
	var claim net.Listener
	if !fixture.Poll(func() (ok bool) {
		var err error
		claim, err = net.Listen("unix", "@cloche-readme-test")
		return err == nil
	}) {
		t.Skip("needs the README's ports, which another run of this test has")
	}
	t.Cleanup(func() { claim.Close() })
}

// line runs one line.
func (r *reader) line(t *testing.T, line string) {
	code := withoutComment(line)
	want := readmeLines[code]
	if os.Geteuid() != 0 && want.asUser != "" {
		want.needs = want.asUser
	}
	if want.needs != "" {
		t.Skipf("needs %s", want.needs)
	}
	if want.stays {
		r.stop(t)
		line = "exec " + strings.TrimSuffix(code, "&")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	out := &output{}
	cmd := exec.Command("sh", "-c", line)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = r.dir, r.env, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if want.stays {
		r.beside = cmd
		if !fixture.Poll(func() bool { return r.command("cloche", "ls").Run() == nil }) {
			t.Fatalf("it does not serve:\n%s", out)
		}
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	interrupted := false
	for {
		select {
		case <-tick.C:
			if want.until != nil && (interrupted || want.until(out.String())) {
				interrupted = true
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
			}
		case <-ctx.Done():
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-ended
			t.Fatalf("it does not end:\n%s", out)
		case <-ended:
			if want.until != nil && !interrupted {
				t.Errorf("it ended by itself:\n%s", out)
			}
			if status := cmd.ProcessState.ExitCode(); want.until == nil && status != want.status {
				t.Errorf("status %d, want %d:\n%s", status, want.status, out)
			}
			if !strings.Contains(out.String(), want.says) {
				t.Errorf("it does not say %q:\n%s", want.says, out)
			}
			return
		}
	}
}

func (r *reader) command(argv ...string) *exec.Cmd {
	cmd := exec.Command("sh", append([]string{"-c", `exec "$@"`, "sh"}, argv...)...)
	cmd.Dir, cmd.Env = r.dir, r.env
	return cmd
}

// stop ends what runs beside the lines; the sandboxes are removed first.
func (r *reader) stop(t *testing.T) {
	if r.beside == nil {
		return
	}
	if names, err := r.command("sh", "-c", "cloche ls -q | xargs -r cloche rm -f").CombinedOutput(); err != nil {
		t.Errorf("remove the sandboxes: %v\n%s", err, names)
	}
	_ = syscall.Kill(-r.beside.Process.Pid, syscall.SIGTERM)
	if err := r.beside.Wait(); err != nil {
		t.Errorf("%s ended with %v\n%s", fmt.Sprint(r.beside.Args), err, r.beside.Stdout)
	}
	r.beside = nil
}

// output is what a line wrote so far.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// String implements fmt.Stringer.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
