//go:build linux

package e2e_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/test/fixture"
	"github.com/cloche-dev/cloche/test/freeport"
)

// langbotVar names directories, with colons between, that each hold a version of the
// package langbot-plugin of PyPI, as "pip3 install --target DIR langbot-plugin" makes
// it, for /usr/bin/python3.
const langbotVar = "CLOCHE_TEST_LANGBOT"

// langbotOldVar names such a directory with a langbot-plugin before 0.5, whose clients
// send no headers and know no workspaces.
const langbotOldVar = "CLOCHE_TEST_LANGBOT_OLD"

// TestLangBot has the box client of LangBot itself use Cloche's runtime: over
// WebSocket, after the runtime was killed, and over stdio.
func TestLangBot(t *testing.T) {
	dirs := filepath.SplitList(os.Getenv(langbotVar))
	if len(dirs) == 0 {
		t.Skipf("needs the package langbot-plugin: set %s to directories into which pip installed it", langbotVar)
	}
	h := fixture.New(t)
	script, err := filepath.Abs(filepath.Join("test", "e2e", "testdata", "langbot_client.py"))
	if err != nil {
		t.Fatal(err)
	}
	h.Kill9()
	b := &boxRuntime{Fixture: h, port: strconv.Itoa(freeport.Free(t)), work: t.TempDir(), token: boxToken}
	clients := t.TempDir() // below which the client says that skills lie
	b.more = []string{"LANGBOT_BOX_TRUSTED_INSTANCE_UUID=inst-1", "BOX__LOCAL__ALLOWED_MOUNT_ROOTS=" + clients, "BOX__LOCAL__HOST_ROOT=" + filepath.Join(clients, "root")}
	b.start()
	drive := func(t *testing.T, dir, workspace, port string, mode ...string) {
		t.Helper()
		// Imports alone take a loaded machine most of a minute.
		ctx, cancel := context.WithDeadline(t.Context(), deadline(t, 8*time.Minute))
		defer cancel()
		cmd := exec.CommandContext(ctx, "/usr/bin/python3", append([]string{script, workspace, port}, mode...)...)
		cmd.Dir, cmd.WaitDelay = filepath.Join(clients, workspace), 10*time.Second
		if err := os.MkdirAll(cmd.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(b.environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		if text := string(out); err != nil || strings.Contains(text, "FAILED") || !strings.Contains(text, "\ndone") {
			t.Errorf("%v\n%s", err, text)
		}
	}
	for i, dir := range dirs {
		t.Run("client "+strconv.Itoa(i), func(t *testing.T) { drive(t, dir, "ws-"+strconv.Itoa(i), b.port, "all") })
	}
	t.Run("killed", func(t *testing.T) {
		drive(t, dirs[0], "ws-killed", b.port, "before")
		h.Kill9()
		b.start()
		drive(t, dirs[0], "ws-killed", b.port, "after")
	})
	t.Run("stopped by TERM", func(t *testing.T) {
		drive(t, dirs[0], "ws-stopped", b.port, "before")
		if err := b.Daemon.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		late := time.AfterFunc(2*time.Minute, func() {
			t.Error("the runtime has not ended two minutes after TERM")
			_ = b.Daemon.Process.Kill()
		})
		_ = b.Daemon.Wait() // its status is the status of a program that got TERM
		late.Stop()
		b.start()
		drive(t, dirs[0], "ws-stopped", b.port, "after")
	})
	t.Run("names are forced", func(t *testing.T) {
		rules := filepath.Join(h.Dir, "policy.yaml")
		h.Kill9()
		if err := os.WriteFile(rules, []byte("names: {force: true}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		b.start()
		drive(t, dirs[0], "ws-forced", b.port, "before")
		drive(t, dirs[0], "ws-forced", b.port, "after")
		h.Kill9()
		if err := os.Remove(rules); err != nil {
			t.Fatal(err)
		}
		b.start()
	})
	t.Run("a client before 0.5", func(t *testing.T) {
		dir := os.Getenv(langbotOldVar)
		if dir == "" {
			t.Skipf("needs langbot-plugin 0.4: set %s to a directory into which pip installed it", langbotOldVar)
		}
		h.Kill9()
		with := b.more
		b.more, b.token = with[1:], ""
		b.start()
		drive(t, dir, "ws-old", b.port, "all")
		h.Kill9()
		b.more, b.token = with, boxToken
		b.start()
	})
	t.Run("backend e2b", func(t *testing.T) {
		h.Kill9()
		service, with := newE2BService(t), b.more
		b.more = append(slices.Clone(with), "BOX_BACKEND=e2b", "BOX__COMPAT__ALLOW_UNENFORCED_LIMITS=true",
			"E2B_API_KEY="+service.env["E2B_API_KEY"], "E2B_API_URL="+service.env["E2B_API_URL"])
		b.start()
		drive(t, dirs[0], "ws-e2b", b.port, "service")
		h.Kill9()
		b.more = with
		b.start()
	})
	t.Run("stdio", func(t *testing.T) {
		h.Kill9()
		drive(t, dirs[0], "ws-stdio", strconv.Itoa(freeport.Free(t)), "stdio", h.Bin)
		h.Start()
	})
}

// boxRuntime is "cloche box" as the daemon of a fixture.
type boxRuntime struct {
	*fixture.Fixture
	port, work string
	// token is the control token; may be empty.
	token string
	more  []string
}

func (b *boxRuntime) environ() []string {
	own := []string{"CLOCHE_HOME=" + b.Dir, "HOME=" + b.work, "LANGBOT_BOX_CONTROL_TOKEN=" + b.token}
	return slices.Concat(os.Environ(), own, b.more)
}

// start starts it and waits until it is ready.
func (b *boxRuntime) start() {
	b.T.Helper()
	log, err := os.OpenFile(b.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		b.T.Fatal(err)
	}
	defer log.Close()
	b.Daemon = exec.Command(b.Bin, "box", "--host", "127.0.0.1", "--ws-control-port", b.port)
	b.Daemon.Stderr = log
	b.Daemon.Dir, b.Daemon.Env, b.Daemon.SysProcAttr = b.work, b.environ(), &syscall.SysProcAttr{Setsid: true}
	if err := b.Daemon.Start(); err != nil {
		b.T.Fatal(err)
	}
	ready := fixture.Poll(func() bool {
		r, err := http.Get("http://127.0.0.1:" + b.port + "/readyz")
		if err != nil {
			return false
		}
		_, _ = io.Copy(io.Discard, r.Body)
		return r.Body.Close() == nil && r.StatusCode == http.StatusOK
	})
	if !ready {
		b.T.Fatalf("the runtime is not ready:\n%s", b.LastWords())
	}
}

// langbotAppVar names the program "langbot" of a virtual environment into which pip
// installed the package langbot.
const langbotAppVar = "CLOCHE_TEST_LANGBOT_APP"

// TestLangBotItself starts a whole LangBot with its stock configuration, except for the address of the
// runtime, which has a server of tools run in our
// sandboxes: its own exec makes an environment for it, and its relay speaks with it.
func TestLangBotItself(t *testing.T) {
	program := os.Getenv(langbotAppVar)
	if program == "" {
		t.Skipf("needs the package langbot: set %s to its program", langbotAppVar)
	}
	script, err := filepath.Abs(filepath.Join("test", "e2e", "testdata", "langbot_app.py"))
	if err != nil {
		t.Fatal(err)
	}
	h := fixture.New(t)
	h.Kill9()
	b := &boxRuntime{Fixture: h, port: strconv.Itoa(freeport.Free(t)), work: t.TempDir(), token: boxToken}
	box := filepath.Join(b.work, "data", "box") // which LangBot calls ./data/box
	b.more = []string{"BOX__LOCAL__HOST_ROOT=" + box}
	b.start()
	ctx, cancel := context.WithDeadline(t.Context(), deadline(t, 15*time.Minute))
	defer cancel()
	api := strconv.Itoa(freeport.Free(t))
	place := filepath.Join(box, "place") // both see it, at the same path
	environ := append(os.Environ(), "HOME="+b.work, "LANGBOT_BOX_CONTROL_TOKEN="+boxToken, "API__PORT="+api,
		"PLUGIN__ENABLE=false", "BOX__RUNTIME__ENDPOINT=ws://127.0.0.1:"+b.port)
	app := exec.CommandContext(ctx, program)
	var said strings.Builder
	app.Dir, app.Env, app.Stdout, app.Stderr, app.WaitDelay = b.work, environ, &said, &said, 10*time.Second
	if err := app.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = app.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	}()
	url := "http://127.0.0.1:" + api
	for up := false; !up; { // it prepares its database first, which takes minutes on a loaded machine
		if r, err := http.Get(url + "/api/v1/system/info"); err == nil {
			up = r.StatusCode == http.StatusOK
			_ = r.Body.Close()
		}
		select {
		case <-ctx.Done():
			t.Fatal("LangBot does not serve its API")
		case <-time.After(time.Second):
		}
	}
	cmd := exec.CommandContext(ctx, "/usr/bin/python3", script, url, place)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if text := string(out); err != nil || strings.Contains(text, "FAILED") || !strings.Contains(text, "\ndone") {
		t.Errorf("%v\n%s", err, text)
	}
}
