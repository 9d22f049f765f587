//go:build linux

package e2e_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/client"
	"github.com/cloche-dev/cloche/test/fixture"
)

// jupyterVar names a directory with the Python packages ipykernel, matplotlib and pandas.
const jupyterVar = "CLOCHE_TEST_JUPYTER"

// codeRun is a run of code in full.
type codeRun struct {
	stdout, text string
	last         api.CodeEvent
	failure      api.CodeEvent
	results      []map[string]json.RawMessage
}

// codeBox is a sandbox with code contexts.
type codeBox struct {
	*testing.T
	c *client.Client
}

func (b codeBox) run(r api.CodeRequest) codeRun {
	b.Helper()
	out, err := b.try(b.Context(), r)
	if err != nil {
		b.Fatalf("%.100q: %v", r.Code, err)
	}
	return out
}

func (b codeBox) try(ctx context.Context, r api.CodeRequest) (out codeRun, err error) {
	return b.tell(ctx, r, func() {})
}

// tell is try that calls begun when the code has printed something.
func (b codeBox) tell(ctx context.Context, r api.CodeRequest, begun func()) (out codeRun, err error) {
	err = b.c.RunCode(ctx, "box", r, func(e api.CodeEvent) error {
		out.last = e
		switch e.Type {
		case api.CodeStdout:
			out.stdout += e.Text
			begun()
		case api.CodeError:
			out.failure = e
		case api.CodeResult:
			out.results = append(out.results, e.Data)
			if e.Main {
				_ = json.Unmarshal(e.Data["text/plain"], &out.text)
			}
		}
		return nil
	})
	return out, err
}

