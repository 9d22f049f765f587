//go:build linux

package e2e_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/test/longtest"
	"github.com/cloche-dev/cloche/test/tarfile"
)

// TestBuildWithApt builds with apt in an image of Debian, and a package of a repository that an endpoint brings
// into the sandbox.
func TestBuildWithApt(t *testing.T) {
	longtest.Skip(t, "it fetches a package and starts sandboxes")
	debian := os.Getenv("CLOCHE_TEST_DEBIAN")
	if debian == "" || os.Geteuid() != 0 {
		t.Skip("needs an image of Debian, which root can make: set CLOCHE_TEST_DEBIAN, see CONTRIBUTING.md")
	}
	dir := t.TempDir()
	repository := filepath.Join(dir, "repo")
	if err := os.Mkdir(repository, 0o755); err != nil {
		t.Fatal(err)
	}
	fetch := exec.CommandContext(t.Context(), "apt-get", "download", "-o", "APT::Sandbox::User=root", "hello")
	fetch.Dir = repository
	if out, err := fetch.CombinedOutput(); err != nil {
		t.Skipf("needs a package to install: %v\n%s", err, out)
	}
	found, err := filepath.Glob(filepath.Join(repository, "*.deb"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%q, %v", found, err)
	}
	control, err := exec.CommandContext(t.Context(), "dpkg-deb", "--field", found[0]).Output()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	index := fmt.Sprintf("%sFilename: repo/%s\nSize: %d\nSHA256: %x\n\n", control, filepath.Base(found[0]), len(data), sha256.Sum256(data))
	if err := os.WriteFile(filepath.Join(repository, "Packages"), []byte(index), 0o600); err != nil {
		t.Fatal(err)
	}
	served := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(served.Close)
	b := newBuilds(t, "gvisor")
	b.h.Must("image", "import", "-q", "--name", "debian:12", debian)
	out := b.build(api.ImageBuildRequest{
		Name: "hello:1", Sandbox: api.BuildSandbox{Endpoints: []api.Endpoint{{Name: "apt", Target: served.URL}}},
		Dockerfile: `FROM debian:12
RUN rm -rf /etc/apt/sources.list /etc/apt/sources.list.d && echo 'deb [trusted=yes] http://` + api.DefaultEndpointListen + ` repo/' > /etc/apt/sources.list
RUN --mount=type=cache,target=/var/cache/apt/archives,id=apt apt-get update && apt-get install -y --no-install-recommends hello && rm -rf /var/lib/apt/lists/*
USER nobody
CMD ["hello", "-g", "from a build"]
`,
	})
	if left := b.shell("hello:1", "ls /var/cache/apt/archives/*.deb 2>/dev/null; true"); left != "" {
		t.Errorf("the cache is in the image: %q", left)
	}
	if got := b.run("hello:1"); got != "from a build\n" {
		t.Errorf("%q\n%s", got, out.output)
	}
	b.h.Left()
}

// TestBuildPackages: what a list of packages cannot have.
func TestBuildPackages(t *testing.T) {
	b := newBuilds(t, "gvisor")
	for name, req := range map[string]api.ImagePackages{
		"no package":   {},
		"an option":    {Pip: []string{"--index-url=http://127.0.0.1:1"}},
		"a command":    {Pip: []string{"x;id"}},
		"a quote":      {Npm: []string{"x'$(id)'"}},
		"apt on host":  {Apt: []string{"curl"}},
		"a bad base":   {From: "a b", Pip: []string{"x"}},
		"a line break": {Pip: []string{"x\ny"}},
	} {
		if _, err := b.try(t.Context(), api.ImageBuildRequest{Name: "p:1", Packages: &req}); api.CodeOf(err) != api.CodeInvalid && api.CodeOf(err) != api.CodeUnsupported {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBuildWithPip builds with pip and a package of its index, which an endpoint brings into the sandbox. The
// cache of downloads has the package for the next build, also without the index.
func TestBuildWithPip(t *testing.T) {
	longtest.Skip(t, "it fetches a package and starts sandboxes")
	index := cowsayIndex(t)
	var asked atomic.Int64
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".whl") {
			asked.Add(1)
			w.Header().Set("Cache-Control", "max-age=3600") // as PyPI does
		}
		index.ServeHTTP(w, r)
	}))
	t.Cleanup(served.Close)
	b := newBuilds(t, "gvisor")
	endpoint := api.Endpoint{Name: "index", Target: served.URL, Env: map[string]string{
		"PIP_INDEX_URL": "{base}/simple/", "PIP_TRUSTED_HOST": "{host}", // pip caches what comes from hosts that it trusts
	}}
	req := api.ImageBuildRequest{Name: "cow:1", Packages: &api.ImagePackages{Pip: []string{"cowsay"}}, Sandbox: api.BuildSandbox{Endpoints: []api.Endpoint{endpoint}}}
	b.build(req)
	if out := b.run("cow:1", "--", "cowsay", "-t", "built"); !strings.Contains(out, "| built |") {
		t.Errorf("the program of the package: %q", out)
	}
	req.Name, req.Packages = "cow:2", nil
	req.Dockerfile = "FROM host\nRUN --mount=type=cache,target=/root/.cache/pip,id=pip python3 -m pip install cowsay && mkdir /app\nCOPY app.py /app/\nCMD [\"python3\", \"/app/app.py\"]\n"
	out := b.build(req, tarfile.Regular("app.py", "import cowsay; cowsay.cow('from an app')\n"))
	if out := b.run("cow:2"); !strings.Contains(out, "| from an app |") {
		t.Errorf("the application: %q", out)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the package was fetched %d times: %s", n, out.output)
	}
	if _, status := b.h.Try("image", "export", "-o", filepath.Join(t.TempDir(), "x.tar"), "cow:1"); status == 0 {
		t.Error("an image on host was exported")
	}
	b.h.Left()
}
