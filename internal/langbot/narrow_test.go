//go:build linux

package langbot

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cloche-dev/cloche/api"
)

// upgrade asks for a WebSocket at a path, and is the status of the answer.
func (d *server) upgrade(path string, headers ...string) int {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, d.url+path, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header = d.header(headers...)
	for k, v := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	} {
		req.Header.Set(k, v)
	}
	r, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		d.t.Fatal(err)
	}
	r.Body.Close()
	return r.StatusCode
}

// TestPeersWithoutToken: without a token every connection is asked about, and no peer is
// admitted where it cannot be identified.
func TestPeersWithoutToken(t *testing.T) {
	relay := "/v1/sessions/" + placement{"inst-1", "w", 1}.runtime() + "-s/managed-process/p/ws"
	for name, c := range map[string]struct {
		peer func(local, remote string) error
		want int
	}{
		"nothing can tell": {nil, http.StatusUnauthorized},
		"another user":     {func(_, _ string) error { return errors.New("it is another user's") }, http.StatusUnauthorized},
		"the same user":    {func(_, _ string) error { return nil }, http.StatusSwitchingProtocols},
	} {
		t.Run(name, func(t *testing.T) {
			asked := ""
			d := newServer(t, func(o *Options) {
				o.Peer = c.peer
				if c.peer != nil {
					o.Peer = func(local, remote string) error { asked = local; return c.peer(local, remote) }
				}
			})
			if got := d.upgrade("/rpc/ws"); got != c.want {
				t.Errorf("the control connection is answered by %d, want %d", got, c.want)
			}
			if c.peer != nil && "http://"+asked != d.url {
				t.Errorf("asked about %q at %s", asked, d.url)
			}
			asked = ""
			// A relay is asked about too, before anything of it is looked at.
			if got := d.upgrade(relay, headerWorkspace, "w", headerGeneration, "1"); got != http.StatusUnauthorized {
				t.Errorf("the relay is answered by %d", got)
			}
			if c.peer != nil && asked == "" {
				t.Error("nobody asked about the relay")
			}
		})
	}
	// With a token no connection is asked about.
	token := strings.Repeat("t", 32)
	d := newServer(t, func(o *Options) { o.Token, o.Peer = token, nil })
	if got := d.upgrade("/rpc/ws", headerToken, token); got != http.StatusSwitchingProtocols {
		t.Errorf("with the token: %d", got)
	}
}

// TestClientsWithoutHeaders: a client older than workspaces, which sends no header, is one
// workspace of its own where there is no token. A web page sends none of LangBot's either.
func TestClientsWithoutHeaders(t *testing.T) {
	dial := func(d *server, path string, more ...string) (*websocket.Conn, error) {
		t.Helper()
		h := http.Header{}
		for i := 0; i < len(more); i += 2 {
			h.Set(more[i], more[i+1])
		}
		conn, _, err := websocket.Dial(t.Context(), d.url+path, &websocket.DialOptions{HTTPHeader: h}) //nolint:bodyclose // the library's own
		if err == nil {
			t.Cleanup(func() { _ = conn.CloseNow() })
		}
		return conn, err
	}
	var log bytes.Buffer
	d := newServer(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	const relay = "/v1/sessions/a%20b/managed-process/p/ws"
	if _, err := dial(d, relay); err == nil {
		t.Error("a relay before any action")
	}
	later := d.dial() // which settles an instance
	conn, err := dial(d, "/rpc/ws")
	if err != nil {
		t.Fatal(err)
	}
	d.conn = conn
	made := d.must("box_create_session", nil, obj{"session_id": "a b"})
	d.must("box_start_managed_process", nil, obj{"session_id": "a b", "spec": obj{"process_id": "p", "command": "x"}})
	if got := d.core.tenants[made["backend_session_id"].(string)]; got != plainPlace().durable() {
		t.Errorf("the tenant is %s", got)
	}
	d.refused("PermissionError: ", "box_status", &placement{"inst-1", "ws-1", 1}, obj{})
	attached, err := dial(d, relay)
	if err != nil {
		t.Fatal(err)
	}
	d.core.processes()[0].say("hello\n")
	if got := line(t, attached); got != "hello" {
		t.Errorf("the relay says %q", got)
	}
	d.conn = later
	if got := d.ids(&placement{"inst-1", "ws-1", 1}); got != "" {
		t.Errorf("another workspace has %s", got)
	}
	for name, c := range map[string]struct {
		change func(*Options)
		header []string
	}{
		"a web page":              {nil, []string{"Origin", "http://evil.example"}},
		"a token":                 {func(o *Options) { o.Token = strings.Repeat("t", 32) }, nil},
		"an instance is named":    {func(o *Options) { o.Instance = "inst-1" }, nil},
		"another user":            {func(o *Options) { o.Peer = func(_, _ string) error { return errors.New("another user's") } }, nil},
		"a header without others": {nil, []string{headerWorkspace, "ws-1"}},
	} {
		log.Reset()
		d := newServer(t, func(o *Options) {
			if o.Logger = slog.New(slog.NewTextHandler(&log, nil)); c.change != nil {
				c.change(o)
			}
		})
		if _, err := dial(d, "/rpc/ws", c.header...); err == nil {
			t.Errorf("%s is let in", name)
		}
		// What is refused is one line of each log, and more of them in a second are counted.
		_, _ = dial(d, "/rpc/ws", c.header...)
		if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "reason=") || len(d.core.turnedAway) != 1 {
			t.Errorf("%s: the log says %s, and the audit log %q", name, text, d.core.turnedAway)
		}
	}
}

