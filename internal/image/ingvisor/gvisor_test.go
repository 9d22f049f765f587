//go:build linux

package ingvisor

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	gremote "github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
	"github.com/cloche-dev/cloche/internal/engine/gvisor/role"
	"github.com/cloche-dev/cloche/internal/image"
	"github.com/cloche-dev/cloche/test/longtest"
)

func TestMain(m *testing.M) {
	role.Dispatch()
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kitchen is all that a test needs to make images and start sandboxes of them.
type kitchen struct {
	t        testing.TB
	engine   *gvisor.Engine
	store    *image.Store
	program  string // the agent's image
	registry string
}

func open(t testing.TB) *kitchen {
	t.Helper()
	longtest.Skip(t, "it starts sandboxes")
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("HOME", homeOf(t))
	dir := t.TempDir()
	e, err := gvisor.New(gvisor.Options{StateDir: filepath.Join(dir, "state"), Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	must(t, err)
	t.Cleanup(func() { e.Close() })
	if r := e.Probe(t.Context()); !r.Usable {
		t.Skipf("needs gVisor to work here: %v", r.Problems)
	}
	s, err := image.Open(filepath.Join(dir, "images"))
	must(t, err)
	program, err := s.AgentImageFile(t.Context(), goBuild(t, "github.com/cloche-dev/cloche/cmd/cloche-agent", ""))
	must(t, err)
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	return &kitchen{t: t, engine: e, store: s, program: program, registry: strings.TrimPrefix(srv.URL, "http://")}
}

// homeOf is a home without logins; the caches of Go stay where they are.
func homeOf(t testing.TB) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE", "GOMODCACHE").Output()
	must(t, err)
	dirs := strings.Fields(string(out))
	t.Setenv("GOCACHE", dirs[0])
	t.Setenv("GOMODCACHE", dirs[1])
	return t.TempDir()
}

// goBuild builds a static program; with source it is that, else the package.
func goBuild(t testing.TB, pkg, source string) string {
	t.Helper()
	dir := t.TempDir()
	if source != "" {
		pkg = filepath.Join(dir, "main.go")
		must(t, os.WriteFile(pkg, []byte(source), 0o600))
	}
	binary := filepath.Join(dir, "program")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return binary
}

type entry struct {
	name, body, link string
	typ              byte
	mode             int64
	uid              int
}

func layer(t *testing.T, entries ...entry) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.typ, Linkname: e.link, Mode: e.mode, Uid: e.uid, Gid: e.uid, ModTime: time.Unix(1_600_000_000, 0)}
		if h.Typeflag == 0 {
			h.Typeflag, h.Size = tar.TypeReg, int64(len(e.body))
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		must(t, w.WriteHeader(h))
		_, err := io.WriteString(w, e.body[:h.Size])
		must(t, err)
	}
	must(t, w.Close())
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	must(t, err)
	return l
}

// pull pushes an image of layers and pulls it.
func (k *kitchen) pull(ref string, c v1.Config, layers ...v1.Layer) image.Rootfs {
	k.t.Helper()
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: c})
	must(k.t, err)
	img, err = mutate.AppendLayers(img, layers...)
	must(k.t, err)
	parsed, err := name.ParseReference(k.registry + "/" + ref)
	must(k.t, err)
	must(k.t, gremote.Write(parsed, img))
	_, err = k.store.Pull(k.t.Context(), k.registry+"/"+ref, image.PullOptions{})
	must(k.t, err)
	root, err := k.store.Resolve(k.t.Context(), k.registry+"/"+ref, image.Need{MountPoints: []string{"/workspace"}})
	must(k.t, err)
	return root
}

// boot starts a sandbox of an image and returns what runs commands in it.
func (k *kitchen) boot(root image.Rootfs, readOnly bool) func(argv ...string) (string, api.Result) {
	k.t.Helper()
	exec, stop := k.start(root, readOnly)
	k.t.Cleanup(stop)
	return exec
}

// start is boot for who stops the sandbox himself.
func (k *kitchen) start(root image.Rootfs, readOnly bool) (func(argv ...string) (string, api.Result), func()) {
	k.t.Helper()
	cfg := agent.Config{Token: agent.NewToken(), PidsMax: 64, SingleUser: os.Getuid() != 0, User: root.User}
	data, err := cfg.Marshal()
	must(k.t, err)
	plan := engine.Plan{
		ID: api.NewID("sb-"), Owner: "imagetest", Dir: k.t.TempDir(), Hostname: "imagetest",
		Root:   engine.Root{Image: root.Image, ReadOnly: readOnly},
		Tmpfs:  []engine.Tmpfs{{Target: "/tmp", SizeBytes: 64 << 20, Mode: 0o1777}},
		Limits: engine.Limits{MemoryBytes: 512 << 20, Pids: cfg.PidsMax, DiskBytes: 64 << 20},
		Agent:  engine.Agent{Image: k.program, Target: "/.cloche", Argv: []string{"/.cloche/" + agent.Argv0}, UID: agent.UID, Config: data, Port: agent.Port},
	}
	for _, m := range root.Mounts {
		plan.Mounts = append(plan.Mounts, engine.Mount{Source: m.Source, Target: m.Target, ReadOnly: true, Static: true})
	}
	plan.Mounts = append(plan.Mounts, engine.Mount{Source: k.t.TempDir(), Target: "/workspace"})
	i, err := k.engine.Create(k.t.Context(), plan)
	must(k.t, err)
	conn, err := i.Dial(k.t.Context())
	must(k.t, err)
	c, err := agent.Connect(k.t.Context(), conn, cfg.Token)
	must(k.t, err)
	stop := func() {
		c.Close()
		i.Close(k.t.Context())
	}
	var env []string
	for key, value := range root.Env {
		env = append(env, key+"="+value)
	}
	return func(argv ...string) (string, api.Result) {
		k.t.Helper()
		r, err := c.Exec(k.t.Context(), agent.Start{ExecID: api.NewID("x-"), Argv: argv, Env: env, Cwd: "/", Timeout: time.Minute})
		if err != nil {
			k.t.Fatalf("%q: %v", argv, err)
		}
		return string(r.Stdout) + string(r.Stderr), r
	}, stop
}

