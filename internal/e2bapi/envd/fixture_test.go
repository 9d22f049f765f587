//go:build linux

package envd_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/approval"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/e2bapi/envd"
	"github.com/cloche-dev/cloche/internal/egress/network"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/internal/job"
	"github.com/cloche-dev/cloche/internal/key"
	"github.com/cloche-dev/cloche/internal/policy/rules"
	"github.com/cloche-dev/cloche/internal/sandbox"
	"github.com/cloche-dev/cloche/internal/skill"
	"github.com/cloche-dev/cloche/internal/snapshot"
	"github.com/cloche-dev/cloche/internal/workspace"
)

func TestMain(m *testing.M) {
	fake.Dispatch()
	os.Exit(m.Run())
}

var operator = core.InProcessCaller(os.Geteuid())

// token is the access token of the fixture's sandbox.
const token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"

// fixture is a Server over core on an imaginary machine, with one sandbox whose files are those of
// the host.
type fixture struct {
	*core.Service
	*envd.Server
	url string
	box api.Sandbox
	// dir is the home and the working directory of the sandbox.
	dir string
	// sb is what the server is told; a test changes it before its first request.
	sb envd.Sandbox
	// changes, unless nil, are what a watch reports in place of core's; closed is the end of the directory.
	changes chan api.FileChange
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	dir := t.TempDir()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.Chmod(dir, 0o700))
	for _, sub := range []string{"images", "owner"} {
		check(os.Mkdir(filepath.Join(dir, sub), 0o700))
	}
	machine := fake.NewMachine("")
	images, err := image.Open(filepath.Join(dir, "images"))
	check(err)
	spaces, err := workspace.Open(dir)
	check(err)
	snaps, err := snapshot.Open(snapshot.Options{Home: dir, RemoveTree: workspace.RemoveTree})
	check(err)
	logger := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	log, err := audit.Open(audit.Options{Home: dir, Logger: logger})
	check(err)
	engines := []engine.Engine{machine.Engine()}
	networks := network.New(t.Context(), network.Options{Logger: logger})
	approvals := approval.New(nil)
	m := sandbox.New(sandbox.Options{
		Dir: filepath.Join(dir, "owner"), Owner: "owner", Engines: engines, Images: images, Workspaces: spaces, Snapshots: snaps,
		AgentImage: func(context.Context) (string, error) { return "/dev/null", nil },
		Logger:     logger, Events: func(api.Event) {}, Networks: networks, Ask: approvals.Ask,
	})
	check(m.Recover(t.Context()))
	keys, err := key.Open(t.Context(), dir)
	check(err)
	jobs, err := job.Open(job.Options{Dir: filepath.Join(dir, "jobs")})
	check(err)
	f := &fixture{Service: core.New(core.Options{
		Keys: keys, Approvals: approvals, Jobs: jobs, Rules: rules.Rules{Engine: fake.Name, MinTier: api.TierNone},
		Sandboxes: m, Images: images, Workspaces: spaces, Snapshots: snaps, Audit: log, Prober: core.NewProber(engines), Logger: logger, Home: dir,
		Skills: skill.Open(filepath.Join(dir, "skills")),
	})}
	f.dir, err = filepath.EvalSymlinks(t.TempDir())
	check(err)
	f.Server = envd.New(envd.Options{Core: &homed{envd.FromCore(f.Service), f}, Log: logger, Version: "test"})
	f.box, err = f.Service.Create(t.Context(), operator, api.SandboxSpec{Name: "box", Workspace: &api.Workspace{Dir: f.dir}, Cwd: f.dir}, nil)
	check(err)
	f.sb = envd.Sandbox{Ref: f.box.ID, Caller: operator, Token: token, Dir: f.dir, Env: map[string]string{"GLOBAL": "sandbox", "BOTH": "sandbox"}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.ServeSandbox(w, r, f.sb) }))
	f.url = server.URL
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		check := func(err error) {
			if err != nil {
				t.Error(err)
			}
		}
		check(f.Server.Close())
		server.Close()
		check(errors.Join(f.CloseJobs(ctx), jobs.Close(), m.Close(ctx), networks.Close(), machine.Close(ctx), log.Close(), keys.Close()))
	})
	return f
}

// homed is core whose sandbox has accounts of its own, with homes below the fixture's directory:
// the files of the imaginary machine are those of the host.
type homed struct {
	envd.Core
	f *fixture
}

func (h *homed) ReadFile(ctx context.Context, c core.Caller, ref string, at api.FilePlace, offset, length int64) (io.ReadCloser, api.FileInfo, error) {
	if at.Path == "/etc/passwd" {
		accounts := fmt.Sprintf("%s:x:0:0::%s:/bin/sh\nbroken\n:x:0:0::/:\n", cmp.Or(h.f.box.User, "user"), h.f.dir)
		return io.NopCloser(strings.NewReader(accounts)), api.FileInfo{}, nil
	}
	return h.Core.ReadFile(ctx, c, ref, at, offset, length)
}

// WatchFiles reports the changes of the fixture, once it has some, and those of core's otherwise.
func (h *homed) WatchFiles(ctx context.Context, caller core.Caller, ref string, at api.FilePlace, o api.WatchOptions, fn func(api.FileChange) error) error {
	if h.f.changes == nil {
		return h.Core.WatchFiles(ctx, caller, ref, at, o, fn)
	}
	if err := fn(api.FileChange{Kind: api.FileReady}); err != nil {
		return err
	}
	for {
		select {
		case c, ok := <-h.f.changes:
			if !ok {
				return nil
			}
			if err := fn(c); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// do sends one request with the access token, and returns status, header and body.
func (f *fixture) do(t *testing.T, method, path string, h map[string]string, body io.Reader) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Access-Token", token)
	for k, v := range h {
		if req.Header.Set(k, v); v == "" {
			req.Header.Del(k)
		}
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(b)
}

// unary calls one method with the JSON codec, as E2B's clients do.
func (f *fixture) unary(t *testing.T, method, body string) (int, map[string]any) {
	t.Helper()
	status, _, text := f.do(t, http.MethodPost, "/"+method, map[string]string{"Content-Type": "application/json", "Connect-Protocol-Version": "1"}, strings.NewReader(body))
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%s answers %d %q: %v", method, status, text, err)
	}
	return status, out
}

// envelope frames one message as the Connect protocol does.
func envelope(body string) []byte {
	n := len(body)
	return append([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, body...)
}

// frame is one frame of a stream.
type frame struct {
	flags byte
	body  string
}

// frames reads all frames of a stream.
func frames(t *testing.T, text string) (out []frame) {
	t.Helper()
	for b := []byte(text); len(b) > 0; {
		if len(b) < 5 {
			t.Fatalf("half a frame: %q", b)
		}
		n := int(b[1])<<24 | int(b[2])<<16 | int(b[3])<<8 | int(b[4])
		if len(b) < 5+n {
			t.Fatalf("half a frame: %q", b)
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, b[5:5+n]); err != nil {
			t.Fatal(err)
		}
		out = append(out, frame{b[0], compact.String()})
		b = b[5+n:]
	}
	return out
}

// stream calls one streaming method with the JSON codec and reads it to its end.
func (f *fixture) stream(t *testing.T, method, body string, h map[string]string) []frame {
	t.Helper()
	all := map[string]string{"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1", "Keepalive-Ping-Interval": "50"}
	for k, v := range h {
		all[k] = v
	}
	status, _, text := f.do(t, http.MethodPost, "/"+method, all, bytes.NewReader(envelope(body)))
	if status != http.StatusOK {
		t.Fatalf("%s answers %d %s", method, status, text)
	}
	return frames(t, text)
}
