//go:build linux

package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/test/fixture"
)

// engineE2B is a daemon whose engine e2b uses another daemon as its service.
type engineE2B struct {
	*fixture.Fixture
	service *e2bServer
}

// newEngineE2B starts both.
func newEngineE2B(t *testing.T) *engineE2B {
	t.Helper()
	e := &engineE2B{service: newE2BService(t)}
	t.Setenv("E2B_API_KEY", e.service.env["E2B_API_KEY"])
	t.Setenv("E2B_API_URL", e.service.env["E2B_API_URL"])
	e.Fixture = fixture.New(t)
	return e
}

// sandboxes are the IDs of the service's sandboxes.
func (e *engineE2B) sandboxes() []string {
	e.T.Helper()
	status, answer := e.service.ask("GET", "/v2/sandboxes", "", map[string]string{"X-API-Key": e.service.env["E2B_API_KEY"]})
	var list []struct {
		ID string `json:"sandboxID"`
	}
	if err := json.Unmarshal([]byte(answer), &list); err != nil || status != 200 {
		e.T.Fatalf("list: %d %s", status, answer)
	}
	var out []string
	for _, l := range list {
		out = append(out, l.ID)
	}
	return out
}

func content(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestEngineE2B uses the engine e2b as a user does, with another daemon as the service.
func TestEngineE2B(t *testing.T) {
	e := newEngineE2B(t)
	create := func(t *testing.T, name string, args ...string) {
		t.Helper()
		e.Must(append([]string{"create", "--engine", "e2b", "--name", name}, args...)...)
		t.Cleanup(func() { e.Must("rm", "-f", name) })
	}
	defer func() {
		if left := e.sandboxes(); len(left) > 0 {
			t.Errorf("left at the service: %v", left)
		}
	}()
	t.Run("files", func(t *testing.T) {
		work, data := t.TempDir(), t.TempDir()
		write := func(dir, name, content string, mode os.FileMode) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), mode); err != nil {
				t.Fatal(err)
			}
		}
		write(work, "a", "1", 0o644)
		write(work, "run.sh", "#!/bin/sh\necho it runs\n", 0o755)
		write(data, "set", "of data", 0o644)
		create(t, "files", "--workspace", work, "--mount", data+":/data:ro")
		if out := e.Must("exec", "files", "--", "sh", "-c", "cat a /data/set; ./run.sh"); out != "1of datait runs\n" {
			t.Errorf("inside: %q", out)
		}
		e.Must("exec", "files", "--", "sh", "-c", "mkdir d; echo made > d/b; chmod 700 d/b; rm a; echo no > /data/set; ln -s d/b l")
		if got := content(t, filepath.Join(work, "d/b")); got != "made\n" {
			t.Errorf("a file made inside has %q", got)
		}
		if fi, err := os.Stat(filepath.Join(work, "d/b")); err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("its mode: %v %v", fi.Mode(), err)
		}
		if to, err := os.Readlink(filepath.Join(work, "l")); err != nil || to != "d/b" {
			t.Errorf("a link: %q %v", to, err)
		}
		if _, err := os.Stat(filepath.Join(work, "a")); !os.IsNotExist(err) {
			t.Errorf("a file that was removed inside: %v", err)
		}
		if got := content(t, filepath.Join(data, "set")); got != "of data" {
			t.Errorf("a read-only directory was changed: %q", got)
		}
		// Changes of the host are there before the next program.
		write(work, "by-host", "2", 0o644)
		if err := os.Remove(filepath.Join(work, "run.sh")); err != nil {
			t.Fatal(err)
		}
		if out := e.Must("exec", "files", "--", "sh", "-c", "cat by-host; ls; cat /data/set"); out != "2by-host\nd\nl\nof data" {
			t.Errorf("inside: %q", out)
		}
		// A process is still running.
		e.Must("start", "--id", "writer", "files", "--", "sh", "-c", "echo from it > log; sleep 1000")
		if !fixture.Poll(func() bool {
			b, err := os.ReadFile(filepath.Join(work, "log"))
			return err == nil && string(b) == "from it\n"
		}) {
			t.Error("what a running process writes does not come to the host")
		}
		// Both sides change a file.
		write(work, "log", "of the host", 0o644)
		e.Must("exec", "files", "--", "sh", "-c", "true")
		if out := e.Must("exec", "files", "--", "cat", "log"); out != "of the host" {
			t.Errorf("the host's change: %q", out)
		}
		// The last changes, by a process that a stop ends.
		e.Must("start", "--id", "last", "files", "--", "sh", "-c", "trap 'echo at the end > end; exit' TERM; echo ready > ready; while :; do sleep 0.1; done")
		if !fixture.Poll(func() bool { _, err := os.Stat(filepath.Join(work, "ready")); return err == nil }) {
			t.Error("the process does not run")
		}
		e.Must("stop", "files")
		if got := content(t, filepath.Join(work, "end")); got != "at the end\n" {
			t.Errorf("the last change: %q", got)
		}
	})
	t.Run("private workspace and snapshot", func(t *testing.T) {
		create(t, "private")
		e.Must("exec", "private", "--", "sh", "-c", "echo kept > f")
		e.Must("snapshot", "create", "private", "--name", "snap", "--scope", "workspace")
		create(t, "again", "--snapshot", "snap")
		if out := e.Must("exec", "again", "--", "cat", "f"); out != "kept\n" {
			t.Errorf("the snapshot has %q", out)
		}
	})
	t.Run("start again", func(t *testing.T) {
		create(t, "ends")
		e.Must("exec", "ends", "--", "sh", "-c", "echo kept > f; echo lost > /etc/lost")
		e.Must("start", "--id", "p", "--restart", "always", "ends", "--", "sleep", "1000")
		e.Must("stop", "ends")
		e.Must("start", "ends")
		if out := e.Must("exec", "ends", "--", "sh", "-c", "cat f; ls /etc/lost 2>/dev/null || echo no root"); out != "kept\nno root\n" {
			t.Errorf("after a start: %q", out)
		}
		if out := e.Must("inspect", "ends"); !strings.Contains(out, "its engine does not show the files of its image") {
			t.Errorf("the record does not say that the root is lost: %s", out)
		}
		if out := e.Must("ps", "ends"); !strings.Contains(out, "p ") {
			t.Errorf("the process was not started again: %s", out)
		}
	})
	t.Run("named workspace", func(t *testing.T) {
		create(t, "named", "--workspace", "shared")
		e.Must("exec", "named", "--", "sh", "-c", "echo named > f")
		e.Must("rm", "-f", "named")
		if out := e.Must("run", "--workspace", "shared", "--", "cat", "f"); !strings.HasSuffix(out, "named\n") {
			t.Errorf("another engine sees %q", out)
		}
		create(t, "named", "--workspace", "shared")
		if out := e.Must("exec", "named", "--", "cat", "f"); out != "named\n" {
			t.Errorf("a second sandbox sees %q", out)
		}
	})
	t.Run("daemon restarts", func(t *testing.T) {
		work := t.TempDir()
		create(t, "lives", "--workspace", work)
		e.Must("start", "--id", "p", "lives", "--", "sh", "-c", "n=0; while :; do n=$((n+1)); echo $n > n; sleep 0.2; done")
		if err := os.WriteFile(filepath.Join(work, "before"), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		e.Must("exec", "lives", "--", "cat", "before")
		e.Kill9()
		if err := os.Remove(filepath.Join(work, "before")); err != nil {
			t.Fatal(err)
		}
		e.Start()
		if out := e.Must("exec", "lives", "--", "ls"); out != "n\n" {
			t.Errorf("after the restart: %q", out)
		}
		before := content(t, filepath.Join(work, "n"))
		if !fixture.Poll(func() bool { b, _ := os.ReadFile(filepath.Join(work, "n")); return string(b) != before && len(b) > 0 }) {
			t.Error("the process does not go on, or its files do not come to the host")
		}
	})
	t.Run("service loses it", func(t *testing.T) {
		create(t, "lost")
		id := e.sandboxes()[0]
		if status, answer := e.service.ask("DELETE", "/sandboxes/"+id, "", map[string]string{"X-API-Key": e.service.env["E2B_API_KEY"]}); status != 204 {
			t.Fatalf("kill: %d %s", status, answer)
		}
		if !fixture.Poll(func() bool { return strings.Contains(e.Must("inspect", "lost"), `"state": "lost"`) }) {
			t.Errorf("it is not lost: %s", e.Must("inspect", "lost"))
		}
		if out, status := e.Try("exec", "lost", "--", "true"); status == 0 || !strings.Contains(out, "the service removed it") {
			t.Errorf("exec: %d %s", status, out)
		}
	})
	t.Run("refusals", func(t *testing.T) {
		work := t.TempDir()
		if err := os.WriteFile(filepath.Join(work, ".env"), []byte("K=1"), 0o600); err != nil {
			t.Fatal(err)
		}
		for args, says := range map[string]string{
			"--net on":                     "egress",
			"--memory 1GiB":                "the service gives a sandbox the limits of its template",
			"--cpus 1":                     "the service gives a sandbox the limits of its template",
			"--pids 10":                    "the service limits no number of processes",
			"--read-only":                  "cannot be read-only",
			"--image nosuch":               "no such template",
			"--workspace shared --layered": "cannot be kept apart",
			"--workspace " + work + " --rule /workspace/.env:none": "rules on paths",
		} {
			out, status := e.Try(append([]string{"create", "--engine", "e2b"}, strings.Fields(args)...)...)
			if status == 0 || !strings.Contains(out, says) {
				t.Errorf("%s: status %d: %s", args, status, out)
			}
		}
		if left := e.sandboxes(); len(left) > 0 {
			t.Errorf("left at the service: %v", left)
		}
	})
	t.Run("no route out", func(t *testing.T) {
		create(t, "alone")
		out, status := e.Try("exec", "alone", "--", "python3", "-c", "import socket; socket.create_connection(('192.0.2.1', 80), 2)")
		if status == 0 {
			t.Errorf("it has a network: %s", out)
		}
	})
	t.Run("template", func(t *testing.T) {
		work := t.TempDir()
		if err := os.WriteFile(filepath.Join(work, "Dockerfile"), []byte("FROM host\nRUN echo of the template > /from\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if out := e.service.cloche("image", "build", "mine", work); len(out) == 0 {
			t.Fatal("the template is not built")
		}
		create(t, "templated", "--image", "mine")
		if out := e.Must("exec", "templated", "--", "cat", "/from"); out != "of the template\n" {
			t.Errorf("inside: %q", out)
		}
	})
	t.Run("mounts of the host", func(t *testing.T) {
		e.Kill9()
		t.Setenv("CLOCHE__E2B__HOST_MOUNTS", "yes")
		e.Start()
		work := t.TempDir()
		if err := os.WriteFile(filepath.Join(work, "a"), []byte("1"), 0o644); err != nil {
			t.Fatal(err)
		}
		create(t, "mounted", "--mount", work+":/m:ro")
		_, answer := e.service.ask("GET", "/sandboxes/"+e.sandboxes()[0], "", map[string]string{"X-API-Key": e.service.env["E2B_API_KEY"]})
		var d struct{ Metadata map[string]string }
		want := `{"hostPath":"` + work + `","mountPath":"/m","readOnly":true}`
		if err := json.Unmarshal([]byte(answer), &d); err != nil || !strings.Contains(d.Metadata["host-mount"], want) {
			t.Errorf("the service is told %s, want %s", answer, want)
		}
		// This service does not know of that, and nothing is copied.
		if out := e.Must("exec", "mounted", "--", "ls", "-A", "/m"); out != "" {
			t.Errorf("the directory has %q", out)
		}
	})
	t.Run("show hides the key", func(t *testing.T) {
		if out := e.Must("config", "show"); strings.Contains(out, e.service.env["E2B_API_KEY"]) || !strings.Contains(out, "e2b.api_key") {
			t.Errorf("shown: %s", out)
		}
		if out := e.Must("doctor"); strings.Contains(out, e.service.env["E2B_API_KEY"]) || !strings.Contains(out, "tier remote") {
			t.Errorf("doctor: %s", out)
		}
		if b := content(t, e.Log()); strings.Contains(b, e.service.env["E2B_API_KEY"]) {
			t.Error("the log has the key")
		}
	})
}

// TestScriptsOnE2B runs the scripts that hold on every engine with a service.
func TestScriptsOnE2B(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a run without -short: each script has two daemons")
	}
	s := newE2BService(t)
	t.Setenv(envEngine, "e2b")
	t.Setenv(envSettings, fmt.Sprintf("e2b: {api_key: %s, api_url: '%s'}\n", s.env["E2B_API_KEY"], s.env["E2B_API_URL"]))
	runScripts(t, scriptTime, func(name string) bool {
		// Files of one belong to several users, and owners are not carried. The other needs the root to be saved:
		// TestEngineE2B starts a sandbox again.
		return ofEveryEngine.MatchString(name) && name != "real_sockets" && name != "start_again"
	})
}
