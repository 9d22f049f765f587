//go:build linux

package e2b_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/e2b"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
)

// What the processes of the suite are told of the test's service.
const (
	urlEnv   = "E2B_TEST_URL"
	innerEnv = "E2B_TEST_INNER"
)

// key is the one of the test's service, which has no tenants.
const key = "e2b_0000000000000000000000000000000000000000"

func TestMain(m *testing.M) {
	enginetest.Parent(func(string) (engine.Engine, error) { return e2b.New(options(os.Stderr)) })
	os.Exit(m.Run())
}

func options(log io.Writer) e2b.Options {
	return e2b.Options{
		APIKey: key, APIURL: os.Getenv(urlEnv), Logger: slog.New(slog.NewTextHandler(log, nil)),
		Inner: func() ([]byte, error) { return os.ReadFile(os.Getenv(innerEnv)) },
	}
}

// service is a Cloche daemon that serves E2B's API.
type service struct {
	url string
}

// start builds and starts the service. It ends with the test.
func start(t *testing.T) service {
	t.Helper()
	dir, err := os.MkdirTemp("", "cl") // of a short name, for its socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "cloche")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/cloche-dev/cloche/cmd/cloche")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(program, "serve", "--json", "--e2b", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "CLOCHE_HOME="+filepath.Join(dir, "home"), "E2B_API_KEY=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the service: %v", err)
		}
	})
	found := make(chan string, 1)
	go func() { // ends with the service
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var l struct{ Msg, URL string }
			if json.Unmarshal(lines.Bytes(), &l) == nil && l.Msg == "serving clients of E2B" {
				found <- l.URL
			}
			if os.Getenv("E2B_TEST_LOG") != "" {
				os.Stderr.Write(append(lines.Bytes(), '\n'))
			}
		}
	}()
	select {
	case at := <-found:
		return service{at}
	case <-time.After(time.Minute):
		t.Fatal("the service does not say where it listens")
	}
	return service{}
}

// do sends a request to the service.
func (s service) do(t testing.TB, method, path string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), method, s.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-KEY", key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, b
}

// kill removes a sandbox of a state.
func (s service) kill(t testing.TB, state []byte) {
	t.Helper()
	var rec struct {
		Sandbox string `json:"sandbox"`
	}
	if err := json.Unmarshal(state, &rec); err != nil {
		t.Fatal(err)
	}
	if status, b := s.do(t, http.MethodDelete, "/sandboxes/"+rec.Sandbox); status != http.StatusNoContent {
		t.Fatalf("kill: %d %s", status, b)
	}
}

// left names the sandboxes of a plan.
func (s service) left(t testing.TB, p engine.Plan) []string {
	t.Helper()
	filter := url.QueryEscape("cloche-id=" + p.ID)
	status, b := s.do(t, http.MethodGet, "/v2/sandboxes?metadata="+filter)
	var list []struct {
		SandboxID string `json:"sandboxID"`
	}
	if err := json.Unmarshal(b, &list); err != nil || status != http.StatusOK {
		t.Fatalf("list: %d %s %v", status, b, err)
	}
	var out []string
	for _, l := range list {
		out = append(out, "sandbox "+l.SandboxID)
	}
	return out
}

func buildInner(t *testing.T) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "inner")
	enginetest.BuildProgram(t, name, "cmd/cloche-agent")
	t.Setenv(innerEnv, name)
}

func newEngine(t testing.TB) *e2b.Engine {
	t.Helper()
	e, err := e2b.New(options(t.Output()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// TestE2B runs the suite of engines against a service.
func TestE2B(t *testing.T) {
	s := start(t)
	t.Setenv(urlEnv, s.url)
	buildInner(t)
	setup := enginetest.Setup{
		New:      func(t testing.TB, _ string) engine.Engine { return newEngine(t) },
		Images:   enginetest.BuildImages(t, t.TempDir()),
		Kill:     s.kill,
		Left:     s.left,
		Remote:   true,
		Survives: true,
		Slow:     true,
	}
	if only := os.Getenv("E2B_TEST_ONLY"); only != "" {
		setup.Only = strings.Split(only, ",")
	}
	enginetest.Run(t, setup)
}
