//go:build linux

package e2e_test

import (
	"archive/tar"
	"bytes"
	"cmp"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/rogpeppe/go-internal/testscript"
)

// staticBusybox is the one program of the images that scripts make: under the
// name of an applet it is that applet.
const staticBusybox = "/bin/busybox"

type registryKey struct{}

// scriptRegistry is a registry on loopback that counts and fails on request.
type scriptRegistry struct {
	server *httptest.Server
	host   string
	// requests counts what was asked since the last look.
	requests atomic.Int64
	release  chan struct{} // ends what hangs

	mu    sync.Mutex
	fault string
}

// registry start | push REF KIND | save REF KIND FILE | requests N | fault none|401|429|hang|short|stall
func cmdRegistry(ts *testscript.TestScript, neg bool, args []string) {
	r, _ := ts.Value(registryKey{}).(*scriptRegistry)
	if neg || len(args) == 0 || r == nil {
		ts.Fatalf("usage: registry start | push REF KIND | save REF KIND FILE | requests N | fault NAME")
	}
	switch {
	case args[0] == "start" && r.server == nil:
		r.start(ts)
	case args[0] == "push" && len(args) == 3:
		ref, err := name.ParseReference(r.host + "/" + args[1])
		ts.Check(err)
		ts.Check(remote.Write(ref, scriptImage(ts, args[2])))
		r.requests.Store(0)
	case args[0] == "save" && len(args) == 4:
		ref, err := name.NewTag(args[1])
		ts.Check(err)
		ts.Check(tarball.WriteToFile(ts.MkAbs(args[3]), ref, scriptImage(ts, args[2])))
	case args[0] == "requests" && len(args) == 2:
		if got := strconv.FormatInt(r.requests.Swap(0), 10); got != args[1] && (args[1] != "some" || got == "0") {
			ts.Fatalf("the registry was asked %s times, want %s", got, args[1])
		}
	case args[0] == "fault" && len(args) == 2:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.fault = strings.TrimSuffix(args[1], "none")
	default:
		ts.Fatalf("registry: what is %q?", args)
	}
}

func (r *scriptRegistry) start(ts *testscript.TestScript) {
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r.release = make(chan struct{})
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.requests.Add(1)
		r.mu.Lock()
		fault := r.fault
		r.mu.Unlock()
		switch {
		case fault == "401":
			w.Header().Set("WWW-Authenticate", "Basic realm=x")
			w.WriteHeader(http.StatusUnauthorized)
		case fault == "429":
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		case fault == "hang":
			select {
			case <-r.release:
			case <-req.Context().Done():
			}
		case fault == "stall" && req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/"):
			// Half of it comes, then nothing as long as the client waits.
			inner.ServeHTTP(&stalling{ResponseWriter: w, rest: 20_000, until: req.Context().Done(), or: r.release}, req)
		case fault == "short" && req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/"):
			w.Header().Set("Content-Length", "100000")
			_, _ = w.Write([]byte("not all of it"))
			panic(http.ErrAbortHandler)
		default:
			inner.ServeHTTP(w, req)
		}
	}))
	r.host = strings.TrimPrefix(r.server.URL, "http://")
	ts.Setenv("REG", r.host)
	ts.Setenv("DOCKER_CONFIG", ts.MkAbs("."))
}

// stalling lets some of an answer through and then waits.
type stalling struct {
	http.ResponseWriter
	rest  int
	until <-chan struct{}
	or    chan struct{}
}

func (s *stalling) Write(p []byte) (int, error) {
	if s.rest >= len(p) {
		s.rest -= len(p)
		return s.ResponseWriter.Write(p)
	}
	n, err := s.ResponseWriter.Write(p[:s.rest])
	s.rest = 0
	if f, ok := s.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
	if err != nil {
		return n, err
	}
	select {
	case <-s.until:
	case <-s.or:
	}
	return n, http.ErrAbortHandler
}

func (r *scriptRegistry) close() {
	if r.server != nil {
		close(r.release)
		r.server.CloseClientConnections()
		r.server.Close()
	}
}

