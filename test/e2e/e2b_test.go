//go:build linux

package e2e_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/test/fixture"
)

// e2bVar names a directory with installs of E2B's clients: npm's e2b in its directories whose names
// begin with js, one for each version, and PyPI's behind py/bin/python.
const e2bVar = "CLOCHE_TEST_E2B"

// e2bServer is a daemon that serves clients of E2B.
type e2bServer struct {
	*fixture.Fixture
	env map[string]string
}

// newE2BServer starts a daemon with an address for clients of E2B alone, unless flags say otherwise.
func newE2BServer(t *testing.T, flags ...string) *e2bServer {
	t.Helper()
	if len(flags) == 0 {
		flags = []string{"--e2b", "127.0.0.1:0"}
	}
	s := &e2bServer{Fixture: fixture.New(t)}
	s.Kill9()
	return s.serve(flags...)
}

// newE2BService starts a daemon of a binary of its own, so that its processes are not taken for those of
// another daemon that the test starts.
func newE2BService(t *testing.T) *e2bServer {
	t.Helper()
	s := &e2bServer{Fixture: fixture.NotStarted(t)}
	bin := filepath.Join(t.TempDir(), "cloche-service")
	fixture.CopyFile(t, s.Bin, bin)
	if err := os.Chmod(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	s.Bin = bin
	return s.serve("--e2b", "127.0.0.1:0")
}

// serve starts the daemon.
func (s *e2bServer) serve(flags ...string) *e2bServer {
	t := s.T
	t.Helper()
	// What the clients ask for as a tenant.
	if err := os.WriteFile(filepath.Join(s.Dir, "policy.yaml"), []byte("egress: {allow: [one.test, two.test]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(s.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	s.Daemon = exec.Command(s.Bin, append([]string{"serve", "--home", s.Dir}, flags...)...)
	s.Daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	s.Daemon.Stderr = log
	err = s.Daemon.Start()
	log.Close()
	if err != nil {
		t.Fatal(err)
	}
	var key struct{ Secret string }
	ready := func() bool {
		if json.Unmarshal(s.cloche("e2b", "env", "--json"), &s.env) == nil {
			return true
		}
		if key.Secret == "" && flags[0] == "--listen" && json.Unmarshal(s.cloche("key", "create", "--tenant", "sdk", "--json"), &key) == nil {
			t.Setenv("CLOCHE_TOKEN", key.Secret)
		}
		return false
	}
	if !fixture.Poll(ready) {
		t.Fatalf("clients of E2B are not served:\n%s", s.LastWords())
	}
	return s
}

// cloche runs a command of the CLI and returns its output.
func (s *e2bServer) cloche(args ...string) []byte {
	out, _ := exec.CommandContext(s.T.Context(), s.Bin, append(args, "--home", s.Dir)...).Output()
	return out
}

// TestE2BClients runs E2B's own clients, as they are.
func TestE2BClients(t *testing.T) {
	dir := os.Getenv(e2bVar)
	if dir == "" {
		t.Skipf("needs E2B's clients: set %s, see CONTRIBUTING.md", e2bVar)
	}
	t.Run("own address", func(t *testing.T) { e2bClients(t, dir, newE2BServer(t)) })
	t.Run("daemon's address", func(t *testing.T) {
		s := newE2BServer(t, "--listen", "tcp://127.0.0.1:0")
		for _, header := range []map[string]string{nil, {"X-API-Key": "e2b_0000"}, {"X-API-Key": "clk_none"}} {
			if status, answer := s.ask("GET", "/v2/sandboxes", "", header); status != http.StatusUnauthorized {
				t.Errorf("%v: %d %s", header, status, answer)
			}
		}
		if status, answer := s.ask("GET", "/v1/sandboxes", "", map[string]string{"Authorization": "Bearer " + os.Getenv("CLOCHE_TOKEN")}); status != http.StatusOK {
			t.Errorf("the native API beside it: %d %s", status, answer)
		}
		e2bClients(t, dir, s)
	})
}

func e2bClients(t *testing.T, dir string, s *e2bServer) {
	script, err := os.ReadFile(filepath.Join("test", "e2e", "testdata", "e2b", "client.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	clients := map[string][]string{
		"py": {filepath.Join(dir, "py", "bin", "python"), filepath.Join("test", "e2e", "testdata", "e2b", "client.py")},
	}
	versions, err := filepath.Glob(filepath.Join(dir, "js*"))
	if err != nil || len(versions) == 0 {
		t.Fatalf("%s has no directory js: %v", dir, err)
	}
	for _, version := range versions {
		clients[filepath.Base(version)] = []string{"node", "--input-type=module", "-e", string(script)}
	}
	for name, argv := range clients {
		t.Run(name, func(t *testing.T) {
			at := ""
			if name != "py" {
				at = filepath.Join(dir, name)
			}
			s.client(name, at, argv...)
		})
	}
	s.Left()
}

// TestE2BFrameworks runs what frameworks have for E2B, as it is: each with packages of its own, of PyPI.
func TestE2BFrameworks(t *testing.T) {
	dir := os.Getenv(e2bVar)
	if dir == "" {
		t.Skipf("needs E2B's clients: set %s, see CONTRIBUTING.md", e2bVar)
	}
	s := newE2BServer(t)
	for _, name := range []string{"openai_agents", "langbot", "langchain_sandbox"} {
		t.Run(name, func(t *testing.T) {
			packages := filepath.Join(dir, name)
			if _, err := os.Stat(packages); err != nil {
				t.Skipf("needs the packages of %s: %v", name, err)
			}
			t.Setenv("PYTHONPATH", packages)
			s.client(name, "", "/usr/bin/python3", filepath.Join("test", "e2e", "testdata", "e2b", name+".py"))
		})
	}
	s.Left()
}

// TestE2BCodeInterpreter runs E2B's code interpreters, as they are, in an image that is made of this
// machine's Python and Jupyter.
func TestE2BCodeInterpreter(t *testing.T) {
	dir, packages := os.Getenv(e2bVar), os.Getenv(jupyterVar)
	if dir == "" || packages == "" {
		t.Skipf("needs E2B's clients and Jupyter: set %s and %s, see CONTRIBUTING.md", e2bVar, jupyterVar)
	}
	s := newE2BServer(t)
	python, err := filepath.Glob("/usr/lib/python3*")
	if err != nil {
		t.Fatal(err)
	}
	// The /tmp of a sandbox is its own, and hides the one of its image.
	copied, err := os.MkdirTemp("/var/tmp", "cloche-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(copied) })
	if out, err := exec.CommandContext(t.Context(), "cp", "-al", packages+"/.", copied).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Chmod(copied, 0o755); err != nil {
		t.Fatal(err)
	}
	packages = copied
	s.Must(append([]string{"image", "pack", "--env", "PYTHONPATH=" + packages, "code-interpreter-v1", "/bin/sh", "/usr/bin/python3", packages}, python...)...)
	script, err := os.ReadFile(filepath.Join("test", "e2e", "testdata", "e2b", "code.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	s.client("py", "", filepath.Join(dir, "py", "bin", "python"), filepath.Join("test", "e2e", "testdata", "e2b", "code.py"))
	s.client("js", filepath.Join(dir, "js"), "node", "--input-type=module", "-e", string(script))
	s.Left()
}

// client runs a program that prints "all done".
func (s *e2bServer) client(name, dir string, argv ...string) {
	s.T.Helper()
	ctx, cancel := context.WithDeadline(s.T.Context(), deadline(s.T, 5*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay, cmd.Dir = 5*time.Second, dir // modules of node are found from dir
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	for k, v := range s.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "all done\n") {
		s.T.Errorf("%s: %v\n%s", name, err, out)
	}
}

// ask sends a request to the server for clients of E2B and returns the status and the answer.
func (s *e2bServer) ask(method, path, body string, headers map[string]string) (status int, answer string) {
	s.T.Helper()
	r, err := http.NewRequestWithContext(s.T.Context(), method, s.env["E2B_API_URL"]+path, strings.NewReader(body))
	if err != nil {
		s.T.Fatal(err)
	}
	for k, v := range headers {
		if k == "Host" {
			r.Host = v
			continue
		}
		r.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		s.T.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		s.T.Fatal(err)
	}
	return res.StatusCode, string(data)
}

// TestAttackE2B: a key sees its own tenant only, a token opens one sandbox, and a web page gets nothing.
func TestAttackE2B(t *testing.T) {
	s := newE2BServer(t)
	keyOf := func(tenant string) string {
		key := strings.TrimSpace(string(s.cloche("key", "create", "--tenant", tenant)))
		if key == "" {
			t.Fatal("no key")
		}
		return key
	}
	create := func(key string) (id, token string) {
		status, answer := s.ask(http.MethodPost, "/v2/sandboxes", `{"templateID":"base","timeout":300}`, map[string]string{"X-API-Key": key})
		var sb struct{ SandboxID, EnvdAccessToken string }
		if err := json.Unmarshal([]byte(answer), &sb); err != nil || status != http.StatusCreated {
			t.Fatalf("create: %d %s", status, answer)
		}
		return sb.SandboxID, sb.EnvdAccessToken
	}
	acme, evil := keyOf("acme"), keyOf("evil")
	id, token := create(acme)
	own, ownToken := create(evil)
	data := func(id, token string) map[string]string {
		return map[string]string{"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": "49983", "X-Access-Token": token, "Content-Type": "application/json"}
	}
	with := func(h map[string]string, more ...string) map[string]string {
		out := map[string]string{}
		for k, v := range h {
			out[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	const stat = "/filesystem.Filesystem/Stat"
	if status, answer := s.ask(http.MethodPost, stat, `{"path":"/"}`, data(id, token)); status != http.StatusOK {
		t.Fatalf("the owner's own request: %d %s", status, answer)
	}
	for name, tc := range map[string]struct {
		method, path, body string
		headers            map[string]string
		want               int
	}{
		"no key":                          {http.MethodGet, "/v2/sandboxes", "", nil, http.StatusUnauthorized},
		"a wrong key":                     {http.MethodGet, "/v2/sandboxes", "", map[string]string{"X-API-Key": acme[:len(acme)-1] + "0x"}, http.StatusUnauthorized},
		"another's sandbox":               {http.MethodGet, "/sandboxes/" + id, "", map[string]string{"X-API-Key": evil}, http.StatusNotFound},
		"kill another's":                  {http.MethodDelete, "/sandboxes/" + id, "", map[string]string{"X-API-Key": evil}, http.StatusNotFound},
		"connect to another's":            {http.MethodPost, "/v2/sandboxes/" + id + "/connect", "{}", map[string]string{"X-API-Key": evil}, http.StatusNotFound},
		"a guessed id":                    {http.MethodGet, "/sandboxes/0000000000000000", "", map[string]string{"X-API-Key": acme}, http.StatusNotFound},
		"a path as an id":                 {http.MethodGet, "/sandboxes/..%2f" + id, "", map[string]string{"X-API-Key": acme}, http.StatusNotFound},
		"no token":                        {http.MethodPost, stat, `{"path":"/"}`, data(id, ""), http.StatusUnauthorized},
		"the token of another":            {http.MethodPost, stat, `{"path":"/"}`, data(id, ownToken), http.StatusUnauthorized},
		"a key is no token":               {http.MethodPost, stat, `{"path":"/"}`, with(data(id, ""), "X-API-Key", acme), http.StatusUnauthorized},
		"one of the two headers":          {http.MethodPost, stat, `{"path":"/"}`, map[string]string{"E2b-Sandbox-Id": id}, http.StatusBadRequest},
		"a sandbox that does not exist":   {http.MethodPost, stat, `{"path":"/"}`, data("0000000000000000", token), http.StatusBadGateway},
		"a page of a site":                {http.MethodPost, stat, `{"path":"/"}`, with(data(id, token), "Origin", "https://evil.example"), http.StatusForbidden},
		"a page's own port":               {http.MethodGet, "/", "", map[string]string{"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": "80", "Referer": "https://evil.example/"}, http.StatusForbidden},
		"a page calls the control plane":  {http.MethodPost, "/v2/sandboxes", `{"templateID":"base"}`, map[string]string{"X-API-Key": "x", "Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		"a name that was bound to here":   {http.MethodGet, "/v2/sandboxes", "", map[string]string{"X-API-Key": "x", "Host": "evil.example"}, http.StatusMisdirectedRequest},
		"the same with headers":           {http.MethodPost, stat, `{"path":"/"}`, with(data(id, token), "Host", "evil.example"), http.StatusForbidden},
		"a link without a signature":      {http.MethodGet, "/files?path=/etc/passwd&signature=", "", nil, http.StatusUnauthorized},
		"a link with a guessed signature": {http.MethodGet, "/files?path=/etc/passwd&signature=v1_" + strings.Repeat("A", 43), "", nil, http.StatusUnauthorized},
		"the inner route of the server":   {http.MethodPost, "/init", "{}", data(id, token), http.StatusNotFound},
		"a body that is no JSON":          {http.MethodPost, "/v2/sandboxes", `{`, map[string]string{"X-API-Key": acme}, http.StatusBadRequest},
		"a body without an end":           {http.MethodPost, "/v2/sandboxes", strings.Repeat(" ", 2<<20), map[string]string{"X-API-Key": acme}, http.StatusRequestEntityTooLarge},
		"a time that is none":             {http.MethodPost, "/v2/sandboxes", `{"templateID":"base","timeout":-1}`, map[string]string{"X-API-Key": acme}, http.StatusBadRequest},
		"what this server does not do":    {http.MethodPost, "/v2/sandboxes", `{"templateID":"base","network":{"httpsPorts":[443]}}`, map[string]string{"X-API-Key": acme}, http.StatusNotImplemented},
		"a route that does not exist":     {http.MethodGet, "/nowhere", "", map[string]string{"X-API-Key": acme}, http.StatusNotFound},
	} {
		status, answer := s.ask(tc.method, tc.path, tc.body, tc.headers)
		if status != tc.want {
			t.Errorf("%s: %d, want %d: %s", name, status, tc.want, answer)
		}
		if strings.Contains(answer, token) || strings.Contains(answer, acme) {
			t.Errorf("%s: the answer has a secret: %s", name, answer)
		}
	}
	// A key that is revoked takes its sandboxes' tokens with it.
	var keys struct{ Keys []struct{ ID, Tenant string } }
	if err := json.Unmarshal(s.cloche("key", "ls", "--json"), &keys); err != nil {
		t.Fatal(err)
	}
	for _, k := range keys.Keys {
		if k.Tenant == "evil" {
			s.cloche("key", "revoke", k.ID)
		}
	}
	if status, answer := s.ask(http.MethodPost, stat, `{"path":"/"}`, data(own, ownToken)); status != http.StatusUnauthorized {
		t.Errorf("after its key was revoked: %d %s", status, answer)
	}
	// Another daemon finds the sandboxes again, with their tokens.
	log, err := os.ReadFile(s.Log())
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{token, ownToken, acme, evil} {
		if strings.Contains(string(log), secret) {
			t.Error("the log has a secret")
		}
	}
	if status, answer := s.ask(http.MethodDelete, "/sandboxes/"+id, "", map[string]string{"X-API-Key": acme}); status != http.StatusNoContent {
		t.Errorf("kill: %d %s", status, answer)
	}
	s.cloche("rm", "--force", "sb-"+own)
	s.Left()
}