func TestRefusalsAreBounded(t *testing.T) {
	var r refusals
	now := time.Unix(0, 0)
	for i, c := range []struct {
		after time.Duration
		more  int64
		ok    bool
	}{{0, 0, true}, {time.Millisecond, 0, false}, {2 * time.Millisecond, 0, false}, {refusalEvery, 2, true}, {3 * refusalEvery, 0, true}} {
		if more, ok := r.tell(now.Add(c.after)); more != c.more || ok != c.ok {
			t.Errorf("%d: %d, %v", i, more, ok)
		}
	}
}

// TestNothingButAConnectionPins: an instance that only asked, or that came for a relay, is
// not the one that is served from then on.
func TestNothingButAConnectionPins(t *testing.T) {
	d := newServer(t, nil)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.url+"/rpc/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = d.header(headerInstance, "other")
	r, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	relay := "/v1/sessions/" + placement{"other", "w", 1}.runtime() + "-s/managed-process/p/ws"
	if got := d.upgrade(relay, headerInstance, "other", headerWorkspace, "w", headerGeneration, "1"); got != http.StatusUnauthorized {
		t.Errorf("the relay is answered by %d", got)
	}
	if got := d.s.pin.trusted(); got != "" {
		t.Errorf("the instance %q is served", got)
	}
	if got := d.upgrade("/rpc/ws"); got != http.StatusSwitchingProtocols || d.s.pin.trusted() != "inst-1" {
		t.Errorf("the first connection is answered by %d", got)
	}
}

// hostDirs asks for a session with a directory of the host, once as its workspace and once
// as one more mount, and says whether both were granted; they must agree.
func (d *server) hostDirs(dir string) bool {
	d.t.Helper()
	p := &placement{"inst-1", "ws-1", 1}
	d.seq++
	one := d.ask("box_create_session", p, obj{"session_id": fmt.Sprintf("w%d", d.seq), "host_path": dir})
	two := d.ask("box_create_session", p, obj{"session_id": fmt.Sprintf("m%d", d.seq), "extra_mounts": []obj{{"host_path": dir, "mount_path": "/m", "mode": "rw"}}})
	if (one.Message == "success") != (two.Message == "success") {
		d.t.Errorf("%s: as the workspace: %s; as a mount: %s", dir, one.Message, two.Message)
	}
	return one.Message == "success"
}