// scriptImage makes an image of a kind:
//
//	tool     busybox with a shell, a user, an environment, a directory of its own, and ENTRYPOINT git
//	command  busybox with a shell, and an entrypoint with default arguments that prints both
//	scratch  one program, no shell, no /tmp, a user that is a number
//	mute     one program, and nothing said of what to run
//	foreign  for another machine
//	rude     what is no directory where every sandbox has one of its own, and accounts without end
//	escape   a layer that leads out of the image
//	devices  a layer with devices and pipes
func scriptImage(ts *testscript.TestScript, kind string) v1.Image {
	program, err := os.ReadFile(staticBusybox)
	ts.Check(err)
	if kind == "debian" {
		return debianImage(ts)
	}
	platform := runtime.GOARCH
	files := []tar.Header{{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}}
	for i, applet := range []string{"busybox", "sh", "cat", "echo", "id", "env", "ls", "pwd", "touch", "stat", "sleep", "true", "cp", "dd"} {
		h := tar.Header{Name: "bin/" + applet, Mode: 0o755, Typeflag: tar.TypeLink, Linkname: "bin/busybox"}
		if i == 0 {
			h = tar.Header{Name: "bin/busybox", Mode: 0o755, Typeflag: tar.TypeReg, Size: int64(len(program))}
		}
		files = append(files, h)
	}
	config := v1.Config{Env: []string{"PATH=/bin", "GREETING=hello"}}
	switch kind {
	case "tool":
		config.User, config.WorkingDir, config.Entrypoint = "app", "/srv/app", []string{"git"}
		files = append(files, dirHeader("etc/"), fileHeader("etc/passwd"), fileHeader("etc/group"))
	case "command":
		config.Entrypoint, config.Cmd = []string{"/bin/sh", "-c", `echo "ran $0 $1 in $(pwd)"`}, []string{"default", "words"}
	case "scratch", "mute":
		files = []tar.Header{{Name: "echo", Mode: 0o755, Typeflag: tar.TypeReg, Size: int64(len(program))}}
		config.User = "65532"
		if kind == "scratch" {
			config.Entrypoint, config.Cmd = []string{"/echo", "from"}, []string{"scratch"}
		}
	case "foreign":
		if platform = "s390x"; runtime.GOARCH == platform {
			platform = "riscv64"
		}
	case "rude":
		config.User, config.WorkingDir = "app", "/bin/busybox"
		for name, target := range map[string]string{".cloche": "tmp", "dev": "bin", "tmp": "etc/passwd", "etc/passwd": "/dev/zero", "etc/group": "/dev/zero", "proc": "bin/busybox"} {
			files = append(files, tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target})
		}
	case "escape":
		files = append(files, fileHeader("../../escaped"))
	case "devices":
		files = append(files, tar.Header{Name: "dev/mem", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1, Mode: 0o666},
			tar.Header{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o666})
	default:
		ts.Fatalf("there is no kind of image %q", kind)
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: platform, Config: config})
	ts.Check(err)
	img, err = mutate.AppendLayers(img, scriptLayer(ts, files, program))
	ts.Check(err)
	return img
}

// debianVar names the root of debianImage, as testdata/debian.sh makes it; without it that is done here.
const debianVar = "CLOCHE_TEST_DEBIAN"

// debianImage is Debian's own packages with Python.
func debianImage(ts *testscript.TestScript) v1.Image {
	root := cmp.Or(os.Getenv(debianVar), ts.MkAbs("debian.tar"))
	if _, err := os.Stat(root); err != nil {
		program, err := filepath.Abs("test/e2e/testdata/debian.sh")
		ts.Check(err)
		ts.Check(ts.Exec("sh", program, root))
	}
	layer, err := tarball.LayerFromFile(root)
	ts.Check(err)
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: v1.Config{
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"}, Cmd: []string{"python3"},
	}})
	ts.Check(err)
	img, err = mutate.AppendLayers(img, layer)
	ts.Check(err)
	return img
}

func dirHeader(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}
}

// accounts are the files of an image with a user.
func accounts(name string) string {
	switch name {
	case "etc/passwd":
		return "root:x:0:0:root:/root:/bin/sh\napp:x:1001:1002::/srv:/bin/sh\n"
	case "etc/group":
		return "app:x:1002:\n"
	}
	return ""
}

func fileHeader(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(accounts(name)))}
}

// scriptLayer packs files; each has of the content what its header says.
func scriptLayer(ts *testscript.TestScript, files []tar.Header, program []byte) v1.Layer {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range files {
		data := []byte(accounts(h.Name))
		if h.Size == int64(len(program)) {
			data = program
		}
		ts.Check(w.WriteHeader(&h))
		_, err := w.Write(data[:h.Size])
		ts.Check(err)
	}
	ts.Check(w.Close())
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	ts.Check(err)
	return l
}

// hasBusybox is the condition of scripts that make images.
func hasBusybox() bool {
	_, err := os.Stat(filepath.Clean(staticBusybox))
	return err == nil
}