func TestBusyboxImageRuns(t *testing.T) {
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skip("needs the static busybox of Debian's busybox-static: it is the image's only program")
	}
	// Without root a sandbox has uid 0 alone.
	user, ids := "1001:1002", "1001\n1002\n"
	if os.Geteuid() != 0 {
		user, ids = "", "0\n0\n"
	}
	k := open(t)
	first := []entry{{name: "bin/", typ: tar.TypeDir}, {name: "bin/busybox", body: string(busybox)}}
	for _, applet := range []string{"sh", "cat", "ls", "stat", "id", "touch", "mkdir", "ln", "mv", "rm", "find", "sha256sum", "wc"} {
		first = append(first, entry{name: "bin/" + applet, typ: tar.TypeLink, link: "bin/busybox"})
	}
	root := k.pull("busybox:1", v1.Config{Env: []string{"PATH=/bin", "GREETING=hello"}, User: user, Entrypoint: []string{"git"}},
		layer(t, first...),
		layer(t, entry{name: "data/", typ: tar.TypeDir}, entry{name: "data/gone", body: "x"}, entry{name: "data/kept", body: "kept", uid: 1001, mode: 0o600}, entry{name: "old/x", body: "x"}),
		layer(t, entry{name: "data/.wh.gone"}, entry{name: ".wh.old"}, entry{name: "data/\xffodd name\n", body: "odd"},
			entry{name: "data/script", body: "#!/bin/sh\necho ran $GREETING\n"}, entry{name: "data/link", typ: tar.TypeSymlink, link: "kept"}))
	for _, readOnly := range []bool{false, true} {
		t.Run(fmt.Sprintf("read-only %v", readOnly), func(t *testing.T) {
			k.t = t
			exec := k.boot(root, readOnly)
			for script, want := range map[string]string{
				"id -u; id -g":                                        ids,
				"cat /data/kept /data/link":                           "keptkept",
				"/data/script":                                        "ran hello\n",
				"ls /old 2>/dev/null || echo no":                      "no\n",
				"find /data -name '*odd*' | wc -l":                    "2\n",
				"stat -c '%u %a %Y' /data/kept":                       "1001 600 1600000000\n",
				"stat -c %h /bin/sh":                                  "14\n",
				"touch /tmp/x && echo can":                            "can\n",
				"cat /etc/hosts | wc -l":                              "2\n",
				"touch -r /data/kept /data/kept 2>/dev/null; echo $?": map[bool]string{false: "0\n", true: "1\n"}[readOnly],
				"[ -d /workspace ] && [ -d /proc/self ]":              "",
			} {
				if got, exit := exec("/bin/sh", "-c", script); got != want || !exit.OK() {
					t.Errorf("%s: %q, %+v; want %q", script, got, exit, want)
				}
			}
		})
	}
}

func TestScratchImageRuns(t *testing.T) {
	k := open(t)
	program, err := os.ReadFile(goBuild(t, "", `package main

import ("fmt"; "os")

func main() {
	data, err := os.ReadFile("/data")
	entries, _ := os.ReadDir("/")
	fmt.Println(os.Getuid(), string(data), err, len(entries) > 5, os.Args[1:])
}
`))
	must(t, err)
	user, uid := "65532", "65532"
	if os.Geteuid() != 0 {
		user, uid = "", "0" // the only one there is
	}
	root := k.pull("scratch:1", v1.Config{User: user, Entrypoint: []string{"/app"}, Cmd: []string{"serve"}},
		layer(t, entry{name: "app", body: string(program)}, entry{name: "data", body: "tiny"}))
	exec := k.boot(root, false)
	if got, exit := exec(root.Config.Command()...); got != uid+" tiny <nil> true [serve]\n" || !exit.OK() {
		t.Errorf("got %q, %+v", got, exit)
	}
}

func TestBaseBuiltFromTheHostRuns(t *testing.T) {
	k := open(t)
	var paths []string
	for _, p := range []string{"/bin/sh", "/bin/ls", "/usr/bin/env"} {
		if _, err := os.Stat(p); err == nil {
			paths = append(paths, p)
		}
	}
	img, err := k.store.BuildBase(t.Context(), "base", paths, image.ImportOptions{})
	must(t, err)
	root, err := k.store.Resolve(t.Context(), "base", image.Need{})
	must(t, err)
	exec := k.boot(root, false)
	if got, exit := exec("/bin/sh", "-c", "cd / && /usr/bin/env -i A=b /bin/ls -d usr && echo $((6 * 7))"); got != "usr\n42\n" || !exit.OK() {
		t.Errorf("got %q, %+v", got, exit)
	}
	if got, _ := exec("/bin/sh", "-c", "test -e /etc/shadow || test -e /root/.ssh || echo none"); got != "none\n" {
		t.Errorf("got %q", got)
	}
	t.Logf("%d bytes", img.SizeBytes)
}