// TestClientOnlyNarrowsDirectories: what a client says of directories of the host gives
// none that the operator did not grant, and makes none.
func TestClientOnlyNarrowsDirectories(t *testing.T) {
	all := obj{"local": obj{"host_root": "/", "allowed_mount_roots": []string{"/"}}}
	t.Run("nothing is granted", func(t *testing.T) {
		d := newServer(t, nil)
		elsewhere := t.TempDir()
		for _, config := range []obj{
			{}, all, {"local": obj{"host_root": elsewhere}}, {"local": obj{"skills_root": elsewhere + "/skills"}},
			{"local": obj{"default_workspace": elsewhere + "/made"}}, {"local": obj{"allowed_mount_roots": elsewhere + ",/"}},
		} {
			d.must("box_init", nil, config)
			for _, dir := range []string{elsewhere, "/root", "/"} {
				if d.hostDirs(dir) {
					t.Errorf("after %v the directory %s is mounted", config, dir)
				}
			}
			d.must("box_create_session", &placement{"inst-1", "ws-1", 1}, obj{"session_id": fmt.Sprintf("s%d", d.seq)})
			if s := d.s.settings(); s.skills != "" || s.workspace != "" || len(s.roots) != 0 {
				t.Errorf("after %v: %+v", config, s)
			}
		}
		d.core.mu.Lock()
		for _, spec := range d.core.live {
			if spec.Workspace.Dir != "" || len(spec.Mounts) > 0 {
				t.Errorf("a sandbox has %+v", spec)
			}
		}
		d.core.mu.Unlock()
		if list, err := os.ReadDir(elsewhere); err != nil || len(list) > 0 {
			t.Errorf("made %v, %v", list, err)
		}
	})
	t.Run("a root is granted", func(t *testing.T) {
		base := resolved(t.TempDir())
		root, other := filepath.Join(base, "root"), filepath.Join(base, "rooted")
		for _, p := range []string{root + "/a/b", root + "/c", other} {
			if err := os.MkdirAll(p, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(other, root+"/link"); err != nil {
			t.Fatal(err)
		}
		d := newServer(t, func(o *Options) { o.Config = fmt.Sprintf(`{"local":{"host_root":%q}}`, root) })
		for _, c := range []struct {
			config obj
			can    []string
			cannot []string
		}{
			{obj{}, []string{root + "/a", root + "/c"}, []string{other, "/root", root + "/link"}},
			{obj{"local": obj{}}, []string{root + "/a"}, []string{other}},
			{obj{"local": obj{"allowed_mount_roots": "/"}}, []string{root + "/a", root + "/c"}, []string{other, "/", base, root + "/link"}},
			{obj{"local": obj{"allowed_mount_roots": root + "/a," + other}}, []string{root + "/a", root + "/a/b"}, []string{root + "/c", other, root}},
			{obj{"local": obj{"allowed_mount_roots": other}}, nil, []string{root + "/a", other}},
		} {
			d.must("box_init", nil, c.config)
			for _, dir := range c.can {
				if !d.hostDirs(dir) {
					t.Errorf("after %v the directory %s is not mounted", c.config, dir)
				}
			}
			for _, dir := range c.cannot {
				if d.hostDirs(dir) {
					t.Errorf("after %v the directory %s is mounted", c.config, dir)
				}
			}
		}
		before := d.s.settings()
		for _, local := range []obj{
			{"host_root": other}, {"host_root": "/"}, {"host_root": root, "default_workspace": other + "/w"}, {"skills_root": other + "/skills"},
			{"host_root": root + "/link"}, {"host_root": root, "skills_root": "/root/skills"},
		} {
			d.refused("BoxValidationError: local.", "box_init", nil, obj{"local": local})
		}
		if d.s.settings() != before {
			t.Error("a configuration that was refused is used")
		}
		if list, err := os.ReadDir(other); err != nil || len(list) > 0 {
			t.Errorf("made %v, %v", list, err)
		}
		d.must("box_init", nil, obj{"local": obj{"host_root": root + "/a", "skills_root": "sk"}})
		if s := d.s.settings(); s.workspace != root+"/a/default" || s.skills != root+"/a/sk" || !slices.Equal(s.roots, []string{root + "/a"}) {
			t.Errorf("%+v", s)
		}
	})
	t.Run("the client's own working directory", func(t *testing.T) {
		root := filepath.Join(resolved(t.TempDir()), "data", "box")
		var log bytes.Buffer
		d := newServer(t, func(o *Options) {
			o.Environ, o.Logger = []string{"BOX__LOCAL__HOST_ROOT=" + root}, slog.New(slog.NewTextHandler(&log, nil))
		})
		// As LangBot's own configuration has it.
		d.must("box_init", nil, obj{"local": obj{"host_root": "./data/box", "default_workspace": "", "allowed_mount_roots": []string{"./data/box", "/tmp"}}})
		if s := d.s.settings(); s.workspace != root+"/default" || !slices.Equal(s.roots, []string{root}) {
			t.Errorf("%+v", s)
		}
		if !d.hostDirs(root+"/default") || d.hostDirs("/tmp") {
			t.Error("what is granted is not what is mounted")
		}
		if list, err := os.ReadDir(d.opts.WorkDir); err != nil || len(list) > 0 {
			t.Errorf("made %v in the working directory, %v", list, err)
		}
		if text := log.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, "./data/box") || !strings.Contains(text, "BOX__LOCAL__HOST_ROOT") {
			t.Errorf("the log says %s", text)
		}
		r := d.ask("box_create_session", &placement{"inst-1", "ws-1", 1}, obj{"session_id": "x", "host_path": "/opt/langbot/data/box/default"})
		if !strings.Contains(r.Message, root) || !strings.Contains(r.Message, "./data/box") {
			t.Errorf("the refusal is %s", r.Message)
		}
	})
	t.Run("no working directory", func(t *testing.T) {
		at := "/data" // of the machine that runs this test
		_, before := os.Stat(at)
		_, err := Options{WorkDir: "/"}.configure(nil, []byte(`{"local":{"host_root":"./data/box"}}`), said{source: fromStart, before: fromNobody})
		if err == nil || !strings.Contains(err.Error(), "./data/box is relative, and the working directory is /") {
			t.Errorf("%v", err)
		}
		if _, after := os.Stat(at); os.IsNotExist(before) && !os.IsNotExist(after) {
			t.Errorf("made %s", at)
		}
	})
	t.Run("the operator's own pipe", func(t *testing.T) {
		d := newServer(t, nil)
		root := resolved(t.TempDir())
		if _, err := d.s.initialize(t.Context(), []byte(fmt.Sprintf(`{"local":{"host_root":%q}}`, root)), true); err != nil {
			t.Fatal(err)
		}
		if !d.hostDirs(root) {
			t.Error("what the operator's own client configures is not granted")
		}
	})
}

// TestClientStaysInTheTier: a client gets no engine that isolates less than the operator's
// choice, and the operator's choice where it leaves the engine open.
func TestClientStaysInTheTier(t *testing.T) {
	reports := []api.EngineReport{{Name: "docker", Usable: true}, {Name: "nsjail", Usable: true}, {Name: "native", Usable: true}, {Name: "oci", Usable: true}}
	for name, c := range map[string]struct {
		config, says string
		environ      []string
		weak         []string
		want         choice
	}{
		"too weak":                {`{}`, "native", nil, []string{"native"}, choice{engine: "native", name: "native", reason: "engine native is too weak"}},
		"strong enough":           {`{}`, "oci", nil, []string{"native"}, choice{engine: "oci", name: "oci", available: true}},
		"local is the operator's": {`{}`, "local", nil, nil, choice{name: "fake", available: true, reason: "it is down"}},
		"local, both too weak":    {`{}`, "local", nil, []string{"docker", "nsjail"}, choice{name: "fake", available: true, reason: "it is down"}},
		"local, one is chosen":    {`{"backend":"native"}`, "local", nil, []string{"docker"}, choice{engine: "native", name: "native", available: true}},
		"local of the operator":   {`{"backend":"local"}`, "local", nil, nil, choice{engine: "docker", name: "docker", available: true}},
		"the operator's is weak":  {`{"backend":"native"}`, "", nil, []string{"native"}, choice{engine: "native", name: "native", available: true}},
		"auto is the operator's":  {`{"backend":"oci"}`, "auto", nil, []string{"native"}, choice{engine: "oci", name: "oci", available: true}},
		"nothing is that too":     {`{"backend":"oci"}`, "-", nil, nil, choice{engine: "oci", name: "oci", available: true}},
		"below the operator's":    {`{"backend":"oci"}`, "native", nil, []string{"native"}, choice{engine: "native", name: "native", reason: "engine native is too weak"}},
		"the environment decides": {`{}`, "native", []string{"BOX_BACKEND=native"}, []string{"native"}, choice{engine: "native", name: "native", available: true}},
		"no such backend":         {`{}`, "host", nil, nil, choice{reason: "there is no backend host"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newServer(t, func(o *Options) { o.Config, o.Environ = c.config, c.environ })
			d.core.engines, d.core.weak = reports, map[string]bool{}
			for _, e := range c.weak {
				d.core.weak[e] = true
			}
			if c.says != "" {
				d.must("box_init", nil, obj{"backend": strings.Trim(c.says, "-")})
			}
			if got := d.s.choice(t.Context()); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			if strings.Contains(c.config, "oci") && slices.ContainsFunc(d.core.floors, func(f string) bool { return f != "oci" }) {
				t.Errorf("compared with %q", d.core.floors)
			}
		})
	}
}