// TestCode runs code in real Jupyter kernels.
func TestCode(t *testing.T) {
	packages := os.Getenv(jupyterVar)
	if packages == "" {
		t.Skipf("needs Jupyter: set %s, see CONTRIBUTING.md", jupyterVar)
	}
	fixture.OnEnginesAnyUser(t, func(t *testing.T, engine string) {
		h := fixture.New(t)
		h.Kill9()
		// The packages may belong to another user.
		if err := os.WriteFile(filepath.Join(h.Dir, "policy.yaml"), []byte("mounts: [{root: "+packages+"}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		h.Start()
		c, err := client.New(client.Options{Host: "unix://" + h.Socket()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		b := codeBox{t, c}
		create := []string{"create", "--engine", engine, "--name", "box", "--mount", packages + ":/packages:ro", "-e", "PYTHONPATH=/packages", "-e", "MPLCONFIGDIR=/tmp"}
		if out, status := h.Try(create...); status != 0 && os.Geteuid() != 0 && strings.Contains(out, "is not usable") {
			t.Skipf("needs engine %s, which is not usable for this user: %s", engine, out)
		} else if status != 0 {
			t.Fatalf("status %d: %s", status, out)
		}
		h.Must("create", "--engine", engine, "--name", "bare")
		if err := c.RunCode(t.Context(), "bare", api.CodeRequest{Code: "1"}, func(api.CodeEvent) error { return nil }); api.CodeOf(err) != api.CodeUnsupported {
			t.Errorf("an image without Jupyter: %v", err)
		}
		if list, err := c.Contexts(t.Context(), "bare"); err != nil || len(list) != 0 {
			t.Errorf("it has the contexts %+v, %v", list, err)
		}
		if _, status := h.Try("exec", "box", "--", "python3", "-c", "import zmq"); status != 0 {
			t.Skipf("needs a Python that reads the packages in the image of %s", engine)
		}
		b.state(h)
		b.results()
		b.failures()
		b.contexts(h)
		h.Must("rm", "-f", "box", "bare")
		h.Left()
	})
}

// state: variables stay, also over a new daemon, and the command line has the same contexts.
func (b codeBox) state(h *fixture.Fixture) {
	b.Helper()
	if r := b.run(api.CodeRequest{Code: "x = 6\nprint('printed')\nx * 7"}); r.text != "42" || r.stdout != "printed\n" || r.last.Status != "ok" || r.last.ExecutionCount != 1 {
		b.Errorf("the first run: %+v", r)
	}
	if out := h.Must("code", "run", "box", "x + 1"); out != "7\n" {
		b.Errorf("the command line: %q", out)
	}
	if out, status := h.Try("code", "run", "box", "1/0"); status != 1 || !strings.Contains(out, "ZeroDivisionError") {
		b.Errorf("a failure on the command line: status %d, %q", status, out)
	}
	h.Kill9()
	h.Start()
	if r := b.run(api.CodeRequest{Code: "x"}); r.text != "6" {
		b.Errorf("after a new daemon: %+v", r)
	}
	if r := b.run(api.CodeRequest{Code: "import os; os.environ['V']", Env: map[string]string{"V": "one"}}); r.text != "'one'" {
		b.Errorf("a variable: %+v", r)
	}
	if r := b.run(api.CodeRequest{Code: "os.environ.get('V', 'unset')"}); r.text != "'unset'" {
		b.Errorf("the variable of an earlier run: %+v", r)
	}
}

func (b codeBox) results() {
	b.Helper()
	r := b.run(api.CodeRequest{Code: "import matplotlib.pyplot as plt\nplt.bar(['a', 'b'], [1, 2]); plt.title('T'); plt.show()\nimport pandas\npandas.DataFrame({'n': [1, 2]})"})
	if len(r.results) != 2 {
		b.Fatalf("%+v", r)
	}
	var chart struct {
		Type, Title string
		Elements    []struct {
			Label string
			Value float64
		}
	}
	if err := json.Unmarshal(r.results[0][api.MIMEChart], &chart); err != nil || chart.Type != "bar" || chart.Title != "T" || len(chart.Elements) != 2 || chart.Elements[1].Label != "b" || chart.Elements[1].Value != 2 {
		b.Errorf("the chart: %+v, %v", chart, err)
	}
	if got := string(r.results[0]["image/png"]); !strings.HasPrefix(got, `"iVBOR`) {
		b.Errorf("the picture: %.40s", got)
	}
	var table map[string][]int
	if err := json.Unmarshal(r.results[1][api.MIMETable], &table); err != nil || len(table["n"]) != 2 || r.results[1]["text/html"] == nil {
		b.Errorf("the table: %v, %v", table, err)
	}
	r = b.run(api.CodeRequest{Code: "from IPython.display import *\ndisplay(Markdown('**m**'), SVG('<svg/>'), JSON({'a': [1]}), Latex('$x$'))"})
	for i, kind := range []string{"text/markdown", "image/svg+xml", "application/json", "text/latex"} {
		if len(r.results) != 4 || r.results[i][kind] == nil {
			b.Errorf("no %s in %+v", kind, r.results)
		}
	}
}

func (b codeBox) failures() {
	b.Helper()
	if r := b.run(api.CodeRequest{Code: "import time; time.sleep(60)", TimeoutMS: new(int64(300))}); r.failure.Name != "TimeoutError" || r.last.Status != "timeout" {
		b.Errorf("a timeout: %+v", r)
	}
	hang := "import time\nwhile True:\n    try:\n        while True: time.sleep(1)\n    except KeyboardInterrupt: pass"
	if r := b.run(api.CodeRequest{Code: hang, TimeoutMS: new(int64(300))}); r.failure.Name != "KernelHangs" || r.last.Status != "timeout" {
		b.Errorf("a kernel that does not react: %+v", r)
	}
	if r := b.run(api.CodeRequest{Code: "x"}); r.failure.Name != "NameError" {
		b.Errorf("the kernel after it: %+v", r)
	}
	if r := b.run(api.CodeRequest{Code: "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"}); r.failure.Name != "KernelDied" || r.last.Status != "died" {
		b.Errorf("a kernel that dies: %+v", r)
	}
	if r := b.run(api.CodeRequest{Code: "for i in range(40): print('y' * (2 << 20))"}); len(r.stdout) > 64<<20 || r.last.Type != api.CodeEnd || !r.last.Truncated {
		b.Errorf("too much output: %d bytes, %+v", len(r.stdout), r.last)
	}
	// A caller that leaves interrupts its run, so the next one does not wait.
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	if out, err := b.tell(ctx, api.CodeRequest{Code: "print('begun', flush=True)\nimport time\ntime.sleep(600)"}, cancel); err == nil {
		b.Errorf("a run whose caller left: %+v", out)
	}
	if r := b.run(api.CodeRequest{Code: "'next'", TimeoutMS: new(int64(60_000))}); r.text != "'next'" {
		b.Errorf("the run after it: %+v", r)
	}
	for name, r := range map[string]api.CodeRequest{"context": {Code: "1", Context: "none"}, "both": {Code: "1", Context: "python", Language: "python"}, "language": {Code: "1", Language: "cobol"}} {
		want := map[string]api.Code{"context": api.CodeNotFound, "both": api.CodeInvalid, "language": api.CodeUnsupported}[name]
		if _, err := b.try(b.Context(), r); api.CodeOf(err) != want {
			b.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

func (b codeBox) contexts(h *fixture.Fixture) {
	b.Helper()
	made, err := b.c.CreateContext(b.Context(), "box", api.CodeContextSpec{ID: "own", Cwd: "/tmp", Env: map[string]string{"V": "own"}})
	if err != nil {
		b.Fatal(err)
	}
	if made.ID != "own" || made.Language != "python" || made.Cwd != "/tmp" {
		b.Errorf("%+v", made)
	}
	if r := b.run(api.CodeRequest{Context: "own", Code: "import os; print(os.getcwd(), os.environ['V']); y = 1"}); r.stdout != "/tmp own\n" {
		b.Errorf("in a context: %+v", r)
	}
	// Runs of one context wait for each other.
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { b.run(api.CodeRequest{Context: "own", Code: "y += 1"}) })
	}
	wg.Wait()
	if r := b.run(api.CodeRequest{Context: "own", Code: "y"}); r.text != "5" {
		b.Errorf("after four runs: %+v", r)
	}
	restarted := make(chan error, 1)
	restart := sync.OnceFunc(func() { go func() { restarted <- b.c.RestartContext(b.Context(), "box", "own") }() })
	out, err := b.tell(b.Context(), api.CodeRequest{Context: "own", Code: "print('begun', flush=True)\nimport time\ntime.sleep(600)"}, restart)
	if err != nil || out.last.Status != "restarted" || out.failure.Name != "ContextRestarting" {
		b.Errorf("a run in a context that is restarted: %+v, %v", out, err)
	}
	if err := <-restarted; err != nil {
		b.Fatal(err)
	}
	if r := b.run(api.CodeRequest{Context: "own", Code: "y"}); r.failure.Name != "NameError" {
		b.Errorf("after a restart: %+v", r)
	}
	list, err := b.c.Contexts(b.Context(), "box")
	if err != nil || len(list) != 2 || list[0].ID != "python" || list[1].ID != "own" {
		b.Errorf("%+v, %v", list, err)
	}
	if err := b.c.RemoveContext(b.Context(), "box", "own"); err != nil {
		b.Fatal(err)
	}
	if _, err := b.try(b.Context(), api.CodeRequest{Code: "1", Context: "own"}); api.CodeOf(err) != api.CodeNotFound {
		b.Errorf("a context that was removed: %v", err)
	}
	// The default context comes back after its process was killed.
	h.Must("signal", "box", list[0].ExecID, "KILL")
	if !fixture.Poll(func() bool {
		p, err := b.c.Process(b.Context(), "box", list[0].ExecID)
		return err == nil && p.State.Ended()
	}) {
		b.Error("the process was not killed")
	}
	if r := b.run(api.CodeRequest{Code: "1 + 1"}); r.text != "2" {
		b.Errorf("the default context after a kill: %+v", r)
	}
	if out := h.Must("audit", "tail", "--json", "-n", "200"); !strings.Contains(out, `"context":"python"`) {
		b.Error("no run is in the audit log")
	}
}
